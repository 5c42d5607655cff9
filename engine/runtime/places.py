"""Where everything of a task stood at a cut, as data: what its flight says besides rows.

Rules:

1. A place is taken while no thread is in a driver, and put back before the first step of another one. Then everything
   goes on as if there had been no cut.
2. What others say again is left out: how many bytes they may send, which rows they need (the consumers' to say), that
   a task is over (the coordinator's) and its partitions with it. What they do not say again is here.
3. A driver whose data had ended says their end again, behind what it had not sent: who has heard it does not hear it
   twice (``exchange.channels``), and answers again.
4. In a plan that has changed a driver goes on in a place if it reads and runs the same; it may have other outputs if
   nothing is on the way to them. Any other driver begins anew with the state of its operators, as behind an aligned
   checkpoint, and the place that it or its operators had must have been empty. Of a place of which nothing is left in
   the plan only rows would be missed. An operator that computes something else must not be in the middle of a call that
   is made again: it would leave out as many rows, but others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from ..core.channel_states import EndState
from ..core.elements import Barrier, Batch, CancelBarrier, Element, EndOfRound, is_task_barrier
from ..exchange.channels import InputChannel
from ..exchange.flight import FlightReader, FlightWriter, Mark, RowsMark
from ..exchange.input_gate import GatePlace
from ..exchange.result_partition import ShuffledPartition
from .chain_flight import ChainFlight
from .continuations import Control
from .driver import Driver
from .driver_shape import DriverShape


class FeedPlace(msgspec.Struct, frozen=True):
    """A channel: what was queued, and how far what was taken out had come. ``recorded``: what came behind the cut,
    ahead of its barrier."""

    queued: tuple[Mark, ...] = ()
    end: EndState = EndState.OPEN
    recorded: tuple[Mark, ...] = ()


class PortState(msgspec.Struct, frozen=True):
    """A port and its gate. ``feeds``: None for a source, whose state is a table."""

    round: int
    ended: bool
    gate: GatePlace
    aside: tuple[Mark, ...]
    feeds: tuple[FeedPlace | None, ...]


class DriverPlace(msgspec.Struct, frozen=True):
    """A driver. ``asides``: the batches that ``chain`` speaks of; ``dealt``: the state of the partitioner of each
    output, as Arrow IPC."""

    shape: DriverShape
    data_ended: bool
    round: int
    past: int
    ports: tuple[PortState, ...]
    chain: ChainFlight
    asides: tuple[Mark, ...]
    controls: tuple[Control, ...]
    pending: tuple[Mark, ...]
    dealt: dict[int, bytes]


class TaskPlace(msgspec.Struct, frozen=True):
    """A task that had ``lanes``, from the first up to, but not including, the second: its drivers, by name."""

    lanes: tuple[int, int]
    drivers: dict[str, DriverPlace]


PLACES: msgspec.msgpack.Decoder[TaskPlace] = msgspec.msgpack.Decoder(TaskPlace)


class Stranded(msgspec.Struct, frozen=True):
    """What is in flight somewhere and has no place in a plan: ``rows`` of batches, or other elements."""

    where: str
    rows: int


def fitted(
    places: Mapping[str, DriverPlace], shapes: Mapping[str, DriverShape], living: Collection[str] = ()
) -> tuple[dict[str, DriverPlace], list[Stranded]]:
    """The places of a task's drivers in a plan (rule 4), and what has none. ``living``: names of all operators of the
    plan."""
    found: dict[str, DriverPlace] = {}
    stranded: list[Stranded] = []
    left = dict(places)
    for name, shape in shapes.items():
        old = next((each for each, place in left.items() if place.shape.reads_and_runs_as(shape)), None)
        if old is None:
            continue
        place = left.pop(old)
        if place.shape.outputs != shape.outputs:
            on_the_way = [mark for mark in place.pending if isinstance(mark, RowsMark)]
            stranded += _held(", ".join(each.name for each in place.shape.outputs), on_the_way)
        numbers = {part: number for number, part in enumerate(shape.outputs)}
        was = place.shape.outputs
        dealt = {numbers[was[old]]: state for old, state in place.dealt.items() if was[old] in numbers}
        found[name] = msgspec.structs.replace(place, shape=shape, dealt=dealt)
        stranded += _half_given(place, shape)
    for place in left.values():
        known = any(each.name in living for each in place.shape.operators)
        stranded += [each for each in _all_held(place) if each.rows or known]
    return found, stranded


def _half_given(place: DriverPlace, shape: DriverShape) -> Iterator[Stranded]:
    """What operators that compute something else had given of a call that is made again."""
    for each in place.chain.aside:
        its = slice(each.operator, each.operator + 1)
        if each.given and place.shape.made[its] != shape.made[its]:
            where = f"{shape.operators[each.operator].name}, which was in the middle of what it gives"
            yield Stranded(where, sum(each.given.values()))


def _all_held(place: DriverPlace) -> Iterator[Stranded]:
    """All that is in flight in a driver."""
    for part, port in zip(place.shape.ports, place.ports, strict=True):
        feeds = [mark for feed in port.feeds if feed is not None for mark in (*feed.queued, *feed.recorded)]
        yield from _held(part.name, [*port.aside, *feeds])
    asides = iter(place.asides)
    for each in place.chain.aside:
        yield from _held(place.shape.operators[each.operator].name, [next(asides)] if each.has_batch else [None])
    where = ", ".join(each.name for each in (*place.shape.outputs, *place.shape.operators)[:1])
    yield from _held(where, [*place.pending, *place.controls])


def _held(where: str, marks: Sequence[Mark | Control | None]) -> Iterator[Stranded]:
    if marks:
        yield Stranded(where, sum(each.rows for each in marks if isinstance(each, RowsMark)))


def in_flight(elements: Iterable[Element]) -> Iterator[Element]:
    """Elements without barriers of checkpoints that were given up, which mean nothing. No task barrier is overtaken:
    a cut waits until none is queued."""
    for element in elements:
        if is_task_barrier(element) or not isinstance(element, Barrier | CancelBarrier):
            yield element


def capture(driver: Driver, writer: FlightWriter) -> DriverPlace:
    """Where a driver stands. Calls of operators that cannot be made again come to their end first."""
    schemas = driver.schemas
    chain, batches = driver.chain.capture()
    asides = [
        mark
        for each, batch in zip([each for each in chain.aside if each.has_batch], batches, strict=True)
        for mark in writer.put([batch], schemas.operators[each.operator][each.port])
    ]
    return DriverPlace(
        shape=driver.shape(),
        data_ended=driver.data_ended,
        round=driver.round,
        past=driver.ports.past,
        ports=tuple(_port(driver, number, writer) for number in range(len(driver.ports.all))),
        chain=chain,
        asides=tuple(asides),
        controls=driver.continuations.capture(chain),
        pending=writer.put(in_flight(driver.pending), schemas.leaving),
        dealt=_dealt(driver),
    )


def _port(driver: Driver, number: int, writer: FlightWriter) -> PortState:
    port, schema = driver.ports.all[number], driver.schemas.ports[number]
    gate, aside = port.gate.capture()
    feeds = [
        FeedPlace(writer.put(in_flight(feed.queued), schema), feed.end) if isinstance(feed, InputChannel) else None
        for feed in port.gate.feeds
    ]
    return PortState(port.round, port.ended, gate, writer.put(aside, schema), tuple(feeds))


def _dealt(driver: Driver) -> dict[int, bytes]:
    found = {}
    for number, partition in enumerate(driver.partitions):
        table = partition.snapshot() if isinstance(partition, ShuffledPartition) else None
        if table is not None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            found[number] = sink.getvalue().to_pybytes()
    return found


def with_recorded(
    place: DriverPlace, recorded: Mapping[int, Sequence[Element]], schemas: Sequence[pa.Schema], writer: FlightWriter
) -> DriverPlace:
    """The place, with what was recorded at feeds, by their numbers among all of the driver's; ``schemas``: of its
    ports."""
    ports, number = [], 0
    for port, schema in zip(place.ports, schemas, strict=True):
        feeds: list[FeedPlace | None] = []
        for feed in port.feeds:
            marks = writer.put(in_flight(recorded.get(number, ())), schema)
            feeds.append(None if feed is None else msgspec.structs.replace(feed, recorded=marks))
            number += 1
        ports.append(msgspec.structs.replace(port, feeds=tuple(feeds)))
    return msgspec.structs.replace(place, ports=tuple(ports))


def put_back(driver: Driver, place: DriverPlace, reader: FlightReader) -> None:
    """Let a new driver stand where another one stood."""
    driver.ports.past = place.past
    for port, state in zip(driver.ports.all, place.ports, strict=True):
        port.round, port.ended = state.round, state.ended
        aside = [element for element in reader.take(state.aside) if isinstance(element, Batch | EndOfRound)]
        port.gate.put_back(state.gate, aside)
        for element in aside:
            if isinstance(element, Batch):
                port.restored.add(element)
        feeds = list(zip(port.gate.feeds, state.feeds, strict=True))
        ended = all(feed.data_ended if at is None else at.end is not EndState.OPEN for feed, at in feeds)
        for feed, at in feeds:
            if isinstance(feed, InputChannel) and at is not None:
                feed.put_back(list(reader.take((*at.queued, *at.recorded))), at.end, drained=not ended)
        if ended:
            driver.ports.undrained.append(port)
    driver.chain.put_back(place.chain, [each for each in reader.take(place.asides) if isinstance(each, Batch)])
    driver.continuations.put_back(place.controls)
    driver.pending += reader.take(place.pending)
    for number, dealt in place.dealt.items():
        partition = driver.partitions[number]
        assert isinstance(partition, ShuffledPartition)
        partition.restore(pa.ipc.open_stream(dealt).read_all())
    driver.go_on_from(place.round, data_ended=place.data_ended)
