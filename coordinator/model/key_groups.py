"""Which subtask owns which key groups, and how many groups there are.

Key groups are the unit in which keyed state moves between subtasks: their number (the *maximum parallelism*) is fixed
for the life of a state, subtasks own contiguous ranges of them. Rules:

1. Every group has exactly one owner; ranges differ in length by at most one. :func:`owner` and :func:`owned_groups`
   agree for every number of groups and every parallelism up to it.
2. Changing the parallelism moves whole groups: a new subtask reads from the old ones whose ranges meet its own.
"""

from __future__ import annotations

LEAST_DEFAULT = 128
"""A job that begins small can still grow to this without being asked for a number."""


def owner(group: int, parallelism: int, groups: int) -> int:
    """The subtask that owns a key group."""
    if not 0 <= group < groups:
        raise ValueError(f"there is no key group {group}: they are 0 to {groups - 1}")
    return group * parallelism // groups


def owned_groups(subtask: int, parallelism: int, groups: int) -> range:
    """The key groups of a subtask."""
    if parallelism > groups:
        raise ValueError(f"{parallelism} subtasks cannot share {groups} key groups: some would own none")
    if not 0 <= subtask < parallelism:
        raise ValueError(f"there is no subtask {subtask}: they are 0 to {parallelism - 1}")
    # rounded up: the first group that `owner` gives to this subtask, and to the next one
    return range(-(-subtask * groups // parallelism), -(-(subtask + 1) * groups // parallelism))


def former_owners(subtask: int, old_parallelism: int, parallelism: int, groups: int) -> range:
    """The old subtasks whose key groups meet those of the new subtask."""
    mine = owned_groups(subtask, parallelism, groups)
    return range(owner(mine[0], old_parallelism, groups), owner(mine[-1], old_parallelism, groups) + 1)
