"""Calls of kernels on columns in compact forms, and on numbers where numpy is faster than Arrow.

A call of an expression has *declared* types, its own and its arguments'. Its arguments may come in a compact form
(``arrow.compact``), and what it gives may have one. Rules:

1. :func:`kernel_of` knows from name, types and literals whether a call can be computed so; the kernel that it gives
   looks at the arguments of a batch, and answers None if Arrow must compute it after all, on plain columns.
2. Values, nulls and errors are those of Arrow on plain columns: a kernel computes what it can prove, from the numbers
   that it meets, to fit into 64 bits. It raises nothing of its own.
3. A function of one text column is computed on the values of the dictionary, and once more for null. Values that no
   row has may make it fail, where the rows themselves do not: then it is computed on these.
4. Decimals of 256 bits, which only stand within an expression, have the same compact form as those of 128.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.compact import as_decimals, compact_type, digits
from ..arrow.masks import truths

Kept: TypeAlias = dict[int, Any]
"""What calls of one evaluator remember from batch to batch, by their numbers."""

Kernel: TypeAlias = Callable[[Sequence[Any], Kept], Any]
"""Gives the values for a batch; None: Arrow is to compute them."""

Numbers: TypeAlias = npt.NDArray[Any]

_LEAST, _MOST = -(2**63), 2**63 - 1
_FEW_WORDS = 6
"""So many codes are compared in less time than a table is looked up."""
_FEW_ROWS = 256
"""Below so many rows a call of Arrow is cheaper than one of numpy with what it needs around it."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call: its declared type, and its value if it is a literal."""

    type: pa.DataType
    literal: pa.Scalar | None = None


def kernel_of(name: str, arguments: Sequence[Argument], type: pa.DataType, options: object, call: int) -> Kernel | None:
    """The kernel for a call of the function ``name`` that gives ``type``; None if there is none. ``call``: its
    number, by which it remembers."""
    columns = [each for each in arguments if each.literal is None]
    if name in _COMPARISONS:
        made = _comparison(_COMPARISONS[name], arguments)
    elif name in _CALCULATIONS:
        made = _calculation(_CALCULATIONS[name], arguments, type)
    elif name == "cast":
        made = _cast(arguments[0].type, type, "allow_decimal_truncate=false" in str(options))
    elif name == "if_else":
        made = _choice(arguments, type)
    elif name == "coalesce" and arguments[0].literal is None and arguments[0].type == type:
        made = _first
    elif name in ("is_valid", "is_null"):
        return lambda given, kept: pc.call_function(name, given, options)
    else:
        made = None
    if made is None and len(columns) == 1 and _is_text(columns[0].type):
        return _OfWords(name, arguments, options, call)
    return made


def _is_text(type: pa.DataType) -> bool:
    form = compact_type(type)
    return form is not None and pa.types.is_dictionary(form)


# ------------------------------------------------------------------ numbers


def _numbers_type(type: pa.DataType) -> np.dtype[Any] | None:
    """How numpy sees the values of a type that compare as numbers; None if they do not."""
    types = pa.types
    if types.is_integer(type) or types.is_float32(type) or types.is_float64(type):
        number: np.dtype[Any] = np.dtype(type.to_pandas_dtype())
        return number
    if types.is_date32(type) or types.is_time32(type):
        return np.dtype(np.int32)
    is_long = types.is_timestamp(type) or types.is_duration(type) or types.is_date64(type) or types.is_time64(type)
    return np.dtype(np.int64) if is_long else None


def _is_decimal(type: pa.DataType) -> bool:
    wide = pa.types.is_decimal128(type) or pa.types.is_decimal256(type)
    return bool(wide and 0 <= type.scale <= 18)


def _digits_of(literal: pa.Scalar, scale: int) -> int | None:
    """The digits of a literal at a scale that loses none; None if it is null, or they do not fit."""
    value = literal.as_py()
    if not isinstance(value, Decimal):
        return None
    sign, figures, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent + scale < 0:
        return None
    whole = int("".join(map(str, figures))) * 10 ** (exponent + scale)
    whole = -whole if sign else whole
    return whole if _LEAST <= whole <= _MOST else None


