"""Which reader is which rank of the group that reads a feed: rank assignment. Pure.

Rules:

1. The ranks of a group join one by one. A group is *complete* when every rank has joined once; before that no rank is
   told its generation, and no batch is handed out.
2. A reader that names another number of ranks or another start, or a rank that is assigned, or that joins anew when
   the group was complete, starts a newer group. A reader that lost its assignment so, before its group was complete,
   joins the newer group if that has the same ranks and start. Else it waits, and both sides are told what the other
   one names: a reader that was assigned once starts a newer group only when nobody is assigned in the present one. So
   ranks that disagree do not replace each other for ever, and the last one to come always finds, or starts, a group for
   all of its kind.
3. A reader that leaves a group that is not complete gives its rank back. A reader that has said that it leaves is never
   assigned again, however late an earlier request arrives; its user comes back as a new reader. A reader whose
   connection was lost may come back as itself.
4. A rank of a complete group is not given back: its ranks have read, and others could not know how far. Its readers are
   told to end when a newer group starts.
5. A reader that names a generation was told it, so that group was complete, also where nobody remembers it.
6. Generations are numbers of the log, not of a clock: those that a feed's task may give follow from its attempt, so a
   task that is restored, wherever that is, gives larger ones and has to remember nothing. A number of this attempt that
   it has not come to was given by nobody.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from ..core.identity import Attempt
from ..core.state_machine import StateMachine
from .messages import Ask, RankGroup, Refusal, Refused

REMEMBERED = 4096
"""Readers that have left: more than can have a request on its way."""
GROUP_BITS, ATTEMPT_BITS = 20, 20
"""Of a generation: so many count the groups of an attempt, and attempts of a coordinator. A number that does not fit is
carried on: generations grow all the same."""


def first_generation(attempt: Attempt) -> int:
    """The first that an attempt of the feed's task may give (rule 6)."""
    return ((attempt.generation << ATTEMPT_BITS) + attempt.number) << GROUP_BITS


class GroupState(Enum):
    """How far the newest group has come."""

    UNKNOWN = "unknown"
    """No rank has joined yet."""
    FORMING = "forming"
    """Some ranks have not joined yet."""
    COMPLETE = "complete"
    """Every rank has joined once: batches are handed out."""


LEGAL: dict[GroupState, frozenset[GroupState]] = {
    GroupState.UNKNOWN: frozenset({GroupState.FORMING, GroupState.COMPLETE}),
    GroupState.FORMING: frozenset({GroupState.FORMING, GroupState.COMPLETE}),
    GroupState.COMPLETE: frozenset({GroupState.FORMING, GroupState.COMPLETE}),
}
"""A move to FORMING is that of a newer group; no move leads back to UNKNOWN."""


