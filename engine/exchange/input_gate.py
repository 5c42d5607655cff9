"""The input side of a port: several channels merged into one sequence, ordered by tag.

Rules:

1. Batches are delivered in the order of their tags, whichever channel spoke first; a batch is delivered only when no
   channel can still send an earlier one. That is known from the channels' heads: tags on a channel only grow.
2. ``EndOfRound(r)`` is delivered once, when every live channel has ended round ``r``.
3. The end of ``FINAL_ROUND`` is taken in at once, if that is all that a channel still had to say while others go on: so
   its end, and a barrier behind that, need not wait for theirs. The last channel's is delivered.
4. A channel that alignment blocks is passed over: all it can still say comes after its barrier, and whatever the
   others say before theirs comes first.
5. Barriers, ends of data and ends of partitions are delivered as they reach the head of their channel. In a
   deterministic flow barriers stand at the same round in every channel, so they cannot hold up rule 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from ..arrow.compact import plain_records
from ..core.elements import FINAL_ROUND, Batch, Element, EndOfRound, Tag, size_of
from ..core.errors import InternalError
from ..core.operator import Memory, SpillFile


class GateInput(Protocol):
    """A channel's consumer end, or a source: what a gate reads from."""

    @property
    def data_ended(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    @property
    def window_ends(self) -> bool:
        """Whether it is known that no batch comes before the next task barrier, or the end of the data."""

    def peek(self) -> Element | None: ...

    def pop(self) -> Element: ...

    def acknowledge_end_of_data(self) -> None: ...

    def acknowledge_drained(self) -> None:
        """Nothing that was emitted because of the feed's end is on its way any more."""

    def cancel_input(self, for_good: bool) -> None:
        """No more rows are needed before the next task barrier, or ever."""

    def pause_rounds(self, hold: bool) -> None:
        """Whether no further round should begin."""


class Delivered(msgspec.Struct, frozen=True):
    """An element, and the feed it came from (by position in the gate). A merged ``EndOfRound`` comes from feed 0."""

    feed: int
    element: Element


class Starved(msgspec.Struct, frozen=True):
    """Nothing can be delivered before the feeds in ``waits_for`` speak (or are unblocked)."""

    waits_for: tuple[int, ...]


class Unwanted(msgspec.Struct, frozen=True):
    """There is an element, but it is not wanted now."""


class Spooled(msgspec.Struct, frozen=True):
    """An element was put aside: something has happened, though there is nothing to deliver (``spooling``)."""


class GatePlace(msgspec.Struct, frozen=True):
    """Where a gate stands: the feeds whose end of ``FINAL_ROUND`` was taken in, and the one to look at first."""

    final: tuple[int, ...] = ()
    next: int = 0


REFUSED = Unwanted()
SPOOLED = Spooled()
_AFTER_ALL_LANES = float("inf")


class InputGate:
    """Merges ``feeds`` by tag. See the module's rules."""

    def __init__(self, feeds: Sequence[GateInput]) -> None:
        self.feeds = feeds
        #: the feeds whose end of ``FINAL_ROUND`` was taken in ahead of the others
        self._final: set[int] = set()

    @property
    def data_ended(self) -> bool:
        """Whether every feed has ended its data."""
        return all(feed.data_ended for feed in self.feeds)

    def capture(self) -> tuple[GatePlace, list[Batch | EndOfRound]]:
        """What the gate knows besides what its feeds do, and what it has put aside, oldest first."""
        return GatePlace(tuple(sorted(self._final))), []

    def put_back(self, place: GatePlace, aside: Sequence[Batch | EndOfRound]) -> None:
        """Go on as at a cut."""
        self._final = set(place.final)

    def poll(
        self, blocked: Collection[int], accepts: bool = True, controls: bool = True
    ) -> Delivered | Starved | Unwanted | Spooled:
        """The next element, skipping feeds in ``blocked``; a batch only if ``accepts``, another one if ``controls``."""
        if len(self.feeds) == 1 and not blocked:
            return self._poll_only(accepts, controls)
        heads: list[tuple[tuple[int, float, int], int]] = []
        silent: list[int] = []
        for position, feed in enumerate(self.feeds):
            if position in blocked:
                continue
            head = self._head(position)
            if isinstance(head, Batch):
                heads.append(((head.tag.round, head.tag.lane, head.tag.sequence), position))
            elif isinstance(head, EndOfRound):
                heads.append(((head.round, _AFTER_ALL_LANES, 0), position))
            elif head is not None:
                return Delivered(position, feed.pop()) if controls else REFUSED
            elif not feed.data_ended:
                silent.append(position)
        if silent or not heads:
            return Starved(tuple(silent) or self._open_feeds(blocked))
        return self._deliver(heads, accepts, controls)

    def _head(self, position: int) -> Element | None:
        """The feed's next element, once rule 3 has been followed."""
        head = self.feeds[position].peek()
        if isinstance(head, EndOfRound) and head.round == FINAL_ROUND:
            others = (number for number in range(len(self.feeds)) if number != position and number not in self._final)
            if any(not self.feeds[number].data_ended for number in others):
                self._final.add(position)
                self.feeds[position].pop()
                return self.feeds[position].peek()
        return head

    def _poll_only(self, accepts: bool, controls: bool) -> Delivered | Starved | Unwanted:
        """The same for one feed, where nothing is to be compared."""
        feed = self.feeds[0]
        head = feed.peek()
        if head is None:
            return Starved(() if feed.closed else (0,))
        if not (accepts if isinstance(head, Batch) else controls):
            return REFUSED
        return Delivered(0, feed.pop())

    def _deliver(
        self, heads: list[tuple[tuple[int, float, int], int]], accepts: bool, controls: bool
    ) -> Delivered | Unwanted:
        key, position = min(heads)
        head = self.feeds[position].peek()
        if isinstance(head, Batch):
            return Delivered(position, self.feeds[position].pop()) if accepts else REFUSED
        if not controls:
            return REFUSED
        for other, feed in heads:
            if other == key:
                self.feeds[feed].pop()
        assert head is not None
        return Delivered(0, head)

    def window_ends(self, behind: Collection[int]) -> bool:
        """Whether it is known that no batch comes before the next task barrier or the end of the data: ``behind`` that
        barrier stand some feeds already."""
        return all(
            feed.window_ends or feed.data_ended or position in behind for position, feed in enumerate(self.feeds)
        )

    def at_end_of_round(self, blocked: Collection[int]) -> bool:
        """Whether the next element is the end of a round, which all feeds that are not blocked have reached."""
        live = [feed for position, feed in enumerate(self.feeds) if position not in blocked and not feed.data_ended]
        return bool(live) and all(isinstance(feed.peek(), EndOfRound) for feed in live)

    def _open_feeds(self, blocked: Collection[int]) -> tuple[int, ...]:
        """The feeds that may still say something, or those that must not yet."""
        left = tuple(position for position, feed in enumerate(self.feeds) if not feed.closed)
        return tuple(position for position in left if position not in blocked) or left


# ------------------------------------------------------------------ round gate
#
# The gate of a partitioned exchange: rounds in step, and within a round the producer that has something to say.
#
# Rules:
#
# 1. A batch is delivered as soon as it has come, if its channel has not ended the round that is open: no channel waits
#    for another one within a round (``partitions`` says why that matters). Whoever reads puts them in order
#    (``Regroup``).
# 2. ``EndOfRound(r)`` is delivered once, when every live channel has ended round ``r``. A channel that has is not read.
# 3. A channel that has ended its data early may already send rows of ``FINAL_ROUND``: their order is the reader's, too.


class UnorderedInputGate(InputGate):
    """See the rules above."""

    def __init__(self, feeds: Sequence[GateInput]) -> None:
        super().__init__(feeds)
        #: the feed to look at first, so that a busy one does not keep the others waiting
        self._next = 0

    def capture(self) -> tuple[GatePlace, list[Batch | EndOfRound]]:
        """Which feed is next, too."""
        place, aside = super().capture()
        return msgspec.structs.replace(place, next=self._next), aside

    def put_back(self, place: GatePlace, aside: Sequence[Batch | EndOfRound]) -> None:
        """Go on as at a cut."""
        super().put_back(place, aside)
        self._next = place.next

    def poll(
        self, blocked: Collection[int], accepts: bool = True, controls: bool = True
    ) -> Delivered | Starved | Unwanted:
        """The next element, skipping feeds in ``blocked``; a batch only if ``accepts``, another one if ``controls``."""
        ended: dict[int, int] = {}
        silent: list[int] = []
        refused = False
        for turn in range(len(self.feeds)):
            position = (self._next + turn) % len(self.feeds)
            if position in blocked:
                continue
            head = self._head(position)
            if isinstance(head, EndOfRound):
                ended[position] = head.round
            elif head is None:
                if not self.feeds[position].data_ended:
                    silent.append(position)
            elif accepts if isinstance(head, Batch) else controls:
                self._next = position + 1
                return Delivered(position, self.feeds[position].pop())
            else:
                refused = True
        if refused:
            return REFUSED
        if silent or not ended:
            return Starved(tuple(sorted(silent)) or self._open_feeds(blocked))
        return self._end_round(ended, min(ended.values())) if controls else REFUSED

    def _end_round(self, ended: dict[int, int], round: int) -> Delivered:
        for position, at in ended.items():
            if at == round:
                self.feeds[position].pop()
        return Delivered(0, EndOfRound(round))


# ------------------------------------------------------------------ arrival gate
#
# The gate of a flow whose order is that of arrival: within a round whoever has rows goes first.
#
# Rules:
#
# 1. A batch of the open round is delivered as soon as it has come, from each channel in turn: none waits for another
#    one.
# 2. Rounds stay in step, as in every flow: ``EndOfRound(r)`` is delivered when every live channel has ended round
#    ``r``, and rows of ``FINAL_ROUND`` when nobody has others. So operators, barriers and recovery are the same as with
#    a deterministic order; what is given up is the order of lanes within a round.


class ArrivalInputGate(UnorderedInputGate):
    """See the rules above."""

    def poll(
        self, blocked: Collection[int], accepts: bool = True, controls: bool = True
    ) -> Delivered | Starved | Unwanted:
        """The next element, skipping feeds in ``blocked``; a batch only if ``accepts``, another one if ``controls``."""
        if self._is_final(blocked):
            return super().poll(blocked, accepts, controls)
        return super().poll({*blocked, *self._early(blocked)}, accepts, controls)

    def _early(self, blocked: Collection[int]) -> set[int]:
        """The feeds that are at their final rows already."""
        return {position for position in self._live(blocked) if self._at(position) == FINAL_ROUND}

    def _is_final(self, blocked: Collection[int]) -> bool:
        return len(self._early(blocked)) == len(self._live(blocked))

    def _live(self, blocked: Collection[int]) -> list[int]:
        found = [position for position, feed in enumerate(self.feeds) if not feed.data_ended]
        return [position for position in found if position not in blocked]

    def _at(self, position: int) -> int:
        """The round of the feed's next batch or end of a round; -1 if neither is known."""
        head = self._head(position)
        if isinstance(head, Batch):
            return head.tag.round
        return head.round if isinstance(head, EndOfRound) else -1


# ------------------------------------------------------------------ spooling
#
# A gate that puts aside what its port does not want yet, so that whoever sends it can go on sending to others.
#
# Where a stream is forked and its branches meet again in one driver (a join of a stream with itself), back-pressure
# could close a circle: the join wants the rows of one branch first, but the fork cannot send them before the other
# branch has room. Such a port (``PortPlan.spooled``) is read by a :class:`SpoolingInputGate`. Rules, after DuckDB's
# buffered results:
#
# 1. Only batches and ends of rounds are put aside, in the order in which the gate gives them out, and only when the
#    port refuses the batch that comes next. Barriers and ends wait where they are, as they would without a spool: what
#    is before them must be processed first, so nothing is put aside when a snapshot is taken.
# 2. Up to ``MEMORY_BYTES`` are kept in memory, the rest goes to files of that size, and comes back one at a time.

MEMORY_BYTES = 16 * 1024 * 1024
"""Bytes put aside before the next file is begun: as much as a channel may have in flight."""


class _File:
    """Elements of which the rows of the batches are in a file."""

    def __init__(self, file: SpillFile, elements: list[Batch | EndOfRound], schema: pa.Schema) -> None:
        self._file = file
        self._elements: deque[Tag | EndOfRound] = deque()
        for element in elements:
            if isinstance(element, Batch):
                file.write(plain_records(element.records, schema))
                self._elements.append(element.tag)
            else:
                self._elements.append(element)
        file.read()  # which ends the writing

    def peek(self) -> Iterator[Batch | EndOfRound]:
        """The elements."""
        rows = iter(self._file.read())
        for found in self._elements:
            yield Batch(next(rows), found) if isinstance(found, Tag) else found

    def read(self) -> Iterator[Batch | EndOfRound]:
        """The elements, for good."""
        yield from self.peek()
        self._file.delete()


class SpoolingInputGate(InputGate):
    """See the rules above. ``inner``: the gate whose elements, of this schema, are put aside; files are plain."""

    def __init__(self, inner: InputGate, memory: Memory, schema: pa.Schema) -> None:
        super().__init__(inner.feeds)
        self._schema = schema
        self._inner = inner
        self._memory = memory
        #: put aside, oldest first: what was read back, what is in files, and what came last
        self._front: deque[Batch | EndOfRound] = deque()
        self._files: deque[_File] = deque()
        self._back: list[Batch | EndOfRound] = []
        self._back_bytes = 0

    def poll(
        self, blocked: Collection[int], accepts: bool = True, controls: bool = True
    ) -> Delivered | Starved | Unwanted | Spooled:
        """As ``InputGate.poll``; Spooled if a batch that is not wanted has made room for others."""
        if not self._refill():
            found = self._inner.poll(blocked, accepts, controls)
            return self._spool(blocked) if isinstance(found, Unwanted) and not accepts else found
        head = self._front[0]
        if accepts if isinstance(head, Batch) else controls:
            return Delivered(0, self._front.popleft())
        return self._spool(blocked)

    def capture(self) -> tuple[GatePlace, list[Batch | EndOfRound]]:
        """The inner gate's, and what is put aside, here and in files."""
        front: list[Batch | EndOfRound] = list(self._front)
        for each in self._files:
            front += each.peek()
        return self._inner.capture()[0], front + self._back

    def put_back(self, place: GatePlace, aside: Sequence[Batch | EndOfRound]) -> None:
        """Go on as at a cut."""
        self._inner.put_back(place, ())
        for element in aside:
            self._put_aside(element)

    def window_ends(self, behind: Collection[int]) -> bool:
        """The same; not while anything is put aside."""
        return not (self._front or self._files or self._back) and super().window_ends(behind)

    def _spool(self, blocked: Collection[int]) -> Spooled | Unwanted:
        found = self._inner.poll(blocked, True, False)
        if isinstance(found, Unwanted):
            # the next one is no batch: an end of a round may be put aside, too, if there is anything before it
            ended = bool(self._front) and self._inner.at_end_of_round(blocked)
            found = self._inner.poll(blocked) if ended else found
        if not isinstance(found, Delivered):
            return REFUSED
        element: Element = found.element
        if not isinstance(element, Batch | EndOfRound):
            raise InternalError(f"{type(element).__name__} cannot be put aside")
        self._put_aside(element)
        return SPOOLED

    def _put_aside(self, element: Batch | EndOfRound) -> None:
        self._back.append(element)
        self._back_bytes += size_of(element)
        if self._back_bytes >= MEMORY_BYTES:
            self._files.append(_File(self._memory.spill(self._schema), self._back, self._schema))
            self._back, self._back_bytes = [], 0

    def _refill(self) -> bool:
        """Whether anything was put aside; the oldest of it is in front."""
        if not self._front:
            if self._files:
                self._front.extend(self._files.popleft().read())
            else:
                self._front.extend(self._back)
                self._back, self._back_bytes = [], 0
        return bool(self._front)
