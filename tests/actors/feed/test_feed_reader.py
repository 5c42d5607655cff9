"""The face of a rank, at a feed that is played by the test: what is refused, where it is told, whose process it is."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch

from penstock.actors.feed.models import ModelBook
from penstock.actors.feed.prefetch import FetchState, Prefetcher
from penstock.actors.feed.reader import FeedHandle, Reader
from penstock.engine.core.errors import ConfigurationError, DataError, InternalError, SetupError
from penstock.engine.feed.messages import Ask, FeedEnded, RankGroup, Reply, Slice
from support import collating
from support.feeds import wait_for

SCHEMA = pa.schema([("n", pa.int64())])


def numbers(batch: int) -> tuple[pa.RecordBatch, ...]:
    return (pa.record_batch({"n": pa.array(range(10 * batch, 10 * batch + 10), pa.int64())}),)


@dataclass
class Feed:
    """A feed of ten batches, its route and its link; ``refuse``: what is said of every model."""

    rows: Callable[[int], tuple[pa.RecordBatch, ...]] = numbers
    batches: int = 10
    refuse: str | None = ""
    fails: BaseException | None = None
    comes: bool = True
    folder: str = "nowhere"
    told: list[Ask] = field(default_factory=list)
    #: questions wait for it
    open_to: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.open_to.set()

    def open(self) -> Feed:
        return self

    def ask(self, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        assert self.open_to.wait(60)
        if self.fails is not None:
            raise self.fails
        if not self.comes:
            return Reply(None, reason="rank 1 of 2 to join")
        group = RankGroup(1, ask.ranks, 0, ask.copies)
        there = [batch for batch in ask.wanted if batch < self.batches]
        ended = [FeedEnded(1, batch, self.batches) for batch in ask.wanted if batch >= self.batches]
        slices = [Slice(1, ask.rank, batch, 10 * batch, self.rows(batch), 10) for batch in there]
        bound = () if self.refuse is None else tuple((each.model, self.refuse) for each in ask.commits)
        return Reply(group, (*slices, *ended), settled=ask.leaves, bound=bound)

    def notify(self, ask: Ask) -> None:
        self.told.append(ask)

    def close(self) -> None:
        self.closed.set()


def handle(feed: Feed, schema: pa.Schema = SCHEMA) -> FeedHandle:
    return FeedHandle("job", "feed", 10, schema, feed)


def firsts(batches: Any, count: int) -> list[int]:
    return [next(batches).column("n")[0].as_py() for _ in range(count)]


# ---------------------------------------------------------------------- models that are refused


def refused(reader: Reader) -> None:
    """Commit one, and wait until the answer is there."""
    reader.commit("m")
    assert reader._prefetcher is not None
    wait_for(lambda: bool(reader._prefetcher and reader._prefetcher._refused))


def test_refused_model_is_told_at_the_next_batch_once_and_no_batch_is_lost() -> None:
    reader = handle(Feed(refuse="model 'm' is bound to step 4")).reader(timeout=60)
    batches = reader.iter_batches()
    assert firsts(batches, 2) == [0, 10]
    refused(reader)
    with pytest.raises(ConfigurationError, match="model 'm' is bound to step 4"):
        next(batches)
    assert reader.step == 2
    assert firsts(reader.iter_batches(), 1) == [20]
    reader.close()


@pytest.mark.parametrize("way", ["close", "with", "load_state_dict", "flush"])
def test_refused_model_is_told_by(way: str) -> None:
    reader = handle(Feed(refuse="model 'm' is bound to step 4")).reader(timeout=60)
    firsts(reader.iter_batches(), 2)
    refused(reader)

    def end() -> None:
        if way == "with":
            with reader:
                pass
        else:
            getattr(reader, way)(*([reader.state_dict()] if way == "load_state_dict" else []))

    with pytest.raises(ConfigurationError, match="model 'm' is bound to step 4"):
        end()
    reader.close()  # it has been told


def test_refused_model_does_not_hide_the_error_that_ends_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    reader = handle(Feed(refuse="model 'm' is bound to step 4")).reader(timeout=60)

    def loop() -> None:
        with reader:
            firsts(reader.iter_batches(), 2)
            refused(reader)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert "model 'm' is bound to step 4" in caplog.text


def test_loop_that_fails_waits_for_the_models_that_it_has_committed(caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed()
    reader = handle(feed).reader(timeout=60)

    def loop() -> None:
        with reader:
            firsts(reader.iter_batches(), 2)
            feed.open_to.clear()  # the answer takes a while
            reader.commit("m")
            threading.Timer(0.1, feed.open_to.set).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert "bound" not in caplog.text


@pytest.mark.parametrize("timeout", [0.0, 30.0])
def test_reader_that_is_closed_says_what_it_has_taken(timeout: float) -> None:
    """Else a model that covers it would wait for this rank, and be said to be ahead of it, for ever."""
    feed = Feed()
    reader = handle(feed).reader(timeout=60, prefetch_batches=8)
    batches = reader.iter_batches()
    firsts(batches, 1)
    feed.open_to.clear()
    firsts(batches, 4)
    reader.close(timeout)
    feed.open_to.set()
    assert feed.told
    assert feed.told[-1].taken == 5


def test_models_of_which_nothing_is_known_at_the_end_are_named(caplog: pytest.LogCaptureFixture) -> None:
    reader = handle(Feed(refuse=None)).reader(timeout=60)
    firsts(reader.iter_batches(), 2)
    reader.commit("m")
    with caplog.at_level(logging.WARNING):
        reader.close(0.0)
    assert "before these models are bound: m" in caplog.text


def test_model_that_comes_when_the_feed_is_let_go_is_written_down_by_its_rank(tmp_path: Path) -> None:
    feed = Feed(folder=str(tmp_path))
    reader = handle(feed).reader(timeout=60)
    batches = reader.iter_batches()
    firsts(batches, 10)
    feed.open_to.clear()  # the answer to the question whether the rank may go is on its way
    assert next(batches, None) is None
    prefetcher = reader._prefetcher
    assert prefetcher is not None
    wait_for(lambda: prefetcher._asking)
    reader.commit("late")
    feed.open_to.set()
    feed.refuse = None
    reader.flush(60)
    reader.commit("later")
    reader.close()
    found = ModelBook(str(tmp_path), "job").records("feed")
    assert [(each.model, each.step, each.last) for each in found] == [("late", 10, True), ("later", 10, True)]


def test_flush_says_for_whom_it_waits() -> None:
    feed = Feed(comes=False)
    reader = handle(feed).reader(timeout=0.1)
    reader.commit("m")
    wait_for(lambda: bool(reader._prefetcher and "join" in reader._prefetcher.waits_for))
    with pytest.raises(TimeoutError, match="it waits for rank 1 of 2 to join"):
        reader.flush(0.0)
    reader.close(0.0)


# ---------------------------------------------------------------------- the thread


def test_states_of_a_rank_from_a_group_that_is_not_complete_to_the_end() -> None:
    feed = Feed(comes=False)
    prefetcher = Prefetcher(feed, "feed", 0, 1, 0, None)
    seen = [prefetcher._state]

    def reaches(state: FetchState) -> None:
        wait_for(lambda: prefetcher._state is state)
        prefetcher.validate()
        seen.append(state)

    with pytest.raises(TimeoutError, match="it waits for"):
        prefetcher.take(0.0)
    reaches(FetchState.ABSENT)
    feed.comes = True
    assert prefetcher.take(60) is not None
    reaches(FetchState.READING)
    while prefetcher.take(60) is not None:
        pass
    reaches(FetchState.SETTLED)
    assert prefetcher.close(60)
    reaches(FetchState.CLOSED)
    assert [each.quits for each in feed.told] == [False] * len(feed.told)


def test_rank_that_has_given_its_rank_back_asks_for_nothing_until_its_user_waits_again() -> None:
    asked: list[Ask] = []
    feed = Feed(comes=False)
    prefetcher = Prefetcher(feed, "feed", 0, 1, 0, None)
    ask, feed.ask = feed.ask, lambda each, timeout: asked.append(each) or ask(each, timeout)  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        prefetcher.take(0.0)
    wait_for(lambda: prefetcher._state is FetchState.ABSENT)
    assert [each.quits for each in asked].count(True) == 1
    assert asked[-1].quits
    with pytest.raises(TimeoutError):
        prefetcher.take(0.0)
    wait_for(lambda: prefetcher._state is FetchState.ABSENT)
    assert asked[-1].quits
    assert len({each.session for each in asked if each.quits}) == 2, "it comes back as a new reader"
    assert prefetcher.close(0.0)
    prefetcher.validate()


def test_what_goes_wrong_on_the_thread_is_told_by_every_call_and_its_rank_is_given_back() -> None:
    feed = Feed(fails=TypeError("no such thing"))
    reader = handle(feed).reader(timeout=60)
    with pytest.raises(InternalError, match="cannot fetch batches any more: TypeError: no such thing"):
        next(reader.iter_batches())
    assert feed.closed.wait(60)
    assert [each.quits for each in feed.told] == [True]
    with pytest.raises(InternalError):
        reader.commit("m")
    reader.close()


# ---------------------------------------------------------------------- whose process it is


def in_child(work: Callable[[], Any]) -> str:
    """What comes of it in a process that inherits this one."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = f"gave {work()}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(there, said.encode()[:4000])
        os._exit(0)
    os.close(there)
    os.waitpid(child, 0)
    with os.fdopen(here, "rb") as found:
        return found.read().decode()


