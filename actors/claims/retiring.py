"""``retire_output``: lets downstream move or compact files that a job has committed. No Ray, and no job is needed.

A job that goes on compares its outputs with its log. What was retired may be gone then; how much it was is written
beside the owners of the folder, so what came after it is compared as before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...coordinator.log.recovery import identity_in
from ...coordinator.model.manifest import LogEntry, Manifest
from ...engine.core.arguments import checked
from ...engine.core.errors import ConfigurationError, DamagedFileError, StorageError
from ...engine.core.identity import CheckpointId
from ...engine.files.paths import absolute, resolve
from ...engine.sinks.output_folder import OWNERS, OutputFolder, Owner, append_prefix
from ..audit.audit import state_of
from ..storage.log import read_log_in
from ..storage.stores import checkpoint_folder, may_hold_log
from .ownership import retire

_LOOKS = 20
"""Times that we read the log of a job that goes on meanwhile."""


@checked(ConfigurationError)
def retire_output(
    log: str | os.PathLike[str], output: str | os.PathLike[str], *, up_to: CheckpointId | str | None = None
) -> list[str]:
    """Say that the files of a job's output up to a checkpoint may be moved, compacted or deleted; their paths.

    ``log``: the job's folder, ``<checkpoint folder>/<job>``. ``output``: the folder that it writes. ``up_to``: the
    newest checkpoint whose files may go ("1.12", as ``job.status().latest_completed`` prints it); by default, and at
    most, the newest one that is complete and visible. The job may run meanwhile, and goes on without these files.

    Raises ConfigurationError if files are missing now, StorageError if the log cannot be read: nothing is retired then.
    """
    latest = _checkpoint(up_to)
    place = checkpoint_folder(log)
    folder, job = os.path.split(place)
    found = OutputFolder(*resolve(absolute(output)))
    for left in reversed(range(_LOOKS)):
        entries = read_log_in(folder, job) if may_hold_log(place) else []
        try:
            return _retire(place, entries, found, latest)
        except StorageError as error:
            # the job goes on, and lets go of a checkpoint while we read it
            if not left or isinstance(error, DamagedFileError):
                raise
    raise AssertionError


def _retire(place: str, entries: Sequence[LogEntry], output: OutputFolder, latest: CheckpointId | None) -> list[str]:
    folder, job = os.path.split(place)
    identity = identity_in(entries)
    if identity is None:
        raise ConfigurationError(f"{place} holds no log of a job", "name <checkpoint folder>/<job>")
    manifests = [entry for entry in entries if isinstance(entry, Manifest)]
    wanted = [one for one in reversed(manifests) if latest is None or one.checkpoint <= latest]
    if not wanted:
        raise ConfigurationError(
            f"job {job!r} has no completed checkpoint up to {latest}" if latest else f"job {job!r} has no checkpoint",
            "name a checkpoint that is kept, or a newer one: " + ", ".join(str(one.checkpoint) for one in manifests),
        )
    owner = _owner(output, identity.lineage)
    if owner is None:
        raise ConfigurationError(
            f"{output.folder} has no output of job {job!r}", "name the folder that its sink writes"
        )
    for manifest in wanted:
        state = state_of(manifest, manifest.root or folder, job, (owner.operator,))
        leaving = retire(output, owner.operator, manifest, state, identity.lineage)
        if leaving is not None:
            return leaving
    return []  # what the job has prepared is not visible yet


def _owner(output: OutputFolder, lineage: tuple[str, ...]) -> Owner | None:
    for prefix in (OWNERS, append_prefix(lineage[0])):
        _, owner = output.newest(prefix)
        if owner is not None and owner.uuid == lineage[-1]:
            return owner
    return None


def _checkpoint(up_to: CheckpointId | str | None) -> CheckpointId | None:
    if up_to is None or isinstance(up_to, CheckpointId):
        return up_to
    generation, _, number = str(up_to).partition(".")
    if not (generation.isascii() and generation.isdigit() and number.isascii() and number.isdigit()):
        raise ConfigurationError(f"up_to={up_to!r} is no checkpoint", 'give one like "1.12", or leave it out')
    return CheckpointId(int(generation), int(number))
