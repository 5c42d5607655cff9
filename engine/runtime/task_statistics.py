"""Puts the counts of a task's parts together. They are numbers that other threads may be changing: each is right by
itself, and two of them may be a moment apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.identity import Attempt, TaskId
from ..exchange.edges import InputChannel
from ..scheduler.protocol import QueryStatistics
from ..scheduler.states import DriverState
from ..state.memory import TaskMemory
from .driver import Driver
from .statistics import DriverWait, EdgeStatistics, OperatorStatistics, SourceStatistics, TaskStatistics


def statistics_of(
    task: TaskId,
    attempt: Attempt,
    state: str,
    drivers: Sequence[Driver],
    why: tuple[str, ...],
    query: QueryStatistics,
    memory: TaskMemory,
) -> TaskStatistics:
    """All of it. ``drivers``: downstream first, as the task keeps them."""
    operators, sources, edges = _operators(drivers), _sources(drivers), _edges(drivers)
    held = memory.statistics()
    return TaskStatistics(task, attempt, state, operators, sources, why, query.handles, edges, held, _waits(drivers))


def _operators(drivers: Sequence[Driver]) -> tuple[OperatorStatistics, ...]:
    """Rows and batches of every operator, upstream first."""
    return tuple(
        OperatorStatistics(operator.id, operator.rows_in, operator.rows_out, operator.batches_out)
        for driver in reversed(drivers)
        for operator in driver.operators
    )


def _sources(drivers: Sequence[Driver]) -> tuple[SourceStatistics, ...]:
    """What the sources have read."""
    readers = [reader for driver in drivers for reader in driver.readers]
    return tuple(
        SourceStatistics(reader.operator, reader.rows, reader.batches, reader.current_split) for reader in readers
    )


def _waits(drivers: Sequence[Driver]) -> tuple[DriverWait, ...]:
    """What the drivers wait for that cannot go on, upstream first."""
    waiting = [each for each in reversed(drivers) if each.handle and each.handle.state is DriverState.WAITING]
    return tuple(DriverWait(driver.name, wait) for driver in waiting if driver.handle for wait in driver.handle.waits)


def _edges(drivers: Sequence[Driver]) -> tuple[EdgeStatistics, ...]:
    """Every edge that ends or begins in the task, local ones included, upstream first."""
    found: dict[tuple[str, str], EdgeStatistics] = {}
    for driver in reversed(drivers):
        for one in (*_inputs(driver), *_outputs(driver)):
            key = (one.edge, one.direction)
            found[key] = _sum(found[key], one) if key in found else one
    return tuple(found.values())


def _inputs(driver: Driver) -> Iterator[EdgeStatistics]:
    for feed in driver.ports.feeds:
        if isinstance(feed, InputChannel):
            edge = feed.channel.edge
            yield EdgeStatistics(edge, "in", 1, feed.rows, feed.batches, feed.consumed, feed.queued_bytes)


def _outputs(driver: Driver) -> Iterator[EdgeStatistics]:
    for outlet in driver.outlets:
        for each in outlet.channels:
            yield EdgeStatistics(each.channel.edge, "out", 1, each.rows, each.batches, each.sent, each.in_flight)


def _sum(one: EdgeStatistics, other: EdgeStatistics) -> EdgeStatistics:
    return EdgeStatistics(
        one.edge,
        one.direction,
        one.channels + other.channels,
        one.rows + other.rows,
        one.batches + other.batches,
        one.bytes + other.bytes,
        one.queued + other.queued,
    )
