"""Graphs of execution streams: every shape at every degree, errors and aborts, demand, several readers."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from penstock.engine.core.errors import DataError, FlowError, InternalError
from penstock.engine.scheduler.pool import PoolScheduler
from penstock.engine.scheduler.stream_edges import EdgeKind
from penstock.engine.scheduler.stream_graph import StreamGraph
from penstock.engine.scheduler.streams import Append, Fold, Source, Spool, Stream, Transform, Verdict
from support.simulated_scheduler import SimulatedScheduler
from support.stream_shapes import SHAPES, Shape, chain, ramp

DEGREES = [0, 1, 2, 4, 8]
KINDS = list(EdgeKind)
LONG = 60.0


def check(shape: Shape, items: list) -> None:
    got = np.concatenate(items)
    np.testing.assert_array_equal(got if shape.ordered else np.sort(got), shape.expected)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before  # threads of earlier tests may end in the meantime


@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_shape_gives_the_same_result_at_every_degree(shape: Shape, degree: int, kind: EdgeKind, eager: bool) -> None:
    with shape.build(kind).run(degree, eager=eager) as run:
        check(shape, list(run.outputs[0]))
        run.closed.result(LONG)
        assert run.error is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_shape_gives_the_same_result_in_simulated_interleavings(shape: Shape, kind: EdgeKind) -> None:
    for seed in range(3):
        with shape.build(kind).start(SimulatedScheduler(seed)) as run:
            check(shape, list(run.outputs[0]))


def test_graph_is_a_plan_that_runs_again_at_another_degree() -> None:
    graph = chain(1_000, 2)(EdgeKind.HANDOFF)
    for degree in DEGREES:
        with graph.run(degree) as run:
            assert sum(map(len, run.outputs[0])) == 1_000


class Meeting(Stream):
    """A source that gives one item, having met its like."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__()
        self._barrier = barrier
        self._met = False

    def step(self):
        if (overflow := self.overflow()) is not None:
            return overflow
        if self._met:
            return Verdict.DONE
        self._barrier.wait()
        self._met = True
        self.put(1)
        return Verdict.WORKED


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_independent_streams_really_run_at_the_same_time(kind: EdgeKind) -> None:
    """Each waits inside its step for the other three: alone, the barrier would break."""
    barrier = threading.Barrier(4, timeout=LONG)
    graph = StreamGraph("rendezvous")
    sources = [graph.add(f"source {n}", lambda: Meeting(barrier)) for n in range(4)]
    folds = [
        graph.add(f"fold {n}", lambda: Fold(lambda a, b: a + b, 0), [name], kind=kind) for n, name in enumerate(sources)
    ]
    for name in folds:
        graph.pull(name)
    with graph.run(4, eager=True) as run:
        assert [list(outlet) for outlet in run.outputs] == [[1]] * 4


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_streams_wait_for_their_neighbours_over_handoffs_only(kind: EdgeKind) -> None:
    """Who is woken by a put wakes up beside its producer, which is still inside."""
    with chain(5_000, 3)(kind).run(2) as run:
        list(run.outputs[0])
        run.closed.result(LONG)
        waited = ["peer" in handle.waiting for handle in run.statistics().handles]
    # (the source has no edge of this kind before it; the others have one on each side, or before them)
    assert waited[1:] == [kind is EdgeKind.HANDOFF] * 3


def test_neighbours_of_a_double_buffer_run_together() -> None:
    """The first stream is inside its second item while the second one is inside its first, or the barrier breaks."""
    barrier = threading.Barrier(2, timeout=LONG)

    def meeting_at(number: int):
        def meet(item: int) -> int:
            if item == number:
                barrier.wait()
            return item

        return lambda: Transform(meet)

    graph = StreamGraph("overlap")
    graph.add("source", lambda: Source(lambda: [1, 2, 3]))
    graph.add("first", meeting_at(2), ["source"])
    graph.pull(graph.add("second", meeting_at(1), ["first"]))
    with graph.run(2) as run:
        assert list(run.outputs[0]) == [1, 2, 3]


