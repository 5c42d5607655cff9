"""Expressions as calls of Python: ``(ps.col("a") + 1).alias("b")``, ``ps.when(…).then(…).otherwise(…)``.

Rules:

1. An expression is SQL text that is still being written: it has the meaning of that text (``sql``), and stands wherever
   text may. So both build one tree, have one fingerprint and one error.
2. A value of Python beside an expression is a value, also a text: ``ps.col("carrier") == "AA"``. Columns are named by
   ``ps.col`` alone. A float is a double, a ``Decimal`` a decimal.
3. Names are quoted, whatever they are; operands get parentheses where SQL would read them otherwise.
4. An expression without an alias is called as the first column in it (as in Polars).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, NoReturn, TypeAlias

import pyarrow as pa

from ..core.arguments import Within, checked
from ..core.errors import FlowError
from .literals import literal_text, quoted, type_text
from .namespaces import ListNamespace, StructNamespace, TextNamespace, TimeNamespace

_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN, _ATOM = range(8)
"""How closely text holds together."""

Text: TypeAlias = str
"""Within the class ``str`` is something else."""
Share = Annotated[float, Within(0, 1)]
Operand: TypeAlias = Any
"""An expression, or a value: None, bool, int, float, Decimal, text, date, time, timedelta, a list, a dict of these."""


class Expression:
    """Something that is computed of each row. Made by ``ps.col``, ``ps.lit``, ``ps.when`` and ``ps.fn``."""

    __slots__ = ("_level", "name", "sql")

    def __init__(self, sql: Text, level: int = _ATOM, name: Text | None = None) -> None:
        #: the SQL text that means the same
        self.sql = sql
        #: what its column is called; None: nobody has said it
        self.name = name
        self._level = level

    def __repr__(self) -> Text:
        return self.sql

    @property
    def is_column(self) -> bool:
        """Whether it is nothing but a column, under its own name."""
        return self.name is not None and self.sql == quoted(self.name)

    @checked()
    def alias(self, name: Text) -> Expression:
        """The same, as a column of this name."""
        return Expression(self.sql, self._level, name)

    # ------------------------------------------------------------------ operators

    def __add__(self, other: Operand) -> Expression:
        return _both(self, "+", other, _SUM)

    def __radd__(self, other: Operand) -> Expression:
        return _both(other, "+", self, _SUM)

    def __sub__(self, other: Operand) -> Expression:
        return _both(self, "-", other, _SUM)

    def __rsub__(self, other: Operand) -> Expression:
        return _both(other, "-", self, _SUM)

    def __mul__(self, other: Operand) -> Expression:
        return _both(self, "*", other, _PRODUCT)

    def __rmul__(self, other: Operand) -> Expression:
        return _both(other, "*", self, _PRODUCT)

    def __truediv__(self, other: Operand) -> Expression:
        return _both(self, "/", other, _PRODUCT)

    def __rtruediv__(self, other: Operand) -> Expression:
        return _both(other, "/", self, _PRODUCT)

    def __floordiv__(self, other: Operand) -> Expression:
        """Truncates towards zero, as in SQL."""
        return _both(self, "//", other, _PRODUCT)

    def __rfloordiv__(self, other: Operand) -> Expression:
        return _both(other, "//", self, _PRODUCT)

    def __mod__(self, other: Operand) -> Expression:
        """Has the sign of the dividend, as in SQL."""
        return _both(self, "%", other, _PRODUCT)

    def __rmod__(self, other: Operand) -> Expression:
        return _both(other, "%", self, _PRODUCT)

    def __pow__(self, other: Operand) -> Expression:
        return _both(self, "**", other, _SIGN)

    def __rpow__(self, other: Operand) -> Expression:
        return _both(other, "**", self, _SIGN)

    def __neg__(self) -> Expression:
        return Expression(f"-{_within(self, _SIGN)}", _SIGN, self.name)

    def __eq__(self, other: Operand) -> Expression:  # type: ignore[override]
        return _both(self, "=", other, _COMPARISON)

    def __ne__(self, other: Operand) -> Expression:  # type: ignore[override]
        return _both(self, "<>", other, _COMPARISON)

    def __lt__(self, other: Operand) -> Expression:
        return _both(self, "<", other, _COMPARISON)

    def __le__(self, other: Operand) -> Expression:
        return _both(self, "<=", other, _COMPARISON)

    def __gt__(self, other: Operand) -> Expression:
        return _both(self, ">", other, _COMPARISON)

    def __ge__(self, other: Operand) -> Expression:
        return _both(self, ">=", other, _COMPARISON)

    def __and__(self, other: Operand) -> Expression:
        return _both(self, "and", other, _AND)

    def __rand__(self, other: Operand) -> Expression:
        return _both(other, "and", self, _AND)

    def __or__(self, other: Operand) -> Expression:
        return _both(self, "or", other, _OR)

    def __ror__(self, other: Operand) -> Expression:
        return _both(other, "or", self, _OR)

    def __invert__(self) -> Expression:
        return Expression(f"not {_within(self, _NOT)}", _NOT, self.name)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise FlowError(
            f"whether {self.sql} is true is known for each row alone",
            "join conditions by & | ~, each in parentheses; use is_in for 'in', is_between for a < b < c",
        )

    # ------------------------------------------------------------------ tests

    def is_null(self) -> Expression:
        """Whether it is null."""
        return Expression(f"{_within(self, _COMPARISON)} is null", _COMPARISON, self.name)

    def is_not_null(self) -> Expression:
        """Whether it is a value."""
        return Expression(f"{_within(self, _COMPARISON)} is not null", _COMPARISON, self.name)

    @checked()
    def is_in(self, values: Iterable[Operand]) -> Expression:
        """Whether it is one of these."""
        listed = ", ".join(_expression(each).sql for each in values)
        text = f"{_within(self, _COMPARISON)} in ({listed})" if listed else "false"
        return Expression(text, _COMPARISON, self.name)

    def is_between(self, low: Operand, high: Operand) -> Expression:
        """Whether it is neither less than ``low`` nor more than ``high``."""
        bounds = " and ".join(_within(_expression(each), _COMPARISON) for each in (low, high))
        return Expression(f"{_within(self, _COMPARISON)} between {bounds}", _COMPARISON, self.name)

    def is_distinct_from(self, other: Operand) -> Expression:
        """Whether it is another value; null is one."""
        return _both(self, "is distinct from", other, _COMPARISON)

    def is_nan(self) -> Expression:
        """Whether it is no number."""
        return self._called("isnan")

    # ------------------------------------------------------------------ values

    @checked()
    def cast(self, type: pa.DataType | type | Text, *, strict: bool = True) -> Expression:
        """As another type: one of Arrow, ``int``, ``float``, ``str``, ``bool``, or SQL's own name. A value that is none
        of that type is an error, and null unless ``strict``."""
        function = "cast" if strict else "try_cast"
        return Expression(f"{function}({self.sql} as {type_text(type)})", _ATOM, self.name)

    def fill_null(self, value: Operand) -> Expression:
        """With this where it is null."""
        return self._called("coalesce", value)

    def abs(self) -> Expression:
        """Without its sign."""
        return self._called("abs")

    @checked()
    def round(self, digits: int = 0) -> Expression:
        """Rounded to so many digits behind the point, halves away from zero."""
        return self._called("round", digits)

    def floor(self) -> Expression:
        """The next whole number below."""
        return self._called("floor")

    def ceil(self) -> Expression:
        """The next whole number above."""
        return self._called("ceil")

    def sqrt(self) -> Expression:
        """The square root."""
        return self._called("sqrt")

    # ------------------------------------------------------------------ of many rows, for ``group_by(…).agg(…)``

    def count(self) -> Aggregated:
        """How many are not null."""
        return Aggregated(self, "count")

    def sum(self) -> Aggregated:
        """Their sum."""
        return Aggregated(self, "sum")

    def min(self) -> Aggregated:
        """The least one."""
        return Aggregated(self, "min")

    def max(self) -> Aggregated:
        """The largest one."""
        return Aggregated(self, "max")

    def mean(self) -> Aggregated:
        """Their mean."""
        return Aggregated(self, "mean")

    def std(self) -> Aggregated:
        """Their standard deviation, as a sample's."""
        return Aggregated(self, "stddev")

    def var(self) -> Aggregated:
        """Their variance, as a sample's."""
        return Aggregated(self, "variance")

    def median(self) -> Aggregated:
        """The one in the middle, or the mean of the two that are."""
        return Aggregated(self, "median")

    @checked()
    def quantile(self, share: Share) -> Aggregated:
        """What lies at this share of the way from the least to the largest, between two values if it is there; 0.5 is
        the median. (``aggregate`` has ``quantile_disc(0.5)``, too, which is one of the values.)"""
        return Aggregated(self, f"quantile({share!r})")

    @checked()
    def approx_quantile(self, share: Share) -> Aggregated:
        """The value that this share of them are not above, to 0.8 % of it, in little memory."""
        return Aggregated(self, f"approx_quantile({share!r})")

    def first(self) -> Aggregated:
        """The first one, in the order of the stream."""
        return Aggregated(self, "first")

    def last(self) -> Aggregated:
        """The last one, in the order of the stream."""
        return Aggregated(self, "last")

    def count_distinct(self) -> Aggregated:
        """How many distinct ones there are that are not null."""
        return Aggregated(self, "count_distinct")

    def approx_count_distinct(self) -> Aggregated:
        """About how many distinct ones there are, in little memory: exact up to 4,096, then to about 2 %."""
        return Aggregated(self, "approx_count_distinct")

    def collect_list(self) -> Aggregated:
        """The list of them, in the order of the stream."""
        return Aggregated(self, "collect_list")

    # ------------------------------------------------------------------ by the kind of its values

    @property
    def str(self) -> TextNamespace[Expression]:
        """What text can be asked."""
        return TextNamespace(self._called)

    @property
    def dt(self) -> TimeNamespace[Expression]:
        """What dates and times can be asked."""
        return TimeNamespace(self._called)

    @property
    def list(self) -> ListNamespace[Expression]:
        """What lists can be asked."""
        return ListNamespace(self._called)

    @property
    def struct(self) -> StructNamespace[Expression]:
        """The fields of structs."""
        return StructNamespace(lambda name: Expression(f"{self.sql}.{quoted(name)}", _ATOM, name))

    def _called(self, function: Text, *arguments: Operand, at: int = 0) -> Expression:
        """A function of this, which is its argument ``at``, and others."""
        given = [*arguments[:at], self, *arguments[at:]]
        return Expression(_call(function, given), _ATOM, self.name)


