"""A simulated task whose checkpoints are not aligned: barriers overtake rows, and channel files hold what they passed.

The model, for flows without an order; savepoints are aligned all the same:

1. The first barrier of a checkpoint that is seen anywhere in a channel takes effect: the state is copied, the barrier
   is passed on. From then on, rows that come before the barrier of their own channel are recorded, whether they are
   still in the channel or taken meanwhile.
2. The younger half of an output channel has not left the producer: a barrier that is passed on goes ahead of it, and
   its rows go into the producer's own channel files.
3. The snapshot is complete when every channel's barrier has been seen, or the channel is closed. Rows are stored under
   the lane that they belong to, so another parallelism can restore them: they are sent, and processed, first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.coordinator.model.commands import DeployTask, TriggerCheckpoint
from penstock.engine.core.identity import BarrierKind, CheckpointId, Holds
from support.simulated_model import (
    LANES,
    LAST_ROUND,
    Channel,
    Channels,
    Flow,
    Row,
    Tagged,
    TaskState,
    digest,
)
from support.simulated_task import SimulatedTask

OVERTAKING = "unaligned"
BARRIERS = (OVERTAKING, "barrier")


@dataclass
class Recording:
    """A snapshot that waits for barriers. Its state's ``channels`` are what has been recorded."""

    checkpoint: CheckpointId
    state: TaskState
    data_ended: bool
    written: list[Row]
    #: Channels whose barrier has not been seen.
    open: list[Channel] = field(default_factory=list)

    def keep(self, exchange: str, rows: list[Tagged]) -> None:
        """Rows that came before the barrier of their channel."""
        if rows:
            self.state.channels.setdefault((exchange, Holds.INPUT), []).extend(rows)


