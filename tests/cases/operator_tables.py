"""The tables of ``operators.json`` as Arrow batches, and rows that came out compared with those expected.

Rules (the form stands in the README of the tables):

1. A column is a list, or ``{"gen": {n, expr, null_if}}`` with Python expressions in ``row``. Types are those of the
   schema, else those of the values over all batches; a column of only nulls is int64. Maps are lists of [key, value].
2. Expected rows are compared by value: 3 equals 3.0, true does not equal 1, ``"NaN"`` is the float. Hashed rows are
   compared as they are written.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from cases.operator_plans import NotUnderstood, Row

BUILTINS = {
    function.__name__: function
    for function in (abs, bool, divmod, float, int, len, list, max, min, pow, range, round, sorted, str, sum)
}
TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
}


# ---------------------------------------------------------------------- input


def batches_of(side: Row, maps: Sequence[str] = ()) -> list[pa.RecordBatch]:
    """The batches of one side."""
    unknown = set(side) - {"schema", "batches"}
    if unknown:
        raise NotUnderstood(f"keys of a side that the runner does not know: {sorted(unknown)}")
    return made_batches(side["batches"], side.get("schema"), maps)


def made_batches(
    given: Sequence[Row], schema: Sequence[Sequence[str]] | None = None, maps: Sequence[str] = ()
) -> list[pa.RecordBatch]:
    """Batches (or splits) of columns, all of one schema; an empty one if there is none."""
    columns = [{name: _values(column) for name, column in batch.items()} for batch in given]
    if schema is None:
        names = list(dict.fromkeys(name for batch in columns for name in batch))
        types = {name: _inferred(name, [batch.get(name, []) for batch in columns], name in maps) for name in names}
    else:
        types = {name: type_of(text) for name, text in schema}
    arrow = pa.schema(list(types.items()))
    return [_batch(batch, arrow) for batch in columns or [{}]]


def _batch(columns: dict[str, list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    strange = set(columns) - set(schema.names)
    if strange:
        raise NotUnderstood(f"columns outside the schema: {sorted(strange)}")
    arrays = [
        pa.array([_read(value, field.type) for value in columns.get(field.name, [])], field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def type_of(text: str) -> pa.DataType:
    """The type that a schema names."""
    name, _, rest = text.replace(" ", "").partition("<")
    if name in {"list", "array"} and rest:
        return pa.list_(type_of(rest.removesuffix(">")))
    if name == "map" and rest:
        key, _, item = rest.removesuffix(">").partition(",")
        return pa.map_(type_of(key), type_of(item))
    if text not in TYPES:
        raise NotUnderstood(f"a type that the runner does not know: {text!r}")
    return TYPES[text]


def _values(column: Any) -> list[Any]:
    if isinstance(column, list):
        return column
    if set(column) != {"gen"} or set(column["gen"]) - {"n", "expr", "null_if"}:
        raise NotUnderstood(f"a column that the runner does not know: {column}")
    value, is_null = (_function(column["gen"].get(key)) for key in ("expr", "null_if"))
    return [None if is_null(row) else value(row) for row in range(column["gen"]["n"])]


def _function(text: str | None) -> Callable[[int], Any]:
    if text is None:
        return lambda row: None
    code = compile(text, "<table>", "eval")
    return lambda row: eval(code, {"__builtins__": BUILTINS, "row": row})


def _read(value: Any, type: pa.DataType) -> Any:
    """A value of JSON as Arrow takes it."""
    if value is None or pa.types.is_string(type):
        return value
    if pa.types.is_map(type):
        return [(_read(key, type.key_type), _read(item, type.item_type)) for key, item in value]
    if pa.types.is_list(type):
        return [_read(each, type.value_type) for each in value]
    return math.nan if value == "NaN" else value


def _inferred(name: str, columns: Iterable[list[Any]], is_map: bool) -> pa.DataType:
    values = [value for column in columns for value in column if value is not None]
    if is_map:
        pairs = [pair for value in values for pair in value]
        return pa.map_(*(_inferred(name, [[pair[part] for pair in pairs]], False) for part in (0, 1)))
    kinds = {list if isinstance(value, list) else float if value == "NaN" else type(value) for value in values}
    if kinds == {list}:
        return pa.list_(_inferred(name, values, False))
    if kinds <= {int}:
        return pa.int64()
    if kinds <= {int, float}:
        return pa.float64()
    if kinds in ({bool}, {str}):
        return pa.bool_() if kinds == {bool} else pa.string()
    raise NotUnderstood(f"column {name!r} mixes values of {sorted(kind.__name__ for kind in kinds)}")


# ---------------------------------------------------------------------- outcome


def rows_of(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> list[list[Any]]:
    """The rows as JSON has them."""
    rows: list[list[Any]] = []
    for batch in batches:
        arrays = [batch.column(name).to_pylist() for name in columns]
        rows += [[_written(value) for value in row] for row in zip(*arrays, strict=True)]
    return rows


def check_rows(expect: Row, rows: list[list[Any]]) -> None:
    """The rows are the expected ones."""
    width = len(expect["columns"])
    assert all(len(row) == width for row in rows), f"rows of another width than {width}"
    known = ("columns", "ordered", "row_count", "rows", "sha256_sorted_json", "null_counts")
    if set(expect) - set(known) or not {"rows", "sha256_sorted_json"} & set(expect):
        raise NotUnderstood(f"an expectation that the runner does not know: {sorted(expect)}")
    if "rows" in expect:
        assert_same_rows(rows, expect["rows"], ordered=expect.get("ordered", False))
    assert len(rows) == expect.get("row_count", len(rows))
    if "null_counts" in expect:
        assert [sum(row[place] is None for row in rows) for place in range(width)] == expect["null_counts"]
    if "sha256_sorted_json" in expect:
        text = "\n".join(sorted(json.dumps(row) for row in rows))
        assert hashlib.sha256(text.encode()).hexdigest() == expect["sha256_sorted_json"]


def assert_same_rows(rows: list[list[Any]], expected: list[list[Any]], *, ordered: bool) -> None:
    """Equal sequences, or (not ``ordered``) multisets, of rows."""
    found, wanted = ([json.dumps(_normal(row)) for row in each] for each in (rows, expected))
    if not ordered:
        found, wanted = sorted(found), sorted(wanted)
    assert found == wanted


def _written(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return [_written(each) for each in value] if isinstance(value, list | tuple) else value


def _normal(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return [_normal(each) for each in value] if isinstance(value, list) else value
