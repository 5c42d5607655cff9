"""A column of every type that Arrow has, with the values that layouts and formats stumble over, and flows that move it
through every operator."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps

ROWS = 12
NAN = float("nan")
TEXTS = ("", "a", "eight by", None, "thirteen bytes", "é" * 30)
OLD_TEXTS = ("1500-02-28T01:02:03.000004", "0001-01-01", None)
OLD = tuple(each and datetime.datetime.fromisoformat(each) for each in OLD_TEXTS)

STRUCT = pa.struct([("a", pa.string()), ("b", pa.list_(pa.int64()))])
VIEWS = pa.map_(pa.string_view(), pa.list_view(pa.binary_view()))
DEEP = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.string_view()))), ("v", pa.list_view(pa.string()))]))

_NULLS = pa.list_(pa.null())
_DEEP = ([{"m": [("k", ["x", None, "y" * 20])], "v": [None, "z"]}, None], None, [], [{"m": None, "v": None}])


def _spread(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    return pa.array([values[number % len(values)] for number in range(ROWS)], type)


def _runs(values: pa.Array, ends: pa.DataType) -> pa.Array:
    """Each value three times."""
    count = ROWS // 3
    return pa.RunEndEncodedArray.from_arrays(pa.array(range(3, ROWS + 1, 3), ends), values.slice(0, count))


def _coded(values: pa.Array, codes: pa.DataType | None = None, ordered: bool = False) -> pa.Array:
    count = len(values)
    places = pa.array([None if number % 5 == 4 else number % count for number in range(ROWS)], codes or pa.int32())
    return pa.DictionaryArray.from_arrays(places, values, ordered=ordered)


def _listed(values: pa.Array) -> pa.Array:
    """A list of each value; one is null, and has a value nevertheless."""
    null = pa.array([number == 4 for number in range(ROWS)])
    return pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), values, mask=null)


def _unions() -> dict[str, pa.Array]:
    codes = pa.array([5, 7] * (ROWS // 2), pa.int8())
    names, kinds = ["n", "t"], [5, 7]
    sparse = [_spread((1, None, 3), pa.int64()), _spread(TEXTS, pa.string())]
    places = pa.array([number // 2 for number in range(ROWS)], pa.int32())
    dense = [column.slice(0, ROWS // 2) for column in sparse]
    made = {
        "sparse union": pa.UnionArray.from_sparse(codes, sparse, names, kinds),
        "dense union": pa.UnionArray.from_dense(codes, places, dense, names, kinds),
    }
    offsets = [*range(0, ROWS, 2), *[ROWS] * (ROWS // 2 + 1)]
    return {**made, "list of union": pa.ListArray.from_arrays(offsets, made["dense union"])}


_BITS = (8, 16, 32, 64)


def _integer(kind: str, bits: int) -> pa.DataType:
    return pa.type_for_alias(f"{kind}{bits}")


def _simple() -> dict[str, pa.Array]:
    floats = (0.0, -0.0, NAN, None, float("-inf"), 1.5)
    dates = tuple(None if each is None else each.date() for each in OLD)
    days = (datetime.timedelta(days=-400, microseconds=7), None, datetime.timedelta(0))
    blobs = [each and each.encode() for each in TEXTS]
    times = (datetime.time(23, 59, 59), None, datetime.time(0))
    types: dict[str, tuple[Sequence[Any], pa.DataType]] = {
        "null": ((None,), pa.null()),
        "bool": ((True, False, None), pa.bool_()),
        **{str(type): (floats, type) for type in (pa.float16(), pa.float32(), pa.float64())},
        **{f"int{bits}": ((-1 << bits - 1, (1 << bits - 1) - 1, None), _integer("int", bits)) for bits in _BITS},
        **{f"uint{bits}": (((1 << bits) - 1, 0, None), _integer("uint", bits)) for bits in _BITS},
        "decimal32": ((Decimal("-99999.99"), None, Decimal("0.01")), pa.decimal32(7, 2)),
        "decimal64": ((Decimal("-1234567890.5"), None), pa.decimal64(15, 1)),
        "decimal128": ((Decimal(-(10**37)), None, Decimal(1)), pa.decimal128(38, 0)),
        "decimal256": ((Decimal(10**70), None, Decimal(-1)), pa.decimal256(76, 3)),
        "date32": (dates, pa.date32()),
        "date64": (dates, pa.date64()),
        "time32[s]": (times, pa.time32("s")),
        "time32[ms]": (times, pa.time32("ms")),
        "time64[us]": (times, pa.time64("us")),
        "time64[ns]": (times, pa.time64("ns")),
        **{f"timestamp[{unit}]": (OLD, pa.timestamp(unit)) for unit in ("s", "ms", "us")},
        "timestamp[ns]": ((-(1 << 62), None, 7), pa.timestamp("ns")),
        "timestamp[us, zone]": (OLD[::2], pa.timestamp("us", "Europe/Berlin")),
        **{f"duration[{unit}]": (days, pa.duration(unit)) for unit in ("ms", "us", "ns")},
        "interval": (((1, -2, 3), None), pa.month_day_nano_interval()),
        **{str(type): (TEXTS, type) for type in (pa.string(), pa.large_string(), pa.string_view())},
        **{str(type): (blobs, type) for type in (pa.binary(), pa.large_binary(), pa.binary_view())},
        "fixed": ((b"abcd", None, b"\0\0\0\0"), pa.binary(4)),
    }
    return {name: _spread(_whole(values, type), type) for name, (values, type) in types.items()}


def _whole(values: Sequence[Any], type: pa.DataType) -> Sequence[Any]:
    """The values without what the type has no room for."""
    if pa.types.is_float16(type):
        return [None if each is None else np.float16(each) for each in values]
    if pa.types.is_timestamp(type) and type.unit in ("s", "ms"):
        return [None if each is None else each.replace(microsecond=0) for each in values]
    if pa.types.is_duration(type) and type.unit == "ms":
        return [None if each is None else each - each % datetime.timedelta(milliseconds=1) for each in values]
    return values


def _nested() -> dict[str, pa.Array]:
    numbers = ([1, None], None, [], [2, 3, 4])
    texts = (["a", None, "b" * 20], None, [])
    return {
        "list": _spread(numbers, pa.list_(pa.int64())),
        "large list": _spread(texts, pa.large_list(pa.large_string())),
        "fixed list": _spread(([1.5, NAN], None, [None, -0.0]), pa.list_(pa.float32(), 2)),
        "list view": _spread(numbers, pa.list_view(pa.int64())),
        "large list view": _spread(texts, pa.large_list_view(pa.string_view())),
        "list of list": _spread(([[1], None, []], None, [[None]]), pa.list_(pa.list_(pa.int64()))),
        "list of list of list": _spread(([[["a"], None], None], [], None), pa.list_(pa.list_(pa.list_(pa.string())))),
        "list of string view": _spread(texts, pa.list_(pa.string_view())),
        "fixed list of binary view": _spread(([b"a", None], None), pa.list_(pa.binary_view(), 2)),
        "struct": _spread(({"a": "x", "b": [1, None]}, None, {"a": None, "b": None}), STRUCT),
        "struct of struct": _spread(({"s": {"a": "x", "b": []}}, {"s": None}, None), pa.struct([("s", STRUCT)])),
        "struct without fields": _spread(({}, None), pa.struct([])),
        "struct of string view": _spread(({"a": "x" * 20}, None, {"a": None}), pa.struct([("a", pa.string_view())])),
        "map": _spread(([("k", 1), ("j", None)], None, []), pa.map_(pa.string(), pa.int64())),
        "map of views": _spread(([("k" * 20, [b"1", None])], None, []), VIEWS),
        "deep": _spread(_DEEP, DEEP),
    }


CODED = (
    *("binary", "large_binary", "binary_view", "fixed", "decimal32", "decimal64", "decimal256", "date64"),
    *("time32[s]", "time64[ns]", "timestamp[us]", "timestamp[us, zone]", "duration[us]", "interval", "float", "uint64"),
)
"""Simple columns of which there is a dictionary, too."""


def _encoded() -> dict[str, pa.Array]:
    texts = pa.array(["a", "b" * 20, "", None])
    named = pa.array(["a", "bb", "c"])
    ordered = {
        f"dictionary of {name}": _coded(values)
        for name, values in {
            "string": named,
            "large string": named.cast(pa.large_string()),
            "string view": named.cast(pa.string_view()),
            "int64": pa.array([1, 2, 3]),
            "double": pa.array([-0.0, NAN, 1.0]),
            "bool": pa.array([True, False]),
            "decimal": pa.array([Decimal("1.5"), Decimal("-2.5")], pa.decimal128(9, 2)),
            "date": pa.array([datetime.date(1500, 2, 28), datetime.date(2000, 1, 1)]),
            "list": pa.array([[1], [], [None]], pa.list_(pa.int64())),
            "struct": pa.array([{"a": "x", "b": None}, {"a": None, "b": [1]}], STRUCT),
            "values with null": pa.array(["a", None, "c"]),
        }.items()
    }
    simple, views = _simple(), pa.array([[1, None], []], pa.list_view(pa.int64()))
    return {
        **ordered,
        **{f"dictionary of {name}": _coded(simple[name].slice(0, 3)) for name in CODED},
        "dictionary of list view": _coded(views),
        "dictionary by int8": _coded(named, pa.int8(), ordered=True),
        "dictionary by uint16": _coded(named, pa.uint16()),
        "dictionary of half floats": _coded(pa.array([1.5, -0.0], pa.float32()).cast(pa.float16())),
        "runs of dictionary": _runs(_coded(named), pa.int32()),
        "list of dictionary of null": pa.ListArray.from_arrays(list(range(ROWS + 1)), _coded(pa.array(["a", None]))),
        "list of dictionary": pa.ListArray.from_arrays(list(range(ROWS + 1)), _coded(named)),
        "struct of dictionary": pa.StructArray.from_arrays([_coded(named), _coded(pa.array([1, 2]))], ["a", "b"]),
        "runs of int64": _runs(pa.array([1, None, 3, 4]), pa.int32()),
        "runs of string": _runs(texts, pa.int16()),
        "runs of string view": _runs(texts.cast(pa.string_view()), pa.int64()),
        "list of runs": pa.ListArray.from_arrays(list(range(ROWS + 1)), _runs(texts, pa.int32())),
        "list of runs of list of null": _listed(_runs(pa.array([[None], None, [], [None] * 2], _NULLS), pa.int32())),
        "dictionary of dictionary": _coded(_coded(named, pa.int8())),
        "dictionary of runs": _coded(_runs(texts, pa.int32())),
        "list of dictionary of dictionary": _listed(_coded(_coded(named))),
        "list of dictionary of runs": _listed(_coded(_runs(texts, pa.int16()))),
        "list of dictionary of half floats": _listed(_coded(pa.array([1.5, -0.0], pa.float32()).cast(pa.float16()))),
        "list of runs of dictionary of nulls": _listed(_runs(_coded(pa.nulls(2)), pa.int32())),
        "struct of runs": pa.StructArray.from_arrays([_runs(texts, pa.int32())], ["r"]),
    }


def _extensions() -> dict[str, pa.Array]:
    tensor = pa.fixed_shape_tensor(pa.int32(), [2])
    json = pa.ExtensionArray.from_storage(pa.json_(), _spread(("{}", None), pa.string()))
    stored = _spread(([1, 2], [3, 4]), pa.list_(pa.int32(), 2))
    return {
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), _spread((b"0123456789abcdef", None), pa.binary(16))),
        "json": json,
        "json view": pa.ExtensionArray.from_storage(
            pa.json_(pa.string_view()), _spread(("{}", None), pa.string_view())
        ),
        "bool8": pa.ExtensionArray.from_storage(pa.bool8(), _spread((0, 1, None), pa.int8())),
        "tensor": pa.ExtensionArray.from_storage(tensor, stored),
        "opaque": pa.ExtensionArray.from_storage(pa.opaque(pa.int64(), "x", "y"), _spread((7, None), pa.int64())),
        "list of struct of json": _listed(pa.StructArray.from_arrays([json], ["j"])),
        "list of uuid": pa.ListArray.from_arrays(
            list(range(ROWS + 1)), pa.ExtensionArray.from_storage(pa.uuid(), _spread((b"0" * 16, None), pa.binary(16)))
        ),
    }


COLUMNS: dict[str, pa.Array] = {**_simple(), **_nested(), **_encoded(), **_unions(), **_extensions()}
"""By name; each of ``ROWS`` values."""


SPLITS = 24


def tables(columns: dict[str, pa.Array]) -> list[pa.Table]:
    """One for each split: ``k`` numbers all rows, ``g`` has two rows of each value, ``l`` a list for each row."""
    made = []
    for split in range(SPLITS):
        keys = range(split * ROWS, (split + 1) * ROWS)
        own = {"k": pa.array(keys, pa.int64()), "g": pa.array([key // 2 for key in keys], pa.int64())}
        lists = pa.array([[key, None] if key % 3 else [] for key in keys], pa.list_(pa.int64()))
        made.append(pa.table({**own, "l": lists, **columns}))
    return made


def shown(array: pa.Array | pa.ChunkedArray) -> list[str]:
    """Each value as a text that tells NaN, -0.0 and null, in whichever layout it is."""
    if isinstance(array, pa.ChunkedArray):
        return [each for chunk in array.chunks for each in shown(chunk)]
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_temporal(array.type) and not pa.types.is_interval(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return [repr(each) for each in array.to_pylist()]


def _same(records: pa.RecordBatch) -> pa.RecordBatch:
    return records


Made = Callable[[ps.Flow, ps.Stream, dict[str, pa.Array]], ps.Stream]
"""Moves rows through an operator; the columns are those of the source."""


def _twin(flow: ps.Flow, columns: dict[str, pa.Array]) -> ps.Stream:
    return flow.from_tables(tables(columns), name="others", rate=flow.node("rows").rate)


def _merged(flow: ps.Flow, rows: ps.Stream, columns: dict[str, pa.Array]) -> ps.Stream:
    return rows.merge_join(_other(flow, columns), ["k"], right_on=["k2"], how="full")


def _joined_on(flow: ps.Flow, rows: ps.Stream, columns: dict[str, pa.Array]) -> ps.Stream:
    names = list(columns)
    return rows.hash_join(_other(flow, columns), names, right_on=[f"{name}2" for name in names], how="left semi")


def _counted(flow: ps.Flow, rows: ps.Stream, columns: dict[str, pa.Array]) -> ps.Stream:
    return rows.aggregate([], k=("k", "min"), **{f"{name}2": (name, "count_distinct") for name in columns})


def _other(flow: ps.Flow, columns: dict[str, pa.Array]) -> ps.Stream:
    """The same rows once more, with other names."""
    rows = _twin(flow, columns)
    return rows.project(**{f"{name}2": ps.field(name) for name in rows.schema.names})


def _joined(how: str) -> Made:
    return lambda flow, rows, columns: rows.hash_join(_other(flow, columns), ["k"], right_on=["k2"], how=how)


def _replicated(flow: ps.Flow, rows: ps.Stream, columns: dict[str, pa.Array]) -> ps.Stream:
    return rows.rebalance().hash_join(_other(flow, columns).broadcast(), ["k"], right_on=["k2"], how="left")


def _looked_up(flow: ps.Flow, rows: ps.Stream, columns: dict[str, pa.Array]) -> ps.Stream:
    table = pa.concat_tables(tables(columns))
    index = ps.index.memory(table.rename_columns([f"{name}2" for name in table.column_names]), "k2")
    return rows.lookup_join(index, ["k"], how="left")


def _aggregated(function: str) -> Made:
    return lambda flow, rows, columns: rows.aggregate(
        ["g"], k=("k", "min"), **{name: (name, function) for name in columns}
    )


def _window(flow: ps.Flow, rows: ps.Stream, columns: dict[str, pa.Array]) -> ps.Stream:
    return rows.window(["g"], ["k"], **{f"{name}2": (name, "lag") for name in columns})


def _mapped(flow: ps.Flow, rows: ps.Stream, columns: dict[str, pa.Array]) -> ps.Stream:
    return rows.map_batches(_same, pa.schema([*rows.schema]))


def _first(flow: ps.Flow, rows: ps.Stream, columns: dict[str, pa.Array]) -> ps.Stream:
    return rows.stream_aggregate(["g"], k=("k", "first"), **{name: (name, "first") for name in columns})


PAYLOAD: dict[str, Made] = {
    "none": lambda flow, rows, columns: rows,
    "filter": lambda flow, rows, columns: rows.filter(ps.field("k") != 3),
    "project": lambda flow, rows, columns: rows.project("k", *columns),
    "with columns": lambda flow, rows, columns: rows.with_columns(x=ps.field("k") + 1),
    "map batches": _mapped,
    "unnest": lambda flow, rows, columns: rows.unnest("l", outer=True),
    "union": lambda flow, rows, columns: rows.union(_twin(flow, columns)),
    "gather": lambda flow, rows, columns: rows.gather(),
    "partition by": lambda flow, rows, columns: rows.partition_by("g"),
    "partition by range": lambda flow, rows, columns: rows.partition_by_range("k", [20, 40]),
    "rebalance": lambda flow, rows, columns: rows.rebalance(),
    "mix": lambda flow, rows, columns: flow.mix({rows: 2, _twin(flow, columns): 1}, at_end="go on"),
    "merge join": _merged,
    "hash join": _joined("inner"),
    "hash join full": _joined("full"),
    "replicated join": _replicated,
    "lookup join": _looked_up,
    "first": _aggregated("first"),
    "last": _aggregated("last"),
    "collect list": _aggregated("collect_list"),
    "stream aggregate": _first,
    "distinct": lambda flow, rows, columns: rows.distinct("k"),
    "mark distinct": lambda flow, rows, columns: rows.mark_distinct("g", marker="is_first"),
    "sort": lambda flow, rows, columns: rows.sort(ps.SortKey("k", descending=True)),
    "top n": lambda flow, rows, columns: rows.top_n(30, "k"),
    "limit": lambda flow, rows, columns: rows.limit(40, offset=2),
    "sample": lambda flow, rows, columns: rows.sample(0.7, seed=1),
    "window": _window,
    "shuffle": lambda flow, rows, columns: rows.shuffle(16),
}
"""The operators through which a column passes as it is, by name."""

KEYED: dict[str, Made] = {
    "partition by it": lambda flow, rows, columns: rows.partition_by(*columns),
    "group by it": lambda flow, rows, columns: rows.aggregate(list(columns), k=("k", "min")),
    "group by it, exchanged": lambda flow, rows, columns: rows.aggregate(list(columns), k=("k", "min"), exchange="key"),
    "distinct by it": lambda flow, rows, columns: rows.distinct(*columns),
    "mark distinct by it": lambda flow, rows, columns: rows.mark_distinct(*columns, marker="is_first"),
    "sort by it": lambda flow, rows, columns: rows.sort(*columns, "k"),
    "top n by it": lambda flow, rows, columns: rows.top_n(20, *columns, "k"),
    "join on it": _joined_on,
    "window by it": lambda flow, rows, columns: rows.window(list(columns), ["k"], n="row_number"),
    "count distinct": _counted,
    "min": _aggregated("min"),
    "max": _aggregated("max"),
    "sum": _aggregated("sum"),
    "mean": _aggregated("mean"),
    "stddev": _aggregated("stddev"),
}
"""The operators that look at a column's values: they work, or refuse the type when the flow is built."""
