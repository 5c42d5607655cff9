"""Dates and times in SQL: their parts, differences, texts, and what is added to them.

Rules:

1. An interval of hours, days or weeks is a duration, which is a number of microseconds. One of months or years is none:
   it can be added to a date or a time, or taken from it, and the day is then no later than the month's last.
2. A date and an interval give a timestamp, a date and a whole number give a date, as in DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .own_kernels import each_distinct, own_call, whole
from .sql_arguments import Function, Values, constant, count, part, text
from .sql_values import Value, cast_to

MICROS = pa.duration("us")
MONTHS = pa.month_day_nano_interval()
"""The type of an interval of months: its constant is their number."""
_LENGTHS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_IN_MONTHS = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200}
_STAMP = pa.timestamp("us")


def _unit(name: str) -> str:
    """The unit in the singular, by the names and abbreviations that SQL has for it."""
    low = name.lower()
    short = {"us": "microsecond", "ms": "millisecond", "s": "second", "sec": "second", "min": "minute", "h": "hour"}
    found = short.get(low, low if low in (*_LENGTHS, *_IN_MONTHS) else low.removesuffix("s"))
    return {"centurie": "century"}.get(found, found)


def interval(number: Value, unit: str) -> Value:
    """So many of a unit. Raises ValueError if there is no such unit, or an interval of months is no constant."""
    name = _unit(unit)
    if name in _IN_MONTHS:
        if not isinstance(number.constant, int):
            raise ValueError(f"an interval of {name}s takes a whole number that is a constant")
        months = number.constant * _IN_MONTHS[name]
        return Value(pc.scalar(pa.scalar((months, 0, 0), MONTHS)), MONTHS, months)
    if name not in _LENGTHS:
        raise ValueError(f"there is no unit {unit!r}: {', '.join((*_LENGTHS, *_IN_MONTHS))}")
    whole_number = cast_to(number, pa.int64()).expression
    micros = pc.multiply_checked(whole_number, pc.scalar(pa.scalar(_LENGTHS[name], pa.int64())))
    return Value(micros.cast(MICROS), MICROS)


def _is_time(type: pa.DataType) -> bool:
    return bool(pa.types.is_date(type) or pa.types.is_timestamp(type))


def moved(one: Value, other: Value, sign: int) -> Any:
    """``one + other``, or with ``sign`` -1 their difference, if that is one of times; else None."""
    if sign > 0 and _is_time(other.type) and not _is_time(one.type):
        one, other = other, one
    if not _is_time(one.type):
        return None
    if other.type == MONTHS:
        return _months_on(_stamp(one), sign * other.constant)
    if pa.types.is_duration(other.type):
        return (pc.add_checked if sign > 0 else pc.subtract_checked)(_stamp(one).expression, other.expression)
    if pa.types.is_date(one.type) and pa.types.is_integer(other.type):
        days = pc.add_checked if sign > 0 else pc.subtract_checked
        number = cast_to(other, pa.int32()).expression
        return days(_days(one), number).cast(pa.date32())
    if sign < 0 and pa.types.is_date(one.type) and pa.types.is_date(other.type):
        return pc.subtract(_days(one), _days(other)).cast(pa.int64())
    return None


def _days(date: Value) -> pc.Expression:
    return cast_to(date, pa.date32()).expression.cast(pa.int32())


def _stamp(value: Value) -> Value:
    """As a timestamp; a date is the time of its start."""
    return value if pa.types.is_timestamp(value.type) else cast_to(value, _STAMP)


def _months_on(value: Value, months: int) -> pc.Expression:
    unit = value.type.unit

    def kernel(context: Any, given: Any) -> pa.Array:
        column = whole(given, context.batch_length)
        times = column.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(f"M8[{unit}]")
        times[column.is_null().to_numpy(zero_copy_only=False)] = np.datetime64(0, unit)
        month, day = times.astype("M8[M]"), times.astype("M8[D]")
        wanted = month + np.timedelta64(months, "M")
        first, last = wanted.astype("M8[D]"), (wanted + 1).astype("M8[D]") - 1
        moved = np.minimum(first + (day - month.astype("M8[D]")), last).astype(f"M8[{unit}]") + (times - day)
        found = pa.array(moved.view(np.int64), mask=column.is_null().to_numpy(zero_copy_only=False))
        return found.cast(value.type)

    if value.type.tz is not None:
        raise ValueError("months are added to the wall clock: cast it to timestamp")
    return own_call(f"months_on[{months}]", kernel, [(value.expression, value.type)], value.type)


# ---------------------------------------------------------------------- differences and numbers


_BETWEEN: dict[str, Callable[..., Any]] = {
    "microsecond": pc.microseconds_between,
    "millisecond": pc.milliseconds_between,
    "second": pc.seconds_between,
    "minute": pc.minutes_between,
    "hour": pc.hours_between,
    "day": pc.days_between,
    "quarter": pc.quarters_between,
    "year": pc.years_between,
}


def _difference(values: Values) -> Any:
    """How many borders of the unit lie between two times."""
    count(values, 3, 3)
    unit = _unit(constant(values, 0, str))
    first, last = (value.expression for value in _same_clock(*(_stamp(_timed(value)) for value in values[1:])))
    if unit in _BETWEEN:
        return _BETWEEN[unit](first, last)
    if unit == "week":  # DuckDB's are whole ones, not Mondays
        seconds = (_since_1970(_timed(value), "s") for value in reversed(values[1:]))
        return pc.divide(pc.subtract(*seconds), pc.scalar(604_800))
    if unit not in _IN_MONTHS:
        raise ValueError(f"there is no unit {unit!r}: {', '.join((*_BETWEEN, *_IN_MONTHS))}")
    months = pc.subtract(_month_number(last), _month_number(first))
    if unit == "month":
        return months
    years = _IN_MONTHS[unit] // 12
    return pc.subtract(*(pc.divide(pc.year(each), pc.scalar(years)) for each in (last, first)))


def _same_clock(one: Value, other: Value) -> tuple[Value, Value]:
    """Two timestamps of one type: wall clocks unless both have a zone."""
    if one.type == other.type:
        return one, other
    if one.type.tz is None or other.type.tz is None:
        one, other = (cast_to(each, pa.timestamp(each.type.unit)) for each in (one, other))
    type = pa.timestamp("us", one.type.tz)
    return Value(one.expression.cast(type, safe=False), type), Value(other.expression.cast(type, safe=False), type)


def _month_number(time: pc.Expression) -> pc.Expression:
    return pc.add(pc.multiply(pc.year(time), pc.scalar(12)), pc.month(time))


def _timed(value: Value) -> Value:
    return cast_to(value, _STAMP) if isinstance(value.constant, str) else value


def _epoch(values: Values) -> Any:
    count(values, 1, 1)
    if pa.types.is_duration(values[0].type):
        micros = values[0].expression.cast(MICROS).cast(pa.int64())
    else:
        micros = _since_1970(values[0], "us")
    return pc.divide(micros.cast(pa.float64(), safe=False), pc.scalar(1e6))


def _since_1970(value: Value, unit: str) -> pc.Expression:
    stamp = _stamp(_timed(value))
    zone = stamp.type.tz
    return stamp.expression.cast(pa.timestamp(unit, zone), safe=False).cast(pa.int64())


def _epoch_in(unit: str) -> Function:
    def function(values: Values) -> Any:
        count(values, 1, 1)
        if unit == "ms" and pa.types.is_integer(values[0].type):
            return cast_to(values[0], pa.int64()).expression.cast(pa.timestamp("ms")).cast(_STAMP)
        return _since_1970(values[0], unit)

    return function


def _in_a_minute(parts_of_a_second: int) -> Function:
    """How far its minute has come."""

    def function(values: Values) -> Any:
        count(values, 1, 1)
        micros = pc.subtract(
            _since_1970(values[0], "us"),
            pc.floor_temporal(_stamp(values[0]).expression, unit="minute").cast(_STAMP).cast(pa.int64()),
        )
        return pc.divide(micros, pc.scalar(pa.scalar(1_000_000 // parts_of_a_second, pa.int64())))

    return function


def _years(number: int, first: int = 0) -> Function:
    def function(values: Values) -> Any:
        count(values, 1, 1)
        return pc.divide(pc.add(pc.year(values[0].expression), pc.scalar(first)), pc.scalar(number))

    return function


# ---------------------------------------------------------------------- texts


def _strftime(values: Values) -> Any:
    """Arrow's seconds have a fraction; SQL's have not, and %f is that of microseconds."""
    count(values, 2, 2)
    time, format = _stamp(_timed(values[0])), constant(values, 1, str)
    seconds = pc.floor_temporal(time.expression, unit="second").cast(pa.timestamp("s", time.type.tz))
    parts: list[Any] = []
    for number, piece in enumerate(re.split(r"((?:%%)*%f)", format)):
        if number % 2:
            fraction = pc.add(_fraction(time), pc.scalar(pa.scalar(1_000_000, pa.int64()))).cast(pa.string())
            parts += [pc.strftime(seconds, format=piece[:-2])] if len(piece) > 2 else []
            parts.append(pc.utf8_slice_codeunits(fraction, 1))
        elif piece:
            parts.append(pc.strftime(seconds, format=piece))
    return pc.binary_join_element_wise(*parts, "") if len(parts) != 1 else parts[0]


def _fraction(time: Value) -> pc.Expression:
    """Microseconds within a second."""
    micros = _since_1970(time, "us")
    floored = pc.floor_temporal(time.expression, unit="second").cast(pa.timestamp("us", time.type.tz)).cast(pa.int64())
    return pc.subtract(micros, floored)


def _strptime(values: Values, *, or_null: bool = False) -> Any:
    """Python's, which refuses days that there are not; null ``or_null`` for what cannot be read."""
    count(values, 2, 2)
    format, given = constant(values, 1, str), text(values[0])

    def read(written: str) -> datetime | None:  # Arrow's takes the 30th of February for the first of March
        try:
            return datetime.strptime(written, format).replace(tzinfo=None)  # noqa: DTZ007
        except ValueError as error:
            if or_null:
                return None
            raise pa.ArrowInvalid(f"cannot read {written!r} as {format!r}: {error}") from None

    name = f"{'try_' if or_null else ''}strptime[{format!r}]"
    return each_distinct(name, read, given.expression, given.type, _STAMP)


