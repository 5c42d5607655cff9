"""Random numbers by position: what a seed, a stream of draws and a position give, anywhere and in any order.

Rules:

1. The generator is Philox 4×64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), whose output
   is a function of key and counter alone: there is no state to store or to restore, and nothing to fast-forward.
2. Key: (seed, epoch). Counter: (block, purpose). So epochs, blocks and operators of one seed do not share numbers.
3. Only the raw 64-bit words of numpy's bit generator are used. Its streams are guaranteed to stay, those of its
   distributions (``permutation``, ``choice``) are not: a checkpoint may be older than the installed numpy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..core.errors import FlowError

Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

SHUFFLE, MIX, SPLITS, FULL, SAMPLE, AGAIN = 1, 2, 3, 4, 5, 6
"""Purposes: what the numbers are drawn for."""

_LIMIT = 2**63
_ROUNDS = 6


def check_seed(kind: str, seed: int, epoch: int = 0) -> None:
    """Seed and epoch fit into a key; raises FlowError."""
    for name, value in (("seed", seed), ("epoch", epoch)):
        if not 0 <= value < _LIMIT:
            raise FlowError(f"{kind}: {name} {value!r} is impossible", "give a whole number from 0 to 2**63 - 1")


def words(seed: int, epoch: int, purpose: int, block: int, count: int) -> Words:
    """The first ``count`` words of a block."""
    key = np.array([seed, epoch], dtype=np.uint64)
    # the first word of the counter counts the generator's own steps
    counter = np.array([0, 0, block, purpose], dtype=np.uint64)
    found: Words = np.random.Philox(key=key, counter=counter).random_raw(count)
    return found


def permutation(seed: int, epoch: int, block: int, count: int) -> npt.NDArray[np.int64]:
    """An order of ``count`` rows: that of their words, of equal words the first row first."""
    drawn = words(seed, epoch, SHUFFLE, block, count)
    order: npt.NDArray[np.int64] = np.argsort(drawn)  # several times as fast as a stable one
    ordered = drawn[order]
    return np.argsort(drawn, kind="stable") if bool((ordered[1:] == ordered[:-1]).any()) else order


def places_again(seed: int, epoch: int, port: int, rows: int, first: int, count: int) -> npt.NDArray[np.int64]:
    """The next ``count`` of endless turns through ``rows`` rows of a port, each turn in an order of its own; ``first``:
    how many were before. An order is computed where it is looked at (a Feistel network on as many bits as it takes,
    again for places that are none), so one of any length takes no memory."""
    turns, places = np.divmod(np.arange(first, first + count), rows)
    keys = [words(seed, epoch, AGAIN + (port << 8), turn, _ROUNDS) for turn in range(turns[0], turns[-1] + 1)]
    own = np.array(keys)[turns - turns[0]].T
    bits = np.uint64(max(1, (max(1, rows - 1).bit_length() + 1) // 2))
    found = _permuted(places.astype(np.uint64), own, bits)
    while len(outside := np.flatnonzero(found >= rows)):
        found[outside] = _permuted(found[outside], own[:, outside], bits)
    return found.astype(np.int64)


def _permuted(places: Words, keys: Words, bits: np.uint64) -> Words:
    """Numbers of twice so many bits, each by the keys in its column."""
    low = (np.uint64(1) << bits) - np.uint64(1)
    left, right = places >> bits, places & low
    for key in keys:
        drawn = (right ^ key) * np.uint64(0xBF58476D1CE4E5B9)
        drawn = (drawn ^ (drawn >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
        left, right = right, left ^ ((drawn >> np.uint64(29)) & low)
    return (left << bits) | right
