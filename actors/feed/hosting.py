"""The feeds of a job that is hosted here: their desks, their handles, and what the job's end means to their ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...coordinator.model.events import CheckpointRequested, Event
from ...coordinator.model.statistics import JobStatus
from ...engine.core.errors import ConfigurationError, PenstockError
from ...engine.core.traits import Rows, traits_of
from ...engine.feed.desk import DESKS, FeedDesk
from ...engine.feed.sink import FeedSink
from ...engine.plan.plan import JobPlan
from ..protocol.messages import UNKNOWN_TIME
from ..storage.digest_files import DigestFiles
from .link import FeedRoute
from .models import ModelBinder
from .notices import end_of_job
from .reader import FeedHandle


class HostedFeeds:
    """The desks of a job's feeds in this process. ``report``: to the job's coordinator; ``feeds``: by default all."""

    def __init__(
        self, plan: JobPlan, folder: str, report: Callable[[Event], None], feeds: Sequence[str] | None = None
    ) -> None:
        self._binder = ModelBinder(plan, folder, report)
        ask = partial(report, CheckpointRequested(UNKNOWN_TIME))
        self.desks: dict[str, FeedDesk] = {}
        for feed in plan.feeds if feeds is None else feeds:
            desk = self.desks[feed] = DESKS.begin(plan.key, feed, ask, plan.name)
            desk.bindings.bind = partial(self._binder.bind, feed)
            desk.record = DigestFiles(folder, plan.name, feed).record

    def told(self, status: JobStatus) -> None:
        """The job's status has changed: its end is told to the ranks."""
        if status.is_over:
            self.over(end_of_job(status))

    def over(self, error: PenstockError) -> None:
        """The job is over."""
        for desk in self.desks.values():
            desk.over(error)

    def close(self) -> None:
        """Begin nothing any more."""
        self._binder.close()


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
    return FeedHandle(
        plan.name,
        name,
        sink.batch_size,
        found.inputs[0],
        path,
        sink.drop_last,
        _rows(plan),
        fingerprint=plan.fingerprint,
        epochs=sink.epochs,
    )


def _rows(plan: JobPlan) -> int | None:
    """The rows of a feed, if no operator gives more or less than it takes."""
    operators = [
        operator
        for stage in plan.stages.values()
        for pipeline in stage.pipelines
        for operator in pipeline.operators
        if not operator.is_sink
    ]
    plain = len(plan.sources) == 1 and all(
        len(operator.inputs) == 1 and traits_of(operator.config).rows is not Rows.OTHER for operator in operators
    )
    return next(iter(plan.sources.values())).rows if plain else None
