"""Orders that the coordinator gives, in the imperative. The shell carries them out and answers with events.

Rules:

1. Commands of one ``handle`` call are carried out in order; a command to a task reaches the attempt it names or nobody.
2. Any command may be given twice; the receiver does nothing twice, but answers again (an answer may have been lost).
   A task takes one snapshot per checkpoint, also if the barrier reaches it through a channel *and* by trigger.
   A task that is told ``StartTask`` again repeats ``DataEnded`` or ``TaskFinished`` if that is where it is.
3. ``ReadLog`` and ``StoreEntry`` are answered exactly once each, and never given again without an answer.
4. A task drops ``ProposeRound``, ``TriggerCheckpoint`` and ``ExpectBarrier`` of checkpoints up to the newest that it
   was told to abort or to commit. ``CommitCheckpoint`` it always carries out: a permit is a right, also if an abort
   came before it.
5. Nothing is decided by who carries them out.

The collector of garbage does not look at those that a checkpoint gives to very many tasks at once (``gc=False``): they
hold plain values only.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ...engine.core.identity import (
    Attempt,
    BarrierKind,
    CheckpointId,
    CommitPermit,
    EndedLanes,
    JobIdentity,
    Reweight,
    StateHandle,
    TaskId,
)
from .events import Failure
from .kinds import StopMode
from .manifest import LogEntry, Manifest
from .split_sets import Skipped, SplitEntry


class ReadLog(msgspec.Struct, frozen=True):
    """Read every entry of the log, answer ``LogRead`` (or ``LogFailed``).

    If an entry that was listed is gone when it is read, list again from the start: a reader that misses entries could
    take a number that was in use.
    """


class TakeOutputs(msgspec.Struct, frozen=True):
    """The job is claimed: make its outputs ours, before anything is deployed or committed; answer ``OutputsTaken`` or
    ``OutputsRefused``, once.

    An output is taken from one of our own earlier claims, from the job that our snapshot is of, or from nobody; and it
    must hold what the log says: what ``manifest`` covers, all of it and nothing newer.
    """

    identity: JobIdentity
    claims: tuple[str, ...]
    """The owners of every claim in the log, ours among them."""
    manifest: Manifest | None
    """What the job goes on from: its newest checkpoint, or the snapshot that it starts from; None: it begins."""
    root: str = ""
    """Where that one's files lie; empty: in the job's checkpoint folder."""


class StoreEntry(msgspec.Struct, frozen=True):
    """Create entry ``entry.number`` unless it exists; answer ``EntryStored``, ``EntryRefused`` or ``EntryFailed``.

    An entry that exists with exactly this content counts as stored: the first reply was lost.
    """

    entry: LogEntry


class DeployTask(msgspec.Struct, frozen=True):
    """Build the attempt from the state given (the task picks its lanes of it), connect it to the attempts of its
    peers, and answer ``TaskDeployed``. An older attempt of the task is stopped first.

    A process whose name is not ``incarnation`` does nothing, unless that is empty.
    """

    task: TaskId
    attempt: Attempt
    state: tuple[StateHandle, ...]
    attempts: tuple[tuple[TaskId, Attempt], ...]
    """The current attempt of every task of the region, so that channels can be named and fenced."""
    restored_from: CheckpointId | None
    incarnation: str = ""
    root: str = ""
    """The folder that the handles are relative to; empty: the job's checkpoint folder."""
    finished: bool = False
    """Every task of the vertex had finished: no operator is built. Sources end at once, others pass the end on; the
    acknowledgement then says ``finished_on_restore``, or holds the state once more."""
    skipped: tuple[Skipped, ...] = ()
    """Splits that are to have no rows."""
    claim: str = ""
    """That of the coordinator, for the names of what is written and not yet committed."""
    ended: tuple[EndedLanes, ...] = ()
    """For which lanes which operators had finished, some of them other tasks': they are not run for these again."""
    reweights: tuple[Reweight, ...] = ()
    """What the log says of mixtures."""


class StartTask(msgspec.Struct, frozen=True):
    """Begin: every task of the region is deployed. A process whose name is not ``incarnation`` does nothing, unless
    that is empty: it holds a second copy of the attempt."""

    task: TaskId
    attempt: Attempt
    incarnation: str = ""


class StopTask(msgspec.Struct, frozen=True):
    """Stop the attempt and release what it holds; no answer."""

    task: TaskId
    attempt: Attempt


class ProposeRound(msgspec.Struct, frozen=True, gc=False):
    """Hold at the end of the current round and answer ``RoundProposed``. Deterministic flows only."""

    task: TaskId
    attempt: Attempt
    checkpoint: CheckpointId


class TriggerCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """Inject the barrier: at the end of round ``at_round`` (None: now), or at the end of data if that comes first.

    ``unaligned``: the task cuts as a whole, where it stands, and its barriers pass what waits (``at_round`` is None).
    """

    task: TaskId
    attempt: Attempt
    checkpoint: CheckpointId
    kind: BarrierKind
    at_round: int | None
    timestamp: float
    stop: StopMode | None = None
    """Not None: the job stops with this savepoint. Sources end their data there (``EndOfData``, draining or not as the
    mode says), then the barrier follows; a task's snapshot comes after the end of its data. Aborted after that, the
    coordinator restarts the task."""
    assigned: int | None = None
    """How many entries of the log of split sets the task's sources have got when it comes, if it has such. A task that
    has got fewer does nothing: the rest is on its way, and the order comes again. One that has got more declines."""
    unaligned: bool = False


