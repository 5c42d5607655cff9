"""What the complete build side of a join lets through of the other side's rows, told to whoever reads these.

Rules:

1. A :class:`KeyTest` drops only rows whose key is not among those that it was made of, or is null: the join would drop
   them, too. It may let others through. So whether a test was there in time changes no row and no order.
2. Integers in a narrow range are tested exactly, by a bit for each value. Others, and keys of several columns, by a
   bloom filter: four bits of one word for each key, about sixteen bits a key.
3. Keys are the same in every form of a column: dictionary codes count as their values, decimals as the lowest 64 bits
   of their digits.
4. A :class:`KeyFilter` belongs to a running join and to one of its inputs; all rows that its readers give must go to
   this join. A test holds for one *window*, the part between two task barriers: reader and join count those that have
   passed since they were made, and mean the same number.
5. A test never changes, and is published by one assignment: readers look at it without a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .hashing import Hashes, hashes, mixed
from .key_dictionary import is_narrow
from .keys import comparable, is_coded, valid_rows
from .native import kernels_for
from .pieces import Positions, picked

Words: TypeAlias = npt.NDArray[np.uint64]

TRIED = 128 * 1024
"""So many rows are tested before a filter that lets nearly all of them through is left alone."""
WORTHLESS = 0.8
"""To test the rows costs more than to make and look up those that a filter leaves out, if more than these pass."""

_JOIN = np.uint64(0x8EBC6AF09C88C6E3)
_SIX_BITS = np.uint64(63)
_ONE = np.uint64(1)


class KeyFilter:
    """What a join tells the reader of one of its inputs; see the module's rules.

    ``keys``: which of the join's keys it tests, by their places there.
    """

    def __init__(self, keys: Sequence[int] = (0,)) -> None:
        self.keys = tuple(keys)
        self._published: tuple[int, KeyTest] | None = None
        #: rows that were tested, and those that passed; for people, so they may miss some where several readers count
        self.seen = self.passed = 0

    @property
    def pays(self) -> bool:
        """Whether it has left out enough of the rows so far to go on with it."""
        return self.seen < TRIED or self.passed < WORTHLESS * self.seen

    def publish(self, window: int, columns: Sequence[pa.Array]) -> int:
        """From now on rows of this window are tested by these keys. The bytes that this takes."""
        test = KeyTest(columns)
        self._published = (window, test)
        return test.nbytes

    def test(self, window: int) -> KeyTest | None:
        """The test for rows of a window, if there is one yet."""
        published = self._published
        return published[1] if published is not None and published[0] == window else None

    def picked(self, window: int, columns: Sequence[pa.Array]) -> Positions | None:
        """The rows that may match, ascending, by the columns of ``keys``; None: there is no test yet."""
        test = self.test(window)
        if test is None:
            return None
        rows = test.picked(columns)
        self.seen += len(columns[0])
        self.passed += len(rows)
        return rows


class KeyTest:
    """The keys of some rows, given by their columns; see the module's rules."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        valid = valid_rows(columns)
        if valid is not None:
            columns = [picked(column, pa.array(valid)) for column in columns]
        #: of each column the smallest and the largest value, where statistics of files may be compared with them
        self.bounds = [_bounds(column) for column in columns]
        codes = [_codes(column) for column in columns]
        narrow = _Bits.of(codes[0]) if len(codes) == 1 else None
        self._test: _Bits | _Bloom = _Bloom(_hashes(codes)) if narrow is None else narrow

    @property
    def nbytes(self) -> int:
        """How much memory it holds."""
        return int(self._test.words.nbytes)

    def picked(self, columns: Sequence[pa.Array]) -> Positions:
        """The rows that may match, ascending."""
        valid = valid_rows(columns)
        if valid is not None:
            columns = [picked(column, pa.array(valid)) for column in columns]
        found = self._test.picked([_codes(column) for column in columns])
        return found if valid is None else valid[found]


