"""One state, one table of legal moves, and one place that moves it.

A machine's states are an enum. Its table says which moves there are; any other is a bug of ours, and the error names
the machine, both states and the moves before. Whoever has a machine says in ``validate`` what else holds in each state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Generic, Self, TypeVar

from .errors import InternalError

S = TypeVar("S", bound=Enum)
HISTORY = 8
"""So many of the last states an error tells."""


class IllegalTransition(InternalError):
    """A machine was to make a move that its table does not list."""

    @classmethod
    def of(cls, machine: str, before: Enum, after: Enum, history: str = "") -> Self:
        """The error for one move."""
        return cls(f"{machine} may not go from {before.value} to {after.value}", detail=history)


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
            raise IllegalTransition.of(self.name, self.state, to, f"its last states: {history}")
        self.state = to
        self._history.append(to)
