"""Where the ranks of one feed and its operator meet, in the operator's process. Safe to use from several threads.

Rules:

1. The operator comes and goes with its attempts; the desk stays, so that ranks in this process see nothing of it. In
   another process the new desk learns the world from the first rank that asks.
2. Who sits in the world, and who begins a newer one, the seats decide (``feed_seats``). No batch is handed out before
   every seat has been taken once.
3. Who waits is told why: for ranks to come, for a rank that is slow, for rows of the flow, for the feed's task.
4. When the job is over everybody who waits is told so at once, with the reason. But of a feed that has been read to its
   end whoever needs nothing more hears just that, whenever it comes: the last ranks may ask when the job is over.
5. A checkpoint that was given up may have found no place because the end of one source is on its way while others are
   held: as many rows more as there is room for may come before the next one. So it finds a place in the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from ..core.errors import ConfigurationError, PenstockError
from ..core.identity import Attempt, CheckpointId
from ..core.operator import do_nothing
from .batch_digests import DigestRun, not_recorded
from .binding import Bindings
from .messages import Ask, Commit, NotYet, Refusal, Refused, Reply, Slice, World, end_for
from .ranks import RankBook
from .seats import Seats, first_generation
from .sequencer import Sequencer
from .sequencer_state import Place, SequencerState

Rows: TypeAlias = pa.RecordBatch

_NO_ATTEMPT = Attempt(0, 0)

SLOW_SECONDS = 5.0
"""So long a commit waits till other ranks say that they have taken what it covers: they do so within a moment, and
within two or three seconds where the feed has begun anew."""
ASK_AGAIN = 2.0
"""Seconds after which the checkpoint that lets the ranks go is asked for again."""


class FeedDesk:
    """See the module's rules. ``ask_checkpoint`` wants one of the job, from any thread."""

    def __init__(self, name: str, ask_checkpoint: Callable[[], None] = do_nothing) -> None:
        self.name = name
        self.ask_checkpoint = ask_checkpoint
        #: where digests of batches go; called from the thread that writes
        self.record: Callable[[DigestRun, int], None] = not_recorded
        self._changed = threading.Condition()
        self._sequencer: Sequencer[Rows] | None = None
        self._wake: Callable[[], None] = do_nothing
        #: the checkpoint that is on its way
        self._expected: CheckpointId | None = None
        self._full = False
        #: rows before this position are taken though there is no room (rule 5)
        self._allowed = 0
        self._seats = Seats()
        self._ranks = RankBook()
        #: commits that wait for other ranks, by origin: since when
        self._held: dict[str, float] = {}
        #: the first generation that the attempt may give
        self._generation = 1
        self._over: PenstockError | None = None
        #: how many batches there were, when all have been read
        self._batches: int | None = None
        #: is told of that, on the operator's thread
        self.ended: Callable[[int], None] = lambda batches: None
        self._asked_at = float("-inf")
        self.bindings = Bindings(self._bound)

    # ------------------------------------------------------------------ the operator

    def open(
        self,
        sequencer: Sequencer[Rows],
        wake: Callable[[], None],
        attempt: Attempt = _NO_ATTEMPT,
        ranks: RankBook | None = None,
    ) -> None:
        """An attempt of the operator begins. ``ranks``: what its checkpoint knows of them; this desk may know more."""
        with self._changed:
            self._sequencer, self._wake = sequencer, wake
            self._generation = max(1, first_generation(attempt))
            self._seats.opened()
            self._expected, self._full, self._allowed = None, False, 0
            self.bindings.opened()
            if self._ranks.world is None and ranks is not None:
                self._ranks = ranks
            if self._seats.world is not None:
                sequencer.join(self._seats.world, sequencer.oldest)
                for place in self._ranks.places:  # who is busy says nothing for a while
                    sequencer.acknowledge(place.generation, place.rank, place.taken, 0)
            self._changed.notify_all()

    def close(self, sequencer: Sequencer[Rows]) -> None:
        """It has ended."""
        with self._changed:
            if self._sequencer is not sequencer:
                return
            if sequencer.is_settled:
                self._batches = sequencer.batches
            self._sequencer, self._wake = None, do_nothing
            batches = self._batches
        if batches is not None:
            self.ended(batches)

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

    @property
    def takes_rows(self) -> bool:
        """Whether rows are welcome: there is room, or barriers stand behind them."""
        with self._changed:
            sequencer = self._sequencer
            if self._expected is not None or sequencer is None:
                return True
            return sequencer.ready or sequencer.position < self._allowed

    @property
    def is_full(self) -> bool:
        """Whether no further round should begin; again when half of the room is free, or no whole batch is left."""
        with self._changed:
            sequencer = self._sequencer
            if sequencer is None or sequencer.settings.ahead is None or sequencer.position < self._allowed:
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
        """Who does not read; "" if nobody is waited for."""
        with self._changed:
            sequencer = self._sequencer
            if sequencer is None or (sequencer.ready and not sequencer.ended) or sequencer.is_settled:
                return ""
            return (self._seats.missing or sequencer.slow_ranks) if not sequencer.is_finished else ""

    def expect(self, checkpoint: CheckpointId) -> None:
        """Barriers are on their way: what stands before them is taken."""
        with self._changed:
            self._expected = checkpoint if self._expected is None else max(self._expected, checkpoint)

    def give_up(self, checkpoint: CheckpointId) -> None:
        """They were given up."""
        with self._changed:
            if self._expected is not None and self._expected <= checkpoint:
                self._expected = None
                if (sequencer := self._sequencer) is not None:
                    self._allowed = sequencer.position + (sequencer.settings.ahead or 0)

    def state(self) -> tuple[SequencerState[Rows], Place] | None:
        """What a checkpoint that is cut here holds, and where that is."""
        with self._changed:
            if self._sequencer is None:
                return None
            places, untaken = self._ranks.places, self._ranks.untaken
            return replace(self._sequencer.state(), places=places, untaken=untaken), self._sequencer.place

    def cut(self, checkpoint: CheckpointId, place: Place, first: int) -> None:
        """The checkpoint was cut at ``place`` and holds the rows from position ``first`` on."""
        with self._changed:
            if (sequencer := self._sequencer) is not None:
                sequencer.note_cut(checkpoint, place)
                self.bindings.cut(checkpoint, sequencer.grid.batch_from(first))
            if self._expected is not None and self._expected <= checkpoint:
                self._expected, self._allowed = None, 0

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint stands in the log."""
        with self._changed:
            if self._sequencer is not None:
                self._sequencer.committed(checkpoint)
                self.bindings.committed(checkpoint)
                self._changed.notify_all()

    def _bound(self, commit: Commit, outcome: str | None) -> None:
        with self._changed:
            self.bindings.outcome(commit, outcome)
            self._changed.notify_all()

    # ------------------------------------------------------------------ the job

    def over(self, error: PenstockError) -> None:
        """The job is over; whoever still waits gets the error."""
        with self._changed:
            self._over = self._over or error
            self._changed.notify_all()

    # ------------------------------------------------------------------ the ranks

    def serve(self, ask: Ask, timeout: float) -> Reply[Rows]:
        """Take note of what a rank says, and answer it: as soon as there is something of what it wants, or it may go,
        or after ``timeout`` seconds. Raises the job's error when that is over."""
        until = time.monotonic() + timeout
        with self._changed:
            while True:
                reply, more = self._try(ask)
                left = until - time.monotonic()
                if not more or left <= 0:
                    return reply
                self._changed.wait(left)

    def hear(self, ask: Ask) -> None:
        """Take note of what a rank says; it wants no answer."""
        with self._changed:
            world = self._seats.world
            if ask.quits:
                self._part(ask)
            elif world is not None and ask.generation == world.generation and self._seats.holds(ask):
                self._acknowledge(ask)

    def lose(self, session: str) -> None:
        """Nothing of this reader is on its way, and nothing may come any more."""
        with self._changed:
            if self._seats.lose(session):
                self._changed.notify_all()

    def _part(self, ask: Ask) -> Reply[Rows]:
        """A reader leaves. It is told of its world if that is complete."""
        if not self._seats.leave(ask):
            return Reply(self._seats.world)
        self._changed.notify_all()
        return Reply(None)

    def _try(self, ask: Ask) -> tuple[Reply[Rows], bool]:
        """The answer at this moment, and whether there may soon be a better one."""
        world = self._seats.world
        if ask.quits:
            return self._part(ask), False
        if self._seats.has_left(ask.session):
            return Reply(None), False
        if self._settled and ask.leaves and not ask.commits:
            return Reply(world, settled=True), False
        if (reply := self._reply_at_the_end(ask)) is not None:
            return reply, False
        if world is not None and 0 < ask.generation < world.generation:
            return Reply(world, (Refused(Refusal.STALE, world.generation),)), False
        if self._over is not None:
            raise self._over
        sequencer = self._sequencer
        if sequencer is None:
            return Reply(None, reason="the task of the feed, which is being started"), True
        refused = self._admit(ask, sequencer)
        if isinstance(refused, str):
            return Reply(None, reason=refused), True
        if refused is not None:
            return Reply(self._seats.world, (refused,)), False
        if ask.generation == 0 and (missing := self._seats.missing):
            return Reply(None, reason=missing), True
        self._acknowledge(ask)
        bound = self.bindings.note([each for each in ask.commits if self._may_bind(each)], self._ranks.behind)
        if self.bindings.wants_checkpoint(ask.commits):
            self._want_checkpoint()
        reply, more = self._answer(ask, sequencer)
        more = (more or len(bound) < len(ask.commits)) and not (reply.answers or bound)
        return replace(reply, bound=bound, remarks=self.bindings.remarks(ask.commits)), more

    def _may_bind(self, commit: Commit) -> bool:
        """Whether other ranks have taken what it covers, or have had the time to say so."""
        if self.bindings.is_known(commit) or not self._ranks.behind(commit.step):
            self._held.pop(commit.origin, None)
            return True
        return time.monotonic() - self._held.setdefault(commit.origin, time.monotonic()) > SLOW_SECONDS

    def _reply_at_the_end(self, ask: Ask) -> Reply[Rows] | None:
        """Rule 4."""
        if not self._settled or ask.commits:
            return None
        batches = self._batches if self._sequencer is None else self._sequencer.batches
        return None if batches is None else end_for(ask, batches)

    def _answer(self, ask: Ask, sequencer: Sequencer[Rows]) -> tuple[Reply[Rows], bool]:
        world = self._seats.world
        if ask.leaves and not ask.commits:
            self._let_go(sequencer)
            return Reply(world, reason=self._why_stay(sequencer), settled=self._settled), not self._settled
        assert world is not None
        found = [sequencer.read(world.generation, ask.rank, batch, ask.max_ahead) for batch in ask.wanted]
        there = tuple(answer for answer in found if not isinstance(answer, NotYet))
        for answer in there:
            if isinstance(answer, Slice):
                self._ranks.handed(ask.rank, answer.batch + 1)
        missing = next((answer.reason for answer in found if isinstance(answer, NotYet)), "")
        if missing and not sequencer.ready:
            missing = self._seats.missing or sequencer.slow_ranks
        return Reply(world, there, missing), bool(ask.wanted) and not there

    def _why_stay(self, sequencer: Sequencer[Rows]) -> str:
        return "a checkpoint that covers the end" if sequencer.is_finished else sequencer.slow_ranks

    def _let_go(self, sequencer: Sequencer[Rows]) -> None:
        """Ask for the checkpoint that says that everything was read."""
        if sequencer.is_finished and not sequencer.is_settled:
            self._want_checkpoint()

    def _want_checkpoint(self) -> None:
        now = time.monotonic()
        if now - self._asked_at > ASK_AGAIN:
            self._asked_at = now
            self.ask_checkpoint()

    def _acknowledge(self, ask: Ask) -> None:
        sequencer, world = self._sequencer, self._seats.world
        if sequencer is None or world is None:
            return
        before = (sequencer.ready, sequencer.oldest, sequencer.awaited, sequencer.is_finished)
        if not sequencer.acknowledge(world.generation, ask.rank, ask.taken, ask.saved):
            return
        self._ranks.heard(world, ask.rank, ask.taken)
        if before != (sequencer.ready, sequencer.oldest, sequencer.awaited, sequencer.is_finished) or self._full:
            self._wake()
            self._changed.notify_all()
            self._let_go(sequencer)

    def _admit(self, ask: Ask, sequencer: Sequencer[Rows]) -> Refused | str | None:
        """Rule 2. Why the rank may not read, for what it waits, or None."""
        sat = self._seats.holds(ask)
        said = self._seats.missing
        claimed = self._seats.claim(ask, self._generation)
        if isinstance(claimed, World):
            answer = sequencer.join(claimed, ask.taken)
            if isinstance(answer, Refused):
                return answer
            self._seats.begin(claimed, ask)
            self._wake()
        elif claimed is not None:
            if said != self._seats.missing:
                self._changed.notify_all()
            return claimed
        if not sat or claimed is not None:
            self._changed.notify_all()
        return None


class FeedDesks:
    """The desks of this process, by the UUID of the job and their name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._desks: dict[tuple[str, str], FeedDesk] = {}

    def begin(self, job: str, name: str, ask_checkpoint: Callable[[], None], called: str = "") -> FeedDesk:
        """A new desk, in place of one of an earlier run of the job, which people know as ``called``."""
        desk = FeedDesk(name, ask_checkpoint)
        with self._lock:
            former = self._desks.get((job, name))
            self._desks[job, name] = desk
        if former is not None:
            former.over(
                ConfigurationError(f"job {called or job!r} was started anew", "take a handle of the new job's feed")
            )
        return desk

    def of(self, job: str, name: str) -> FeedDesk:
        """The desk of a feed; made when first asked for."""
        with self._lock:
            return self._desks.setdefault((job, name), FeedDesk(name))


DESKS = FeedDesks()
"""Operators and those who serve their ranks find each other here."""
