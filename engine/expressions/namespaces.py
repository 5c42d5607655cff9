"""What a fluent expression can be asked by the kind of its values: ``.str``, ``.dt``, ``.list``, ``.struct``.

Each method is a call of a function of SQL text (docs/sql.md). Names and meanings are those of Ray Data and Polars where
these agree. Positions count from 0, negative ones from the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

E = TypeVar("E")
"""The class of expressions."""


class Namespace(Generic[E]):
    """``call`` gives the call of a function, by its name, of the expression and of further arguments."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., E]) -> None:
        self._call = call


class TextNamespace(Namespace[E]):
    """Of text."""

    __slots__ = ()

    def len(self) -> E:
        """Its number of characters."""
        return self._call("length")

    def upper(self) -> E:
        """In capital letters."""
        return self._call("upper")

    def lower(self) -> E:
        """In small letters."""
        return self._call("lower")

    def reverse(self) -> E:
        """From its end to its beginning."""
        return self._call("reverse")

    def strip(self, characters: str | None = None) -> E:
        """Without these characters at both ends; None: without blanks."""
        return self._stripped("trim", characters)

    def lstrip(self, characters: str | None = None) -> E:
        """Without these characters at its beginning; None: without blanks."""
        return self._stripped("ltrim", characters)

    def rstrip(self, characters: str | None = None) -> E:
        """Without these characters at its end; None: without blanks."""
        return self._stripped("rtrim", characters)

    def _stripped(self, function: str, characters: str | None) -> E:
        return self._call(function) if characters is None else self._call(function, characters)

    def starts_with(self, prefix: str) -> E:
        """Whether it begins with this text."""
        return self._call("starts_with", prefix)

    def ends_with(self, suffix: str) -> E:
        """Whether it ends with this text."""
        return self._call("ends_with", suffix)

    def contains(self, part: str) -> E:
        """Whether this text, which is no pattern, is a part of it."""
        return self._call("contains", part)

    def matches(self, pattern: str) -> E:
        """Whether the regular expression matches some part of it."""
        return self._call("regexp_matches", pattern)

    def replace(self, part: str, replacement: str) -> E:
        """With another text in place of each ``part``, which is no pattern."""
        return self._call("replace", part, replacement)

    def replace_regex(self, pattern: str, replacement: str) -> E:
        r"""With another text in place of each match; ``\1`` in it stands for the first group."""
        return self._call("regexp_replace", pattern, replacement, "g")

    def extract(self, pattern: str, group: int = 1) -> E:
        """What a group of the regular expression matches first; 0: the whole match."""
        return self._call("regexp_extract", pattern, group)

    def split(self, by: str) -> E:
        """The list of its parts between each ``by``."""
        return self._call("string_split", by)

    def slice(self, offset: int, length: int | None = None) -> E:
        """So many characters from there on; None: all, and only then from the end."""
        if offset < 0 and length is None:
            return self._call("right", -offset)
        return self._call("substring", offset + 1, *(() if length is None else (length,)))

    def lpad(self, width: int, padding: str = " ") -> E:
        """Filled up at its beginning to this width; cut if it is longer."""
        return self._call("lpad", width, padding)

    def rpad(self, width: int, padding: str = " ") -> E:
        """Filled up at its end to this width; cut if it is longer."""
        return self._call("rpad", width, padding)

    def repeat(self, n: int) -> E:
        """So many times."""
        return self._call("repeat", n)

    def strptime(self, format: str) -> E:
        """The time that it is, written as ``format`` says; text that is written otherwise is an error."""
        return self._call("strptime", format)

    def json_path_match(self, path: str) -> E:
        """What stands at ``path`` (``$.a.b[0]``) in it, which is JSON, as plain text."""
        return self._call("json_extract_string", path)


class TimeNamespace(Namespace[E]):
    """Of dates and times."""

    __slots__ = ()

    def year(self) -> E:
        """The year."""
        return self._call("year")

    def quarter(self) -> E:
        """The quarter, from 1."""
        return self._call("quarter")

    def month(self) -> E:
        """The month, from 1."""
        return self._call("month")

    def week(self) -> E:
        """The week of ISO 8601, from 1."""
        return self._call("week")

    def day(self) -> E:
        """The day of the month, from 1."""
        return self._call("day")

    def weekday(self) -> E:
        """The day of the week, from Monday, 1, to Sunday, 7."""
        return self._call("isodow")

    def ordinal_day(self) -> E:
        """The day of the year, from 1."""
        return self._call("dayofyear")

    def hour(self) -> E:
        """The hour, from 0."""
        return self._call("hour")

    def minute(self) -> E:
        """The minute, from 0."""
        return self._call("minute")

    def second(self) -> E:
        """The whole second, from 0."""
        return self._call("second")

    def truncate(self, unit: str) -> E:
        """The beginning of its ``unit``: "hour", "day", "month", …"""
        return self._call("date_trunc", unit, at=1)

    def strftime(self, format: str) -> E:
        """As text."""
        return self._call("strftime", format)

    def epoch(self) -> E:
        """Seconds since 1970."""
        return self._call("epoch")


class ListNamespace(Namespace[E]):
    """Of lists."""

    __slots__ = ()

    def len(self) -> E:
        """Its number of elements."""
        return self._call("len")

    def get(self, index: int) -> E:
        """The element at this position; null if there is none."""
        return self._call("list_extract", index + 1 if index >= 0 else index)

    __getitem__ = get

    def first(self) -> E:
        """Its first element."""
        return self.get(0)

    def last(self) -> E:
        """Its last element."""
        return self.get(-1)

    def contains(self, item: Any) -> E:
        """Whether this is one of its elements."""
        return self._call("list_contains", item)

    def sum(self) -> E:
        """The sum of its elements."""
        return self._call("list_sum")

    def mean(self) -> E:
        """The mean of its elements."""
        return self._call("list_avg")

    def min(self) -> E:
        """Its least element."""
        return self._call("list_min")

    def max(self) -> E:
        """Its largest element."""
        return self._call("list_max")

    def sort(self, descending: bool = False) -> E:
        """Its elements in their order."""
        return self._call("list_reverse_sort" if descending else "list_sort")

    def unique(self) -> E:
        """Its distinct elements, in the order of the list."""
        return self._call("list_distinct")

    def join(self, separator: str) -> E:
        """Its elements as one text."""
        return self._call("array_to_string", separator)


class StructNamespace(Generic[E]):
    """Of structs."""

    __slots__ = ("_field",)

    def __init__(self, field: Callable[[str], E]) -> None:
        self._field = field

    def field(self, name: str) -> E:
        """The field of this name."""
        return self._field(name)

    __getitem__ = field
