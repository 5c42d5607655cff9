"""Deferred sources, whose rows another system computes: they are handed over before a job starts, staged or leased. No
Ray, and no Spark.

Rules:

1. What the job's log says comes first: a log belongs to one flow over one data, so a source that left its rows in the
   checkpoint folder finds them there by what the log's last claim describes. A job that starts from a snapshot goes on,
   too: its rows are those of the snapshot.
2. A job's plan knows its leases in the script that started it; a script that attaches to the job finds none, since a
   detached job has none and the leases of an attached one are its owner's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar, cast

from ...coordinator.model.manifest import Claim, Manifest
from ...coordinator.model.retention import RetentionPolicy
from ...engine.core.arguments import Seconds
from ...engine.core.errors import PenstockError
from ...engine.files.paths import absolute
from ...engine.flow import handoff
from ...engine.flow.handoff import Destination
from ...engine.plan.plan import JobPlan
from ...engine.plan.rounds import SplitAssignment, cursor_of
from ...engine.planner.graph import Graph
from ..audit.audit import state_of
from ..storage.log import read_log_in
from .inputs import find_before
from .place import Place, check_resume

G = TypeVar("G", bound=Graph)


def hand_over(
    flow: G,
    place: Place | None,
    *,
    name: str | None = None,
    resume: str = "auto",
    detached: bool = False,
    on_ray: bool = True,
    from_snapshot: str | os.PathLike[str] | None = None,
) -> G:
    """The flow as a job named ``name`` (by default as the flow) can read it. Raises PenstockError.

    What ``run`` does by itself; call it to do this ahead, in a thread of its own, say.
    """
    if not handoff.has_deferred(flow):
        return flow
    job = name or flow.name
    if place is None or not place.stays:
        return handoff.hand_over(flow, Destination(job, detached=detached, on_ray=on_ray))
    resuming = check_resume(place.folder, job, resume)
    claims = [entry for entry in read_log_in(place.folder, job) if isinstance(entry, Claim)]
    description = claims[-1].description if claims else ""
    keeps = place.settings.retention is not RetentionPolicy.NEVER
    snapshot = "" if resuming or from_snapshot is None else absolute(from_snapshot).rstrip("/")
    goes_on = resuming or bool(snapshot)
    before = find_before(place.folder, job, from_snapshot) if goes_on else None
    recorded = {} if before is None else before.inputs.fingerprints
    to = Destination(job, place.folder, description, goes_on, detached, on_ray, keeps, snapshot, recorded)
    return handoff.hand_over(flow, to)


class DeferredLease(Protocol):
    """Partitions that are pulled while the job runs."""

    @property
    def released(self) -> bool:
        """Whether all have come."""

    def wait_released(self, timeout: Seconds | None = None) -> None:
        """Wait for that. Raises PenstockError if they cannot come, or TimeoutError."""

    def follow(self, left_behind: Callable[[], Sequence[int]]) -> None:
        """Ask from time to time which splits nobody will read again, and drop their blocks."""

    def close(self) -> None:
        """The job is over, or was never started."""


def leases_of(configs: Sequence[object]) -> dict[int, DeferredLease]:
    """The leases among the sources' configs, by position."""
    found = ((position, getattr(config, "lease", None)) for position, config in enumerate(configs))
    return {position: cast(DeferredLease, lease) for position, lease in found if lease is not None}


@contextmanager
def closing_leases(flow: Graph) -> Iterator[None]:
    """Ends the leases of a flow that was handed over, unless a job was started with it."""
    try:
        yield
    except BaseException:
        for lease in leases_of([node.config for node in flow.nodes]).values():
            lease.close()
        raise


def leases_in(plan: JobPlan) -> dict[int, DeferredLease]:
    """The leases among a plan's sources, by position."""
    return leases_of([source.config for source in plan.sources.values()])


def follow_leases(plan: JobPlan, folder: str) -> None:
    """Have blocks dropped that no retained checkpoint in ``folder`` needs."""
    ids = list(plan.sources)
    for position, lease in leases_in(plan).items():
        lease.follow(_left_behind(plan, ids[position], folder))


def _left_behind(plan: JobPlan, source: str, folder: str) -> Callable[[], Sequence[int]]:
    def ask() -> Sequence[int]:
        with suppress(PenstockError, OSError):  # a checkpoint may be deleted while it is read
            return left_behind(plan, source, folder)
        return ()

    return ask


def left_behind(plan: JobPlan, source: str, folder: str) -> Sequence[int]:
    """The positions of the splits that the oldest retained checkpoint has read to their end."""
    entries = read_log_in(folder, plan.name)
    oldest = next((entry for entry in entries if isinstance(entry, Manifest)), None)
    if oldest is None or oldest.root:
        return ()
    cursors = state_of(oldest, folder, plan.name).get(source)
    if cursors is None:
        return ()
    count = len(plan.sources[source].splits)
    lanes = (cursor_of(row) for row in cursors.to_pylist())
    read = (SplitAssignment(plan.lanes, each.dealt).positions(each.lane, each.ordinal) for each in lanes)
    return sorted(position for lane in read for position in lane if position < count)
