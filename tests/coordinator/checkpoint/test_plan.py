"""The plan against a brute-force oracle that walks pairs of tasks, and its cost."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import numpy as np

from penstock.coordinator.checkpoint.pending import CheckpointPlan, NotReady, VertexStates, compute_checkpoint_plan
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex, pointwise_upstreams
from penstock.engine.core.identity import TaskId
from support.plan_parts import task_ids


def random_graph(chance: random.Random) -> ExecutionGraph:
    names = "abcdefg"[: chance.randint(1, 7)]
    edges = [
        JobEdge(first, second, chance.choice(list(Pattern)))
        for number, second in enumerate(names)
        for first in names[:number]
        if chance.random() < 0.35
    ]
    return ExecutionGraph(tuple(Vertex(name, chance.randint(1, 9)) for name in names), tuple(edges))


def walked_triggers(graph: ExecutionGraph, running: set[TaskId]) -> set[TaskId]:
    """Every running task none of whose direct upstream tasks runs, pair by pair."""
    fed: set[TaskId] = set()
    for edge in graph.edges:
        up, down = graph.parallelism[edge.source], graph.parallelism[edge.target]
        for consumer in range(down):
            wide = edge.pattern is Pattern.ALL_TO_ALL
            for feeder in range(up) if wide else pointwise_upstreams(up, down, consumer):
                if TaskId(edge.source, feeder) in running:
                    fed.add(TaskId(edge.target, consumer))
    return running - fed


def states_of(graph: ExecutionGraph, finished: set[TaskId]) -> dict[str, VertexStates]:
    states = {}
    for name, parallelism in graph.parallelism.items():
        flags = [TaskId(name, subtask) in finished for subtask in range(parallelism)]
        states[name] = VertexStates.of([not flag for flag in flags], flags, flags)
    return states


def test_plan_equals_that_of_a_walk_over_task_pairs_whatever_has_finished() -> None:
    """Finished tasks are drawn at random: a task's report may come before its upstream's."""
    for seed in range(1500):
        chance = random.Random(seed)
        graph = random_graph(chance)
        share = chance.choice((0.0, 0.2, 0.5, 0.9, 1.0))
        finished = {task for task in graph.tasks if chance.random() < share}
        running = set(graph.tasks) - finished
        plan = compute_checkpoint_plan(graph, states_of(graph, finished))
        assert isinstance(plan, CheckpointPlan)
        assert set(task_ids(plan.to_trigger)) == walked_triggers(graph, running), f"seed {seed}"
        assert set(task_ids(plan.to_wait_for)) == running
        assert set(task_ids(plan.finished)) == finished
        whole = {name for name in graph.parallelism if not any(task.vertex == name for task in running)}
        assert set(plan.fully_finished) == whole


def test_plan_names_the_task_that_does_not_run() -> None:
    graph = ExecutionGraph((Vertex("a", 3),))
    running = VertexStates.of([True, False, True], [False] * 3, [False] * 3)
    assert compute_checkpoint_plan(graph, {"a": running}) == NotReady("a[1] is not running")


def test_plan_of_a_million_tasks_takes_no_pair_of_them() -> None:
    """A walk over the pairs of one ALL_TO_ALL edge would take 10¹⁰ steps. The limit is generous: machines differ."""
    size = 100_000
    names = [f"v{number}" for number in range(10)]
    edges = tuple(
        JobEdge(first, second, list(Pattern)[number % 2]) for number, (first, second) in enumerate(pairwise(names))
    )
    graph = ExecutionGraph(tuple(Vertex(name, size) for name in names), edges)
    done = np.arange(size) % 2 == 0
    states = {name: VertexStates(~done, done, done) for name in names}
    began = time.perf_counter()
    plan = compute_checkpoint_plan(graph, states)
    assert time.perf_counter() - began < 2.0
    assert isinstance(plan, CheckpointPlan)
    assert sum(len(subtasks) for subtasks in plan.to_trigger.values()) == size // 2
