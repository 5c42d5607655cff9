"""One rank's side of a feed: which batch it wants next, and which answers it accepts. Pure.

Rules:

1. Batches are taken in order, each once, whatever the network doubles and however often the engine rewinds: what counts
   is the batch's number, and that does not depend on when or how it was made.
2. A batch that was given out is not safe before ``saved`` says so: till then another group may have to start before it.
3. Asked for are the next batch and ``ahead`` more.
4. To start after the end of the feed is an error, not the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic

from ..core.errors import ConfigurationError
from .messages import Answer, FeedEnded, NotYet, R, RankGroup, Refusal, Refused, Slice

REMEDIES = {
    Refusal.STALE: "end this process: other ranks have taken over",
    Refusal.UNKNOWN_GROUP: "join again",
    Refusal.CONTRADICTION: "give every change of the group a generation of its own, the same in all ranks",
    Refusal.GONE: "go on from a model that was committed, ps.run(…, resume_model=uri) and job.feed().resume(uri), or "
    "begin anew in another checkpoint folder; for ranks that come back, while the job runs, to what they have taken "
    "since their last start or commit, let the feed keep more of it, feed(…, keep=rows)",
}
"""What the user can do."""


@dataclass(slots=True)
class ReadCursor(Generic[R]):
    """See the module's rules."""

    group: RankGroup
    rank: int
    ahead: int = 0
    #: The next batch to be given out.
    next_batch: int = field(init=False)
    #: Every batch before this one is safe.
    saved_before: int = field(init=False)
    #: Whether the group has to be joined first.
    must_join: bool = True
    #: How many batches there are, once known.
    batches: int | None = None
    #: Why the next batch is not there, by the last answer.
    reason: str = ""
    #: Came early, or not taken yet.
    _arrived: dict[int, Slice[R]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.next_batch = self.saved_before = self.group.start

    @property
    def is_at_end(self) -> bool:
        """Whether every batch has been taken."""
        return self.batches is not None and self.next_batch >= self.batches

    def wanted(self) -> Sequence[int]:
        """The batches to ask for now."""
        wanted = range(self.next_batch, self.next_batch + 1 + self.ahead)
        return [batch for batch in wanted if batch not in self._arrived and not self._is_after_the_end(batch)]

    def _is_after_the_end(self, batch: int) -> bool:
        return self.batches is not None and batch >= self.batches

    def on_answer(self, answer: Answer[R]) -> None:
        """An answer of the sequencer, maybe late or for another rank."""
        match answer:
            case Refused(Refusal.UNKNOWN_GROUP):
                self.must_join = True
            case Refused(why, generation, batch):
                late = batch is not None and batch < self.next_batch
                if generation >= self.group.generation and not late:
                    raise self._error(why)
            case Slice(generation, rank, batch):
                mine = generation == self.group.generation and rank == self.rank
                if mine and batch >= self.next_batch:
                    self._arrived.setdefault(batch, answer)
            case NotYet(generation, batch, reason):
                if generation == self.group.generation and batch == self.next_batch:
                    self.reason = reason
            case FeedEnded(generation, _, batches):
                if generation == self.group.generation:
                    if batches < self.group.start:
                        raise self._starts_after_end(batches)
                    self.batches = batches

    def _error(self, why: Refusal) -> ConfigurationError:
        group = f", group {self.group.generation}," if self.group.generation else ""
        who = f"rank {self.rank} of {self.group.ranks}{group}"
        return ConfigurationError(f"{who} cannot read batch {self.next_batch} of the feed: {why.value}", REMEDIES[why])

    def _starts_after_end(self, batches: int) -> ConfigurationError:
        return ConfigurationError(
            f"rank {self.rank} of {self.group.ranks} starts at batch {self.group.start} of a feed that has {batches}",
            "load the state that was saved with this feed, over the same data, or begin without one",
        )

    def joined(self, answer: RankGroup | Refused) -> None:
        """The answer to our joining."""
        if isinstance(answer, Refused):
            self.on_answer(answer)
        elif answer == self.group:
            self.must_join = False

    def take(self) -> Slice[R] | None:
        """The next batch's slice, if it is there."""
        found = self._arrived.pop(self.next_batch, None)
        if found is not None:
            self.next_batch, self.reason = self.next_batch + 1, ""
        return found

    def next_arrived(self, most: int) -> Sequence[Slice[R]]:
        """The slices that come next, as far as they are there without a gap."""
        there = takewhile(self._arrived.__contains__, range(self.next_batch, self.next_batch + most))
        return [self._arrived[batch] for batch in there]

    def saved(self, before: int) -> None:
        """The model that has seen every batch before this one is safe."""
        if not self.saved_before <= before <= self.next_batch:
            raise ValueError(f"batch {before} is not between {self.saved_before} and {self.next_batch}")
        self.saved_before = before
