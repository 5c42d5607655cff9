"""Expressions as a user writes them: ``ps.col``'s, SQL text, or pyarrow's, over the columns of a schema."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import ConfigurationError, FlowError
from .fluent import Expression
from .tree import ColumnPath, NotPlainError, serialized, tree_of

field = pc.field
"""A column by its name, or a path of names into a struct: what pyarrow's expressions are made of."""

Expressible: TypeAlias = Expression | pc.Expression | str
"""What a user may give."""


def written(given: Expressible) -> pc.Expression | str:
    """As configs hold it: they are compared, hashed and described."""
    return given.sql if isinstance(given, Expression) else given


def as_expression(kind: str, given: object, schema: pa.Schema) -> pc.Expression:
    """``given`` as an expression over ``schema``; what is neither one nor SQL text is a mistake of the flow."""
    if isinstance(given, Expression):
        given = given.sql
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
        "write it as ps.col('delay') > 3, or as SQL text: 'delay > 3'",
    )


def same_expression(one: object, other: object) -> bool:
    """Whether two expressions, texts or None are the same."""
    if isinstance(one, pc.Expression) and isinstance(other, pc.Expression):
        return bool(one.equals(other))
    return type(one) is type(other) and one == other


def plain_column(expression: pc.Expression, schema: pa.Schema) -> int | None:
    """The position of the column that ``expression`` is, if it is nothing but a column."""
    try:
        tree = tree_of(serialized(expression))
    except (NotPlainError, pa.ArrowException):  # it is more than a column, or one by its position
        return None
    if not isinstance(tree, ColumnPath) or len(tree.path) > 1:
        return None
    position: int = schema.get_field_index(tree.path[0])
    if position < 0 and tree.path[0] in schema.names:  # several have the name
        return int(schema.names.index(tree.path[0]))
    return None if position < 0 else position
