"""The ports of a driver and how far each has come. Rule: they go through the rounds in step (``Ports.readable``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..core.channel_states import DEMAND_MOVES, Demand
from ..core.elements import FINAL_ROUND, Batch
from ..core.state_machine import StateMachine
from ..exchange.input_gate import GateInput, InputGate
from ..integrity.lane_digests import LaneDigests
from ..integrity.tally import RunningTally

NO_FEEDS: set[int] = set()


@dataclass(slots=True)
class Port:
    """A gate and how far it has come."""

    gate: InputGate
    number: int
    #: number of the gate's first feed among all feeds of the driver
    base: int
    #: the last round that has ended here, ``FINAL_ROUND`` left aside: nobody runs ahead before the data have ended, too
    round: int = -1
    ended: bool = False
    #: batches that were given to the operators, and those that nobody needed
    taken: RunningTally = field(default_factory=RunningTally)
    dropped: RunningTally = field(default_factory=RunningTally)
    #: batches that the gate had put aside at the cut that is restored
    restored: RunningTally = field(default_factory=RunningTally)
    #: which of its rows the operators still need
    demand: StateMachine[Demand] = field(init=False)
    #: the operators know that no further row comes in this window
    window_ended: bool = False
    #: of a source whose rows are digested: what was given to the operators
    handed_on: LaneDigests | None = None
    #: the feed of a gate that has one and puts nothing aside: what it has to say is what the gate has
    only: GateInput | None = field(init=False)

    def __post_init__(self) -> None:
        plain = type(self.gate) is InputGate and len(self.gate.feeds) == 1
        self.only = self.gate.feeds[0] if plain else None
        self.demand = StateMachine(f"the demand on port {self.number}", DEMAND_MOVES, Demand.ALL)

    @property
    def cancelled(self) -> bool:
        """Whether no further row before the next task barrier matters."""
        return self.demand.state is not Demand.ALL

    def take(self, batch: Batch) -> None:
        """It goes to the operators, or to nobody."""
        (self.dropped if self.cancelled else self.taken).add(batch)
        if self.handed_on is not None and not self.cancelled:
            self.handed_on.take(batch.tag.lane, batch.records)

    def stands(self, behind: set[int]) -> bool:
        """Whether all of the gate's feeds are among ``behind``."""
        return bool(behind) and all(self.base + feed in behind for feed in range(len(self.gate.feeds)))

    def is_held(self, blocked: set[int]) -> bool:
        """Whether alignment blocks all feeds of the gate that may still have rows."""
        if not blocked:
            return False
        return all(feed.data_ended or self.base + number in blocked for number, feed in enumerate(self.gate.feeds))

    def blocked(self, feeds: set[int]) -> set[int]:
        """Which feeds of the gate are among ``feeds``, which are numbered over the whole driver."""
        return {feed - self.base for feed in feeds if feed >= self.base} if feeds else NO_FEEDS


class Ports:
    """All ports of a driver, numbered as the first operator knows them."""

    def __init__(self, gates: Sequence[InputGate]) -> None:
        self.all: list[Port] = []
        self.feeds: list[GateInput] = []
        #: those that have ended, as long as something because of that may be on its way
        self.undrained: list[Port] = []
        #: rounds up to this one have ended, however far a port is that is read behind another one
        self.past = -1
        for number, gate in enumerate(gates):
            self.all.append(Port(gate, number, len(self.feeds)))
            self.feeds += gate.feeds

    def readable(self, behind: set[int], wanted: Callable[[int], bool], blocked: set[int] = NO_FEEDS) -> Sequence[Port]:
        """The ports that may be read: a port that has ended a round which another one has not waits for that one, so
        that operators see the rounds one after the other, whichever port is faster. Nobody waits for ports of which all
        feeds stand ``behind`` a task barrier (what they say next belongs to the next window), nor for those that are
        not ``wanted``: there the operator itself waits for the others (a union that holds final rows, say); nor for
        those that stand at a checkpoint's barrier, with all feeds ``blocked``: they wait for the others' barriers. With
        order="arrival" these may stand in later rounds, after a restore from a cut between rounds."""
        round = self.all[0].round if self.all else 0
        for port in self.all:
            if port.round != round:
                break
        else:
            return self.all  # none is behind another
        live = [each for each in self.all if not (each.ended or each.stands(behind) or each.is_held(blocked))]
        waited = [port for port in live if wanted(port.number)]
        slowest = min((port.round for port in waited), default=FINAL_ROUND)
        return [port for port in self.all if port.ended or port.round <= slowest]

    def is_last(self, port: Port, behind: set[int], blocked: set[int] = NO_FEEDS) -> bool:
        """Whether another port stands behind a task barrier, or is ``blocked`` at a checkpoint's: what an operator
        refuses this one for cannot come."""
        return any(
            other.stands(behind) or (not other.ended and other.is_held(blocked))
            for other in self.all
            if other is not port
        )

    @property
    def any_cancelled(self) -> bool:
        """Whether rows of some port do not matter before the next task barrier."""
        return any(port.cancelled for port in self.all)

    @property
    def reached(self) -> int:
        """The last round that every live port has ended, or, if none is left, that any has."""
        live = [port.round for port in self.all if not port.ended]
        return max(self.past, min(live) if live else max(port.round for port in self.all))

    @property
    def ended(self) -> bool:
        """Whether the data of all ports have ended."""
        return all(port.ended for port in self.all)

    @property
    def closed(self) -> bool:
        """Whether the partitions of all feeds have ended."""
        return all(feed.closed for feed in self.feeds)

    def cancel(self, behind: set[int], needless: Callable[[int], bool], for_good: Callable[[int], bool]) -> None:
        """Tell the feeds of the ports of which ``needless`` holds that no more rows of this window are needed, or none
        ever, if ``for_good`` holds. Not those ``behind`` a task barrier: they are in the next window."""
        for port in self.all:
            if port.ended or port.demand.state is Demand.NONE or not needless(port.number):
                continue
            demand = Demand.NONE if for_good(port.number) else Demand.NEXT_WINDOW
            if port.demand.state is not demand:
                port.demand.move(demand)
                for number, feed in enumerate(port.gate.feeds):
                    if port.base + number not in behind:
                        feed.cancel_input(demand is Demand.NONE)

    def acknowledge_drained(self) -> None:
        """Tell the producers of ports that have ended that nothing is on its way because of that."""
        for port in self.undrained:
            for feed in port.gate.feeds:
                feed.acknowledge_drained()
        self.undrained.clear()

    def end_windows(self, behind: set[int]) -> list[int]:
        """The ports on which no further row comes before the next task barrier, as is known now and was not before."""
        found = []
        for port in self.all:
            if not (port.window_ended or port.ended) and port.gate.window_ends(port.blocked(behind)):
                port.window_ended = True
                found.append(port.number)
        return found

    def begin_window(self) -> None:
        """A task barrier has passed: rows matter again."""
        for port in self.all:
            port.window_ended = False
            if port.demand.state is Demand.NEXT_WINDOW:
                port.demand.move(Demand.ALL)
