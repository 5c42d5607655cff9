"""Views, runs and dictionaries that Arrow cannot put together become plain types at the doors where rows come in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.arrow import plain_types
from penstock.engine.arrow.plain_types import plain_array, plain_batches, plain_schema, plain_type
from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.kernels.hashing import hashes
from support.arrow_types import COLUMNS, ROWS

VIEW, PLAIN = pa.string_view(), pa.string()


@pytest.mark.parametrize("name", COLUMNS)
def test_a_plain_column_has_the_same_values(name: str) -> None:
    column = COLUMNS[name]
    for each in (column, column.slice(1), column.slice(4, 1), column.slice(5, 4), column.slice(ROWS)):
        plain = plain_array(each)
        plain.validate(full=True)
        assert len(hashes([plain])) == len(each)
        assert plain.type == plain_type(column.type) == plain_type(plain.type)
        if plain.type != each.type:
            assert repr(plain.to_pylist()) == repr(each.to_pylist())
    places = pa.array([3, None, 0])
    assert len(pa.concat_arrays([plain_array(column).take(places), plain_array(column)])) == 3 + ROWS


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (VIEW, PLAIN),
        (pa.binary_view(), pa.binary()),
        (pa.list_view(VIEW), pa.list_(PLAIN)),
        (pa.large_list_view(pa.int8()), pa.large_list(pa.int8())),
        (pa.run_end_encoded(pa.int16(), VIEW), PLAIN),
        (pa.map_(VIEW, pa.list_(VIEW, 2)), pa.map_(PLAIN, pa.list_(PLAIN, 2))),
        (pa.dictionary(pa.int8(), VIEW, ordered=True), pa.dictionary(pa.int32(), PLAIN, ordered=True)),
        (pa.dictionary(pa.uint32(), pa.int64()), pa.dictionary(pa.uint32(), pa.int64())),
        (pa.dictionary(pa.int32(), pa.float16()), pa.float16()),
        (pa.dictionary(pa.int32(), pa.list_(PLAIN)), pa.list_(PLAIN)),
        (pa.list_(pa.dictionary(pa.int32(), VIEW)), pa.list_(PLAIN)),
        (pa.json_(VIEW), pa.json_(PLAIN)),
        (pa.large_string(), pa.large_string()),
    ],
    ids=str,
)
def test_the_plain_type(given: pa.DataType, plain: pa.DataType) -> None:
    assert plain_type(given) == plain


def test_a_schema_keeps_names_nullability_and_metadata() -> None:
    field = pa.field("s", pa.struct([pa.field("v", VIEW, nullable=False)]), nullable=False, metadata={"a": "b"})
    schema = plain_schema(pa.schema([field], {"c": "d"}))
    assert schema.metadata == {b"c": b"d"}
    assert schema.field(0).equals(field.with_type(pa.struct([pa.field("v", PLAIN, nullable=False)])), True)
    assert plain_schema(schema) is schema


RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([2, 5, 8], pa.int32()), pa.array(["a", "b", "c"]))


@pytest.mark.parametrize(
    "items", [RUNS, pa.nulls(8), pa.array(["a", None] * 4, VIEW), pa.array([[1], None, [], [2]] * 2)], ids=str
)
@pytest.mark.parametrize("place", range(4))
def test_a_slice_of_maps_has_the_same_values_and_hashes(items: pa.Array, place: int) -> None:
    """Arrow's cast of such a map to a list of its entries gives others, or ends the process."""
    keys = pa.array([f"k{number}" for number in range(8)], VIEW)
    whole = pa.MapArray.from_arrays(pa.array([0, 1, 2, 4, 8], pa.int32()), keys, items)
    plain = plain_array(whole)
    assert plain.to_pylist() == whole.to_pylist()
    assert plain_array(whole.slice(place)).to_pylist() == whole.to_pylist()[place:]
    nested = pa.FixedSizeListArray.from_arrays(whole, 2).slice(1)
    assert plain_array(nested).to_pylist() == [whole.to_pylist()[2:]]
    for found in (plain.slice(place), plain_array(whole.slice(place))):
        assert hashes([found]).tolist() == hashes([plain]).tolist()[place:]


@pytest.mark.parametrize(
    "type", [pa.list_(pa.null()), pa.list_(pa.null(), 2), pa.map_(pa.string(), pa.null())], ids=str
)
def test_lists_of_nulls_are_hashed_wherever_they_stand(type: pa.DataType) -> None:
    value: list[Any] = [("a", None), ("b", None)] if pa.types.is_map(type) else [None, None]
    lists = pa.array([value, None, value, value], type)
    pairs = pa.FixedSizeListArray.from_arrays(lists, 2)
    assert hashes([lists.slice(1)]).tolist() == hashes([lists]).tolist()[1:]
    assert hashes([pairs.slice(1)]).tolist() == hashes([pairs]).tolist()[1:]


