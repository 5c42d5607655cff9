"""The compiled kernels (``native.c``): hot loops of grouping, which run without the interpreter's lock.

Rules:

1. Each has a twin in numpy or pyarrow that gives the same bits. The twin runs where the library is missing, or where
   ``PENSTOCK_KERNELS=python`` is set. Which one runs changes no result, so no checkpoint depends on it.
2. Callers have checked lengths and ranges. Arrays are contiguous and of the type that is named here. Each one that a
   call is given the address of is held by a name until it has come back.
3. A call costs some microseconds: below ``WORTH`` rows the twins are as fast.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .pieces import Positions

VERSION = 7
"""That of ``native.c``: a library that is left from another one is not used."""

WORTH = 512

_RANKED_BYTES = 12

PATH = Path(__file__).with_name("_native" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))

_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64}
_FUNCTIONS = {
    "mixed": "pip",
    "part_order": "pipipp",
    "number_places": "pppiipipp",
    "find_places": "piiipp",
    "number_keys": "piippipipp",
    **dict.fromkeys(["number_strings", "number_large_strings"], "ppipppipiipp"),
    "place_keys": "piipi",
    "pick_codes": "pipip",
    "pick_bits": "piiipp",
    "fill_bloom": "pipi",
    "pick_bloom": "piipip",
    "radix_order": "piipppp",
    "ordered_bits": "pip",
    **dict.fromkeys(["add_i64", "add_f64"], "pppi"),
    **{f"{name}_{type}": "pppi" for name in ("min", "max") for type in ("i32", "i64", "f64")},
    **dict.fromkeys(["add_words_1", "add_words_2", "add_words_4"], "pppppii"),
    "count": "ppi",
}
_OF_TYPES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64", np.dtype(np.float64): "f64"}

_Function: TypeAlias = Any


class Kernels:
    """The functions of the library at ``path``. Raises OSError if there is none, or one of another version."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        version = getattr(library, "penstock_kernels", None)
        if version is None or version() != VERSION:
            raise OSError(f"{path} is of another version")
        self._functions: dict[str, _Function] = {}
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, f"penstock_{name}")
            function.argtypes = [_TYPES[each] for each in arguments]
            function.restype = ctypes.c_int64 if name.startswith(("number", "pick")) else None
            self._functions[name] = function

    # ------------------------------------------------------------------ parts of an exchange

    def mixed(self, numbers: Any) -> Any:
        """The numbers (uint64), mixed."""
        found = np.empty(len(numbers), dtype=np.uint64)
        self._functions["mixed"](_at(numbers), len(numbers), _at(found))
        return found

    def part_order(self, parts: Any) -> tuple[Any, Any]:
        """The rows (int32) by their parts (uint16), in each in their own order; and the parts in it."""
        rows, count = len(parts), int(parts.max(initial=0)) + 1
        starts = np.zeros(count + 1, dtype=np.int64)
        order, ordered = np.empty(rows, dtype=np.int32), np.empty(rows, dtype=np.uint16)
        self._functions["part_order"](_at(parts), rows, _at(starts), count, _at(order), _at(ordered))
        return order, ordered

    # ------------------------------------------------------------------ numbers of keys
    #
    # The number of each row's key, and the first rows of new keys, which are numbered from ``count`` on.

    def number_places(
        self, columns: Sequence[Positions], ranges: Sequence[tuple[int, int]], table: Any, count: int
    ) -> tuple[Positions, Positions]:
        """``table``: int32, for every combination of codes within their ``ranges`` its number, or -1."""
        rows = len(columns[0])
        ids, first = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        lows = np.array([low for low, _ in ranges], dtype=np.int64)
        spans = np.array([high - low + 1 for low, high in ranges], dtype=np.int64)
        places = (ctypes.c_void_p * len(columns))(*map(_at, columns))
        call = self._functions["number_places"]
        found = call(places, _at(lows), _at(spans), len(columns), rows, _at(table), count, _at(ids), _at(first))
        return ids, first[: found - count].copy()

    def pick_codes(self, codes: Positions, indices: Any) -> Positions | None:
        """``codes[indices]`` for indices that are int32; None if one is outside."""
        picked = np.empty(len(indices), dtype=np.int64)
        call = self._functions["pick_codes"]
        found = call(_at(codes), len(codes), _at(indices), len(indices), _at(picked))
        return picked if found == len(indices) else None

    def find_places(self, codes: Positions, low: int, span: int, table: Any) -> Positions:
        """What stands in ``table`` (int32) for codes from ``low`` on; for those that are not among the ``span`` first
        ones, what stands behind these."""
        ids = np.empty(len(codes), dtype=np.int64)
        self._functions["find_places"](_at(codes), len(codes), low, span, _at(table), _at(ids))
        return ids

    def number_keys(
        self, columns: Sequence[Positions], known: Sequence[Any], slots: Any, hashes: Any, count: int
    ) -> tuple[Positions, Positions]:
        """``known`` (int64, for each column) and ``hashes`` (uint64) have room for all rows and get those of new keys;
        ``slots`` (int32) is a power of two, and at most half taken when all rows are new."""
        rows = len(columns[0])
        ids, first = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        call = self._functions["number_keys"]
        places = [(ctypes.c_void_p * len(each))(*map(_at, each)) for each in (columns, known)]
        bits = len(slots).bit_length() - 1
        found = call(
            places[0], len(columns), rows, places[1], _at(slots), bits, _at(hashes), count, _at(ids), _at(first)
        )
        return ids, first[: found - count].copy()

    def number_strings(
        self, bounds: Any, content: int, ends: Any, kept: Any, slots: Any, hashes: Any, count: int, *, add: bool = True
    ) -> tuple[Positions, Positions]:
        """``bounds``: int32 or int64, one more than rows, in the memory at ``content``. ``ends`` (int64, one more than
        keys) and ``kept`` (uint8) hold the known strings one behind the other, with room for all rows. Without ``add``
        rows of other strings get -1, and nothing changes."""
        rows = len(bounds) - 1
        ids, first = np.empty(rows, dtype=np.int64), np.empty(rows if add else 0, dtype=np.int64)
        call = self._functions["number_strings" if bounds.dtype == np.int32 else "number_large_strings"]
        table = (_at(slots), len(slots).bit_length() - 1, _at(hashes), count, int(add))
        found = call(_at(bounds), content, rows, _at(ends), _at(kept), *table, _at(ids), _at(first))
        return ids, first[: found - count].copy()

    def place_keys(self, hashes: Any, number: int, slots: Any) -> None:
        """Put keys, all different, into empty slots; they are numbered from ``number`` on."""
        self._functions["place_keys"](_at(hashes), len(hashes), number, _at(slots), len(slots).bit_length() - 1)

    # ------------------------------------------------------------------ key filters

    def pick_bits(self, codes: Positions, low: int, span: int, words: Any) -> Positions:
        """The rows whose bit is set: there is one in ``words`` (uint64) for each of ``span`` values from ``low``, a
        number modulo 2⁶⁴, on."""
        rows = np.empty(len(codes), dtype=np.int64)
        count = self._functions["pick_bits"](_at(codes), len(codes), low, span, _at(words), _at(rows))
        return rows[:count].copy()

    def fill_bloom(self, hashes: Any, words: Any) -> None:
        """Set the bits of these hashes in a power of two ``words`` (uint64), at least two."""
        self._functions["fill_bloom"](_at(hashes), len(hashes), _at(words), len(words).bit_length() - 1)

    def pick_bloom(self, columns: Sequence[Positions], words: Any) -> Positions:
        """The rows of which all bits are set."""
        rows = np.empty(len(columns[0]), dtype=np.int64)
        places = (ctypes.c_void_p * len(columns))(*map(_at, columns))
        call = self._functions["pick_bloom"]
        count = call(places, len(columns), len(rows), _at(words), len(words).bit_length() - 1, _at(rows))
        return rows[:count].copy()

    # ------------------------------------------------------------------ sorting

    def radix_order(self, values: Any, bits: int) -> tuple[Positions, Any]:
        """The rows by numbers (uint64) of at most 48 bits, equal ones in their own order; and the numbers in it. Below
        2³¹ rows."""
        rows = len(values)
        order, ordered = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.uint64)
        one, two = (np.empty(_RANKED_BYTES * rows, dtype=np.uint8) for _ in range(2))
        self._functions["radix_order"](_at(values), rows, bits, _at(order), _at(ordered), _at(one), _at(two))
        return order, ordered

    def ordered_bits(self, values: Any) -> Positions:
        """Doubles as integers in the same order, all NaNs as the largest one, both zeros as one."""
        bits = np.empty(len(values), dtype=np.int64)
        self._functions["ordered_bits"](_at(values), len(values), _at(bits))
        return bits

    # ------------------------------------------------------------------ totals of groups

    def count(self, total: Any, ids: Positions) -> None:
        """Count the rows of each group."""
        self._functions["count"](_at(total), _at(ids), len(ids))

    def add(self, total: Any, ids: Positions, values: Any) -> bool:
        """Add the number of each row to the total of its group. False, and nothing is done: not for this type."""
        return self._reduce("add", total, ids, values)

    def extreme(self, smallest: bool, total: Any, ids: Positions, values: Any) -> bool:
        """The same for the smallest number, of which none may be NaN, or the largest, which NaN is."""
        return self._reduce("min" if smallest else "max", total, ids, values)

    def add_words(self, total: Any, high: Any, ids: Positions | None, values: Any, valid: Any, offset: int) -> None:
        """Add whole numbers of one, two or four words (int64, a row each) to totals of two, and ``high`` (int64), which
        may be None for one word. ``ids`` None: all to the first one. ``valid``: bits (uint8), from ``offset`` on, of
        the rows that count; None: of all."""
        call = self._functions[f"add_words_{values.shape[1]}"]
        above, groups, bits = (None if each is None else _at(each) for each in (high, ids, valid))
        call(_at(total), above, groups, _at(values), bits, offset, len(values))

    def _reduce(self, name: str, total: Any, ids: Positions, values: Any) -> bool:
        call = self._functions.get(f"{name}_{_OF_TYPES.get(total.dtype)}")
        if call is None or values.dtype != total.dtype or not values.flags.c_contiguous or not ids.flags.c_contiguous:
            return False
        call(_at(total), _at(ids), _at(values), len(ids))
        return True


def _at(array: Any) -> int:
    """Where an array lies."""
    address: int = array.__array_interface__["data"][0]
    return address


def _load() -> Kernels | None:
    if os.environ.get("PENSTOCK_KERNELS") == "python":
        return None
    try:
        return Kernels(PATH)
    except OSError:
        return None


_kernels = _load()


def kernels() -> Kernels | None:
    """The compiled kernels; None: the twins run."""
    return _kernels


def kernels_for(rows: int) -> Kernels | None:
    """The compiled kernels, if there are any and they are worth a call for so many rows."""
    return _kernels if rows >= WORTH else None
