"""Hands over what a flow's deferred sources stand for, before a job starts. Both runners use it. No Ray.

What the job's log says comes first: a log belongs to one flow over one data, so a source that left its rows in the
checkpoint folder finds them there by what the log's last claim describes. A job that starts from a snapshot goes on,
too: its rows are those of the snapshot.
"""

from __future__ import annotations

import os
from typing import TypeVar

from ...coordinator.model.manifest import Claim
from ...coordinator.model.retention import RetentionPolicy
from ...engine.files.paths import absolute
from ...engine.flow import handoff
from ...engine.flow.handoff import Destination
from ...engine.planner.graph import Graph
from ..storage.log import read_log_in
from .inputs import find_before
from .resuming import Place, check_resume

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
