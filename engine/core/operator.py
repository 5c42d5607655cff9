"""What an operator promises, and what it may rely on.

An operator is two things. Its *config* is immutable, picklable and shared: it knows the schemas and builds. What it
builds is the *running operator*, one per driver, which holds all mutable state. The split follows DuckDB's operators
and their local states.

The driver calls a running operator in this order, always from one thread at a time::

    build(context, restored) → { process | end_round | snapshot }* → end_port (each port) → finish → snapshot* → close

Rules that an operator may rely on:

1. Batches of a port come in order of their tags. ``end_round(port, r)`` follows the last batch of round ``r``.
2. A port that ended (``end_port``) sends no more batches and counts as having ended every round.
3. ``snapshot`` is not called while steps are left, unless the operator says that it may be (``Traits.cut``), nor is
   anything else but ``close``: all output so far has been taken over.
4. ``finish`` runs once for each lane: after a restore from a checkpoint behind it the operator is not built again.
5. After ``close`` nothing is called. ``close`` is called exactly once, also after an error.

Rules that an operator must keep:

1. Never block and never sleep; never touch threads, channels or Ray. Barriers are the driver's business.
2. ``process`` may emit any number of batches, never an empty one. What may be much leaves in steps (``Steps``): a piece
   of at most ``output_rows`` rows and ``output_bytes`` bytes with each, made when the step is taken. A batch that
   derives from one input batch keeps its tag (give the pieces consecutive sequence numbers with :class:`Emitter`). Rows
   that an operator makes of its own (an aggregate's groups) are emitted in ``end_round`` or ``finish``.
3. Output depends on input, tags and state alone: not on time, on batch boundaries, or on the port that spoke first.
4. ``snapshot`` returns everything the operator needs to go on, as one table whose rows carry the order lane in
   column ``LANE`` (so that it can be handed to any number of subtasks), or None if it holds nothing.
   ``build(context, snapshot)`` gives back an equal operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from .elements import Batch, Tag
from .epochs import Epochs
from .errors import InternalError
from .identity import Attempt, CheckpointId, CommitPermit, Committable, Reweight, TaskId
from .offering import offers
from .source import Condition

LANE = "__lane"
"""Column of every state table: the order lane (int32) that a row belongs to."""

EVERYWHERE = -1
"""The lane of state that belongs to all subtasks."""

OUTPUT_ROWS = 128 * 1024
"""Rows of a batch that an operator makes of its own: large enough for kernels to pay, small enough for a core's cache,
and the bound that keeps an exploding list or product from becoming one batch."""

OUTPUT_BYTES = 16 * 1024 * 1024
"""Bytes of such a batch, whichever bound comes first; a single row may have more."""


class SpillFile(Protocol):
    """Batches on disk, written once and read as often as wanted; in memory only while they are looked at."""

    @property
    def rows(self) -> int: ...

    def write(self, records: pa.RecordBatch) -> None: ...

    def read(self) -> Iterator[pa.RecordBatch]:
        """The batches, in the order in which they were written. Ends the writing."""

    def delete(self) -> None:
        """Remove the file; it is removed with its operator in any case."""


class Memory(Protocol):
    """An operator's account of the bytes that it holds, and the place where it may put them instead."""

    def hold(self, held: int) -> bool:
        """Say that the operator holds ``held`` bytes now. True: that is too much, it should spill."""

    def spill(self, schema: pa.Schema) -> SpillFile:
        """A new, empty file."""


class Unlimited:
    """The account of an operator that nobody bounds."""

    def hold(self, held: int) -> bool:
        return False

    def spill(self, schema: pa.Schema) -> SpillFile:
        raise InternalError("an operator without a memory budget has nothing to spill")


