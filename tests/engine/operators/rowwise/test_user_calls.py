"""How a user's function is called: what it gets, what it may be, and how arrays become columns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.operators import MapBatches
from penstock.engine.operators.rowwise.user_calls import Called, as_array, columns_of
from support.operator_harness import run

ROWS = pa.table({"a": [1, 2, 3, 4]})
SCHEMA = pa.schema([("b", pa.int64())])


def results(called: Called, rows: pa.Table = ROWS) -> list[int]:
    found: list[int] = run(MapBatches(called, SCHEMA), {(0, 0): rows}).table.column("b").to_pylist()
    return found


def of_arrays(given: dict[str, Any], times: int = 2, *, plus: int = 0) -> dict[str, Any]:
    assert set(given) == {"a"}
    return {"b": given["a"] * times + plus}


class Seen:
    """Says as what a column came."""

    def __call__(self, given: Any) -> dict[str, Any]:
        return {"b": given["a"], "kind": [type(given["a"]).__name__] * len(given["a"])}


@pytest.mark.parametrize(
    ("form", "kind"), [("numpy", "ndarray"), ("torch", "Tensor"), ("pandas", "Series"), ("arrow", "Int64Array")]
)
def test_a_function_gets_the_form_it_asks_for(form: Any, kind: str) -> None:
    schema = SCHEMA.append(pa.field("kind", pa.string()))
    found = run(MapBatches(Called(Seen, form), schema), {(0, 0): ROWS}).table
    assert found.to_pydict() == {"b": [1, 2, 3, 4], "kind": [kind] * 4}


def above_two(frame: Any) -> Any:
    return frame[frame.a > 2].rename(columns={"a": "b"})


def test_a_frame_of_pandas_may_come_back() -> None:
    assert results(Called(above_two, "pandas")) == [3, 4]


def test_further_arguments_follow_the_batch() -> None:
    assert results(Called(of_arrays, "numpy", (10,), {"plus": 1})) == [11, 21, 31, 41]


class Adds:
    def __init__(self, much: int, *, more: int = 0) -> None:
        self.much = much + more

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"b": given["a"] + self.much}


def test_a_class_is_built_with_its_arguments() -> None:
    assert results(Called(Adds, "numpy", constructor_args=(5,), constructor_kwargs={"more": 1})) == [7, 8, 9, 10]


def test_arguments_of_a_constructor_need_a_class() -> None:
    with pytest.raises(FlowError, match=r"arguments of a constructor for a function[\s\S]*fn_args="):
        MapBatches(Called(of_arrays, constructor_args=(1,)), SCHEMA).output_schema([ROWS.schema])


@pytest.mark.parametrize(
    ("called", "why"),
    [
        (Called(of_arrays, kwargs={"no": 1}), r"of_arrays\(.*\) does not take its arguments: .*'no'[\s\S]*fn_kwargs="),
        (Called(Adds), r"Adds\(.*\) does not take its arguments: .*'much'[\s\S]*fn_constructor_args="),
    ],
)
def test_arguments_that_it_does_not_take_are_refused_when_the_flow_is_built(called: Called, why: str) -> None:
    with pytest.raises(FlowError, match=why):
        MapBatches(called, SCHEMA).output_schema([ROWS.schema])


def in_pieces(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for value in given["a"]:
        yield {"b": [value] * int(value)}


async def later(given: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"b": given["a"]}


async def later_in_pieces(given: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for value in given["a"]:
        await asyncio.sleep(0)
        yield {"b": [value]}


class Later:
    async def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        return await later(given)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (in_pieces, [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]),
        (later, [1, 2, 3, 4]),
        (later_in_pieces, [1, 2, 3, 4]),
        (Later, [1, 2, 3, 4]),
    ],
)
def test_generators_and_asynchronous_functions_give_all_they_give(function: Any, expected: list[int]) -> None:
    before = threading.active_count()
    assert results(Called(function, "numpy")) == expected
    assert threading.active_count() == before, "the event loop has ended"


def test_what_a_generator_gives_in_crumbs_is_one_batch() -> None:
    assert [each.rows for each in run(MapBatches(Called(in_pieces, "numpy"), SCHEMA), {(0, 0): ROWS}).batches] == [10]


def rows_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"b": row["a"]}] * (row["a"] % 3)


def yields_rows(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from rows_of(row)


@pytest.mark.parametrize("function", [rows_of, yields_rows])
def test_each_row_becomes_rows(function: Any) -> None:
    assert results(Called(function, each="row")) == [1, 2, 2, 4]
    assert results(Called(function, each="row"), pa.table({"a": [3]})) == []


def test_rows_of_different_columns_are_refused() -> None:
    with pytest.raises(DataError, match="a row has the columns c, and another one b"):
        columns_of([{"b": 1}, {"c": 1}])


def total(rows: pa.RecordBatch) -> dict[str, Any]:
    return {"b": [sum(rows["a"].to_pylist()) + len(rows["k"])]}


def test_a_group_is_all_rows_of_a_row_of_lists() -> None:
    lists = pa.table({"k": [1, 2], "__k": [[1, 1], [2]], "__a": [[5, 6], [7]]})
    assert results(Called(total, each="group", columns=("k", "a")), lists) == [13, 8]


def test_a_class_has_as_many_instances_as_calls_at_once_but_an_asynchronous_one() -> None:
    built: list[object] = []

    class Counted:
        def __init__(self) -> None:
            built.append(self)

        def __call__(self, given: Any) -> Any:
            return given

    class Asynchronous(Counted):
        async def __call__(self, given: Any) -> Any:
            return given

    Called(Counted).made(3).close()
    assert len(built) == 3
    Called(Asynchronous).made(3).close()
    assert len(built) == 4


CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def cube(_: Any) -> dict[str, Any]:
    return {"b": CUBE}


@pytest.mark.parametrize(
    "type",
    [
        None,
        pa.fixed_shape_tensor(pa.float32(), (3, 4)),
        pa.fixed_shape_tensor(pa.float64(), (3, 4)),
        pa.list_(pa.list_(pa.float32(), 4), 3),
        pa.list_(pa.list_(pa.float32())),
        pa.large_list(pa.list_(pa.float32(), 4)),
    ],
)
def test_arrays_of_more_dimensions_become_the_type_that_is_wanted(type: pa.DataType | None) -> None:
    schema = pa.schema([("b", type or pa.fixed_shape_tensor(pa.float32(), (3, 4)))])
    assert type is not None or as_array(CUBE).type == schema.field("b").type
    found = run(MapBatches(Called(cube), schema), {(0, 0): ROWS.slice(0, 1)}).table.column("b")
    assert found.type == schema.field("b").type
    values = found.combine_chunks()
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    assert np.array(values.to_pylist()).reshape(CUBE.shape).tolist() == CUBE.tolist()


def test_an_array_of_another_shape_is_refused() -> None:
    schema = pa.schema([("b", pa.fixed_shape_tensor(pa.float32(), (4, 3)))])
    with pytest.raises(DataError, match=r"does not fit [\s\S]*its rows have the shape \(3, 4\)"):
        run(MapBatches(Called(cube), schema), {(0, 0): ROWS.slice(0, 1)})
