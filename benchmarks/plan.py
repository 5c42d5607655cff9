"""The checkpoint plan: its time for a million tasks, how that grows, and against a walk over pairs of tasks.

Run it as ``python benchmarks/plan.py``; the result goes to ``benchmarks/results/plan.json``. Ten vertices in a row, all
edges of one pattern, the same share of every vertex finished. Three comparisons:

1. *Time* for 10 × 100,000 tasks, against the aim of 100 ms: a checkpoint starts this much later than it could. It is
   the whole way, from one byte per task as the coordinator keeps it to the sets of tasks that a pending checkpoint
   keeps. With unequal parallelism every other vertex has three quarters of the subtasks.
2. *Growth*: nanoseconds per task at a million tasks against those at fewer. A ratio near 1 is linear; with fewer tasks
   the cost is mostly that of calling numpy at all, so larger jobs look better than linear. Plans are flags, one byte a
   task: subtask numbers would be eight, and at a million tasks they would not fit the processor's caches any more.
3. *Walk*: what a calculator does that asks of every task whether any of its upstream tasks runs, one pair after the
   other, stopping at the first that does. With ALL_TO_ALL edges and finished upstreams it meets n² pairs, so its sizes
   are small.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from harness import Row, compare, report, results_folder, sized
from penstock.coordinator.checkpoint.pending import CheckpointPlan, VertexStates, compute_checkpoint_plan
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex, pointwise_upstreams
from penstock.coordinator.model.task_set import TaskSet
from penstock.engine.core.identity import TaskId

VERTICES = 10
AIM_SECONDS = 0.1


def chain(pattern: Pattern, size: int, other: int | None = None) -> ExecutionGraph:
    """Ten vertices in a row, ``size`` subtasks each, every other one ``other``."""
    names = [f"v{number}" for number in range(VERTICES)]
    edges = tuple(JobEdge(first, second, pattern) for first, second in pairwise(names))
    sizes = [other if other is not None and number % 2 else size for number in range(VERTICES)]
    return ExecutionGraph(tuple(Vertex(name, size) for name, size in zip(names, sizes, strict=True)), edges)


def states(graph: ExecutionGraph, percent: int) -> dict[str, VertexStates]:
    """This share of every vertex finished, drawn anew for each."""
    chance = np.random.default_rng(percent)
    finished = {name: chance.random(size) * 100 < percent for name, size in graph.parallelism.items()}
    return {name: VertexStates(~done, done, done) for name, done in finished.items()}


def walk(graph: ExecutionGraph, running: set[TaskId]) -> set[TaskId]:
    """The tasks to trigger, found pair by pair."""
    fed = set()
    for edge in graph.edges:
        up, down = graph.parallelism[edge.source], graph.parallelism[edge.target]
        for consumer in range(down):
            wide = edge.pattern is Pattern.ALL_TO_ALL
            feeders = range(up) if wide else pointwise_upstreams(up, down, consumer)
            if any(TaskId(edge.source, feeder) in running for feeder in feeders):
                fed.add(TaskId(edge.target, consumer))
    return running - fed


def plan_of(graph: ExecutionGraph, given: dict[str, VertexStates]) -> CheckpointPlan:
    plan = compute_checkpoint_plan(graph, given)
    if not isinstance(plan, CheckpointPlan):
        raise TypeError(f"no plan: {plan.reason}")
    return plan


def triggered(graph: ExecutionGraph, given: dict[str, VertexStates]) -> set[TaskId]:
    """The tasks that the plan triggers, as the walk names them."""
    numbers = plan_of(graph, given).to_trigger
    return {TaskId(vertex, int(subtask)) for vertex, subtasks in numbers.items() for subtask in subtasks}


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


RUNNING, FINISHED = 1, 2


def codes(graph: ExecutionGraph, percent: int) -> dict[str, bytearray]:
    """The same states as one byte per task."""
    given = states(graph, percent)
    return {
        name: bytearray(np.where(each.finished, FINISHED, RUNNING).astype(np.uint8)) for name, each in given.items()
    }


def start(graph: ExecutionGraph, given: dict[str, bytearray]) -> tuple[TaskSet, TaskSet]:
    """Whom a checkpoint waits for, and who had finished."""
    found = {name: VertexStates.of_codes(each, [RUNNING], FINISHED) for name, each in given.items()}
    plan = plan_of(graph, found)
    return plan.waiting_set(), plan.finished_set()


def time_row(pattern: Pattern, percent: int, other: int | None = None) -> Row:
    size = sized(100_000, 1_000)
    graph = chain(pattern, size, other)
    given = codes(graph, percent)
    sizes = f"10 × {size:,}" if other is None else f"5 × {size:,} and 5 × {other:,}"
    work = f"plan, {sizes} {pattern.name}, {percent} % finished"
    return compare(work, "the aim", lambda: seconds(lambda: start(graph, given)), lambda: AIM_SECONDS)


def growth_row(pattern: Pattern, size: int) -> Row:
    """Per task, a million tasks against 10 × ``size``."""

    def nanoseconds_per_task(size: int, repeat: int) -> Callable[[], float]:
        graph = chain(pattern, size)
        given = states(graph, 50)
        return lambda: min(seconds(lambda: plan_of(graph, given)) for _ in range(repeat)) / size / VERTICES * 1e9

    few, many = nanoseconds_per_task(size, 20), nanoseconds_per_task(100_000, 3)
    work = f"growth, {10 * size:,} → 1,000,000 tasks, {pattern.name}"
    return compare(work, f"per task at {10 * size:,}", many, few, unit="ns", aim=0.5)


def walk_row(pattern: Pattern, size: int, percent: int) -> Row:
    """Both end with the set of tasks to trigger."""
    graph = chain(pattern, size)
    given = states(graph, percent)
    running = {TaskId(name, int(n)) for name, vertex in given.items() for n in np.flatnonzero(vertex.running)}
    if triggered(graph, given) != walk(graph, running):
        raise ValueError("the plan and the walk differ")
    work = f"triggers, 10 × {size:,} {pattern.name}, {percent} % finished"
    return compare(
        work,
        "walk over pairs",
        lambda: seconds(lambda: triggered(graph, given)),
        lambda: seconds(lambda: walk(graph, running)),
        aim=10.0,
        rounds=3,
    )


def main() -> None:
    shares, sizes = sized((0, 50, 99), (50,)), sized((100, 1_000, 10_000), (100,))
    rows = [time_row(pattern, percent) for pattern in Pattern for percent in shares]
    rows += [time_row(Pattern.POINTWISE, percent, sized(75_000, 750)) for percent in shares]
    rows += [growth_row(pattern, size) for pattern in Pattern for size in sizes]
    rows += [walk_row(Pattern.ALL_TO_ALL, sized(1_000, 10), percent) for percent in shares]
    rows += [walk_row(Pattern.POINTWISE, sized(10_000, 100), percent) for percent in shares]
    report(rows, results_folder() / "plan.json")


if __name__ == "__main__":
    main()
