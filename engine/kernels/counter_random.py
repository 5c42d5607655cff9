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

SHUFFLE, MIX, SPLITS, FULL, SAMPLE = 1, 2, 3, 4, 5
"""Purposes: what the numbers are drawn for."""

_LIMIT = 2**63


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
