"""Execution streams, after Fennel: vertices of a graph that move items from their input edges to their output edges.

A stream is a small state machine. ``step`` does one unit of work and says how it went; it never waits, and it is never
in two threads. The contract:

1. ``step`` puts only into outputs that are ``wanted``, and takes only where there ``has_item``. If it cannot go on for
   want of either, it changes nothing and says ``Overflow`` or ``Underflow``, naming the edges: it is called again when
   one of them has changed. Room is looked for before input: who cannot put must not ask.
2. ``DONE`` ends its outputs; its inputs are abandoned, so that what nobody needs is not produced.
3. ``open`` comes before the first step, when somebody wants its output and what it depends on is done; ``close`` once,
   in any case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from ..core.errors import DataError
from .stream_edges import Edge, Writable


class Verdict(Enum):
    """How a step went, if it was not for want of something."""

    WORKED = "worked"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Underflow:
    """Nothing in these inputs; any of them would do."""

    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Overflow:
    """These outputs are full, or nobody has asked them for anything."""

    edges: tuple[Writable, ...]


Step: TypeAlias = Verdict | Underflow | Overflow


class Stream:
    """Base of all streams: a graph connects it before it is opened. Subclasses define ``step``."""

    def __init__(self) -> None:
        self.inputs: list[Edge] = []
        self.outputs: list[Writable] = []

    def open(self) -> None:
        """Get ready."""

    def step(self) -> Step:
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything."""

    def overflow(self) -> Overflow | None:
        """The outputs that do not want anything now, if there are any; abandoned ones want everything."""
        unwanted = tuple(output for output in self.outputs if not output.wanted)
        return Overflow(unwanted) if unwanted else None

    def put(self, item: Any) -> None:
        """The same item to every output."""
        for output in self.outputs:
            output.put(item)


class Source(Stream):
    """Puts what an iterable gives. ``items`` is called at ``open``."""

    def __init__(self, items: Callable[[], Iterable[Any]]) -> None:
        super().__init__()
        self._make = items
        self._items: Iterator[Any] = iter(())

    def open(self) -> None:
        self._items = iter(self._make())

    def step(self) -> Step:
        if (overflow := self.overflow()) is not None:
            return overflow
        for item in self._items:
            self.put(item)
            return Verdict.WORKED
        return Verdict.DONE


class Transform(Stream):
    """Puts a function's result for each item of its only input, unless that is None. With several outputs it is a
    *splitter*: each of them gets everything, in step with the slowest."""

    def __init__(self, function: Callable[[Any], Any] = lambda item: item) -> None:
        super().__init__()
        self._function = function

    def step(self) -> Step:
        if (overflow := self.overflow()) is not None:
            return overflow
        [edge] = self.inputs
        if edge.has_item:
            result = self._function(edge.take())
            if result is not None:
                self.put(result)
            return Verdict.WORKED
        return Verdict.DONE if edge.ended else Underflow((edge,))


class Fold(Stream):
    """Puts one item at the end of its only input: what a function makes of a start value and all items."""

    def __init__(self, function: Callable[[Any, Any], Any], start: Any) -> None:
        super().__init__()
        self._function = function
        self._value = start
        self._put = False

    def step(self) -> Step:
        [edge] = self.inputs
        if self._put:
            return Verdict.DONE
        if edge.has_item:
            self._value = self._function(self._value, edge.take())
            return Verdict.WORKED
        if not edge.ended:
            return Underflow((edge,))
        if (overflow := self.overflow()) is not None:
            return overflow
        self._put = True
        self.put(self._value)
        return Verdict.WORKED


