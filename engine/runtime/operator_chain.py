"""The operators of one driver: batches are pushed through them, control elements walk past them one after the other.

Rules:

1. Each step calls one operator, or takes one step of what such a call has answered (``Steps``): the driver can stop
   between any two operators, and between any two pieces of what one of them emits.
2. What an operator emits is put aside for the next one, on a stack: it goes all the way down before the operator is
   stepped or called again. So a piece of each operator's output is in memory, at most. What leaves the last operator
   goes to ``put``; whoever takes the steps sends it before the next one.
3. A control element (the end of a round, of a port, of the data, a task barrier) reaches an operator only when
   everything that the operators before it emitted on its account is through: it is a list of steps, of which the next
   one is taken when the stack is empty. Until then no operator is asked what it needs.
4. For lanes for which an operator had finished before the task was restored it does not finish again: what it emits for
   them is dropped.
5. Columns may come in compact forms (``arrow.compact``). Before an operator that does not take them, and before rows
   leave the task, they are made plain; from there on they are.
6. A cut may stand between any two calls and pieces: the stack is data (``capture``). A call that is under way comes to
   its end first, or is made again (``Traits.cut``); what it had given is left out then, and the numbers of what an
   operator gives go on behind the last tag of their lane.
7. An operator that takes few rows at once (``Traits.rows_at_once``) is given a batch in parts; what is left of it waits
   before it, as a batch, while a part is processed. Where parts end depends on the batch alone, not on time or on cuts.
   They keep round and lane; each has the batch's number, or the next one that is free in its lane. A user's sink that
   does not say so is given parts that take about as long as each other (``part_sizes``): nobody is behind it.
8. Only the first operator has several ports, and only the first one may have work under way elsewhere
   (``AsynchronousOperator``); the planner cuts pipelines accordingly.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa

from ..arrow.combining import is_too_large
from ..arrow.compact import fits, plain_records
from ..core.elements import FINAL_ROUND, Batch, Tag, divided
from ..core.errors import ConfigurationError, DataError, InternalError, PenstockError, StorageError, UserCodeError
from ..core.identity import CheckpointId, Committable, EndedLanes
from ..core.offering import offers
from ..core.operator import (
    LANE,
    AsynchronousOperator,
    EarlyTerminatingOperator,
    Output,
    PortPlace,
    QueueingOperator,
    ReadsInTurn,
    RunningOperator,
    RunningSink,
    SettlingSink,
    Stateless,
    SteeredOperator,
    WindowAwareOperator,
    throttled_of,
)
from ..core.traits import Cut
from ..core.user_code import is_to_be_told, is_users_own, raised, user_frames
from ..sources.reader import SplitReader
from ..state.change_log import ChangingOperator
from .chain_flight import Aside, ChainFlight, ControlStep, OperatorPlace, What
from .part_sizes import PartSizes
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
    #: the ports that it takes in to the end, whether it needs the rows or not
    reads_whole: tuple[int, ...] = ()
    #: on what a cut stands while steps of a method are left (``Traits.cut``)
    cut: Mapping[str, Cut] = field(default_factory=dict)
    #: it takes a batch in parts (``Traits.rows_at_once``)
    rows_at_once: int | None = None
    #: it takes a batch in parts by the time that they take
    part_sizes: PartSizes | None = None
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
    #: tag of the batch being processed, or processed last; None before the first one, and when it gives what it holds
    at: Tag | None = None

    def end_window(self, drain_seconds: float) -> OperatorWindow:
        """A task barrier has passed: what happened since the one before."""
        rows_in, rows_out, bytes_out = self.window
        self.window = (self.rows_in, self.rows_out, self.bytes_out)
        first_at, self.first_at = self.first_at, None
        rows = (self.rows_in - rows_in, self.rows_out - rows_out, self.bytes_out - bytes_out)
        return OperatorWindow(self.id, *rows, drain_seconds, first_at)

    @property
    def takes_whole_batches(self) -> bool:
        """Whether it is a user's, who may say that it takes them in parts."""
        return self.is_users and self.rows_at_once is None and self.part_sizes is None

    @property
    def where(self) -> str:
        """The batch being processed, in words."""
        if self.at is None:
            return "a step that was given no batch"
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