@checked()
def col(name: str) -> Expression:
    """The column of this name."""
    return Expression(quoted(name), _ATOM, name)


def lit(value: Operand) -> Expression:
    """A value."""
    return _expression(value)


class Aggregated:
    """What ``function`` makes of an expression over the rows of a group."""

    def __init__(self, expression: Expression, function: str, name: str | None = None) -> None:
        self.expression, self.function = expression, function
        #: of its column
        self.name = name or expression.name or function

    def __repr__(self) -> str:
        return f"{self.function}({self.expression.sql})"

    def alias(self, name: str) -> Aggregated:
        """The same, as a column of this name."""
        return Aggregated(self.expression, self.function, name)


class Conditional(Expression):
    """The result of the first condition that holds; null if none does."""

    __slots__ = ("_branches",)

    def __init__(self, branches: tuple[tuple[Expression, Expression], ...], default: Expression | None = None) -> None:
        cases = " ".join(f"when {test.sql} then {result.sql}" for test, result in branches)
        last = "" if default is None else f" else {default.sql}"
        super().__init__(f"case {cases}{last} end", _ATOM, branches[0][1].name)
        self._branches = branches

    def when(self, condition: Operand) -> When:
        """If none of the conditions so far holds, but this one."""
        return When(_expression(condition), self._branches)

    def otherwise(self, value: Operand) -> Expression:
        """If no condition holds."""
        return Conditional(self._branches, _expression(value))


