"""What every index asks of its schema and key, with errors that name the index and what exists."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..core.errors import FlowError
from ..core.schemas import check_columns, check_distinct, check_movable
from ..kernels.keys import check_key_types


def check_key(kind: str, schema: pa.Schema, key: str | Sequence[str], side: str) -> tuple[str, ...]:
    """The names of the key columns, which stand in the schema and can be looked up. ``side``: what has the schema."""
    names = (key,) if isinstance(key, str) else tuple(key)
    if not names:
        raise FlowError(f"{kind}: no key is given", "name at least one key column")
    check_distinct(kind, "key", names)
    check_columns(kind, schema, (*names, *schema.names), side)
    check_movable(kind, schema, side=side)
    check_key_types(kind, [schema.field(name) for name in names])
    return names
