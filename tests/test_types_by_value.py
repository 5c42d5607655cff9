"""Every operator that looks at values, over columns of every type of Arrow: the rows are those of the same values in
plain types, wherever the values lie (in slices, behind nulls, beside empty tables), or the flow is refused when it is
built, with the operator, the column and its type, and a remedy. ``sweep``: all types, in the plain run every sixth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.arrow.plain_types import plain_array
from penstock.engine.core.errors import FlowError
from penstock.engine.local.plan_task import PlanTask
from support.arrow_types import COLUMNS, shown
from support.sweeps import seeds

Rows = list[tuple[str, ...]]
PARTS = 6
PATIENCE = 60
NO_KERNELS = ("halffloat", "dictionary of half floats")
"""For which Arrow has no kernels that compare: they are to be cast."""


def in_plain_types(array: pa.Array) -> pa.Array:
    """The same values in the type that a plain file would have them in."""
    array, types = plain_array(array), pa.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    type = array.type
    if types.is_decimal(type) and type.bit_width < 128:
        return array.cast(pa.decimal128(type.precision, type.scale))
    for is_wide, plain in (
        (types.is_float16, pa.float32()),
        (types.is_large_string, pa.string()),
        (types.is_large_binary, pa.binary()),
        (types.is_fixed_size_binary, pa.binary()),
    ):
        if is_wide(type):
            return array.cast(plain)
    return array.cast(pa.list_(type.value_type)) if types.is_large_list(type) else array


def forms(column: pa.Array) -> list[pa.Array]:
    """As it is, cut out of the middle, empty, from the second row on, and (unless Arrow cannot) nulls alone."""
    found = [column, column.slice(3, 5), column.slice(len(column)), column.slice(1)]
    try:
        nulls = pa.nulls(4, column.type)
        nulls.validate(full=True)
    except (pa.ArrowException, TypeError):
        return found
    return [*found, nulls]


def splits(parts: Sequence[pa.Array]) -> list[pa.Table]:
    """Tables of these; ``k`` numbers all rows, ``g`` has two of each value."""
    made, first = [], 0
    for part in parts:
        keys = range(first, first := first + len(part))
        own = {"k": pa.array(keys, pa.int64()), "g": pa.array([key // 2 for key in keys], pa.int64())}
        made.append(pa.table({**own, "v": part}))
    return made


Made = Callable[[ps.Stream, ps.Stream, pa.Array], ps.Stream]
"""Puts an operator behind two streams of the same rows; the column is theirs."""


def _bounds(column: pa.Array) -> list[Any]:
    return [each for each in column.to_pylist() if each is not None and str(each) != "nan"][:1] or [0]


def _index(column: pa.Array) -> ps.index.Index:
    return ps.index.memory(pa.table({"v": column, "z": pa.array(range(len(column)))}).slice(1, 2), "v")


IN_ORDER: dict[str, Made] = {
    "sort": lambda rows, other, column: rows.sort("v", "k"),
    "sort down": lambda rows, other, column: rows.sort(ps.SortKey("v", descending=True, nulls_first=True), "k"),
    "top n": lambda rows, other, column: rows.top_n(7, ps.SortKey("v", descending=True), "k"),
    "stream aggregate": lambda rows, other, column: rows.sort("v", "k").stream_aggregate(["v"], k=("k", "min")),
    "merge join": lambda rows, other, column: rows.sort("v", "k").merge_join(
        other.sort("v", "k"), ["v"], how="full", suffix="_r"
    ),
    "rank": lambda rows, other, column: rows.window([], ["v"], n="rank", d="dense_rank").sort("k"),
    "lag": lambda rows, other, column: rows.window(["g"], ["k"], a=("v", "lag"), b=("v", "lead")).sort("k"),
    "least so far": lambda rows, other, column: rows.window(["g"], ["k"], a=("v", "min"), b=("v", "max")).sort("k"),
}
"""Whose rows come in an order that does not depend on how keys are divided."""

IN_ANY_ORDER: dict[str, Made] = {
    "partition": lambda rows, other, column: rows.partition_by("v"),
    "range": lambda rows, other, column: rows.partition_by_range("v", _bounds(column)),
    "group": lambda rows, other, column: rows.aggregate(["v"], k=("k", "min"), n=("k", "count")),
    "group, exchanged": lambda rows, other, column: rows.aggregate(["v", "g"], k=("k", "min"), exchange="key"),
    "min": lambda rows, other, column: rows.aggregate(["g"], v=("v", "min"), k=("k", "min")),
    "max": lambda rows, other, column: rows.aggregate([], v=("v", "max"), k=("k", "min")),
    "count distinct": lambda rows, other, column: rows.aggregate([], n=("v", "count_distinct"), k=("v", "count")),
    "collect list": lambda rows, other, column: rows.aggregate([], v=("v", "collect_list")).unnest("v"),
    "distinct": lambda rows, other, column: rows.distinct("v"),
    "mark distinct": lambda rows, other, column: rows.mark_distinct("v", marker="m"),
    "hash join": lambda rows, other, column: rows.hash_join(other, ["v"], how="full", suffix="_r"),
    "hash join on two": lambda rows, other, column: rows.hash_join(other, ["v", "g"], how="left", suffix="_r"),
    "anti join": lambda rows, other, column: rows.hash_join(other.filter("k < 4"), ["v"], how="anti"),
    "lookup join": lambda rows, other, column: rows.lookup_join(_index(column), ["v"], how="left"),
    "unnest": lambda rows, other, column: rows.unnest("v", outer=True),
    "is null": lambda rows, other, column: rows.filter("v is not null"),
    "equal": lambda rows, other, column: rows.filter(ps.field("v") == ps.field("v")),
    "less, in SQL": lambda rows, other, column: rows.with_columns(b="v < v", c="v >= v", d="v in (v)"),
    "coalesce": lambda rows, other, column: rows.with_columns(w="coalesce(v, v)"),
    "case": lambda rows, other, column: rows.with_columns(w="case when k % 2 = 0 then v end"),
}
COMPUTED = ("equal", "less, in SQL")
OPERATORS = {**IN_ORDER, **IN_ANY_ORDER}


def rows_of(operator: str, column: pa.Array, parts: Sequence[pa.Array], parallelism: int) -> Rows:
    """What comes out of the operator; raises FlowError if it refuses the column."""
    tables, flow = splits(parts), ps.Flow("types", lanes=2)
    rows, other = (flow.from_split_sets(tables[0].schema, name=name) for name in ("rows", "other"))
    end = OPERATORS[operator](rows, other, column)
    with PlanTask(end, parallelism=parallelism) as task:
        for name in dict.fromkeys(("rows", *(["other"] if "join" in operator and operator != "lookup join" else []))):
            for table in tables:
                task.add_split(name, table)
            task.no_more_splits(name)
        found = list(iter(task.read, None))
    columns = [shown(pa.chunked_array([batch[name] for batch in found])) for name in end.schema.names] if found else []
    made = list(zip(*columns, strict=True))
    return made if operator in IN_ORDER else sorted(made)


def is_clear(error: FlowError) -> None:
    """It names the operator, the column or what is made of it, and what to do."""
    assert re.match(r"(?s)[a-z-]+-1: .*\bv\b|memory index: column 'v'", str(error)), str(error)
    assert error.remedy


def alike(operator: str, name: str, parallelism: int) -> None:
    column = COLUMNS[name]
    parts = forms(column)
    plain = [in_plain_types(part) for part in parts]
    try:
        found = rows_of(operator, column, parts, parallelism)
    except FlowError as error:
        is_clear(error)
        if not (name in NO_KERNELS and operator in COMPUTED and "float32" in str(error.remedy)):
            with pytest.raises(FlowError):
                rows_of(operator, plain[0], plain, 1)
        return
    assert found == rows_of(operator, plain[0], plain, 1)


@pytest.mark.parametrize("part", seeds(1, of=PARTS))
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_makes_of_values_what_it_makes_of_them_in_plain_types(operator: str, part: int) -> None:
    begin = list(OPERATORS).index(operator) + part
    for number, name in enumerate(COLUMNS):
        if number % PARTS == begin % PARTS:
            try:
                alike(operator, name, 1 + number // PARTS % 2)
            except BaseException as error:
                error.add_note(f"the type: {name}")
                raise


@pytest.mark.parametrize("format", ["ipc", "parquet"])
def test_files_of_all_types_are_read_as_their_plain_values(format: str, tmp_path: Path) -> None:
    for number, (name, column) in enumerate(COLUMNS.items()):
        table = pa.table({"v": column})
        path = tmp_path / f"{number}.{format}"
        try:
            if format == "ipc":
                with pa.ipc.new_file(path, table.schema) as file:
                    file.write_table(table)
            else:
                pq.write_table(table, path)
            stored = (pa.ipc.open_file(path).read_all() if format == "ipc" else pq.read_table(path)).column("v")
        except (pa.ArrowException, NotImplementedError, OSError):  # not one that Arrow can write, and read
            continue
        flow = ps.Flow("files", lanes=2)
        read = flow.read_ipc if format == "ipc" else flow.read_parquet
        read(str(path)).collect("out")
        found = ps.run_local(flow).wait(PATIENCE).result("out").column("v")
        assert shown(found) == [each for chunk in stored.chunks for each in shown(plain_array(chunk))], name