def _last_day(values: Values) -> Any:
    count(values, 1, 1)
    date = cast_to(_timed(values[0]), pa.date32()).expression
    ceiling = pc.ceil_temporal(date, unit="month", ceil_is_strictly_greater=True)
    return pc.subtract(ceiling.cast(pa.int32()), pc.scalar(pa.scalar(1, pa.int32()))).cast(pa.date32())


def _make_date(values: Values) -> Any:
    count(values, 3, 3)

    def kernel(context: Any, *given: Any) -> pa.Array:
        texts = [whole(each, context.batch_length).cast(pa.string()) for each in given]
        year, month, day = (pc.utf8_lpad(each, width, "0") for each, width in zip(texts, (4, 2, 2), strict=True))
        return pc.binary_join_element_wise(year, month, day, "-").cast(pa.date32())

    numbers = [(cast_to(value, pa.int64()).expression, pa.int64()) for value in values]
    return own_call("make_date", kernel, numbers, pa.date32())


def _date_trunc(values: Values) -> Any:
    count(values, 2, 2)
    return pc.floor_temporal(values[1].expression, unit=constant(values, 0, str).lower())


def _date_add(values: Values) -> Any:
    count(values, 2, 2)
    made = moved(_timed(values[0]), values[1], 1)
    if made is None:
        raise ValueError(f"cannot add {values[1].type} to {values[0].type}")
    return made


