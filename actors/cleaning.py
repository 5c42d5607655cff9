"""Removes what abandoned attempts left behind in the outputs, at the two moments when nobody writes there. No Ray."""

from __future__ import annotations

from ..coordinator.manifest import Manifest
from ..engine.identity import Committable
from ..engine.plan import JobPlan
from .storage.log import read_log
from .storage.opening import open_store


def clean_outputs(plan: JobPlan, folder: str) -> None:
    """Before a job starts, and after its processes have ended: remove what no checkpoint will ever commit.

    What the last checkpoint in ``folder`` lists is kept, committed or not: whoever resumes commits it again.
    """
    entries = read_log(open_store(folder), plan.name)
    manifest = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    kept = [] if manifest is None else _committables(manifest)
    for operator in plan.sinks:
        plan.committer(operator).clean([each for each in kept if each.operator == operator])


def _committables(manifest: Manifest) -> list[Committable]:
    own = [committable for task in manifest.tasks for committable in task.committables]
    return own + [committable for _, committable in manifest.uncommitted]
