"""The schema that rows of Spark and of Ray Data come with: declared once, and kept by whoever writes them."""

from __future__ import annotations

import pyarrow as pa

from ...engine.arrow.nullability import loosened_type


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema without promises, at any depth, that a value is never null: no outer join would keep them."""
    return pa.schema([pa.field(column.name, loosened_type(column.type)) for column in schema])
