"""Random channels through both ways to handle barriers, after the model of Flink's AlignedCheckpointsMassiveRandomTest.

Channels carry numbered data, barriers or cancel markers of growing checkpoints, and their end, in an order drawn from
a seed; arrivals, reads and aborts by the coordinator interleave at random. The gate validates the handler after every
event. Oracle: what a completed checkpoint holds of a channel (processed before the snapshot, captured in
the queue, kept on arrival) is exactly what preceded the channel's barrier, or its end, each item once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from penstock.engine.alignment import AlignedHandler, BarrierArrival
from support.barrier_gate import AtOnce, BarrierGate, BarrierItem, Cancel, Data, End, Item

MODES = {"aligned": AlignedHandler, "at once": AtOnce}
CHECKPOINTS = 8


@dataclass
class Traffic:
    """What the channels of one run carry, and the run."""

    seed: int
    mode: str
    #: whether checkpoints may be given up: by cancel markers, by the coordinator
    gives_up: bool = True

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.mode} {self.seed}")
        self.channels = self.random.randint(1, 4)
        self.scripts = [self.script() for _ in range(self.channels)]
        self.totals = [sum(isinstance(item, Data) for item in script) for script in self.scripts]

    def script(self) -> list[Item]:
        items: list[Item] = []
        last = self.random.choice([CHECKPOINTS, CHECKPOINTS, self.random.randint(0, CHECKPOINTS)])
        number = 0
        for checkpoint in range(last + 1):
            for _ in range(self.random.randint(0, 3)):
                items.append(Data(1, number))
                number += 1
            if checkpoint < last:
                items.append(self.marker(checkpoint))
        return [*items, End()]

    def marker(self, checkpoint: int) -> Item:
        if self.gives_up and self.mode == "aligned" and self.random.random() < 0.1:
            return Cancel(checkpoint)
        return BarrierItem(BarrierArrival(checkpoint, 0))

    def run(self, handler: AlignedHandler[int] | AtOnce) -> BarrierGate:
        gate = BarrierGate(handler, self.channels)
        left = [list(script) for script in self.scripts]
        busy = True
        while busy or any(left):
            action = self.random.random()
            if action < 0.45 and any(left):
                busy = True
                channel = self.random.choice([one for one, items in enumerate(left) if items])
                gate.arrive(channel, self.stamped(left[channel].pop(0), gate.now))
            elif action < 0.9:
                busy = gate.poll() is not None
            elif action < 0.97 or not self.gives_up:
                gate.now += self.random.randint(0, 8)
            else:
                busy = True  # an abort unblocks
                gate.abort(self.random.randrange(CHECKPOINTS))
        return gate

    def stamped(self, item: Item, now: int) -> Item:
        """The barrier as created a moment ago, so that some are late on arrival."""
        if not isinstance(item, BarrierItem):
            return item
        return BarrierItem(BarrierArrival(item.barrier.checkpoint, now - self.random.randint(0, 10)))

    def before(self, gate: BarrierGate, checkpoint: int, channel: int) -> list[int]:
        """The data that belong before the checkpoint."""
        return list(range(gate.ahead.get((checkpoint, channel), self.totals[channel])))


def contents(gate: BarrierGate, checkpoint: int, channel: int) -> list[int]:
    """The data that the checkpoint holds of the channel."""
    held = gate.processed[channel][: gate.cuts[checkpoint][channel]]
    if checkpoint in gate.captured:
        held = held + gate.captured[checkpoint][channel] + gate.kept[checkpoint][channel]
    return [item.number for item in held]


def check_cuts(traffic: Traffic, gate: BarrierGate) -> None:
    for checkpoint in gate.completed:
        for channel in range(traffic.channels):
            held, before = contents(gate, checkpoint, channel), traffic.before(gate, checkpoint, channel)
            assert held == before, f"checkpoint {checkpoint} cuts channel {channel} at the wrong place"


def check_reports(gate: BarrierGate) -> None:
    triggered = gate.triggered
    aborted = [one.checkpoint for one in gate.aborted]
    assert triggered == sorted(set(triggered)), "each checkpoint is triggered once, in the order of the ids"
    assert len(aborted) == len(set(aborted)), "each checkpoint is aborted once"
    assert not set(aborted) & set(gate.completed), "what is complete is not aborted"
    assert set(gate.completed) <= set(triggered), "what is complete was triggered"


@contextmanager
def named(traffic: Traffic) -> Iterator[None]:
    """A failure inside names the mode and the seed."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"traffic: {traffic.mode}, seed {traffic.seed}")
        raise


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("mode", MODES)
def test_completed_checkpoints_hold_exactly_what_precedes_the_barriers(mode: str, block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        traffic = Traffic(seed, mode)
        with named(traffic):
            gate = traffic.run(MODES[mode](traffic.channels))
            check_cuts(traffic, gate)
            check_reports(gate)
            assert not any(gate.queues), "no channel stays blocked"
            assert [len(items) for items in gate.processed] == traffic.totals
            assert not gate.handler.pending


def test_every_aligned_checkpoint_is_triggered_when_nobody_gives_one_up() -> None:
    for seed in range(100):
        traffic = Traffic(seed, "aligned", gives_up=False)
        with named(traffic):
            gate = traffic.run(AlignedHandler(traffic.channels))
            sent = {checkpoint for checkpoint, _ in gate.ahead}
            assert gate.triggered == sorted(sent)
            assert gate.aborted == []


def test_much_comes_behind_a_cut_and_ahead_of_its_barriers() -> None:
    gates = [(traffic := Traffic(seed, "at once")).run(AtOnce(traffic.channels)) for seed in range(50)]
    assert sum(len(gate.completed) for gate in gates) > 50
    for of in ("captured", "kept"):
        assert sum(len(items) for gate in gates for each in getattr(gate, of).values() for items in each) > 20


class Hasty(AlignedHandler[int]):
    """Blocks no channel."""

    def _blocks(self, barrier: BarrierArrival[int]) -> bool:
        return False


class Forgetful(AtOnce):
    """Keeps nothing of what is in flight."""

    def persists(self, channel: int) -> int | None:
        return None


@pytest.mark.parametrize(
    ("mode", "broken"),
    [("aligned", Hasty), ("at once", Forgetful)],
)
def test_oracle_catches_a_broken_handler(mode: str, broken: type[AlignedHandler[int]] | type[AtOnce]) -> None:
    caught = 0
    for seed in range(50):
        traffic = Traffic(seed, mode)
        gate = traffic.run(broken(traffic.channels))
        try:
            check_cuts(traffic, gate)
        except AssertionError:
            caught += 1
    assert caught > 0