@dataclass(slots=True)
class Membership:
    """See the module's rules. A reader is known by its session."""

    #: the newest one; None in the state UNKNOWN alone
    group: RankGroup | None = None
    _machine: StateMachine[GroupState] = field(
        default_factory=lambda: StateMachine("a group of ranks", LEGAL, GroupState.UNKNOWN)
    )
    #: by rank: the session of its reader; in a COMPLETE group that was started here there is one for every rank
    _assigned: dict[int, str] = field(default_factory=dict)
    #: whether the group was started here, and not learnt from its ranks
    _is_ours: bool = False
    #: by session that was assigned in a former group: whether that was complete
    _former: dict[str, bool] = field(default_factory=dict)
    #: by session that has no rank and waits: who it is
    _waiting: dict[str, str] = field(default_factory=dict)
    #: sessions that have left, the newest last
    _left: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def state(self) -> GroupState:
        """How far the newest group has come."""
        return self._machine.state

    @property
    def is_complete(self) -> bool:
        """See rule 1."""
        return self.state is GroupState.COMPLETE

    def join(self, ask: Ask, fresh: int) -> RankGroup | Refused | str | None:
        """A rank wants to read. None: it is assigned; a text: what it waits for; a group: it starts this one
        (:meth:`start`), if the sequencer allows it. ``fresh``: a generation that nobody has used."""
        group, session = self.group, self._assigned.get(ask.rank)
        if ask.generation:
            if group is None or ask.generation > group.generation:
                if group is not None and self._is_ours and _same_attempt(ask.generation, group.generation):
                    return Refused(Refusal.STALE, group.generation)
                return ask.group(ask.generation)
            if session not in (None, ask.session):
                return Refused(Refusal.STALE, group.generation)
        elif session == ask.session:
            return None
        elif group is None or session is not None or self.is_complete or not _is_of(ask, group):
            return self._join_newer(ask, fresh)
        self._assign(ask, group)
        return None

    def _join_newer(self, ask: Ask, fresh: int) -> RankGroup | Refused | str:
        """Rule 2, for a reader whose rank is not free."""
        group, was_complete = self.group, self._former.get(ask.session)
        if group is not None and was_complete:
            return Refused(Refusal.STALE, group.generation)
        if group is not None and was_complete is False and self._assigned:
            self._waiting[ask.session] = _in_words(ask.rank, ask.group(0))
            other = min(self._assigned)
            return f"another group to end: {_in_words(other, group)} has joined"
        return ask.group(max(fresh, 0 if group is None else group.generation + 1))

    def start(self, group: RankGroup, ask: Ask) -> None:
        """This reader's group is the newest."""
        for session in self._assigned.values():
            self._former.pop(session, None)
            self._former[session] = self.is_complete
        for session in list(self._former)[:-REMEMBERED]:
            del self._former[session]
        self.group, self._assigned, self._is_ours = group, {}, not ask.generation
        self._machine.move(GroupState.COMPLETE if ask.generation else GroupState.FORMING)
        self._assign(ask, group)

    def on_new_attempt(self) -> None:
        """Another attempt of the feed's task begins: there may have been others, elsewhere, in between."""
        self._is_ours = False

    def is_assigned(self, ask: Ask) -> bool:
        """Whether the reader has its rank in the newest group."""
        return self._assigned.get(ask.rank) == ask.session

    def leave(self, ask: Ask) -> bool:
        """A reader leaves for good. False: its group is complete, so it has its rank as long as that group lasts."""
        if self.is_complete and self.is_assigned(ask):
            return False
        if not self.has_left(ask.session):
            self._left.append(ask.session)
        self.on_disconnect(ask.session)
        return True

    def has_left(self, session: str) -> bool:
        """Whether the reader said so."""
        return session in self._left

    def on_disconnect(self, session: str) -> bool:
        """A reader is not connected any more; whether others may learn something by that."""
        found = [rank for rank, each in self._assigned.items() if each == session]
        waited = self._waiting.pop(session, None) is not None
        if self.is_complete or not found:
            return waited
        for rank in found:
            del self._assigned[rank]
        return True

    @property
    def missing(self) -> str:
        """The ranks that have not joined, in words, and who waits for another group; "" if all have."""
        if self.group is None:
            return "ranks to join"
        if len(self._assigned) == self.group.ranks:
            return ""
        absent = list(islice((rank for rank in range(self.group.ranks) if rank not in self._assigned), 6))
        more = ", …" if len(absent) > 5 else ""
        others = ", ".join(list(self._waiting.values())[:5])
        other = f"; for another group {others} waits" if others else ""
        return f"rank {', '.join(map(str, absent[:5]))}{more} of {self.group.ranks} to join{other}"

    def _assign(self, ask: Ask, group: RankGroup) -> None:
        self._assigned[ask.rank] = ask.session
        self._waiting.pop(ask.session, None)
        if not self.is_complete and len(self._assigned) == group.ranks:
            self._machine.move(GroupState.COMPLETE)

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        if (self.group is None) != (self.state is GroupState.UNKNOWN):
            raise AssertionError(f"the group is {self.group} in state {self.state.name}")
        if self.group is None:
            return
        if any(not 0 <= rank < self.group.ranks for rank in self._assigned):
            raise AssertionError(f"ranks {sorted(self._assigned)} are assigned in {self.group}")
        if len(self._assigned) == self.group.ranks and not self.is_complete:
            raise AssertionError("every rank has joined, but the group is not complete")
        if twice := [session for session in self._waiting if session in self._assigned.values()]:
            raise AssertionError(f"readers {twice} wait, though they are assigned")


def _is_of(ask: Ask, group: RankGroup) -> bool:
    return group == ask.group(group.generation)


def _same_attempt(generation: int, other: int) -> bool:
    return generation >> GROUP_BITS == other >> GROUP_BITS


def _in_words(rank: int, group: RankGroup) -> str:
    alike = f" ({group.copies} of them read the same rows)" if group.copies > 1 else ""
    return f"rank {rank} of {group.ranks}{alike}, from batch {group.start} on,"
