"""The thread that asks for one rank's slices ahead of their use.

Rules:

1. The thread sends requests, the user's thread takes. What was taken is acknowledged at once while a request is open;
   else with the next request, or within ``ACK_SECONDS``: a quick loop does not pay for a message a batch. The
   user's thread never waits for the feed server but for the batch that it wants.
2. A link that breaks is tried again for ever: a restart of the feed's task, or of the whole engine, is a pause. How
   long to wait is the user's choice, batch by batch.
3. A model is bound while the training goes on. Till the answer comes the rank acknowledges no more than the model has
   seen, so that the checkpoint that the model is bound to holds what comes next.
4. At the end the thread goes on until the rank may leave: when its models are bound, and then a checkpoint says that
   everything was read. A rank that commits models, or fetches ahead of its model, leaves when it is closed: it may
   fail yet. What is committed when it may leave needs no checkpoint: the thread writes it down itself (``finish``),
   until the reader is closed.
5. A reader that ends before its group is complete gives its rank back: when it is closed, when its user has waited too
   long, and when it cannot go on. A user who then waits again comes as a new reader.
6. What goes wrong on the thread is raised at the next batch, at ``commit`` and at ``flush``. A refused model is
   raised once, at whichever of them comes first, or when all is closed.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import pyarrow as pa
from msgspec.structs import replace

from ...engine.core.errors import ConfigurationError, InternalError, PenstockError
from ...engine.core.state_machine import StateMachine
from ...engine.feed.cursor import ReadCursor
from ...engine.feed.messages import FORGET, Ask, Commit, Reply, Slice
from .link import BrokenFeedLinkError, FeedLink
from .models import mismatch

POLL = 0.25
"""Seconds that a request may stay open: so old is what a rank knows of what it waits for."""
ACK_SECONDS = 0.05
"""So long a batch may have been taken without an acknowledgement."""
IDLE_SECONDS = 2.0
"""A rank that wants nothing acknowledges as often: the feed may have been restored, and wait for it."""
LEAST_AHEAD, MOST_AHEAD, AHEAD_BYTES = 4, 32, 4 << 20
"""Batches that are fetched ahead if the user does not say how many: as many as have so many bytes, within bounds."""
FADING = 0.9
"""A slice counts with its bytes, or with this part of what the one before counted with, if that is more."""
WANTED_AT_ONCE = 1024
"""Batches that one request names, however many are fetched ahead."""
PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two tries to reach the feed."""
WARN_SECONDS = 60.0
"""After so long without reaching it, and then as often, a line of the log says so."""

_log = logging.getLogger(__name__)


class FetchState(Enum):
    """How far a rank has come."""

    JOINING = "joining"
    """It asks for its rank, and its group is not complete."""
    GIVING_BACK = "giving its rank back"
    """Its user has waited too long for the group, and does not wait now (rule 5)."""
    ABSENT = "absent"
    """That was sent."""
    READING = "reading"
    LEAVING = "leaving"
    """Everything was taken; it stays until the feed lets it go (rule 4)."""
    SETTLED = "settled"
    """It may leave, and asks nobody any more."""
    FAILED = "failed"
    """The thread has ended with an error, which its user gets."""
    CLOSED = "closed"


_ENDS = {FetchState.FAILED, FetchState.CLOSED}
LEGAL_FETCH_MOVES: Mapping[FetchState, frozenset[FetchState]] = {
    FetchState.JOINING: frozenset({FetchState.GIVING_BACK, FetchState.READING, *_ENDS}),
    FetchState.GIVING_BACK: frozenset({FetchState.JOINING, FetchState.ABSENT, FetchState.READING, *_ENDS}),
    FetchState.ABSENT: frozenset({FetchState.JOINING, *_ENDS}),
    FetchState.READING: frozenset({FetchState.LEAVING, *_ENDS}),
    FetchState.LEAVING: frozenset({FetchState.SETTLED, *_ENDS}),
    FetchState.SETTLED: frozenset({FetchState.CLOSED}),
    FetchState.FAILED: frozenset({FetchState.CLOSED}),
    FetchState.CLOSED: frozenset(),
}
_WITHOUT_GROUP = frozenset({FetchState.JOINING, FetchState.GIVING_BACK, FetchState.ABSENT})
_GONE = frozenset({FetchState.SETTLED, FetchState.FAILED, FetchState.CLOSED})
"""The thread asks for nothing more."""