@pytest.mark.parametrize(
    "use",
    [
        lambda reader, batches: next(batches),
        lambda reader, batches: next(reader.iter_batches()),
        lambda reader, batches: next(reader.iter_rows()),
        lambda reader, batches: next(iter(reader.loader())),
        lambda reader, batches: reader.commit("m"),
        lambda reader, batches: reader.flush(1),
        lambda reader, batches: reader.load_state_dict(reader.state_dict()),
    ],
    ids=["next", "iter_batches", "iter_rows", "loader", "commit", "flush", "load_state_dict"],
)
def test_begun_reader_gives_nothing_to_the_child_of_a_fork(use: Callable[[Reader, Any], Any]) -> None:
    reader = handle(Feed()).reader(timeout=60)
    batches = reader.iter_batches()
    assert firsts(batches, 1) == [0]
    said = in_child(lambda: use(reader, batches))
    assert said.startswith("ConfigurationError: feed: the reader of rank 0 has begun in process")
    assert firsts(batches, 3) == [10, 20, 30]
    reader.close()


def test_child_of_a_fork_closes_nothing_of_its_parent() -> None:
    feed = Feed()
    reader = handle(feed).reader(timeout=60)
    batches = reader.iter_batches()
    firsts(batches, 1)
    with reader._prefetcher._changed:  # type: ignore[union-attr]  # a lock that the child would wait for
        assert in_child(lambda: (reader.close(), feed.closed.is_set())[1]) == "gave False"
    assert firsts(batches, 1) == [10]
    reader.close()