def _digits(given: Any, scale: int) -> npt.NDArray[np.int64] | int | None:
    """The digits of a column in its compact form, or of a literal; None of others."""
    if isinstance(given, pa.Scalar):
        return _digits_of(given, scale)
    return digits(given) if pa.types.is_decimal64(given.type) else None


def _bounds(found: npt.NDArray[np.int64] | int) -> tuple[int, int]:
    if isinstance(found, int):
        return found, found
    return (int(found.min()), int(found.max())) if len(found) else (0, 0)


def _fit(*bounds: int) -> bool:
    return all(_LEAST <= bound <= _MOST for bound in bounds)


def _valid(given: Sequence[Any]) -> pa.Array | None:
    """Where no column is null; None: everywhere."""
    found = [each.is_valid() for each in given if isinstance(each, pa.Array) and each.null_count]
    valid = None
    for each in found:
        valid = each if valid is None else pc.and_(valid, each)
    return valid


def _booleans(found: Numbers, valid: pa.Array | None) -> pa.Array:
    buffers = [None, pa.py_buffer(np.packbits(found, bitorder="little"))]
    made = pa.Array.from_buffers(pa.bool_(), len(found), buffers)
    return made if valid is None else pc.if_else(valid, made, pa.scalar(None, pa.bool_()))


# ------------------------------------------------------------------ comparisons

_COMPARISONS = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


def _comparison(compare: np.ufunc, arguments: Sequence[Argument]) -> Kernel | None:
    one, other = arguments
    if _is_decimal(one.type) and _is_decimal(other.type):
        return _comparison_of_decimals(compare, one.type.scale) if one.type.scale == other.type.scale else None
    columns = [each.type for each in arguments if each.literal is None]
    (type, *others) = columns
    seen = _numbers_type(type)
    if seen is None or any(each != type for each in others):
        return None
    literals = [each.literal if each.literal is None else _number(each.literal, type, seen) for each in arguments]
    if any(number is None and each.literal is not None for number, each in zip(literals, arguments, strict=True)):
        return None

    def compared(given: Sequence[Any], kept: Kept) -> Any:
        rows = next(len(each) for each in given if isinstance(each, pa.Array))
        if rows < _FEW_ROWS:
            return None
        mine, theirs = (
            np.frombuffer(each.buffers()[1], seen, rows, each.offset * seen.itemsize) if number is None else number
            for each, number in zip(given, literals, strict=True)
        )
        return _booleans(compare(mine, theirs), _valid(given))

    return compared


def _number(literal: pa.Scalar, type: pa.DataType, seen: np.dtype[Any]) -> Any:
    """A literal as a number of the column's type, if it has that type, or is an integer that fits."""
    if literal.type != type:
        if not (literal.is_valid and pa.types.is_integer(literal.type) and pa.types.is_integer(type)):
            return None
        bounds = np.iinfo(seen)
        return seen.type(literal.as_py()) if bounds.min <= literal.as_py() <= bounds.max else None
    if not literal.is_valid:
        return None
    return np.frombuffer(pa.repeat(literal, 1).buffers()[1], seen, 1)[0]


def _comparison_of_decimals(compare: np.ufunc, scale: int) -> Kernel:
    def compared(given: Sequence[Any], kept: Kept) -> Any:
        mine, theirs = (_digits(each, scale) for each in given)
        if mine is None or theirs is None:
            return None
        return _booleans(compare(mine, theirs), _valid(given))

    return compared


# ------------------------------------------------------------------ calculations with decimals


def _added(one: Any, other: Any) -> Any:
    (low, high), (least, most) = _bounds(one), _bounds(other)
    return one + other if _fit(low + least, high + most) else None


def _subtracted(one: Any, other: Any) -> Any:
    (low, high), (least, most) = _bounds(one), _bounds(other)
    return one - other if _fit(low - most, high - least) else None


def _multiplied(one: Any, other: Any) -> Any:
    ends = [mine * theirs for mine in _bounds(one) for theirs in _bounds(other)]
    return one * other if _fit(*ends) else None


def _negated(one: Any) -> Any:
    return -one if _bounds(one)[0] > _LEAST else None


def _positive(one: Any) -> Any:
    return abs(one) if _bounds(one)[0] > _LEAST else None


