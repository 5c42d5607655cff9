"""Serves one feed: its operator puts rows in, its ranks ask for batches. In the operator's process, thread-safe.

Rules:

1. Each attempt of the task has an operator of its own; the server stays, so that ranks in this process see nothing of a
   restart. In another process a new server learns the group from the first rank that asks.
2. ``membership`` decides which reader is which rank, and when a newer group starts. No batch is handed out before
   every rank has joined once.
3. A rank that waits is told for what: for ranks to join, for a slow rank, for rows of the flow, for the feed's task.
4. When the job is over all ranks that wait get its error at once. But a rank that has read the whole feed, and lacks
   nothing, hears just that the feed has ended, whenever it asks: the last ranks may ask when the job is over. What it
   commits then it writes down itself, but for what is being carried out here.
5. A checkpoint that was aborted may have failed because the end of one source is on its way while others are throttled:
   as many rows more as there is room for may come before the next one. So a later one succeeds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import msgspec
import pyarrow as pa

from ..core.errors import PenstockError
from ..core.identity import Attempt, CheckpointId
from ..core.operator import do_nothing
from .digests import DigestRun, not_recorded
from .membership import Membership, first_generation
from .messages import Answer, Ask, Commit, NotYet, RankGroup, Refusal, Refused, Reply, Slice, end_for
from .model_commits import ModelCommits
from .progress import GroupProgress
from .sequencer import Sequencer, SnapshotPosition
from .state import SequencerState
from .status import FeedStatus, RankPace, RankStatus

Rows: TypeAlias = pa.RecordBatch

_NO_ATTEMPT, _FIRST = Attempt(0, 0), Attempt(1, 1)

SLOW_SECONDS = 5.0
"""So long a commit waits till other ranks have acknowledged what it covers: they do so within a moment, and within two
or three seconds after a restart of the feed's task."""
REPLY_BYTES = 8 << 20
"""A reply ends with the slice that gives it so many bytes: ranks need not wait for what comes later."""
ASK_AGAIN = 2.0
"""Seconds after which the checkpoint that lets the ranks leave is asked for again."""