def test_begun_reader_is_neither_pickled_nor_copied_and_one_that_has_not_begun_is() -> None:
    reader = FeedHandle("job", "feed", 10, SCHEMA, Folder()).reader(timeout=60)
    other = pickle.loads(pickle.dumps(reader))
    assert (other.rank, other.step) == (0, 0)
    other.close()
    firsts(reader.iter_batches(), 1)
    for copied in (pickle.dumps, copy.copy):
        with pytest.raises(ConfigurationError, match="rank 0 of feed 'feed' has begun and cannot be pickled"):
            copied(reader)
    reader.load_state_dict(reader.state_dict())  # it begins anew
    pickle.loads(pickle.dumps(reader)).close()
    reader.close()


class Folder:
    """A route that can be pickled."""

    folder = "nowhere"

    def open(self) -> Feed:
        return Feed()


# ---------------------------------------------------------------------- what a slice becomes


def test_slice_that_one_batch_cannot_hold_is_refused_and_can_be_read_otherwise() -> None:
    """36 times the same 64 MiB: nothing here is large but what would have been lost."""
    piece = pa.record_batch({"n": pa.array(range(64)), "b": pa.array([b"x" * (1 << 20)] * 64)})
    feed = Feed(lambda batch: (piece,) * 36, batches=1)
    reader = handle(feed, piece.schema).reader(timeout=60)
    with pytest.raises(DataError, match="column 'b' has more in 2,304 rows than one array of type binary can hold"):
        next(reader.iter_batches())
    assert reader.step == 0
    assert sum(1 for _ in reader.iter_rows()) == 2304
    reader.close()


