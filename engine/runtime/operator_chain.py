"""The operators of one driver: batches are pushed through them, control elements walk past them one after the other.

Rules:

1. Each step calls one operator, or takes one step of what such a call has answered (``Steps``): the driver can stop
   between any two operators, and between any two pieces of what one of them emits.
2. What an operator emits is put aside for the next one, on a stack: it goes all the way down before the operator is
   stepped or called again. So a piece of each operator's output is in memory, at most. What leaves the last operator
   goes to ``put``; whoever takes the steps sends it before the next one.
3. A control element (the end of a round, of a port, of the data, a task barrier) reaches an operator only when
   everything that the operators before it emitted on its account is through: it is a generator that goes on when the
   stack is empty. Nothing is known of the operators while it is not: no state is taken, none is asked what it needs.
4. For lanes for which an operator had finished before the task was restored it does not finish again: what it emits for
   them is dropped.
5. Columns may come in compact forms (``arrow.compact``). Before an operator that does not take them, and before rows
   leave the task, they are made plain; from there on they are.
6. Only the first operator has several ports, and only the first one may have work under way elsewhere
   (``AsynchronousOperator``); the planner cuts pipelines accordingly.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrow.combining import is_too_large
from ..arrow.compact import fits, plain_records
from ..core.elements import FINAL_ROUND, Batch, Tag
from ..core.errors import ConfigurationError, DataError, InternalError, PenstockError, StorageError, UserCodeError
from ..core.identity import CheckpointId, Committable, EndedLanes
from ..core.offering import offers
from ..core.operator import (
    LANE,
    AsynchronousOperator,
    EarlyTerminatingOperator,
    Output,
    QueueingOperator,
    ReadsInTurn,
    RunningOperator,
    RunningSink,
    SettlingSink,
    Stateless,
    Steps,
    WindowAwareOperator,
    throttled_of,
)
from ..core.user_code import is_to_be_told, is_users_own, raised, user_frames
from ..sources.reader import SplitReader
from .statistics import OperatorWindow

# ------------------------------------------------------------------ operator instance
#
# A running operator in a driver's chain, what has passed it, and the operator_context for what it raises.
#
# Rule: an error gets its operator's id once, at the innermost operator. What a user's code raises is the user's
# (``user_code``), what a kernel of pyarrow raises the data's fault (DataError). An OSError of a user's code may pass
# (StorageError). Any other foreign exception is a bug of ours (InternalError).


@dataclass(slots=True)
class OperatorInstance:
    """An operator of the chain and what has passed it."""

    id: str
    running: RunningOperator
    #: whether it keeps what it holds at a task barrier, instead of emitting and forgetting it
    hold: bool = False
    #: the lanes of its task, those for which it had finished before the task was built, and their state
    lanes: range = range(0)
    ended: frozenset[int] = frozenset()
    carried: pa.Table | None = None
    #: the schemas of its ports, unless it takes compact columns
    plain: Sequence[pa.Schema] = ()
    #: of a user's operator: the schema of its output; what it emits and holds is checked
    emits: pa.Schema | None = None
    is_users: bool = False
    #: a sink: rows prepared in this attempt, and whether it ever prepares any
    prepared: int = 0
    prepares: bool = False
    rows_in: int = 0
    rows_out: int = 0
    batches_out: int = 0
    bytes_out: int = 0
    #: rows in, rows out and bytes out when the window began
    window: tuple[int, int, int] = (0, 0, 0)
    #: when the window's first row came, by ``time.perf_counter``
    first_at: float | None = None
    #: tag of the batch being processed, or processed last
    at: Tag | None = None

    def end_window(self, drain_seconds: float) -> OperatorWindow:
        """A task barrier has passed: what happened since the one before."""
        rows_in, rows_out, bytes_out = self.window
        self.window = (self.rows_in, self.rows_out, self.bytes_out)
        first_at, self.first_at = self.first_at, None
        rows = (self.rows_in - rows_in, self.rows_out - rows_out, self.bytes_out - bytes_out)
        return OperatorWindow(self.id, *rows, drain_seconds, first_at)

    @property
    def where(self) -> str:
        """The batch being processed, in words."""
        if self.at is None:
            return "a step before the first batch"
        return f"round {self.at.round}, lane {self.at.lane}, batch {self.at.sequence}"


class operator_context:  # noqa: N801 a context manager, read as a verb; a generator would take four times as long
    """Name ``operator``, and the batch it was given, in whatever the block raises."""

    __slots__ = ("_operator",)

    def __init__(self, operator: OperatorInstance) -> None:
        self._operator = operator

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            blame(self._operator, error)


def blame(operator: OperatorInstance, error: BaseException) -> None:
    """Raise what the operator has raised with its name and the batch that it was given, unless it is named already."""
    if isinstance(error, PenstockError) and error.operator and not is_users_own(error):
        return
    if not isinstance(error, Exception) and not (is_to_be_told(error) and user_frames(error)):
        return
    named = _named(error, operator.id, f" ({operator.where})")
    named.batch = None if operator.at is None else (operator.at.round, operator.at.lane)
    raise named from error


@contextmanager
def build_error_context(operator: str) -> Iterator[None]:
    """Name ``operator`` in what building it raises."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not (is_to_be_told(error) and user_frames(error)):
            raise
        raise _named(error, operator, " (the step that builds it)") from error


