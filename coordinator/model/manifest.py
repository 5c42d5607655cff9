"""What the log holds: claims, completed checkpoints, pins and the end, as versioned JSON.

Rules:

1. The log is one dense sequence of entries, each created if absent. ``Claim`` takes the job over for a generation;
   ``Manifest`` completes a checkpoint: its creation *is* the commit point; ``Pinned`` and ``Unpinned`` keep one from
   being deleted; ``Reweighted`` changes a mixture; ``Dropped`` says that manifests are about to be deleted by an ending
   that leaves the log open; ``Ended`` closes the log, unless a manifest follows: a job of a feed that has finished goes
   on for more epochs; or ``Restarted``: what stands before that is of a job that is over, and counts no more.
2. An entry is never changed. It is sealed by its length and digest, and of one format: what is damaged, of an
   unknown format, or holds a field that is not known is refused (``records``).
3. A manifest lists everything a restore needs: state files by task, finished tasks, how far each operator has
   finished, and the committables that no later entry says are visible.
4. A savepoint is one manifest, in a file of its own beside its state files; their locations are relative to its
   folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from ...engine.core.identity import CheckpointId, Committable, EndedLanes, Reweight, StateHandle, TaskId
from .records import decode_record, encode_record
from .split_sets import SetPosition, Skipped

FORMAT = 8
"""Version of the form, stored in every entry. 2: manifests with a root, a kind and operators; pins. 3: files of
batches in flight among those of a task. 4: the job's identity; for which lanes operators have finished; ``Dropped``;
operators without UNION state; digests of entries and files. 5: who has claimed. 6: into how many parts the
flow divides rows. 7: which joins by key get their right side broadcast. 8: parts of state files, and states that are
inlined; what tasks were in the middle of, and the plan's shape; rows of a round; changed weights of mixtures;
``Restarted``."""
OLDEST = 4
"""The oldest form that is read: the newer ones have fields more."""


class Claimant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a run can be found: the process that a user ends, if it is to end. ``began``: when, in words."""

    host: str
    process: int
    began: str
    machine: str = ""
    """Unlike on any other machine, and after each start of it; empty: not known."""


class Claim(msgspec.Struct, frozen=True, tag="claim", kw_only=True, forbid_unknown_fields=True):
    """A coordinator of ``generation`` took the job over."""

    format: int = FORMAT
    number: int
    generation: int
    job: str
    fingerprint: str
    """The flow's fingerprint: a log belongs to one flow."""
    description: str = ""
    """The flow in words, for the error that a mismatch gives."""
    inputs: str = ""
    """The digest of what is recorded of the job's inputs, which names the file that holds it; empty: nothing is."""
    owner: str = ""
    """Unlike in any other coordinator, so that two of one generation do not take each other's claim for their own, and
    that outputs know which of two copies of a log wrote to them last."""
    uuid: str = ""
    """The job's identity, drawn for the first claim; every later claim repeats it."""
    ancestors: tuple[str, ...] = ()
    """The jobs whose snapshots this one goes on from, the oldest first."""
    parts: int = 0
    broadcasts: tuple[str, ...] = ()
    round_rows: int = 0
    """These as in the manifest."""
    by: Claimant | None = None
    """Whose run it is; None: an older version did not say."""


class TaskState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint holds of one task. A finished task's last state is carried on, so that its lanes stay known.

    ``state``: all its files and what is inlined, batches in flight among them. ``ended``: for which lanes which
    operators had finished; a restore does not run them again. ``cut``: the checkpoint that it is the state of, if that
    is an older one, from which it is carried on because its region did not take part; what was prepared for it is
    visible then, or among ``Manifest.uncommitted``.
    """

    task: TaskId
    state: tuple[StateHandle, ...] = ()
    committables: tuple[Committable, ...] = ()
    finished: bool = False
    data_ended: bool = False
    ended: tuple[EndedLanes, ...] = ()
    cut: CheckpointId | None = None


class OperatorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint says of one operator as a whole."""

    operator: str
    vertex: str
    parallelism: int
    finished: str
    """How much of it had finished: a value of ``restore_check.FinishedState``."""
    state_of: str | None = None
    """In words what its state is of, if it is of use for nothing else; "": for whatever the operator is; None: a
    version wrote it that did not say."""


