"""One state, one table of legal moves, and one place that moves it.

A machine's states are an enum. Its table says which moves there are; any other is a bug of ours, and the error names
the machine, both states and the moves before. Its owner says in ``validate`` what else holds in each state.
``check_move`` is for an owner that keeps the state in a field of its own, because there are thousands or it is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from .errors import InternalError

S = TypeVar("S", bound=Enum)
HISTORY = 8
"""So many of the last states an error tells."""


class IllegalTransition(InternalError):
    """A machine was to make a move that its table does not list."""


def check_move(machine: str, legal: Mapping[S, frozenset[S]], before: S, after: S, history: str = "") -> S:
    """``after``, if the table allows the move."""
    if after not in legal[before]:
        raise IllegalTransition(f"{machine} may not go from {before.value} to {after.value}", detail=history)
    return after


class StateMachine(Generic[S]):
    """See above. ``legal``: for each state those that may follow."""

    __slots__ = ("_history", "_legal", "name", "state")

    def __init__(self, name: str, legal: Mapping[S, frozenset[S]], state: S) -> None:
        self.name = name
        self.state = state
        self._legal = legal
        self._history: deque[S] = deque([state], maxlen=HISTORY)

    def move(self, to: S) -> None:
        """Go to a state; raises IllegalTransition if the table does not list that."""
        if to not in self._legal[self.state]:
            history = " → ".join(str(state.value) for state in self._history)
            check_move(self.name, self._legal, self.state, to, f"its last states: {history}")
        self.state = to
        self._history.append(to)
