"""Mix: several streams of one schema as one, interleaved by weights.

Rules:

1. The stream of each position of the output is drawn by its weight: a function of (seed, epoch, position) alone
   (``counter_random``). Each stream's own rows stay in order. So it does not matter which stream was faster.
2. A stream is *out* at the first position that is drawn for it when it has no row left and has ended. With ``at_end``
   "stop" the mixture ends there, and rows left of other streams are dropped, wherever they are; with "go on" the others
   go on by their weights, this position included; with "begin again" its own rows come again (``turns``), from this
   position on. Each stream may have an ``at_end`` of its own. When each has been out once the mixture ends.
3. All streams go through the rounds in step. What has come of one and is not drawn yet is held, and written to disk
   when it is too much. A port is not read while it holds enough and another is waited for that can still say more in
   this round. What streams give when they end (``FINAL_ROUND``), or late at a barrier, is held until the end, or drain.
4. A row leaves in the first round in which it is known to be its turn: rows that came up to then suffice, and a stream
   whose last round is an earlier one is known to have ended. It does not depend on timing either, so neither do
   exchanges behind it.
5. A barrier is an end for what has come so far: streams that have no row left are out, then all begin anew. A mixture
   that has stopped because a stream has ended stays so. So is the last round of an epoch; the next one draws anew, by
   the next ``epoch``. Rows that come behind the end of a mixture are dropped here then: the sources go on.
6. State: the position, who is out, how far the streams have come, the rows held, and how many rows of each stream have
   left in all, which is also the position that schedules of weights go by (``schedule``): it counts on over epochs. A
   piece that has left is none of it: the call that gave it gives the rest when it is made again. A batch lets go of no
   more than is held (rule 3), and that leaves first.
7. Where no stream that has rows left has a weight, those that are left share evenly. But while streams come again,
   which they could for ever, the mixture ends at the first position at which each of the others has no weight any more,
   as far as is known there.
8. Weights may be changed while it runs (``steer``), from a position on whose stream has not been drawn. Until the log
   has the change no row from there on leaves: the end that would emit it is held, in the midst of its steps, and what a
   batch would let go of waits for the next batch or end. (A cut takes a batch's steps to their end: none may wait.) So
   what a restored operator is told of changes is all that has had an effect. They are no part of the state: the log has
   them.
9. The last stream that has not been out never begins again, so its rows are not kept any more. While streams come again
   a batch lets go of at most about ``ENOUGH`` rows: the end of the round does so for the rest, in steps that may wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.kept_rows import SharedAccount
from ...buffers.mixed_rows import MixedRows
from ...core.elements import FINAL_ROUND, Batch
from ...core.epochs import ends_epoch, epoch_of
from ...core.errors import FlowError
from ...core.identity import Reweight
from ...core.operator import LANE, Emitter, OperatorContext, Output, Steps
from ...core.traits import ALL_INPUTS, Cut, Emission, Lineage, Multiplicity, State, Traits
from ...kernels.counter_random import MIX, Words, check_seed, words
from ...kernels.pieces import Bound, Positions, cut
from .schedule import Schedule, Weight, check_weights, idle_at, weights_at
from .turns import KEPT, TURNS, Turns
from .union import same_columns

AtEnd: TypeAlias = Literal["stop", "go on", "begin again"]
AT_ENDS: tuple[AtEnd, ...] = ("stop", "go on", "begin again")

BLOCK = 16 * 1024
"""Positions that are drawn together."""

GIVEN = "given"
"""The column of the state that counts what has left."""

ENOUGH = 128 * 1024
"""Rows: a port that holds so many is not read while another one is waited for."""


@dataclass(frozen=True)
class Mix:
    """All rows of as many streams as there are ``weights``, which are positive, or schedules. ``at_end``: of all of
    them, or of each."""

    weights: tuple[Weight, ...]
    seed: int = 0
    epoch: int = 0
    at_end: AtEnd | tuple[AtEnd, ...] = "stop"
    kind: str = "mix"

    @property
    def traits(self) -> Traits:
        """One that goes on to the end gives every row."""
        return Traits(
            emission=Emission.IN_TURN,
            state=State.ROWS,
            rows=Multiplicity.SAME if set(self.at_ends) == {"go on"} else Multiplicity.OTHER,
            lineage=Lineage(follows=ALL_INPUTS),
            beyond_budget="rows whose turn has not come",
            deterministic=True,
            grouped_by=(),
            cut=dict.fromkeys(("end_round", "drain", "finish"), Cut.WITHIN),
            ends_epochs=True,
            read_in_ratio=tuple(each.mean if isinstance(each, Schedule) else each for each in self.weights),
        )

    @property
    def at_ends(self) -> tuple[AtEnd, ...]:
        """What happens when each stream ends."""
        return (self.at_end,) * len(self.weights) if isinstance(self.at_end, str) else self.at_end

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of the first stream, which are those of all."""
        if len(self.weights) < 2:
            raise FlowError("mix: it needs two streams or more", "give another stream")
        check_weights(self.weights)
        if set(self.at_ends) - set(AT_ENDS) or len(self.at_ends) != len(self.weights):
            known = "'stop', 'go on' or 'begin again'"
            raise FlowError(f"mix: at_end is {self.at_end!r}", f"choose {known}, for all streams or for each of them")
        check_seed(self.kind, self.seed, self.epoch)
        return same_columns(self.kind, inputs, len(self.weights))

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningMix:
        """A running operator that goes on where ``restored`` ends."""
        running = RunningMix(self, context, self.output_schema(inputs))
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """Weights, seed, epoch and what happens at an end."""
        weights = " : ".join(f"{each}" if isinstance(each, Schedule) else f"{each:g}" for each in self.weights)
        ends = self.at_end if isinstance(self.at_end, str) else " : ".join(self.at_end)
        return f"{weights}, seed {self.seed}, epoch {self.epoch}; {ends} when one has ended"


