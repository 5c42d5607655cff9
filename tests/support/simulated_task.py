"""A task as the coordinator's protocol sees it: rows, rounds, lanes, barriers, two-phase sinks; nothing real below.

The model of a flow:

1. A row is (key, value); the key is its lane at the vertex that has it. Sources read lanes, a few rows per round. An
   ALL_TO_ALL edge gives a row a new key; the subtask that owns this lane gets it. A POINTWISE edge keeps keys.
2. Every vertex but a source passes rows on and counts and sums them per lane; when its data end it emits one row per
   lane with both. So a row lost, repeated, or missed by the state shows in what the sinks write. Data that end only
   for now (a suspended job's) leave the sums where they are.
3. In a deterministic flow a task takes a round's rows from all its channels before it goes on, in the order of lanes.
4. Channels are bounded and belong to one attempt of the region. A barrier blocks its channel until all have it.
"""

from __future__ import annotations

from penstock.coordinator.model.commands import DeployTask, TriggerCheckpoint
from penstock.coordinator.model.execution_graph import JobEdge, Pattern, lane_owner
from penstock.coordinator.model.kinds import StopMode
from penstock.engine.core.identity import BarrierKind, CheckpointId, TaskId
from support.simulated_feed import FeedEnd
from support.simulated_model import (
    CAPACITY,
    LANES,
    LAST_ROUND,
    ROWS_PER_ROUND,
    Channel,
    Channels,
    FeedRows,
    Flow,
    Row,
    Tag,
    TaskState,
    connect,
    digest,
    lanes_of,
)

Snapshot = tuple[CheckpointId, TaskState, bool, list[Row]]
"""A cut: its checkpoint, the state, whether the data had ended, and what the sink had written since the last one."""