class Manifest(msgspec.Struct, frozen=True, tag="checkpoint", kw_only=True, forbid_unknown_fields=True):
    """A completed checkpoint."""

    format: int = FORMAT
    number: int
    checkpoint: CheckpointId
    fingerprint: str
    parallelism: dict[str, int]
    """Vertex to number of subtasks, at the time of the checkpoint."""
    tasks: tuple[TaskState, ...]
    uncommitted: tuple[tuple[TaskId, Committable], ...] = ()
    """Committables of earlier checkpoints that were not yet known to be visible."""
    kind: str = "checkpoint"
    """A value of ``kinds.CheckpointKind``."""
    operators: tuple[OperatorEntry, ...] = ()
    """Every operator of the flow; empty if the flow did not name them."""
    lanes: int = 0
    """Order lanes of the flow; 0: unknown."""
    parts: int = 0
    """Into how many parts the flow divides rows by key, or in turn; 0: a version wrote it that did not say, and divided
    the rows of a flow that did not say either into 128."""
    broadcasts: tuple[str, ...] = ()
    """The joins by key whose right side every subtask gets instead, by sizes when the job began; of older versions
    none."""
    round_rows: int = 0
    """Rows of a lane's round of a source; 0: a version wrote it that did not say, and read 262,144."""
    epochs: int = 0
    """How often the sources were to be read; 0: a version wrote it that did not say."""
    root: str = ""
    """Not empty: the job started from a snapshot there, and the handles are relative to it, not to the job's folder."""
    claimed: bool = False
    """Whether the snapshot at ``root`` is the job's to delete."""
    shape: str = ""
    """The plan's, to which what tasks were in the middle of belongs (``Holds.FLIGHT``); empty: they were in none."""
    savepoint: str = ""
    """Where the savepoint lies that the job stops with."""
    request: str = ""
    """The asker's name for that savepoint."""
    drained: bool = False
    """Whether its job was stopped for good, the data ended where they were: nothing goes on from it."""
    skipped: tuple[Skipped, ...] = ()
    """Splits that are not read any more, as they would end the process that reads them."""
    uuid: str = ""
    """The job that wrote it, and those whose snapshots that one went on from."""
    ancestors: tuple[str, ...] = ()
    inputs: str = ""
    """As in the claim: what the cursors of the sources refer to."""
    splits: SetPosition | None = None
    """What it covers of the log of split sets; None: the job takes none."""
    reweights: tuple[Reweight, ...] = ()
    """What had been changed of mixtures: of a savepoint all that its copy knows."""


def committables_of(manifest: Manifest) -> list[Committable]:
    """Everything that a commit of this checkpoint makes visible, each once: a task lists again what it was not told to
    commit yet, and the coordinator carries on what nobody has answered for."""
    found = [committable for task in manifest.tasks for committable in task.committables]
    found += [committable for _, committable in manifest.uncommitted]
    return list({msgspec.msgpack.encode(each, order="deterministic"): each for each in found}.values())


def is_drained(manifest: Manifest) -> bool:
    """Whether nothing goes on from it. Before format 8 all that was said was that the data had ended at a stop."""
    ended = all(state.data_ended or state.finished for state in manifest.tasks)
    return manifest.drained or (manifest.format < 8 and ended and manifest.kind == "stop with savepoint")


class Pinned(msgspec.Struct, frozen=True, tag="pinned", kw_only=True, forbid_unknown_fields=True):
    """``name`` depends on a checkpoint."""

    format: int = FORMAT
    number: int
    generation: int
    checkpoint: CheckpointId
    name: str


class Unpinned(msgspec.Struct, frozen=True, tag="unpinned", kw_only=True, forbid_unknown_fields=True):
    """``name`` does not any more."""

    format: int = FORMAT
    number: int
    generation: int
    name: str