class FeedServer:
    """See the module's rules. ``ask_checkpoint``: asks the job for a checkpoint, from any thread."""

    def __init__(self, name: str, ask_checkpoint: Callable[[], None] = do_nothing) -> None:
        self.name = name
        self.ask_checkpoint = ask_checkpoint
        #: where digests of batches go; called from the thread that writes
        self.record: Callable[[DigestRun, int], None] = not_recorded
        self._changed = threading.Condition()
        self._sequencer: Sequencer[Rows] | None = None
        self._wake: Callable[[], None] = do_nothing
        #: the checkpoint whose barriers are on their way
        self._expected: CheckpointId | None = None
        self._full = False
        self._members = Membership()
        self._progress = GroupProgress()
        #: by rank of the present group: its pace; and of those that wait for data, for what
        self._paces: dict[int, RankPace] = {}
        self._waiting: dict[int, str] = {}
        #: by rank of the present group that has asked here: it may have been given all before that batch, elsewhere
        self._reached: dict[int, int] = {}
        #: by rank of the present group that has asked here: an attempt before may have given it all before that batch
        self._earlier: dict[int, int] = {}
        #: ranks of the group whose loop has ended well
        self._done: set[int] = set()
        self._attempt = _NO_ATTEMPT
        #: no attempt before this one can have given anything
        self._is_first = False
        #: since when commits, by origin, have waited for other ranks
        self._deferred: dict[str, float] = {}
        #: the first generation that the attempt may give
        self._generation = 1
        self._over: PenstockError | None = None
        #: how many batches there were, when all have been read
        self._batches: int | None = None
        #: called with that number, on the operator's thread
        self.on_end: Callable[[int], None] = lambda batches: None
        self._asked_at = float("-inf")
        self.commits = ModelCommits(self._on_bound)

    # ------------------------------------------------------------------ the operator

    def open(
        self,
        sequencer: Sequencer[Rows],
        wake: Callable[[], None],
        attempt: Attempt = _NO_ATTEMPT,
        progress: GroupProgress | None = None,
    ) -> None:
        """An attempt of the operator begins. ``progress``: of the ranks, as its checkpoint has it; the server may know
        more."""
        with self._changed:
            self._sequencer, self._wake = sequencer, wake
            self._generation = max(1, first_generation(attempt))
            self._attempt, self._is_first = attempt, attempt == _FIRST and not sequencer.position
            self._members.on_new_attempt()
            self._expected, self._full = None, False
            self.commits.on_new_attempt()
            if self._progress.group is None and progress is not None:
                self._progress = progress
            if self._members.group is not None:
                sequencer.join(self._members.group, sequencer.oldest)
                for each in self._progress.each_rank:  # a busy rank sends nothing for a while
                    if each.rank in self._earlier and each.generation == self._members.group.generation:
                        self._earlier[each.rank] = max(self._earlier[each.rank], each.given)
                    sequencer.acknowledge(each.generation, each.rank, each.taken, 0, each.rank in self._done)
            self._changed.notify_all()

    def close(self, sequencer: Sequencer[Rows]) -> None:
        """The attempt has ended."""
        with self._changed:
            if self._sequencer is not sequencer:
                return
            if sequencer.is_settled:
                self._batches = sequencer.batches
            self._sequencer, self._wake = None, do_nothing
            batches = self._batches
        if batches is not None:
            self.on_end(batches)

    def accept(self, rows: Rows) -> None:
        """The next rows."""
        with self._changed:
            if self._sequencer is not None:
                self._sequencer.accept(rows)
                self._changed.notify_all()

    def end_epoch(self) -> None:
        """What comes next is of the next epoch."""
        with self._changed:
            if self._sequencer is not None:
                self._sequencer.end_epoch()
                self._changed.notify_all()

    def end(self) -> None:
        """No more rows come."""
        with self._changed:
            if self._sequencer is not None:
                self._sequencer.end()
                self._changed.notify_all()
                self._want_last_checkpoint(self._sequencer)

    @property
    def accepts_rows(self) -> bool:
        """Whether rows may come: there is room, or barriers follow them."""
        with self._changed:
            sequencer = self._sequencer
            if self._expected is not None or sequencer is None:
                return True
            return sequencer.ready or sequencer.is_allowed

    @property
    def is_full(self) -> bool:
        """Whether no further round should begin; again when half of the room is free, or no whole batch is left."""
        with self._changed:
            sequencer = self._sequencer
            if sequencer is None or sequencer.settings.ahead is None or sequencer.is_allowed:
                return False
            much = self._full and sequencer.is_half_full and not sequencer.starves
            self._full = not sequencer.ready or much
            return self._full

    @property
    def is_settled(self) -> bool:
        """Whether the ranks may go, and the task may end."""
        with self._changed:
            return self._settled

    @property
    def _settled(self) -> bool:
        return self._batches is not None or (self._sequencer is not None and self._sequencer.is_settled)

    @property
    def waits_for(self) -> str:
        """The ranks that hold the feed up; "" if none do."""
        with self._changed:
            sequencer = self._sequencer
            if sequencer is None or (sequencer.ready and not sequencer.ended) or sequencer.is_settled:
                return ""
            return (self._members.missing or sequencer.slow_ranks) if not sequencer.is_finished else ""

    def expect(self, checkpoint: CheckpointId) -> None:
        """Barriers are on their way: rows before them are taken."""
        with self._changed:
            self._expected = checkpoint if self._expected is None else max(self._expected, checkpoint)

    def give_up(self, checkpoint: CheckpointId) -> None:
        """The checkpoint was aborted."""
        with self._changed:
            if self._expected is not None and self._expected <= checkpoint:
                self._expected = None
                if self._sequencer is not None:
                    self._sequencer.allow_more()  # rule 5

    def state(self) -> tuple[SequencerState[Rows], SnapshotPosition] | None:
        """The state for a snapshot, and its position."""
        with self._changed:
            if self._sequencer is None:
                return None
            progress, untaken = self._progress.each_rank, self._progress.untaken
            return replace(
                self._sequencer.state(), progress=progress, untaken=untaken
            ), self._sequencer.snapshot_position

    def on_snapshot(self, checkpoint: CheckpointId, at: SnapshotPosition, first: int) -> None:
        """The checkpoint's snapshot was taken ``at`` this position and holds the rows from ``first`` on."""
        with self._changed:
            if (sequencer := self._sequencer) is not None:
                sequencer.note_snapshot(checkpoint, at)
                self.commits.on_snapshot(checkpoint, sequencer.grid.batch_from(first))
            if self._expected is not None and self._expected <= checkpoint:
                self._expected = None
                if self._sequencer is not None:
                    self._sequencer.allow_no_more()

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is durable."""
        with self._changed:
            if self._sequencer is not None:
                self._sequencer.committed(checkpoint)
                self.commits.committed(checkpoint)
                self._changed.notify_all()
                self._want_last_checkpoint(self._sequencer)

    def _on_bound(self, commit: Commit, outcome: str | None) -> None:
        with self._changed:
            self.commits.on_outcome(commit, outcome)
            self._changed.notify_all()

    # ------------------------------------------------------------------ the job

    def on_job_over(self, error: PenstockError) -> None:
        """The job is over; ranks that still wait get the error."""
        with self._changed:
            self._over = self._over or error
            self._changed.notify_all()

    # ------------------------------------------------------------------ the ranks

    def serve(self, ask: Ask, timeout: float) -> Reply[Rows]:
        """Handle a request and answer it: when a wanted batch is there, or the rank may leave, or after ``timeout``
        seconds. Raises the job's error when that is over."""
        until = time.monotonic() + timeout
        with self._changed:
            while True:
                reply, more = self._try(ask)
                left = until - time.monotonic()
                if not more or left <= 0:
                    return reply
                self._changed.wait(left)

    def notify(self, ask: Ask) -> None:
        """Handle a request that wants no answer."""
        with self._changed:
            group = self._members.group
            if ask.quits:
                self._leave(ask)
            elif group is not None and ask.generation == group.generation and self._members.is_assigned(ask):
                self._acknowledge(ask)

    def on_disconnect(self, session: str) -> None:
        """The reader's last connection has ended, and all that it sent has been handled."""
        with self._changed:
            if self._members.on_disconnect(session):
                self._changed.notify_all()

    def status(self) -> FeedStatus:
        """Who waits for whom."""
        with self._changed:
            return self._status()

    def _status(self) -> FeedStatus:
        sequencer, now = self._sequencer, time.monotonic()
        if sequencer is None:
            return FeedStatus(self.name, batches=self._batches)
        group = self._members.group
        parts = 1 if group is None else group.ranks // group.copies
        row_bytes = sequencer.row_bytes / parts
        ranks = []
        for each in self._progress.each_rank if group is not None else ():
            pace = self._paces.get(each.rank, RankPace())
            size = int(sequencer.rows_of(range(each.taken, each.given)) * row_bytes)
            place, waits = (each.generation, each.rank, each.taken, each.given), self._waiting.get(each.rank, "")
            ranks.append(RankStatus(*place, pace.waited, pace.rate(now), size, waits))
        is_held = not sequencer.ready and not sequencer.ended and group is not None and not self._members.missing
        return FeedStatus(
            self.name,
            sequencer.position,
            sequencer.ahead,
            sequencer.kept_bytes,
            sequencer.batches,
            "" if sequencer.is_finished else self._members.missing,
            sequencer.slow_ranks if is_held else "",
            tuple(ranks),
            self._attempt,
            self._unseen,
            self._has_caught_up(sequencer),
        )

    @property
    def taken(self) -> int:
        """Some rank's loop has taken the batches before this one, as far as is known here."""
        with self._changed:
            group = self._members.group
            return max((0 if group is None else group.start, *(each.taken for each in self._progress.each_rank)))

    @property
    def _unseen(self) -> int | None:
        """The first batch that no rank has, once every rank has said here how far it has come."""
        group = self._members.group
        if group is None:
            return 0 if self._is_first else None
        if not self._members.is_complete or len(self._reached) < group.ranks:
            return None
        given = (each.given for each in self._progress.each_rank if each.generation == group.generation)
        return max((group.start, *self._reached.values(), *given))

    def _has_caught_up(self, sequencer: Sequencer[Rows]) -> bool:
        """Whether this attempt has what attempts before it have given, once that is known."""
        group = self._members.group
        if self._unseen is None or group is None:
            return self._unseen is not None
        return sequencer.has_come(max((group.start, *self._earlier.values())))

    def _leave(self, ask: Ask) -> Reply[Rows]:
        """A reader leaves. It is sent its group if that is complete."""
        if not self._members.leave(ask):
            return Reply(self._members.group)
        self._changed.notify_all()
        return Reply(None)

    def _try(self, ask: Ask) -> tuple[Reply[Rows], bool]:
        """The answer at this moment, and whether there may soon be a better one."""
        group = self._members.group
        if ask.asks_status:
            return Reply(None, status=self._status()), False
        if ask.quits:
            return self._leave(ask), False
        if self._members.has_left(ask.session):
            return Reply(None), False
        if self._settled and ask.leaves:
            busy = self._over is None and self.commits.is_at_work(ask.commits)
            return Reply(group, settled=not busy, bound=self.commits.outcomes(ask.commits)), busy
        if (reply := self._reply_at_the_end(ask)) is not None:
            return reply, False
        if group is not None and 0 < ask.generation < group.generation:
            return Reply(group, (Refused(Refusal.STALE, group.generation),)), False
        if self._over is not None:
            raise self._over
        sequencer = self._sequencer
        if sequencer is None:
            return Reply(None, reason="the task of the feed, which is being started"), True
        refused = self._admit(ask, sequencer)
        if isinstance(refused, str):
            return Reply(None, reason=refused), True
        if refused is not None:
            return Reply(self._members.group, (refused,)), False
        if ask.generation == 0 and (missing := self._members.missing):
            return Reply(None, reason=missing), True
        self._acknowledge(ask)
        bound = self.commits.submit([each for each in ask.commits if self._may_bind(each)], self._progress.lagging)
        if self.commits.wants_checkpoint(ask.commits):
            self._want_checkpoint()
        reply, more = self._answer(ask, sequencer)
        more = (more or len(bound) < len(ask.commits)) and not (reply.answers or bound)
        return msgspec.structs.replace(reply, bound=bound, remarks=self.commits.remarks(ask.commits)), more

    def _may_bind(self, commit: Commit) -> bool:
        """Whether other ranks have acknowledged what it covers, or have had the time to do so."""
        if self.commits.is_known(commit) or not self._progress.lagging(commit.step):
            self._deferred.pop(commit.origin, None)
            return True
        return time.monotonic() - self._deferred.setdefault(commit.origin, time.monotonic()) > SLOW_SECONDS

    def _reply_at_the_end(self, ask: Ask) -> Reply[Rows] | None:
        """Rule 4."""
        if not self._settled:
            return None
        batches = self._batches if self._sequencer is None else self._sequencer.batches
        return None if batches is None else end_for(ask, batches)

    def _answer(self, ask: Ask, sequencer: Sequencer[Rows]) -> tuple[Reply[Rows], bool]:
        group = self._members.group
        if ask.leaves and not ask.commits:
            self._want_last_checkpoint(sequencer)
            return Reply(group, reason=self._waits_at_end(sequencer), settled=self._settled), not self._settled
        assert group is not None
        found = list(self._slices(ask, group, sequencer))
        there = tuple(answer for answer in found if not isinstance(answer, NotYet))
        for answer in there:
            if isinstance(answer, Slice):
                self._progress.on_given(ask.rank, answer.batch + 1)
        missing = next((answer.reason for answer in found if isinstance(answer, NotYet)), "")
        if missing and not sequencer.ready:
            missing = self._members.missing or sequencer.slow_ranks
        # a rank that has more than it has taken asks ahead of its loop
        has_none = bool(ask.wanted) and ask.wanted[0] == ask.taken and not there
        self._waiting[ask.rank] = missing if has_none else ""
        return Reply(group, there, missing), bool(ask.wanted) and not there

    def _slices(self, ask: Ask, group: RankGroup, sequencer: Sequencer[Rows]) -> Iterator[Answer[Rows]]:
        """Answers to what is wanted, up to the slice that makes the reply large, or the first batch that is not there:
        what follows is asked for again."""
        size, row_bytes = 0.0, sequencer.row_bytes
        for batch in ask.wanted:
            answer = sequencer.read(group.generation, ask.rank, batch, ask.max_ahead)
            yield answer
            if isinstance(answer, NotYet):
                return
            if isinstance(answer, Slice):
                size += sum(rows.num_rows for rows in answer.rows) * row_bytes
                if size >= REPLY_BYTES:
                    return

    def _waits_at_end(self, sequencer: Sequencer[Rows]) -> str:
        return "a checkpoint that covers the end" if sequencer.is_finished else sequencer.slow_ranks

    def _want_last_checkpoint(self, sequencer: Sequencer[Rows]) -> None:
        """Ask for the checkpoint that covers the end of the feed."""
        if sequencer.is_finished and not sequencer.is_settled:
            self._want_checkpoint()

    def _want_checkpoint(self) -> None:
        now = time.monotonic()
        if now - self._asked_at > ASK_AGAIN:
            self._asked_at = now
            self.ask_checkpoint()

    def _acknowledge(self, ask: Ask) -> None:
        sequencer, group = self._sequencer, self._members.group
        if sequencer is None or group is None:
            return
        before = (sequencer.ready, sequencer.oldest, sequencer.awaited, sequencer.is_finished)
        if not sequencer.acknowledge(group.generation, ask.rank, ask.taken, ask.saved, ask.done):
            return
        (self._done.add if ask.done else self._done.discard)(ask.rank)
        self._progress.on_taken(group, ask.rank, ask.taken)
        self._reached[ask.rank] = max(self._reached.get(ask.rank, 0), ask.taken, *ask.wanted)
        is_new = group.generation >= self._generation  # no attempt before this one has given it anything
        self._earlier.setdefault(ask.rank, group.start if is_new else self._reached[ask.rank])
        self._paces.setdefault(ask.rank, RankPace()).note(time.monotonic(), ask.taken, ask.waited)
        if before != (sequencer.ready, sequencer.oldest, sequencer.awaited, sequencer.is_finished) or self._full:
            self._wake()
            self._changed.notify_all()
            self._want_last_checkpoint(sequencer)

    def _admit(self, ask: Ask, sequencer: Sequencer[Rows]) -> Refused | str | None:
        """Rule 2. Why the rank may not read, what it waits for, or None."""
        was_assigned = self._members.is_assigned(ask)
        missing = self._members.missing
        joined = self._members.join(ask, self._generation)
        if isinstance(joined, RankGroup):
            answer = sequencer.join(joined, ask.taken)
            if isinstance(answer, Refused):
                return answer
            self._members.start(joined, ask)
            self._paces, self._waiting, self._done = {}, {}, set()
            self._reached, self._earlier = {}, {}
            self._wake()
        elif joined is not None:
            if missing != self._members.missing:
                self._changed.notify_all()
            return joined
        # who waits for other ranks hears at its next request which are missing: all woken for each that comes are N²
        if joined is not None or (not was_assigned and self._members.is_complete):
            self._changed.notify_all()
        return None