_MEMBERS = ("process", "end_round", "end_port", "finish", "drain", "accepts", "snapshot", "close")
_OF_SINKS = ("flush", "prepare")


def check_members(running: object, is_sink: bool) -> None:
    """A user's config has built what has all members of a running operator, or of a running sink."""
    names = (*_MEMBERS, *_OF_SINKS) if is_sink else _MEMBERS
    missing = [name for name in names if not callable(getattr(running, name, None))]
    if missing:
        message = f"its build() gave a {type(running).__name__} without {', '.join(missing)}"
        raise UserCodeError(message, "write them, or inherit those that it does not need from ps.Stateless")


def _check_emitted(batch: Batch, schema: pa.Schema, takes_compact: bool) -> None:
    """Kernels and files take the declared schema's word for what lies in a buffer. Only an operator that knows of
    compact forms may give them: another one's dictionary may hold a value twice, or null."""
    records: object = batch.records
    if not isinstance(records, pa.RecordBatch):
        message = f"it emitted a batch whose records are a {type(records).__name__}"
        raise UserCodeError(message, "give ps.Batch a pyarrow.RecordBatch")
    found = records.schema
    if not (fits(found, schema) if takes_compact else found.names == schema.names and found.types == schema.types):
        message = f"it emitted the columns {_in_words(found)}, and its output_schema() says {_in_words(schema)}"
        raise UserCodeError(message, "let it emit the columns, types and order that output_schema() gives")


def _check_state(table: object, lanes: range) -> None:
    """A snapshot can be handed to other subtasks: each row says whose it is."""
    remedy = f"give None, or a pyarrow.Table with a column {LANE!r} of int32: the lane of each row, as in its tags"
    if not isinstance(table, pa.Table):
        raise UserCodeError(f"its snapshot() gave a {type(table).__name__}", remedy)
    if table.schema.names.count(LANE) != 1 or not pa.types.is_integer(table.schema.field(LANE).type):
        raise UserCodeError(f"its snapshot() has no column {LANE!r} of int32, but {_in_words(table.schema)}", remedy)
    column = table.column(LANE)
    strange = column.null_count or (lanes and not np.isin(column.to_numpy(), np.arange(lanes.start, lanes.stop)).all())
    if strange:
        raise UserCodeError(f"its snapshot() has rows of other lanes than {lanes.start} to {lanes.stop - 1}", remedy)


def _check_prepared(made: object) -> None:
    if not isinstance(made, (list, tuple)) or not all(isinstance(each, Committable) for each in made):
        raise UserCodeError(
            f"its prepare() gave {made!r:.100}", "give a list of ps.Committable, [] if nothing was flushed"
        )


def _in_words(schema: pa.Schema) -> str:
    fields = [f"{each.name} {each.type}" for each in schema]
    return ", ".join(fields[:20]) + (f", … ({len(fields):,} in all)" if len(fields) > 20 else "")


def with_split(error: PenstockError, readers: Sequence[SplitReader]) -> PenstockError:
    """A user's error, with the split whose rows it was given."""
    found = error.batch
    if found is None or not isinstance(error, UserCodeError | DataError):
        return error
    splits = [f"{reader.operator} {split}" for reader in readers if (split := reader.split_at(*found))]
    if not splits:
        return error
    # the same object: what goes wrong later is attached to it
    error.args = (f"{error.message} (split {', '.join(splits)})", *error.args[1:])
    return error


