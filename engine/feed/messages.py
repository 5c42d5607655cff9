"""What the ranks of a training job and the sequencer of their feed send each other. Plain data.

Rules:

1. A *global batch* is a run of rows in the feed's order, ``batch_size`` or as many as fit by their cost; of every
   global batch each rank reads one slice. Batches are counted from 0, rows by their global position, both over all
   epochs.
2. A *group* is a number of ranks under a generation, a consumer group. Every message names its generation, so a late
   message of an older group changes nothing.
3. Any message may be late, doubled or lost: requests are repeated, answers name what they answer.
4. An ``Ask`` has all that its rank knows, so a feed server that was restored needs to know nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, Protocol, Self, TypeAlias, TypeVar

import msgspec

from .status import FeedStatus


class Rows(Protocol):
    """Rows in order; a ``pyarrow.RecordBatch`` is one."""

    @property
    def num_rows(self) -> int: ...

    def slice(self, offset: int, length: int) -> Self: ...


R = TypeVar("R", bound=Rows)


class RankGroup(msgspec.Struct, frozen=True):
    """The ranks that read. ``generation`` grows with every change; ``start``: the first global batch that they read;
    ``copies``: so many neighbours read the same rows."""

    generation: int
    ranks: int
    start: int
    copies: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.start < 0:
            raise ValueError(f"a group has at least one rank and starts at batch 0 or later, unlike {self}")
        if self.copies < 1 or self.ranks % self.copies:
            raise ValueError(f"{self.ranks} ranks are not {self.copies} copies of some")

    def part(self, rank: int) -> tuple[int, int]:
        """The number of its part of a batch, and how many parts there are."""
        return rank // self.copies, self.ranks // self.copies

    def share(self, rank: int, rows: int) -> range:
        """The indices in a global batch of ``rows`` rows that the rank reads: contiguous, as even as they come."""
        own, readers = self.part(rank)
        return range(own * rows // readers, (own + 1) * rows // readers)


class Slice(msgspec.Struct, Generic[R], frozen=True):
    """One rank's part of one global batch. ``first``: the global position of its first row, or of the
    batch's where ranks are balanced by cost; it may have no row."""

    generation: int
    rank: int
    batch: int
    first: int
    rows: tuple[R, ...]
    batch_rows: int
    """Rows of the whole global batch."""
    epoch: int = 0
    last: bool = False
    """It is the last one of its epoch; never set in a feed of one epoch."""
    left_out: int = 0
    """So many rows are not in ``rows``, because its rank has asked for it without them."""


class NotYet(msgspec.Struct, frozen=True):
    """The batch is not there; ``reason``: one clause for people. Ask again."""

    generation: int
    batch: int
    reason: str


class FeedEnded(msgspec.Struct, frozen=True):
    """There is no such batch: the feed has ``batches`` of them."""

    generation: int
    batch: int
    batches: int


class Refusal(Enum):
    """Why the sequencer does not answer."""

    STALE = "a newer group reads the feed"
    UNKNOWN_GROUP = "the sequencer does not know this group: join again"
    """It was restored from a checkpoint that is older than the group."""
    CONTRADICTION = "another group has this generation"
    GONE = "the batch is not kept any more: go on from a checkpoint that has it"


class Refused(msgspec.Struct, frozen=True):
    """Answer to a rank that may not read, or join. ``generation``: the newest one. ``batch``: of the request; None: the
    answer to joining."""

    why: Refusal
    generation: int
    batch: int | None = None


Answer: TypeAlias = Slice[R] | NotYet | FeedEnded | Refused


Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Global batches: from the first number up to the second, in ascending order."""

FORGET = -1
"""In place of a number of batches: the model is to be forgotten."""


class Commit(msgspec.Struct, frozen=True):
    """A model that is to be bound: it has seen the batches before ``step``, but for those that were ``skipped``; it may
    also be told to skip some that come. ``step`` ``FORGET``: it is to be forgotten."""

    model: str
    step: int
    skipped: Ranges = ()
    epoch: int = 0
    """Of the batch that comes next."""
    origin: str = ""
    """Drawn by the reader each time that its user asks for this: a name may be bound, forgotten and bound again, and
    a repeated or late request is recognised by it."""
    last: bool = False
    """It is known that there are no more batches."""


class Ask(msgspec.Struct, frozen=True):
    """What a rank has and wants. ``session``: drawn by each reader, so that a rank that comes anew is known."""

    session: str
    rank: int
    ranks: int
    start: int
    """The first global batch that its group reads."""
    generation: int
    """Of the group that it belongs to; 0: it wants to be given one."""
    taken: int
    """It has every batch before this one."""
    saved: int
    """It needs none before this one ever again."""
    wanted: tuple[int, ...] = ()
    leaves: bool = False
    """It has read everything and wants to know when it may leave: when its ``commits`` have ended, or nobody is there
    who could carry them out (``Reply.settled``)."""
    commits: tuple[Commit, ...] = ()
    quits: bool = False
    """It leaves before the end, and gives its rank back if its group is not complete. This session does not come back,
    unless the answer has its group."""
    max_ahead: int | None = None
    """So many batches before the slowest rank it wants to be at most; None: as many as there is room for."""
    copies: int = 1
    """So many neighbours of its group read the same rows."""
    waited: float = 0.0
    """So many seconds its loop has waited for batches."""
    asks_status: bool = False
    """It is no rank: somebody asks who waits for whom."""
    without_rows: bool = False
    """It gets the rows from another rank of its machine: the answer need not have them."""
    done: bool = False
    """Its loop has ended well: if there is nothing more than it has taken, it needs none of that again."""

    def group(self, generation: int) -> RankGroup:
        """The group that it names. Raises ValueError if there can be none."""
        return RankGroup(generation, self.ranks, self.start, self.copies)


def end_for(ask: Ask, batches: int) -> Reply[R] | None:
    """The answer to a rank that needs nothing more of a feed of so many batches, which has been read to its end; None:
    it lacks some."""
    if ask.taken < batches:
        return None
    ended = FeedEnded(ask.generation, ask.taken, batches)
    return Reply(ask.group(ask.generation), (ended,), settled=ask.leaves or bool(ask.commits))


class Reply(msgspec.Struct, Generic[R], frozen=True):
    """The answers to a request. ``group``: None as long as ranks are missing. ``reason``: why there is nothing more."""

    group: RankGroup | None
    answers: tuple[Answer[R], ...] = ()
    reason: str = ""
    settled: bool = False
    """No restart comes back to what was read: the rank may leave, and carries out by itself what ``bound`` does not
    say of its commits, for it needs no checkpoint."""
    bound: tuple[tuple[str, str], ...] = ()
    """Models whose commits have ended: "", or why they were refused."""
    remarks: tuple[tuple[str, str], ...] = ()
    """Warnings of models that are bound."""
    status: FeedStatus | None = None
    """The answer to who asks for it."""