def test_types_are_looked_at_once_as_long_as_batches_have_one_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[pa.Schema] = []

    def counting(schema: pa.Schema) -> pa.Schema:
        looked_at.append(schema)
        return plain_schema(schema)

    monkeypatch.setattr(plain_types, "plain_schema", counting)
    plain, view = pa.record_batch({"v": pa.array(["a"])}), pa.record_batch({"v": pa.array(["a"], VIEW)})
    noted = view.replace_schema_metadata({"a": "b"})
    found = list(plain_batches([plain, plain, view, view, noted, plain]))
    assert looked_at == [each.schema for each in (plain, view, noted, plain)]
    assert all(each.equals(plain) for each in found)
    assert [each.schema.metadata for each in found] == [None, None, None, None, {b"a": b"b"}, None]


def test_a_batch_that_does_not_fit_is_cut_at_row_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    records = pa.record_batch({"v": pa.array([str(number) for number in range(11)], VIEW)})
    made = plain_types._plain

    def limited(array: pa.Array, type: pa.DataType, most: int = 3) -> pa.Array:
        if len(array) > most:
            raise pa.ArrowInvalid("input array too large")
        return made(array, type)

    monkeypatch.setattr(plain_types, "_plain", limited)
    found = list(plain_batches([records]))
    assert [each.num_rows for each in found] == [2, 3, 3, 3]
    assert pa.Table.from_batches(found).column("v").to_pylist() == [str(number) for number in range(11)]
    monkeypatch.setattr(plain_types, "_plain", lambda array, type: limited(array, type, 0))
    with pytest.raises(DataError, match="a row does not fit"):
        list(plain_batches([records]))


def test_what_cannot_be_undone_is_refused_when_the_flow_is_built() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array(["a"], VIEW)], ["v"])
    with pytest.raises(
        FlowError, match=r"memory-1: column 'u' is sparse_union<v: string_view=0>.*\n.*leave the column"
    ):
        ps.Flow("refused").from_tables(pa.table({"u": union}))


def test_an_operator_that_gives_views_is_refused_by_name() -> None:
    @dataclass(frozen=True)
    class Viewing:
        kind: str = "viewing"

        def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
            return pa.schema([("v", VIEW)])

        def build(self, context: object, inputs: list[pa.Schema], restored: pa.Table | None) -> object: ...

        def describe(self) -> str: ...

    flow = ps.Flow("refused")
    with pytest.raises(FlowError, match="viewing-1: viewing: column 'v' of its output is string_view"):
        flow.apply(Viewing(), [flow.from_tables(pa.table({"v": ["a"]}))])


def result(flow: ps.Flow) -> pa.Table:
    return ps.run_local(flow).wait(30).result("out")


def test_parquet_files_with_views_are_filtered_and_mixed_with_plain_ones(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2, 3], "s": pa.array(["a", "b", None], VIEW)})
    pq.write_table(table, tmp_path / "1.parquet")
    pq.write_table(table.cast(pa.schema([("n", pa.int64()), ("s", PLAIN)])), tmp_path / "2.parquet")
    for filter, rows in ((None, 6), (ps.field("n") > 1, 4), (ps.field("s") == "b", 2)):
        flow = ps.Flow("files")
        flow.read_parquet(tmp_path, filter=filter).collect("out")
        found = result(flow)
        assert found.num_rows == rows
        assert found.schema.field("s").type == PLAIN


def test_functions_and_expressions_may_give_views_and_indexes_hold_them(tmp_path: Path) -> None:
    views = pa.table({"k": pa.array(["a", "b"], VIEW), "x": pa.array(["one" * 9, None], VIEW)})
    pq.write_table(views, tmp_path / "index.parquet")
    for index in (ps.index.memory(views, "k"), ps.index.parquet(str(tmp_path / "index.parquet"), "k")):
        flow = ps.Flow("doors")
        rows = flow.from_tables(pa.table({"n": pa.array(["b", "a"], VIEW)}))
        rows = rows.map_batches(lambda batch: {"n": batch.column(0).cast(VIEW)}, pa.schema([("n", VIEW)]))
        rows = rows.project(k="n", v=pc.field("n").cast(VIEW))
        rows.lookup_join(index, ["k"]).collect("out")
        found = result(flow)
        assert found.to_pylist() == [{"k": "b", "v": "b", "x": None}, {"k": "a", "v": "a", "x": "one" * 9}]
        assert set(found.schema.types) == {PLAIN}


def test_dictionaries_with_more_values_than_their_codes_could_tell() -> None:
    tables = [pa.table({"g": [0] * 100, "v": pa.array([f"{part}.{n}" for n in range(100)])}) for part in range(3)]
    coded = [
        each.set_column(1, "v", each.column("v").dictionary_encode().cast(pa.dictionary(pa.int8(), PLAIN)))
        for each in tables
    ]
    flow = ps.Flow("codes")
    flow.from_tables(coded).sort("g").collect("out")
    assert result(flow).column("v").cast(PLAIN).to_pylist() == pa.concat_tables(tables).column("v").to_pylist()