def test_slice_that_cannot_be_given_so_has_not_been_taken() -> None:
    holed = (pa.record_batch({"n": pa.array([1, None], pa.int64())}),)
    reader = handle(Feed(lambda batch: holed if batch == 1 else numbers(batch))).reader(timeout=60)
    batches = reader.iter_batches(batch_format="numpy")
    assert next(batches)["n"].tolist() == list(range(10))
    with pytest.raises(DataError, match="column 'n'"):
        next(batches)
    assert (reader.step, reader.state_dict()["step"]) == (1, 1)
    again = reader.iter_torch_batches(nulls="mask")
    found = next(again)
    assert found["n"].tolist() == [1, 0]
    assert found["n_mask"].tolist() == [False, True]
    assert (reader.step, next(again)["n"][0].item()) == (2, 20)
    reader.close()


def test_a_place_that_is_loaded_comes_before_a_batch_that_could_not_be_given() -> None:
    holed = (pa.record_batch({"n": pa.array([1, None], pa.int64())}),)
    reader = handle(Feed(lambda batch: holed if batch == 2 else numbers(batch))).reader(timeout=60)
    start = reader.state_dict()
    batches = reader.iter_batches(batch_format="numpy")
    assert [next(batches)["n"][0] for _ in range(2)] == [0, 10]
    with pytest.raises(DataError, match="column 'n'"):
        next(batches)
    reader.load_state_dict(start)
    assert firsts(reader.iter_batches(), 2) == [0, 10]
    reader.close()


def test_batch_that_was_fetched_ahead_and_cannot_be_given_does_not_hide_the_one_that_is_not_seen() -> None:
    holed = (pa.record_batch({"n": pa.array([1, None], pa.int64())}),)
    reader = handle(Feed(lambda batch: holed if batch == 2 else numbers(batch))).reader(timeout=60)
    loader = reader.loader()
    batches = iter(loader)
    assert [next(batches)["n"][0].item() for _ in range(2)] == [0, 10]
    assert loader.state_dict()["step"] == 1
    with pytest.raises(DataError, match="column 'n'"):
        next(batches)
    assert loader.state_dict()["step"] == 1, "the model has not seen the second one yet"
    assert next(iter(reader.loader(nulls=0)))["n"].tolist() == [1, 0]
    assert loader.state_dict()["step"] == 2
    reader.close()


class Pair(NamedTuple):
    x: torch.Tensor
    y: np.ndarray[Any, Any]


def test_collate_fn_may_give_tuples_with_names() -> None:
    reader = handle(Feed()).reader(timeout=60)
    found = next(
        reader.iter_torch_batches(collate_fn=lambda arrays: Pair(torch.tensor(arrays["n"]), arrays["n"]), device="cpu")
    )
    assert isinstance(found, Pair)
    assert found.x.tolist() == found.y.tolist() == list(range(10))
    reader.close()


