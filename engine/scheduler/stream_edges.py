"""Edges between the streams of a graph: a hand-off slot, a double buffer, and the place where callers pull output.

A *hand-off* has one slot and no synchronisation: its two ends never run at the same time, because the scheduler keeps
neighbours apart. A *double buffer* has two slots and lets both ends run. That needs no lock either: there is one writer
and one reader, a deque's append and popleft are atomic, and the last item is appended before the end is marked.

Demand flows against the data. A producer may put only what is *wanted*: asked for, with a free slot. A hand-off is
asked for each item anew, so nothing is produced that nobody has asked for; a double buffer once, so that its producer
stays one item ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from threading import Condition
from typing import Any, Protocol


class EdgeKind(Enum):
    """See the module's docstring."""

    HANDOFF = "hand-off"
    DOUBLE_BUFFER = "double buffer"


SLOTS = {EdgeKind.HANDOFF: 1, EdgeKind.DOUBLE_BUFFER: 2}


class End(Protocol):
    """The stream at one end of an edge."""

    @property
    def name(self) -> str: ...

    def wake(self) -> None:
        """The edge has changed."""

    def demand(self) -> None:
        """Somebody wants its output."""


class Writable(Protocol):
    """What a producer sees of its output."""

    @property
    def consumer_name(self) -> str: ...

    @property
    def wanted(self) -> bool:
        """Whether an item may be put."""

    @property
    def abandoned(self) -> bool:
        """Whether nobody will take anything any more."""

    def put(self, item: Any) -> None: ...

    def end(self) -> None:
        """Nothing follows."""


class Edge:
    """From one stream to another."""

    def __init__(self, kind: EdgeKind, producer: End, consumer: End) -> None:
        self.kind = kind
        self.producer = producer
        self.consumer = consumer
        self._slots = SLOTS[kind]
        self._items: deque[Any] = deque()
        self._asked = False
        self._ended = False
        self.abandoned = False

    # ------------------------------------------------------------------ the producer's side

    @property
    def consumer_name(self) -> str:
        return self.consumer.name

    @property
    def wanted(self) -> bool:
        return self.abandoned or (self._asked and len(self._items) < self._slots)

    def put(self, item: Any) -> None:
        if self.abandoned:
            return
        self._items.append(item)
        if self.kind is EdgeKind.HANDOFF:
            self._asked = False
        self.consumer.wake()

    def end(self) -> None:
        self._ended = True
        self.consumer.wake()

    # ------------------------------------------------------------------ the consumer's side

    @property
    def has_item(self) -> bool:
        return bool(self._items)

    @property
    def ended(self) -> bool:
        """Whether everything has been taken and nothing follows. (In this order: the end is marked last.)"""
        return self._ended and not self._items

    def take(self) -> Any:
        """The next item; there is one."""
        item = self._items.popleft()
        if self.kind is EdgeKind.DOUBLE_BUFFER:
            self.producer.wake()
        return item

    def ask(self) -> None:
        """The consumer has found nothing and wants more."""
        self._asked = True
        self.producer.demand()

    def abandon(self) -> None:
        """The consumer is done, whatever still comes."""
        self.abandoned = True
        self.producer.wake()


class Outlet:
    """Where callers pull a graph's output, from any number of threads. Slots and demand as in a double buffer."""

    def __init__(
        self, producer: End, wait: Callable[[Outlet], None], raise_error: Callable[[], None], *, asked: bool
    ) -> None:
        self._producer = producer
        self._wait_for_change = wait
        self._raise_error = raise_error
        self.changed = Condition()
        self._items: deque[Any] = deque()
        self._asked = asked
        self._ended = False
        self._failed = False
        self.abandoned = False

    # ------------------------------------------------------------------ the producer's side

    @property
    def consumer_name(self) -> str:
        return "a reader"

    @property
    def wanted(self) -> bool:
        return self.abandoned or (self._asked and len(self._items) < SLOTS[EdgeKind.DOUBLE_BUFFER])

    def put(self, item: Any) -> None:
        with self.changed:
            self._items.append(item)
            self.changed.notify()

    def end(self) -> None:
        with self.changed:
            self._ended = True
            self.changed.notify_all()

    def fail(self) -> None:
        """Nothing will come, because the run has failed or was aborted: every reader hears of it."""
        with self.changed:
            self._failed = not self._ended
            self.changed.notify_all()

    # ------------------------------------------------------------------ the readers' side

    @property
    def decided(self) -> bool:
        """Whether a reader need not wait."""
        return bool(self._items) or self._ended or self._failed

    def read(self) -> Any:
        """The next item, once there is one; None at the end. Raises the run's first error."""
        while True:
            with self.changed:
                if self._failed:
                    break
                if self._items:
                    item = self._items.popleft()
                    if not self._ended:
                        self._producer.wake()
                    return item
                if self._ended:
                    return None
                self._asked = True
            self._producer.demand()
            self._wait_for_change(self)
        self._raise_error()
        return None

    def __iter__(self) -> Outlet:
        return self

    def __next__(self) -> Any:
        item = self.read()
        if item is None:
            raise StopIteration
        return item

    def abandon(self) -> None:
        """Nobody reads on."""
        self.abandoned = True
        self._producer.wake()