class Merge(Stream):
    """Puts what comes on any of its inputs, in no particular order, but each input's in its own."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def step(self) -> Step:
        if (overflow := self.overflow()) is not None:
            return overflow
        count = len(self.inputs)
        for turn in range(count):
            edge = self.inputs[(self._next + turn) % count]
            if edge.has_item:
                self._next = (self._next + turn + 1) % count
                self.put(edge.take())
                return Verdict.WORKED
        left = tuple(edge for edge in self.inputs if not edge.ended)
        return Underflow(left) if left else Verdict.DONE


class Append(Stream):
    """Puts all of its first input, then all of the second, and so on; an input is not asked before its turn."""

    def __init__(self) -> None:
        super().__init__()
        self._current = 0

    def step(self) -> Step:
        if self._current == len(self.inputs):
            return Verdict.DONE
        if (overflow := self.overflow()) is not None:
            return overflow
        edge = self.inputs[self._current]
        if edge.has_item:
            self.put(edge.take())
        elif edge.ended:
            self._current += 1
        else:
            return Underflow((edge,))
        return Verdict.WORKED


class Barrier(Stream):
    """Waits until all of its inputs have ended, then puts one item: the one that all of them brought. Inputs that
    disagree are an error."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[Any] = []
        self._put = False

    def step(self) -> Step:
        if self._put or (not self._seen and all(edge.ended for edge in self.inputs)):
            return Verdict.DONE
        for edge in self.inputs:
            if edge.has_item:
                self._seen.append(edge.take())
                return Verdict.WORKED
        left = tuple(edge for edge in self.inputs if not edge.ended)
        if left:
            return Underflow(left)
        if (overflow := self.overflow()) is not None:
            return overflow
        if any(item != self._seen[0] for item in self._seen):
            raise DataError(f"the inputs of a barrier brought different items: {self._seen[:5]}")
        self._put = True
        self.put(self._seen[0])
        return Verdict.WORKED


class Product(Stream):
    """Keeps its second input whole, then puts a function's result for each pair with an item of the first."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._function = function
        self._held: list[Any] = []
        self._pairs: Iterator[Any] = iter(())

    def step(self) -> Step:
        outer, inner = self.inputs
        if inner.has_item:
            self._held.append(inner.take())
            return Verdict.WORKED
        if not inner.ended:
            return Underflow((inner,))
        if (overflow := self.overflow()) is not None:
            return overflow
        for pair in self._pairs:
            self.put(pair)
            return Verdict.WORKED
        if outer.has_item:
            item = outer.take()
            self._pairs = (self._function(item, held) for held in self._held)
            return Verdict.WORKED
        return Verdict.DONE if outer.ended else Underflow((outer,))


class Spool(Stream):
    """A splitter whose readers need not keep step: it keeps what the slowest has not taken yet. It breaks the deadlock
    of a diamond, one of whose branches is read only after the other."""

    def __init__(self) -> None:
        super().__init__()
        # Per output what it has not taken; None: it has been told of the end.
        self._left: list[deque[Any] | None] = []

    def open(self) -> None:
        self._left = [deque() for _ in self.outputs]

    def step(self) -> Step:
        [edge] = self.inputs
        served = False
        for number, (output, left) in enumerate(zip(self.outputs, self._left, strict=True)):
            if left is None:
                continue
            if output.abandoned or (edge.ended and not left):
                self._left[number] = None
                output.end()
            elif left and output.wanted:
                output.put(left.popleft())
            else:
                continue
            served = True
        return Verdict.WORKED if served else self._refill(edge)

    def _refill(self, edge: Edge) -> Step:
        """Nothing that is here is wanted: take the next item, if anybody wants one."""
        open_ones = [(output, left) for output, left in zip(self.outputs, self._left, strict=True) if left is not None]
        if not open_ones:
            return Verdict.DONE
        if not any(output.wanted for output, _ in open_ones):
            return Overflow(tuple(output for output, _ in open_ones))
        if not edge.has_item:
            return Underflow((edge,))
        item = edge.take()
        for _, left in open_ones:
            left.append(item)
        return Verdict.WORKED


class Segment:
    """A store that a ``Writer`` fills and that any number of ``read``s give back, once the writer is done."""

    def __init__(self) -> None:
        self.items: list[Any] = []


class Writer(Stream):
    """Keeps its only input in a segment; it has no output. Who reads the segment is connected by ``after``."""

    def __init__(self, segment: Segment) -> None:
        super().__init__()
        self._segment = segment

    def step(self) -> Step:
        [edge] = self.inputs
        if edge.has_item:
            self._segment.items.append(edge.take())
            return Verdict.WORKED
        return Verdict.DONE if edge.ended else Underflow((edge,))