Background = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Runs work that must wait on another thread, then calls back *from that thread* with its result or its exception, and
wakes the driver. The callback may only put the answer where the operator finds it."""


def run_at_once(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """The background of a context that has none: runs the work in place."""
    try:
        answer = work()
    except Exception as error:
        answer = error
    done(answer)


Write = Callable[[Callable[[], None], int], None]
"""Has work that writes so many bytes done on another thread, behind what was given before. What it raises ends the
driver, as if the operator had raised it. While much is unwritten the driver gives the operator nothing."""


def write_at_once(work: Callable[[], None], size: int = 0) -> None:
    """The ``write`` of a context that has no other thread."""
    work()


def do_nothing() -> None:
    """The ``wake`` of a context that has no driver."""


class KeyListener(Protocol):
    """Who reads one input of a join, and may leave out rows that match nothing (``kernels.key_filter``)."""

    @property
    def keys(self) -> Sequence[int]:
        """Which of the join's keys it wants, by their places there."""

    def publish(self, window: int, columns: Sequence[pa.Array]) -> int:
        """Those of all rows of the other input, for rows between the ``window``-th task barrier since the operator was
        built and the next one. The bytes that this takes."""

    def give_up(self) -> None:
        """They are not told: there are too many, or the join is closed. Nobody need wait for them any more."""


@dataclass(frozen=True, slots=True)
class PortPlace:
    """How far a port of an operator had come at a cut: the last round that had ended there, whether its data had, the
    tag of the last batch, and whether the final round had ended (``is_final``). The operator that is built of the cut's
    state is not told so again."""

    round: int = -1
    ended: bool = False
    at: Tag | None = None
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Where a running operator stands. ``lanes`` are the order lanes that its subtask owns (after a restore at another
    parallelism without those, at either end, for which the operator had finished: what it emits for such a lane when it
    finishes is dropped); ``output_rows`` and ``output_bytes`` bound the batches that it makes of its own (rows never
    depend on them).
    """

    operator: str
    task: TaskId
    attempt: Attempt
    parallelism: int
    lanes: range
    job: str = ""
    """The job's UUID."""
    claim: str = ""
    """That of the coordinator that ordered the attempt: part of the names of what is not committed yet."""
    output_rows: int = OUTPUT_ROWS
    output_bytes: int = OUTPUT_BYTES
    memory: Memory = field(default_factory=Unlimited)
    background: Background = run_at_once
    elsewhere: Background | None = None
    """As ``background``, for what takes long without waiting for anything: a call of a user's function. None: it is
    called in place, because no cut may come while it is under way (``AsynchronousOperator.unanswered``)."""
    write: Write = write_at_once
    wake: Callable[[], None] = do_nothing
    """Lets the driver look again at what it waits for, from any thread."""
    holds: bool = False
    """At a task barrier it goes on with what it holds: ``drain`` is not called."""
    epochs: Epochs | None = None
    """Where the sources are read several times: when. At the end of an epoch's last round an operator emits what it
    holds, in that round, and begins anew, as at a task barrier."""
    content: bool = False
    """Whether a sink is to digest its rows, for an audit of their content."""
    read_first: int | None = None
    """Of a join: the port of which it takes all rows before any of the other one (:class:`ReadsInTurn`)."""
    listeners: Mapping[int, Sequence[KeyListener]] = field(default_factory=dict)
    """Of a join: for each port in ``Traits.key_filters`` those that read it in this process, for this subtask alone."""
    ports: Sequence[PortPlace] = ()
    """Where its ports stood at the cut that it is restored from; (): at their beginning, or ends are said again."""
    last: Mapping[int, Tag] = field(default_factory=dict)
    """The last tag that it had given in each lane at that cut."""
    reweights: tuple[Reweight, ...] = ()
    """Of a mixture: what has been changed of its weights since the job began, in the order of the log."""
    server: object | None = None
    """Of a feed: what serves its ranks, across attempts. Whoever hosts the job owns it."""
    stored: Sequence[Any] = ()
    """The parts (``change_log.StatePart``) of its restored state, if they hold nothing else. They have their rows while
    it is built."""

    @property
    def ended_round(self) -> int:
        """The last round that had ended on any port at that cut; -1: none."""
        return max((port.round for port in self.ports), default=-1)


