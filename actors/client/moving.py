"""A job that is to run in another shape than the one in which its newest checkpoint was taken.

Rules:

1. What was in flight belongs to the shape of the plan that it was in: to subtasks that were in the middle of something.
   A checkpoint without anything in flight fits every parallelism. So does one of a flow without exchanges that holds
   nothing between batches: its lanes take with them what is theirs (``engine/runtime/moved_flight.py``). The log says
   which way was taken, and why.
2. Any other job goes on in its former shape until it has one such checkpoint, placed by agreement on a round of all
   sources, and then in the one that is wanted. Its status, its reasons and the log say so meanwhile. It may take long.
3. What a model goes back to becomes the newest checkpoint before anybody looks at its shape; then what more epochs
   begin with.
4. More epochs begin behind a checkpoint in which nothing of the former ones' end is in flight. One that has some is
   gone on from for the former epochs, without ranks, until there is one.
5. But for these only the parallelism may differ. A flow that has changed is refused, with the remedy, by whoever looks
   at the checkpoint next (``coordinator/restore``), as is a checkpoint that no parallelism of this flow fits.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from ...coordinator.restore.stored_channels import fits, flights
from ...engine.core.errors import ConfigurationError, PenstockError
from ...engine.plan.plan import JobPlan
from ...engine.runtime.moved_flight import why_not_moved
from ..claims.inputs import newest_manifest
from ..claims.more_epochs import go_on_for_more_epochs, in_epochs, is_behind_the_end
from ..claims.place import Place, Resume
from ..claims.start import rewind_to_model
from ..protocol.translate import error_of, execution_graph
from .job import Job

_log = logging.getLogger(__name__)
Planned = Callable[..., JobPlan]


def start_in_shape(
    plan_as: Callable[[Planned], JobPlan],
    planned: Planned,
    begin: Callable[[JobPlan, Place, Resume], Job],
    place: Place,
    resume: Resume,
    from_snapshot: str | os.PathLike[str] | None = None,
    resume_model: str | None = None,
) -> Job:
    """Start the job, by way of its former shape if it must be. Raises the error of a job that fails in that.

    ``plan_as`` plans it as ``planned`` does, or as that does at another parallelism; ``begin`` starts it.
    ``resume_model``: it goes back to that first, whose checkpoint may be of yet another shape.
    """
    plan = plan_as(planned)
    if resume_model is not None:
        go_on_for_more_epochs(plan, place.folder, only_closed=True)
        place = dataclasses.replace(place, may_be_over=rewind_to_model(plan, place.folder, resume_model))
    ending = go_on_for_more_epochs(plan, place.folder) if place.stays else None
    if plan.fed and place.stays and place.settings.interval is not None:
        _log.warning(
            "job %s: no checkpoint stands within a window, so one every %g s is for windows that are shorter",
            plan.name,
            place.settings.interval,
        )
    former = _former_parallelism(plan, place, from_snapshot)
    if ending is not None:
        _end_epochs(plan_as, planned, begin, place, resume, ending, former)
        go_on_for_more_epochs(plan, place.folder)
        former = None
    if former is None:
        return begin(plan, place, resume)
    _log.warning(
        "job %s: its newest checkpoint holds what was in flight at parallelism %d; it goes on there until it has one "
        "with nothing in flight, and then as it is wanted (%s)",
        plan.name,
        former,
        _why(plan),
    )
    try:
        moving = dataclasses.replace(place, settings=dataclasses.replace(place.settings, moves=True))
        job = begin(plan_as(partial(planned, parallelism=former)), moving, resume).wait()
    except PenstockError as error:
        error.add_note(
            f"job {plan.name} was on its way from parallelism {former}, at which its newest checkpoint holds what was "
            "in flight: it must go on there first; a savepoint(aligned=True) fits every parallelism"
        )
        raise
    return begin(plan, place, "auto") if job.status().state == "moved" else job


def _end_epochs(
    plan_as: Callable[[Planned], JobPlan],
    planned: Planned,
    begin: Callable[[JobPlan, Place, Resume], Job],
    place: Place,
    resume: Resume,
    epochs: int,
    parallelism: int | None,
) -> None:
    """Rule 4."""

    def formerly(flow: Any, **options: Any) -> JobPlan:
        return planned(in_epochs(flow, epochs), **options)

    plan = plan_as(formerly if parallelism is None else partial(formerly, parallelism=parallelism))
    _log.warning("job %s: it comes to the end of the %d epochs that it had read, and then to more", plan.name, epochs)
    job = begin(plan, place, resume)
    try:
        while not job.status().is_over and not is_behind_the_end(place.folder, plan.name):
            job.checkpoint()
    except ConfigurationError:
        if not job.status().is_over:
            raise
    finally:
        job.shutdown()
    if (failure := job.status().failure) is not None and not is_behind_the_end(place.folder, plan.name):
        raise error_of(failure)


def _former_parallelism(plan: JobPlan, place: Place, from_snapshot: str | os.PathLike[str] | None) -> int | None:
    """That of the newest checkpoint, if it is another one and does not fit (rule 4)."""
    manifest = newest_manifest(place.folder if place.stays else None, plan.name, from_snapshot)
    if manifest is None:
        return None
    former, wanted = max(manifest.parallelism.values()), max(plan.parallelism.values())
    if not fits(execution_graph(plan), manifest):
        return None if former == wanted else former
    if former != wanted and flights(manifest):
        _log.info(
            "job %s: what was in flight at parallelism %d goes, lane by lane, to tasks of parallelism %d: it has no "
            "exchange, and holds nothing between batches",
            plan.name,
            former,
            wanted,
        )
    return None


def _why(plan: JobPlan) -> str:
    """Why what was in flight belongs to a parallelism."""
    found = (why_not_moved(plan, stage) for stage in plan.stages.values())
    return next(filter(None, found), "it has other stages now")