@dataclass(slots=True, eq=False)
class _Call:
    """A call of an operator that is under way, or is to be made again. ``given``: if it can be made again with what it
    gives left out, the rows of each lane that it has emitted."""

    method: str
    port: int = 0
    round: int = -1
    batch: Batch | None = None
    given: dict[int, int] | None = None
    #: None: it is not made yet
    steps: Iterator[None] | None = None


class _Link:
    """An operator in its place: gives it what is put aside for it, and puts what it emits aside for the next one."""

    __slots__ = (
        "_at_cut",
        "_context",
        "_counts_process",
        "_given",
        "_leaves_out",
        "_put",
        "_shifts",
        "_stack",
        "_taken",
        "finishing",
        "following",
        "is_choosy",
        "last",
        "operator",
        "places",
        "tags",
        "takes_parts",
    )

    def __init__(
        self, operator: OperatorInstance, stack: list[_Aside], put: Callable[[Batch], None], ports: int
    ) -> None:
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
        #: how far its ports have come, but for the tags of their last batches
        self.places = [PortPlace() for _ in range(ports)]
        self.tags: list[Tag | None] = [None] * ports
        takes_parts = _inherits(operator, "accepts") and not offers(operator.running, AsynchronousOperator)
        #: it is given batches in parts; the tags of the last ones by lane, if it is
        self.takes_parts = takes_parts and (operator.rows_at_once is not None or operator.part_sizes is not None)
        self._taken: list[dict[int, Tag]] = [{} for _ in range(ports if self.takes_parts else 0)]
        #: lane -> the last tag that it has given
        self.last: dict[int, Tag] = {}
        #: rows of each lane that the call under way has emitted, if that matters
        self._given: dict[int, int] | None = None
        self._counts_process = operator.cut.get("process") is Cut.BEFORE
        #: rows of each lane that the call under way had emitted before a cut
        self._leaves_out: dict[int, int] = {}
        #: lane -> the last tag before the cut, and by how much numbers of its round are shifted since
        self._at_cut: dict[int, Tag] = {}
        self._shifts: dict[int, int] = {}

    def emit(self, batch: Batch) -> None:
        source = self.operator
        if self.finishing and batch.tag.lane in source.ended:
            return
        if source.emits is not None:
            _check_emitted(batch, source.emits, not source.plain)
        if self._leaves_out or self._at_cut:
            found = self._continued(batch)
            if found is None:
                return
            batch = found
        lane = batch.tag.lane
        self.last[lane] = batch.tag
        given = self._given
        if given is not None:
            given[lane] = given.get(lane, 0) + batch.records.num_rows
        source.rows_out += batch.rows
        source.batches_out += 1
        source.bytes_out += batch.size
        if self.following is None:
            self._put(batch.plain)
        else:
            self._stack.append((self.following, 0, batch))

    def process_part(self, port: int, batch: Batch) -> None:
        """Give the operator the first rows of a batch, as many as it takes at once."""
        sizes = self.operator.part_sizes
        if sizes is None:
            self.process(port, self._part(port, batch, self.operator.rows_at_once))
            return
        part = self._part(port, batch, sizes.rows)
        began = time.perf_counter()
        self.process(port, part)
        sizes.took(part.records.num_rows, time.perf_counter() - began)

    def _part(self, port: int, batch: Batch, rows: int | None) -> Batch:
        """The first rows of a batch, so many; the others are put aside."""
        assert rows is not None, "it takes batches whole"
        if batch.records.num_rows > rows:
            batch, rest = divided(batch, rows)
            self._stack.append((self, port, rest))
        tag, taken = batch.tag, self._taken[port]
        last = taken.get(tag.lane)
        if last is not None and last.round == tag.round and last.sequence >= tag.sequence:
            tag = Tag(tag.round, tag.lane, last.sequence + 1)
            batch = msgspec.structs.replace(batch, tag=tag)
        taken[tag.lane] = tag
        return batch

    def process(self, port: int, batch: Batch, given: dict[int, int] | None = None) -> None:
        """Give the operator a batch; again, if it had ``given`` something."""
        operator, stack = self.operator, self._stack
        base = len(stack)
        if operator.first_at is None:
            operator.first_at = time.perf_counter()
        operator.rows_in += batch.rows
        operator.at = batch.tag
        if self._counts_process:
            self._given = {} if given is None else given
        try:
            if operator.plain:
                batch = plain_batch(batch, operator.plain[port])
            steps = operator.running.process(port, batch, self)
        except BaseException as error:
            blame(operator, error)
            raise
        if steps is not None:
            self._put_aside(base, _Call("process", port, batch=batch, given=self._given, steps=steps))
        else:
            self.tags[port] = batch.tag
            if self._leaves_out:
                self._end(_Call("process", port, batch=batch))
            if len(stack) > base + 1:
                self._put_aside(base, None)

    def make(self, call: _Call) -> None:
        """Make a call, or make it again."""
        self._leaves_out = dict(call.given or ())
        if call.batch is not None:
            self.process(call.port, call.batch, call.given)
            return
        base, running = len(self._stack), self.operator.running
        is_counted = self.operator.cut.get(call.method) is Cut.BEFORE
        self._given = call.given = (call.given or {}) if is_counted else None
        with self._context:
            if call.method == What.END_ROUND.value:
                call.steps = running.end_round(call.port, call.round, self)
            elif call.method == What.END_PORT.value:
                call.steps = running.end_port(call.port, self)
            else:
                self.operator.at = None
                call.steps = running.finish(self) if call.method == What.FINISH.value else running.drain(self)
        if call.steps is None:
            self._end(call)
        self._put_aside(base, None if call.steps is None else call)

    def go_on(self, call: _Call) -> None:
        """Take a step of what a call has answered."""
        if call.steps is None:
            self.make(call)
            return
        base = len(self._stack)
        with self._context:
            left = next(call.steps, self) is not self
        if not left:
            self._end(call)
        self._put_aside(base, call if left else None)

    def exhaust(self, call: _Call) -> None:
        """Take all steps that are left."""
        assert call.steps is not None, "it would be made again"
        base = len(self._stack)
        with self._context:
            for _ in call.steps:
                pass
        self._end(call)
        self._put_aside(base, None)

    def poll(self, running: AsynchronousOperator) -> bool:
        """Let the operator emit what has come back. Whether anything has."""
        base = len(self._stack)
        with self._context:
            found = running.poll(self)
        self._put_aside(base, None)
        return found

    def unanswered(self, running: AsynchronousOperator) -> Sequence[Batch]:
        """The batches of which nothing has come back."""
        base = len(self._stack)
        with self._context:
            found = running.unanswered(self)
        self._put_aside(base, None)
        return found

    def _put_aside(self, base: int, call: _Call | None) -> None:
        """What a call has put on the stack above ``base`` goes first, oldest on top; then what is left of the call."""
        emitted = self._stack[base:]
        del self._stack[base:]
        if call is not None:
            self._stack.append((self, 0, call))
        self._stack += reversed(emitted)

    # ------------------------------------------------------------------ cuts

    def _end(self, call: _Call) -> None:
        """The call is through."""
        self._given = None
        if any(self._leaves_out.values()):
            with self._context:
                raise _gives_less(self.operator, call.method)
        self._leaves_out = {}
        if call.batch is not None:
            self.tags[call.port] = call.batch.tag
        elif call.method == What.END_PORT.value:
            self.places[call.port] = replace(self.places[call.port], ended=True)
        elif call.method == What.END_ROUND.value:
            is_final, place = call.round == FINAL_ROUND, self.places[call.port]
            self.places[call.port] = replace(place, is_final=True) if is_final else replace(place, round=call.round)

    def _continued(self, batch: Batch) -> Batch | None:
        """What is left of a batch, if some of it was emitted before a cut, under a tag behind those from before it."""
        records, tag = batch.records, batch.tag
        known = min(self._leaves_out.get(tag.lane, 0), records.num_rows)
        if known:
            self._leaves_out[tag.lane] -= known
            if known == records.num_rows:
                return None
            batch = Batch(records.slice(known), tag)
        before = self._at_cut.get(tag.lane)
        if before is None:
            return batch
        if before.round < tag.round:
            del self._at_cut[tag.lane]
            return batch
        if before.round > tag.round:
            return batch
        shift = self._shifts.setdefault(tag.lane, max(0, before.sequence + 1 - tag.sequence))
        return msgspec.structs.replace(batch, tag=Tag(tag.round, tag.lane, tag.sequence + shift)) if shift else batch

    def is_taken_to_its_end(self, call: _Call) -> bool:
        """Whether a cut stands behind the call."""
        return self.operator.cut.get(call.method, Cut.AFTER) is Cut.AFTER

    @property
    def place(self) -> OperatorPlace:
        """For a cut."""
        ports = [replace(place, at=tag) for place, tag in zip(self.places, self.tags, strict=True)]
        return OperatorPlace(tuple(ports), dict(self.last), self.finishing, tuple(map(dict, self._taken)))

    def put_back(self, place: OperatorPlace) -> None:
        """Go on from there."""
        self.places, self.tags = list(place.ports), [port.at for port in place.ports]
        self.last, self._at_cut = dict(place.last), dict(place.last)
        self.finishing = place.finishing
        for taken, before in zip(self._taken, place.taken, strict=False):  # of one that took no parts nothing is known
            taken.update(before)


