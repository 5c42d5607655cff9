"""What a driver is in the middle of: control elements, each handled in steps, one after the other.

Rules:

1. A step calls one operator, or changes the driver, which may put further steps in front (``perform``). Steps are data,
   so a cut may stand between any two of them, and they go on elsewhere.
2. None is taken while the chain is busy with what came before, or before the batches that were pushed ahead of it have
   left the first operator: ends of rounds and task barriers may stand behind lookups that are under way, with batches
   of later rounds and windows behind them.
3. A barrier is handled by an iterator: what it does to the driver is no data. A cut waits until it is through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from .chain_flight import CALLS, ChainFlight, ControlStep
from .operator_chain import OperatorChain

MOST_QUEUED = 64
"""Control elements that may stand behind batches under way."""


class Control(msgspec.Struct, frozen=True):
    """The steps that are left of a control element. ``ahead``: so many of the batches that wait before the first
    operator go first; ``may_pass``: batches may be taken behind it."""

    steps: tuple[ControlStep, ...]
    ahead: int = 0
    may_pass: bool = False


@dataclass(slots=True, eq=False)
class _Item:
    """A control element; ``ahead``: what ``pushed`` of the chain was when it came."""

    steps: deque[ControlStep] | Iterator[None]
    ahead: int
    may_pass: bool


class Continuations:
    """See the module's rules. Oldest first; ``perform`` takes the steps that call no operator."""

    def __init__(self, chain: OperatorChain, perform: Callable[[ControlStep], Sequence[ControlStep]]) -> None:
        self._chain = chain
        self._perform = perform
        self._items: deque[_Item] = deque()

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def is_due(self) -> bool:
        """Whether the oldest one may go on."""
        return bool(self._items) and self._items[0].ahead <= self._chain.left

    @property
    def let_pass(self) -> bool:
        """Whether elements that come behind all of them may be taken now."""
        return len(self._items) < MOST_QUEUED and all(item.may_pass for item in self._items)

    def add(self, steps: ControlStep | Iterator[None], may_pass: bool = False) -> None:
        """Put something at the end. If it is the only thing, and the chain is idle, it begins at once."""
        left = deque([steps]) if isinstance(steps, ControlStep) else steps
        self._items.append(_Item(left, self._chain.pushed, may_pass))
        if len(self._items) == 1:
            self.resume()

    def resume(self) -> None:
        """Take one step that calls an operator, or all that do not."""
        items, chain = self._items, self._chain
        while items and items[0].ahead <= chain.left and not chain.busy:
            if self._step(items[0].steps):
                return
            if not items[0].steps:
                items.popleft()

    def _step(self, steps: deque[ControlStep] | Iterator[None]) -> bool:
        """Take a step of the oldest one; whether an operator was called."""
        if not isinstance(steps, deque):
            if next(steps, self) is not self:
                return True
            self._items[0].steps = deque()
            return False
        if not steps:
            return False
        step = steps.popleft()
        if step.what in CALLS:
            self._chain.call(step)
            return True
        steps.extendleft(reversed(self._perform(step)))
        return False

    # ------------------------------------------------------------------ cuts

    @property
    def may_be_cut(self) -> bool:
        """Whether no barrier is being handled, or waits for that (rule 3)."""
        return all(isinstance(item.steps, deque) for item in self._items)

    def leave_out_barriers(self) -> None:
        """Handle no barrier that waits for that: a newer one has gone out ahead of it. None of a checkpoint is ever in
        the middle (only task barriers are)."""
        self._items = deque(item for item in self._items if isinstance(item.steps, deque))

    def capture(self, flight: ChainFlight) -> tuple[Control, ...]:
        """All of them, if they may be cut. ``flight``: what is under way in the chain."""
        left = self._chain.pushed - flight.waiting
        found = []
        for item in self._items:
            assert isinstance(item.steps, deque), "a barrier is being handled"
            found.append(Control(tuple(item.steps), max(item.ahead - left, 0), item.may_pass))
        return tuple(found)

    def put_back(self, controls: Sequence[Control]) -> None:
        """Go on with these, once the chain has what was under way in it."""
        self._items += [_Item(deque(each.steps), each.ahead, each.may_pass) for each in controls]

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