_CALCULATIONS: dict[str, Callable[..., Any]] = {
    "add": _added,
    "subtract": _subtracted,
    "multiply": _multiplied,
    "negate": _negated,
    "abs": _positive,
}
_CALCULATIONS |= {f"{name}_checked": calculated for name, calculated in _CALCULATIONS.items()}


def _calculation(calculated: Callable[..., Any], arguments: Sequence[Argument], type: pa.DataType) -> Kernel | None:
    scales = [each.type.scale for each in arguments if _is_decimal(each.type)]
    if len(scales) < len(arguments) or not _is_decimal(type):
        return None
    wanted = sum(scales) if calculated is _multiplied else max(scales)
    if type.scale != wanted:
        return None
    shifts = [1 if calculated is _multiplied else 10 ** (wanted - scale) for scale in scales]
    form = pa.decimal64(18, type.scale)

    def computed(given: Sequence[Any], kept: Kept) -> Any:
        operands: list[Any] = []
        for each, scale, shift in zip(given, scales, shifts, strict=True):
            found = _digits(each, scale)
            if found is not None and shift != 1:
                found = _multiplied(found, shift)
            if found is None:
                return None
            operands.append(found)
        result = calculated(*operands)
        return None if result is None else as_decimals(result, form, _valid(given))

    return computed


def _cast(given: pa.DataType, type: pa.DataType, safe: bool) -> Kernel | None:
    if not _is_decimal(type):
        return None
    of_integers = pa.types.is_integer(given) and given != pa.uint64()
    if not (of_integers or _is_decimal(given)):
        return None
    shift = type.scale - (0 if of_integers else given.scale)
    form, most = pa.decimal64(18, type.scale), 10**type.precision

    def cast(arguments: Sequence[Any], kept: Kept) -> Any:
        (column,) = arguments
        if of_integers:
            found: Any = _integers(column)
        elif isinstance(column, pa.Scalar):
            return None
        else:
            found = _digits(column, given.scale)
        if found is not None and shift:
            found = _multiplied(found, 10**shift) if shift > 0 else _cut(found, 10**-shift, safe)
        if found is None:
            return None
        low, high = _bounds(found)
        if (safe or of_integers) and not -most < low <= high < most:
            return None
        return as_decimals(found, form, _valid(arguments))

    return cast


def _integers(column: pa.Array) -> npt.NDArray[np.int64]:
    seen = np.dtype(column.type.to_pandas_dtype())
    found = np.frombuffer(column.buffers()[1], seen, len(column), column.offset * seen.itemsize)
    return found.astype(np.int64)


def _cut(found: npt.NDArray[np.int64], unit: int, safe: bool) -> npt.NDArray[np.int64] | None:
    """Without the digits behind ``unit``; None if that would lose some, and is not to."""
    if unit > _MOST:
        return None
    kept: npt.NDArray[np.int64] = found // unit
    lost = kept * unit != found
    if safe:
        return None if bool(lost.any()) else kept
    kept += lost & (found < 0)  # towards 0
    return kept


# ------------------------------------------------------------------ choices


def _first(given: Sequence[Any], kept: Kept) -> Any:
    """The first column, if it is never null."""
    return given[0] if given[0].null_count == 0 else None


def _choice(arguments: Sequence[Argument], type: pa.DataType) -> Kernel | None:
    condition, one, other = arguments
    if condition.literal is not None:
        return None
    of_decimals = all(_is_decimal(each.type) and each.type == type for each in (one, other))
    may_be_all = one.literal is None and one.type == type

    def chosen(given: Sequence[Any], kept: Kept) -> Any:
        holds, mine, theirs = given
        if not isinstance(holds, pa.Array):
            return None
        if may_be_all and holds.true_count == len(holds):
            return mine
        return _chosen(holds, mine, theirs, type) if of_decimals else None

    return chosen


