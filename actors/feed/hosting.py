"""The feeds of a job that is hosted here: their desks, their handles, and what the job's end means to their ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...coordinator.events import CheckpointRequested, Event
from ...coordinator.statistics import JobStatus
from ...engine.errors import ConfigurationError, PenstockError
from ...engine.feed_desk import DESKS, FeedDesk
from ...engine.operators import Project, Shuffle, Sort
from ...engine.operators.regroup import Regroup
from ...engine.plan import JobPlan
from ...engine.sinks.feed import FeedSink
from ..messages import UNKNOWN_TIME
from ..translate import error_of
from .link import FeedRoute
from .reader import FeedHandle

KEEP_ROWS = (Project, Sort, Shuffle, Regroup)
"""Operators that give as many rows as they take."""


def open_desks(plan: JobPlan, report: Callable[[Event], None]) -> list[FeedDesk]:
    """Desks for the feeds of a job that begins in this process. ``report``: to its coordinator."""
    return [DESKS.begin(plan.name, id, lambda: report(CheckpointRequested(UNKNOWN_TIME))) for id in plan.feeds]


def feed_handle(plan: JobPlan, name: str, route: Callable[[str, str], FeedRoute]) -> FeedHandle:
    """The handle of a job's feed. Raises ConfigurationError if it has none of this name."""
    if name not in plan.feeds:
        known = ", ".join(plan.feeds) or "none: end a stream in stream.feed(batch_size)"
        raise ConfigurationError(f"job {plan.name!r} has no feed {name!r}", f"its feeds: {known}")
    found = next(
        operator
        for stage in plan.stages.values()
        for pipeline in stage.pipelines
        for operator in pipeline.operators
        if operator.id == name
    )
    sink = found.config
    assert isinstance(sink, FeedSink)
    path = route(plan.name, name)
    return FeedHandle(plan.name, name, sink.batch_size, found.inputs[0], path, sink.drop_last, _rows(plan))


def _rows(plan: JobPlan) -> int | None:
    """The rows of a feed, if no operator gives more or less than it takes."""
    operators = [
        operator
        for stage in plan.stages.values()
        for pipeline in stage.pipelines
        for operator in pipeline.operators
        if not operator.is_sink
    ]
    plain = len(plan.sources) == 1 and all(isinstance(operator.config, KEEP_ROWS) for operator in operators)
    return next(iter(plan.sources.values())).rows if plain else None


def end_of_job(status: JobStatus) -> PenstockError:
    """What ranks are told that still wait when the job is over."""
    if status.failure is not None:
        return error_of(status.failure)
    return ConfigurationError(
        f"job {status.job!r} is over: {status.state}", "run it again with the same checkpoint folder to go on reading"
    )


def tell_desks(desks: Iterable[FeedDesk], status: JobStatus) -> None:
    """The job's status has changed: its end is told to the ranks."""
    if status.is_over:
        for desk in desks:
            desk.over(end_of_job(status))