def _named(error: BaseException, operator: str, where: str) -> PenstockError:
    if isinstance(error, PenstockError) and not is_users_own(error):
        return error.at(operator)
    if is_too_large(error):
        remedy = "cast its columns to large_string, large_binary or large_list before it, or let it hold fewer rows"
        return DataError(f"it needs more than 2 GiB of one column at once: {error}{where}", remedy, operator)
    if isinstance(error, pa.ArrowException):
        return DataError(f"{error}{where}", "check the values of the columns that this operator reads", operator)
    if user_frames(error) is not None:
        if isinstance(error, OSError):
            message = f"{type(error).__name__}: {error}{where}"
            return StorageError(message, "check what its code reads and writes", operator)
        remedy = "fix the code, or filter out the rows it cannot take"
        return raised("its code", error, remedy, where.strip(" ()")).at(operator)
    detail = "".join(traceback.format_exception(error))
    return InternalError(f"{type(error).__name__}: {error}{where}", "", operator, detail)


# ------------------------------------------------------------------ ended operator
#
# Operators that had finished at the checkpoint that a task is restored from (FLIP-147): they are not run again.
#
# Rules:
#
# 1. An operator that had finished for all lanes of a task is not built: :class:`EndedOperator` stands in its place in
#    the chain, passes the end on and keeps the state as it was.
# 2. One that had finished for some of them (at another parallelism a task gets lanes of several) is built for the
#    others: with their state, and with the lanes from the first to the last of them. What it emits in ``finish`` for a
#    lane that had ended is dropped (``operator_chain``), and the state of such lanes is kept beside its own.
# 3. A feed is always built: it has finished when its ranks have read everything, which only it knows.


class EndedOperator(Stateless):
    """See rule 1. It has no row to expect: what feeds it had ended, too."""

    def __init__(self, state: pa.Table | None) -> None:
        # in one piece: those of several tasks may differ in their dictionaries
        self._state = None if state is None else state.combine_chunks()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        raise ConfigurationError(
            "rows came for an operator that had finished at the checkpoint: its input has become longer, or another "
            "operator stands before it",
            "append new operators behind finished ones, leave the input as it was, or begin without this checkpoint",
        )

    def snapshot(self) -> pa.Table | None:
        return self._state


@dataclass(frozen=True, slots=True)
class Division:
    """The lanes of a task, divided into those for which an operator had finished and those for which it goes on."""

    lanes: range
    ended: frozenset[int]
    #: it had finished for all of them
    over: bool

    @property
    def hull(self) -> range:
        """From the first to the last lane that goes on."""
        left = [lane for lane in self.lanes if lane not in self.ended]
        return range(left[0], left[-1] + 1) if left else self.lanes

    def of_state(self, table: pa.Table | None) -> tuple[pa.Table | None, pa.Table | None]:
        """The state of the lanes that go on, and that of the others. What belongs to no lane goes on."""
        if table is None or not self.ended:
            return table, None
        ended = np.isin(table.column(LANE).to_numpy(), sorted(self.ended))
        goes_on, rest = table.filter(pa.array(~ended)), table.filter(pa.array(ended)).combine_chunks()
        return goes_on if goes_on.num_rows else None, rest if rest.num_rows else None


def with_carried(state: pa.Table | None, carried: pa.Table) -> pa.Table:
    """An operator's state and that of the lanes for which it had finished. In one piece: they may differ in their
    dictionaries, of which a file takes one for a column. Either may say what the other does not (``lane_counts``)."""
    if state is None:
        return carried
    return pa.concat_tables([carried, state], promote_options="default").combine_chunks()


def divide(operator: str, lanes: range, ended: Iterable[EndedLanes]) -> Division:
    """For which of a task's lanes the operator had finished. One of a task without lanes says so, too."""
    mine = [each for each in ended if each.operator == operator]
    over = frozenset(lane for lane in lanes if any(each.start <= lane < each.stop for each in mine))
    return Division(lanes, over, over=bool(mine) and len(over) == len(lanes))


def ended_lanes(operator: str, lanes: Iterable[int]) -> list[EndedLanes]:
    """Lanes as ranges."""
    found: list[EndedLanes] = []
    for lane in sorted(lanes):
        start = found.pop().start if found and found[-1].stop == lane else lane
        found.append(EndedLanes(operator, start, lane + 1))
    return found