def _chosen(holds: pa.Array, one: Any, other: Any, type: pa.DataType) -> Any:
    mine, theirs = (_digits(each, type.scale) for each in (one, other))
    if mine is None or theirs is None or (isinstance(mine, int) and isinstance(theirs, int)):
        return None
    # without a branch, which costs five times as much: what overflows in between comes back
    with np.errstate(over="ignore"):
        found: npt.NDArray[np.int64] = np.subtract(mine, theirs, dtype=np.int64)
        found *= truths(holds)
        if not (isinstance(theirs, int) and theirs == 0):
            found += theirs
    valid = None
    if holds.null_count or any(isinstance(each, pa.Array) and each.null_count for each in (one, other)):
        known = [each.is_valid() if isinstance(each, pa.Array) else pa.scalar(True) for each in (one, other)]
        valid = pc.fill_null(pc.if_else(holds, *known), False)
    return as_decimals(found, pa.decimal64(18, type.scale), valid)


# ------------------------------------------------------------------ functions of text


class _OfWords:
    """A function of one text column and of literals, computed on the values of its dictionary (rule 3)."""

    def __init__(self, name: str, arguments: Sequence[Argument], options: object, call: int) -> None:
        self._function = pc.get_function(name)
        self._arguments = [each.literal for each in arguments]
        self._place = next(place for place, each in enumerate(arguments) if each.literal is None)
        self._type = arguments[self._place].type
        self._options = options
        self._call = call

    def __call__(self, given: Sequence[Any], kept: Kept) -> Any:
        column = given[self._place]
        if not isinstance(column, pa.DictionaryArray) or column.type.value_type != self._type:
            return None
        words = column.dictionary
        known = kept.get(self._call)
        if known is None or not known.is_of(words):
            known = kept[self._call] = _Words(words)
        known.rows += len(column)
        if known.rows < len(words):
            return None  # so many values for so few rows: perhaps for these alone
        if known.gather is None and not known.fails:
            known.gather = self._gather(words)
            known.fails = known.gather is None
        return None if known.gather is None else known.gather(column)

    def _gather(self, words: pa.Array) -> Callable[[pa.DictionaryArray], pa.Array] | None:
        """What gives each row the result for its value."""
        given = list(self._arguments)
        given[self._place] = pa.concat_arrays([words, pa.nulls(1, words.type)])
        try:
            found = self._function.call(given, self._options)
        except pa.ArrowException:
            return None
        if not isinstance(found, pa.Array) or len(found) != len(words) + 1:
            return None
        return _gathering(found)


class _Words:
    """A dictionary that was met, how many rows had it, and what gives each row its result, once that is known."""

    def __init__(self, words: pa.Array) -> None:
        self._words = words
        self._address = _address(words)
        self.rows = 0
        self.gather: Callable[[pa.DictionaryArray], pa.Array] | None = None
        self.fails = False

    def is_of(self, words: pa.Array) -> bool:
        """Whether these are the values; they are kept, so no others have their place in memory."""
        return self._address == _address(words)


def _address(words: pa.Array) -> tuple[int, ...]:
    buffers = words.buffers()
    return (len(words), words.offset, *(0 if buffer is None else buffer.address for buffer in buffers))


def _gathering(found: pa.Array) -> Callable[[pa.DictionaryArray], pa.Array]:
    """``found``: the results for the values of a dictionary, and behind them that for null."""
    of_null, of_words = pa.scalar(len(found) - 1, pa.int32()), found.slice(0, len(found) - 1)

    def places(column: pa.DictionaryArray) -> pa.Array:
        return column.indices.fill_null(of_null) if column.null_count else column.indices

    if pa.types.is_boolean(found.type) and not of_words.null_count:
        table = truths(of_words)
        few = np.flatnonzero(table)
        return lambda column: (
            found.take(places(column))
            if column.null_count
            else _booleans(_looked_up(table, few, _codes(column.indices)), None)
        )
    if _is_text(found.type):
        encoded = found.dictionary_encode()
        return lambda column: pa.DictionaryArray.from_arrays(encoded.indices.take(places(column)), encoded.dictionary)
    return lambda column: found.take(places(column))


def _codes(places: pa.Array) -> npt.NDArray[np.int32]:
    return np.frombuffer(places.buffers()[1], np.int32, len(places), 4 * places.offset)


def _looked_up(table: npt.NDArray[np.bool_], few: Numbers, codes: npt.NDArray[np.int32]) -> Numbers:
    if len(few) > _FEW_WORDS:
        return table.take(codes)
    found: Numbers = np.zeros(len(codes), np.bool_)
    for place in few.tolist():
        found |= codes == place
    return found
