"""Which subtask owns which key groups, and whose channel state a subtask reads at another parallelism.

Rules:

1. Key groups are the unit in which keyed state moves between subtasks: their number (the *maximum parallelism*) is
   fixed for the life of a state, subtasks own contiguous ranges of them. Every group has exactly one owner; ranges
   differ in length by at most one. :func:`owner` and :func:`owned_groups` agree for every number of groups and every
   parallelism up to it.
2. The batches that were in flight belong to subtasks that may no longer exist. What a new subtask must read follows
   from how the exchange distributes rows; each exchange names its mapper, one for each of its two ends. At an unchanged
   parallelism everybody reads its own. Where the mapping is *ambiguous* several new subtasks read the same old batches,
   and each keeps only the rows that the exchange would send to it now.
3. Old subtasks always form an arithmetic sequence, so a mapping is a ``range`` per new subtask.
"""

from __future__ import annotations

from enum import Enum

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


class RescaleError(ValueError):
    """This channel state cannot be restored at another parallelism."""


class ChannelMapper(Enum):
    """Which old subtasks a new one reads; the value says it to people."""

    ARBITRARY = "any distribution will do"
    ROUND_ROBIN = "every n-th"
    FIRST = "the first subtask reads all"
    FULL = "every subtask reads all"
    RANGE = "those whose key groups meet the new ones"
    UNSUPPORTED = "only at the same parallelism"

    def old_subtasks(self, subtask: int, old: int, new: int, groups: int = LEAST_DEFAULT) -> range:
        """What new subtask ``subtask`` of ``new`` reads of ``old`` ones."""
        match self:
            # ARBITRARY leaves the choice to us: round robin spreads the batches evenly
            case ChannelMapper.ARBITRARY | ChannelMapper.ROUND_ROBIN:
                return range(subtask, old, new)
            case ChannelMapper.FIRST:
                return range(old if subtask == 0 else 0)
            case ChannelMapper.FULL:
                return range(old)
            case ChannelMapper.RANGE:
                return former_owners(subtask, old, new, groups)
            case ChannelMapper.UNSUPPORTED:
                raise RescaleError(
                    "the batches in flight on a pointwise or broadcast exchange cannot be redistributed; restore at "
                    f"the parallelism {old} that the checkpoint was taken with, or from an aligned checkpoint"
                )
