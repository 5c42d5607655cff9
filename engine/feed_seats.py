"""Which rank of a feed's world is which reader. Pure.

Rules:

1. The ranks of a world come one by one. A world is *complete* when every seat has been taken once; before that no rank
   is told of it, and no batch is handed out.
2. Whoever names another number of ranks or another start, or a seat that is taken, or comes anew to a world that was
   complete, begins a newer world. A rank whose seat was lost so, before its world was complete, takes one in the newer
   world.
3. Who leaves a world that is not complete gives the seat back: those who come later find it free. A reader that has
   said that it leaves is never seated again, whatever it asked before and is heard late; it comes back as a new one.
   One whose connection was lost may come back as itself.
4. A seat of a complete world is not given back: its ranks have read, and others could not know where it stands.
5. A rank that names a generation was told of its world, so that world was complete, also where nobody remembers it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .feed_messages import Ask, Refusal, Refused, World

REMEMBERED = 4096
"""Readers that have left: more than can have a question on its way."""


@dataclass(slots=True)
class Seats:
    """See the module's rules. A reader is known by its session."""

    world: World | None = None
    #: see rule 1; never taken back for a world
    is_complete: bool = False
    #: by rank: the session that has taken the seat
    _seats: dict[int, str] = field(default_factory=dict)
    #: sessions that have left, the newest last
    _left: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def claim(self, ask: Ask, fresh: int) -> World | Refused | None:
        """A rank says that it reads. None: it has its seat; a world: it begins this one (:meth:`begin`), if the
        sequencer lets it. ``fresh``: a generation that nobody has used."""
        world, session = self.world, self._seats.get(ask.rank)
        if ask.generation:
            if world is None or ask.generation > world.generation:
                return World(ask.generation, ask.ranks, ask.start)
            if session not in (None, ask.session):
                return Refused(Refusal.STALE, world.generation)
        elif session == ask.session:
            return None
        elif world is None or session is not None or self.is_complete or not _is_of(ask, world):
            return World(max(fresh, 0 if world is None else world.generation + 1), ask.ranks, ask.start)
        self._take(ask, world)
        return None

    def begin(self, world: World, ask: Ask) -> None:
        """This rank's world is the newest."""
        self.world, self._seats, self.is_complete = world, {}, bool(ask.generation)
        self._take(ask, world)

    def holds(self, ask: Ask) -> bool:
        """Whether the reader sits in the newest world."""
        return self._seats.get(ask.rank) == ask.session

    def leave(self, ask: Ask) -> bool:
        """A reader leaves for good. False: its world is complete, so it has a seat as long as that world lasts."""
        if self.is_complete and self.holds(ask):
            return False
        if not self.has_left(ask.session):
            self._left.append(ask.session)
        self.lose(ask.session)
        return True

    def has_left(self, session: str) -> bool:
        """Whether the reader said so."""
        return session in self._left

    def lose(self, session: str) -> bool:
        """Nothing is heard of a reader any more; whether a seat is free because of that."""
        found = [rank for rank, each in self._seats.items() if each == session]
        if self.is_complete or not found:
            return False
        for rank in found:
            del self._seats[rank]
        return True

    @property
    def missing(self) -> str:
        """The ranks that have not come, in words; "" if all have."""
        if self.world is None:
            return "ranks to join"
        absent = [rank for rank in range(self.world.ranks) if rank not in self._seats]
        more = ", …" if len(absent) > 5 else ""
        return f"rank {', '.join(map(str, absent[:5]))}{more} of {self.world.ranks} to join" if absent else ""

    def _take(self, ask: Ask, world: World) -> None:
        self._seats[ask.rank] = ask.session
        self.is_complete = self.is_complete or len(self._seats) == world.ranks


def _is_of(ask: Ask, world: World) -> bool:
    return (world.ranks, world.start) == (ask.ranks, ask.start)
