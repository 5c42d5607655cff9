"""Who gets which operator state when a job is restored.

Operator state belongs to a subtask, not to a key: named lists of items, each name with a mode that says what a restore
does with it. Rules:

1. At an unchanged parallelism each subtask gets back what was its own, except that UNION names go to everybody.
2. At another parallelism: the items of a SPLIT_DISTRIBUTE name, in the order of the old subtasks, are cut into
   contiguous shares of equal size; what is left over goes one each to the first receivers. Each name begins where the
   last name's left-overs ended, so that they do not pile up on the first subtasks.
3. A subtask that had finished hands nothing over (its entry is None): what it had to leave, it has left.
4. Items are opaque here, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class StateMode(Enum):
    """What a restore does with a named list."""

    SPLIT_DISTRIBUTE = "each item to one subtask"
    UNION = "every item to every subtask"
    BROADCAST = "every subtask holds the same"


@dataclass(frozen=True, slots=True)
class NamedState(Generic[T]):
    """One subtask's list under one name."""

    mode: StateMode
    items: tuple[T, ...]


OldStates = Sequence[Mapping[str, NamedState[T]] | None]
"""By old subtask; None: it had finished."""


def redistribute(old: OldStates[T], parallelism: int) -> tuple[dict[str, NamedState[T]], ...]:
    """What each new subtask is restored with. A SPLIT_DISTRIBUTE name without a share is left out."""
    modes = _modes(old)
    unchanged = len(old) == parallelism
    restored: tuple[dict[str, NamedState[T]], ...] = tuple({} for _ in range(parallelism))
    start = 0
    for name, mode in modes.items():
        held = [None if state is None else state.get(name) for state in old]
        items = tuple(item for state in held if state is not None for item in state.items)
        if mode is StateMode.UNION:
            shares: Sequence[tuple[T, ...] | None] = [items] * parallelism
        elif unchanged:
            shares = [None if state is None else state.items for state in held]
        elif mode is StateMode.BROADCAST:
            copies = [state.items for state in held if state is not None]
            shares = [copies[subtask % len(copies)] for subtask in range(parallelism)]
        else:
            shares, start = _split(items, parallelism, start)
        for state, share in zip(restored, shares, strict=True):
            if share is not None:
                state[name] = NamedState(mode, share)
    return restored


def _modes(old: OldStates[T]) -> dict[str, StateMode]:
    """Every name with its mode, in order of first appearance."""
    modes: dict[str, StateMode] = {}
    for state in old:
        for name, named in (state or {}).items():
            if modes.setdefault(name, named.mode) is not named.mode:
                raise ValueError(
                    f"state {name!r} was stored as {modes[name].name} by one subtask, as {named.mode.name} by another"
                )
    return modes


def _split(items: tuple[T, ...], parallelism: int, start: int) -> tuple[list[tuple[T, ...] | None], int]:
    """Contiguous shares, handed out from receiver ``start`` on; and where the next name begins."""
    least, extra = divmod(len(items), parallelism)
    rest: Iterator[T] = iter(items)
    shares: list[tuple[T, ...] | None] = [None] * parallelism
    for turn in range(parallelism):
        share = tuple(islice(rest, least + (turn < extra)))
        shares[(start + turn) % parallelism] = share or None
    return shares, (start + extra) % parallelism
