"""The thread that asks for one rank's slices ahead of their use.

Rules:

1. The thread asks, the user's thread takes, and tells at once what it has taken. It never waits for the other side but
   for the batch that it wants.
2. A link that breaks is tried again for ever: a restart of the feed's task, or of the whole engine, is a pause. How
   long to wait is the user's choice, batch by batch.
3. A model is bound while the training goes on. Till the answer comes the rank claims to have taken no more than the
   model has seen, so that the checkpoint that the model is bound to holds what comes next.
4. At the end the thread goes on until the rank may leave: when a checkpoint says that everything was read.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace

import pyarrow as pa

from ...engine.errors import ConfigurationError, PenstockError
from ...engine.feed_messages import Ask, Reply, Slice, World
from ...engine.feed_reader import FeedReader
from .link import BrokenFeedLinkError, FeedLink
from .models import FORGET, mismatch

POLL = 0.25
"""Seconds that a question may stay open: so old is what a rank knows of whom it waits for."""
PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two tries to reach the feed."""


class Intake:
    """See the module's rules. ``name``: of the feed. ``ahead``: batches beyond the one that is wanted next."""

    def __init__(self, link: FeedLink, name: str, rank: int, ranks: int, start: int, ahead: int) -> None:
        self._link = link
        self._who = f"rank {rank} of {ranks}"
        self._name = name
        self._ahead = ahead
        self._changed = threading.Condition()
        self._ask = Ask(uuid.uuid4().hex, rank, ranks, start, 0, start, start)
        #: None until the world is known
        self._reader: FeedReader[pa.RecordBatch] | None = None
        self._reason = "its first answer"
        self._error: BaseException | None = None
        self._leaving = self._closed = False
        #: the rank may go
        self.settled = False
        #: models that are to be bound, with what they have seen; and what went wrong with others
        self._commits: dict[str, int] = {}
        self._refused: list[str] = []
        #: at the end such a rank stays until it is closed: it may commit its last model
        self._commits_models = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-feed-{name}-{rank}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ the user's thread

    @property
    def next_batch(self) -> int:
        """The batch that comes next."""
        return self._ask.taken

    @property
    def batches(self) -> int | None:
        """How many there are, once known."""
        return None if self._reader is None else self._reader.batches

    def take(self, timeout: float | None) -> Slice[pa.RecordBatch] | None:
        """The next slice; None at the end. Raises TimeoutError, or what has gone wrong."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (found := self._next()) is None:
                if self._error is not None:
                    raise self._error
                if self._reader is not None and self._reader.is_at_end:
                    if not self._commits_models:
                        self._leave()
                    return None
                if self._closed:
                    raise RuntimeError(f"the reader of {self._who} is closed")
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(
                        f"{self._who} has waited {timeout:g} s for batch {self.next_batch} of feed {self._name!r}: it "
                        f"waits for {self._reason}"
                    )
                self._changed.wait(left)
            self._ask = replace(self._ask, taken=found.batch + 1)
            told = self._said()
            self._changed.notify_all()
        self._link.tell(told)
        return found

    def _next(self) -> Slice[pa.RecordBatch] | None:
        return None if self._reader is None else self._reader.take()

    def _said(self) -> Ask:
        """What is said of the place (rule 3)."""
        bounds = [step for step in self._commits.values() if step >= 0]
        return replace(self._ask, taken=min([self._ask.taken, *bounds]), commits=tuple(self._commits.items()))

    def commit(self, model: str, step: int) -> None:
        """Bind a model to so many batches, or forget it (``models.FORGET``)."""
        with self._changed:
            self._commits_models = True
            if self.settled:
                self._refused.append(f"model {model!r}: the whole feed has been read and let go, nothing is left of it")
                return
            if self._commits.get(model, step) != step:
                self._refused.append(mismatch(model, self._commits[model], step))
                return
            self._commits[model] = step
            self._changed.notify_all()

    def flush(self, timeout: float | None) -> None:
        """Wait until all commits have ended. Raises ConfigurationError if one was refused, TimeoutError."""
        with self._changed:
            ended = self._changed.wait_for(lambda: not self._commits or self._error is not None, timeout)
            refused, self._refused = self._refused, []
            if self._error is not None and self._commits:
                raise self._error
        if refused:
            remedy = "commit each model once, at the step that it has seen"
            raise ConfigurationError("; ".join(refused), remedy, self._name)
        if not ended:
            raise TimeoutError(f"{self._who} has waited {timeout:g} s for commits of models: it waits for a checkpoint")

    def save(self, before: int) -> None:
        """No batch before this one is needed ever again."""
        with self._changed:
            self._ask = replace(self._ask, saved=max(self._ask.saved, min(before, self._ask.taken)))
            self._changed.notify_all()

    def _leave(self) -> None:
        self._ask = replace(self._ask, saved=self._ask.taken)
        self._leaving = True
        self._changed.notify_all()

    def close(self, timeout: float) -> bool:
        """End the thread; at the end of the feed, when the rank may go. False: not within ``timeout`` seconds."""
        with self._changed:
            reader = self._reader
            if reader is not None and reader.is_at_end and self._error is None:
                self._leave()
            self._changed.wait_for(self._may_close, timeout)
            self._closed = True
            self._changed.notify_all()
        self._link.close()
        self._thread.join(2 * POLL)
        return self.settled or not self._leaving

    def _may_close(self) -> bool:
        if self._error is not None or self.settled:
            return True
        return not self._leaving and not self._commits

    @property
    def waits_for(self) -> str:
        """What the rank waits for, or was last told."""
        return self._reason

    # ------------------------------------------------------------------ its own

    def _run(self) -> None:
        pause = PAUSE
        while (ask := self._question()) is not None:
            try:
                reply = self._link.ask(ask, POLL)
                pause = PAUSE
                with self._changed:
                    self._note(reply)
            except BrokenFeedLinkError as error:
                self._say(str(error))
                self._wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            except Exception as error:
                self._fail(error)
                return

    def _question(self) -> Ask | None:
        """What to ask next, as soon as there is something; None: nothing more."""
        with self._changed:
            while not self._closed and not self.settled:
                wanted = self._wanted()
                if wanted or self._leaving or self._commits or self._reader is None:
                    return replace(self._said(), wanted=wanted, leaves=self._leaving)
                self._changed.wait()
            return None

    def _wanted(self) -> tuple[int, ...]:
        reader = self._reader
        if reader is None or self._leaving:
            return ()
        wanted = reader.wanted()
        urgent = bool(wanted) and (wanted[0] == reader.next_batch or 2 * len(wanted) > self._ahead)
        return tuple(wanted) if urgent else ()

    def _note(self, reply: Reply[pa.RecordBatch]) -> None:
        world = reply.world
        if self._reader is None and (world is not None or reply.answers):
            known = world or World(0, self._ask.ranks, self._ask.start)
            self._reader = FeedReader(known, self._ask.rank, self._ahead)
            self._ask = replace(self._ask, generation=known.generation)
        for answer in reply.answers:
            assert self._reader is not None
            self._reader.hear(answer)
        for model, refusal in reply.bound:
            self._end_commit(model, refusal)
        self._reason = reply.reason or self._reason
        self.settled = self.settled or (self._leaving and reply.settled)
        self._changed.notify_all()

    def _end_commit(self, model: str, refusal: str) -> None:
        step = self._commits.pop(model, FORGET)
        if refusal:
            self._refused.append(refusal)
        elif step >= 0:
            self._ask = replace(self._ask, saved=max(self._ask.saved, step))

    def _say(self, reason: str) -> None:
        with self._changed:
            self._reason = reason

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if isinstance(error, PenstockError):
                error.add_note(f"({self._who} of feed {self._name!r}, at batch {self._ask.taken})")
            self._error = error
            self._changed.notify_all()
