"""Which regions have a branch whose data have ended and that no completed checkpoint covers: they want one at once, or
when all data of the job have ended (``Settings.ended_branches``)."""

from __future__ import annotations

from ..state.tasks import Region, TaskRecord, TaskTable
from .request_decider import RequestDecider


class OpenEnds:
    """Keeps the decider told."""

    def __init__(self, tasks: TaskTable, decider: RequestDecider, *, each: bool) -> None:
        self._tasks = tasks
        self._decider = decider
        #: Whether each branch gets one, and not all together.
        self._each = each
        #: Regions with such a branch.
        self._regions: set[int] = set()

    def data_ended(self, record: TaskRecord) -> bool:
        """The task's data have ended; whether a checkpoint is wanted now that was not before."""
        if not self._tasks.branch_ended(self._tasks.region_of(record)):
            return False
        self._regions.add(record.region)
        return self._decider.want_final(self._wanted())

    def region_stopped(self, region: Region) -> None:
        """Its tasks will reach their end again."""
        self._regions.discard(region.index)
        self._decider.want_final(self._wanted())

    def look_again(self) -> None:
        """A checkpoint completed: which ended branches does none cover?"""
        regions = self._tasks.regions
        self._regions = {index for index in self._regions if self._tasks.branch_ended(regions[index])}
        self._decider.want_final(self._wanted())

    def _wanted(self) -> bool:
        over = self._each or not any(any(region.unended.values()) for region in self._tasks.regions)
        return over and bool(self._regions)