class Output(Protocol):
    """Where an operator puts its batches."""

    def emit(self, batch: Batch) -> None: ...


class Emitter:
    """Gives the batches that an operator emits strictly increasing tags, whatever it derives them from.

    The pieces of round ``r`` and lane ``l`` are numbered 0, 1, 2, … as they are emitted, independently of the
    numbering of the input; only (round, lane) carries over.
    """

    def __init__(self) -> None:
        self._round = -1
        self._next: dict[int, int] = {}

    def tag(self, round: int, lane: int) -> Tag:
        """The next tag for (``round``, ``lane``)."""
        if round != self._round:
            self._round, self._next = round, {}
        sequence = self._next.get(lane, 0)
        self._next[lane] = sequence + 1
        return Tag(round, lane, sequence)

    def emit(self, records: pa.RecordBatch, round: int, lane: int, out: Output) -> None:
        """Emit ``records`` under the next tag, unless they are empty."""
        if records.num_rows:
            out.emit(Batch(records, self.tag(round, lane)))

    def emit_each(self, pieces: Iterable[pa.RecordBatch], round: int, lane: int, out: Output) -> Iterator[None]:
        """Emit pieces under the next tags, one with each step."""
        for records in pieces:
            self.emit(records, round, lane, out)
            yield


Steps = Iterator[None] | None
"""What a call answers that may have much to emit: None when it is done, or an iterator that emits a little (a batch,
say) with each step. The driver goes on with it only when everything so far has been sent, so that an operator that
holds more than fits into memory never has to put out all of it at once."""


def exhaust(steps: Steps) -> None:
    """Take all steps at once, where nothing bounds the output."""
    for _ in steps or ():
        pass