class _Link:
    """An operator in its place: gives it what is put aside for it, and puts what it emits aside for the next one."""

    __slots__ = ("_context", "_put", "_stack", "finishing", "following", "is_choosy", "operator")

    def __init__(self, operator: OperatorInstance, stack: list[_Aside], put: Callable[[Batch], None]) -> None:
        self.operator = operator
        self._context = operator_context(operator)
        self._stack = stack
        self._put = put
        #: who takes what it emits; None: that leaves the chain
        self.following: _Link | None = None
        #: it may refuse a batch that comes from within the chain
        self.is_choosy = False
        #: the operator emits what it holds, as its data have ended
        self.finishing = False

    def emit(self, batch: Batch) -> None:
        source = self.operator
        if self.finishing and batch.tag.lane in source.ended:
            return
        if source.emits is not None:
            _check_emitted(batch, source.emits, not source.plain)
        source.rows_out += batch.rows
        source.batches_out += 1
        source.bytes_out += batch.size
        if self.following is None:
            self._put(batch.plain)
        else:
            self._stack.append((self.following, 0, batch))

    def process(self, port: int, batch: Batch) -> None:
        """Give the operator a batch."""
        operator, stack = self.operator, self._stack
        base = len(stack)
        if operator.first_at is None:
            operator.first_at = time.perf_counter()
        operator.rows_in += batch.rows
        operator.at = batch.tag
        try:
            if operator.plain:
                batch = plain_batch(batch, operator.plain[port])
            steps = operator.running.process(port, batch, self)
        except BaseException as error:
            blame(operator, error)
            raise
        if steps is not None or len(stack) > base + 1:
            self._put_aside(base, steps)

    def go_on(self, steps: Iterator[None]) -> None:
        """Take a step of what a call has answered."""
        base = len(self._stack)
        with self._context:
            left = next(steps, self) is not self
        self._put_aside(base, steps if left else None)

    def call(self, method: Callable[..., Steps], *arguments: Any) -> None:
        """Call a method of the operator that may emit."""
        base = len(self._stack)
        with self._context:
            steps = method(*arguments, self)
        self._put_aside(base, steps)

    def poll(self, running: AsynchronousOperator) -> bool:
        """Let the operator emit what has come back. Whether anything has."""
        base = len(self._stack)
        with self._context:
            found = running.poll(self)
        self._put_aside(base, None)
        return found

    def _put_aside(self, base: int, steps: Steps) -> None:
        """What a call has put on the stack above ``base`` goes first, oldest on top; then what is left of the call."""
        emitted = self._stack[base:]
        del self._stack[base:]
        if steps is not None:
            self._stack.append((self, 0, steps))
        self._stack += reversed(emitted)


def plain_batch(batch: Batch, schema: pa.Schema) -> Batch:
    """The batch, of the declared ``schema``, without compact columns."""
    records = plain_records(batch.records, schema)
    return batch if records is batch.records else Batch(records, batch.tag)


_Aside = tuple[_Link, int, Batch | Iterator[None]]
"""A batch for a port of an operator, or what is left of a call of it."""


