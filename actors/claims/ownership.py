"""Makes the outputs of a job its own, and compares them with its log. No Ray.

Rules:

1. An output is taken over by creating the next entry of its owners if absent (``engine.sinks.output_folder``): of
   several that take it at one moment, one does. What is taken must be what was looked at.
2. It is taken from one of our own earlier claims, from the job whose snapshot we start from, or from nobody. Nobody's:
   it has no owner, or that one's log is gone or closed and the folder holds no data but what is ours as well, or is
   overwritten.
3. A claim of our own job that our log does not know is that of a copy of the checkpoint folder, or of the time after
   the copy that this folder was put back from: refused.
4. Another log that is open is a job that may go on: refused, unless ``take_over`` says that it will not. A folder that
   was moved is told from one that was copied by that: nothing is left where its log was, or our own claim is there.
5. A run that goes on from a checkpoint finds all that it covers, and nothing that came later, nothing of anybody else:
   numbers, bytes and names of the files, as the sinks had counted them at the cut. A file that is prepared and not yet
   committed counts as there.
6. Entries are created by a link (local), or by a conditional put (object stores). On other file systems (HDFS) they are
   created after a look: two that take an output there at one moment may both get it. Their files do not collide, and
   the next to commit gets an error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from ...coordinator.log.recovery import find_run, generation_of, identity_in, last_claim, running_claimant
from ...coordinator.model.commands import TakeOutputs
from ...coordinator.model.manifest import Claim, LogEntry, Manifest, closing_entry, committables_of
from ...engine.core.arguments import checked
from ...engine.core.errors import ConfigurationError, DamagedFileError, StorageError
from ...engine.core.identity import CheckpointId, Committable, JobIdentity
from ...engine.files.object_files import files_of
from ...engine.files.object_store import bucket_of
from ...engine.files.paths import absolute, resolve, safe_name
from ...engine.plan.plan import JobPlan
from ...engine.sinks.file_writer import restored_totals
from ...engine.sinks.output_folder import (
    OWNERS,
    Mode,
    OutputFolder,
    Owner,
    Retired,
    Totals,
    append_prefix,
    encode_owner,
    encode_retired,
    entry_name,
    retired_prefix,
    totals_of,
    writer_of,
)
from ..audit.audit import state_of
from ..storage.log import read_log_in
from ..storage.stores import check_creates, checkpoint_folder, may_hold_log, store_in
from .place import is_left_behind
from .presence import find_running
from .savepoints import prepared_for_savepoints

_RACES = 16
"""Times that somebody else may be faster before we say that the folder is in use."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who wants an output. ``claims``: the owners of all claims in its log, which is at ``log``. ``take_over``: open
    logs of others do not matter."""

    identity: JobIdentity
    claims: Sequence[str]
    job: str
    log: str
    take_over: bool = False

    @property
    def predecessor(self) -> str:
        """The job whose snapshot it starts from, or ""."""
        return self.identity.ancestors[-1] if self.identity.ancestors else ""


def outputs_of(plan: JobPlan) -> dict[str, tuple[OutputFolder, Mode]]:
    """The sinks that have a folder, by operator."""
    configs: Mapping[str, Any] = {id: config for id, (_, config) in plan.sinks.items()}
    return {id: (each.output, each.output_mode) for id, each in configs.items() if hasattr(each, "output_mode")}


def take_outputs(
    plan: JobPlan,
    order: TakeOutputs,
    folder: str,
    read_state: Callable[[Manifest, str], Mapping[str, pa.Table]],
    *,
    take_over: bool = False,
) -> None:
    """Carry out the order, for the job whose log lies in ``folder``. Raises ConfigurationError or StorageError."""
    outputs = outputs_of(plan)
    claimant = Claimant(order.identity, order.claims, plan.name, f"{folder}/{safe_name(plan.name)}", take_over)
    for operator, (output, mode) in outputs.items():
        _at(operator, partial(_take, output, mode, claimant, operator))
    manifest = order.manifest
    if outputs:
        state = {} if manifest is None else read_state(manifest, order.root or folder)
        compare_outputs(plan, manifest, state, order.identity.lineage)


def check_stores(plan: JobPlan, folder: str = "") -> None:
    """Refuse stores that do not create what is absent (rule 6). ``folder``: of the checkpoints, if they are kept."""
    if (found := bucket_of(folder)) is not None:
        check_creates(*found, "the checkpoint folder")
    for operator, (output, _) in outputs_of(plan).items():
        if (objects := files_of(output.filesystem)) is not None:
            _at(operator, partial(check_creates, objects.bucket, objects.key(output.folder), "the output folder"))


def examine_outputs(plan: JobPlan, identity: JobIdentity, claims: Sequence[str], folder: str, take_over: bool) -> None:
    """Whether the outputs could be taken now, before anything is started: nothing is written."""
    claimant = Claimant(identity, claims, plan.name, f"{folder}/{safe_name(plan.name)}", take_over)
    for operator, (output, mode) in outputs_of(plan).items():
        _at(operator, partial(_examine, output, mode, claimant))


def _at(operator: str, work: Callable[[], object]) -> None:
    try:
        work()
    except (ConfigurationError, StorageError) as error:
        raise error.at(operator) from error


def _take(output: OutputFolder, mode: Mode, claimant: Claimant, operator: str) -> None:
    identity = claimant.identity
    mine = Owner(
        mode,
        identity.uuid,
        identity.generation,
        identity.claim,
        identity.lineage,
        claimant.job,
        operator,
        claimant.log,
    )
    for _ in range(_RACES):
        number, owner = _examine(output, mode, claimant)
        if mode == "append":
            if owner is None and not _create(output, OWNERS, number, Owner("append")):
                continue
            prefix = append_prefix(identity.lineage[0])
            number, owner = output.newest(prefix)
            _refuse_others(output, owner, claimant)
        else:
            prefix = OWNERS
        if owner is not None and owner.is_of(identity):
            if owner.operator != operator:
                raise _shared(output, owner)
            return
        if _create(output, prefix, number, mine):
            return
    raise ConfigurationError(f"the output folder {output.folder} is being taken by others", "give each job its own")


def _examine(output: OutputFolder, mode: Mode, claimant: Claimant) -> tuple[int, Owner | None]:
    """The newest owner of the folder, once it is sure that we may follow."""
    number, owner = output.owner()
    if owner is None:
        return number, owner
    if owner.mode == "append" and mode == "exclusive":
        raise ConfigurationError(
            f"the output folder {output.folder} is one that jobs append to",
            'choose another folder, or write with mode="append"',
        )
    if owner.mode == "exclusive" and mode == "append":
        if not claimant.take_over and _is_open(owner, _log_at(owner)):
            raise _in_use(output, owner, "and adding to it would break its count of what it holds")
        return number, None
    if mode == "exclusive":
        _refuse_others(output, owner, claimant)
    return number, owner


def _refuse_others(output: OutputFolder, owner: Owner | None, claimant: Claimant) -> None:
    """Raise ConfigurationError unless we may follow this owner (rules 2 to 4)."""
    identity = claimant.identity
    if owner is None or owner.is_of(identity):
        return
    if owner.uuid == identity.uuid:
        if owner.claim not in claimant.claims and not claimant.take_over:
            raise ConfigurationError(
                f"the output folder {output.folder} was last written by generation {owner.generation} of job "
                f"{owner.job!r}, a claim that the log in {claimant.log} does not hold: that log is a copy, or was put "
                "back from one",
                f"go on with the log in {owner.log}, if it is there; else start over with an empty output folder; or "
                "pass take_over=True if no other copy goes on and the output holds what this log says",
            )
        if _is_another_open_log(owner, claimant) and not claimant.take_over:
            raise _in_use(output, owner, "of which this checkpoint folder is a copy")
        return
    others = [uuid for uuid in owner.lineage if uuid not in identity.lineage]
    holds = not output.overwrites and output.parts(others)[0]
    if holds or (not claimant.take_over and _is_open(owner, _log_at(owner))):
        raise _in_use(
            output, owner, "whose snapshot this one starts from" if owner.uuid == claimant.predecessor else ""
        )


def _is_another_open_log(owner: Owner, claimant: Claimant) -> bool:
    """Whether the owner's log is another one than ours, and open. It is ours by whatever path if it holds our claim;
    before that is durable, a copy and another path to the same folder look the same."""
    if not claimant.identity.claim or os.path.realpath(owner.log) == os.path.realpath(claimant.log):
        return False
    entries = _log_at(owner)
    ours = any(isinstance(entry, Claim) and entry.owner == claimant.identity.claim for entry in entries)
    return not ours and _is_open(owner, entries)


def _in_use(output: OutputFolder, owner: Owner, why: str) -> ConfigurationError:
    state, entries = "has written there", _log_at(owner)
    if _is_open(owner, entries):
        by = running_claimant(entries, find_running(entries))
        whose = last_claim(entries) if by is None else f", and in use: {find_run(by)}"
        state = f"may go on: its log is open{whose}"
    return ConfigurationError(
        f"the output folder {output.folder} belongs to job {owner.job!r}{', ' if why else ''}{why}; that job {state} "
        f"({owner.log})",
        "choose another folder; or stop that job (a job that is stopped or finished has a closed log); or, if it will "
        "never go on, remove its checkpoint folder, or pass take_over=True",
    )


def _shared(output: OutputFolder, owner: Owner) -> ConfigurationError:
    return ConfigurationError(
        f"the output folder {output.folder} belongs to sink {owner.operator!r} of the same job",
        "give each sink its own folder",
    )


def _log_at(owner: Owner) -> list[LogEntry]:
    """The entries of the owner's log; none if it is out of reach. The log of a job without a checkpoint folder whose
    process was killed counts as gone: nothing can go on from it."""
    folder = os.path.dirname(owner.log)
    if not may_hold_log(owner.log) or is_left_behind(folder):
        return []
    return read_log_in(folder, owner.job)


def _is_open(owner: Owner, entries: Sequence[LogEntry]) -> bool:
    """Whether the owner's log, of these entries, is there and was not closed. Another job may have begun anew where it
    was."""
    found = identity_in(entries)
    return found is not None and found.uuid == owner.uuid and closing_entry(entries) is None


def _create(output: OutputFolder, prefix: str, number: int, owner: Owner) -> bool:
    return _put(output, entry_name(prefix, number), encode_owner(owner))


def _put(output: OutputFolder, key: str, data: bytes) -> bool:
    """Create an entry if it is absent (rule 6)."""
    store = store_in(output.filesystem, output.folder)
    if store is not None:
        return store.create(key, data) or store.read(key) == data
    path = f"{output.folder}/{key}"
    if output.filesystem.get_file_info(path).is_file:
        return False
    output.filesystem.create_dir(os.path.dirname(path), recursive=True)
    with output.filesystem.open_output_stream(path) as stream:
        stream.write(data)
    return True


# ---------------------------------------------------------------- what they hold


def compare_outputs(
    plan: JobPlan, manifest: Manifest | None, state: Mapping[str, pa.Table], lineage: Sequence[str]
) -> None:
    """Whether each output holds what the manifest says (rule 5), whose state is given by operator; None: nothing."""
    prepared = [] if manifest is None else committables_of(manifest)
    for operator, (output, mode) in outputs_of(plan).items():
        mine = [each for each in prepared if each.operator == operator]
        expected = restored_totals(state.get(operator))
        _at(operator, partial(_compare, operator, output, mode, mine, expected, lineage))


def _compare(
    operator: str,
    output: OutputFolder,
    mode: Mode,
    prepared: Sequence[Committable],
    expected: Totals,
    lineage: Sequence[str],
) -> None:
    parts, foreign = output.parts(lineage)
    retired = output.retired(lineage)
    if foreign and mode == "exclusive":
        raise ConfigurationError(
            f"the output folder {output.folder} holds {len(foreign)} files that are not this job's, like {foreign[0]}",
            'move them away; several writers need mode="append"',
        )
    there = {part.name for part in parts}
    found = totals_of(part for part in parts if retired is None or not retired.covers(part.name))
    for file in (file for each in prepared for file in each.payload["files"]):
        gone = retired is not None and retired.covers(file["final"])
        # an attempt of a coordinator before us may be committing it now: it is prepared, or visible since we looked
        if file["final"] not in there and not gone and (output.has(file["staged"]) or output.has(file["final"])):
            found = found.add(file["final"], int(file["bytes"]))
    if retired is not None:
        expected -= retired.totals
    if found != expected:
        _refuse_other_name(operator, output, {writer_of(name) for name in there})
        raise _differs(output, found, expected)


def _refuse_other_name(operator: str, output: OutputFolder, writers: set[str]) -> None:
    """Raise ConfigurationError if all there was written by sinks of other names: what they wrote is known by these."""
    if not writers or safe_name(operator) in writers:
        return
    names = " and ".join(sorted(writers))
    raise ConfigurationError(
        f"the output folder {output.folder} was written by sink {names}, and {operator} has written nothing there",
        f"give the sink its name again (name={min(writers)!r}), or let it write into another folder",
    )


def _differs(output: OutputFolder, found: Totals, expected: Totals) -> ConfigurationError:
    if found.files > expected.files:
        what = "files of checkpoints that the log does not know: these rows would come twice"
        remedy = (
            "restore the checkpoint folder that wrote them, or take away what was written after its last checkpoint"
        )
    elif found.files < expected.files:
        what = "files that the log counts are gone"
        remedy = (
            "put them back, or let the flow write where they are; where downstream moves files away, say so before: "
            "ps.retire_output(…)"
        )
    else:
        what = "some are not those that were written: other names, or other sizes"
        remedy = "put the original files back"
    return ConfigurationError(
        f"the output folder {output.folder} holds {found.files:,} files ({found.bytes:,} bytes) of this job, and the "
        f"log counts {expected.files:,} ({expected.bytes:,} bytes): {what}",
        f"{remedy}; or start over with an empty output folder and an empty checkpoint folder",
    )


def retire(
    output: OutputFolder, operator: str, manifest: Manifest, state: Mapping[str, pa.Table], lineage: Sequence[str]
) -> list[str] | None:
    """Let the files of all checkpoints up to the manifest's go; their paths. None: some are prepared and not visible
    yet. Raises ConfigurationError if they are not all there."""
    parts, _ = output.parts(lineage)
    before = output.retired(lineage)
    entry = Retired(lineage[-1], manifest.checkpoint, tuple(lineage[:-1]), Totals())
    leaving = [part for part in parts if entry.covers(part.name) and not (before and before.covers(part.name))]
    gone = Totals() if before is None else before.totals
    expected = restored_totals(state.get(operator)) - gone
    found = totals_of(leaving)
    if found == expected and not leaving:
        return []
    if found != expected:
        mine = [each for each in committables_of(manifest) if each.operator == operator]
        listed = {part.name for part in parts}
        unseen = [file for each in mine for file in each.payload["files"] if file["final"] not in listed]
        if any(output.has(file["staged"]) or output.has(file["final"]) for file in unseen):
            return None  # or they have become visible since we looked
        raise _differs(output, found, expected)
    prefix = retired_prefix(lineage[-1])
    number = output.next_number(prefix)
    if not _put(output, entry_name(prefix, number), encode_retired(replace(entry, totals=gone + found))):
        raise ConfigurationError(f"files of {output.folder} are being retired by somebody else", "try again")
    return [f"{output.folder}/{part.name}" for part in leaving]


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


_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def at_the_end(work: Callable[[], _T]) -> _T | None:
    """What ``work`` gives, which looks at the outputs of a job that has ended; None if it fails, which is logged."""
    try:
        return work()
    except Exception as error:  # outputs may be anything by now, and sinks of users raise what they like
        _log.warning("%s", str(error) or type(error).__name__)
        return None


def clean_outputs(plan: JobPlan, folder: str, generation: int, entries: Sequence[LogEntry]) -> None:
    """Remove what no checkpoint will ever commit, unless the log names a later generation than this one.

    What the last checkpoint among its ``entries`` lists is kept, committed or not: a job that resumes commits it again.
    So is what savepoints in the ``folder`` list: a job that starts from one commits it.
    """
    if any(generation_of(entry) > generation for entry in entries):
        return
    manifest = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    kept = [] if manifest is None else committables_of(manifest)
    kept += [each for found in prepared_for_savepoints(folder, plan.name) for each in committables_of(found)]
    claims = [entry.owner for entry in entries if isinstance(entry, Claim)]
    for operator in plan.sinks if claims else ():
        plan.committer(operator).clean([each for each in kept if each.operator == operator], claims)