@pytest.mark.parametrize("degree", DEGREES)
def test_nothing_is_opened_before_somebody_pulls(degree: int) -> None:
    opened: list[str] = []

    class Noting(Source):
        def __init__(self, name: str) -> None:
            super().__init__(lambda: [name] * 3)
            self._name = name

        def open(self) -> None:
            super().open()
            opened.append(self._name)

    graph = StreamGraph("lazy")
    sides = [graph.add(name, lambda name=name: Noting(name)) for name in ("a", "b")]
    graph.pull(graph.add("append", Append, sides, kind=EdgeKind.HANDOFF))
    with graph.run(degree) as run:
        assert opened == []
        assert run.why() == [
            f"{name} has not begun: waits for dependency: somebody to ask for its output"
            for name in ("a", "b", "append")
        ]
        assert [run.outputs[0].read() for _ in range(2)] == ["a", "a"]
        assert opened == ["a"]
        assert list(run.outputs[0]) == ["a", "b", "b", "b"]
        assert opened == ["a", "b"]


@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
def test_handoff_chain_produces_what_was_asked_for_and_little_more(eager: bool) -> None:
    produced: list[int] = []

    def items():
        for number in range(1000):
            produced.append(number)
            yield number

    graph = StreamGraph("demand")
    graph.add("source", lambda: Source(items))
    graph.add("copy", Transform, ["source"], kind=EdgeKind.HANDOFF)
    graph.pull("copy")
    with graph.run(0, eager=eager) as run:
        assert [run.outputs[0].read() for _ in range(10)] == list(range(10))
        assert len(produced) <= 10 + 4


@pytest.mark.parametrize("degree", DEGREES)
def test_several_threads_pull_one_output(degree: int) -> None:
    with chain(20_000, 3)(EdgeKind.DOUBLE_BUFFER).run(degree) as run, ThreadPoolExecutor(4) as readers:
        parts = [reader.result(LONG) for reader in [readers.submit(list, run.outputs[0]) for _ in range(4)]]
    for part in parts:
        assert all(one[0] < other[0] for one, other in pairwise(part))
    got = np.sort(np.concatenate([batch for part in parts for batch in part]))
    np.testing.assert_array_equal(got, np.arange(20_000))


def broken(at: int, error: Exception):
    def function(item):
        if item[0] >= at:
            raise error
        return item

    return lambda: Transform(function)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("degree", DEGREES)
def test_error_quiesces_the_graph_and_reaches_every_reader_first(degree: int, kind: EdgeKind) -> None:
    closed: list[Stream] = []
    error = ValueError("third batch")

    class Closing(Transform):
        def close(self) -> None:
            closed.append(self)

    graph = StreamGraph("broken")
    graph.add("ramp", ramp(100_000))
    graph.add("copy", Closing, ["ramp"], kind=kind)
    graph.add("broken", broken(1_000, error), ["copy"], kind=kind)
    graph.pull(graph.add("one", Closing, ["broken"], kind=kind))
    if degree:  # without threads a reader cannot wait for another reader to ask for the other output
        graph.pull(graph.add("two", Closing, ["broken"], kind=kind))
    with graph.run(degree) as run, ThreadPoolExecutor(4) as readers:
        futures = [readers.submit(list, run.outputs[n % len(run.outputs)]) for n in range(4)]
        for future in futures:
            with pytest.raises(ValueError, match="third batch") as caught:
                future.result(LONG)
            assert caught.value is error
            assert len(closed) == 1 + len(run.outputs)
        assert run.closed.done()


@pytest.mark.parametrize("degree", DEGREES)
def test_abort_reaches_the_reader_and_leaves_nothing_running(degree: int) -> None:
    with chain(10**6, 3)(EdgeKind.HANDOFF).run(degree) as run:
        assert len(run.outputs[0].read()) > 0
        run.abort()
        with pytest.raises(CancelledError, match="was aborted"):
            run.outputs[0].read()
        assert run.closed.done()


