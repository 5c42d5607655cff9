"""Hashes of rows in their order, and a digest of every global batch: what tells where two runs begin to differ. Pure.

Rules:

1. An order hash is a polynomial over the rows' hashes, modulo 2^64: equal sequences, equal numbers, however they were
   split into batches. Two rows that have changed places change it. It is no protection against malice.
2. What is stored is the number and the count of rows; from these one can go on. ``content`` is the sum of the rows'
   hashes: it does not depend on the order, only on which rows there are.
3. The digest of a batch is the order hash of its rows alone: equal batches have equal digests, in any run.
4. Only whole batches have one; the last, short one of an epoch gets its digest at the end of the epoch. A restored feed
   that lacks the first rows of a batch leaves that batch out.
5. A batch is recorded when it is cut, which may be long before a rank takes it. A later attempt may have another batch
   there, after a change of weights: its one counts. That contradicts what was recorded only if some rank had taken it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BASE = np.uint64(0x5851F42D4C957F2D)
"""Odd, so that no row's part fades away, and with bits everywhere."""
_BLOCK = 4096


def powers(count: int) -> npt.NDArray[np.uint64]:
    """The base to the powers ``count - 1`` down to 0."""
    rising = np.full(count, _BASE, dtype=np.uint64)
    rising[:1] = 1
    return np.multiply.accumulate(rising)[::-1]


_FALLING = powers(_BLOCK)


@dataclass(frozen=True, slots=True)
class OrderHash:
    """Of the rows so far."""

    value: int = 0
    rows: int = 0
    content: int = 0

    def extended(self, hashes: npt.NDArray[np.uint64]) -> OrderHash:
        """With these rows' hashes added at the end."""
        value, step = np.uint64(self.value), _FALLING[:1]
        for start in range(0, len(hashes), _BLOCK):
            block = hashes[start : start + _BLOCK]
            step = _FALLING[_BLOCK - len(block) :]
            shift = np.multiply(step[:1], _BASE)[0]
            # arrays wrap around silently, scalars warn
            value = (np.array([value]) * np.array([shift]) + (block * step).sum(dtype=np.uint64))[0]
        content = (self.content + int(hashes.sum(dtype=np.uint64))) % 2**64
        return OrderHash(int(value), self.rows + len(hashes), content)


Digests = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class DigestRun:
    """Digests of consecutive batches, from ``first`` on. ``taken``: some rank has taken those before this one; None:
    maybe all of them. ``attempt``: of the feed's task, generation first."""

    first: int
    digests: Digests
    taken: int | None = None
    attempt: tuple[int, int] = (0, 0)

    @property
    def end(self) -> int:
        """Behind the last one."""
        return self.first + len(self.digests)


def not_recorded(run: DigestRun, batch_size: int) -> None:
    """Where digests go that nobody records."""


