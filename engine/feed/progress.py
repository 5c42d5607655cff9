"""What each rank of a feed's group was given and has acknowledged. Pure.

Rules:

1. Counted are the ranks of the newest group that is complete: before that no rank has been given anything.
2. A group that starts after what a rank of the one before it was given leaves batches *untaken*: that rank never had
   its slices of them. That is noted for as long as the feed lasts, the newest ``REMEMBERED`` of them.
3. A checkpoint holds all of it, as of its snapshot: ranks may have gone on since. So what is known from a checkpoint
   alone is shown until ranks read, and then known anew from them: of what they were given before nothing counts as
   untaken. (Nor do the generations of groups mean anything in another job that goes on from a copy.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import RankGroup

REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class RankProgress:
    """One rank of a group that starts at batch ``start``: it was ``given`` the batches before that one, and has
    acknowledged that it has ``taken`` those before that one."""

    generation: int
    rank: int
    ranks: int
    start: int
    taken: int
    given: int
    copies: int | None = None
    """So many neighbours read the same rows; None: an earlier release did not write it down."""

    @property
    def group(self) -> RankGroup:
        """That of the rank."""
        return RankGroup(self.generation, self.ranks, self.start, self.copies or 1)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks}, from batch {self.start} on: taken before {self.taken}"


@dataclass(frozen=True, slots=True)
class Untaken:
    """Slices that a rank was never given, of the batches from ``first`` up to ``end``, which a newer group begins
    behind."""

    rank: int
    ranks: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks} was never given its slices of batches {self.first} to {self.end - 1}"


@dataclass(slots=True)
class GroupProgress:
    """See the module's rules."""

    group: RankGroup | None = None
    untaken: tuple[Untaken, ...] = ()
    #: rule 3: all is from a checkpoint; and whether it is known what the ranks were given
    _is_restored: bool = False
    _is_sure: bool = True
    _taken: list[int] = field(default_factory=list)
    _given: list[int] = field(default_factory=list)

    @classmethod
    def restored(cls, each_rank: tuple[RankProgress, ...], untaken: tuple[Untaken, ...]) -> GroupProgress:
        """As of a checkpoint."""
        book = cls(untaken=untaken)
        if each_rank:
            book.group = each_rank[0].group
            book._taken, book._given = [each.taken for each in each_rank], [each.given for each in each_rank]
            book._is_restored, book._is_sure = True, False
        return book

    def on_taken(self, group: RankGroup, rank: int, taken: int) -> None:
        """A rank of a complete group acknowledges what it has taken."""
        if self._is_restored or self.group != group:
            self._replace(group)
        self._taken[rank] = max(self._taken[rank], taken)
        self._given[rank] = max(self._given[rank], taken)

    def on_given(self, rank: int, before: int) -> None:
        """It is given all batches before this one."""
        self._given[rank] = max(self._given[rank], before)

    def _replace(self, group: RankGroup) -> None:
        if self.group is not None and self._is_sure:
            found = tuple(
                Untaken(rank, self.group.ranks, given, group.start)
                for rank, given in enumerate(self._given)
                if given < group.start
            )
            self.untaken = (*self.untaken, *found)[-REMEMBERED:]
        self._is_sure = not self._is_restored or self.group != group
        self.group, self._is_restored = group, False
        self._taken, self._given = ([group.start] * group.ranks for _ in range(2))

    @property
    def each_rank(self) -> tuple[RankProgress, ...]:
        """The progress of each."""
        group = self.group
        if group is None:
            return ()
        each = enumerate(zip(self._taken, self._given, strict=True))
        return tuple(
            RankProgress(group.generation, rank, group.ranks, group.start, taken, given, group.copies)
            for rank, (taken, given) in each
        )

    def lagging(self, batch: int) -> tuple[RankProgress, ...]:
        """The ranks that have not acknowledged all batches before this one."""
        return tuple(each for each in self.each_rank if each.taken < batch)