@pytest.mark.parametrize("degree", DEGREES)
def test_abort_with_an_error_gives_the_readers_that_error(degree: int) -> None:
    with chain(10**6, 3)(EdgeKind.HANDOFF).run(degree) as run:
        run.abort(KeyError("no longer wanted"))
        with pytest.raises(KeyError, match="no longer wanted"):
            run.outputs[0].read()


@pytest.mark.parametrize("degree", DEGREES)
def test_run_that_is_read_in_part_is_closed_with_the_rest(degree: int) -> None:
    with chain(10**6, 3)(EdgeKind.DOUBLE_BUFFER).run(degree, eager=True) as run:
        assert len(run.outputs[0].read()) > 0
    assert run.closed.done()
    assert run.error is None


def test_barrier_refuses_inputs_that_disagree() -> None:
    from support.stream_shapes import split_and_barrier

    graph = split_and_barrier(EdgeKind.DOUBLE_BUFFER)
    graph.streams["count 3"] = lambda: Fold(lambda total, batch: total + 1, 0)
    with graph.run(2) as run, pytest.raises(DataError, match="brought different items"):
        list(run.outputs[0])


def test_diamond_without_a_spool_hangs_and_says_for_whom_each_waits() -> None:
    graph = StreamGraph("diamond")
    graph.add("ramp", ramp(10_000))
    graph.add("splitter", Transform, ["ramp"])
    branches = [graph.add(f"branch {n}", Transform, ["splitter"]) for n in range(2)]
    graph.pull(graph.add("append", Append, branches))
    with graph.run(0) as run:
        with pytest.raises(InternalError, match="nothing of diamond can run") as caught:
            list(run.outputs[0])
        assert "with a Spool" in caught.value.remedy
        assert "splitter waits for output: branch 1" in caught.value.detail
        assert "append waits for input: branch 0" in caught.value.detail
    graph.streams["splitter"] = Spool
    with graph.run(0) as run:
        assert sum(map(len, run.outputs[0])) == 20_000


def test_spool_forgets_a_reader_that_has_gone() -> None:
    """A branch that ends early must neither hold the others nor fill the spool."""

    class First(Transform):
        def step(self):
            step = super().step()
            return Verdict.DONE if step is Verdict.WORKED else step

    graph = StreamGraph("early end")
    graph.add("ramp", ramp(10_000))
    graph.add("spool", Spool, ["ramp"])
    graph.pull(graph.add("first", First, ["spool"]))
    graph.pull(graph.add("all", Transform, ["spool"]))
    with graph.run(2) as run:
        assert sum(map(len, run.outputs[0])) == 500
        assert sum(map(len, run.outputs[1])) == 10_000


def test_producer_ends_when_nobody_needs_its_output_any_more() -> None:
    class First(Transform):
        def step(self):
            step = super().step()
            return Verdict.DONE if step is Verdict.WORKED else step

    graph = StreamGraph("limit")
    graph.add("endless", lambda: Source(lambda: iter(int, 1)))
    graph.add("copy", Transform, ["endless"], kind=EdgeKind.HANDOFF)
    graph.pull(graph.add("first", First, ["copy"], kind=EdgeKind.HANDOFF))
    for degree in DEGREES:
        with graph.run(degree) as run:
            assert list(run.outputs[0]) == [0]
            if degree:
                run.closed.result(LONG)


def test_streams_of_several_graphs_share_a_pool() -> None:
    with PoolScheduler(2) as pool:
        runs = [chain(5_000, 3)(KINDS[n % 2]).start(pool, parallelism=1 + n % 2) for n in range(6)]
        for run in runs:
            assert sum(map(len, run.outputs[0])) == 5_000
            run.close()


@pytest.mark.parametrize(
    ("name", "inputs", "text"),
    [
        ("b", ["nowhere"], "reads from nowhere, which is not in graph g"),
        ("a", [], "two streams of graph g are called a"),
    ],
)
def test_graph_refuses_what_it_cannot_connect(name: str, inputs: list[str], text: str) -> None:
    graph = StreamGraph("g")
    graph.add("a", Transform)
    with pytest.raises(FlowError, match=text):
        graph.add(name, Transform, inputs)
