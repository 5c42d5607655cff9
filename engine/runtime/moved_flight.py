"""What tasks were in the middle of, handed to tasks of another parallelism: lane by lane. Pure.

Rules:

1. It is for stages without an exchange, whose operators hold nothing between batches, and whose sinks take each lane
   for itself (:func:`why_not_moved`). There every lane is read, changed and written by one task alone, and whatever is
   in flight is a batch of one lane: it goes to the task that has the lane now, in the place where it was (a queue
   between two drivers, before an operator, made and not sent).
2. What is in flight of a lane comes from one former task, and keeps its order. Between lanes there is none in such a
   stage; what is further down a chain goes first, as everywhere. What waits before the first operator of a driver goes
   back into its queue, as the operator may refuse more than it had taken of one former task.
3. Nothing is kept of ends of rounds and of data, and of calls without a batch: operators that hold nothing give nothing
   for them, and the readers of the new tasks say them all again, beginning with the smallest round of their lanes
   (``plan.rounds``, rule 6). A sink that takes each lane for itself may hear the end of a round twice, or of one before
   the first that it hears of not at all.
4. What is left of a call that is made again (``Aside.given``), the last tag of each lane, and that of its last part go
   with the lane.
5. Every row of a former flight goes to one task. Whoever takes his own counts those that go to others, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from ..core.elements import Batch, Tag
from ..core.operator import PortPlace
from ..core.traits import Emission, State, Traits, traits_of
from ..core.user_code import is_users_object
from ..exchange.flight import Flight, FlightReader, FlightWriter, Mark
from ..exchange.input_gate import GatePlace
from ..plan.plan import JobPlan, OperatorPlan, StagePlan
from .chain_flight import Aside, ChainFlight, OperatorPlace
from .driver_shape import DriverShape
from .places import PLACES, DriverPlace, FeedPlace, PortState, TaskPlace


def why_not_moved(plan: JobPlan, stage: StagePlan) -> str:
    """In words why what tasks of the stage are in the middle of belongs to their parallelism; "": it does not."""
    if any(stage.name in (each.source, each.target) for each in plan.exchanges):
        return f"stage {stage.name!r} has an exchange"
    for pipeline in stage.pipelines:
        if len(pipeline.ports) != 1 or any(port.spooled for port in pipeline.ports):
            return f"stage {stage.name!r} reads several streams at once"
        first = pipeline.operators[0] if pipeline.operators else None
        if first is not None and pipeline.ports[0].kind == "source" and _may_refuse(first):
            return f"{first.id!r} is given batches by a source itself, which takes none back"
        for operator in pipeline.operators:
            if not _is_moved(operator):
                return f"{operator.id!r} may hold something between batches"
    return ""


def _is_moved(operator: OperatorPlan) -> bool:
    traits: Traits = traits_of(operator.config)
    if operator.is_sink:
        return traits.lane_wise and not traits.throttled
    return traits.state is State.NONE and traits.emission is Emission.PER_BATCH


def _may_refuse(operator: OperatorPlan) -> bool:
    return traits_of(operator.config).asynchronous or is_users_object(operator.config)


@dataclass(slots=True)
class _InFlight:
    """What is in flight in one driver of a new task. ``aside``: a list for each operator, of entries and batches."""

    shape: DriverShape
    aside: list[list[tuple[Aside, Batch]]]
    last: list[dict[int, Tag]]
    taken: list[dict[int, Tag]]
    queued: list[Batch] = field(default_factory=list)
    pending: list[Batch] = field(default_factory=list)
    is_fed: bool = False


class _Mover:
    """Takes the flights of former tasks, gives that of the task that has ``lanes``."""

    def __init__(self, lanes: range) -> None:
        self._lanes = lanes
        self._drivers: dict[str, _InFlight] = {}
        #: rows of others, those that say where each stood among them
        self.left = -1

    def add(self, flight: Flight) -> None:
        """The flight of a former task."""
        reader, kept = FlightReader(flight.tables), 0
        for name, place in PLACES.decode(flight.place).drivers.items():
            kept += self._add(name, place, reader)
        self.left += 1 + reader.rows - kept

    def _mine(self, reader: FlightReader, marks: Iterable[Mark]) -> list[Batch]:
        found = [each for each in reader.take(marks) if isinstance(each, Batch)]
        return [each for each in found if each.tag.lane in self._lanes]

    def _add(self, name: str, place: DriverPlace, reader: FlightReader) -> int:
        """How many of the driver's rows are the new task's."""
        places = place.chain.places
        parts = self._drivers.get(name)
        if parts is None:
            nothing: list[list[tuple[Aside, Batch]]] = [[] for _ in places]
            parts = self._drivers[name] = _InFlight(place.shape, nothing, [{} for _ in places], [{} for _ in places])
        kept: list[Batch] = []
        parts.is_fed = any(feed is not None for port in place.ports for feed in port.feeds)
        waiting = iter(reader.take(place.asides))
        for each in place.chain.aside:
            batch = next(waiting) if each.has_batch else None
            if isinstance(batch, Batch) and batch.tag.lane in self._lanes:
                kept.append(batch)
                if each.operator == 0 and not each.method and parts.is_fed:
                    parts.queued.append(batch)
                else:
                    parts.aside[each.operator].append((each, batch))
        for port in place.ports:
            for feed in port.feeds:
                if feed is not None:
                    queued = self._mine(reader, (*feed.queued, *feed.recorded))
                    parts.queued += queued
                    kept += queued
        pending = self._mine(reader, place.pending)
        parts.pending += pending
        for number, found in enumerate(places):
            self._keep(found, parts.last[number], parts.taken[number])
        return sum(each.records.num_rows for each in (*kept, *pending) if each.records.num_columns)

    def _keep(self, place: OperatorPlace, last: dict[int, Tag], taken: dict[int, Tag]) -> None:
        last |= {lane: tag for lane, tag in place.last.items() if lane in self._lanes}
        for each in place.taken:
            taken |= {lane: tag for lane, tag in each.items() if lane in self._lanes}

    def flight(self) -> Flight:
        """What the new task goes on with."""
        writer = FlightWriter()
        drivers = {name: _place(parts, writer) for name, parts in self._drivers.items()}
        place = TaskPlace((self._lanes.start, self._lanes.stop), drivers)
        return Flight(msgspec.msgpack.encode(place), writer.tables())


def _place(parts: _InFlight, writer: FlightWriter) -> DriverPlace:
    # what is further down the chain goes first, and a call that is made again before batches that wait for its operator
    aside = [each for found in reversed(parts.aside) for each in sorted(found, key=lambda each: not each[0].method)]
    feed = FeedPlace(writer.put(parts.queued)) if parts.is_fed else None
    return DriverPlace(
        shape=parts.shape,
        data_ended=False,
        round=-1,
        past=-1,
        ports=(PortState(-1, False, GatePlace(), (), (feed,)),),
        chain=ChainFlight(
            tuple(entry for entry, _ in aside),
            tuple(
                OperatorPlace((PortPlace(),), last, taken=(taken,))
                for last, taken in zip(parts.last, parts.taken, strict=True)
            ),
        ),
        asides=writer.put([batch for _, batch in aside]),
        controls=(),
        pending=writer.put(parts.pending),
        dealt={},
    )


def moved(flights: Sequence[Flight], lanes: range) -> tuple[Flight, int]:
    """What a task that has ``lanes`` goes on with of these, and how many rows of theirs go on elsewhere, the one that
    says where each stood among them for all but one."""
    mover = _Mover(lanes)
    for flight in flights:
        mover.add(flight)
    return mover.flight(), mover.left