def _gives_less(operator: OperatorInstance, method: str) -> PenstockError:
    message = f"{method}() gave fewer rows when it was called again after a checkpoint than it had given before it"
    if operator.is_users:
        return UserCodeError(message, "leave it out of Traits(cut=…), or let equal state give equal rows")
    return InternalError(message)


def plain_batch(batch: Batch, schema: pa.Schema) -> Batch:
    """The batch, of the declared ``schema``, without compact columns."""
    records = plain_records(batch.records, schema)
    return batch if records is batch.records else Batch(records, batch.tag)


_Aside = tuple[_Link, int, Batch | _Call]
"""A batch for a port of an operator, or what is left of a call of it."""


class OperatorChain:
    """See the module's rules. ``put`` takes what leaves the last operator."""

    def __init__(self, operators: Sequence[OperatorInstance], put: Callable[[Batch], None], ports: int = 1) -> None:
        self.operators = operators
        self._put = put
        #: what is under way, the next thing last
        self._stack: list[_Aside] = []
        self._links = [
            _Link(operator, self._stack, put, 1 if position else ports) for position, operator in enumerate(operators)
        ]
        for link, following in pairwise(self._links):
            link.following = following
            following.is_choosy = not _inherits(following.operator, "accepts")
        first: object = operators[0].running if operators else None
        self._asynchronous = first if offers(first, AsynchronousOperator) else None
        self._queueing = first if offers(first, QueueingOperator) else None
        #: the operator that is called at this moment with a batch, or for what is left of a call, since when
        self._at_work: tuple[OperatorInstance, float] | None = None
        #: the batches that were pushed so far
        self.pushed = 0
        #: ends of rounds and task barriers may stand among batches under way
        self.may_queue = self._queueing is not None
        self._in_turn = first if offers(first, ReadsInTurn) and first.read_first is not None else None
        #: the first operator reads one port before the other
        self.reads_in_turn = self._in_turn is not None
        self.steered = first if offers(first, SteeredOperator) else None
        self.window_aware = first if offers(first, WindowAwareOperator) else None
        #: the first operator may refuse a batch
        self._may_refuse = bool(operators) and not _inherits(operators[0], "accepts")
        #: operators behind the first one that may refuse a batch, and those that the end of a round concerns
        self._choosy = [link.operator for link in self._links if link.is_choosy]
        self._by_rounds = [
            position for position, each in enumerate(operators) if position and not _inherits(each, "end_round")
        ]
        self._sinks = [(each, each.running) for each in operators if offers(each.running, RunningSink)]
        running: list[object] = [operator.running for operator in operators]
        self.throttled = throttled_of(running)
        found = [(position, each) for position, each in enumerate(running) if offers(each, EarlyTerminatingOperator)]
        #: those that may need no more rows before the next task barrier, and beyond it. What an operator holds for
        #: later matters behind the barrier, whatever those after it need until then
        self._lasting = [pair for pair in found if getattr(pair[1], "for_good", False)]
        self._early_terminating = [
            pair for pair in found if getattr(pair[1], "for_good", False) or not self._holds_before(pair[0])
        ]
        #: ``needs_no_more`` can be true
        self.may_terminate_early = bool(self._early_terminating)
        #: what is taken now may come out behind the next task barrier
        self.holds = self._holds_before(len(operators))

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
        Whether any was called: one behind the first may not take its batch now, or the first one is held."""
        stack, called = self._stack, False
        while stack:
            link, port, work = stack[-1]
            if isinstance(work, Batch):
                if link.is_choosy and not _accepts(link.operator, port):
                    break
                stack.pop()
                self._at_work = link.operator, time.perf_counter()
                if link.takes_parts:
                    link.process_part(port, work)
                else:
                    link.process(port, work)
            elif self.is_held and link is self._links[0]:
                return called
            else:
                stack.pop()
                self._at_work = link.operator, time.perf_counter()
                link.go_on(work)
            called = True
            if stack and is_over():
                break
        self._at_work = None
        return called

    def piece(self) -> tuple[str, float] | None:
        """The operator that is at a piece, and for how long; None: none is, or for an end. From any thread."""
        found = self._at_work
        return None if found is None else (found[0].id, time.perf_counter() - found[1])

    @property
    def is_held(self) -> bool:
        """Whether the first operator waits for a change of its course."""
        return self.steered is not None and self.steered.is_held

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
        if self._may_refuse and not is_last and not _accepts(self.operators[0], port):
            return False
        return not self._choosy or self.has_room

    def past(self, port: int) -> int:
        """With the end of the port: the last round of which nothing comes out any more, if ports are read in turn."""
        return -1 if self._in_turn is None else self._in_turn.past(port)

    def needs_no_more(self, port: int) -> bool:
        """Whether no further row on this port can matter to what leaves the chain before the next task barrier."""
        return any(
            found.needs_no_more(0 if position else port)
            for position, found in self._early_terminating
            if position or port not in self.operators[0].reads_whole
        )

    def _holds_before(self, position: int) -> bool:
        return any(each.hold for each in self.operators[:position])

    def needs_nothing_for_good(self, port: int) -> bool:
        """The same, also behind the next task barrier."""
        return any(found.needs_no_more(0 if position else port) for position, found in self._lasting)

    def end_window(self, port: int) -> None:
        """No further row comes on this port before the next task barrier."""
        assert self.window_aware is not None, "nobody is told who does not want to know"
        with operator_context(self.operators[0]):
            self.window_aware.end_window(port)

    # ------------------------------------------------------------------ work under way elsewhere

    @property
    def under_way(self) -> str:
        """What the first operator has under way elsewhere, in words; "" if nothing."""
        return "" if self._asynchronous is None else self._asynchronous.waits_for

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

    def round_steps(self, port: int, round: int) -> list[ControlStep]:
        """A round has ended on one port: what the first operator is told."""
        return [ControlStep(What.END_ROUND, 0, port, round)] if self._links else []

    def port_steps(self, port: int, is_last: bool) -> list[ControlStep]:
        """A port has ended, the last one or another: what the first operator is told."""
        return [ControlStep(What.END_PORT, 0, port, is_last=is_last)] if self._links else []

    def rest_steps(self, round: int) -> list[ControlStep]:
        """A round has ended on all ports: what the operators behind the first one are told."""
        return [ControlStep(What.END_ROUND, position, 0, round) for position in self._by_rounds]

    def finish_steps(self) -> list[ControlStep]:
        """All ports have ended: the operators emit what they hold, upstream first."""
        found: list[ControlStep] = []
        for position, link in enumerate(self._links):
            link.finishing = True
            if position:
                found.append(ControlStep(What.END_ROUND, position, 0, FINAL_ROUND))
                found.append(ControlStep(What.END_PORT, position, 0, is_last=True))
            found.append(ControlStep(What.FINISH, position))
        return found

    def call(self, step: ControlStep) -> None:
        """Tell an operator what one of these steps says."""
        link = self._links[step.operator]
        link.finishing = link.finishing or step.is_last
        link.make(_Call(step.what.value, step.port, step.round))

    def drain(self, clock: Callable[[], float], window: list[OperatorWindow]) -> Iterator[None]:
        """A task barrier: the operators emit what they hold and forget it, upstream first, unless they are to hold.
        What happened in each of them since the last one is added to ``window``."""
        for link in self._links:
            operator, began = link.operator, clock()
            if not (operator.hold or _inherits(operator, "drain")):
                link.make(_Call("drain"))
                yield
            window.append(operator.end_window(clock() - began))

    # ------------------------------------------------------------------ cuts

    def capture(self) -> tuple[ChainFlight, list[Batch]]:
        """What is under way, and its batches; before the operators' state is taken. Calls that are not made again come
        to their end: what they give is parked before the next operator, or leaves the chain."""
        unanswered = self._park()
        aside: list[Aside] = []
        batches: list[Batch] = []
        for link, port, work in reversed(self._stack):
            operator = self._links.index(link)
            if unanswered and operator == 0 and isinstance(work, Batch):
                aside += [Aside(0, has_batch=True) for _ in unanswered]
                batches += unanswered
                unanswered = []
            if isinstance(work, _Call):
                batch = work.batch
                entry = Aside(operator, work.port, work.method, work.round, batch is not None, dict(work.given or ()))
            else:
                batch, entry = work.plain, Aside(operator, port, has_batch=True)
                if not batch.records.num_rows:  # it was only to be counted
                    continue
            aside.append(entry)
            if batch is not None:
                batches.append(batch.plain)
        aside += [Aside(0, has_batch=True) for _ in unanswered]
        batches += unanswered
        return ChainFlight(tuple(aside), tuple(link.place for link in self._links)), batches

    def _park(self) -> list[Batch]:
        """Take calls to their end that are not made again, each in its place on the stack. What has not come back."""
        stack, found = self._stack, list[Batch]()
        waiting = [each for each in stack if each[0] is self._links[0] and isinstance(each[2], Batch)]
        others = stack[len(waiting) :]
        del stack[len(waiting) :]
        if self._asynchronous is not None:
            found += self._links[0].unanswered(self._asynchronous)
        for link, port, work in others:
            if isinstance(work, _Call) and link.is_taken_to_its_end(work):
                link.exhaust(work)
            else:
                stack.append((link, port, work))
        return found

    def put_back(self, flight: ChainFlight, batches: Sequence[Batch]) -> None:
        """Go on with what was under way in a chain like this one, before anything else is called."""
        left = iter(batches)
        found: list[_Aside] = []
        for each in flight.aside:
            link, batch = self._links[each.operator], next(left) if each.has_batch else None
            if batch is not None and not each.method:
                found.append((link, each.port, batch))
            else:
                found.append((link, 0, _Call(each.method, each.port, each.round, batch, dict(each.given))))
        self._stack += reversed(found)
        self.pushed = flight.waiting
        for link, place in zip(self._links, flight.places, strict=True):
            link.put_back(place)

    # ------------------------------------------------------------------ state and the end

    def snapshot(self) -> dict[str, pa.Table]:
        """The state of the operators, by id, leaving out those that hold nothing. That of operators which know what has
        changed may be in parts (``Changes``)."""
        tables: dict[str, pa.Table] = {}
        for operator in self.operators:
            with operator_context(operator):
                running = operator.running
                whole = operator.is_users or operator.carried is not None
                table = running.changes() if not whole and offers(running, ChangingOperator) else running.snapshot()
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
    try:
        return operator.running.accepts(port)
    except BaseException as error:
        blame(operator, error)
        raise


def _inherits(operator: OperatorInstance, name: str) -> bool:
    """Whether the operator has the method of ``Stateless``."""
    return getattr(type(operator.running), name, None) is getattr(Stateless, name)