class Prefetcher:
    """See the module's rules. ``name``: of the feed. ``ahead``: batches beyond the one that is wanted next; None:
    as their size suggests. ``ahead_bytes``: as many batches as have so many bytes. ``commits``: what another group was
    asked for and may not have done; each is known by its mark. Asked for from the first message on: it says which
    batches the feed must still have. ``finish``: carries out what is committed when the feed has been let go; "", or
    why it is refused."""

    def __init__(
        self,
        link: FeedLink,
        name: str,
        rank: int,
        ranks: int,
        start: int,
        ahead: int | None,
        max_ahead: int | None = None,
        ahead_bytes: int | None = None,
        copies: int = 1,
        commits: Sequence[Commit] = (),
        finish: Callable[[Commit], str] = lambda commit: "",
    ) -> None:
        self._link = link
        self._finish = finish
        self._who = f"rank {rank} of {ranks}"
        self._name = name
        self._ahead = ahead if ahead is not None else LEAST_AHEAD if ahead_bytes is None else 0
        #: how many bytes are fetched ahead, and bounds of the batches; None: their number is given
        self._fits: tuple[int, int, int] | None = None
        if ahead is None:
            default = (AHEAD_BYTES, LEAST_AHEAD, MOST_AHEAD)
            self._fits = default if ahead_bytes is None else (ahead_bytes, 0, WANTED_AT_ONCE)
        #: bytes that a slice is taken for
        self._width = 1.0
        #: seconds that the loop has waited for batches
        self._waited = 0.0
        #: since when it waits for one
        self._waits_since: float | None = None
        #: whether a request is open; and whether something was taken that was not acknowledged
        self._asking = self._unsent = False
        self._changed = threading.Condition()
        self._ask = Ask(uuid.uuid4().hex, rank, ranks, start, 0, start, start, max_ahead=max_ahead, copies=copies)
        #: None until the group is known
        self._cursor: ReadCursor[pa.RecordBatch] | None = None
        self._reason = "its first answer"
        self._error: BaseException | None = None
        self._machine = StateMachine(f"the reader of {self._who}", LEGAL_FETCH_MOVES, FetchState.JOINING)
        #: since when the feed cannot be reached, or when that was last logged
        self._unreachable_since: float | None = None
        #: models that are to be bound, by name; and what went wrong with others
        self._commits: dict[str, Commit] = {}
        #: what comes for a name when what is asked for it now has ended: a model is forgotten, and bound anew
        self._queued: dict[str, list[Commit]] = {}
        self._refused: list[str] = []
        #: at the end such a rank stays until it is closed: it may commit its last model
        self._commits_models = bool(commits)
        for commit in commits:
            self._put(commit)
        self._thread = threading.Thread(target=self._run, name=f"penstock-feed-{name}-{rank}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ the user's thread

    @property
    def _state(self) -> FetchState:
        return self._machine.state

    @property
    def next_batch(self) -> int:
        """The batch that comes next."""
        return self._ask.taken

    @property
    def batches(self) -> int | None:
        """How many there are, once known."""
        return None if self._cursor is None else self._cursor.batches

    def take(self, timeout: float | None, *, stays: bool = False) -> Slice[pa.RecordBatch] | None:
        """The next slice; None at the end. ``stays``: the model has yet to see the last one when the end comes, so a
        rank does not leave before it is closed. Raises TimeoutError, or what has gone wrong."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._return()
            while (found := self._next()) is None:
                self._raise_refused()
                if self._error is not None:
                    raise self._error
                if self._cursor is not None and self._cursor.is_at_end:
                    if not (self._commits_models or stays):
                        self._leave()
                    return None
                if self._state is FetchState.CLOSED:
                    raise RuntimeError(f"the reader of {self._who} is closed")
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    if self._state is FetchState.JOINING:
                        self._machine.move(FetchState.GIVING_BACK)
                    self._changed.notify_all()
                    self._end_wait()
                    raise TimeoutError(
                        f"{self._who} has waited {timeout:g} s for batch {self.next_batch} of feed {self._name!r}: it "
                        f"waits for {self._reason}"
                    )
                if self._waits_since is None:
                    self._waits_since = time.monotonic()
                self._changed.wait(left)
            self._end_wait()
            self._ask = replace(self._ask, taken=found.batch + 1)
            message = self._acknowledgement() if self._asking else None
            if message is None and (not self._unsent or self._wanted()):
                self._unsent = True
                self._changed.notify_all()
        if message is not None:
            self._link.notify(message)
        return found

    def _end_wait(self) -> None:
        if self._waits_since is not None:
            self._waited, self._waits_since = self._waited + time.monotonic() - self._waits_since, None

    def _return(self) -> None:
        """The user waits again, maybe after some time."""
        if self._state in (FetchState.GIVING_BACK, FetchState.ABSENT):
            self._machine.move(FetchState.JOINING)
            self._changed.notify_all()

    def _next(self) -> Slice[pa.RecordBatch] | None:
        return None if self._cursor is None else self._cursor.take()

    def fetched(self, most: int) -> Sequence[Slice[pa.RecordBatch]]:
        """So many slices at most that come next and are there. They count as not taken."""
        with self._changed:
            return () if self._cursor is None else self._cursor.next_arrived(most)

    def _acknowledgement(self) -> Ask:
        """What is acknowledged (rule 3)."""
        queued = [commit for each in self._queued.values() for commit in each]
        bounds = [commit.step for commit in (*self._commits.values(), *queued) if commit.step != FORGET]
        taken, saved = (min([step, *bounds]) for step in (self._ask.taken, self._ask.saved))
        commits = tuple(self._commits.values())
        waited = self._waited if self._waits_since is None else self._waited + time.monotonic() - self._waits_since
        return replace(self._ask, taken=taken, saved=saved, commits=commits, waited=waited)

    def commit(self, commit: Commit) -> None:
        """Bind a model, or forget it."""
        model = commit.model
        with self._changed:
            if self._error is not None:
                raise self._error
            self._commits_models = True
            commit = replace(commit, last=self.batches is not None and commit.step >= self.batches)
            asked = [self._commits[model], *self._queued.get(model, ())] if model in self._commits else []
            if asked and (asked[-1].step == commit.step or FORGET not in (asked[-1].step, commit.step)):
                if refusal := mismatch(asked[-1], commit):
                    self._refused.append(refusal)
                return
            self._put(replace(commit, origin=uuid.uuid4().hex))
            self._changed.notify_all()

    def _put(self, commit: Commit) -> None:
        if commit.model in self._commits:
            self._queued.setdefault(commit.model, []).append(commit)
        else:
            self._commits[commit.model] = commit

    @property
    def unanswered(self) -> list[Commit]:
        """What was asked for, and may not have been done."""
        with self._changed:
            return [*self._commits.values(), *(each for queued in self._queued.values() for each in queued)]

    def flush(self, timeout: float | None) -> None:
        """Wait until all commits have ended. Raises ConfigurationError if one was refused, TimeoutError."""
        with self._changed:
            ended = self._changed.wait_for(lambda: not self._commits or self._error is not None, timeout)
            self._raise_refused()
            if self._error is not None and self._commits:
                raise self._error
            waits_for = "a checkpoint" if self._is_connected else self._reason
        if not ended:
            raise TimeoutError(f"{self._who} has waited {timeout:g} s for commits of models: it waits for {waits_for}")

    @property
    def _is_connected(self) -> bool:
        """Whether the feed knows what the rank wants: all ranks have come, and it can be reached."""
        return self._cursor is not None and self._unreachable_since is None

    def raise_refused(self) -> None:
        """Raises ConfigurationError if models were refused and that was not raised yet."""
        with self._changed:
            self._raise_refused()

    def _raise_refused(self) -> None:
        refused, self._refused = self._refused, []
        if refused:
            remedy = "commit each model once, at the step that it has seen"
            raise ConfigurationError("; ".join(refused), remedy, self._name)

    def refusals(self) -> list[str]:
        """Those models, and why; they are not raised any more."""
        with self._changed:
            refused, self._refused = self._refused, []
            return refused

    @property
    def unbound(self) -> list[str]:
        """Models of which it is not known whether they are bound."""
        return [commit.model for commit in self.unanswered if commit.step != FORGET]

    def save(self, before: int) -> None:
        """No batch before this one is needed ever again."""
        with self._changed:
            self._ask = replace(self._ask, saved=max(self._ask.saved, min(before, self._ask.taken)))
            self._changed.notify_all()

    def _leave(self) -> None:
        """Everything was taken, and nothing is needed again."""
        self._ask = replace(self._ask, saved=self._ask.taken)
        if self._state is FetchState.READING:
            self._machine.move(FetchState.LEAVING)
        self._changed.notify_all()

    def close(self, timeout: float, has_seen_all: bool = True) -> bool:
        """End the thread; at the end of the feed, when the rank may go. False: not within ``timeout`` seconds.
        ``has_seen_all``: nothing that was taken is needed again; else a rank that took the last batch has not ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._may_close(has_seen_all), timeout)
            may_go = self._state is not FetchState.LEAVING
            parting = self._last_message(done=has_seen_all)
            if self._state is not FetchState.CLOSED:
                self._machine.move(FetchState.CLOSED)
            self._changed.notify_all()
        if parting is not None:
            self._link.notify(parting)
        self._link.close()
        self._thread.join(2 * POLL)
        return may_go

    def _last_message(self, done: bool) -> Ask | None:
        """The last message: that its rank is free, or what was not acknowledged, lest it counts as slow; of a loop that
        has not heard of the end, and may be there, that it is done."""
        if self._cursor is None:
            return replace(self._ask, quits=True)
        done = done and not self._cursor.is_at_end
        if self._error is not None or not (self._unsent or done):
            return None
        return replace(self._acknowledgement(), done=done)

    def _may_close(self, has_seen_all: bool) -> bool:
        reader = self._cursor
        at_end = reader is not None and reader.is_at_end  # perhaps only now: an answer may come while models are bound
        if has_seen_all and at_end and self._error is None and self._state is FetchState.READING:
            self._leave()
        if self._state in (FetchState.FAILED, FetchState.CLOSED):
            return True
        return self._state is not FetchState.LEAVING and not self._commits

    @property
    def waits_for(self) -> str:
        """What the rank waits for, by the last answer."""
        return self._reason

    # ------------------------------------------------------------------ its own

    def _run(self) -> None:
        pause = PAUSE
        try:
            while (ask := self._next_request()) is not None:
                pause = self._request(ask, pause) if self._asking else self._notify(ask, pause)
            while (commit := self._next_to_finish()) is not None:
                refusal = self._finish(commit)
                with self._changed:
                    self._end_commit(commit.model, refusal)
                    self._changed.notify_all()
        except Exception as error:
            self._fail(error)
            self._take_leave()

    def _next_to_finish(self) -> Commit | None:
        """What the thread is to write down itself, as soon as there is something; None: nothing more."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._commits) or self._state is not FetchState.SETTLED)
            return next(iter(self._commits.values())) if self._state is FetchState.SETTLED else None

    def _notify(self, ask: Ask, pause: float) -> float:
        self._link.notify(ask)
        return pause

    def _request(self, ask: Ask, pause: float) -> float:
        """Send a request, and wait if the link is broken: for ``pause`` seconds. The pause of the next time."""
        try:
            reply = self._link.ask(ask, POLL)
        except BrokenFeedLinkError as error:
            with self._changed:
                self._renew_session(ask)
            self._set_reason(str(error))
            self._warn(error)
            self._wait(pause)
            return min(2 * pause, LONGEST_PAUSE)
        self._unreachable_since = None
        with self._changed:
            self._on_reply(reply)
            self._renew_session(ask)
        return PAUSE

    def _warn(self, error: BrokenFeedLinkError) -> None:
        """A user who waits for ever should know for what."""
        now = time.monotonic()
        self._unreachable_since = now if self._unreachable_since is None else self._unreachable_since
        if now - self._unreachable_since >= WARN_SECONDS:
            self._unreachable_since = now
            _log.warning("%s of feed %r has waited %g s for %s", self._who, self._name, WARN_SECONDS, error)

    def _renew_session(self, ask: Ask) -> None:
        """After a message that it leaves, sent or lost, the rank comes back only under another session."""
        if ask.quits and self._cursor is None:
            if self._state is FetchState.GIVING_BACK:
                self._machine.move(FetchState.ABSENT)
            self._ask = replace(self._ask, session=uuid.uuid4().hex)

    def _next_request(self) -> Ask | None:
        """The next request, as soon as there is one, or notification, if not ``_asking``; None: nothing more."""
        with self._changed:
            self._asking = False
            idle = False
            while self._state not in _GONE:
                if self._state is FetchState.GIVING_BACK:
                    self._asking = True
                    return replace(self._ask, quits=True)
                if self._state is FetchState.ABSENT:
                    self._changed.wait()
                    continue
                wanted, leaving = self._wanted(), self._state is FetchState.LEAVING
                if wanted or leaving or self._commits or self._cursor is None:
                    self._asking, self._unsent = True, False
                    return replace(self._acknowledgement(), wanted=wanted, leaves=leaving)
                if self._unsent and idle:
                    self._unsent = False
                    return self._acknowledgement()
                idle = not self._changed.wait(ACK_SECONDS if self._unsent else IDLE_SECONDS)
                if idle and not self._unsent and self._state is not FetchState.CLOSED:
                    self._asking = True
                    return self._acknowledgement()
            return None

    def _wanted(self) -> tuple[int, ...]:
        reader = self._cursor
        if reader is None or self._state is not FetchState.READING:
            return ()
        wanted = reader.wanted()
        urgent = bool(wanted) and (wanted[0] == reader.next_batch or 2 * len(wanted) > self._ahead)
        return tuple(wanted[:WANTED_AT_ONCE]) if urgent else ()

    def _on_reply(self, reply: Reply[pa.RecordBatch]) -> None:
        group = reply.group
        if self._cursor is None and (group is not None or reply.answers):
            # a refusal has the newest group, which may be another than the one that was named
            known = self._ask.group(group.generation if group else 0)
            self._cursor = ReadCursor(known, self._ask.rank, self._ahead)
            self._ask = replace(self._ask, generation=known.generation)
            if self._state is not FetchState.CLOSED:
                self._machine.move(FetchState.READING)
        for answer in reply.answers:
            assert self._cursor is not None
            self._cursor.on_answer(answer)
            if isinstance(answer, Slice) and self._fits is not None:
                self._fit(answer, *self._fits)
        for model, refusal in reply.bound:
            self._end_commit(model, refusal)
        for model, words in reply.remarks:
            _log.warning(
                "model %r of feed %r covers batches that not all ranks have taken: %s", model, self._name, words
            )
        self._reason = reply.reason or self._reason
        if reply.settled and self._cursor is not None and self._cursor.is_at_end:
            self._leave()
        if reply.settled and self._state is FetchState.LEAVING:
            self._machine.move(FetchState.SETTLED)
        self._changed.notify_all()

    def _fit(self, found: Slice[pa.RecordBatch], most_bytes: int, least: int, most: int) -> None:
        """Fetch as far ahead as the sizes of the slices suggest."""
        assert self._cursor is not None
        self._width = max(sum(each.nbytes for each in found.rows), FADING * self._width, 1.0)
        self._ahead = self._cursor.ahead = max(least, min(most, int(most_bytes / self._width)))

    def _end_commit(self, model: str, refusal: str) -> None:
        commit = self._commits.pop(model, None)
        if queued := self._queued.pop(model, []):
            self._commits[model] = queued.pop(0)
            if queued:
                self._queued[model] = queued
        if refusal:
            self._refused.append(refusal)
        elif commit is not None and commit.step != FORGET:
            self._ask = replace(self._ask, saved=max(self._ask.saved, commit.step))

    def _set_reason(self, reason: str) -> None:
        with self._changed:
            self._reason = reason

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._state is FetchState.CLOSED, seconds)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            internal = InternalError(f"{self._who} cannot fetch batches any more: {type(error).__name__}: {error}")
            internal.__cause__ = error
            error = internal
        with self._changed:
            error.add_note(f"({self._who} of feed {self._name!r}, at batch {self._ask.taken})")
            self._error = error
            if self._state is not FetchState.CLOSED:
                self._machine.move(FetchState.FAILED)
            self._changed.notify_all()

    def _take_leave(self) -> None:
        """The thread ends: others need not wait for this rank."""
        try:
            if self._cursor is None:
                self._link.notify(replace(self._ask, quits=True))
            self._link.close()
        except Exception as error:  # the error itself is raised to the user
            _log.info("%s of feed %r cannot send that it leaves: %s", self._who, self._name, error)

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        with self._changed:
            state, known = self._state, self._cursor is not None
            if known if state in _WITHOUT_GROUP else not known and state not in (FetchState.FAILED, FetchState.CLOSED):
                raise AssertionError(f"{self._who} is {state.value}, and its group is {'' if known else 'not '}known")
            if state in (FetchState.LEAVING, FetchState.SETTLED) and self._ask.saved != self._ask.taken:
                raise AssertionError(f"{self._who} is {state.value}, and needs batches from {self._ask.saved} on")
            if (state is FetchState.FAILED) and self._error is None:
                raise AssertionError(f"{self._who} has failed without an error")
