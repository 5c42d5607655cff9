"""The feeds of a job that is hosted here: their servers, their handles, and how ranks learn of the job's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...coordinator.model.events import CheckpointRequested, Event
from ...coordinator.model.statistics import JobStatus
from ...engine.core.errors import ConfigurationError, PenstockError
from ...engine.core.traits import Multiplicity, traits_of
from ...engine.feed.server import FeedServer
from ...engine.feed.sink import FeedSink
from ...engine.plan.plan import JobPlan
from ..protocol.messages import UNKNOWN_TIME
from ..storage.digest_files import DigestFiles
from .discovery import end_of_job
from .link import FeedRoute, register
from .models import ModelBinder
from .reader import FeedHandle


class JobFeeds:
    """The servers of a job's feeds in this process. ``report``: to the job's coordinator; ``feeds``: by default all."""

    def __init__(
        self, plan: JobPlan, folder: str, report: Callable[[Event], None], feeds: Sequence[str] | None = None
    ) -> None:
        self._binder = ModelBinder(plan, folder, report)
        ask = partial(report, CheckpointRequested(UNKNOWN_TIME))
        self.servers: dict[str, FeedServer] = {}
        for feed in plan.feeds if feeds is None else feeds:
            server = self.servers[feed] = FeedServer(feed, ask)
            register(plan, feed, server)
            server.commits.bind = partial(self._binder.bind, feed)
            server.record = DigestFiles(folder, plan.name, feed).record

    def on_status(self, status: JobStatus) -> None:
        """The job's status has changed: ranks are notified of its end."""
        if status.is_over:
            self.on_job_over(end_of_job(status))

    def on_job_over(self, error: PenstockError) -> None:
        """The job is over."""
        for server in self.servers.values():
            server.on_job_over(error)

    def close(self) -> None:
        """Start no binding any more."""
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
        sink.output_schema(found.inputs),
        path,
        sink.drop_last,
        _rows(plan) if sink.marks(found.inputs[0]) is None else None,
        fingerprint=plan.fingerprint,
        epochs=sink.epochs,
        layout=sink.layout,
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
        len(operator.inputs) == 1 and traits_of(operator.config).rows is not Multiplicity.OTHER
        for operator in operators
    )
    return next(iter(plan.sources.values())).rows if plain else None
