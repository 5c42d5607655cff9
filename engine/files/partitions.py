"""Columns that the folders above a file tell (``year=2024/month=1/…``), as Hive, Spark, Delta and DuckDB lay them out.
Pure.

Rules:

1. Only folders below what the user named count; of a glob, those behind its fixed beginning. A folder ``key=value`` is
   a column, unless the files have one of that name: then theirs is read. Both are escaped as in URLs.
2. All files have the same keys. A file that lacks one, or has one more, is refused.
3. If nobody says a type, it is int64 where all values are whole numbers (``01`` is one), unless two texts are one
   number (``7``, ``007``); date32 where all are days (``2024-01-31``); else string. ``__HIVE_DEFAULT_PARTITION__`` is
   null.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from ..core.errors import ConfigurationError, FlowError

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The folder of the rows without a value."""
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

Constants: TypeAlias = Mapping[str, pa.Scalar]
"""By name, the value that a column has in every row of a file."""


@dataclass(frozen=True, slots=True)
class FolderColumns:
    """``schema``: the columns that folders tell. ``constants``: of each file."""

    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    constants: Sequence[Constants] = ()

    def of(self, place: int) -> Constants:
        """What the folders say of the file at this place of the list."""
        return self.constants[place] if self.constants else {}


def partitions_of(ids: Sequence[str], own: Collection[str], types: Mapping[str, pa.DataType]) -> FolderColumns:
    """What the folders of files say, by the files' ids. ``own``: columns that the files have. ``types``: those that are
    not guessed. Raises ConfigurationError, and FlowError where a value has not the type."""
    found = [dict(_keys(id)) for id in ids]
    names = tuple(name for name in found[0] if name not in own) if found else ()
    for id, keys in zip(ids, found, strict=True):
        if {name for name in keys if name not in own} != set(names):
            told = ", ".join(names) or "nothing"
            raise ConfigurationError(
                f"the folders of {id} tell {', '.join(keys) or 'nothing'}, and those of {ids[0]} tell {told}",
                "lay all files out alike, or read them as they are: hive_partitioning=False",
            )
    if wrong := [name for name in types if name not in names]:
        remedy = f"they tell: {', '.join(names) or 'nothing'}"
        raise FlowError(f"no folder tells {wrong[0]!r}, of which hive_schema has the type", remedy)
    if not names:
        return FolderColumns()
    columns = {name: _values(name, [keys[name] for keys in found], types.get(name)) for name in names}
    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    return FolderColumns(schema, [{name: column[at] for name, column in columns.items()} for at in range(len(ids))])


def _keys(id: str) -> Iterator[tuple[str, str | None]]:
    """The keys and values of a file's folders, from the outermost on."""
    known: set[str] = set()
    for folder in id.split("/")[:-1]:
        name, sign, value = folder.partition("=")
        name = unquote(name)
        if not sign or not name:
            continue
        if name in known:
            raise ConfigurationError(f"the folders of {id} tell {name!r} twice", "give every folder its own key")
        known.add(name)
        yield name, None if value == NULL else unquote(value)


def _values(name: str, texts: Sequence[str | None], type: pa.DataType | None) -> pa.Array:
    kind = _guessed({text for text in texts if text is not None}) if type is None else type
    try:
        return pa.array(texts, pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise FlowError(f"folders tell {name!r} values that are no {kind}: {reason}", "give it another type") from error


def _guessed(texts: Collection[str]) -> pa.DataType:
    """Rule 3."""
    if texts and all(map(_WHOLE.fullmatch, texts)) and len(set(map(int, texts))) == len(texts):
        return pa.int64()
    if texts and all(map(_is_day, texts)):
        return pa.date32()
    return pa.string()


def _is_day(text: str) -> bool:
    if _DAY.fullmatch(text) is None:
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
