"""What each rank of a feed's world was given and says that it has taken. Pure.

Rules:

1. Counted are the ranks of the newest world that is complete: before that no rank has been given anything.
2. A world that begins behind what a rank of the one before it was given leaves batches *untaken*: that rank never had
   its slices of them. That is noted for as long as the feed lasts, the newest ``REMEMBERED`` of them.
3. A checkpoint holds all of it, as of its cut: ranks may have gone on since. So what is known from a checkpoint alone
   is shown until somebody reads, and then known anew from the ranks: of what they were given before nothing is said to
   be untaken. (Nor do the numbers of worlds mean anything in another job that goes on from a copy.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import World

REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank of a world that begins at batch ``start``: it was ``given`` the batches before that one, and says that
    it has ``taken`` those before that one."""

    generation: int
    rank: int
    ranks: int
    start: int
    taken: int
    given: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks}, from batch {self.start} on: taken before {self.taken}"


@dataclass(frozen=True, slots=True)
class Untaken:
    """Slices that a rank was never given, of the batches from ``first`` up to ``end``, which a newer world begins
    behind."""

    rank: int
    ranks: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks} was never given its slices of batches {self.first} to {self.end - 1}"


@dataclass(slots=True)
class RankBook:
    """See the module's rules."""

    world: World | None = None
    untaken: tuple[Untaken, ...] = ()
    #: rule 3: all is from a checkpoint; and whether it is known what the ranks were given
    _is_restored: bool = False
    _is_sure: bool = True
    _taken: list[int] = field(default_factory=list)
    _given: list[int] = field(default_factory=list)

    @classmethod
    def restored(cls, places: tuple[RankPlace, ...], untaken: tuple[Untaken, ...]) -> RankBook:
        """As of a checkpoint."""
        book = cls(untaken=untaken)
        if places:
            book.world = World(places[0].generation, places[0].ranks, places[0].start)
            book._taken, book._given = [each.taken for each in places], [each.given for each in places]
            book._is_restored, book._is_sure = True, False
        return book

    def heard(self, world: World, rank: int, taken: int) -> None:
        """A rank of a complete world says what it has taken."""
        if self._is_restored or self.world != world:
            self._replace(world)
        self._taken[rank] = max(self._taken[rank], taken)
        self._given[rank] = max(self._given[rank], taken)

    def handed(self, rank: int, before: int) -> None:
        """It is given all batches before this one."""
        self._given[rank] = max(self._given[rank], before)

    def _replace(self, world: World) -> None:
        if self.world is not None and self._is_sure:
            found = tuple(
                Untaken(rank, self.world.ranks, given, world.start)
                for rank, given in enumerate(self._given)
                if given < world.start
            )
            self.untaken = (*self.untaken, *found)[-REMEMBERED:]
        self._is_sure = not self._is_restored or self.world != world
        self.world, self._is_restored = world, False
        self._taken, self._given = ([world.start] * world.ranks for _ in range(2))

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """Of each rank."""
        world = self.world
        if world is None:
            return ()
        each = enumerate(zip(self._taken, self._given, strict=True))
        return tuple(
            RankPlace(world.generation, rank, world.ranks, world.start, taken, given) for rank, (taken, given) in each
        )

    def behind(self, batch: int) -> tuple[RankPlace, ...]:
        """The ranks that do not say that they have all batches before this one."""
        return tuple(place for place in self.places if place.taken < batch)