class RunningOperator(Protocol):
    """One driver's instance of an operator; see the module's rules."""

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Take one batch. What may become many batches is emitted in steps, one piece each."""

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """Round ``round`` has ended on this port."""

    def end_port(self, port: int, out: Output) -> Steps:
        """This port sends no more batches."""

    def finish(self, out: Output) -> Steps:
        """All ports have ended and the flow drains: emit whatever is still held, in round ``FINAL_ROUND``."""

    def drain(self, out: Output) -> Steps:
        """A task barrier has come on all ports: emit what depends on the rows so far, and forget it.

        Unlike ``finish`` the operator goes on afterwards, as if it were new. Rows are emitted in the last round that
        has ended.
        """

    def accepts(self, port: int) -> bool:
        """Whether a batch on this port is welcome now. At least one open port must always be."""

    def snapshot(self) -> pa.Table | None:
        """Everything needed to go on from here, with a column ``LANE``; None if nothing."""

    def close(self) -> None:
        """Release resources; nothing may be emitted."""


@runtime_checkable
class AsynchronousOperator(Protocol):
    """What a running operator offers besides, if it has work under way elsewhere (``OperatorContext.background``).

    The driver calls ``poll`` whenever it is woken. It gives the operator batches, all on its only port, only while it
    ``accepts`` them, and ends of rounds, ``finish`` and ``drain`` only while nothing is under way: so what is in flight
    leaves before the end of its round. It is never part of the operator's state (``unanswered``).
    """

    @property
    def waits_for(self) -> str:
        """What is under way, in words; "" if nothing is."""

    def poll(self, out: Output) -> bool:
        """Take over what has come back and emit it, in the order of the input. Whether anything was."""

    def unanswered(self, out: Output) -> Sequence[Batch]:
        """A cut: emit the rest of a batch of which some has been emitted. The batches of which nothing has been come
        back, in their order, and are given again to the operator that is built of the state. They stay under way here;
        ``snapshot`` comes next, and is without them."""


@runtime_checkable
class QueueingOperator(AsynchronousOperator, Protocol):
    """An asynchronous operator that goes on taking batches behind ends of rounds and task barriers.

    Its batches leave in their order, and each call of ``poll`` emits for one of them alone. So the driver lets such
    controls queue where they stand among the batches under way, and handles them when all before them have left; to the
    operator they mean nothing (``end_round`` and ``drain`` may come while batches behind them are under way). A
    checkpoint's barrier and the end still come while nothing is.
    """

    @property
    def batches_under_way(self) -> int:
        """Of how many batches not all output has been emitted."""


@runtime_checkable
class PickingOperator(Protocol):
    """What a running operator offers besides, if it only lets some rows through: the reader of a source that it stands
    behind picks them while it reads (``sources.picking``). It then gets ``PickedBatch`` with several counts."""

    def condition(self, schema: pa.Schema) -> Condition:
        """What it lets through. ``schema``: of the source."""


@runtime_checkable
class EarlyTerminatingOperator(Protocol):
    """What a running operator offers besides, if it may need no more input before its ports have ended."""

    def needs_no_more(self, port: int) -> bool:
        """Whether no further row on this port can matter. Once true it stays true, until ``drain`` at the latest.

        What is upstream may then throw its rows away; ends of rounds, barriers and the end of the port still come.
        An operator with an attribute ``for_good`` that is true needs no more beyond ``drain``: its sources may end.
        """


@runtime_checkable
class WindowAwareOperator(EarlyTerminatingOperator, Protocol):
    """One that needs no more of one port when another one has no more rows before the next task barrier."""

    def end_window(self, port: int) -> None:
        """No further row comes on this port before ``drain``. Ends of rounds, or of the port, still come."""


@runtime_checkable
class ReadsInTurn(Protocol):
    """What a running operator offers besides, if it may read a port to its end before the other one.

    Such a port runs ahead of the rounds of the other one. Where it stands at a checkpoint's barrier, the driver gives
    rows of the other one without asking.
    """

    @property
    def read_first(self) -> int | None:
        """The port; None: none is, both go through the rounds in step."""

    def past(self, port: int) -> int:
        """The port ends: the last round of which nothing comes out any more, in whatever round the other one stands; -1
        if that is not known."""


@runtime_checkable
class SteeredOperator(Protocol):
    """What the first operator of a chain offers besides, if its course may be changed while it runs (a mixture's)."""

    def steer(self, reweights: tuple[Reweight, ...], limit: int | None) -> int | None:
        """These are all the changes that are known, and no row from position ``limit`` on may leave; None: all may.
        Answers the first position that can still be a limit; None: none can. May be called while steps are left."""

    @property
    def is_held(self) -> bool:
        """Whether the next row is one that may not leave: its steps do nothing until ``steer`` is called again."""


@runtime_checkable
class RunningSink(RunningOperator, Protocol):
    """An operator at the end of a pipeline that makes its rows visible in two phases.

    Rows come in their order, with round and lane. How many come in a call of ``process``, and under which numbers
    within a round and lane, means nothing, and may differ from attempt to attempt (``Traits.rows_at_once`` fixes how
    many).
    """

    def flush(self, checkpoint: CheckpointId) -> None:
        """The barrier of ``checkpoint`` has come: begin to write out everything received before it."""

    def prepare(self, checkpoint: CheckpointId) -> list[Committable]:
        """What was flushed for ``checkpoint``, not yet visible. Called once everything that the operator gave to
        ``OperatorContext.write`` up to then is written; further batches may have come since."""


@runtime_checkable
class SettlingSink(Protocol):
    """What a running sink offers besides, if its state says what it has written: known once everything is flushed."""

    def settle(self, checkpoint: CheckpointId, state: pa.Table | None) -> pa.Table | None:
        """The state as of the checkpoint's barrier, completed. ``state``: what ``snapshot`` gave then. Called once,
        right after ``prepare``."""


class Committer(Protocol):
    """Makes prepared rows visible. It needs no running sink: after a crash anyone may commit a permit again."""

    def commit(self, permit: CommitPermit) -> None:
        """Make the permit's committables visible. Idempotent, also while somebody whom the job has given up still
        commits the same; raises StorageError if it cannot."""

    def clean(self, keep: Sequence[Committable], claims: Sequence[str] = ()) -> None:
        """Remove what abandoned attempts of these claims left behind, except what ``keep`` refers to."""


@runtime_checkable
class OperatorConfig(Protocol):
    """The immutable half of an operator. Configs are frozen dataclasses; equal configs behave equally.

    What the planner may know of it (the columns that it needs, when it emits, what it holds) it says in an attribute
    ``traits`` (:mod:`.traits`). Without one it is right everywhere, and planned with care.
    """

    @property
    def kind(self) -> str:
        """The operator's noun, as ``explain`` prints it: "filter", "merge join"."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The schema of the output, given the ports' schemas. Raises FlowError that names what exists."""

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningOperator:
        """A running operator; ``restored`` holds the rows of earlier snapshots for this subtask's lanes."""

    def describe(self) -> str:
        """One line for ``explain`` and for the flow's fingerprint: what it does, not where data lie."""


@runtime_checkable
class SinkConfig(OperatorConfig, Protocol):
    """A config whose running operator is a :class:`RunningSink`."""

    @property
    def guarantee(self) -> str:
        """ "exactly once" or "at least once"."""

    @property
    def place(self) -> str:
        """Where the rows go, if no other sink may write there; else ""."""

    def check(self, job: str, resuming: bool = False) -> None:
        """Before the job starts: raise ConfigurationError if the place cannot be written or holds others' rows.

        ``job``: its UUID. ``resuming``: it goes on from a checkpoint, so rows of its own are no surprise.
        """

    def visible_rows(self, job: str) -> int | None:
        """How many rows of this sink a reader finds now, in the job with this UUID; None if the sink cannot tell them
        from those of others."""

    def committer(self, job: str) -> Committer:
        """The committer for this sink's committables, in the job with this UUID."""


class Stateless:
    """The parts of :class:`RunningOperator` that an operator without state, with one port, need not write."""

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        return None

    def end_port(self, port: int, out: Output) -> Steps:
        return None

    def finish(self, out: Output) -> Steps:
        return None

    def drain(self, out: Output) -> Steps:
        return None

    def accepts(self, port: int) -> bool:
        return True

    def snapshot(self) -> pa.Table | None:
        return None

    def close(self) -> None:
        pass


# ------------------------------------------------------------------ pacing
#
# Operators that somebody outside the job sets the pace of (a feed): what their task and their driver do for them.
#
# Rules:
#
# 1. A paced operator refuses batches while it is full. Told to ``expect`` a checkpoint it takes what stands before the
#    barriers all the same, until it has been cut, or given up.
# 2. So that this ends, the sources begin no further round while it is full (``PauseRounds``, from consumer to producer
#    and through every driver on the way): the checkpoint after the next finds nothing before its barriers. What is
#    taken beyond the room is thus bounded by the credit of the channels and a round, however long it stays full.
# 3. A task whose paced operator is in use by others does not end, though its data have.


@runtime_checkable
class ThrottledOperator(Protocol):
    """What a running operator offers besides, if somebody outside sets its pace. Its config says so with an attribute
    ``paced`` that is true."""

    def expect(self, checkpoint: CheckpointId) -> None:
        """Barriers of the checkpoint are on their way."""

    def abort(self, checkpoint: CheckpointId) -> None:
        """They are not any more, nor those of older ones."""

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint stands in the log."""

    @property
    def is_full(self) -> bool:
        """Whether no further round should begin."""

    @property
    def is_released(self) -> bool:
        """Whether nobody outside needs it any more."""

    @property
    def waiting_for(self) -> str:
        """Who does not read, in words; "" if nobody is waited for."""


def throttled_of(running: Iterable[object]) -> ThrottledOperator | None:
    """The paced operator of a chain, if it has one."""
    return next((each for each in running if offers(each, ThrottledOperator)), None)