class When:
    """A condition that waits for its ``then``."""

    def __init__(self, condition: Expression, before: tuple[tuple[Expression, Expression], ...] = ()) -> None:
        self._condition, self._before = condition, before

    def then(self, value: Operand) -> Conditional:
        """The result where the condition holds."""
        return Conditional((*self._before, (self._condition, _expression(value))))


def when(condition: Operand) -> When:
    """``ps.when(condition).then(value).otherwise(other)``: SQL's CASE."""
    return When(_expression(condition))


class Functions:
    """Every function that SQL text may call, by its name: ``ps.fn.concat_ws("-", ps.col("a"), ps.col("b"))``. Options
    of Arrow's functions are given by their names. docs/sql.md lists them."""

    def __getattr__(self, name: str) -> Callable[..., Expression]:
        if name.startswith("_"):
            raise AttributeError(name)
        from .sql_functions import is_function, no_function

        if not is_function(name):
            raise no_function("ps.fn", name)

        def function(*arguments: Operand, **options: Operand) -> Expression:
            given = [_expression(each) for each in arguments]
            first = next((each.name for each in given if each.name is not None), None)
            return Expression(_call(name, given, options), _ATOM, first)

        function.__name__ = function.__qualname__ = name
        function.__doc__ = f"The function ``{name}`` of SQL text (docs/sql.md), of expressions and values."
        return function

    def __dir__(self) -> list[str]:
        from .sql_functions import FUNCTIONS

        return sorted(FUNCTIONS)


fn = Functions()


def _expression(given: Operand) -> Expression:
    if isinstance(given, Expression):
        return given
    text = literal_text(given)
    return Expression(text, _SIGN if text.startswith("-") else _ATOM)


def _within(given: Expression, level: int) -> str:
    """The text as a part of what holds together so closely."""
    return given.sql if given._level > level else f"({given.sql})"


def _both(one: Operand, operator: str, other: Operand, level: int) -> Expression:
    left, right = _expression(one), _expression(other)
    chains = level in (_OR, _AND, _SUM, _PRODUCT) and left._level == level
    text = f"{left.sql if chains else _within(left, level)} {operator} {_within(right, level)}"
    return Expression(text, level, left.name if left.name is not None else right.name)


def _call(function: str, arguments: Iterable[Operand], options: dict[str, Operand] | None = None) -> str:
    listed = [_expression(each).sql for each in arguments]
    listed += [f"{quoted(name)} := {_expression(each).sql}" for name, each in (options or {}).items()]
    return f"{function}({', '.join(listed)})"
