"""The end of a feed: gives every row its global position, and hands global batches out to the ranks of a group. Pure.

It is the state of one operator behind a gather, so its rows come in the flow's order. Rules:

1. Positions are counts, and which rows a batch has follows from them (``batch_grid``), whoever reads it. A slice of a
   batch follows from the rank and the number of ranks alone (``RankGroup.share``). The last batch of an epoch may be
   short. Where there are several epochs a batch is handed out when it is known whether it is the last one of its epoch.
2. A rank says which batches it has *taken*, and which are *saved*: it needs those never again, not even after a crash,
   because a saved model has seen them. Kept are all rows from the first batch that is not saved everywhere; only when
   there is no room for the batch that all ranks wait for, those that all have taken go too. A group that replaces
   another starts at any batch that is kept, or else from the checkpoint that its model was saved with. Its start counts
   when each of its ranks has named it: one that is wrong takes nothing from others.
3. A snapshot holds the kept rows and all counters, never a log of what was read. Ranks take no part in checkpoints: a
   rank that does something else for an hour holds no barrier up. A restored operator gets the rows after the snapshot
   again under the same positions, and ranks know what they have taken, so they see nothing of it. At the end of its
   data the operator has finished; its task has when every rank has acknowledged everything: ranks are its consumers.
4. What may come otherwise after a restart is handed out when a checkpoint that is durable has it, not before. That is
   every row of a flow whose order is not ``repeatable``; and in any flow the rows that operators emit when they finish,
   and the end itself: data that end because the job is stopped go on if the stop fails.
5. ``ready`` is credit, not a right: with more than ``most_rows`` kept the owner takes no rows, *except* to reach a
   barrier that has been announced. Else a rank that stalls would hold the checkpoint up. What has come so, or in one
   large piece, is not handed out for that: no rank is more than ``max_drift`` batches before the slowest one.
6. Groups are fenced by their generation. A restored sequencer may not know the newest: ranks then join again.
7. When every rank has acknowledged everything, and a durable checkpoint says so, the feed is *settled*: no restart
   comes back to rows that ranks would have to read again, so they may leave (``Phase``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import Generic, Protocol

import numpy as np
import numpy.typing as npt

from ..core.arguments import LARGEST
from ..core.identity import CheckpointId
from .batch_grid import BatchGrid, CutGrid
from .digests import OrderHash
from .messages import Answer, FeedEnded, NotYet, R, RankGroup, Refusal, Refused, Slice
from .rank_counts import RankCounts
from .state import CutState, EpochEnd, SequencerState

Hashing = Callable[[R], npt.NDArray[np.uint64]]
"""A hash for each row."""
Sizing = Callable[[R], int]
"""Bytes of a piece."""


class Marking(Protocol[R]):
    """How rows say where batches end; ``marks.Marks``."""

    def ends(self, rows: R) -> list[int]:
        """Behind which of the rows batches end."""
        ...

    def share(self, batch: int, pieces: Sequence[R], rank: int, ranks: int) -> tuple[R, ...]:
        """The rank's rows of a whole batch, as ranks get them."""
        ...


SnapshotPosition = tuple[int, bool, bool]
"""The position, whether the feed had ended, and whether all of it had been acknowledged."""


