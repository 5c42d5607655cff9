"""One end of what a coordinator and one process of its job say to each other. Pure: no sockets, no threads, no clock.

A conversation belongs to one generation of the coordinator and one incarnation of the process; both ends begin with
nothing said. What is said is carried by a connection or, while there is none, by calls (Ray's). Rules:

1. Every message has a number. It is kept until the other end has said that it has come. All that is kept goes out
   again, in order, whenever another carrier takes over.
2. A message is taken once, in the order of the numbers, whatever carries it: what comes again is dropped, what comes
   early waits for what is missing.
3. So nothing is lost as long as one of the two carriers works. Who is dead is not for this module to say: a connection
   that ends says nothing but that.
4. The highest generation wins (:class:`Generations`): a process that has heard a coordinator takes nothing from those
   before it, and what it has not been rid of yet is for the new one.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import msgspec

Content = TypeVar("Content")

ACKNOWLEDGE_EVERY = 32
"""So many messages may have come before the other end is told without a message of our own that would tell it."""
FIRST_PAUSE = 0.05
"""Seconds, on average, before a lost connection is dialled again; each further try waits twice as long."""
LONGEST_PAUSE = 30.0


class Packet(msgspec.Struct, Generic[Content], frozen=True, array_like=True):
    """A message on its way. ``oldest``: the lowest number that is still kept there; what is before it has come.
    ``seen``: up to which number the sender has taken what the other end says."""

    number: int
    oldest: int
    seen: int
    content: Content


class Conversation(Generic[Content]):
    """One end. See the module's rules. ``content`` of ``put`` is what this end says; what it takes has been checked by
    who decoded it."""

    def __init__(self) -> None:
        #: what has been said and may not have come, by number; the last number
        self._kept: deque[tuple[int, Content]] = deque()
        self._said = 0
        #: all up to this number have been taken; those that came before one that is missing
        self.seen = 0
        self._early: dict[int, Content] = {}
        #: the other end knows that we have seen so many
        self._told = 0

    # ------------------------------------------------------------------ saying

    def put(self, content: Content) -> Packet[Content]:
        """Say something: what is to be carried now."""
        self._said += 1
        self._kept.append((self._said, content))
        return self._packet(self._said, content)

    def kept(self) -> list[Packet[Content]]:
        """All that may not have come, in order: what another carrier is to carry first."""
        return [self._packet(number, content) for number, content in self._kept]

    def acknowledged(self, seen: int) -> None:
        """The other end has taken everything up to ``seen``."""
        while self._kept and self._kept[0][0] <= seen:
            self._kept.popleft()

    def take_back(self) -> list[Content]:
        """The conversation is over: what may not have come, which is for another one."""
        left = [content for _, content in self._kept]
        self._kept.clear()
        return left

    def _packet(self, number: int, content: Content) -> Packet[Content]:
        self._told = self.seen
        return Packet(number, self._kept[0][0], self.seen, content)

    # ------------------------------------------------------------------ hearing

    def take(self, packet: Packet[Content]) -> list[Content]:
        """What is to be given on now that this has come, in order."""
        self.acknowledged(packet.seen)
        if packet.oldest - 1 > self.seen:
            self._skip(packet.oldest)
        if packet.number <= self.seen:
            return []
        if packet.number == self.seen + 1 and not self._early:
            self.seen += 1
            return [packet.content]
        self._early[packet.number] = packet.content
        taken = []
        while self.seen + 1 in self._early:
            self.seen += 1
            taken.append(self._early.pop(self.seen))
        return taken

    def _skip(self, oldest: int) -> None:
        """What is before ``oldest`` has been taken, if not by us: who was here before has said so."""
        self.seen = oldest - 1
        self._early = {number: each for number, each in self._early.items() if number > self.seen}

    def owes_word(self) -> bool:
        """Whether the other end should be told what has come, though there is nothing else to say."""
        return self.seen - self._told >= ACKNOWLEDGE_EVERY

    def tell_seen(self) -> int:
        """What has come; it is being told."""
        self._told = self.seen
        return self.seen

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        numbers = [number for number, _ in self._kept]
        assert numbers == list(range(self._said - len(numbers) + 1, self._said + 1)), numbers
        assert self._told <= self.seen
        assert all(number > self.seen + 1 for number in self._early), self._early


class Generations(Generic[Content]):
    """The end of a process: its conversation with the highest generation that it has heard of (rule 4)."""

    def __init__(self) -> None:
        self.generation = 0
        self.conversation: Conversation[Content] = Conversation()

    def hear(self, generation: int) -> bool:
        """A coordinator of this generation speaks. False: there has been a later one, and it is not listened to."""
        if generation > self.generation:
            self.generation, before = generation, self.conversation
            self.conversation = Conversation()
            for content in before.take_back():
                self.conversation.put(content)
        return generation == self.generation


def pause_before(tries: int, chance: float) -> float:
    """Seconds before a lost connection is dialled again, after so many ``tries``. ``chance``, between 0 and 1, spreads
    those who have lost theirs at the same moment."""
    return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(tries, 16)) * (0.5 + chance))
