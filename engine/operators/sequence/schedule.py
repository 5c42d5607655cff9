"""Weights that change: a weight as a function of the position in a mixture, or of its epoch. Pure.

Rules:

1. Positions are rows of the mixture, counted over all its epochs, so that a schedule does not begin anew with them.
2. A weight is a function of position and epoch alone, and computed the same way for one position or for many.
3. A weight may be 0 for a while: no row of the stream is drawn then. Some stream has one at every position.
4. A weight that is changed while the job runs (``Reweight``) is that from its position on, whatever was planned; of two
   changes the one that begins later holds, and of two that begin together the one that was asked for later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ...core.arguments import LARGEST, checked
from ...core.errors import FlowError
from ...core.identity import Reweight

Weights: TypeAlias = npt.NDArray[np.float64]

LEAST, MOST = 1e-100, 1e100
"""A positive weight is within these: sums and shares of others are no numbers any more, or 0."""


@dataclass(frozen=True)
class Schedule:
    """A weight that changes. Made by :meth:`steps`, :meth:`linear` or :meth:`by_epoch`. ``points``: where, and what it
    is there."""

    kind: Literal["steps", "linear", "epochs"]
    points: tuple[tuple[int, float], ...]

    @classmethod
    def steps(cls, points: Mapping[int, float]) -> Schedule:
        """From each of these rows of the mixture on the weight is another: ``{0: 0.8, 1_000_000: 0.2}``."""
        return cls("steps", _points(points))

    @classmethod
    def linear(cls, points: Mapping[int, float]) -> Schedule:
        """The weight has these values at these rows of the mixture, goes from one to the next in a straight line, and
        keeps the last one."""
        return cls("linear", _points(points))

    @classmethod
    def by_epoch(cls, weights: Sequence[float]) -> Schedule:
        """The weight in each epoch of the feed; the last one stays."""
        return cls("epochs", _points(dict(enumerate(weights))))

    def at(self, positions: npt.NDArray[np.int64], epoch: int) -> Weights:
        """The weight at each of these positions."""
        places, values = (np.array(each, dtype=np.float64) for each in zip(*self.points, strict=True))
        if self.kind == "linear":
            found: Weights = np.interp(positions, places, values)
            return found
        given = np.full(len(positions), epoch) if self.kind == "epochs" else positions
        at: Weights = values[np.searchsorted(places, given, side="right") - 1]
        return at

    @property
    def mean(self) -> float:
        """Of its points, by which sources are read ahead."""
        return sum(weight for _, weight in self.points) / len(self.points)

    def __str__(self) -> str:
        what = "epoch" if self.kind == "epochs" else "row"
        how = " (linear)" if self.kind == "linear" else ""
        first, *rest = self.points
        return f"{first[1]:g}" + "".join(f" → {weight:g} at {what} {place:,}" for place, weight in rest) + how


Weight: TypeAlias = float | Schedule


def weights_at(
    weights: Sequence[Weight], positions: npt.NDArray[np.int64], epoch: int, reweights: Sequence[Reweight] = ()
) -> Weights:
    """A row for each stream: its weights at these positions. ``reweights``: those that begin later come later."""
    size = len(positions)
    found = np.array(
        [each.at(positions, epoch) if isinstance(each, Schedule) else np.full(size, float(each)) for each in weights]
    )
    for each in reweights:
        for port, weight in each.weights:
            found[port, positions >= each.position] = weight
    return found


def idle_at(
    weights: Sequence[Weight], positions: npt.NDArray[np.int64], epoch: int, reweights: Sequence[Reweight] = ()
) -> npt.NDArray[np.bool_]:
    """A row for each stream: where it has no weight for the rest of the epoch, as far as is known there."""
    none = np.zeros(len(positions), dtype=np.bool_)
    found = np.array([_is_idle(each, positions, epoch) if isinstance(each, Schedule) else none for each in weights])
    for each in reweights:
        for port, weight in each.weights:
            found[port, positions >= each.position] = not weight
    return found


def check_weights(weights: Sequence[Weight]) -> None:
    """Raises FlowError for weights that are none, and if there is a position at which no stream has one."""
    for weight in weights:
        if not isinstance(weight, Schedule) and not LEAST <= weight <= MOST:
            remedy = f"give positive numbers up to {MOST:g}, and leave out what has no weight"
            raise FlowError(f"mix: a weight of {weight}", remedy)
    plans = [each for each in weights if isinstance(each, Schedule)]
    # it suffices to look where something changes: a line has its least value at one of its ends
    epochs = {0, *(place for each in plans if each.kind == "epochs" for place, _ in each.points)}
    positions = np.array(sorted({0, *(place for each in plans if each.kind != "epochs" for place, _ in each.points)}))
    for epoch in sorted(epochs):
        idle = np.flatnonzero(~weights_at(weights, positions, epoch).any(axis=0))
        if len(idle):
            where = f"row {positions[idle[0]]:,} in epoch {epoch}"
            raise FlowError(f"mix: no stream has a weight at {where}", "let one of them be positive there")


def _is_idle(schedule: Schedule, positions: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.bool_]:
    """Where its weight is 0, and stays so to the end of this epoch."""
    never, always = np.zeros(len(positions), dtype=np.bool_), np.ones(len(positions), dtype=np.bool_)
    if schedule.kind == "epochs":
        return never if schedule.at(positions[:1], epoch).any() else always
    last = max((place for place, (_, weight) in enumerate(schedule.points) if weight), default=-1) + 1
    found: npt.NDArray[np.bool_] = never if last == len(schedule.points) else positions >= schedule.points[last][0]
    return found


@checked()
def _points(points: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    found = tuple(sorted(points.items()))
    wrong: Any = next((weight for _, weight in found if weight and not LEAST <= weight <= MOST), None)
    if wrong is not None:
        raise FlowError(f"a schedule with a weight of {wrong}", f"give 0, or positive numbers up to {MOST:g}")
    if not found or found[0][0] != 0 or found[-1][0] > LARGEST:
        raise FlowError(f"a schedule that begins at {found[0][0] if found else 'no point'}", "give its weight at 0")
    if not any(weight for _, weight in found):
        raise FlowError("a schedule whose weights are all 0", "leave the stream out")
    return found
