"""Which rows of a stream are in which batch, where batches are bounded by what their rows cost. Pure.

Rules:

1. A batch costs no more than its ``budget``: the sum of its rows' costs or, ``padded``, as often its dearest row as it
   has rows. A row costs one at least, so that a batch has an end.
2. In order, a batch ends before the first row that does not fit, and a full one at once. With several buckets each has
   a budget and batches of its own; they leave in the order of the rows that completed them.
3. With a ``window`` so many rows are laid out at a time: each, the dearest first, into the batch that it fills best
   (padded: rows of like cost together). What fills least stays, and is the beginning of the next window. In which
   order the batches of a window leave is drawn by (seed, epoch, window).
4. So the batches are a function of the costs of the rows in their order, however these come: property tests in
   ``tests/engine/operators/sequence/test_cutting.py``. Held are the rows of open batches, or of a window.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...kernels.counter_random import permutation
from ...kernels.pieces import Positions

Costs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CuttingRules:
    """``budgets``: of each bucket; ``window``: see rule 3, 0: none."""

    budgets: tuple[int, ...]
    padded: bool = False
    window: int = 0
    seed: int = 0


@dataclass(slots=True)
class Cutter:
    """See the module's rules. Rows are numbered from those held on: 0 is the first one of these."""

    rules: CuttingRules
    #: of the rows held, in their order
    costs: Costs = field(default_factory=lambda: np.zeros(0, np.int64))
    buckets: Positions = field(default_factory=lambda: np.zeros(0, np.int64))
    #: how many of them a window has left, and how many windows there have been
    carried: int = 0
    windows: int = 0

    def add(self, costs: Costs, buckets: Positions, epoch: int = 0) -> list[Positions]:
        """The next rows, of which none costs more than its budget: the batches that they complete, each as the numbers
        of its rows, which are held no more."""
        self.costs = np.concatenate([self.costs, np.maximum(costs, 1)])
        self.buckets = np.concatenate([self.buckets, buckets])
        return self._taken(self._windowed(epoch) if self.rules.window else self._in_order())

    def end(self, epoch: int = 0) -> list[Positions]:
        """No more rows come: the batches of those held."""
        if self.rules.window and len(self.costs):
            batches = self._laid_out(np.arange(len(self.costs)), epoch)
            order = permutation(self.rules.seed, epoch, self.windows, len(batches))
            found = [batches[each] for each in order]
        else:
            found = [np.flatnonzero(self.buckets == each) for each in range(len(self.rules.budgets))]
        found = self._taken([rows for rows in found if len(rows)])
        self.carried = self.windows = 0
        return found

    def _taken(self, batches: list[Positions]) -> list[Positions]:
        if batches:
            stays = np.ones(len(self.costs), np.bool_)
            stays[np.concatenate(batches)] = False
            self.costs, self.buckets = self.costs[stays], self.buckets[stays]
        return batches

    def _in_order(self) -> list[Positions]:
        found: list[tuple[int, Positions]] = []
        for bucket, budget in enumerate(self.rules.budgets):
            rows = np.flatnonzero(self.buckets == bucket) if len(self.rules.budgets) > 1 else np.arange(len(self.costs))
            begin = 0
            for end, completed in ends_in_order(self.costs[rows], budget, self.rules.padded):
                found.append((int(rows[completed]), rows[begin:end]))
                begin = end
        return [rows for _, rows in sorted(found, key=lambda each: each[0])]

    def _windowed(self, epoch: int) -> list[Positions]:
        found: list[Positions] = []
        rows = np.arange(len(self.costs))
        while len(rows) - self.carried >= self.rules.window:
            behind = self.carried + self.rules.window
            batches = self._laid_out(rows[:behind], epoch)
            left = batches.pop()
            order = permutation(self.rules.seed, epoch, self.windows, len(batches))
            found += [batches[each] for each in order]
            rows = np.concatenate([left, rows[behind:]])
            self.carried, self.windows = len(left), self.windows + 1
        return found

    def _laid_out(self, rows: Positions, epoch: int) -> list[Positions]:
        """The batches of a window; the last one is that which fills least."""
        costs, budget = self.costs[rows], self.rules.budgets[0]
        if self.rules.padded:  # from the dearest one down and from the cheapest one up, in turn: what stays leaves next
            order = np.argsort(costs if self.windows % 2 else -costs, kind="stable")
            ends = [end for end, _ in ends_in_order(costs[order], budget, True)]
            places = [each for each in np.split(order, ends) if len(each)]
        else:
            places = best_fit(costs, self.carried, budget)
        return [rows[np.sort(each)] for each in places]


def ends_in_order(costs: Costs, budget: int, padded: bool) -> list[tuple[int, int]]:
    """Where batches end that are taken in order: behind which row, and which one tells. What is left is open."""
    found: list[tuple[int, int]] = []
    begin, guess = 0, 64
    while begin < len(costs):
        part = costs[begin : begin + min(guess, budget + 1)]
        whole = np.maximum.accumulate(part) * np.arange(1, len(part) + 1) if padded else np.cumsum(part)
        fits = int(np.searchsorted(whole, budget, side="right"))
        if fits == len(part) and begin + len(part) < len(costs) and len(part) <= budget:
            guess *= 2
            continue
        # one more row costs as much as the dearest one where rows are padded, else one at least
        least = int(part[:fits].max()) if padded else 1
        if whole[fits - 1] + least > budget:
            found.append((begin + fits, begin + fits - 1))
        elif fits < len(part):
            found.append((begin + fits, begin + fits))
        else:
            break
        begin += fits
    return found


def best_fit(costs: Costs, carried: int, budget: int) -> list[Positions]:
    """The rows in batches; the first ``carried`` are the beginning of one. The last one is that which fills least, of
    those without rows that were carried."""
    batches = [list(range(carried))] if carried else []
    #: the room of each batch, in ascending order
    rooms = [(budget - int(costs[:carried].sum()), 0)] if carried else []
    order = np.argsort(-costs[carried:], kind="stable") + carried
    for row, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        at = bisect_left(rooms, (cost, -1))
        room, batch = rooms.pop(at) if at < len(rooms) else (budget, len(batches))
        if batch == len(batches):
            batches.append([])
        batches[batch].append(row)
        insort(rooms, (room - cost, batch))
    least = max(_largest(rooms, 1 if carried and len(batches) > 1 else 0), 0)
    batches.append(batches.pop(least))
    return [np.array(each, np.int64) for each in batches]


def _largest(rooms: Sequence[tuple[int, int]], first: int) -> int:
    """The batch from ``first`` on that has most room; of several the latest one."""
    return max(((room, batch) for room, batch in rooms if batch >= first), default=(0, 0))[1]