class BatchDigests:
    """Makes digests of the rows of a feed as they come. ``first``: the first batch of the epoch; ``position``: of the
    first row that comes, in its epoch."""

    def __init__(self, batch_size: int, position: int = 0, first: int = 0) -> None:
        self._size = batch_size
        self._falling = powers(batch_size)
        #: the batch that the next digest is of
        self._batch = first - (-position // batch_size)
        #: rows of the batch before that which come first, and are left out
        self._skip = -position % batch_size
        #: hashes of the rows of the open batch
        self._open: list[npt.NDArray[np.uint64]] = []
        self._rows = 0
        #: not taken yet: runs one behind the other
        self._made: list[Digests] = []

    def add(self, hashes: npt.NDArray[np.uint64]) -> None:
        """The next rows, by their hashes."""
        if self._skip:
            skipped = min(self._skip, len(hashes))
            self._skip -= skipped
            hashes = hashes[skipped:]
        if not len(hashes):
            return
        self._open.append(hashes)
        self._rows += len(hashes)
        if self._rows >= self._size:
            whole = np.concatenate(self._open)
            full = len(whole) - len(whole) % self._size
            rows = whole[:full].reshape(-1, self._size)
            self._made.append((rows * self._falling).sum(axis=1, dtype=np.uint64))
            # a copy: a slice would keep all of them
            self._open, self._rows = [whole[full:].copy()], len(whole) - full

    def end(self, drop_last: bool = False) -> None:
        """The epoch ends: the open batch is its last one, or none at all (``drop_last``)."""
        if self._rows and not drop_last:
            last = OrderHash().extended(np.concatenate(self._open))
            self._made.append(np.array([last.value], dtype=np.uint64))
        if self._skip and drop_last:
            self._batch -= 1
        self._open, self._rows, self._skip = [], 0, 0

    def take(self) -> DigestRun:
        """The digests of the batches that were completed since the last call."""
        made = np.concatenate([np.zeros(0, dtype=np.uint64), *self._made])
        run = DigestRun(self._batch, made)
        self._batch, self._made = run.end, []
        return run


class CutDigests:
    """The same of batches that were cut by what rows cost. ``first``: the batch that is open. A cut of the operators
    before the feed may lie in the middle of a batch, so a restored one begins with ``rows`` of it, by their hashes."""

    def __init__(self, first: int = 0, rows: Iterable[npt.NDArray[np.uint64]] = ()) -> None:
        self._first = first
        #: of the rows of the open batch
        self._open = OrderHash()
        for hashes in rows:
            self._open = self._open.extended(hashes)
        self._made: list[int] = []

    def add(self, hashes: npt.NDArray[np.uint64], ends: Iterable[int]) -> None:
        """The next rows, by their hashes; behind which of them batches end."""
        begin = 0
        for end in ends:
            self._made.append(self._open.extended(hashes[begin:end]).value)
            self._open, begin = OrderHash(), end
        self._open = self._open.extended(hashes[begin:])

    def take(self) -> DigestRun:
        """The digests of the batches that were completed since the last call."""
        run = DigestRun(self._first, np.array(self._made, np.uint64))
        self._first, self._made = run.end, []
        return run


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of a feed: batches in ascending order, the digest of each, and the first batch of which two
    different ones were recorded: then the order of this feed has not been the same in all of its attempts."""

    batches: npt.NDArray[np.int64]
    digests: Digests
    contradiction: int | None = None


def merged(runs: Iterable[DigestRun]) -> Recorded:
    """Several runs, which may overlap: a job that goes on from a checkpoint records some batches again. Rule 5."""
    found = sorted(runs, key=lambda run: run.attempt)
    batches = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(run.first, run.end) for run in found)])
    digests = np.concatenate([np.zeros(0, dtype=np.uint64), *(run.digests for run in found)])
    taken = np.concatenate([np.zeros(0, dtype=np.bool_), *map(_taken, found)])
    order = np.argsort(batches, kind="stable")
    batches, digests, taken = batches[order], digests[order], taken[order]
    again = batches[1:] == batches[:-1]
    contradiction = None
    for at in np.flatnonzero(again):  # the same batch in a later attempt
        if digests[at + 1] == digests[at]:
            taken[at + 1] |= taken[at]
        elif taken[at]:
            contradiction = int(batches[at])
            break
    latest = np.append(~again, np.ones(min(1, len(batches)), dtype=np.bool_))
    return Recorded(batches[latest], digests[latest], contradiction)


def _taken(run: DigestRun) -> npt.NDArray[np.bool_]:
    """Whether some rank has taken a batch of the run, for each."""
    batches = np.arange(run.first, run.end)
    return np.ones(len(batches), np.bool_) if run.taken is None else batches < run.taken


@dataclass(frozen=True, slots=True)
class FeedDifference:
    """What two feeds' digests say. ``first``: the first batch that differs, if one does; ``compared``: batches that
    both know; ``only``: how many the one and the other know alone."""

    first: int | None
    compared: int
    only: tuple[int, int]


def compare(one: Recorded, two: Recorded) -> FeedDifference:
    """Compare two feeds, over the batches that both know."""
    shared, mine, other = np.intersect1d(one.batches, two.batches, assume_unique=True, return_indices=True)
    different = np.flatnonzero(one.digests[mine] != two.digests[other])
    only = (len(one.batches) - len(shared), len(two.batches) - len(shared))
    return FeedDifference(int(shared[different[0]]) if len(different) else None, len(shared), only)