class Reweighted(msgspec.Struct, frozen=True, tag="reweighted", kw_only=True, forbid_unknown_fields=True):
    """A mixture has other weights from a position on, in this run and in every one that goes on from this log. No row
    from there on left before."""

    format: int = FORMAT
    number: int
    generation: int
    reweight: Reweight


class Dropped(msgspec.Struct, frozen=True, tag="dropped", kw_only=True, forbid_unknown_fields=True):
    """The manifests of these entries are nobody's any more: the job failed or was cancelled, and its policy keeps them
    for no such end. A coordinator that takes the job over must not go on from them, as they are being deleted."""

    format: int = FORMAT
    number: int
    generation: int
    numbers: tuple[int, ...]


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True, forbid_unknown_fields=True):
    """The job is over (rule 1). ``status``: finished or stopped."""

    format: int = FORMAT
    number: int
    generation: int
    status: str
    reason: str = ""


class Restarted(msgspec.Struct, frozen=True, tag="restarted", kw_only=True, forbid_unknown_fields=True):
    """The job is run again, from its beginning, and as another one. It goes on counting entries and generations, so
    that a coordinator of the former one finds its next number taken, and files have other names. ``by``: unlike in any
    other, so that of several that do so at once one does."""

    format: int = FORMAT
    number: int
    generation: int
    by: str


LogEntry: TypeAlias = Claim | Manifest | Pinned | Unpinned | Reweighted | Dropped | Ended | Restarted
_ENTRIES: msgspec.json.Decoder[LogEntry] = msgspec.json.Decoder(LogEntry)


def encode(entry: LogEntry) -> bytes:
    """The entry as sealed JSON."""
    return encode_record(entry)


def decode(data: bytes) -> LogEntry:
    """The entry read back. Raises msgspec.ValidationError for what is no whole entry of this form."""
    return decode_record(data, _ENTRIES, FORMAT, OLDEST)


def closing_entry(entries: Sequence[LogEntry]) -> Ended | None:
    """The entry that closes the log, if it is closed."""
    ended = next((entry for entry in reversed(entries) if isinstance(entry, Ended)), None)
    if ended is None or any(isinstance(entry, Manifest) and entry.number > ended.number for entry in entries):
        return None
    return ended


def since_restart(entries: Sequence[LogEntry]) -> list[LogEntry]:
    """The entries of the job that runs or ran last: from the newest ``Restarted`` on."""
    begins = [at for at, entry in enumerate(entries) if isinstance(entry, Restarted)]
    return list(entries[begins[-1] :]) if begins else list(entries)


def reweights_in(entries: Iterable[LogEntry]) -> tuple[Reweight, ...]:
    """All that has been changed of mixtures by these entries of one log, once each, in their order."""
    found: dict[str, Reweight] = {}
    for entry in entries:
        told = entry.reweights if isinstance(entry, Manifest) else ()
        for each in (entry.reweight,) if isinstance(entry, Reweighted) else told:
            found.setdefault(each.request, each)
    return tuple(found.values())


def split_dropped(entries: Sequence[LogEntry]) -> tuple[list[LogEntry], tuple[Manifest, ...]]:
    """The entries that count, and the manifests among the rest: dropped, and not deleted yet. Where the newest of its
    time was dropped nothing older counts, named or not: a superfluous one may still stand whose deletion was late or
    failed. But for snapshots that the job does not own."""
    manifests = [entry for entry in entries if isinstance(entry, Manifest)]
    numbers = set[int]()
    for entry in entries:
        if isinstance(entry, Dropped):
            numbers |= set(entry.numbers)
            standing = [each for each in manifests if each.number < entry.number]
            if all(each.number <= max(entry.numbers, default=-1) for each in standing):
                numbers |= {each.number for each in standing if each.claimed or not each.root}
    gone = tuple(entry for entry in manifests if entry.number in numbers)
    return [entry for entry in entries if entry.number not in numbers], gone