# ---------------------------------------------------------------------- made ahead by threads


def fetched(reader: Reader, batches: int) -> None:
    """Wait until so many are there."""
    wait_for(lambda: reader._prefetcher is not None and len(reader._prefetcher.fetched(batches)) == batches)


def test_threads_make_batches_ahead_of_the_loop_and_the_position_is_that_of_the_loop() -> None:
    made: list[int] = []
    ahead = threading.Event()

    def collate(arrays: dict[str, Any]) -> int:
        made.append(int(arrays["n"][0]))
        if len(made) == 5:
            ahead.set()
        return int(arrays["n"][0])

    reader = handle(Feed()).reader(timeout=60, prefetch_batches=8)
    batches = reader.iter_torch_batches(collate_fn=collate, threads=3)
    assert next(batches) == 0
    fetched(reader, 8)
    assert next(batches) == 10
    assert ahead.wait(60), "two were taken, and four are made ahead"
    assert (reader.step, reader.state_dict()["step"]) == (2, 2)
    assert list(batches) == list(range(20, 100, 10))
    assert sorted(made) == list(range(0, 100, 10)), "each is made once"
    reader.close()


def test_threads_call_a_function_several_at_once() -> None:
    both = threading.Barrier(2, timeout=60)

    def collate(arrays: dict[str, Any]) -> int:
        if arrays["n"][0] in (10, 20):
            both.wait()  # each waits for the other one
        return int(arrays["n"][0])

    reader = handle(Feed()).reader(timeout=60, prefetch_batches=8)
    batches = reader.iter_torch_batches(collate_fn=collate, threads=2)
    first = next(batches)
    fetched(reader, 8)
    assert [first, *batches] == list(range(0, 100, 10))
    reader.close()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_what_a_thread_fails_to_make_is_told_when_the_loop_comes_to_it(threads: int) -> None:
    holed = (pa.record_batch({"n": pa.array([1, None], pa.int64())}),)
    reader = handle(Feed(lambda batch: holed if batch == 2 else numbers(batch))).reader(timeout=60, prefetch_batches=8)
    batches = reader.iter_torch_batches(threads=threads)
    assert next(batches)["n"][0] == 0
    fetched(reader, 8)
    assert next(batches)["n"][0] == 10
    with pytest.raises(DataError, match="column 'n'"):
        next(batches)
    assert reader.step == 2
    again = reader.iter_torch_batches(nulls=0, threads=threads)
    assert [int(found["n"][0]) for found in again] == [1, *range(30, 100, 10)]
    reader.close()


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_lists_take_their_shape_from_the_slice_before_whoever_makes_them(threads: int) -> None:
    """Of lengths that differ from slice to slice, and lists that are null, which have none."""
    schema = pa.schema([("x", pa.list_(pa.int64()))])

    def rows(batch: int) -> tuple[pa.RecordBatch, ...]:
        lists = [None, None] if batch % 3 == 2 else [[batch] * (batch + 1)] * 2
        return (pa.record_batch({"x": pa.array(lists, schema[0].type)}),)

    reader = handle(Feed(rows, batches=30), schema).reader(timeout=60, prefetch_batches=16)
    widths = []
    for found in reader.iter_torch_batches(nulls=0, threads=threads):
        widths.append(found["x"].shape[1])
        if len(widths) == 5:
            break
    for found in reader.iter_torch_batches(nulls=0, threads=threads):
        widths.append(found["x"].shape[1])
    assert widths == [batch if batch % 3 == 2 else batch + 1 for batch in range(30)]
    reader.close()


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_skipped_batches_are_not_handed_out_of_what_was_made_ahead(threads: int) -> None:
    feed = handle(Feed()).skip(range(3, 5)).skip(range(7, 8))
    reader = feed.reader(timeout=60, prefetch_batches=8)
    batches = reader.iter_torch_batches(threads=threads)
    first = int(next(batches)["n"][0])
    fetched(reader, 8)
    assert [first, *(int(found["n"][0]) for found in batches)] == [0, 10, 20, 50, 60, 80, 90]
    reader.close()


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_skipped_batches_are_not_made_and_give_no_shapes(threads: int) -> None:
    """Else whether a slice without rows takes its shape from one that is skipped would depend on what was fetched."""
    schema = pa.schema([("n", pa.int64()), ("x", pa.list_(pa.int64()))])

    def rows(batch: int) -> tuple[pa.RecordBatch, ...]:
        lists = [] if batch == 4 else [[batch] * (batch + 1)]
        found = [pa.array([batch] * len(lists), pa.int64()), pa.array(lists, schema[1].type)]
        return (pa.record_batch(found, schema=schema),)

    made: list[tuple[int, ...]] = []

    def collate(arrays: dict[str, Any]) -> tuple[int, ...]:
        made.append(tuple(arrays["n"].tolist()))
        return tuple(arrays["x"].shape)

    feed = handle(Feed(rows), schema).skip(range(2, 4)).skip(range(9, 10))
    reader = feed.reader(timeout=60, prefetch_batches=8)
    batches = reader.iter_torch_batches(collate_fn=collate, threads=threads)
    first = next(batches)
    fetched(reader, 8)
    assert [first, *batches] == [(1, 1), (1, 2), (0, 2), *((1, batch + 1) for batch in range(5, 9))]
    assert sorted(made) == sorted([(), *((batch,) for batch in (0, 1, 5, 6, 7, 8))])
    assert reader.step == 10
    reader.close()


