"""Whose channel state a subtask reads when an unaligned checkpoint is restored.

The batches that were in flight belong to subtasks that may no longer exist. What a new subtask must read follows from
how the exchange distributes rows; each exchange names its mapper, one for each of its two ends. Rules:

1. At an unchanged parallelism everybody reads its own; otherwise the mapper says. Where it is *ambiguous*
   several new subtasks read the same old batches, and each keeps only the rows that the exchange would send to it now.
2. Old subtasks always form an arithmetic sequence, so a mapping is a ``range`` per new subtask.
"""

from __future__ import annotations

from enum import Enum

from .key_groups import LEAST_DEFAULT, former_owners


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
