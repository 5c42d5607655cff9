"""The distinct values of a key column, each with a number, and the numbers of other values: what a lookup is made of.

Rules:

1. Numbers are 0, 1, 2, … without gaps, in no particular order; a value that is not there has -1. A dictionary never
   changes, so several threads may ask it at once.
2. Integers whose range is narrow have a bit for each value, and their rank as number. Others are mixed, so that they
   spread evenly, and sorted; a directory of their leading bits tells where to look, and few are more than one step
   away.
3. Values of other types are found by their hash, and compared. If there are no more of them than keys in a batch, Arrow
   looks them up, which hashes them anew for each batch; also if two of them have one hash, which takes an adversary.
4. Strings stand in a hash table of their own where there are compiled kernels.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .hashing import Hashes, hashes, mixed
from .keys import Comparable, compared
from .native import kernels, kernels_for
from .pieces import Flags, Positions, picked
from .short_strings import is_bytes
from .string_table import StringTable

NARROW = 128
"""Numbers whose range is at most so many times their count have a bit for each value, and here their rank: at most 32
bytes a number."""

ANY_WAY = 1 << 20
"""So have those of a range of so many values, however few there are: 256 KiB."""

HASHED_ANEW = 64 * 1024
"""So many values of other types at most are hashed for each batch (20,000 words: 1.5 ms for 64 Ki keys, against 4)."""


_RANKS = np.dtype([("bits", np.uint64), ("before", np.int64)])
_SIX, _SIX_BITS = np.uint64(6), np.uint64(63)


class KeyDictionary(Protocol):
    """See the module's rules."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """About how much memory it holds."""

    def place(self, keys: Comparable) -> Positions:
        """The number of each key, or -1."""


def is_narrow(low: int, high: int, count: int) -> bool:
    """Whether so many numbers within these bounds have a bit for each value."""
    return high - low < max(NARROW * count, ANY_WAY)


def numbered(column: Comparable) -> tuple[KeyDictionary, Positions]:
    """The distinct values of a comparable column without nulls, and the number of each row."""
    if not isinstance(column, np.ndarray):
        compiled = kernels()
        if compiled is not None and is_bytes(column.type):
            strings = StringTable(compiled)
            return strings, strings.numbers(column)
        values = HashedValues(column)
        return values, values.place(column)
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, -1)
    if is_narrow(low, high, len(column)):
        ranked = Ranked(column, low, high)
        return ranked, ranked.place(column)
    spread = Spread(column)
    return spread, spread.place(column)


class Ranked:
    """Integers from ``low`` to ``high``: a bit for each, and for each word of bits how many are set before it. The
    number of a value is how many smaller ones there are."""

    def __init__(self, column: Positions, low: int, high: int) -> None:
        self._low, self._span = low, high - low + 1
        self._words = np.zeros(max(-(-self._span // 64), 1), dtype=_RANKS)
        compiled = kernels_for(len(column))
        if compiled is not None:
            self._count = compiled.number_ranks(np.ascontiguousarray(column), low, self._words)
            return
        flags = np.zeros(len(self._words) * 64, dtype=bool)
        flags[column - low] = True
        bits = np.packbits(flags, bitorder="little").view("<u8").astype(np.uint64, copy=False)
        ends = np.cumsum(np.bitwise_count(bits), dtype=np.int64)
        self._words["bits"], self._words["before"][1:] = bits, ends[:-1]
        self._count = int(ends[-1])

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return int(self._words.nbytes)

    def place(self, keys: Positions) -> Positions:
        compiled = kernels_for(len(keys))
        if compiled is not None:
            return compiled.find_ranks(np.ascontiguousarray(keys), self._low, self._span, self._words)
        # modulo 2 ** 64: below the lowest value is far above the highest
        offsets = keys.view(np.uint64) - np.uint64(self._low % 2**64)
        inside = offsets < np.uint64(self._span)
        words = self._words.take(np.where(inside, offsets >> _SIX, 0).view(np.int64))
        own = np.uint64(1) << (offsets & _SIX_BITS)
        found: Positions = words["before"] + np.bitwise_count(words["bits"] & (own - np.uint64(1)))
        return np.where(inside & (words["bits"] & own != 0), found, -1)


class Spread:
    """Integers of any range."""

    def __init__(self, column: Positions) -> None:
        found = np.sort(mixed(column.view(np.uint64)))
        #: the mixed values, ascending
        self._mixed: Hashes = found[np.flatnonzero(np.append(True, found[1:] != found[:-1])[: len(found)])]
        bits = max(len(self._mixed), 1).bit_length() + 1
        self._shift = np.uint64(64 - bits)
        counts = np.bincount((self._mixed >> self._shift).view(np.int64), minlength=1 << bits)
        #: for each beginning of a mixed value the first place where one with it, or a larger one, stands
        self._directory = np.minimum(np.cumsum(counts) - counts, max(len(self._mixed) - 1, 0))

    def __len__(self) -> int:
        return len(self._mixed)

    @property
    def nbytes(self) -> int:
        return int(self._mixed.nbytes + self._directory.nbytes)

    def place(self, keys: Positions) -> Positions:
        if not len(self._mixed):
            return np.full(len(keys), -1, dtype=np.int64)
        compiled = kernels_for(len(keys))
        if compiled is not None:
            return compiled.find_mixed(np.ascontiguousarray(keys), self._mixed, self._directory, int(self._shift))
        wanted = mixed(keys.view(np.uint64))
        near = self._directory.take((wanted >> self._shift).view(np.int64))
        there = self._mixed.take(near)
        places = np.where(there == wanted, near, -1)
        rows = np.flatnonzero(there < wanted)
        while len(rows):
            rows = rows[near[rows] < len(self._mixed) - 1]
            near[rows] += 1
            there, mine = self._mixed.take(near[rows]), wanted[rows]
            hits = rows[there == mine]
            places[hits] = near[hits]
            rows = rows[there < mine]
        return places


class HashedValues:
    """Values that are no integers."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column
        found = hashes([column]).view(np.int64)
        self._numbers = Spread(found)
        numbers = self._numbers.place(found)
        #: of each value a row of the column
        self._rows = np.empty(len(self._numbers), dtype=np.int64)
        self._rows[numbers] = np.arange(len(found))
        self._is_exact = len(self._rows) == len(column) or self._equal(self._rows[numbers], column).all()
        #: the values, where Arrow is to look for keys among them
        self._values: pa.Array | None = None
        if not self._is_exact:
            self._values = column.unique()
        elif len(self._rows) <= HASHED_ANEW:
            self._values = picked(column, pa.array(self._rows))

    def __len__(self) -> int:
        return len(self._rows) if self._values is None else len(self._values)

    @property
    def nbytes(self) -> int:
        values = 0 if self._values is None else int(self._values.nbytes)
        return int(self._column.nbytes) + self._rows.nbytes + self._numbers.nbytes + values

    def place(self, keys: pa.Array) -> Positions:
        if self._values is not None and (len(self._values) <= len(keys) or not self._is_exact):
            found = pc.index_in(keys, value_set=self._values).fill_null(-1)
            return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.int64)
        numbers = self._numbers.place(hashes([keys]).view(np.int64))
        return np.where(self._equal(self._rows[np.maximum(numbers, 0)], keys), numbers, -1)

    def _equal(self, rows: Positions, keys: pa.Array) -> Flags:
        return compared("equal", picked(self._column, pa.array(rows)), keys)