def test_threads_end_with_their_iteration() -> None:
    def making() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("penstock-feed-making")]

    reader = handle(Feed()).reader(timeout=60)
    batches = reader.iter_torch_batches(threads=2)
    next(batches)
    assert making()
    batches.close()
    wait_for(lambda: not making())
    assert [int(found["n"][0]) for found in reader.iter_torch_batches(threads=2)] == list(range(10, 100, 10))
    wait_for(lambda: not making())
    reader.close()


# ---------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "call",
    [
        lambda reader: reader.iter_batches(nulls="mask"),
        lambda reader: reader.iter_batches(batch_format="numpy", nulls={"m": 0}),
        lambda reader: reader.iter_batches(batch_format="numpy", nulls=0.5),
        lambda reader: reader.iter_torch_batches(dtypes={"m": torch.float32}),
        lambda reader: reader.iter_torch_batches(dtypes="float32"),
        lambda reader: reader.iter_torch_batches(dtypes=torch.float32, collate_fn=dict),
        lambda reader: reader.iter_torch_batches(device="toaster"),
        lambda reader: reader.iter_torch_batches(device=2.5),
        lambda reader: reader.iter_torch_batches(device="cuda:4096"),
        lambda reader: reader.iter_torch_batches(prefetch_batches=2.5),
        lambda reader: reader.iter_torch_batches(prefetch_batches=True),
        lambda reader: reader.iter_torch_batches(prefetch_batches="64 batches"),
        lambda reader: reader.feed.reader(prefetch_batches="much"),
        lambda reader: reader.iter_torch_batches(threads=-1),
        lambda reader: reader.iter_torch_batches(threads=1.5),
        lambda reader: reader.loader(prefetch=2),
        lambda reader: reader.loader(nulls={"m": 0}),
        lambda reader: reader.loader(device="toaster"),
        lambda reader: reader.commit(""),
        lambda reader: reader.flush(-1),
        lambda reader: reader.close(float("inf")),
        lambda reader: reader.feed.reader(0, 10**12),
        lambda reader: reader.feed.reader(timeout=-1),
        lambda reader: reader.feed.skip(range(2, 2)),
        lambda reader: reader.feed.skip(range(10**30)),
    ],
)
def test_what_cannot_be_is_refused_at_the_call(call: Callable[[Reader], Any]) -> None:
    reader = handle(Feed()).reader(timeout=60)
    with pytest.raises(ConfigurationError):
        call(reader)
    reader.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", True),
        ("step", 10**30),
        ("step", 2.0),
        ("epoch", -1),
        ("skipped", [[5, 3]]),
        ("skipped", [[3, 3]]),
        ("skipped", [[-1, 3]]),
        ("skipped", [[1.0, 3]]),
        ("skipped", [[1]]),
        ("skipped", [7]),
        ("skipped", 7),
        ("skipped", {"a": 1}),
    ],
)
def test_states_that_no_reader_gave_are_refused(key: str, value: Any) -> None:
    reader = handle(Feed()).reader(timeout=60)
    with pytest.raises(ConfigurationError, match="load a state that state_dict"):
        reader.load_state_dict({**reader.state_dict(), key: value})
    assert reader.state_dict()["step"] == 0
    reader.close()