class AssignSplits(msgspec.Struct, frozen=True, gc=False):
    """Give the sources the splits of these entries, and answer ``SplitsAssigned``. ``base``: the number of the first
    entry that the attempt gets; ``start``: that of the first one here. What the task has got is left out; if something
    before ``start`` is missing, nothing is done. ``barriers``: the ids of the task barriers among the entries, in
    order."""

    task: TaskId
    attempt: Attempt
    base: int
    start: int
    entries: tuple[SplitEntry, ...]
    barriers: tuple[CheckpointId, ...]


class SteerMixture(msgspec.Struct, frozen=True):
    """Let a mixture go by these changes of its weights, which are all that the log has, and hold it before its row at
    position ``limit`` (None: nowhere); answer ``MixtureSteered``."""

    task: TaskId
    attempt: Attempt
    operator: str
    reweights: tuple[Reweight, ...]
    limit: int | None


class ExpectBarrier(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint is on its way to a task that somebody outside sets the pace of: take what comes, whether or not
    there is room, until its barriers have come on all channels, or it is aborted. No answer."""

    task: TaskId
    attempt: Attempt
    checkpoint: CheckpointId


class DescribeTask(msgspec.Struct, frozen=True, gc=False):
    """Say what the task is in the middle of, which has not answered the checkpoint: answer ``TaskDescribed``."""

    task: TaskId
    attempt: Attempt
    checkpoint: CheckpointId


class AbortCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """Forget the checkpoint: stop holding, stop aligning. ``latest_completed`` repairs a lost commit."""

    task: TaskId
    attempt: Attempt
    checkpoint: CheckpointId
    latest_completed: CheckpointId | None


class CommitCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint is in the log: make the permit's committables visible and answer ``TaskCommitted``.

    Sent to every task of the plan, with or without committables: it also is the notice that lets a task end.
    """

    task: TaskId
    attempt: Attempt
    permit: CommitPermit


class DiscardState(msgspec.Struct, frozen=True):
    """No retained checkpoint needs these files any more: delete them. No answer."""

    handles: tuple[StateHandle, ...]


class CopySavepoint(msgspec.Struct, frozen=True):
    """Copy the files of a savepoint to where it will be; answer ``SavepointCopied`` with the place, or
    ``SavepointFailed``. The folder holds no savepoint by that.

    ``target``: where the user wants it; empty: a folder named by the checkpoint where the job's savepoints go.
    ``copies``: a file's place below the checkpoint folder, and below the savepoint's, in a folder named by the
    checkpoint: nobody else writes there. ``request``: if the folder holds the savepoint of this request already (a
    coordinator before this one was asked, too), the answer is ``SavepointStored`` at once; empty: that is an error.
    """

    checkpoint: CheckpointId
    target: str
    manifest: Manifest
    copies: tuple[tuple[str, str], ...]
    request: str = ""


class StoreSavepoint(msgspec.Struct, frozen=True):
    """Make a savepoint of what was copied: create its manifest, if the folder holds none; answer ``SavepointStored``,
    or ``SavepointFailed``. Copies that are not there are made again. The same manifest counts as stored, as does one
    of the same request unless the job stops with it.

    The manifest's handles name the copies relative to the folder, so a savepoint can be moved as a whole.
    """

    checkpoint: CheckpointId
    location: str
    manifest: Manifest
    copies: tuple[tuple[str, str], ...]


class DiscardCopies(msgspec.Struct, frozen=True):
    """The savepoint was aborted while its files were copied: delete the copies. No answer."""

    checkpoint: CheckpointId
    location: str


class DiscardSnapshot(msgspec.Struct, frozen=True):
    """Delete a snapshot outside the job's folder that this job has claimed and nobody needs: the files, and what else
    makes it a snapshot. No answer."""

    location: str
    handles: tuple[StateHandle, ...]


class DiscardEntries(msgspec.Struct, frozen=True):
    """These entries of the log are manifests that nobody goes back to: delete them. No answer. Claims never go."""

    numbers: tuple[int, ...]


class ReadSplitSets(msgspec.Struct, frozen=True):
    """Read the log of split sets from that number on; answer ``SplitSetsRead``, once."""

    start: int


class DiscardSplitSets(msgspec.Struct, frozen=True):
    """Nobody needs these entries of the log of split sets any more: delete them and their files. No answer."""

    numbers: tuple[int, ...]


class CommitOrphans(msgspec.Struct, frozen=True):
    """Commit the permit without a task: its task has finished or the job is about to end with an error.

    The task's vertex names whose sinks the committables belong to. Answer ``TaskCommitted`` with the task and attempt
    given (attempt number 0, which no real attempt has), or ``TaskFailed`` with them.
    """

    task: TaskId
    attempt: Attempt
    permit: CommitPermit


class ReplaceProcess(msgspec.Struct, frozen=True):
    """End the process of the task and give it another one; the task has nothing in it any more. ``ProcessReady``
    follows."""

    task: TaskId


class EndJob(msgspec.Struct, frozen=True):
    """The job is over: notify those that wait. ``status``: finished, stopped, failed, cancelled, superseded or moved.

    ``failure`` is None if it finished, was stopped or cancelled.
    """

    status: str
    failure: Failure | None


Command: TypeAlias = (
    ReadLog
    | TakeOutputs
    | StoreEntry
    | DeployTask
    | StartTask
    | StopTask
    | ProposeRound
    | TriggerCheckpoint
    | ExpectBarrier
    | DescribeTask
    | SteerMixture
    | AssignSplits
    | AbortCheckpoint
    | CommitCheckpoint
    | CommitOrphans
    | CopySavepoint
    | StoreSavepoint
    | DiscardCopies
    | DiscardState
    | DiscardSnapshot
    | DiscardEntries
    | ReadSplitSets
    | DiscardSplitSets
    | ReplaceProcess
    | EndJob
)
