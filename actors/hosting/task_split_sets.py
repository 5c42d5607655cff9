"""The split sets that a task's host hands to its sources, and the windows between their barriers. No Ray.

Rules:

1. The sources get every entry of the log of split sets once, in order: what comes twice is left out, what comes too
   early is left for when it comes again.
2. A checkpoint's barrier is placed only if the sources have had exactly what it is to follow (``allows``).
3. Everything is about one attempt; ``begin`` starts the next.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from threading import Lock

import pyarrow as pa

from ...coordinator.model.commands import AssignSplits, TriggerCheckpoint
from ...coordinator.model.events import (
    Event,
    Failure,
    OperatorReport,
    SplitsAssigned,
    TaskDeclined,
    TaskReport,
    WindowDrained,
)
from ...coordinator.model.split_sets import NoMoreSets, SetAdded, SplitRef, WindowEnded
from ...engine.core.identity import CheckpointId
from ...engine.core.source import Split
from ...engine.plan.plan import JobPlan
from ...engine.plan.split_places import places
from ...engine.runtime.orders import AddSplitSet, DrainSources, EndSplitSets, SplitSetOrder
from ...engine.runtime.statistics import OperatorWindow
from ...engine.runtime.task import Task
from ...engine.sources.reader import Stop
from ..protocol.messages import UNKNOWN_TIME

TOO_LATE = Failure("more split sets came while the order for the checkpoint was on its way", retry=True)


class TaskSplitSets:
    """See the module's rules. ``folder``: the checkpoint folder. Only ``drained`` is called by other threads."""

    def __init__(self, plan: JobPlan, folder: str, report: Callable[[Event], None]) -> None:
        self._plan = plan
        self._folder = folder
        self._report = report
        #: how many entries the sources have got; None: not known yet where they begin
        self._number: int | None = None
        self._triggered: CheckpointId | None = None
        self._lock = Lock()
        #: what the drivers have reported of each task barrier that not all of them have reached
        self._reports: dict[CheckpointId, list[Sequence[OperatorWindow]]] = {}

    def begin(self) -> None:
        """Another attempt is built."""
        self._number = self._triggered = None
        with self._lock:
            self._reports = {}

    def take(self, task: Task, command: AssignSplits) -> None:
        """Give the sources what is new, and confirm."""
        number = command.base if self._number is None else self._number
        if command.start <= number:
            barriers = iter(command.barriers)
            new: list[tuple[int, SplitSetOrder]] = []
            for entry in command.entries:
                item = DrainSources(next(barriers)) if isinstance(entry, WindowEnded) else self._item(entry)
                if entry.at.number >= number:
                    new.append((entry.at.rounds, item))
                    number = entry.at.number + 1
            if new:
                task.take_split_sets(new[0][0], [item for _, item in new])
            self._number = number
        if self._number is not None:
            self._report(SplitsAssigned(command.task, command.attempt, self._number, UNKNOWN_TIME))

    def _item(self, entry: SetAdded | NoMoreSets) -> SplitSetOrder:
        if not isinstance(entry, SetAdded):
            return EndSplitSets()
        placed = {source: self._placed(source, entry, refs) for source, refs in entry.splits.items()}
        return AddSplitSet(entry.rounds, placed)

    def _placed(self, source: str, entry: SetAdded, refs: Sequence[SplitRef]) -> dict[int, Split]:
        schema, found = self._plan.sources[source].schema, places(len(refs), self._plan.lanes, entry.at.sets)
        return {place: self._split(ref, schema) for place, ref in zip(found, refs, strict=True)}

    def _split(self, ref: SplitRef, schema: pa.Schema) -> Split:
        from ...engine.sources.fed import FileSplit, InlineSplit  # it knows every format of files

        if ref.path:
            path = ref.path if "://" in ref.path else os.path.join(self._folder, ref.path)
            return FileSplit(ref.id, path, ref.format, schema, ref.rows, ref.digest, ref.listing)
        return InlineSplit(ref.id, ref.data, ref.rows)

    def trigger(self, task: Task, command: TriggerCheckpoint) -> None:
        """Place the barrier of a checkpoint; not if it would come before or after what it should not (rule 2)."""
        allowed = self.allows(command)
        if allowed is None:
            self._report(TaskDeclined(command.task, command.attempt, command.checkpoint, TOO_LATE, UNKNOWN_TIME))
        elif allowed:
            stop: Stop | None = None if command.stop is None else command.stop.value
            task.trigger(command.checkpoint, command.kind, command.at_round, command.timestamp, stop, command.unaligned)

    def allows(self, command: TriggerCheckpoint) -> bool | None:
        """Whether the checkpoint's barrier may be placed now; False: not yet, None: not any more."""
        late = self._triggered is not None and command.checkpoint <= self._triggered
        if command.assigned is None or not self._plan.fed or late or not self._has_sources(command):
            return True
        if self._number is None or self._number < command.assigned:
            return False
        if self._number > command.assigned:
            return None
        self._triggered = command.checkpoint
        return True

    def _has_sources(self, command: TriggerCheckpoint) -> bool:
        stage = self._plan.stages[command.task.vertex]
        return any(port.kind == "source" for pipeline in stage.pipelines for port in pipeline.ports)

    # ------------------------------------------------------------------ windows

    def drained(self, task: Task | None, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        """A driver has drained; the last one reports to the coordinator."""
        if task is None:
            return
        with self._lock:
            reports = self._reports.setdefault(barrier, [])
            reports.append(window)
            live = sum(1 for driver in task.drivers if driver.checkpointing.handler.open)
            if len(reports) < live:
                return
            del self._reports[barrier]
        self._report_window(task, barrier, reports)

    def _report_window(self, task: Task, barrier: CheckpointId, reports: Sequence[Sequence[OperatorWindow]]) -> None:
        shift = time.time() - time.perf_counter()
        operators = [operator for window in reports for operator in window]
        first = min((each.first_at for each in operators if each.first_at is not None), default=None)
        report = TaskReport(
            tuple(
                OperatorReport(
                    each.operator, each.rows_in, each.rows_out, each.bytes_out, each.drain_seconds, each.waits
                )
                for each in operators
            ),
            None if first is None else first + shift,
            time.time(),
        )
        self._report(WindowDrained(task.id, task.attempt, barrier, report, UNKNOWN_TIME))