class OperatorChain:
    """See the module's rules. ``put`` takes what leaves the last operator."""

    def __init__(self, operators: Sequence[OperatorInstance], put: Callable[[Batch], None]) -> None:
        self.operators = operators
        self._put = put
        #: what is under way, the next thing last
        self._stack: list[_Aside] = []
        self._links = [_Link(operator, self._stack, put) for operator in operators]
        for link, following in pairwise(self._links):
            link.following = following
            following.is_choosy = not _inherits(following.operator, "accepts")
        first: object = operators[0].running if operators else None
        self._asynchronous = first if offers(first, AsynchronousOperator) else None
        self._queueing = first if offers(first, QueueingOperator) else None
        #: the batches that were pushed so far
        self.pushed = 0
        self._in_turn = first if offers(first, ReadsInTurn) and first.read_first is not None else None
        self.window_aware = first if offers(first, WindowAwareOperator) else None
        #: the first operator may refuse a batch
        self._may_refuse = bool(operators) and not _inherits(operators[0], "accepts")
        #: operators behind the first one that may refuse a batch, and those that the end of a round concerns
        self._choosy = [link.operator for link in self._links if link.is_choosy]
        self._by_rounds = [link for link in self._links[1:] if not _inherits(link.operator, "end_round")]
        self._sinks = [(each, each.running) for each in operators if offers(each.running, RunningSink)]
        running: list[object] = [operator.running for operator in operators]
        self.throttled = throttled_of(running)
        self._early_terminating = [
            (position, each) for position, each in enumerate(running) if offers(each, EarlyTerminatingOperator)
        ]

    # ------------------------------------------------------------------ batches

    def push(self, port: int, batch: Batch) -> None:
        """Put a batch aside for the first operator."""
        self.pushed += 1
        if self._links:
            self._stack.append((self._links[0], port, batch))
        else:
            self._put(batch.plain)

    @property
    def busy(self) -> bool:
        """Whether something is under way (rule 3)."""
        return bool(self._stack)

    def go_on(self, is_over: Callable[[], object]) -> bool:
        """Call operators until nothing is under way, or the turn ``is_over``: that is asked between any two calls.
        Whether any was called: one behind the first may not take its batch now."""
        stack, called = self._stack, False
        while stack:
            link, port, work = stack[-1]
            if isinstance(work, Batch):
                if link.is_choosy and not _accepts(link.operator, port):
                    return called
                stack.pop()
                link.process(port, work)
            else:
                stack.pop()
                link.go_on(work)
            called = True
            if stack and is_over():
                break
        return called

    @property
    def has_room(self) -> bool:
        """Whether the operators behind the first one take what it emits."""
        return not self._choosy or all(_accepts(each, 0) for each in self._choosy)

    def wants(self, port: int) -> bool:
        """Whether the first operator takes a batch on this port now."""
        return not self._may_refuse or _accepts(self.operators[0], port)

    def accepts(self, port: int, is_last: bool = False) -> bool:
        """Whether a batch on this port is welcome now; if no other port can say more in this window, the first operator
        must take it."""
        return (is_last or self.wants(port)) and self.has_room

    @property
    def reads_in_turn(self) -> bool:
        """Whether the first operator reads one port before the other."""
        return self._in_turn is not None

    def past(self, port: int) -> int:
        """With the end of the port: the last round of which nothing comes out any more, if ports are read in turn."""
        return -1 if self._in_turn is None else self._in_turn.past(port)

    def needs_no_more(self, port: int) -> bool:
        """Whether no further row on this port can matter to what leaves the chain."""
        return any(found.needs_no_more(0 if position else port) for position, found in self._early_terminating)

    def needs_nothing_for_good(self, port: int) -> bool:
        """The same, also behind the next task barrier."""
        lasting = [
            (position, found) for position, found in self._early_terminating if getattr(found, "for_good", False)
        ]
        return any(found.needs_no_more(0 if position else port) for position, found in lasting)

    def end_window(self, port: int) -> None:
        """No further row comes on this port before the next task barrier."""
        assert self.window_aware is not None, "nobody is told who does not want to know"
        with operator_context(self.operators[0]):
            self.window_aware.end_window(port)

    @property
    def may_terminate_early(self) -> bool:
        """Whether ``needs_no_more`` can ever be true."""
        return bool(self._early_terminating)

    # ------------------------------------------------------------------ work under way elsewhere

    @property
    def under_way(self) -> str:
        """What the first operator has under way elsewhere, in words; "" if nothing."""
        return "" if self._asynchronous is None else self._asynchronous.waits_for

    @property
    def may_queue(self) -> bool:
        """Whether ends of rounds and task barriers may stand among batches under way."""
        return self._queueing is not None

    @property
    def left(self) -> int:
        """How many of the batches that were pushed have left the first operator, if it lets others wait behind them."""
        return self.pushed - (0 if self._queueing is None else self._queueing.batches_under_way)

    def poll(self) -> bool:
        """Take over what has come back. Whether anything has."""
        if self._asynchronous is None:
            return False
        return self._links[0].poll(self._asynchronous)

    # ------------------------------------------------------------------ control elements

    def end_round_first(self, port: int, round: int) -> Iterator[None]:
        """A round has ended on one port of the first operator."""
        for first in self._links[:1]:
            first.call(first.operator.running.end_round, port, round)
            yield

    def end_port_first(self, port: int, is_last: bool = False) -> Iterator[None]:
        """A port of the first operator has ended, the last one or another."""
        for first in self._links[:1]:
            first.finishing = is_last
            first.call(first.operator.running.end_port, port)
            yield

    def end_round_rest(self, round: int) -> Iterator[None]:
        """A round has ended on all ports: tell the operators behind the first one."""
        for link in self._by_rounds:
            link.call(link.operator.running.end_round, 0, round)
            yield

    def finish(self) -> Iterator[None]:
        """All ports have ended: the operators emit what they hold, upstream first."""
        for link in self._links:
            link.finishing = True
        for position, link in enumerate(self._links):
            if position:
                link.call(link.operator.running.end_round, 0, FINAL_ROUND)
                yield
                link.call(link.operator.running.end_port, 0)
                yield
            link.call(link.operator.running.finish)
            yield

    def drain(self, clock: Callable[[], float], window: list[OperatorWindow]) -> Iterator[None]:
        """A task barrier: the operators emit what they hold and forget it, upstream first, unless they are to hold.
        What happened in each of them since the last one is added to ``window``."""
        for link in self._links:
            operator, began = link.operator, clock()
            if not (operator.hold or _inherits(operator, "drain")):
                link.call(operator.running.drain)
                yield
            window.append(operator.end_window(clock() - began))

    # ------------------------------------------------------------------ state and the end

    def snapshot(self) -> dict[str, pa.Table]:
        """The state of the operators, by id, leaving out those that hold nothing."""
        tables: dict[str, pa.Table] = {}
        for operator in self.operators:
            with operator_context(operator):
                table = operator.running.snapshot()
                if table is not None and operator.is_users:
                    _check_state(table, operator.lanes)
            if table is not None:
                tables[operator.id] = table
        return tables

    def ended(self, finished: bool) -> tuple[EndedLanes, ...]:
        """For which lanes each operator has finished: for all of the task's if the chain has ``finished``."""
        found: list[EndedLanes] = []
        for operator in self.operators:
            if finished or (operator.ended and len(operator.ended) == len(operator.lanes)):
                found.append(EndedLanes(operator.id, operator.lanes.start, operator.lanes.stop))
            else:
                found += ended_lanes(operator.id, operator.ended)
        return tuple(found)

    def flush(self, checkpoint: CheckpointId) -> None:
        """A checkpoint's barrier has come: let the sinks write out what they have."""
        for operator, sink in self._sinks:
            with operator_context(operator):
                sink.flush(checkpoint)

    def prepare(self, checkpoint: CheckpointId) -> list[Committable]:
        """What the sinks flushed, once it is written."""
        found: list[Committable] = []
        for operator, sink in self._sinks:
            with operator_context(operator):
                made = sink.prepare(checkpoint)
                if operator.is_users:
                    _check_prepared(made)
            operator.prepared += sum(each.rows for each in made)
            operator.prepares = operator.prepares or bool(made)
            found += made
        return found

    def settle(self, checkpoint: CheckpointId, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        """The state as of the checkpoint, with what the sinks know now that everything is written, and that of
        the lanes for which operators had finished before."""
        settled = dict(tables)
        for operator, sink in self._sinks:
            if offers(sink, SettlingSink):
                with operator_context(operator):
                    state = sink.settle(checkpoint, tables.get(operator.id))
                if state is not None:
                    settled[operator.id] = state
        for operator in self.operators:
            if operator.carried is not None:
                settled[operator.id] = with_carried(settled.get(operator.id), operator.carried)
        return settled

    @property
    def sinks(self) -> list[OperatorInstance]:
        """The operators that make rows visible."""
        return [operator for operator, _ in self._sinks]

    def close(self) -> list[PenstockError]:
        """Close all operators, upstream first, whatever some of them raise; what was raised comes back."""
        raised: list[PenstockError] = []
        self._stack.clear()
        for operator in self.operators:
            try:
                with operator_context(operator):
                    operator.running.close()
            except PenstockError as error:
                raised.append(error)
        return raised


def _accepts(operator: OperatorInstance, port: int) -> bool:
    with operator_context(operator):
        return operator.running.accepts(port)


def _inherits(operator: OperatorInstance, name: str) -> bool:
    """Whether the operator has the method of ``Stateless``."""
    return getattr(type(operator.running), name, None) is getattr(Stateless, name)