# ---------------------------------------------------------------------- collate_fn in processes, and its errors


def test_processes_call_a_function_and_batches_stay_in_order() -> None:
    reader = handle(Feed()).reader(timeout=60)
    found = list(reader.iter_torch_batches(collate_fn=collating.with_process, processes=2))
    assert [batch[0].tolist() for batch in found] == [list(range(first, first + 10)) for first in range(0, 100, 10)]
    processes = {process for _, process in found}
    assert 1 <= len(processes) <= 2
    assert os.getpid() not in processes
    assert reader._processes is not None
    alive = [process._process for process in reader._processes._all]
    assert processes <= {process.pid for process in alive}
    reader.close()
    assert all(process.poll() is not None for process in alive), "they end with the reader"


def test_what_a_function_draws_in_a_process_depends_on_batch_and_rank_alone() -> None:
    found = []
    for processes in (1, 2):
        with handle(Feed()).reader(timeout=60) as reader:
            found.append(list(reader.iter_torch_batches(collate_fn=collating.drawn, processes=processes)))
    assert found[0] == found[1]
    assert len({batch[1] for batch in found[0]}) == 10


@pytest.mark.parametrize("role", ["replicate", "sequence"])
def test_what_a_function_draws_is_the_same_at_ranks_that_read_the_same_rows(role: str) -> None:
    """A mask that differed among the ranks of one tensor-parallel group would train one model on two batches."""
    found = []
    for rank in range(3):
        place: dict[str, Any] = {"mesh": {"dp": 2, "other": 2}, role: "other", "timeout": 60}
        with handle(Feed()).reader(rank, 4, **place) as reader:
            found.append(next(reader.iter_torch_batches(collate_fn=collating.tossed, processes=1)))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_what_a_function_makes_arrives_as_it_is() -> None:
    with handle(Feed()).reader(timeout=60) as reader:
        found = next(reader.iter_torch_batches(collate_fn=collating.many_kinds, processes=1))
    wanted = collating.many_kinds({"n": np.arange(10)})
    for name in ("half", "turned", "one", "none"):
        assert (found[name].dtype, found[name].tolist()) == (wanted[name].dtype, wanted[name].tolist())
    assert found["words"] == ["a", None]
    assert [each.tolist() for each in found["jagged"].unbind()] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    found["array"] += 1  # the loop's to write into
    assert found["array"].tolist() == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("more", [{}, {"threads": 2}, {"processes": 2}], ids=str)
def test_error_of_a_function_names_the_row_when_the_loop_comes_to_it(more: dict[str, int]) -> None:
    reader = handle(Feed()).reader(timeout=60)
    batches = reader.iter_torch_batches(collate_fn=collating.fails_at_53, **more)
    assert [next(batches) for _ in range(5)] == [0, 10, 20, 30, 40]
    with pytest.raises(KeyError) as raised:
        next(batches)
    assert raised.value.__notes__ == ["collate_fn failed with row 3 of the 10 of batch 5 at rank 0 of 1"]
    assert reader.step == 5
    again = reader.iter_torch_batches(collate_fn=collating.with_process, **more)
    assert [int(found[0][0]) for found in again] == [50, 60, 70, 80, 90]
    reader.close()


