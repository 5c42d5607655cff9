"""Indexes for lookup joins: ``ps.index.memory``, ``ps.index.parquet``, ``ps.index.sql``, and the protocol for others.

What an index must do, with an example of one's own, is told in ``operators.index_protocol``: a class with the members
of :class:`Index`, whose ``open`` gives an :class:`OpenIndex`, whose ``lookup`` gives a :class:`Found`.
"""

from __future__ import annotations

from ..indexes.in_memory import MemoryIndex, OpenMemoryIndex, memory
from ..indexes.in_parquet import OpenParquetIndex, ParquetIndex
from ..indexes.in_parquet import parquet_index as parquet
from ..indexes.in_sql import OpenSqlIndex, SqlIndex
from ..indexes.in_sql import sql_index as sql
from ..operators.join.index_protocol import Found, Index, OpenIndex
from ..operators.join.lookup_conditions import Between, InList
from ..operators.join.matching import Matches

__all__ = [
    "Between",
    "Found",
    "InList",
    "Index",
    "Matches",
    "MemoryIndex",
    "OpenIndex",
    "OpenMemoryIndex",
    "OpenParquetIndex",
    "OpenSqlIndex",
    "ParquetIndex",
    "SqlIndex",
    "memory",
    "parquet",
    "sql",
]