class UnalignedTask(SimulatedTask):
    """See the module's rules."""

    recording: Recording | None = None

    def __init__(
        self, flow: Flow, command: DeployTask, channels: Channels, restored: list[TaskState], is_over: bool
    ) -> None:
        files = list(zip(command.state, restored, strict=True))
        states = [state for handle, state in files if handle.holds is not Holds.OUTPUT]
        #: Restored rows that are to be sent before anything else, with their exchange.
        self.unsent: deque[tuple[str, Tagged]] = deque()
        plain = replace(command, state=tuple(handle for handle, _ in files if handle.holds is not Holds.OUTPUT))
        super().__init__(flow, plain, channels, states, is_over)
        for handle, state in files if not is_over else ():
            if handle.holds is Holds.OUTPUT:
                self.unsent.extend((handle.operator, held) for held in state.held if held[1][0] in self.lanes)

    def is_runnable(self) -> bool:
        idle = not self.started or self.finished or bool(self.snapshots)
        return super().is_runnable() or (not idle and (bool(self.unsent or self.state.held) or self._sees_barrier()))

    def step(self, choice: int) -> None:
        if self.unsent:
            self._send_restored()
        elif self.state.held:
            self._process_held(LAST_ROUND)
        elif self._sees_barrier():
            self._look()
        else:
            super().step(choice)
        self._look()

    def _may_finish(self) -> bool:
        return not self.unsent and super()._may_finish()

    def _send_restored(self) -> None:
        exchange, (tag, row) = self.unsent.popleft()
        for number, edge in enumerate(self.flow.graph.edges):
            if edge.name == exchange:
                self._route(number, edge, tag, row)

    def abort(self, checkpoint: CheckpointId) -> None:
        super().abort(checkpoint)
        if self.recording is not None and self.recording.checkpoint <= checkpoint:
            self._give_up()

    def _give_up(self) -> None:
        if self.recording is not None:
            self.written = self.recording.written + self.written
            self.recording = None

    def _fed_by_nobody(self, command: TriggerCheckpoint) -> None:
        if command.kind is not BarrierKind.CHECKPOINT:
            super()._fed_by_nobody(command)
            return
        for channel in self.inputs:
            channel.barrier = None
        self._cut(command.checkpoint, command.kind)

    def _cut(self, checkpoint: CheckpointId, kind: BarrierKind = BarrierKind.SAVEPOINT) -> None:
        if kind is not BarrierKind.CHECKPOINT:
            while self.unsent:
                self._send_restored()
            super()._cut(checkpoint, kind)
            return
        self._begin(checkpoint, [])

    # --- barriers ------------------------------------------------------------------------------------------------

    @property
    def _is_aligning(self) -> bool:
        return self.recording is not None

    def _sees_barrier(self) -> bool:
        return any(kind == OVERTAKING for channel in self.inputs for kind, _ in channel.elements)

    def _look(self) -> None:
        """Take the barriers out of the channels, wherever they stand."""
        for channel in self.inputs:
            for element in [one for one in channel.elements if one[0] == OVERTAKING]:
                checkpoint = element[1]
                assert isinstance(checkpoint, CheckpointId)
                self._arrived(channel, checkpoint, list(channel.elements).index(element))
                channel.elements.remove(element)
        self._complete()

    def _complete(self) -> None:
        recording = self.recording
        if recording is not None and all(channel.closed for channel in recording.open):
            self.recording = None
            self.snapshots.append((recording.checkpoint, recording.state, recording.data_ended, recording.written))

    def _arrived(self, channel: Channel, checkpoint: CheckpointId, position: int) -> None:
        if self.recording is None or self.recording.checkpoint < checkpoint:
            if self.passed is not None and checkpoint <= self.passed:
                return
            self._begin(checkpoint, [channel for channel in self.inputs if not channel.closed])
        recording = self.recording
        if recording is not None and recording.checkpoint == checkpoint and channel in recording.open:
            overtaken = list(channel.elements)[:position]
            recording.keep(channel.exchange, [self._own(channel, one[1]) for one in overtaken if one[0] == "row"])
            recording.open = [other for other in recording.open if other is not channel]

    def _begin(self, checkpoint: CheckpointId, open_channels: list[Channel]) -> None:
        self._give_up()
        written = self._take_written()
        self.recording = Recording(checkpoint, self._state_at(checkpoint), self.data_ended, written, open_channels)
        self._pass(checkpoint)
        self.recording.state.channels = self._overtake(checkpoint)
        if self.data_ended and self.final is None:
            self.final = checkpoint
        self._complete()

    def _overtake(self, checkpoint: CheckpointId) -> dict[tuple[str, Holds], list[Tagged]]:
        """Pass the barrier on, ahead of what has not left; the rows that it passes."""
        passed: dict[tuple[str, Holds], list[Tagged]] = {}
        for exchange, held in self.unsent:
            passed.setdefault((exchange, Holds.OUTPUT), []).append(held)
        for number, _, channel in self.outputs:
            elements = list(channel.elements)
            last = max((place for place, one in enumerate(elements) if one[0] in BARRIERS), default=-1)
            place = max(last + 1, len(elements) - len(elements) // 2)
            rows = [one[1] for one in elements[place:] if one[0] == "row"]
            if rows:
                key = (self.flow.graph.edges[number].name, Holds.OUTPUT)
                passed.setdefault(key, []).extend(rows)  # type: ignore[arg-type]
            channel.elements.insert(place, (OVERTAKING, checkpoint))
        return passed

    def _take(self, channel: Channel, kind: str, content: object) -> None:
        recording = self.recording
        if kind == "row" and recording is not None and any(channel is other for other in recording.open):
            recording.keep(channel.exchange, [self._own(channel, content)])
        super()._take(channel, kind, content)

    @staticmethod
    def _own(channel: Channel, content: object) -> Tagged:
        """The row under the key that it has here."""
        tag, (key, value) = content  # type: ignore[misc]
        row: Row = (digest(value) % LANES if channel.rekey else key, value)
        return tag, row