def test_error_that_no_row_has_alone_names_the_batch() -> None:
    def collate(arrays: dict[str, Any]) -> None:
        if len(arrays["n"]) > 4:
            raise ValueError("too many")

    with handle(Feed()).reader(timeout=60) as reader, pytest.raises(ValueError, match="too many") as raised:
        next(reader.iter_torch_batches(collate_fn=collate))
    assert raised.value.__notes__ == ["collate_fn failed with rows 0 to 4 of the 10 of batch 0 at rank 0 of 1"]


def test_errors_and_results_that_cannot_travel_are_told_in_words() -> None:
    with handle(Feed()).reader(timeout=60) as reader:
        batches = reader.iter_torch_batches(collate_fn=collating.fails_oddly, processes=1)
        assert [next(batches), next(batches)] == [0, 10]
        with pytest.raises(RuntimeError, match="OddError: 2 and 3") as raised:
            next(batches)
        assert raised.value.__notes__ == ["collate_fn failed with row 3 of the 10 of batch 2 at rank 0 of 1"]
        told = "what collate_fn gave for batch 2 at rank 0 of 1, a .*, cannot come back from another process: cannot"
        with pytest.raises(ConfigurationError, match=told):
            next(reader.iter_torch_batches(collate_fn=collating.gives_what_cannot_travel, processes=1))


def test_process_that_is_killed_is_an_error_that_says_so_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_DIED", str(tmp_path / "died"))
    reader = handle(Feed()).reader(timeout=60)
    batches = reader.iter_torch_batches(collate_fn=collating.dies_at_30, processes=2)
    assert [next(batches) for _ in range(3)] == [0, 10, 20]
    with pytest.raises(SetupError, match="called collate_fn for batch 3 at rank 0 of 1 was killed by SIGKILL"):
        next(batches)
    assert list(reader.iter_torch_batches(collate_fn=collating.dies_at_30, processes=2)) == list(range(30, 100, 10))
    reader.close()
    with handle(Feed()).reader(timeout=60) as reader:
        batches = reader.iter_torch_batches(collate_fn=collating.ends_at_30, processes=1)
        assert [next(batches) for _ in range(3)] == [0, 10, 20]
        with pytest.raises(SetupError, match="has ended by itself, with code 3"):
            next(batches)


def test_process_that_cannot_be_started_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    monkeypatch.setattr("sys.path", [*sys.path, Path("/no text")])
    told = r"no process can be started that calls collate_fn \(/nowhere/python\)"
    with handle(Feed()).reader(timeout=60) as reader, pytest.raises(SetupError, match=told):
        next(reader.iter_torch_batches(collate_fn=collating.with_process, processes=1))


def test_loop_that_is_left_ends_processes_that_are_called() -> None:
    reader = handle(Feed()).reader(timeout=60)
    batches = reader.iter_torch_batches(collate_fn=collating.waits_for_ever, processes=2)
    next(batches)
    assert reader._processes is not None
    alive = list(reader._processes._all)
    reader.close()
    assert all(process._process.wait(60) < 0 for process in alive)


def test_function_that_no_process_can_import_is_refused_and_one_of_the_script_travels() -> None:
    reader = handle(Feed()).reader(timeout=60)
    with pytest.raises(ConfigurationError, match="processes without collate_fn"):
        reader.iter_torch_batches(processes=1)
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match="collate_fn cannot go to another process"):
        reader.iter_torch_batches(collate_fn=lambda _: lock, processes=1)
    found = reader.iter_torch_batches(collate_fn=lambda arrays: int(arrays["n"][0]), processes=1)
    assert list(found) == list(range(0, 100, 10))
    reader.close()
