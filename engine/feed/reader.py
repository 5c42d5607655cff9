"""One rank's side of a feed: which batch it wants next, and which answers it takes. Pure.

Rules:

1. Batches are taken in order, each once, whatever the network doubles and however often the engine goes back behind
   them: what counts is the batch's number, and that does not depend on when or how it was made.
2. A batch that was given out is not safe before ``saved`` says so: till then another world may have to begin before it.
3. Asked for are the next batch and ``ahead`` more.
4. Whoever begins behind the end of the feed is at no place of it: that is an error, not the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from ..core.errors import ConfigurationError
from .messages import Answer, FeedEnded, NotYet, R, Refusal, Refused, Slice, World

REMEDIES = {
    Refusal.STALE: "end this process: other ranks have taken over",
    Refusal.UNKNOWN_WORLD: "join again",
    Refusal.CONTRADICTION: "give every change of the world a generation of its own, the same in all ranks",
    Refusal.GONE: "go on from a model that was committed, ps.run(…, resume_model=uri) and job.feed().resume(uri), or "
    "begin anew in another checkpoint folder; for ranks that come back while the job runs to a batch behind their last "
    "start or commit, let the feed keep more of what has been taken, feed(…, keep=rows)",
}
"""What the user can do."""


@dataclass(slots=True)
class FeedReader(Generic[R]):
    """See the module's rules."""

    world: World
    rank: int
    ahead: int = 0
    #: The next batch to be given out.
    next_batch: int = field(init=False)
    #: Every batch before this one is safe.
    saved_before: int = field(init=False)
    #: Whether the sequencer has to be told of our world first.
    must_join: bool = True
    #: How many batches there are, once known.
    batches: int | None = None
    #: Why the next batch is not there, as the sequencer said last.
    reason: str = ""
    #: Came early, or not taken yet.
    _held: dict[int, Slice[R]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.next_batch = self.saved_before = self.world.start

    @property
    def is_at_end(self) -> bool:
        """Whether every batch has been taken."""
        return self.batches is not None and self.next_batch >= self.batches

    def wanted(self) -> Sequence[int]:
        """The batches to ask for now."""
        window = range(self.next_batch, self.next_batch + 1 + self.ahead)
        return [batch for batch in window if batch not in self._held and not self._is_behind_the_end(batch)]

    def _is_behind_the_end(self, batch: int) -> bool:
        return self.batches is not None and batch >= self.batches

    def hear(self, answer: Answer[R]) -> None:
        """An answer of the sequencer, maybe late or for somebody else."""
        match answer:
            case Refused(Refusal.UNKNOWN_WORLD):
                self.must_join = True
            case Refused(why, generation, batch):
                late = batch is not None and batch < self.next_batch
                if generation >= self.world.generation and not late:
                    raise self._error(why)
            case Slice(generation, rank, batch):
                mine = generation == self.world.generation and rank == self.rank
                if mine and batch >= self.next_batch:
                    self._held.setdefault(batch, answer)
            case NotYet(generation, batch, reason):
                if generation == self.world.generation and batch == self.next_batch:
                    self.reason = reason
            case FeedEnded(generation, _, batches):
                if generation == self.world.generation:
                    if batches < self.world.start:
                        raise self._behind(batches)
                    self.batches = batches

    def _error(self, why: Refusal) -> ConfigurationError:
        world = f", world {self.world.generation}," if self.world.generation else ""
        who = f"rank {self.rank} of {self.world.ranks}{world}"
        return ConfigurationError(f"{who} cannot read batch {self.next_batch} of the feed: {why.value}", REMEDIES[why])

    def _behind(self, batches: int) -> ConfigurationError:
        return ConfigurationError(
            f"rank {self.rank} of {self.world.ranks} begins at batch {self.world.start} of a feed that has {batches}",
            "load the state that was saved with this feed, over the same data, or begin without one",
        )

    def joined(self, answer: World | Refused) -> None:
        """The answer to our joining."""
        if isinstance(answer, Refused):
            self.hear(answer)
        elif answer == self.world:
            self.must_join = False

    def take(self) -> Slice[R] | None:
        """The next batch's slice, if it is there."""
        found = self._held.pop(self.next_batch, None)
        if found is not None:
            self.next_batch, self.reason = self.next_batch + 1, ""
        return found

    def saved(self, before: int) -> None:
        """The model that has seen every batch before this one is safe."""
        if not self.saved_before <= before <= self.next_batch:
            raise ValueError(f"batch {before} is not between {self.saved_before} and {self.next_batch}")
        self.saved_before = before
