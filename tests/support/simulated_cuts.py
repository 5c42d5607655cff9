"""A simulated task that cuts as a whole, wherever it stands: barriers pass what waits, in any order of rows.

The model:

1. The first barrier of a cut that is seen anywhere in a channel takes effect, as does the trigger: the state is copied,
   with where the task stands in the rounds of its channels, and the barrier is passed on. From then on, what comes
   before the barrier of its own channel is recorded, in order and with what is no row.
2. The younger half of an output channel has not left the producer: a barrier goes ahead of it, and it is recorded
   there.
3. The snapshot is complete when every channel's barrier has been seen, or the channel is closed. What was recorded is
   put back in front of the channels of the same subtask, and everything goes on as if nothing had happened.
4. A task whose data had ended says so again: a consumer may have finished, and is restored without a flight. That a
   channel was closed is no state either: its producer is built again, and closes it again.
5. A cut drops the orders for older barriers: a source that placed one behind it, at its end, would take the commit of
   the cut for that of its end.
6. A task that has not started does not cut: else its coordinator would never learn that the order to start was lost.
   Nor does one that has finished: a consumer would keep the end of its channel as if it had been under way.
7. Barriers of other checkpoints stand in order, as ever. A cut blocks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.coordinator.model.commands import DeployTask, TriggerCheckpoint
from penstock.engine.core.identity import BarrierKind, CheckpointId, Holds
from support.simulated_model import Channel, ChannelFlight, Channels, Element, Flight, Flow, Row, TaskState
from support.simulated_task import SimulatedTask

CUT = "cut"
BARRIERS = (CUT, "barrier")


def without_barriers(elements: list[Element]) -> list[Element]:
    """Those of checkpoints that were given up are nobody's state."""
    return [element for element in elements if element[0] not in BARRIERS]


@dataclass
class Recording:
    """A cut that waits for barriers."""

    checkpoint: CheckpointId
    state: TaskState
    data_ended: bool
    written: list[Row]
    flight: Flight
    #: By number, channels whose barrier has not been seen.
    open: list[int] = field(default_factory=list)

    def keep(self, channel: int, elements: list[Element]) -> None:
        """What came before the barrier of its channel."""
        self.flight.inputs[channel].elements += without_barriers(elements)


