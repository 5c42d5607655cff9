"""Builds what a task is made of: channels, sources, operators and drivers, from the plan of its stage.

Rule: what is inside a task is wired directly, what leaves it through the owner's :class:`Wiring`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ..core.channel_states import EndState
from ..core.errors import PenstockError
from ..core.identity import Attempt, TaskId
from ..core.offering import offers
from ..core.operator import EVERYWHERE, LANE, OperatorContext, PickingOperator, run_at_once
from ..core.source import Condition
from ..core.traits import traits_of
from ..core.user_code import is_users_object
from ..exchange.channels import ChannelId, Frame, InputChannel, OutputChannel, ResultPartition, Upstream
from ..exchange.flight import Flight, FlightReader
from ..exchange.input_gate import ArrivalInputGate, GateInput, InputGate, SpoolingInputGate, UnorderedInputGate
from ..exchange.result_partition import result_partition_of
from ..expressions.kernel_calls import columns_read
from ..integrity.lane_digests import LaneDigests
from ..integrity.row_digests import RowDigest
from ..operators.rowwise.filter import FilterCondition
from ..plan.plan import (
    EarlyFilterPlan,
    Exchange,
    JobPlan,
    KeyFilterPlan,
    OperatorPlan,
    PipelinePlan,
    PortPlan,
    SourcePlan,
)
from ..plan.rounds import LANES_AT_ONCE
from ..scheduler.protocol import Query
from ..sources.picking import EarlyCondition, Keys, Pick
from ..sources.reader import SplitReader
from ..state.change_log import StatePart, let_go
from ..state.memory import TaskMemory
from ..state.write_behind import WriteBehind
from . import orders
from .chain_flight import OperatorPlace
from .checkpointing import DriverHost, WindowedCheckpointing
from .driver import Driver, DriverSchemas
from .driver_shape import Shapes
from .key_meetings import KeyMeeting, KeyMeetings, Listener
from .moved_flight import moved
from .operator_chain import (
    Division,
    EndedOperator,
    OperatorInstance,
    build_error_context,
    check_members,
    divide,
    operator_context,
)
from .part_sizes import PartSizes
from .places import PLACES, DriverPlace, fitted, put_back
from .restored import Restored

if TYPE_CHECKING:
    from ..feed.server import FeedServer


class Wiring(Protocol):
    """How elements leave the task. Called on the task's thread; must not block."""

    def send(self, frame: Frame) -> None:
        """To the consumer's task."""

    def reply(self, message: Upstream) -> None:
        """To the producer's task."""


@dataclass(slots=True)
class TaskParts:
    """The parts. ``drivers`` are in order downstream first."""

    drivers: list[Driver] = field(default_factory=list)
    #: channels from other tasks, with the driver that reads them
    inputs: dict[ChannelId, tuple[InputChannel, Driver]] = field(default_factory=dict)
    #: channels to other tasks, with the driver that feeds them
    outputs: dict[ChannelId, tuple[OutputChannel, Driver]] = field(default_factory=dict)
    #: drivers that end in a throttled operator, which commits let go on
    throttled: list[Driver] = field(default_factory=list)
    #: drivers that read from other tasks, with the numbers of those feeds among all their feeds
    entries: dict[Driver, list[int]] = field(default_factory=dict)
    memory: TaskMemory = field(default_factory=TaskMemory)
    #: rows of the flight that the task was restored with, the one that says where each stood among them
    opening: int = 0
    #: what joins drivers to each other and to other threads
    joints: list[_LocalEdge | _Background] = field(default_factory=list)

    def reader(self, source: str) -> tuple[SplitReader, Driver]:
        """A source and the driver that reads it."""
        found = ((reader, driver) for driver in self.drivers for reader in driver.readers)
        return next((reader, driver) for reader, driver in found if reader.operator == source)

    @property
    def ends_agree(self) -> bool:
        """Whether every consumer, in other tasks and outside, has processed everything, and every input is closed."""
        processed = all(driver.is_released for driver in self.drivers) and all(
            output.end_of_data_acknowledged for output, _ in self.outputs.values()
        )
        return processed and all(channel.closed for channel, _ in self.inputs.values())

    def release(self) -> None:
        """Break the circles between drivers, channels, operators and task, once everything is closed."""
        drivers, self.drivers, self.throttled = self.drivers, [], []
        for each in (*drivers, *self.joints):
            each.release()
        self.joints.clear()
        self.inputs.clear()
        self.outputs.clear()
        self.entries.clear()
        self.memory.release()