def _date_part(values: Values) -> Any:
    count(values, 2, 2)
    name = constant(values, 0, str)
    made = date_part(name, values[1])
    if made is None:
        raise ValueError(f"there is no part {name!r}: {', '.join(PARTS)}")
    return made


def date_part(name: str, value: Value) -> pc.Expression | None:
    """A part of a date or time; None if there is no such part."""
    low = name.lower()
    function = PARTS.get(low) or PARTS.get(_unit(low))
    return None if function is None else function([value])


def _interval_of(unit: str) -> Function:
    def function(values: Values) -> Any:
        count(values, 1, 1)
        return interval(values[0], unit)

    return function


PARTS: dict[str, Function] = {
    "century": _years(100, 99),
    "decade": _years(10),
    "year": part(pc.year),
    "isoyear": part(pc.iso_year),
    "quarter": part(pc.quarter),
    "month": part(pc.month),
    "week": part(pc.iso_week),
    "day": part(pc.day),
    "dayofmonth": part(pc.day),
    "dayofweek": part(pc.day_of_week, count_from_zero=True, week_start=7),
    "dow": part(pc.day_of_week, count_from_zero=True, week_start=7),
    "weekday": part(pc.day_of_week, count_from_zero=True, week_start=7),
    "isodow": part(pc.day_of_week, count_from_zero=False, week_start=1),
    "dayofyear": part(pc.day_of_year),
    "doy": part(pc.day_of_year),
    "hour": part(pc.hour),
    "minute": part(pc.minute),
    "second": part(pc.second),
    "millisecond": _in_a_minute(1_000),
    "microsecond": _in_a_minute(1_000_000),
    "epoch": _epoch,
}
TIME_FUNCTIONS: dict[str, Function] = {
    **{name: function for name, function in PARTS.items() if name not in {"dow", "doy"}},
    "epoch_ms": _epoch_in("ms"),
    "epoch_us": _epoch_in("us"),
    "epoch_ns": _epoch_in("ns"),
    "date_add": _date_add,
    "date_diff": _difference,
    "datediff": _difference,
    "date_part": _date_part,
    "datepart": _date_part,
    "date_trunc": _date_trunc,
    "datetrunc": _date_trunc,
    "last_day": _last_day,
    "make_date": _make_date,
    "dayname": lambda values: _strftime([*values, Value.of("%A")]),
    "monthname": lambda values: _strftime([*values, Value.of("%B")]),
    "strftime": _strftime,
    "strptime": _strptime,
    "try_strptime": partial(_strptime, or_null=True),
    **{f"to_{unit}s": _interval_of(unit) for unit in (*_LENGTHS, "month", "quarter", "year")},
}
