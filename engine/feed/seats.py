"""Which rank of a feed's world is which reader. Pure.

Rules:

1. The ranks of a world come one by one. A world is *complete* when every seat has been taken once; before that no rank
   is told of it, and no batch is handed out.
2. Whoever comes and names another number of ranks or another start, or a seat that is taken, or comes anew to a world
   that was complete, begins a newer world. A rank whose seat was lost so, before its world was complete, takes one in
   the newer world if that is of its kind. Else it waits, and both sides are told what the other one says: whoever has
   sat once begins a newer world only when nobody sits in the one that stands. So ranks that disagree do not throw each
   other out for ever, and the last one to come always finds, or begins, a world for all of its kind.
3. Who leaves a world that is not complete gives the seat back: those who come later find it free. A reader that has
   said that it leaves is never seated again, whatever it asked before and is heard late; it comes back as a new one.
   One whose connection was lost may come back as itself.
4. A seat of a complete world is not given back: its ranks have read, and others could not know where it stands. Whoever
   has sat there when a newer world begins is told to end.
5. A rank that names a generation was told of its world, so that world was complete, also where nobody remembers it.
6. Generations are numbers of the log, not of a clock: those that a feed's task may give follow from its attempt, so a
   task that is restored, wherever that is, gives larger ones and has to remember nothing. A number of this attempt that
   it has not come to was given by nobody.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..core.identity import Attempt
from .messages import Ask, Refusal, Refused, World

REMEMBERED = 4096
"""Readers that have left: more than can have a question on its way."""
WORLD_BITS, ATTEMPT_BITS = 20, 20
"""Of a generation: so many count the worlds of an attempt, and attempts of a coordinator. A number that does not fit is
carried on: generations grow all the same."""


def first_generation(attempt: Attempt) -> int:
    """The first that an attempt of the feed's task may give (rule 6)."""
    return ((attempt.generation << ATTEMPT_BITS) + attempt.number) << WORLD_BITS


@dataclass(slots=True)
class Seats:
    """See the module's rules. A reader is known by its session."""

    world: World | None = None
    #: see rule 1; never taken back for a world
    is_complete: bool = False
    #: by rank: the session that has taken the seat
    _seats: dict[int, str] = field(default_factory=dict)
    #: whether the world was begun here, and not learnt from its ranks
    _is_ours: bool = False
    #: by session that has sat in a former world: whether that was complete
    _sat: dict[str, bool] = field(default_factory=dict)
    #: by session that has no seat and waits: who it is
    _waiting: dict[str, str] = field(default_factory=dict)
    #: sessions that have left, the newest last
    _left: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def claim(self, ask: Ask, fresh: int) -> World | Refused | str | None:
        """A rank says that it reads. None: it has its seat; a text: for what it waits; a world: it begins this one
        (:meth:`begin`), if the sequencer lets it. ``fresh``: a generation that nobody has used."""
        world, session = self.world, self._seats.get(ask.rank)
        if ask.generation:
            if world is None or ask.generation > world.generation:
                if world is not None and self._is_ours and _same_attempt(ask.generation, world.generation):
                    return Refused(Refusal.STALE, world.generation)
                return World(ask.generation, ask.ranks, ask.start)
            if session not in (None, ask.session):
                return Refused(Refusal.STALE, world.generation)
        elif session == ask.session:
            return None
        elif world is None or session is not None or self.is_complete or not _is_of(ask, world):
            return self._come(ask, fresh)
        self._take(ask, world)
        return None

    def _come(self, ask: Ask, fresh: int) -> World | Refused | str:
        """Rule 2, for a rank that finds no seat."""
        world, sat = self.world, self._sat.get(ask.session)
        if world is not None and sat:
            return Refused(Refusal.STALE, world.generation)
        if world is not None and sat is False and self._seats:
            self._waiting[ask.session] = _in_words(ask.rank, ask.ranks, ask.start)
            other = min(self._seats)
            return f"another world to end: {_in_words(other, world.ranks, world.start)} has come"
        return World(max(fresh, 0 if world is None else world.generation + 1), ask.ranks, ask.start)

    def begin(self, world: World, ask: Ask) -> None:
        """This rank's world is the newest."""
        for session in self._seats.values():
            self._sat.pop(session, None)
            self._sat[session] = self.is_complete
        for session in list(self._sat)[:-REMEMBERED]:
            del self._sat[session]
        self.world, self._seats, self.is_complete = world, {}, bool(ask.generation)
        self._is_ours = not ask.generation
        self._take(ask, world)

    def opened(self) -> None:
        """Another attempt of the feed's task begins: there may have been others, elsewhere, in between."""
        self._is_ours = False

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
        """Nothing is heard of a reader any more; whether others may learn something by that."""
        found = [rank for rank, each in self._seats.items() if each == session]
        waited = self._waiting.pop(session, None) is not None
        if self.is_complete or not found:
            return waited
        for rank in found:
            del self._seats[rank]
        return True

    @property
    def missing(self) -> str:
        """The ranks that have not come, in words, and who says otherwise; "" if all have."""
        if self.world is None:
            return "ranks to join"
        absent = [rank for rank in range(self.world.ranks) if rank not in self._seats]
        more = ", …" if len(absent) > 5 else ""
        if not absent:
            return ""
        others = ", ".join(list(self._waiting.values())[:5])
        other = f"; for another world {others} waits" if others else ""
        return f"rank {', '.join(map(str, absent[:5]))}{more} of {self.world.ranks} to join{other}"

    def _take(self, ask: Ask, world: World) -> None:
        self._seats[ask.rank] = ask.session
        self._waiting.pop(ask.session, None)
        self.is_complete = self.is_complete or len(self._seats) == world.ranks


def _is_of(ask: Ask, world: World) -> bool:
    return (world.ranks, world.start) == (ask.ranks, ask.start)


def _same_attempt(generation: int, other: int) -> bool:
    return generation >> WORLD_BITS == other >> WORLD_BITS


def _in_words(rank: int, ranks: int, start: int) -> str:
    return f"rank {rank} of {ranks}, from batch {start} on,"