class _Background:
    """Runs the waiting work of one driver's operators (``operators.protocol.Background``), and writes for them."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self.driver: Driver | None = None
        self.writing = WriteBehind(self, self._post)
        self.spilling = WriteBehind(self, self._post, limit=0)

    def _post(self, action: Callable[[], object]) -> None:
        if self.driver is not None:
            self.driver.send(orders.CallBack(action))

    def release(self) -> None:
        """There is nothing more to do."""
        self.driver = None
        del self.writing, self.spilling, self._query

    def wake(self) -> None:
        """Let the driver look again (``OperatorContext.wake``)."""
        if self.driver is not None:
            self.driver.send(orders.CheckEnd())

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._run(work, done)

    def elsewhere(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """``OperatorContext.elsewhere``."""
        self._run(work, done, is_long=True)

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None], *, is_long: bool = False) -> None:
        if self.driver is None or self.driver.handle is None:  # it restores state, which may have to be spilled
            run_at_once(work, done)
        else:
            self._query.background(work, done, self.driver.handle, is_long=is_long)


class _LocalEdge:
    """A channel inside the task. Its ends find their drivers once these exist."""

    def __init__(self, id: str, task: TaskId, attempt: Attempt) -> None:
        channel, attempts = ChannelId(id, task, task), (attempt, attempt)
        self.producer: Driver | None = None
        self.consumer: Driver | None = None
        self.output = OutputChannel(channel, attempts, self._forward)
        self.input = InputChannel(channel, attempts, self._back)

    def release(self) -> None:
        """Nothing passes any more."""
        self.producer = self.consumer = None
        del self.output, self.input

    def _forward(self, frame: Frame) -> None:
        if self.consumer is not None:
            self.consumer.send(orders.Receive(self.input, frame))

    def _back(self, message: Upstream) -> None:
        if self.producer is not None:
            self.producer.deliver(self.output, message)


def build_parts(
    plan: JobPlan,
    task: TaskId,
    attempts: Mapping[TaskId, Attempt],
    restored: Mapping[str, pa.Table] | Restored,
    wiring: Wiring,
    host: DriverHost,
    query: Query,
    *,
    more_splits: bool = False,
    feeds: Mapping[str, FeedServer] | None = None,
    meetings: KeyMeetings | None = None,
) -> TaskParts:
    """Build the parts of ``task``; ``restored`` holds the state of several subtasks, of which its lanes are picked.

    ``more_splits``: sources expect splits beyond those of the plan. ``query``: what runs work in the background.
    ``feeds``: the servers of the job's feeds; ``meetings``: of the process, if all tasks of the job run in it.
    """
    stored = restored if isinstance(restored, Restored) else Restored(restored)
    builder = _Builder(plan, task, attempts, stored, wiring, host, query)
    builder.more_splits, builder.feeds, builder.meetings = more_splits, feeds or {}, meetings
    try:
        return builder.build()
    except BaseException:
        builder.discard()
        raise


class _Builder:
    def __init__(
        self,
        plan: JobPlan,
        task: TaskId,
        attempts: Mapping[TaskId, Attempt],
        restored: Restored,
        wiring: Wiring,
        host: DriverHost,
        query: Query,
    ) -> None:
        self._query = query
        self._plan, self._task, self._attempts = plan, task, attempts
        self._restored, self._wiring, self._host = restored, wiring, host
        self._stage = plan.stages[task.vertex]
        self._lanes = self._stage.lanes_of(task.subtask)
        self._reweights = (*plan.reweights, *restored.reweights)
        self._parts = TaskParts(memory=TaskMemory(plan.memory_budget))
        self._edges: dict[str, _LocalEdge] = {}
        self.more_splits = False
        self.feeds: Mapping[str, FeedServer] = {}
        self.meetings: KeyMeetings | None = None
        self._own_meetings = KeyMeetings()
        self._built: list[OperatorInstance] = []
        #: what the task goes on with that was in flight, if it was cut as a whole, or those were whose lanes it has
        self._flight: Flight | None = None
        self._is_moved = False
        #: where the drivers stood at the cut that the task is restored from
        self._places: Mapping[str, DriverPlace] = {}
        self._shapes = Shapes(plan, self._stage)

    def _take_flight(self, flights: Sequence[Flight]) -> None:
        """Go on with what was in flight: as it stood, or, if other lanes were cut than the task's, with their part."""
        found, lanes = PLACES.decode(flights[0].place), (self._lanes.start, self._lanes.stop)
        self._flight, self._is_moved = flights[0], len(flights) > 1 or found.lanes != lanes
        if self._is_moved:
            self._flight, left = moved(flights, self._lanes)
            found = PLACES.decode(self._flight.place)
            self._parts.opening += left
        self._places = fitted(found.drivers, self._shapes.found)[0]
        self._parts.opening += 1

    def build(self) -> TaskParts:
        if self._restored.flights:
            self._take_flight(self._restored.flights)
        for pipeline in self._stage.pipelines:
            for output in pipeline.outputs:
                if output.kind == "local":
                    self._edges[output.id] = _LocalEdge(output.id, self._task, self._attempts[self._task])
                    self._parts.joints.append(self._edges[output.id])
        for pipeline in self._stage.pipelines:
            self._parts.drivers.insert(0, self._driver(pipeline))
        for parts in self._restored.parts.values():
            let_go(parts)
        return self._parts

    def discard(self) -> None:
        """Close what was built before something else could not be."""
        for operator in self._built:
            with suppress(PenstockError), operator_context(operator):
                operator.running.close()
        self._parts.release()

    def _driver(self, pipeline: PipelinePlan) -> Driver:
        background = _Background(self._query)
        self._parts.joints.append(background)
        place = self._places.get(pipeline.name)
        feeds = [self._feeds(port, background, anew=place is None) for port in pipeline.ports]
        chain = () if place is None else place.chain.places
        stood = chain or (OperatorPlace(),) * len(pipeline.operators)
        operators = [
            self._operator(operator, background, at) for operator, at in zip(pipeline.operators, stood, strict=True)
        ]
        self._push_down(pipeline, feeds, operators, background)
        partitions = [self._outlet(output.kind, output.id) for output in pipeline.outputs]
        readers = [feed for found in feeds for feed in found if isinstance(feed, SplitReader)]
        gates = [self._gate(port, found, background) for port, found in zip(pipeline.ports, feeds, strict=True)]
        leaving = next((self._exchange(each.id).schema for each in pipeline.outputs if each.kind != "local"), None)
        schemas = self._schemas(pipeline, leaving)
        driver = Driver(pipeline.name, gates, operators, partitions, self._host, readers, leaving, schemas)
        driver.clock, driver.shape = time.perf_counter, partial(self._shapes.of, pipeline.name)
        driver.writing, driver.spilling = background.writing, background.spilling
        if self.more_splits:
            driver.checkpointing = WindowedCheckpointing(driver)
        background.driver = driver
        if place is not None and self._flight is not None:
            reader = FlightReader(self._flight.tables)
            put_back(driver, place, reader)
            self._parts.opening += reader.rows
        self._register(driver, pipeline, feeds, [channel for partition in partitions for channel in partition.channels])
        return driver

    @cached_property
    def _local_schemas(self) -> dict[str, pa.Schema]:
        """Of the edges within the task."""
        ports = (port for pipeline in self._stage.pipelines for port in pipeline.ports)
        return {port.id: port.schema for port in ports if port.kind == "local"}

    def _schemas(self, pipeline: PipelinePlan, leaving: pa.Schema | None) -> DriverSchemas:
        local = (self._local_schemas[output.id] for output in pipeline.outputs if output.id in self._local_schemas)
        out = next(local, None) if leaving is None else leaving
        return DriverSchemas(
            [port.schema for port in pipeline.ports], [each.inputs for each in pipeline.operators], out
        )

    def _push_down(
        self,
        pipeline: PipelinePlan,
        feeds: Sequence[Sequence[GateInput]],
        operators: Sequence[OperatorInstance],
        background: _Background,
    ) -> None:
        """Let readers apply the filters that stand directly behind their source, leave out what operators further down
        and joins drop, and give what these take. What is audited is read whole."""
        for port, (reader, *_) in zip(pipeline.ports, feeds, strict=True):
            if port.spooled or not isinstance(reader, SplitReader) or reader.handed_on:
                continue
            conditions: list[Condition] = []
            for each in operators if len(pipeline.ports) == 1 else ():
                if each.is_users or not offers(each.running, PickingOperator):
                    break
                conditions.append(each.running.condition(port.schema))
            found = tuple(takewhile(lambda condition: condition.columns, conditions))
            early = tuple(_early(each, port.schema) for each in self._plan.early_filters if each.source == port.id)
            meetings = [met for each in self._plan.key_filters if each.source == port.id for met in self._meet(each)]
            joins = tuple(
                Keys(each.filter, each.planned.columns, each.is_awaited, each.planned.join) for each in meetings
            )
            compact = bool(operators) and not operators[0].plain
            reader.pick(Pick(port.schema, found, joins, early=early) if found or joins or early else None, compact)
            for meeting in meetings:
                meeting.wake(background.wake)

    def _meet(self, planned: KeyFilterPlan) -> Iterator[KeyMeeting]:
        """The meeting of this task with a join, or of a join in it with readers, unless others have the rows, too."""
        subtasks = range(self._plan.stages[planned.stage].parallelism) if planned.scattered else (self._task.subtask,)
        joins = [TaskId(planned.stage, subtask) for subtask in subtasks]
        is_here = self.meetings is not None or joins == [self._task]
        if is_here and not self.more_splits and all(each in self._attempts for each in joins):
            yield (self.meetings or self._own_meetings).of(planned, [(each, self._attempts[each]) for each in joins])

    def _listeners(self, operator: str) -> dict[int, list[Listener]]:
        """Who reads the inputs of a join, by port."""
        found: dict[int, list[Listener]] = {}
        for planned in self._plan.key_filters:
            if planned.join == operator:
                found.setdefault(planned.port, []).extend(met.listener(self._task) for met in self._meet(planned))
        return found

    def _register(
        self, driver: Driver, pipeline: PipelinePlan, feeds: Sequence[Sequence[GateInput]], outputs: list[OutputChannel]
    ) -> None:
        if driver.chain.throttled is not None:
            self._parts.throttled.append(driver)
        number = 0
        for port, found in zip(pipeline.ports, feeds, strict=True):
            for feed in found:
                if port.kind == "local":
                    self._edges[port.id].consumer = driver
                elif isinstance(feed, InputChannel):
                    self._parts.inputs[feed.channel] = (feed, driver)
                    self._parts.entries.setdefault(driver, []).append(number)
                number += 1
        for output in pipeline.outputs:
            if output.kind == "local":
                self._edges[output.id].producer = driver
        for channel in outputs:
            if channel.channel.consumer != self._task:
                self._parts.outputs[channel.channel] = (channel, driver)

    def _feeds(self, port: PortPlan, background: _Background, *, anew: bool) -> Sequence[GateInput]:
        if port.kind == "local":
            return [self._edges[port.id].input]
        if port.kind == "exchange":
            exchange = self._exchange(port.id)
            producers = exchange.peers_of(self._task.subtask, self._plan.stages[exchange.source].parallelism)
            return [self._input(exchange, TaskId(exchange.source, subtask)) for subtask in producers]
        source = self._plan.sources[port.id]
        state = self._state(port.id)
        if anew or self._is_moved:
            state = saying_its_end(state)
        return [
            SplitReader(
                source.id,
                source.schema,
                source.splits,
                self._lanes,
                self._plan.lanes,
                quota=None if self.more_splits else source.quota,
                rate=source.rate,
                restored=state,
                more=self.more_splits,
                background=background,
                epochs=self._plan.epochs if source.repeats else None,
                handed_on=self._handed_on(source, state),
                at_once=self._lanes_at_once,
            )
        ]

    @property
    def _lanes_at_once(self) -> int:
        """Two lanes of a source are read at once if there are threads for it, besides those of other subtasks here."""
        here = 1 if self.meetings is None else self._stage.parallelism
        return min(LANES_AT_ONCE, max(1, self._query.degree // here))

    def _handed_on(self, source: SourcePlan, state: pa.Table | None) -> LaneDigests | None:
        if self._plan.audit != "content":
            return None
        return LaneDigests(RowDigest(source.schema), state, self._plan.fingerprint)

    def _input(self, exchange: Exchange, producer: TaskId) -> InputChannel:
        channel = ChannelId(exchange.id, producer, self._task)
        return InputChannel(channel, self._pair(producer, self._task), self._wiring.reply)

    def _gate(self, port: PortPlan, feeds: Sequence[GateInput], background: _Background) -> InputGate:
        partitioned = port.kind == "exchange" and self._exchange(port.id).is_partitioned
        if partitioned:
            return UnorderedInputGate(feeds)
        gate = InputGate(feeds) if self._plan.deterministic or len(feeds) == 1 else ArrivalInputGate(feeds)
        disk = background.spilling
        account = self._parts.memory.account(port.id, disk)
        return SpoolingInputGate(gate, account, port.schema) if port.spooled else gate

    def _outlet(self, kind: str, id: str) -> ResultPartition:
        if kind == "local":
            return self._edges[id].output
        exchange = self._exchange(id)
        peers = exchange.peers_of(self._task.subtask, self._plan.stages[exchange.target].parallelism)
        consumers = [TaskId(exchange.target, subtask) for subtask in peers]
        channels = [
            OutputChannel(ChannelId(id, self._task, each), self._pair(self._task, each), self._wiring.send)
            for each in consumers
        ]
        return result_partition_of(exchange, channels)

    def _exchange(self, id: str) -> Exchange:
        return next(exchange for exchange in self._plan.exchanges if exchange.id == id)

    def _pair(self, producer: TaskId, consumer: TaskId) -> tuple[Attempt, Attempt]:
        return (self._attempts[producer], self._attempts[consumer])

    def _operator(self, operator: OperatorPlan, background: _Background, stood: OperatorPlace) -> OperatorInstance:
        division, state = self._division(operator.id), self._state(operator.id)
        if division.over:
            return OperatorInstance(operator.id, EndedOperator(state), operator.hold, self._lanes, division.ended)
        mine, carried = division.of_state(state)
        context = OperatorContext(
            operator=operator.id,
            task=self._task,
            attempt=self._attempts[self._task],
            parallelism=self._stage.parallelism,
            lanes=division.hull,
            job=self._plan.key,
            claim=self._plan.claim,
            memory=self._parts.memory.account(operator.id, background.spilling),
            background=background,
            elsewhere=background.elsewhere if self._plan.claim and not self._plan.fed else None,
            write=partial(background.writing.write, operator.id),
            wake=background.wake,
            holds=operator.hold,
            read_first=operator.read_first,
            epochs=self._plan.epochs,
            content=self._plan.audit == "content",
            listeners=self._listeners(operator.id),
            ports=stood.ports,
            last=stood.last,
            reweights=tuple(each for each in self._reweights if each.operator == operator.id),
            server=self.feeds.get(operator.id),
            stored=self._parts_of(operator.id, mine) if carried is None else (),
        )
        with build_error_context(operator.id):
            running = operator.config.build(context, operator.inputs, mine)
            is_users = is_users_object(running) or is_users_object(operator.config)
            if is_users:
                check_members(running, operator.is_sink)
            emits = operator.config.output_schema(operator.inputs) if is_users and not operator.is_sink else None
            traits = traits_of(operator.config)
            plain = () if traits.takes_compact else operator.inputs
        built = OperatorInstance(
            operator.id, running, operator.hold, self._lanes, division.ended, carried, plain, emits, is_users
        )
        built.reads_whole, built.cut, built.rows_at_once = operator.reads_whole, traits.cut, traits.rows_at_once
        if is_users and operator.is_sink and traits.rows_at_once is None and context.elsewhere is not None:
            built.part_sizes = PartSizes()
        self._built.append(built)
        return built

    def _division(self, operator: str) -> Division:
        """For which lanes the operator had finished; a feed is always built (``ended_operator``)."""
        if operator in self._plan.feeds:
            return Division(self._lanes, frozenset(), over=False)
        if self._restored.finished:
            return Division(self._lanes, frozenset(self._lanes), over=True)
        return divide(operator, self._lanes, self._restored.ended)

    def _state(self, operator: str) -> pa.Table | None:
        """The restored rows of the task's lanes; None if there are none."""
        table = self._restored.tables.get(operator)
        if table is None:
            return None
        lanes = table.column(LANE)
        if set(pc.min_max(lanes).as_py().values()) <= set(self._lanes):
            return table
        lane = pc.field(LANE)
        shared = lane == EVERYWHERE
        if self._flight is not None and "copy" in table.schema.names:
            shared &= pc.field("copy") == self._task.subtask  # others were cut elsewhere in the same rows
        mine = table.filter(((lane >= self._lanes.start) & (lane < self._lanes.stop)) | shared)
        return mine if mine.num_rows else None

    def _parts_of(self, operator: str, mine: pa.Table | None) -> tuple[StatePart, ...]:
        """Those of the restored state, if nothing in them is others'."""
        whole = self._restored.tables.get(operator)
        is_all = mine is not None and whole is not None and mine.num_rows == whole.num_rows
        return self._restored.parts.get(operator, ()) if is_all else ()


def saying_its_end(state: pa.Table | None) -> pa.Table | None:
    """The state of a source, of a task that begins to say everything anew: whatever was said of the end comes again."""
    if state is None or "said" not in state.schema.names:
        return state
    again = pa.array([EndState.OPEN.value] * state.num_rows, state.schema.field("said").type)
    return state.set_column(state.schema.get_field_index("said"), "said", again)


def _early(planned: EarlyFilterPlan, schema: pa.Schema) -> EarlyCondition:
    read = columns_read([planned.condition], schema)
    columns = [name for name in schema.names if name in read]
    return EarlyCondition(FilterCondition(planned.condition, schema, columns, None), " and ".join(planned.by))
