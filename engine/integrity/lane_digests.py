"""What rows were, per order lane: the digests that sources and sinks keep in their state (``row_digests``).

They are part of the snapshot, so after a restore they are those of the cut: exactly once, like the rows. With each
digest stands of how many rows it is: the others passed an attempt that did not look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from ..core.operator import LANE
from .row_digests import MODULUS, VERSION, RowDigest

DIGESTED, DIGEST = f"digested_{VERSION}", f"digest_{VERSION}"

Sum = tuple[int, int]
"""So many rows, and their digest."""


class LaneDigests:
    """``restored``: a state that holds earlier ones, of the same ``flow``."""

    def __init__(self, digest: RowDigest, restored: pa.Table | None = None, flow: str = "") -> None:
        self._digest = digest
        self._flow = flow
        self._sums: dict[int, Sum] = {} if restored is None else sums_by_lane(restored, flow)

    def take(self, lane: int, records: pa.RecordBatch) -> None:
        """These rows have passed."""
        self._sums[lane] = added(self._sums.get(lane, (0, 0)), (records.num_rows, self._digest.of(records)))

    def beside(self, state: pa.Table, lanes: Iterable[int]) -> pa.Table:
        """The state, which has a row for each of ``lanes``, with columns for them."""
        sums = [self._sums.get(lane, (0, 0)) for lane in lanes]
        rows, digest = columns_of(self._flow)
        state = state.append_column(rows, pa.array([count for count, _ in sums], pa.int64()))
        return state.append_column(digest, pa.array([found for _, found in sums], pa.uint64()))


def columns_of(flow: str = "") -> tuple[str, str]:
    """The names of the columns. ``flow``: what they are of; those of another flow are not looked at."""
    return (f"{DIGESTED}_{flow}", f"{DIGEST}_{flow}") if flow else (DIGESTED, DIGEST)


def added(one: Sum, other: Sum) -> Sum:
    """Both together."""
    return one[0] + other[0], (one[1] + other[1]) % MODULUS


def sums_by_lane(state: pa.Table, flow: str = "") -> dict[int, Sum]:
    """For the lanes that have one: parts of a state may come from attempts without."""
    names = columns_of(flow)
    if names[1] not in state.column_names:
        return {}
    sums: dict[int, Sum] = {}
    for lane, count, digest in zip(*(state[name].to_pylist() for name in (LANE, *names)), strict=True):
        if count:
            sums[lane] = added(sums.get(lane, (0, 0)), (count, digest))
    return sums


def digested(state: pa.Table | None, flow: str = "") -> Sum:
    """How many rows a state has digested, and their digest."""
    return total({} if state is None else sums_by_lane(state, flow))


def total(sums: Mapping[int, Sum]) -> Sum:
    """All lanes together."""
    found: Sequence[Sum] = tuple(sums.values())
    return sum(rows for rows, _ in found), sum(digest for _, digest in found) % MODULUS