class SimulatedTask:
    """One attempt. ``step`` does one thing; reports go to the cluster that made it."""

    def __init__(
        self, flow: Flow, command: DeployTask, channels: Channels, restored: list[TaskState], is_over: bool
    ) -> None:
        self.flow, self.id, self.attempt = flow, command.task, command.attempt
        graph = flow.graph
        self.lanes = lanes_of(self.id.subtask, graph.parallelism[self.id.vertex])
        self.state = TaskState()
        #: Deployed as finished: nothing is restored, nothing is done but to pass the end on.
        self.is_over = is_over
        for state in restored if not is_over else []:
            self.state.take(state, self.lanes)
        self.is_source = self.id.vertex in graph.sources
        self.is_sink = not graph.outputs[self.id.vertex]
        if self.is_source:
            for lane in self.lanes:
                self.state.cursors.setdefault(lane, 0)
            open_rounds = (cursor // ROWS_PER_ROUND for lane, cursor in self.state.cursors.items() if self._left(lane))
            self.state.round = min(open_rounds, default=0)
        #: What the rows go to at the end of a feed.
        self.feed = FeedEnd(flow, self.state.feed) if flow.feed == self.id.vertex and not is_over else None
        self.inputs, self.outputs = connect(flow, channels, self.id, self.attempt, self.state.round)
        self.started = self.data_ended = self.finished = False
        #: A checkpoint that the source holds for, and the round at whose end it does.
        self.holds_for: CheckpointId | None = None
        self.promised = -1
        #: Barriers that the source still has to inject, oldest first.
        self.triggers: list[TriggerCheckpoint] = []
        #: Orders for checkpoints up to this one are old.
        self.newest: CheckpointId | None = None
        #: Barriers up to this one are of no interest any more: cut already, or given up.
        self.passed: CheckpointId | None = None
        #: Snapshots to be reported: the cluster takes them from here.
        self.snapshots: list[Snapshot] = []
        self.final: CheckpointId | None = None
        self.final_committed = False
        self.written: list[Row] = []

    # --- orders --------------------------------------------------------------------------------------------------

    def propose(self, checkpoint: CheckpointId) -> int | None:
        """The round at whose end the sources hold; None for an old order."""
        if self._is_old(checkpoint):
            return None
        if not self.is_source:
            return -1
        if self.data_ended:
            return self.state.round
        if self.holds_for is None or self.state.round <= self.promised:
            self.promised = self.state.round
        self.holds_for = checkpoint
        return self.promised

    def order_barrier(self, command: TriggerCheckpoint) -> None:
        if self._is_old(command.checkpoint) or (self.passed is not None and command.checkpoint <= self.passed):
            return  # its barrier came through a channel already: one snapshot per checkpoint
        self.newest = command.checkpoint
        self.holds_for = None
        if self.is_source and not self.data_ended:
            self.triggers.append(command)
            if command.at_round is not None and self.state.round > command.at_round:
                self._inject()
        elif self.is_source:
            self._cut(command.checkpoint, command.kind)
        else:
            for channel in self.inputs:
                rows = [element for element in channel.elements if element[0] == "row"]
                assert not rows, f"{self.id} is triggered though {channel.producer} still feeds it: {rows}"
                channel.barrier = None if channel.closed else command.checkpoint
            self._fed_by_nobody(command)

    def _fed_by_nobody(self, command: TriggerCheckpoint) -> None:
        self._align(command.checkpoint)

    def expect(self, checkpoint: CheckpointId) -> None:
        if self.feed is not None:
            self.feed.expected = checkpoint

    def abort(self, checkpoint: CheckpointId) -> None:
        self.newest = checkpoint if self.newest is None else max(self.newest, checkpoint)
        if self.holds_for is not None and self.holds_for <= checkpoint:
            self.holds_for = None
        self.triggers = [trigger for trigger in self.triggers if trigger.checkpoint > checkpoint]
        self._pass(checkpoint)

    def committed(self, checkpoint: CheckpointId) -> None:
        if self.final is not None and checkpoint >= self.final:
            self.final_committed = True
        if self.feed is not None:
            self.feed.sequencer.committed(checkpoint)

    def _is_old(self, checkpoint: CheckpointId) -> bool:
        return self.newest is not None and checkpoint <= self.newest

    # --- work ----------------------------------------------------------------------------------------------------

    def is_runnable(self) -> bool:
        """Whether ``step`` would do something."""
        if not self.started or self.finished or self.snapshots:
            return False
        if self._may_finish():
            return True
        if self.triggers and self.triggers[0].at_round is None:
            return True  # a barrier needs no credit
        if any(len(channel.elements) >= CAPACITY for _, _, channel in self.outputs):
            return False
        if self.is_source:
            # it is held once it has sent the end of the promised round
            held = self.holds_for is not None and self.state.round > self.promised
            return not self.data_ended and not held
        return any(self._welcome(channel) for channel in self.inputs)

    def step(self, choice: int) -> None:
        """One row, one round's end, one element, or the end."""
        if self._may_finish():
            self.finished = True
            self._send(("closed", None))
        elif self.is_source:
            self._read()
        else:
            ready = [channel for channel in self.inputs if self._welcome(channel)]
            channel = ready[choice % len(ready)]
            self._take(channel, *channel.elements.popleft())

    def _may_finish(self) -> bool:
        consumed = all(channel.all_processed for _, _, channel in self.outputs)
        consumed = consumed and (self.feed is None or self.feed.sequencer.is_finished)
        return self.data_ended and self.final_committed and consumed and all(c.closed for c in self.inputs)

    def _left(self, lane: int) -> int:
        return 0 if self.is_over else self.flow.rows[self.id.vertex][lane] - self.state.cursors[lane]

    def _rows_left_in_round(self) -> list[int]:
        limit = (self.state.round + 1) * ROWS_PER_ROUND
        return [lane for lane in self.lanes if self._left(lane) and self.state.cursors[lane] < limit]

    def _read(self) -> None:
        free = bool(self.triggers) and self.triggers[0].at_round is None
        lanes = self._rows_left_in_round()
        if free:
            self._inject()
        elif lanes:
            lane, cursor = lanes[0], self.state.cursors[lanes[0]]
            self.state.cursors[lane] += 1
            self._emit((self.state.round, lane, cursor), (lane, f"{self.id.vertex}/{lane}/{cursor}"))
        elif any(map(self._left, self.lanes)) or self.holds_for is not None:
            self._send(("round", self.state.round))
            self.state.round += 1
            at = self.triggers[0].at_round if self.triggers else None
            if at is not None and self.state.round > at:
                self._inject()
        else:
            self._send(("round", self.state.round))
            self._end_data(drain=True)
            self._inject()

    def _inject(self) -> None:
        while self.triggers:
            trigger = self.triggers.pop(0)
            if trigger.stop is not None and not self.data_ended:
                self._end_data(drain=trigger.stop is StopMode.DRAIN)
            self._cut(trigger.checkpoint, trigger.kind)

    def _welcome(self, channel: Channel) -> bool:
        if not channel.elements or channel.closed:
            return False
        if channel.elements[0][0] == "closed":
            return True
        if self.feed is not None and not self._is_aligning and not self.feed.accepts_rows(self.passed):
            return False
        blocked = channel.barrier is not None or (self.flow.graph.deterministic and channel.round > self.state.round)
        return not blocked

    @property
    def _is_aligning(self) -> bool:
        """Whether some barriers of a checkpoint have come, and others not."""
        return False  # of aligned barriers none counts as passed before all have come

    def _take(self, channel: Channel, kind: str, content: object) -> None:
        match kind:
            case "row":
                tag, (key, value) = content  # type: ignore[misc]
                self._accept(tag, (digest(value) % LANES if channel.rekey else key, value))
            case "round":
                channel.round = max(channel.round, content)  # type: ignore[call-overload]
            case "barrier":
                if self.passed is None or content > self.passed:  # type: ignore[operator]
                    channel.barrier = content  # type: ignore[assignment]
            case "data ended":
                channel.data_ended = channel.all_processed = True
                channel.drained = bool(content)
            case "closed":
                channel.closed = True
        self._end_rounds()
        if all(c.data_ended for c in self.inputs) and not self.data_ended:
            self._end_data(all(c.drained for c in self.inputs))
        barriers = [c.barrier for c in self.inputs if c.barrier is not None]
        if barriers:
            self._align(max(barriers))

    def _accept(self, tag: Tag, row: Row) -> None:
        if self.flow.graph.deterministic:
            self.state.held.append((tag, row))
        else:
            self._process(tag, row)

    def _end_rounds(self) -> None:
        """Deterministic flows: go on to the next round once every channel that has more to come has ended this one.

        A producer that was only suspended has more to come: whoever restores the savepoint reads on there.
        """
        open_channels = [channel for channel in self.inputs if not (channel.data_ended and channel.drained)]
        if not self.flow.graph.deterministic or not open_channels:
            return
        if all(channel.round > self.state.round for channel in open_channels):
            self.state.round = min(channel.round for channel in open_channels)
            self._process_held(self.state.round)
            self._send(("round", self.state.round))

    def _process_held(self, until: int) -> None:
        due = sorted(held for held in self.state.held if held[0][0] <= until)
        self.state.held = [held for held in self.state.held if held[0][0] > until]
        for tag, row in due:
            self._process(tag, row)

    def _process(self, tag: Tag, row: Row) -> None:
        count, total = self.state.totals.get(row[0], (0, 0))
        self.state.totals[row[0]] = (count + 1, total + digest(row[1]) % 1000)
        self._emit(tag, row)

    def _emit(self, tag: Tag, row: Row) -> None:
        if self.feed is not None:
            self.feed.sequencer.accept(FeedRows((row[1],)), final=tag[0] == LAST_ROUND)
        elif self.is_sink:
            self.written.append(row)
        for number, edge in enumerate(self.flow.graph.edges):
            if edge.source == self.id.vertex:
                self._route(number, edge, tag, row)

    def _route(self, number: int, edge: JobEdge, tag: Tag, row: Row) -> None:
        """Send the row to whoever owns its lane there."""
        key = digest(row[1]) % LANES if edge.pattern is Pattern.ALL_TO_ALL else row[0]
        consumer = TaskId(edge.target, lane_owner(key, self.flow.graph.parallelism[edge.target], LANES))
        channel = next(c for n, to, c in self.outputs if n == number and to == consumer)
        channel.elements.append(("row", (tag, row)))

    def _end_data(self, drain: bool) -> None:
        if drain and not self.is_over:
            self._flush()
            if self.feed is not None:
                self.feed.sequencer.end()
        self.data_ended = True
        self._send(("data ended", drain))

    def _flush(self) -> None:
        self._process_held(LAST_ROUND)
        if not self.is_source:
            for lane in self.lanes:
                if lane not in self.state.flushed:
                    count, total = self.state.totals.get(lane, (0, 0))
                    self.state.flushed.add(lane)
                    tag = (LAST_ROUND, lane, digest(self.id.vertex))
                    self._emit(tag, (lane, f"{self.id.vertex} counts {count} sums {total} in {lane}"))

    def _send(self, element: tuple[str, object]) -> None:
        for _, _, channel in self.outputs:
            channel.elements.append(element)

    # --- the cut -------------------------------------------------------------------------------------------------

    def _align(self, checkpoint: CheckpointId) -> None:
        """A closed channel counts as aligned; an older barrier gives way to a newer one."""
        for channel in self.inputs:
            if channel.barrier is not None and channel.barrier < checkpoint:
                channel.barrier = None
        if all(channel.closed or channel.barrier == checkpoint for channel in self.inputs):
            self._cut(checkpoint)

    def _barrier_word(self, kind: BarrierKind) -> str:
        """How a barrier of the kind travels."""
        return "barrier"

    def _pass(self, checkpoint: CheckpointId) -> None:
        self.passed = checkpoint if self.passed is None else max(self.passed, checkpoint)
        for channel in self.inputs:
            if channel.barrier is not None and channel.barrier <= checkpoint:
                channel.barrier = None

    def _cut(self, checkpoint: CheckpointId, kind: BarrierKind = BarrierKind.SAVEPOINT) -> None:
        """``kind``: of the barrier, where it begins; one that was aligned for is passed on as such."""
        self._pass(checkpoint)
        self._send((self._barrier_word(kind), checkpoint))
        if self.data_ended and self.final is None:
            self.final = checkpoint
        self.snapshots.append((checkpoint, self._state_at(checkpoint), self.data_ended, self._take_written()))

    def _state_at(self, checkpoint: CheckpointId) -> TaskState:
        state = self.state.copy()
        state.feed = self.feed.sequencer.snapshot(checkpoint) if self.feed is not None else None
        return state

    def _take_written(self) -> list[Row]:
        """What the sink has written since the last cut."""
        written, self.written = self.written, []
        return written
