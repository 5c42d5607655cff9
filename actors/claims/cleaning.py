"""Removes what abandoned attempts left behind in the outputs, at a moment when nobody writes there. No Ray.

That moment is the end of a job, after its processes have ended, and only if the job is still its own: a run that has
taken the job over (the same command typed twice) writes into the same folders. A run that is killed outright leaves its
hidden files to the next one's end.

The end of a job never depends on this, nor on reading its outputs: whatever is wrong with them is logged
(:func:`at_the_end`), and an error of who asks for the audit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ...coordinator.log.recovery import generation_of
from ...coordinator.model.manifest import Claim, Manifest, committables_of
from ...engine.plan.plan import JobPlan
from ..storage.log import read_log_in
from .savepoints import prepared_for_savepoints

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def at_the_end(work: Callable[[], _T]) -> _T | None:
    """What ``work`` gives, which looks at the outputs of a job that has ended; None if it fails, which is logged."""
    try:
        return work()
    except Exception as error:  # outputs may be anything by now, and sinks of users raise what they like
        _log.warning("%s", str(error) or type(error).__name__)
        return None


def clean_outputs(plan: JobPlan, folder: str, generation: int) -> None:
    """Remove what no checkpoint will ever commit, unless the log names a later generation than this one.

    What the last checkpoint in ``folder`` lists is kept, committed or not: whoever resumes commits it again. So is what
    savepoints list: whoever starts from one commits it.
    """
    entries = read_log_in(folder, plan.name)
    if any(generation_of(entry) > generation for entry in entries):
        return
    manifest = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    kept = [] if manifest is None else committables_of(manifest)
    kept += [each for found in prepared_for_savepoints(folder, plan.name) for each in committables_of(found)]
    claims = [entry.owner for entry in entries if isinstance(entry, Claim)]
    for operator in plan.sinks if claims else ():
        plan.committer(operator).clean([each for each in kept if each.operator == operator], claims)
