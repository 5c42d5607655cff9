"""What a coordinator and a process say to each other arrives once and in order, whatever becomes of what carries it."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from penstock.actors.transport.conversation import (
    ACKNOWLEDGE_EVERY,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Conversation,
    Generations,
    Packet,
    pause_before,
)


def said(conversation: Conversation[str], *contents: str) -> list[Packet[str]]:
    return [conversation.put(each) for each in contents]


def test_message_is_taken_once_though_two_carriers_bring_it() -> None:
    near: Conversation[str] = Conversation()
    far: Conversation[str] = Conversation()
    (first,) = said(near, "trigger")
    assert far.take(first) == ["trigger"]
    assert near.kept() == [first]
    assert far.take(near.kept()[0]) == []


def test_what_comes_early_waits_for_what_is_missing() -> None:
    near: Conversation[str] = Conversation()
    far: Conversation[str] = Conversation()
    first, second = said(near, "trigger", "commit")
    assert far.take(second) == []
    assert far.take(first) == ["trigger", "commit"]


def test_what_has_come_is_not_kept_any_more() -> None:
    near: Conversation[str] = Conversation()
    far: Conversation[str] = Conversation()
    first, second = said(near, "trigger", "commit")
    far.take(first)
    near.take(far.put("acknowledged"))
    assert [packet.number for packet in near.kept()] == [second.number]


def test_end_that_only_listens_owes_word_after_a_while() -> None:
    near: Conversation[str] = Conversation()
    far: Conversation[str] = Conversation()
    for number in range(ACKNOWLEDGE_EVERY):
        assert not far.owes_word()
        far.take(near.put(str(number)))
    assert far.owes_word()
    near.acknowledged(far.tell_seen())
    assert not far.owes_word()
    assert near.kept() == []


def test_end_that_knows_nothing_of_what_came_before_goes_on_from_there() -> None:
    near: Conversation[str] = Conversation()
    said(near, "one", "two")
    near.acknowledged(2)
    new: Conversation[str] = Conversation()
    assert new.take(near.put("three")) == ["three"]


def test_later_generation_gets_what_the_one_before_may_not_have_taken() -> None:
    process: Generations[str] = Generations()
    assert process.hear(1)
    said(process.conversation, "came", "did not come")
    process.conversation.acknowledged(1)
    assert process.hear(2)
    assert [packet.content for packet in process.conversation.kept()] == ["did not come"]
    assert not process.hear(1)
    assert process.hear(2)


def test_pauses_grow_and_are_spread() -> None:
    assert pause_before(0, 0.0) == FIRST_PAUSE / 2
    assert pause_before(0, 1.0) == FIRST_PAUSE * 1.5
    assert pause_before(1, 0.5) == 2 * FIRST_PAUSE
    assert pause_before(10**6, 0.5) == LONGEST_PAUSE


# ---------------------------------------------------------------------- by seed


@dataclass
class Way:
    """What is on its way in one direction: in order on a connection that may be cut, in any order as calls, which may
    come twice."""

    connection: deque[Packet[int] | int] = field(default_factory=deque)
    calls: list[tuple[Packet[int], ...]] = field(default_factory=list)


class Simulated:
    """A process, and coordinators that come after each other and may both speak for a while."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.process: Generations[int] = Generations()
        #: by generation: the coordinator's end, what it has said, what it has taken
        self.ends: dict[int, Conversation[int]] = {}
        self.orders: dict[int, list[int]] = {}
        self.reports: dict[int, list[int]] = {}
        #: what the process has taken, and from whom
        self.taken: list[tuple[int, int]] = []
        self.said = 0
        #: the generation to which the connection leads; what is on its way to the process and from it, by generation
        self.connected: int | None = None
        self.down: dict[int, Way] = {}
        self.up: dict[int, Way] = {}
        self.new_coordinator()

    # -------------------------------------------------------------- what may happen

    def new_coordinator(self) -> None:
        number = len(self.ends) + 1
        self.ends[number] = Conversation()
        self.orders[number], self.reports[number] = [], []
        self.down[number], self.up[number] = Way(), Way()
        if self.chance.random() < 0.5:
            self.heard(number)  # the order to deploy, a call, has come

    def heard(self, generation: int) -> bool:
        """What the process does when it hears of a coordinator."""
        is_new = generation > self.process.generation
        listened = self.process.hear(generation)
        if is_new:
            self.cut()
            self.call(self.up[generation], self.process.conversation.kept())
        return listened

    def call(self, way: Way, packets: list[Packet[int]]) -> None:
        if packets:
            way.calls += [tuple(packets)] * self.chance.choice((1, 1, 2))

    def order(self) -> None:
        generation = self.chance.choice(list(self.ends))
        self.said += 1
        self.orders[generation].append(self.said)
        packet = self.ends[generation].put(self.said)
        if self.connected == generation:
            self.down[generation].connection.append(packet)
        else:
            self.call(self.down[generation], [packet])

    def report(self) -> None:
        generation = self.process.generation
        if not generation:
            return
        self.said += 1
        packet = self.process.conversation.put(self.said)
        if self.connected == generation:
            self.up[generation].connection.append(packet)
        else:
            self.call(self.up[generation], [packet])

    def cut(self) -> None:
        """The connection is lost, with what is on it."""
        generation, self.connected = self.connected, None
        if generation is None:
            return
        self.down[generation].connection.clear()
        self.up[generation].connection.clear()
        self.call(self.down[generation], self.ends[generation].kept())
        if generation == self.process.generation:
            self.call(self.up[generation], self.process.conversation.kept())

    def dial(self) -> None:
        generation = self.chance.choice(list(self.ends))
        if not self.heard(generation) or self.connected is not None:
            return
        end, mine = self.ends[generation], self.process.conversation
        self.connected = generation
        mine.acknowledged(end.tell_seen())
        end.acknowledged(mine.tell_seen())
        self.down[generation].connection.extend(end.kept())
        self.up[generation].connection.extend(mine.kept())

    def arrive(self) -> None:
        """One thing comes, wherever it is on its way."""
        generation = self.chance.choice(list(self.ends))
        way, at_process = self.chance.choice(((self.down[generation], True), (self.up[generation], False)))
        if way.connection and self.chance.random() < 0.5:
            self.take(generation, at_process, [way.connection.popleft()])
        elif way.calls:
            packets = way.calls.pop(self.chance.randrange(len(way.calls)))
            self.take(generation, at_process, list(packets), by_call=True)

    def take(self, generation: int, at_process: bool, packets: list[Packet[int] | int], by_call: bool = False) -> None:
        if at_process and not self.heard(generation):
            return
        mine = self.process.conversation if at_process else self.ends[generation]
        for packet in packets:
            if isinstance(packet, int):
                mine.acknowledged(packet)
                continue
            for content in mine.take(packet):
                if at_process:
                    self.taken.append((generation, content))
                else:
                    self.reports[generation].append(content)
        if mine.owes_word() and self.connected == generation:
            way = self.up[generation] if at_process else self.down[generation]
            way.connection.append(mine.tell_seen())
        if by_call:  # it comes back with what has been seen
            if at_process:
                self.ends[generation].acknowledged(mine.tell_seen())
            elif generation == self.process.generation:
                self.process.conversation.acknowledged(mine.tell_seen())

    # -------------------------------------------------------------- the run

    def run(self, steps: int) -> None:
        choices = [self.order, self.report, self.arrive, self.arrive, self.arrive, self.dial, self.cut]
        for _ in range(steps):
            if self.chance.random() < 0.01 and len(self.ends) < 4:
                self.new_coordinator()
            self.chance.choice(choices)()
            self.validate()
        while any(way.connection or way.calls for way in (*self.down.values(), *self.up.values())):
            self.arrive()

    def validate(self) -> None:
        for each in (self.process.conversation, *self.ends.values()):
            each.validate()
        generations = [generation for generation, _ in self.taken]
        assert generations == sorted(generations), "the highest generation wins"


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_everything_arrives_once_and_in_order_under_cuts_delays_doubles_and_new_coordinators(first: int) -> None:
    for seed in range(first, first + 50):
        world = Simulated(seed)
        world.run(400)
        for generation, orders in world.orders.items():
            taken = [content for heard, content in world.taken if heard == generation]
            assert taken == orders[: len(taken)], seed
        last = world.process.generation
        assert [content for heard, content in world.taken if heard == last] == world.orders.get(last, []), seed
        for reports in world.reports.values():
            assert reports == sorted(set(reports)), seed
        told = {content for reports in world.reports.values() for content in reports}
        ordered = {content for orders in world.orders.values() for content in orders}
        assert told | ordered == set(range(1, world.said + 1)), seed
