"""Removes what abandoned attempts left behind in the outputs, at a moment when nobody writes there. No Ray.

That moment is the end of a job, after its processes have ended, and only if the job is still its own: a run that has
taken the job over (the same command typed twice) writes into the same folders. A run that is killed outright leaves its
hidden files to the next one's end.
"""

from __future__ import annotations

from ..coordinator.manifest import Claim, Manifest, committables_of
from ..coordinator.recovery import generation_of
from ..engine.plan import JobPlan
from .savepoints import prepared_for_savepoints
from .storage.log import read_log
from .storage.opening import open_store


def clean_outputs(plan: JobPlan, folder: str, generation: int) -> None:
    """Remove what no checkpoint will ever commit, unless the log names a later generation than this one.

    What the last checkpoint in ``folder`` lists is kept, committed or not: whoever resumes commits it again. So is what
    savepoints list: whoever starts from one commits it.
    """
    entries = read_log(open_store(folder), plan.name)
    if any(generation_of(entry) > generation for entry in entries):
        return
    manifest = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    kept = [] if manifest is None else committables_of(manifest)
    kept += [each for found in prepared_for_savepoints(folder, plan.name) for each in committables_of(found)]
    claims = [entry.owner for entry in entries if isinstance(entry, Claim)]
    for operator in plan.sinks if claims else ():
        plan.committer(operator).clean([each for each in kept if each.operator == operator], claims)