def rows_given(state: pa.Table) -> list[int] | None:
    """How many rows of each stream have left by a state; None: an earlier release did not count them."""
    heads = state.filter(pc.less(state.column("place"), 0)).sort_by("port")
    given = heads.column(GIVEN) if GIVEN in heads.column_names else None
    return None if given is None or given.null_count else [int(count) for count in given.to_pylist()]


def turns_begun(state: pa.Table) -> list[int]:
    """How often each stream has begun again by a state, over all epochs."""
    heads = state.filter(pc.less(state.column("place"), 0)).sort_by("port")
    found: list[int] = heads.column(TURNS).to_pylist() if TURNS in heads.column_names else [0] * len(heads)
    return found


def begun_again(state: pa.Table) -> pa.Table:
    """The state behind the last round of all epochs, as the next one begins where there are to be more."""
    for name in ("ended", "over"):
        column = pa.array(np.zeros(state.num_rows, np.bool_))
        state = state.set_column(state.column_names.index(name), name, column)
    return state


class RunningMix:
    """See the module's rules."""

    #: a barrier may make rows matter again
    for_good = False

    def __init__(self, config: Mix, context: OperatorContext, schema: pa.Schema) -> None:
        self._config = config
        self._lane, self._bound = context.lanes.start, Bound(context.output_rows, context.output_bytes)
        self._epochs = context.epochs
        #: of ports whose weights stay
        self._weights = np.array(config.traits.read_in_ratio)
        self._reweights: list[Reweight] = []
        #: the first position, over all epochs, whose row may not leave
        self._limit: int | None = None
        ports = len(config.weights)
        #: ports with whose end the mixture ends
        self._stops = np.array([each == "stop" for each in config.at_ends])
        account = SharedAccount(context.memory)
        self._rows = MixedRows(schema, ports, account.part())
        again = {port: account.part() for port, each in enumerate(config.at_ends) if each == "begin again"}
        self._turns = Turns(config.seed, schema, again, ports)
        #: the position of the next row in its epoch
        self._position = 0
        #: rows of each port that have left, over all epochs; None: an earlier release did not count them
        self._given: Positions | None = np.zeros(ports, dtype=np.int64)
        #: whose rows have been used up, once, and those who give no more
        self._been_out, self._out = np.zeros(ports, dtype=np.bool_), np.zeros(ports, dtype=np.bool_)
        #: which of the orders of the seed
        self._epoch = config.epoch
        #: the mixture has ended: for this window, or for good because a stream has
        self._stopped = self._over = False
        #: the last round that has ended on each port, those of the end left aside; and whether its data have
        self._rounds = [-1] * ports
        self._ended = [False] * ports
        #: the port that the next position waits for
        self._awaited = 0
        #: the block drawn last, and the ports of its positions, up to where the mixture ends
        self._draws: tuple[int, Positions] = (-1, np.zeros(0, dtype=np.int64))
        self._emitter = Emitter()
        self.steer(context.reweights, None)

    # ------------------------------------------------------------------ the driver's calls

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Hold the rows, and emit those whose turn it is."""
        self._ended[port] = False  # of a restored operator: there are new data
        if self._stopped:
            return None
        self._rows.add(port, batch.tag.round, batch.records)
        is_open = self._rounds[port] < batch.tag.round < FINAL_ROUND
        return self._emit(self._open_round, out, waits=False) if is_open else None

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """Emit what becomes known when nobody has more to say in the round that is open."""
        if round == FINAL_ROUND or self._ended[port]:
            return None
        return self._end_round(port, round, out)

    def end_port(self, port: int, out: Output) -> None:
        """The port is out as soon as its rows are used up."""
        self._ended[port] = True

    def drain(self, out: Output) -> Steps:
        """Emit what can be, as if all had ended, and begin anew."""
        last = max(self._rounds)
        return self._finish(last if last >= 0 else FINAL_ROUND, out)

    def finish(self, out: Output) -> Steps:
        """Emit what can be; all have ended."""
        return self._finish(FINAL_ROUND, out)

    def accepts(self, port: int) -> bool:
        """Whether rows of the port are needed now (rule 3)."""
        if self._stopped or self._rows.counts[port] < ENOUGH:
            return True
        if self.is_held or port == self._awaited:
            return not self.is_held
        awaited = self._awaited
        return self._ended[awaited] or self._rounds[awaited] >= self._open_round

    def needs_no_more(self, port: int) -> bool:
        """Whether the mixture has ended, and no other epoch follows."""
        return self._stopped and self._epochs is None

    def steer(self, reweights: tuple[Reweight, ...], limit: int | None) -> int | None:
        """Go by these changes, and hold at ``limit`` (rule 8). The stream of the next row may have been drawn, and be
        out by that; nobody can say what came before this release."""
        self._reweights = sorted(reweights, key=lambda each: each.position)
        self._limit, self._draws = limit, (-1, self._draws[1])
        return None if self._given is None else self._total + 1

    @property
    def is_held(self) -> bool:
        """Whether the next row may not leave yet."""
        return self._limit is not None and self._total >= self._limit

    def close(self) -> None:
        """Hold nothing any more."""
        self._rows.clear()
        self._turns.clear()

    # ------------------------------------------------------------------ state

    def snapshot(self) -> pa.Table | None:
        """One row a port that tells how far it has come, then the rows held."""
        ports = len(self._ended)
        is_new = max(self._rounds) < 0 or all(self._ended)
        given = self._given
        if is_new and not (self._position or self._over or self._rows.total or (given is not None and given.any())):
            return None
        heads = pa.table(
            {
                LANE: pa.array(np.full(ports, self._lane, dtype=np.int32)),
                "port": pa.array(np.arange(ports, dtype=np.int32)),
                "round": pa.array(np.array(self._rounds, dtype=np.int64)),
                "place": pa.array(np.full(ports, -1)),
                "position": pa.array(np.full(ports, self._position)),
                "ended": pa.array(self._ended),
                "out": pa.array(self._been_out),
                "over": pa.array(np.full(ports, self._over)),
                GIVEN: pa.nulls(ports, pa.int64()) if given is None else pa.array(given),
                **self._turns.heads,
                "row": pa.nulls(ports, self._rows.row_type),
            }
        )
        held = (*self._rows.state(self._lane), *self._turns.state(self._lane))
        return pa.concat_tables([heads, *held], promote_options="default").unify_dictionaries()

    def restore(self, table: pa.Table) -> None:
        """Go on where an earlier operator was."""
        heads = table.filter(pc.less(table.column("place"), 0)).sort_by("port")
        self._rounds = [int(round) for round in heads.column("round").to_pylist()]
        self._position = int(heads.column("position")[0].as_py())
        self._been_out = np.array(heads.column("out").to_pylist(), dtype=np.bool_)
        self._ended = heads.column("ended").to_pylist()
        given = rows_given(heads)
        self._given = None if given is None else np.array(given, dtype=np.int64)
        self._over = bool(heads.column("over")[0].as_py())
        rows = table.filter(pc.greater_equal(table.column("place"), 0))
        is_kept = pc.equal(rows.column("round"), KEPT)
        self._rows.restore(rows.filter(pc.invert(is_kept)))
        self._turns.restore(heads, rows.filter(is_kept), np.flatnonzero(self._been_out).tolist())
        self._look_who_is_out()
        self._stopped = self._stopped or self._over

    # ------------------------------------------------------------------ parts

    @property
    def _total(self) -> int:
        """Rows that have left, over all epochs."""
        return 0 if self._given is None else int(self._given.sum())

    @property
    def _open_round(self) -> int:
        """The round in which rows leave now."""
        going_on = [round for round, ended in zip(self._rounds, self._ended, strict=True) if not ended]
        return 1 + (min(going_on) if going_on else max(self._rounds))

    def _end_round(self, port: int, round: int, out: Output) -> Iterator[None]:
        others = [each for number, each in enumerate(self._rounds) if number != port and not self._ended[number]]
        if min(others, default=round) >= round:  # the last one to end it
            yield from self._finish(round, out) if ends_epoch(self._epochs, round) else self._emit(round, out)
        self._rounds[port] = max(self._rounds[port], round)

    def _finish(self, round: int, out: Output) -> Iterator[None]:
        yield from self._emit(round, out, is_end=True)
        used_up = bool((self._stops & self._been_out & np.array(self._ended)).any())
        self._over = self._over or (used_up and not all(self._ended))
        self._rows.clear()
        self._turns.begin_anew()
        self._position, self._stopped = 0, self._over
        self._been_out, self._out = np.zeros_like(self._out), np.zeros_like(self._out)

    def _emit(self, round: int, out: Output, is_end: bool = False, waits: bool = True) -> Iterator[None]:
        """Emit all rows whose turn is known, with rows of rounds up to this one. ``waits``: where it is held."""
        epoch = self._config.epoch + epoch_of(self._epochs, round)
        if epoch != self._epoch:
            self._epoch, self._draws = epoch, (-1, self._draws[1])
        available = self._rows.up_to(FINAL_ROUND if is_end else round)
        left = ENOUGH
        while not self._stopped and (waits or left > 0 or not self._turns.coming):
            if self.is_held:
                if not waits:
                    return
                yield
                continue
            draws = self._drawn()[: self._rows.fitting(self._bound, self._turns.row_bytes())]
            if not len(draws):
                self._stopped = True  # rule 7
                return
            if self._limit is not None:
                draws = draws[: self._limit - self._total]
            count = self._possible(draws, available)
            if count:
                records, taken = self._take(draws[:count], round)
                available, left = available - taken, left - count
                self._position += count
                if self._given is not None:
                    self._given = self._given + taken  # not in place: snapshots that are being written have it
                for piece in cut(records, self._bound.rows, self._bound.bytes):
                    self._emitter.emit(piece, round, self._lane, out)
                yield  # not between them: what was taken and has not left would be in no state
            if count < len(draws):
                self._awaited = int(draws[count])
                if not (is_end or self._is_out(self._awaited, round)):
                    return
                self._drop_out(self._awaited)

    def _take(self, draws: Positions, round: int) -> tuple[pa.RecordBatch, Positions]:
        """The rows of these positions, and how many of each port."""
        for port in self._turns.coming:
            if wanted := int(np.count_nonzero(draws == port)):
                self._rows.add(port, round, self._turns.give(port, wanted, self._epoch))
        records, taken = self._rows.take(draws)
        self._turns.keep(records, draws)
        return records, taken

    def _possible(self, draws: Positions, available: Positions) -> int:
        """How many of the positions drawn can be filled."""
        found = len(draws)
        available = available.copy()
        available[list(self._turns.coming)] = found
        for port in np.flatnonzero(np.bincount(draws, minlength=len(available)) > available).tolist():
            found = min(found, int(np.flatnonzero(draws == port)[available[port]]))
        return found

    def _is_out(self, port: int, round: int) -> bool:
        """Whether a port without available rows has none any more: it has ended, in an earlier round."""
        return self._ended[port] and self._rounds[port] < round and not self._rows.counts[port]

    def _drop_out(self, port: int) -> None:
        self._been_out[port] = True
        self._turns.begin(port)
        self._look_who_is_out()

    def _look_who_is_out(self) -> None:
        """Draw what follows of those who give rows; it may be over."""
        self._draws = (-1, self._draws[1])
        self._out = self._been_out.copy()
        self._out[list(self._turns.coming)] = False
        self._stopped = bool((self._been_out & self._stops).any() or self._been_out.all())
        if self._stopped or np.count_nonzero(self._been_out) + 1 == len(self._been_out):
            self._turns.keep_only(() if self._stopped else self._turns.coming)

    def _drawn(self) -> Positions:
        """The ports of the next positions, up to the end of their block."""
        block, start = divmod(self._position, BLOCK)
        if self._draws[0] != block:
            drawn = words(self._config.seed, self._epoch, MIX, block, BLOCK) >> np.uint64(11)
            changes = self._reweights or any(isinstance(each, Schedule) for each in self._config.weights)
            self._draws = (block, self._changing(drawn, start) if changes else self._constant(drawn))
        return self._draws[1][start:]

    def _constant(self, drawn: Words) -> Positions:
        """The ports that these numbers stand for."""
        live = np.where(self._out, 0.0, self._weights)
        # the shares end below 1, and so does every draw: rounding may not let a port out win
        shares = np.cumsum(live)
        ports: Positions = np.searchsorted(shares, drawn * (shares[-1] / 2**53), side="right")
        return np.minimum(ports, int(np.flatnonzero(~self._out)[-1]))

    def _changing(self, drawn: Words, start: int) -> Positions:
        """The same, each at its own weights; from ``start`` on at most to where the mixture ends (rule 7)."""
        first = self._total - start
        positions = np.arange(first, first + BLOCK)
        if self._turns.coming:
            idle = idle_at(self._config.weights, positions[start:], self._epoch, self._reweights)
            ends = np.flatnonzero((idle | self._been_out[:, None]).all(axis=0))
            positions = positions[: start + int(ends[0])] if len(ends) else positions
            drawn = drawn[: len(positions)]
        live = weights_at(self._config.weights, positions, self._epoch, self._reweights)
        live[self._out] = 0.0
        live[np.ix_(~self._out, ~live.any(axis=0))] = 1.0
        shares = np.cumsum(live, axis=0)
        # below the last share, also when rounded: then the first share above it is that of a port with a weight
        reached = np.minimum(drawn * (shares[-1] / 2**53), np.nextafter(shares[-1], 0.0))
        found: Positions = (shares <= reached).sum(axis=0)
        return found
