"""What can go wrong with an index of one's own: errors, closing, wrong answers, wrong settings."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import (
    ConfigurationError,
    DataError,
    FlowError,
    InternalError,
    PenstockError,
    StorageError,
    UserCodeError,
)
from penstock.engine.core.operator import exhaust
from penstock.engine.flow import index
from penstock.engine.operators import LookupJoin
from penstock.engine.operators.join.running_lookup import AsynchronousLookupJoin
from support.asynchronous_driver import HeldBackground, polled, started, values
from support.index_kinds import INDEX, SCHEMA, STORED, keys
from support.operator_harness import Collected, context


@dataclass(frozen=True)
class Watched:
    """An index that notes what it is asked, and answers with what it is given: an exception, or anything else."""

    gives: Any = None
    blocks: bool = True
    events: list[Any] = field(default_factory=list, compare=False, hash=False)
    key: tuple[str, ...] = ("k",)

    @property
    def schema(self) -> pa.Schema:
        return STORED.schema

    def open(self) -> Watched:
        return self

    def fingerprint(self) -> str:
        return "of its content"

    def describe(self) -> str:
        return "watched index"

    def lookup(self, wanted: pa.RecordBatch) -> Any:
        self.events.append(wanted.column("k").to_pylist())
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives if self.gives is not None else index.memory(STORED, "k").open().lookup(wanted)

    def close(self) -> None:
        self.events.append("closed")


def test_index_that_blocks_is_asked_for_each_key_of_a_batch_once() -> None:
    watched = Watched()
    running, background, output = started(LookupJoin(watched, ("k",), how="left"))
    exhaust(running.process(0, Batch(keys(7, None, 3, 7, 7, 500, 3), Tag(0, 0, 0)), output))
    background.release()
    polled(running, output)
    assert watched.events == [[7, 3, 500]]
    assert values(output) == [70, None, 30, 70, 70, None, 30]


BROKEN: list[tuple[Any, type[PenstockError], str]] = [
    (ConnectionResetError("gone"), StorageError, "watched index failed: gone(.|\n)*remedy"),
    (TimeoutError("late"), StorageError, "late"),
    (KeyError("oops"), UserCodeError, r"watched index failed: it raised KeyError: 'oops'(.|\n)*remedy(.|\n)*Traceback"),
    (DataError("told", "so"), DataError, "^told\n  remedy: so$"),
    ("rubbish", DataError, "answered with str(.|\n)*remedy: give a Found"),
    (index.Found(index.Matches.none(3), STORED.to_batches()[0]), DataError, "answered for 3 of 2 keys"),
    (index.Found(index.Matches.none(2), keys(1)), DataError, r"columns k \(int64\); its schema has k .*, v"),
    (
        index.Found(index.Matches(np.array([0, 99]), np.array([1, 2]), None), STORED.to_batches()[0]),
        DataError,
        "matches beyond its rows",
    ),
]


@pytest.mark.parametrize(("gives", "error", "message"), BROKEN)
@pytest.mark.parametrize("blocks", [False, True])
def test_error_of_an_index_reaches_the_driver_and_names_the_index(
    gives: Any, error: type[PenstockError], message: str, blocks: bool
) -> None:
    config = LookupJoin(Watched(gives, blocks), ("k",))
    background, output = HeldBackground(), Collected(config.output_schema([SCHEMA]))
    running = config.build(replace(context(), background=background), [SCHEMA], None)

    def fails() -> None:
        exhaust(running.process(0, Batch(keys(1, 2), Tag(0, 0, 0)), output))
        background.release()
        assert isinstance(running, AsynchronousLookupJoin)
        polled(running, output)

    with pytest.raises(error, match=message) as caught:
        fails()
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    assert not output.batches


def test_error_comes_behind_the_rows_of_the_batches_before() -> None:
    running, background, output = started(LookupJoin(Watched(), ("k",), prefetch=1))
    exhaust(running.process(0, Batch(keys(1), Tag(0, 0, 0)), output))
    exhaust(running.process(0, Batch(keys(2), Tag(0, 0, 1)), output))
    _, done = background.waiting.pop(1)
    done(StorageError("lost"))
    assert not polled(running, output)
    background.release()
    with pytest.raises(StorageError, match="lost"):
        polled(running, output)
    assert values(output) == [10]


def test_error_when_an_index_is_opened_names_it() -> None:
    @dataclass(frozen=True)
    class Closed(Watched):
        def open(self) -> Watched:
            raise PermissionError(13, "not for you")

    with pytest.raises(StorageError, match=r"watched index could not be opened: (.|\n)*not for you"):
        LookupJoin(Closed(), ("k",)).build(context(), [SCHEMA], None)


def test_index_is_closed_once_and_not_before_the_last_lookup_has_come_back() -> None:
    watched = Watched()
    running, background, output = started(LookupJoin(watched, ("k",), prefetch=1))
    entered, go_on = threading.Event(), threading.Event()

    def slow(wanted: pa.RecordBatch) -> Any:
        entered.set()
        assert go_on.wait(10)
        return Watched.lookup(watched, wanted)

    object.__setattr__(watched, "lookup", slow)
    exhaust(running.process(0, Batch(keys(1), Tag(0, 0, 0)), output))
    exhaust(running.process(0, Batch(keys(2), Tag(0, 0, 1)), output))
    thread = threading.Thread(target=background.release)
    thread.start()
    assert entered.wait(10)
    running.close()
    assert watched.events == []
    go_on.set()
    thread.join()
    assert watched.events == [[1], "closed"]
    answers: list[Any] = []
    work, _ = background.waiting.pop()
    with pytest.raises(InternalError, match="after its join was closed"):
        answers.append(work())
    assert watched.events == [[1], "closed"], "work that begins too late does not ask a closed index"


def test_closing_with_nothing_under_way_closes_the_index_at_once() -> None:
    for blocks in (False, True):
        watched = Watched(blocks=blocks)
        LookupJoin(watched, ("k",)).build(context(), [SCHEMA], None).close()
        assert watched.events == ["closed"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LookupJoin(INDEX, ("k",), prefetch=-1), "prefetch is -1"),
        (LookupJoin("nothing", ("k",)), "str is no index(.|\n)*schema, key, blocks, open, fingerprint, describe"),  # type: ignore[arg-type]
        (LookupJoin(INDEX, ("k",), how="full"), "'full' is no join type it knows(.|\n)*inner, left"),
    ],
)
def test_lookup_join_refuses_what_it_cannot_do(config: LookupJoin, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([SCHEMA])


def test_tuning_changes_neither_description_nor_fingerprint() -> None:
    one, other = (LookupJoin(Watched(), ("k",), prefetch=prefetch) for prefetch in (0, 5))
    assert one != other
    assert one.describe() == other.describe()
    assert one.fingerprint == other.fingerprint == "of its content"


def test_missing_files_are_an_error_of_the_setting(tmp_path: Path) -> None:
    for make in (index.parquet, lambda path, key: index.sql(path, "t", key)):
        with pytest.raises(ConfigurationError, match="nowhere"):
            make(tmp_path / "nowhere", "k")