class Phase(IntEnum):
    """How far a feed has come: one phase after the other, and never back."""

    OPEN = 0
    """Rows come."""
    ENDED = 1
    """No more rows come in this attempt; in another one there may be more (rule 4)."""
    COUNTED = 2
    """The number of batches is final: ranks are told the end."""
    SETTLED = 3
    """Every rank has acknowledged everything, and a durable checkpoint says so (rule 7)."""


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """``drop_last``: the last batch of an epoch is left out if it is not full. ``most_rows``: kept before new ones must
    wait. ``epochs``: how often the feed's data come.

    ``max_drift``: so many batches, counted from the one that the slowest rank takes next, may be handed out; None: all
    that there are.

    ``ahead``: of these, at most so many that some rank has not taken; the rest is for what all have taken and not
    saved, of which the oldest goes first. None: no such division. ``ahead_bytes``: nor more than so many bytes that
    some rank has not taken, but for the batch that is wanted next, nor so many of all that is kept, but for the rows
    that stay when all have taken them; None: whatever they have. ``certain``: see rule 4."""

    batch_size: int
    repeatable: bool = True
    drop_last: bool = False
    most_rows: int = 1 << 20
    ahead: int | None = None
    certain: bool = False
    epochs: int = 1
    max_drift: int | None = None
    ahead_bytes: int | None = None
    cut: bool = False
    """Batches have different numbers of rows, and rows say where they end (``marks``). A batch of any size is taken,
    and of what some rank has not taken no more than ``ahead`` rows are handed out, or one batch."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.most_rows:
            raise ValueError(
                f"a feed keeps at least one batch: {self.batch_size} rows a batch, {self.most_rows} rows in all"
            )

    @property
    def margin(self) -> int:
        """Rows of the same epoch behind a batch that tell that it is not the last one."""
        return 0 if self.epochs == 1 else self.batch_size if self.drop_last else 1

    def grid(self, ends: Sequence[int]) -> BatchGrid:
        """With the epochs that have ended at these positions."""
        return CutGrid(1) if self.cut else BatchGrid.of(self.batch_size, self.drop_last, ends)


@dataclass(slots=True)
class Sequencer(Generic[R]):
    """See the module's rules. Built anew, or by :meth:`restored`."""

    settings: FeedSettings
    hashing: Hashing[R] | None = None
    #: None: it does not matter
    sizing: Sizing[R] | None = None
    #: None: batches have equally many rows
    marks: Marking[R] | None = None
    #: The position that the next row gets.
    position: int = 0
    #: The first batch that may still be asked for. Never goes back.
    oldest: int = 0
    #: How far the feed has come.
    phase: Phase = Phase.OPEN
    #: Of the epochs that have ended.
    ends: list[EpochEnd] = field(default_factory=list)
    #: Of all rows so far.
    order: OrderHash = field(default_factory=OrderHash)
    #: None until somebody joins; a restored sequencer begins so.
    group: RankGroup | None = None
    #: By rank: the first batch that it has not taken, and the first that is not saved.
    _taken: RankCounts = field(default_factory=partial(RankCounts, 0, 0))
    _saved: RankCounts = field(default_factory=partial(RankCounts, 0, 0))
    #: The ranks that need nothing again, should they have taken all that there is.
    _done: set[int] = field(default_factory=set)
    #: Kept pieces, and the position of each one's first row; together all rows from ``oldest`` on, or some before.
    _pieces: deque[R] = field(default_factory=deque)
    _starts: deque[int] = field(default_factory=deque)
    #: How many bytes had come before each kept piece, and in all.
    _bytes_before: deque[int] = field(default_factory=deque)
    _bytes: int = 0
    #: Rows before this position are in a durable checkpoint.
    _durable: int = 0
    #: Rows from this position on were emitted by operators that finished.
    _final_from: int | None = None
    #: Rows before this position, and bytes before this number of them, are taken though there is no room.
    _allowed: tuple[int, int] = (0, 0)
    #: Of each snapshot that is not known to be durable, oldest first: its position.
    _snapshots: dict[CheckpointId, SnapshotPosition] = field(default_factory=dict)
    #: The batches of the rows so far, and of those that come.
    grid: BatchGrid = field(init=False)

    def __post_init__(self) -> None:
        self.grid = self.settings.grid([end.position for end in self.ends])

    @classmethod
    def restored(
        cls,
        state: SequencerState[R],
        settings: FeedSettings,
        hashing: Hashing[R] | None = None,
        sizing: Sizing[R] | None = None,
        marks: Marking[R] | None = None,
    ) -> Sequencer[R]:
        """As of a durable checkpoint."""
        grid = state.grid(settings.batch_size, settings.drop_last)
        oldest = grid.batch_from(state.first)
        made: Sequencer[R] = cls(settings, hashing, sizing, marks, state.first, oldest, ends=list(state.ends))
        made.grid = grid
        for rows in state.rows:
            made._keep(rows)
        made.order, made._durable = state.order, state.position
        if state.ended:
            made._advance(Phase.ENDED)
            made._advance(Phase.COUNTED)
            made._advance(Phase.SETTLED if made.is_finished else Phase.COUNTED)
        return made

    @property
    def ended(self) -> bool:
        """Whether no more rows come."""
        return self.phase >= Phase.ENDED

    @property
    def is_settled(self) -> bool:
        """See rule 7."""
        return self.phase is Phase.SETTLED

    def _advance(self, to: Phase) -> None:
        """One phase on; nothing happens where the feed has come as far. The only place that moves it."""
        if to > self.phase + 1:
            raise AssertionError(f"a feed cannot become {to.name} when it is {self.phase.name}")
        self.phase = max(self.phase, to)

    # --- rows come -----------------------------------------------------------------------------------------------

    @property
    def kept_rows(self) -> int:
        return self.position - max(self._first_needed, self._starts[0]) if self._starts else 0

    @property
    def ready(self) -> bool:
        """Whether there is room (rule 5)."""
        if self.settings.ahead is None:
            return self.kept_rows < self.settings.most_rows
        if self.settings.cut and self.starves:
            return True
        return self.ahead < self.settings.ahead and not self._is_heavy(self.settings.ahead_bytes)

    def allow_more(self) -> None:
        """As many rows may come, though there is no room, as there would be room for (rule 5)."""
        rows, size = self.settings.ahead or 0, self.settings.ahead_bytes
        self._allowed = (self.position + rows, self._bytes + (LARGEST if size is None else size))

    def allow_no_more(self) -> None:
        """A barrier has come."""
        self._allowed = (0, 0)

    @property
    def is_allowed(self) -> bool:
        """Whether rows may come though there is no room."""
        return self.position < self._allowed[0] and self._bytes < self._allowed[1]

    @property
    def ahead(self) -> int:
        """Rows that some rank has not taken."""
        return max(0, self.position - self.grid.first_row(self.awaited))

    def rows_of(self, batches: range) -> int:
        """How many rows these batches have, as far as is known."""
        return max(0, self.grid.first_row(batches.stop) - self.grid.first_row(batches.start))

    @property
    def is_half_full(self) -> bool:
        """Whether more than half of the room is used."""
        settings = self.settings
        return settings.ahead is not None and (
            2 * self.ahead > settings.ahead or self._is_heavy((settings.ahead_bytes or 0) // 2)
        )

    def _is_heavy(self, limit: int | None) -> bool:
        """Whether what some rank has not taken has so many bytes, more than the batch that is wanted next."""
        if not limit or not self._starts or self.starves:
            return False
        return self._bytes - self._bytes_up_to(self.grid.first_row(self.awaited)) >= limit

    @property
    def kept_bytes(self) -> int:
        """Of the kept pieces."""
        return self._bytes - self._bytes_before[0] if self._bytes_before else 0

    @property
    def row_bytes(self) -> float:
        """What a row has that is kept, on average; 0: not known, or none is."""
        rows = self.position - self._starts[0] if self._starts else 0
        return self.kept_bytes / rows if rows else 0.0

    def _bytes_up_to(self, position: int) -> int:
        """The bytes that had come before the kept piece with this position; rows of a piece count as one."""
        if position >= self.position:
            return self._bytes
        return self._bytes_before[max(0, bisect_right(self._starts, position) - 1)]

    @property
    def awaited(self) -> int:
        """The batch that the slowest rank takes next."""
        return max(self.oldest, self._taken.least)

    @property
    def starves(self) -> bool:
        """Whether the batch that the slowest rank takes next lacks rows."""
        return not self.ended and self.position < self._needed_for(self.awaited)

    def _needed_for(self, batch: int) -> int:
        """So many rows must have come before the batch can be handed out."""
        margin = 0 if self.grid.is_known(batch) else self.settings.margin
        return self.grid.end_row(batch) + margin

    def has_come(self, batches: int) -> bool:
        """Whether this attempt, or what it was restored from, had all rows that these first batches follow from."""
        return self.ended or batches <= self.oldest or self.position >= self._needed_for(batches - 1)

    def accept(self, rows: R, final: bool = False) -> None:
        """The next rows of the feed. ``final``: operators emitted them when they finished; none but such follow."""
        if self.ended:
            raise AssertionError("rows came after the end of the feed")
        if final and self._final_from is None:
            self._final_from = self.position
        if self.hashing is not None:
            self.order = self.order.extended(self.hashing(rows))
        self._keep(rows)
        self._forget()

    def end_epoch(self) -> None:
        """What comes next is of the next epoch."""
        self.grid.close(self.position)
        self.ends.append(EpochEnd(self.position, self.order.content))
        self._forget()

    def end(self) -> None:
        """No more rows come."""
        if not self.ends or self.position > self.grid.begin:
            self.end_epoch()
        self._advance(Phase.ENDED)
        if self.settings.certain:
            self._advance(Phase.COUNTED)
            self._forget()

    @property
    def wants_checkpoint(self) -> bool:
        """Whether nothing goes on before one is durable (rule 4)."""
        if self.ended:
            return self.phase is Phase.ENDED
        return not self.ready and self._deliverable < self.position

    @property
    def batches(self) -> int | None:
        """How many global batches there are in all; None while that may change."""
        return self.grid.first if self.phase >= Phase.COUNTED else None

    @property
    def is_finished(self) -> bool:
        """Whether every rank has acknowledged everything, and nothing that there never was. A sequencer that has no
        rows is, without any rank."""
        return self.batches is not None and self.oldest == self.batches

    # --- ranks read ----------------------------------------------------------------------------------------------

    def join(self, group: RankGroup, at: int) -> RankGroup | Refused:
        """A rank of a group joins, and needs nothing before batch ``at``; the answer is its group.

        All ranks do so, in any order and as often as they like: in a group that has read for a while ``at`` may lie
        after the start, and a restored sequencer know less than the group. What a rank needs is never less than what
        all have acknowledged.
        """
        known = self.group
        if known is not None and group.generation < known.generation:
            return Refused(Refusal.STALE, known.generation)
        if known is not None and group.generation == known.generation:
            same = group == known
            return known if same else Refused(Refusal.CONTRADICTION, known.generation)
        if at < self.oldest:
            return Refused(Refusal.GONE, group.generation)
        self.group = group
        self._taken, self._saved = (RankCounts(group.ranks, self.oldest) for _ in range(2))
        self._done = set()
        return group

    def read(self, generation: int, rank: int, batch: int, max_ahead: int | None = None) -> Answer[R]:
        """The rank's slice of the batch; asked again, the same. ``max_ahead``: so many batches before the slowest rank
        this one wants to be at most."""
        if (refused := self._refuse(generation)) is not None or self.group is None:
            return refused or Refused(Refusal.UNKNOWN_GROUP, generation)
        if batch < self.oldest:
            return Refused(Refusal.GONE, generation, batch)
        batches = self.batches
        if batches is not None and batch >= batches:
            return FeedEnded(generation, batch, batches)
        begin, end = self.grid.first_row(batch), self.grid.end_row(batch)
        needed = self._needed_for(batch)
        if end > self._deliverable or needed > self.position:
            return NotYet(generation, batch, self._why_not(needed))
        if self._is_too_far_ahead(batch, max_ahead):
            return NotYet(generation, batch, self.slow_ranks)
        first, rows = self._share(batch, begin, end, rank, self.group)
        is_last = self.settings.epochs > 1 and self.grid.is_last(batch)
        return Slice(generation, rank, batch, first, rows, end - begin, self.grid.epoch_of(batch), is_last)

    def _share(self, batch: int, begin: int, end: int, rank: int, group: RankGroup) -> tuple[int, tuple[R, ...]]:
        """The rank's rows of a batch, and the position of the first one, or of the whole batch's."""
        if self.marks is not None:
            return begin, self.marks.share(batch, tuple(self._rows(begin, end - begin)), *group.part(rank))
        share = group.share(rank, end - begin)
        return begin + share.start, tuple(self._rows(begin + share.start, len(share)))

    def _is_too_far_ahead(self, batch: int, max_ahead: int | None) -> bool:
        awaited, settings = self.awaited, self.settings
        ahead = batch - awaited
        if ahead and settings.ahead_bytes is not None:
            begin, end = (self._bytes_up_to(self.grid.first_row(each)) for each in (awaited, batch))
            if end - begin >= settings.ahead_bytes:
                return True
        rows = self.grid.end_row(batch) - self.grid.first_row(awaited)
        if ahead and settings.cut and settings.ahead is not None and rows > settings.ahead:
            return True
        max_drift = settings.max_drift
        return (max_drift is not None and ahead >= max_drift) or (max_ahead is not None and ahead > max_ahead)

    def acknowledge(self, generation: int, rank: int, taken: int, saved: int, done: bool = False) -> bool:
        """The rank has every batch before ``taken``, and none before ``saved`` is ever needed again; if it is ``done``
        and there is nothing more, none at all. Whether that was heard."""
        if self._refuse(generation) is not None:
            return False
        (self._done.add if done else self._done.discard)(rank)
        self._saved.grow(rank, saved)
        self._taken.grow(rank, max(taken, saved))
        self._forget()
        return True

    def _refuse(self, generation: int) -> Refused | None:
        if self.group is None or generation > self.group.generation:
            return Refused(Refusal.UNKNOWN_GROUP, generation)
        return Refused(Refusal.STALE, self.group.generation) if generation < self.group.generation else None

    @property
    def _deliverable(self) -> int:
        """Rows before this position may be handed out (rule 4)."""
        if not self.settings.repeatable:
            return self._durable
        return self.position if self._final_from is None else max(self._final_from, self._durable)

    def _why_not(self, end: int) -> str:
        if end <= self.position or self.ended:
            return f"a checkpoint: {self.position - self._durable:,} rows are in none that is durable"
        if self.settings.cut:
            return "rows of the flow: the batch is not complete"
        return f"rows of the flow: {end - self.position:,} are missing"

    def waits_for(self) -> str:
        """What the operators before the feed wait for; empty if it takes rows."""
        if self.ready:
            return ""
        if self.group is None:
            return "ranks to join"
        if self._deliverable < (needed := self._needed_for(self.oldest)):
            return self._why_not(needed)
        return self.slow_ranks

    @property
    def slow_ranks(self) -> str:
        """The ranks that have taken least."""
        if self.group is None:
            return "ranks to join"
        last = self._taken.least
        slow = islice((rank for rank, batch in enumerate(self._taken.each) if batch == last), 5)
        return f"rank {', '.join(map(str, slow))} of {self.group.ranks}, which is at batch {last}"

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def snapshot(self, checkpoint: CheckpointId) -> SequencerState[R]:
        """The state for a checkpoint, which is noted."""
        self.note_snapshot(checkpoint, self.snapshot_position)
        return self.state()

    @property
    def snapshot_position(self) -> SnapshotPosition:
        """How far the feed has come: what is to be noted of a snapshot."""
        return self.position, self.ended, self.is_finished

    def note_snapshot(self, checkpoint: CheckpointId, at: SnapshotPosition) -> None:
        """The snapshot for this checkpoint was taken ``at`` this position."""
        self._snapshots[checkpoint] = at

    def state(self) -> SequencerState[R]:
        """What a snapshot that is taken now holds."""
        first = min(max(self._first_needed, self._starts[0]) if self._starts else self.position, self.position)
        rows = tuple(self._rows(first, self.position - first))
        cut, grid = None, self.grid
        if isinstance(grid, CutGrid):
            is_open = self.position > grid.first_row(grid.next)
            cut = CutState(grid.batch_from(first), grid.next, tuple(grid.firsts), is_open)
        return SequencerState(first, self.position, self.ended, self.order, rows, tuple(self.ends), cut=cut)

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is durable, and with it all older snapshots."""
        for known in [one for one in self._snapshots if one <= checkpoint]:
            position, ended, finished = self._snapshots.pop(known)
            self._durable = max(self._durable, position)
            if ended:
                self._advance(Phase.COUNTED)
                self._forget()
            if finished:
                self._advance(Phase.SETTLED)

    # --- the rows that are kept ----------------------------------------------------------------------------------

    @property
    def _first_needed(self) -> int:
        return self.grid.first_row(self.oldest)

    def _keep(self, rows: R) -> None:
        if rows.num_rows:
            self._pieces.append(rows)
            self._starts.append(self.position)
            self._bytes_before.append(self._bytes)
            self._bytes += 0 if self.sizing is None else self.sizing(rows)
            if self.marks is not None and isinstance(self.grid, CutGrid):
                for end in self.marks.ends(rows):
                    self.grid.cut(self.position + end)
            self.position += rows.num_rows

    def _forget(self) -> None:
        """Drop what nobody needs, and what there is no room for (rule 2)."""
        if self.group is not None:
            if (batches := self.batches) is not None:
                for rank in self._done:
                    self._saved.grow(rank, batches if self._taken.each[rank] == batches else 0)
            self.oldest = max(self.oldest, self._saved.least)
            self.oldest = max(self.oldest, self._pushed_out(self._taken.least))
        while self._pieces and self._starts[0] + self._pieces[0].num_rows <= self._first_needed:
            self._pieces.popleft()
            self._starts.popleft()
            self._bytes_before.popleft()

    def _pushed_out(self, taken: int) -> int:
        """The first batch that there is room for, if all have taken those before ``taken``. Rows that came only because
        of a barrier push out none of those that are kept behind ``taken``."""
        settings, grid = self.settings, self.grid
        if settings.ahead is None:
            return taken if not self.ready and grid.end_row(taken) > self.position else 0
        kept = max(0, grid.first_row(taken) - (settings.most_rows - settings.ahead))
        first = max(0, self.position - settings.most_rows, self._first_within(settings.ahead_bytes))
        found = min(grid.batch_from(first), grid.batch_from(kept + 1) - 1)
        return min(found, taken - 1) if settings.cut else found

    def _first_within(self, limit: int | None) -> int:
        """The position of the first kept piece from which on rows have no more bytes than the limit; 0: all have."""
        if limit is None or not self._starts or self._bytes - self._bytes_before[0] <= limit:
            return 0
        at = bisect_left(self._bytes_before, self._bytes - limit)
        return self._starts[at] if at < len(self._starts) else self.position

    def _rows(self, first: int, length: int) -> Iterator[R]:
        """The kept rows from position ``first`` on."""
        at = bisect_right(self._starts, first) - 1
        while length > 0:
            offset = first - self._starts[at]
            taken = min(length, self._pieces[at].num_rows - offset)
            yield self._pieces[at].slice(offset, taken)
            first, length, at = first + taken, length - taken, at + 1

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        at = self._starts[0] if self._starts else self.position
        if self._pieces and self._starts[0] + self._pieces[0].num_rows <= self._first_needed:
            raise AssertionError(f"rows before batch {self.oldest} are kept, though nobody needs them")
        if at > self._first_needed and at != self.position:
            raise AssertionError(f"rows from batch {self.oldest} on are needed, but the first kept one is {at}")
        for start, piece in zip(self._starts, self._pieces, strict=True):
            if start != at:
                raise AssertionError(f"the kept rows have a gap: {start} follows {at}")
            at += piece.num_rows
        if at != self.position:
            raise AssertionError(f"the kept rows end at {at}, not at {self.position}")
        if self._durable > self.position or any(at > self.position for at, _, _ in self._snapshots.values()):
            raise AssertionError("a snapshot lies after the newest row")
        if self.is_settled and not self.is_finished:
            raise AssertionError("the feed is settled, but some rank has not acknowledged all of it")
        taken, saved = self._taken.each, self._saved.each
        if taken and (self._taken.least, self._saved.least) != (min(taken), min(saved)):
            raise AssertionError(f"taken {taken} at least {self._taken.least}, saved {saved} {self._saved.least}")
        if taken and not min(saved) <= self.oldest <= min(taken):
            raise AssertionError(f"taken {taken}, saved {saved}, but {self.oldest} is the oldest kept")
