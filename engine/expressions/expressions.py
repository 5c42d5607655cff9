"""Expressions as a user writes them: pyarrow's, or SQL text, over the columns of a schema."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import ConfigurationError, FlowError

field = pc.field
"""A column by its name, or a path of names into a struct: what expressions are made of."""


def as_expression(kind: str, given: object, schema: pa.Schema) -> pc.Expression:
    """``given`` as an expression over ``schema``; what is neither one nor SQL text is a mistake of the flow."""
    if isinstance(given, pc.Expression):
        return given
    if isinstance(given, str):
        try:
            from .sql import expression_of
        except ModuleNotFoundError as error:
            if error.name != "sqlglot":
                raise
            raise ConfigurationError(f"{kind}: SQL text needs sqlglot", "pip install 'penstock[sql]'") from None
        return expression_of(kind, given, schema)
    raise FlowError(
        f"{kind}: expected an expression, got {given!r} ({type(given).__name__})",
        "write it with pyarrow.compute: pc.field('delay') > 3; or as SQL text: 'delay > 3'",
    )


def same_expression(one: object, other: object) -> bool:
    """Whether two expressions, texts or None are the same."""
    if isinstance(one, pc.Expression) and isinstance(other, pc.Expression):
        return bool(one.equals(other))
    return type(one) is type(other) and one == other


def plain_column(expression: pc.Expression, schema: pa.Schema) -> int | None:
    """The position of the column that ``expression`` is, if it is nothing but a column."""
    for position, name in enumerate(schema.names):
        if expression.equals(pc.field(name)):
            return position
    return None