class _Bits:
    """A bit for each value from ``low`` on; all beyond ``span`` are none."""

    def __init__(self, codes: Positions, low: int, span: int) -> None:
        self._low, self._span = np.uint64(low % 2**64), span
        flags = np.zeros(max(-(-span // 64), 1) * 64, dtype=bool)
        flags[codes - low] = True
        self.words: Words = np.packbits(flags, bitorder="little").view("<u8").astype(np.uint64, copy=False)

    @classmethod
    def of(cls, codes: Positions) -> _Bits | None:
        """For codes of a narrow range."""
        low, high = (int(codes.min()), int(codes.max())) if len(codes) else (0, -1)
        return cls(codes, low, high - low + 1) if is_narrow(low, high, len(codes)) else None

    def picked(self, columns: Sequence[Positions]) -> Positions:
        (codes,) = columns
        kernels = kernels_for(len(codes))
        if kernels is not None:
            return kernels.pick_bits(codes, int(self._low), self._span, self.words)
        offsets = codes.view(np.uint64) - self._low  # modulo 2 ** 64: below the lowest value is far above the highest
        near = np.flatnonzero(offsets < np.uint64(self._span))
        offsets = offsets[near]
        there = self.words.take((offsets >> np.uint64(6)).view(np.int64)) >> (offsets & _SIX_BITS)
        rows: Positions = near[there & _ONE != 0]
        return rows


class _Bloom:
    """Of each key four bits in the word that the upper bits of its hash name: one for each six of the lowest bits."""

    def __init__(self, found: Hashes) -> None:
        #: a power of two words, of which each has the bits of four keys at most, on average
        self.words: Words = np.zeros(1 << max(len(found) // 4, 1).bit_length(), dtype=np.uint64)
        kernels = kernels_for(len(found))
        if kernels is not None:
            kernels.fill_bloom(found, self.words)
        else:
            np.bitwise_or.at(self.words, self._places(found), _masks(found))

    def picked(self, columns: Sequence[Positions]) -> Positions:
        kernels = kernels_for(len(columns[0]))
        if kernels is not None:
            return kernels.pick_bloom(columns, self.words)
        found = _hashes(columns)
        masks = _masks(found)
        rows: Positions = np.flatnonzero(self.words.take(self._places(found)) & masks == masks)
        return rows

    def _places(self, found: Hashes) -> Positions:
        return (found >> np.uint64(65 - len(self.words).bit_length())).view(np.int64)


def _masks(found: Hashes) -> Words:
    bits = ((found >> np.uint64(6 * number)) & _SIX_BITS for number in range(4))
    masks: Words = reduce(np.bitwise_or, (_ONE << bit for bit in bits))
    return masks


def _hashes(columns: Sequence[Positions]) -> Hashes:
    found = mixed(columns[0].view(np.uint64))
    for column in columns[1:]:
        found = mixed(found * _JOIN + column.view(np.uint64))
    return found


def _codes(column: pa.Array) -> Positions:
    """The same number for the same value of a column without nulls, in whatever form it comes."""
    if pa.types.is_dictionary(column.type) and len(column.dictionary) <= len(column):
        numbers: Positions = column.indices.to_numpy()
        return _codes(column.dictionary)[numbers]
    if pa.types.is_decimal(column.type) and column.type.bit_width >= 64:
        return _lowest_words(column)
    found: Any = comparable(column) if is_coded(column.type) else hashes([column]).view(np.int64)
    return np.ascontiguousarray(found)


def _lowest_words(column: pa.Array) -> Positions:
    """The lowest 64 bits of the digits of decimals: the same whether they come in 64 bits or more."""
    words = column.type.bit_width // 64
    if not len(column):
        return np.zeros(0, dtype=np.int64)
    found = np.frombuffer(column.buffers()[1], np.int64, words * len(column), 8 * words * column.offset)
    return np.ascontiguousarray(found[::words])


def _bounds(column: pa.Array) -> tuple[pa.Scalar, pa.Scalar] | None:
    type = column.type
    if not len(column) or not (pa.types.is_integer(type) or pa.types.is_date(type)):
        return None
    found = pc.min_max(column)
    return found["min"], found["max"]
