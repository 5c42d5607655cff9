"""A function that cannot be sent is told with the variable that stands in the way, before anything is started."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.actors.job.sendable import check_sendable
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.planner.pipelines import plan_job

SCHEMA = pa.schema([("n", pa.int64())])


class Client:
    def __init__(self) -> None:
        self.pools = {"one": [threading.Lock()]}


def closure() -> Callable[[Any], Any]:
    client = Client()
    return lambda batch: client.pools and batch


class Model:
    def __init__(self, client: Client) -> None:
        self.client = client

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def ours(batch: pa.RecordBatch, *, lock: Any = None) -> pa.RecordBatch:
    return batch


HELD = Client()
BAD: list[tuple[Any, dict[str, Any], str]] = [
    (
        closure(),
        {},
        r"function closure.<locals>.<lambda> \(test_sendable.py, line \d+\) .* \"client.pools\['one'\]\[0\]\"",
    ),
    (lambda batch, lock=HELD.pools["one"][0]: batch, {}, "because 'lock' in it cannot be pickled"),
    (lambda batch: HELD and batch, {}, r"\"HELD.pools\['one'\]\[0\]\" in it"),
    (functools.partial(ours, lock=HELD.pools["one"][0]), {}, r"\"keywords\['lock'\]\""),
    (Model(HELD), {}, r"\"client.pools\['one'\]\[0\]\""),
    (Model(HELD).__call__, {}, r"\"self.client.pools\['one'\]\[0\]\""),
    (Model, {"fn_constructor_args": [HELD]}, r"the class Model .*\"constructor_args\[0\].pools\['one'\]\[0\]\""),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_error_names_operator_function_and_variable(case: int) -> None:
    function, options, told = BAD[case]
    flow = ps.Flow("bad")
    flow.from_tables([SCHEMA.empty_table()]).map_batches(function, SCHEMA, **options).collect("rows")
    with pytest.raises(ConfigurationError, match=told) as caught:
        check_sendable(plan_job(flow, 1))
    assert caught.value.operator == "map-batches-1"
    assert "in __init__ of a class" in caught.value.remedy


class Longest:
    """An aggregate function of a user's own, with something that stays where it is."""

    name = "longest"
    ordered = False

    def __init__(self) -> None:
        self.client = Client()

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        return (pa.int64(),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        return pa.int64()

    def lift(self, values: pa.Array | None, rows: int) -> tuple[pa.Array, ...]:
        raise NotImplementedError

    def blank(self, column: pa.DataType | None, rows: int) -> tuple[pa.Array, ...]:
        raise NotImplementedError

    def merge(self, state: tuple[pa.Array, ...], segments: Any) -> tuple[pa.Array, ...]:
        raise NotImplementedError

    def final(self, state: tuple[pa.Array, ...], column: pa.DataType | None) -> pa.Array:
        raise NotImplementedError


IN_LISTS = [
    (ps.aggregate_function(closure(), pa.int64()), r"function closure.<locals>.<lambda> \(.* because \"client.pools"),
    (Longest(), r"the Longest cannot .* because \"client.pools\['one'\]\[0\]\" in it"),
]


@pytest.mark.parametrize(("function", "told"), IN_LISTS)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_functions_within_the_lists_of_an_operator_are_looked_at(function: Any, told: str, parallelism: int) -> None:
    flow = ps.Flow("bad")
    flow.from_tables([SCHEMA.empty_table()]).aggregate([], m=("n", function)).collect("rows")
    with pytest.raises(ConfigurationError, match=told) as caught:
        check_sendable(plan_job(flow, parallelism))
    assert caught.value.operator == "hash-aggregate-1"


def test_what_can_be_sent_is_not_refused_nor_copied() -> None:
    large = bytearray(8 << 20)
    flow = ps.Flow("good")
    rows = flow.from_tables([pa.table({"n": range(3)})])
    rows.map_batches(lambda batch: large and batch, SCHEMA).filter("n > 0").collect("rows")
    check_sendable(plan_job(flow, 2))


def test_nothing_is_started_for_a_flow_that_cannot_be_sent(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.actors.job.launch.is_connected", lambda: False)
    monkeypatch.setattr("penstock.actors.job.launch.connect", lambda *given, **named: pytest.fail("it was started"))
    flow = ps.Flow("bad")
    flow.from_tables([SCHEMA.empty_table()]).map_batches(closure(), SCHEMA).write_parquet(tmp_path / "out")
    with pytest.raises(ConfigurationError, match="cannot be pickled"):
        ps.run(flow, checkpoints=tmp_path / "state")
