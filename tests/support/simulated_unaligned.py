"""A simulated task whose checkpoints are not aligned: barriers overtake rows, and the snapshot holds what they passed.

The model, for flows without an order; savepoints are aligned all the same:

1. The first barrier of a checkpoint that is seen anywhere in a channel takes effect: the state is copied, the barrier
   is passed on. From then on, rows that come before the barrier of their own channel are recorded, whether they are
   still in the channel or taken meanwhile.
2. The snapshot is complete when every channel's barrier has been seen, or the channel is closed. It holds the recorded
   rows by the lane that they belong to, so another parallelism can restore them: they are processed first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.coordinator.commands import TriggerCheckpoint
from penstock.engine.identity import BarrierKind, CheckpointId
from support.simulated_model import LANES, LAST_ROUND, Channel, Row, Tagged, TaskState, digest
from support.simulated_task import SimulatedTask

OVERTAKING = "unaligned"


@dataclass
class Recording:
    """A snapshot that waits for barriers."""

    checkpoint: CheckpointId
    state: TaskState
    data_ended: bool
    written: list[Row]
    #: Channels whose barrier has not been seen.
    open: list[Channel] = field(default_factory=list)
    rows: list[Tagged] = field(default_factory=list)


class UnalignedTask(SimulatedTask):
    """See the module's rules."""

    recording: Recording | None = None

    def is_runnable(self) -> bool:
        idle = not self.started or self.finished or bool(self.snapshots)
        return super().is_runnable() or (not idle and (bool(self.state.held) or self._sees_barrier()))

    def step(self, choice: int) -> None:
        if self.state.held:
            self._process_held(LAST_ROUND)
        elif self._sees_barrier():
            self._look()
        else:
            super().step(choice)
        self._look()

    def abort(self, checkpoint: CheckpointId) -> None:
        super().abort(checkpoint)
        if self.recording is not None and self.recording.checkpoint <= checkpoint:
            self._give_up()

    def _give_up(self) -> None:
        if self.recording is not None:
            self.written = self.recording.written + self.written
            self.recording = None

    def _barrier_word(self, kind: BarrierKind) -> str:
        return OVERTAKING if kind is BarrierKind.CHECKPOINT else "barrier"

    def _fed_by_nobody(self, command: TriggerCheckpoint) -> None:
        if command.kind is not BarrierKind.CHECKPOINT:
            super()._fed_by_nobody(command)
            return
        for channel in self.inputs:
            channel.barrier = None
        self._cut(command.checkpoint, command.kind)

    # --- barriers ------------------------------------------------------------------------------------------------

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
        recording = self.recording
        if recording is not None and all(channel.closed for channel in recording.open):
            self.recording = None
            recording.state.held += recording.rows
            self.snapshots.append((recording.checkpoint, recording.state, recording.data_ended, recording.written))

    def _arrived(self, channel: Channel, checkpoint: CheckpointId, position: int) -> None:
        if self.recording is None or self.recording.checkpoint < checkpoint:
            if self.passed is not None and checkpoint <= self.passed:
                return
            self._begin(checkpoint)
        recording = self.recording
        if recording is not None and recording.checkpoint == checkpoint and channel in recording.open:
            overtaken = list(channel.elements)[:position]
            recording.rows += [self._own(channel, one[1]) for one in overtaken if one[0] == "row"]
            recording.open = [other for other in recording.open if other is not channel]

    def _begin(self, checkpoint: CheckpointId) -> None:
        open_channels = [channel for channel in self.inputs if not channel.closed]
        self._give_up()
        written = self._take_written()
        self.recording = Recording(checkpoint, self.state.copy(), self.data_ended, written, open_channels)
        self._pass(checkpoint)
        self._send((OVERTAKING, checkpoint))
        if self.data_ended and self.final is None:
            self.final = checkpoint

    def _take(self, channel: Channel, kind: str, content: object) -> None:
        recording = self.recording
        if kind == "row" and recording is not None and any(channel is other for other in recording.open):
            recording.rows.append(self._own(channel, content))
        super()._take(channel, kind, content)

    @staticmethod
    def _own(channel: Channel, content: object) -> Tagged:
        """The row under the key that it has here."""
        tag, (key, value) = content  # type: ignore[misc]
        row: Row = (digest(value) % LANES if channel.rekey else key, value)
        return tag, row
