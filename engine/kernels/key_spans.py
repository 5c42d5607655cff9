"""Where the rows of each key lie once they are in the order of their keys' numbers: what lookups of joins share.

Rule: rows of one number stay in their own order. *Starts* have a place for each number, from 0 on, where its rows
begin, and last the end of all.
"""

from __future__ import annotations

import numpy as np

from .native import kernels_for
from .pieces import Positions
from .radix_order import Part, radix_order


def is_ascending(ids: Positions) -> bool:
    """Whether the rows are in the order of their numbers."""
    return bool((ids[1:] >= ids[:-1]).all())


def starts_of(ids: Positions, size: int) -> Positions:
    """The starts of ascending numbers below ``size``."""
    kernels = kernels_for(len(ids))
    if kernels is not None:
        return kernels.order_ids(ids, size, None)
    return np.append(0, np.cumsum(np.bincount(ids, minlength=size), dtype=np.int64))


def in_order(ids: Positions, size: int) -> tuple[Positions, Positions]:
    """The starts of numbers below ``size``, and the rows in their order."""
    kernels = kernels_for(len(ids))
    if kernels is not None:
        order: Positions = np.empty(len(ids), dtype=np.int64)
        return kernels.order_ids(ids, size, order), order
    return starts_of(ids, size), radix_order([Part(ids.view(np.uint64), size.bit_length())], len(ids))


def spans_of(ids: Positions, starts: Positions) -> tuple[Positions, Positions]:
    """For each number where its rows begin, and how many there are: none for -1."""
    kernels = kernels_for(len(ids))
    if kernels is not None:
        return kernels.find_spans(ids, starts)
    known = np.maximum(ids, 0)
    if len(starts) == 1:
        return known, np.zeros(len(ids), dtype=np.int64)
    first = starts[known]
    return np.where(ids < 0, 0, first), np.where(ids < 0, 0, starts[known + 1] - first)