class CutTask(SimulatedTask):
    """See the module's rules."""

    recording: Recording | None = None

    def __init__(
        self, flow: Flow, command: DeployTask, channels: Channels, restored: list[TaskState], is_over: bool
    ) -> None:
        files = list(zip(command.state, restored, strict=True))
        kept = [(handle, state) for handle, state in files if handle.holds is Holds.STATE]
        plain = replace(command, state=tuple(handle for handle, _ in kept))
        super().__init__(flow, plain, channels, [state for _, state in kept], is_over)
        flights = [state.flight for handle, state in files if handle.holds is Holds.FLIGHT and state.flight is not None]
        #: To be put back when the task starts: another process may have built the attempt, too.
        self._restored = flights[0] if flights and not is_over else None

    def is_runnable(self) -> bool:
        idle = not self.started or self.finished or bool(self.snapshots)
        return super().is_runnable() or (not idle and (self._restored is not None or self._sees_barrier()))

    def step(self, choice: int) -> None:
        if self._restored is not None:
            self._put_back(self._restored)
        elif self._sees_barrier():
            self._look()
        else:
            super().step(choice)
            self._look()

    def _put_back(self, flight: Flight) -> None:
        self._restored = None
        self.state.round, self.data_ended = flight.round, flight.data_ended
        for channel, found in zip(self.inputs, flight.inputs, strict=True):
            channel.round, channel.drained = found.round, found.drained
            channel.data_ended = channel.all_processed = found.data_ended
            channel.elements.extendleft(reversed(found.elements))
        for (_, _, output), elements in zip(self.outputs, flight.outputs, strict=True):
            output.elements.extend(elements)
        if self.data_ended:
            self._send(("data ended", True))

    def _may_finish(self) -> bool:
        return self._restored is None and super()._may_finish()

    # --- orders --------------------------------------------------------------------------------------------------

    def order_barrier(self, command: TriggerCheckpoint) -> None:
        if not command.unaligned:
            super().order_barrier(command)
        elif not self.started or self.finished or self._is_old(command.checkpoint):
            return
        elif not self._has_passed(command.checkpoint):
            self.newest, self.holds_for = command.checkpoint, None
            if self._restored is not None:
                self._put_back(self._restored)
            self._begin(command.checkpoint, [])

    def _has_passed(self, checkpoint: CheckpointId) -> bool:
        return self.passed is not None and checkpoint <= self.passed

    def abort(self, checkpoint: CheckpointId) -> None:
        super().abort(checkpoint)
        if self.recording is not None and self.recording.checkpoint <= checkpoint:
            self._give_up()

    def _give_up(self) -> None:
        if self.recording is not None:
            self.written = self.recording.written + self.written
            self.recording = None

    def _cut(self, checkpoint: CheckpointId, kind: BarrierKind = BarrierKind.SAVEPOINT) -> None:
        self._give_up()
        super()._cut(checkpoint, kind)

    # --- barriers ------------------------------------------------------------------------------------------------

    def _sees_barrier(self) -> bool:
        return any(kind == CUT for channel in self.inputs for kind, _ in channel.elements)

    def _look(self) -> None:
        """Take the barriers of cuts out of the channels, wherever they stand."""
        for number, channel in enumerate(self.inputs):
            for element in [one for one in channel.elements if one[0] == CUT]:
                checkpoint = element[1]
                assert isinstance(checkpoint, CheckpointId)
                if self._restored is not None:
                    self._put_back(self._restored)
                self._arrived(number, channel, checkpoint, list(channel.elements).index(element))
                channel.elements.remove(element)
        self._complete()

    def _arrived(self, number: int, channel: Channel, checkpoint: CheckpointId, position: int) -> None:
        if self.recording is None or self.recording.checkpoint < checkpoint:
            if self._has_passed(checkpoint):
                return
            self._begin(checkpoint, [number for number, each in enumerate(self.inputs) if not each.closed])
        recording = self.recording
        if recording is not None and recording.checkpoint == checkpoint and number in recording.open:
            recording.keep(number, list(channel.elements)[:position])
            recording.open.remove(number)

    def _begin(self, checkpoint: CheckpointId, open_channels: list[int]) -> None:
        self._give_up()
        written, state, outputs = self._take_written(), self._state_at(checkpoint), self._pass_on(checkpoint)
        inputs = [ChannelFlight(c.round, c.data_ended, c.drained) for c in self.inputs]
        flight = Flight(inputs, outputs, self.state.round, self.data_ended)
        self._pass(checkpoint)
        self.triggers = [trigger for trigger in self.triggers if trigger.checkpoint > checkpoint]
        if self.data_ended and self.final is None:
            self.final = checkpoint
        self.recording = Recording(checkpoint, state, self.data_ended, written, flight, open_channels)
        self._complete()

    def _pass_on(self, checkpoint: CheckpointId) -> list[list[Element]]:
        """The barrier goes ahead of what has not left; what that is, by output."""
        passed = []
        for _, _, channel in self.outputs:
            elements = list(channel.elements)
            last = max((place for place, one in enumerate(elements) if one[0] in BARRIERS), default=-1)
            place = max(last + 1, len(elements) - len(elements) // 2)
            passed.append(without_barriers(elements[place:]))
            channel.elements.insert(place, (CUT, checkpoint))
        return passed

    def _complete(self) -> None:
        recording = self.recording
        if recording is None or not all(self.inputs[number].closed for number in recording.open):
            return
        self.recording = None
        recording.state.flight = recording.flight
        self.snapshots.append((recording.checkpoint, recording.state, recording.data_ended, recording.written))

    def _take(self, channel: Channel, kind: str, content: object) -> None:
        number = next(number for number, each in enumerate(self.inputs) if each is channel)
        if self.recording is not None and number in self.recording.open:
            self.recording.keep(number, [(kind, content)])
        super()._take(channel, kind, content)
