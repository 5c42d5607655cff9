"""Which regions have a branch whose data have ended and that no completed checkpoint covers: they want one at once."""

from __future__ import annotations

from .request_decider import RequestDecider
from .tasks import Region, TaskRecord, TaskTable


class OpenEnds:
    """Keeps the decider told."""

    def __init__(self, tasks: TaskTable, decider: RequestDecider) -> None:
        self._tasks = tasks
        self._decider = decider
        #: Regions with such a branch.
        self._regions: set[int] = set()

    def data_ended(self, record: TaskRecord) -> bool:
        """The task's data have ended; whether a checkpoint is wanted now that was not before."""
        if not self._tasks.branch_ended(self._tasks.region_of(record)):
            return False
        self._regions.add(record.region)
        return self._decider.want_final(True)

    def region_stopped(self, region: Region) -> None:
        """Its tasks will reach their end again."""
        self._regions.discard(region.index)
        self._decider.want_final(bool(self._regions))

    def look_again(self) -> None:
        """A checkpoint completed: which ended branches does none cover?"""
        regions = self._tasks.regions
        self._regions = {index for index in self._regions if self._tasks.branch_ended(regions[index])}
        self._decider.want_final(bool(self._regions))
