"""The methods of a stream that look at each row by itself, and are nothing but a projection or a filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, Literal, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.arguments import checked
from ..core.errors import FlowError
from ..core.operator import OperatorConfig
from ..core.schemas import check_columns, check_distinct
from ..expressions.expressions import Expressible, written
from ..expressions.fluent import Expression, col
from ..operators import Filter, Project

AtBarrier: TypeAlias = Literal["flush", "hold"]
FLUSH: Final = "flush"


class Shaping:
    """What a stream offers besides: ``schema`` and ``_then`` are its own."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        raise NotImplementedError

    def _then(self, config: OperatorConfig, name: str | None = None, at_barrier: AtBarrier = FLUSH) -> Self:
        raise NotImplementedError

    @checked()
    def filter(self, predicate: Expressible, *, name: str | None = None) -> Self:
        """The rows for which ``predicate`` (``ps.col("delay") > 3``, or SQL text) is true, neither false nor null."""
        return self._then(Filter(written(predicate)), name)

    @checked()
    def project(self, *columns: str | Expression, name: str | None = None, **derived: Expressible) -> Self:
        """These columns, then the derived ones, and nothing else. A text names a column among ``columns``, and is SQL
        among ``derived``; an expression among ``columns`` has an alias, or the name of its first column."""
        return self._then(Project((*map(named, columns), *_written(derived).items())), name)

    @checked()
    def select(self, *columns: str | Expression, name: str | None = None, **derived: Expressible) -> Self:
        """The same as :meth:`project`."""
        return self.project(*columns, name=name, **derived)

    @checked()
    def with_columns(self, *columns: Expression, name: str | None = None, **derived: Expressible) -> Self:
        """All columns and the derived ones, as for :meth:`project`; one replaces a column of the same name."""
        given = list(map(named, columns))
        check_distinct("with_columns", "column", [*(each for each, _ in given), *derived])
        return self._then(Project.with_columns(self.schema, {**dict(given), **_written(derived)}), name)

    @checked()
    def drop(self, *columns: str, name: str | None = None) -> Self:
        """Without these columns."""
        check_columns("drop", self.schema, columns)
        return self._then(Project.keeping(each for each in self.schema.names if each not in columns), name)

    @checked()
    def rename(self, columns: Mapping[str, str], *, name: str | None = None) -> Self:
        """With other names: ``rename({"old": "new"})``. Columns stay in their places."""
        check_columns("rename", self.schema, columns)
        kept = tuple((columns.get(each, each), pc.field(each)) for each in self.schema.names)
        return self._then(Project(kept), name)

    @checked()
    def cast(
        self, types: Mapping[str, pa.DataType | type | str], *, strict: bool = True, name: str | None = None
    ) -> Self:
        """With columns of other types, as for :meth:`ps.Expression.cast <penstock.Expression>`:
        ``cast({"delay": pa.int32()})``."""
        check_columns("cast", self.schema, types)
        cast = {column: col(column).cast(type, strict=strict) for column, type in types.items()}
        return self.with_columns(*(each.alias(column) for column, each in cast.items()), name=name)

    @checked()
    def fill_null(self, value: Any, subset: Sequence[str] = (), *, name: str | None = None) -> Self:
        """With ``value`` where a column is null: those of ``subset``, or all that can hold it (numbers for a number,
        floats alone for a float). Columns keep their types."""
        check_columns("fill_null", self.schema, subset)
        columns = subset or [each.name for each in self.schema if _can_hold(each.type, value)]
        if not columns:
            raise FlowError(f"fill_null: no column can hold {value!r}", "name the columns: subset=")
        filled = [col(each).fill_null(value) for each in columns]
        kept = [
            each.cast(type) if _is_number(type := self.schema.field(column).type) else each
            for column, each in zip(columns, filled, strict=True)
        ]
        return self.with_columns(*(each.alias(column) for column, each in zip(columns, kept, strict=True)), name=name)

    @checked()
    def drop_nulls(self, subset: Sequence[str] = (), *, name: str | None = None) -> Self:
        """The rows that have no null in the columns of ``subset``; none: in any column."""
        check_columns("drop_nulls", self.schema, subset)
        tests = [col(each).is_not_null() for each in subset or self.schema.names]
        return self.filter(reduce(lambda one, other: one & other, tests), name=name)


def named(column: str | Expression) -> tuple[str, pc.Expression | str]:
    """A column by its name, or an expression that has one."""
    if isinstance(column, str):
        return column, pc.field(column)
    if column.name is None:
        raise FlowError(f"{column.sql} has no name", "give it one: .alias('name')")
    return column.name, column.sql


def _written(derived: Mapping[str, Expressible]) -> dict[str, pc.Expression | str]:
    return {name: written(each) for name, each in derived.items()}


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type))


def _can_hold(type: pa.DataType, value: object) -> bool:
    """Whether ``fill_null`` means a column of this type."""
    try:
        given = pa.scalar(value).type
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    if pa.types.is_integer(given):
        return _is_number(type)
    return pa.types.is_floating(type) if pa.types.is_floating(given) else bool(type == given)
