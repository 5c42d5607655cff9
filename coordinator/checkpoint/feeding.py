"""Which consumers a finished task leaves without anybody running that feeds them.

Rule: what :func:`plan_calculator.compute_checkpoint_plan` says of the whole graph, said of one task's consumers, at the
cost of these alone. A checkpoint on its way is repaired with it each time a task finishes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...engine.core.identity import TaskId
from ..model.execution_graph import ExecutionGraph, JobEdge, Pattern, pointwise_upstreams
from ..model.job_states import TaskStatus
from ..state.tasks import TaskRecord, TaskTable


def unfed_consumers(graph: ExecutionGraph, tasks: TaskTable, finished: TaskId) -> tuple[TaskId, ...]:
    """The running consumers of ``finished`` that have no running direct upstream task any more, each once."""
    found: dict[TaskId, None] = {}
    for edge in graph.outputs[finished.vertex]:
        for consumer in _consumers(graph, tasks, edge, finished):
            if tasks[consumer].is_started and not any(
                _is_fed(graph, tasks, other, consumer) for other in graph.inputs[edge.target]
            ):
                found[consumer] = None
    return tuple(found)


def _consumers(graph: ExecutionGraph, tasks: TaskTable, edge: JobEdge, finished: TaskId) -> Iterator[TaskId]:
    """Those that this edge may have fed by the task last."""
    up, down = graph.parallelism[edge.source], graph.parallelism[edge.target]
    if edge.pattern is Pattern.ALL_TO_ALL:
        if not tasks.any_started(edge.source):
            yield from (TaskId(edge.target, subtask) for subtask in range(down))
        return
    around = range(max(0, finished.subtask * down // up - 1), min(down, (finished.subtask + 1) * down // up + 2))
    for subtask in around:
        if finished.subtask in pointwise_upstreams(up, down, subtask):
            yield TaskId(edge.target, subtask)


def _is_fed(graph: ExecutionGraph, tasks: TaskTable, edge: JobEdge, consumer: TaskId) -> bool:
    if edge.pattern is Pattern.ALL_TO_ALL:
        return tasks.any_started(edge.source)
    feeders = pointwise_upstreams(graph.parallelism[edge.source], graph.parallelism[edge.target], consumer.subtask)
    return any(tasks[TaskId(edge.source, feeder)].is_started for feeder in feeders)


def feeds_somebody(graph: ExecutionGraph, tasks: TaskTable, record: TaskRecord) -> bool:
    """Whether a consumer of a finished task has not finished: the end of their channel may be lost with the task's
    process, and the consumer would wait for it for ever."""
    consumers = {edge.target for edge in graph.outputs[record.id.vertex]}
    region = tasks.region_of(record)
    return any(task.vertex in consumers and tasks[task].state is not TaskStatus.FINISHED for task in region.tasks)
