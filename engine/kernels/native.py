"""The compiled kernels (``native.c``): hot loops of grouping, which run without the interpreter's lock.

Rules:

1. Each has a twin in numpy or pyarrow that gives the same bits. The twin runs where the library is missing, or where
   ``PENSTOCK_KERNELS=python`` is set. Which one runs changes no result, so no checkpoint depends on it.
2. Callers have checked lengths and ranges. Arrays are contiguous and of the type that is named here. Each one that a
   call is given the address of is held by a name until it has come back.
3. A call costs some microseconds: below ``WORTH`` rows the twins are as fast. Up to ``BRIEF`` rows it keeps the lock.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from .pieces import Positions
from .scratch import NEW_KEYS, scratch_buffer

VERSION = 14
"""That of ``native.c``: a library that is left from another one is not used."""

BRIEF = 4 * 1024
"""A call for so many rows takes some microseconds. It keeps the interpreter's lock: to give it up costs as much where
nobody waits for it, and several times as much where somebody does."""
WORTH = 512

FEW_GROUPS = 16 * 1024
"""The totals of so many are in the cache."""

_RANKED_BYTES = 12

PATH = Path(__file__).with_name("_native" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))

_NUMBERS = {
    np.dtype(f"{kind}{size}"): f"{kind}{8 * size}"
    for kind, sizes in (("i", (1, 2, 4, 8)), ("u", (1, 2, 4, 8)), ("f", (4, 8)))
    for size in sizes
}
_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64}
_FUNCTIONS = {
    "mixed": "pip",
    **dict.fromkeys(["parts_of_i32", "parts_of_i64"], "piip"),
    "part_order": "pipipp",
    "hash_spans": "pppip",
    "is_wide": "",
    **{f"hash_lists_{kind}": "ppiip" for kind in _NUMBERS.values()},
    "number_places": "pppiipippp",
    "number_keys": "piippipipp",
    **dict.fromkeys(["number_strings", "number_large_strings"], "ppipppipiipp"),
    "place_keys": "piipi",
    "pick_codes": "pipip",
    "number_ranks": "piipi",
    "find_ranks": "piiipp",
    "find_mixed": "pipipip",
    "order_ids": "piipp",
    "find_spans": "pippp",
    "merge_spans": "pipipp",
    "number_pairs": "ppipipppp",
    "list_found": "pippp",
    "pick_bits": "piiipp",
    "fill_bloom": "pipi",
    "pick_bloom": "piipip",
    "radix_order": "piipppp",
    "ordered_bits": "pip",
    **dict.fromkeys(["add_i64", "add_f64"], "pippi"),
    **{f"{name}_{type}": "pippi" for name in ("min", "max") for type in ("i32", "i64", "f64")},
    **dict.fromkeys(["add_words_1", "add_words_2", "add_words_4"], "pppppii"),
    "count": "pipi",
    "totals": "pipppippi",
}
_OF_TYPES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64", np.dtype(np.float64): "f64"}

_Function: TypeAlias = Any
Pair: TypeAlias = tuple[Any, Any]
"""Totals of groups, and a number for each row."""


def functions_of(
    path: Path, part: str, version: int, arguments: Mapping[str, str], *, brief: bool = False
) -> dict[str, _Function]:
    """The functions of a part of the library at ``path``, by what they are given: addresses ("p") and numbers ("i").
    ``brief``: for calls that keep the interpreter's lock. Raises OSError if it has not all of them, or is of another
    version, as one that older sources have left."""
    library = (ctypes.PyDLL if brief else ctypes.CDLL)(str(path))
    names = [f"penstock_{name}" for name in (part, *arguments)]
    found: list[_Function] = [getattr(library, name, None) for name in names]
    if None in found or found[0]() != version:
        raise OSError(f"{path} has {part} of another version")
    functions: dict[str, _Function] = dict(zip(arguments, found[1:], strict=True))
    for name, function in functions.items():
        function.argtypes = [_TYPES[each] for each in arguments[name]]
        function.restype = ctypes.c_int64  # what one gives that has nothing to give is not looked at
    return functions


class Kernels:
    """The functions of the library at ``path``. ``brief``: they keep the interpreter's lock. Raises OSError if there is
    none, or one of another version."""

    def __init__(self, path: Path, *, brief: bool = False) -> None:
        self._functions = functions_of(path, "kernels", VERSION, _FUNCTIONS, brief=brief)
        #: long lists are hashed with AVX-512
        self.is_wide = bool(self._functions["is_wide"]())

    # ------------------------------------------------------------------ parts of an exchange

    def mixed(self, numbers: Any) -> Any:
        """The numbers (uint64), mixed."""
        found = np.empty(len(numbers), dtype=np.uint64)
        self._functions["mixed"](_at(numbers), len(numbers), _at(found))
        return found

    def parts_of(self, numbers: Any, parts: int) -> Any:
        """Of so many the part of each number (int32 or int64)."""
        found = np.empty(len(numbers), dtype=np.uint16)
        self._functions[f"parts_of_{_OF_TYPES[numbers.dtype]}"](_at(numbers), len(numbers), parts, _at(found))
        return found

    def part_order(self, parts: Any) -> tuple[Any, Any]:
        """The rows (int32) by their parts (uint16), in each in their own order; and the parts in it."""
        rows, count = len(parts), int(parts.max(initial=0)) + 1
        starts = np.zeros(count + 1, dtype=np.int64)
        order, ordered = np.empty(rows, dtype=np.int32), np.empty(rows, dtype=np.uint16)
        self._functions["part_order"](_at(parts), rows, _at(starts), count, _at(order), _at(ordered))
        return order, ordered

    # ------------------------------------------------------------------ hashes

    def hash_spans(self, content: Any, starts: Positions, ends: Positions) -> Any:
        """Of the bytes (uint8) from each start to its end."""
        found = np.empty(len(starts), dtype=np.uint64)
        self._functions["hash_spans"](_at(content), _at(starts), _at(ends), len(starts), _at(found))
        return found

    def hash_lists(self, numbers: Any, counts: Positions) -> Any:
        """Of lists that stand one behind the other, with so many ``numbers`` each; None: not for this type."""
        kind = _NUMBERS.get(numbers.dtype)
        if kind is None:
            return None
        found = np.empty(len(counts), dtype=np.uint64)
        self._functions[f"hash_lists_{kind}"](_at(numbers), _at(counts), len(counts), self.is_wide, _at(found))
        return found

    # ------------------------------------------------------------------ numbers of keys
    #
    # The number of each row's key, and the first rows of new keys, which are numbered from ``count`` on.

    def number_places(
        self, columns: Sequence[Positions], lows: Positions, spans: Positions, table: Any, count: int
    ) -> tuple[Positions, Positions]:
        """``table``: int32, for every combination of codes, of each column from its low on as many as its span, the
        number, or -1. The numbers of the rows before the first one with a code outside of it."""
        rows = len(columns[0])
        ids, first = np.empty(rows, dtype=np.int64), np.empty(min(rows, len(table) - count), dtype=np.int64)
        places, done = (ctypes.c_void_p * len(columns))(*map(_at, columns)), ctypes.c_int64()
        given = (places, _at(lows), _at(spans), len(columns), rows, _at(table), count, _at(ids), _at(first))
        found = self._functions["number_places"](*given, ctypes.byref(done))
        return ids if done.value == rows else ids[: done.value], first[: found - count].copy()

    def pick_codes(self, codes: Positions, indices: Any) -> Positions | None:
        """``codes[indices]`` for indices that are int32; None if one is outside."""
        picked = np.empty(len(indices), dtype=np.int64)
        call = self._functions["pick_codes"]
        found = call(_at(codes), len(codes), _at(indices), len(indices), _at(picked))
        return picked if found == len(indices) else None

    def number_keys(
        self, columns: Sequence[Positions], known: Sequence[Any], slots: Any, hashes: Any, count: int
    ) -> tuple[Positions, Positions]:
        """``known`` (int64, for each column) and ``hashes`` (uint64) have room for all rows and get those of new keys;
        ``slots`` (int32) is a power of two, and at most half taken when all rows are new."""
        rows = len(columns[0])
        ids, first = np.empty(rows, dtype=np.int64), scratch_buffer(NEW_KEYS, rows).view(np.int64)
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
        ids, first = np.empty(rows, dtype=np.int64), scratch_buffer(NEW_KEYS, rows if add else 0).view(np.int64)
        call = self._functions["number_strings" if bounds.dtype == np.int32 else "number_large_strings"]
        table = (_at(slots), len(slots).bit_length() - 1, _at(hashes), count, int(add))
        found = call(_at(bounds), content, rows, _at(ends), _at(kept), *table, _at(ids), _at(first))
        return ids, first[: found - count].copy()

    def place_keys(self, hashes: Any, number: int, slots: Any) -> None:
        """Put keys, all different, into empty slots; they are numbered from ``number`` on."""
        self._functions["place_keys"](_at(hashes), len(hashes), number, _at(slots), len(slots).bit_length() - 1)

    # ------------------------------------------------------------------ joins

    def number_ranks(self, codes: Positions, low: int, words: Any) -> int:
        """Set a bit for each code from ``low`` on in ``words`` (16 bytes for 64 values, all zero); their number."""
        call = self._functions["number_ranks"]
        return int(call(_at(codes), len(codes), low, _at(words), len(words)))

    def find_ranks(self, codes: Positions, low: int, span: int, words: Any) -> Positions:
        """The number of each code, of those of which the bit is set; or -1."""
        ids = np.empty(len(codes), dtype=np.int64)
        self._functions["find_ranks"](_at(codes), len(codes), low, span, _at(words), _at(ids))
        return ids

    def find_mixed(self, numbers: Any, known: Any, directory: Positions, shift: int) -> Positions:
        """The place of each number (64 bits), mixed, among ``known`` (uint64), at least one, ascending; or -1.
        ``directory``: for its bits from ``shift`` on the first place where one with these, or a larger one, stands."""
        ids = np.empty(len(numbers), dtype=np.int64)
        given = (_at(known), len(known), _at(directory), shift)
        self._functions["find_mixed"](_at(numbers), len(numbers), *given, _at(ids))
        return ids

    def order_ids(self, ids: Positions, size: int, order: Positions | None) -> Positions:
        """Where the rows of each id below ``size`` begin, one behind the other, with the end of the last ones.
        ``order`` gets the rows in this order."""
        starts = np.zeros(size + 2, dtype=np.int64)
        self._functions["order_ids"](_at(ids), len(ids), size, _at(starts), None if order is None else _at(order))
        return starts[: size + 1]

    def find_spans(self, ids: Positions, starts: Positions) -> tuple[Positions, Positions]:
        """Where the rows of each id begin, and how many there are; none for -1."""
        first, counts = np.empty(len(ids), dtype=np.int64), np.empty(len(ids), dtype=np.int64)
        self._functions["find_spans"](_at(ids), len(ids), _at(starts), _at(first), _at(counts))
        return first, counts

    def merge_spans(self, ours: Positions, theirs: Positions) -> tuple[Positions, Positions]:
        """For each of ``ours`` where those of ``theirs`` that are equal begin, and how many there are; both ascend."""
        first, counts = np.empty(len(ours), dtype=np.int64), np.empty(len(ours), dtype=np.int64)
        self._functions["merge_spans"](_at(ours), len(ours), _at(theirs), len(theirs), _at(first), _at(counts))
        return first, counts

    def list_pairs(
        self, first: Positions, counts: Positions, numbers: Positions | None, limit: int, at: Positions, *, keep: bool
    ) -> tuple[Positions, Positions, Any]:
        """The next pairs of rows, at most ``limit``: each row with those that ``numbers`` (None: every number itself)
        names from its ``first`` on, as many as ``counts`` says. ``at``: the row and the match to begin with, which move
        on, and whether a row has come twice. ``keep``: rows without match come once, with 0, and where is told."""
        left, right = np.empty(limit, dtype=np.int64), np.empty(limit, dtype=np.int64)
        missing = np.zeros(limit, dtype=np.bool_) if keep else None
        call = self._functions["number_pairs"]
        named, marks = (None if each is None else _at(each) for each in (numbers, missing))
        count = call(_at(first), _at(counts), len(counts), named, limit, _at(at), _at(left), _at(right), marks)
        return left[:count], right[:count], None if missing is None else missing[:count]

    def list_found(self, places: Positions, numbers: Positions | None) -> tuple[Positions, Positions]:
        """The pairs of rows where none matches twice: each with what ``numbers`` (None: every number itself) names at
        its place, if that is not -1."""
        left, right = np.empty(len(places), dtype=np.int64), np.empty(len(places), dtype=np.int64)
        named = None if numbers is None else _at(numbers)
        count = self._functions["list_found"](_at(places), len(places), named, _at(left), _at(right))
        return left[:count], right[:count]

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
        self._functions["count"](_at(total), len(total), _at(ids), len(ids))

    def totals(self, ids: Positions, groups: int, whole: Sequence[Pair], floats: Sequence[Pair]) -> Positions:
        """Several sums in one pass: totals (int64, two words for each group, or float64) and the numbers that are added
        to them. The number of rows of each group comes back."""
        counts = np.zeros(groups, dtype=np.int64)
        given: list[Any] = []
        for pairs in (whole, floats):
            given += [(ctypes.c_void_p * len(pairs))(*(_at(pair[place]) for pair in pairs)) for place in (0, 1)]
            given.append(len(pairs))
        self._functions["totals"](_at(ids), len(ids), _at(counts), *given)
        return counts

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
        call(_at(total), len(total), _at(ids), _at(values), len(ids))
        return True


def _at(array: Any) -> int:
    """Where an array lies; a tenth of what numpy's own way costs."""
    address: int = pa.py_buffer(array).address
    return address


def _load(*, brief: bool = False) -> Kernels | None:
    if os.environ.get("PENSTOCK_KERNELS") == "python":
        return None
    try:
        return Kernels(PATH, brief=brief)
    except OSError:
        return None


_kernels, _brief = _load(), _load(brief=True)


def kernels() -> Kernels | None:
    """The compiled kernels; None: the twins run."""
    return _kernels


def kernels_for(rows: int) -> Kernels | None:
    """The compiled kernels, if there are any and they are worth a call for so many rows."""
    if rows < WORTH:
        return None
    return _brief if rows <= BRIEF and _kernels is not None else _kernels
