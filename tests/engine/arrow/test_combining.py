"""Pieces put together: whole, or an error that names the column, or cut at row positions. Chunks are shared, so little
here is large."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.arrow import combining
from penstock.engine.arrow.combining import combine, fewest, widened
from penstock.engine.core.errors import DataError
from penstock.engine.plan.rounds import RowStream

MB = 1 << 20
PIECE = pa.array([b"x" * MB] * 64)
"""36 of it are 2.25 GiB."""


def batches(column: pa.Array, times: int = 36) -> list[pa.RecordBatch]:
    return [pa.record_batch({"n": pa.array(range(len(column))), "b": column})] * times


def test_rows_of_several_batches_are_in_one() -> None:
    pieces = batches(pa.array([b"a", None]), 3)
    found = combine(pieces, pieces[0].schema)
    assert found.equals(pa.Table.from_batches(pieces).combine_chunks().to_batches()[0])
    assert combine(pieces[:1], pieces[0].schema) is pieces[0]


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(PIECE, id="binary"),
        pytest.param(PIECE.cast(pa.string()), id="string"),
        pytest.param(pa.StructArray.from_arrays([PIECE], ["b"]), id="struct"),
        pytest.param(pa.ListArray.from_arrays(pa.array([0, 64], pa.int32()), PIECE), id="list"),
    ],
)
def test_column_that_one_array_cannot_hold_is_refused_by_name(column: pa.Array) -> None:
    pieces = batches(column)
    with pytest.raises(DataError, match=r"column 'b' has more in [\d,]+ rows than one array of type") as raised:
        combine(pieces, pieces[0].schema)
    assert "large_" in raised.value.remedy


def test_dictionaries_that_one_index_cannot_name_are_refused_or_become_values() -> None:
    parts = [pa.array([str(100 * part + n) for n in range(100)]) for part in range(3)]
    coded = [pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), part) for part in parts]
    pieces = [pa.record_batch({"word": each}) for each in coded]
    with pytest.raises(DataError, match="column 'word'"):
        combine(pieces, pieces[0].schema)
    found = combine(pieces, pieces[0].schema, wide=True)
    assert found.column("word").to_pylist() == [str(n) for n in range(300)]


@pytest.mark.large
def test_column_with_wide_offsets_holds_all_rows() -> None:
    """These are 2.25 GiB."""
    pieces = batches(PIECE)
    found = combine(pieces, pieces[0].schema, wide=True)
    assert (found.num_rows, found.schema.field("b").type) == (2304, pa.large_binary())
    assert found.column("b")[2303].as_py() == b"x" * MB


def test_wide_types_hold_the_same_values() -> None:
    kind = pa.struct([("words", pa.list_(pa.string())), ("pair", pa.list_(pa.binary(), 2)), ("n", pa.int64())])
    values = [{"words": ["a", None], "pair": [b"x", b"y"], "n": 1}, None]
    wide = widened(kind)
    assert wide == pa.struct(
        [("words", pa.large_list(pa.large_string())), ("pair", pa.list_(pa.large_binary(), 2)), ("n", pa.int64())]
    )
    assert pa.array(values, kind).cast(wide).to_pylist() == values


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.list_(pa.string()), pa.bool8(), pa.dense_union([pa.field("a", "int8")])]
)
def test_no_batches_are_no_rows_of_the_same_types(kind: pa.DataType) -> None:
    schema = pa.schema([("x", kind)])
    assert combine([], schema).schema == schema


def counted(*sizes: int) -> list[pa.RecordBatch]:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        pa.record_batch({"n": pa.array(range(begin, begin + size), pa.int64())})
        for begin, size in zip(starts, sizes, strict=True)
    ]


def numbers(found: list[pa.RecordBatch]) -> list[int]:
    return pa.Table.from_batches(found).column("n").to_pylist()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no more than five rows fitted into an array."""

    def limited(given: list[pa.RecordBatch]) -> pa.RecordBatch:
        if sum(each.num_rows for each in given) > 5:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return pa.concat_batches(given)

    monkeypatch.setattr(combining, "_together", limited)


def test_what_fits_is_one_batch() -> None:
    assert [each.num_rows for each in fewest(counted(3, 0, 4))] == [7]
    assert fewest([]) == []


@pytest.mark.usefixtures("small")
def test_cuts_depend_on_the_rows_alone() -> None:
    for sizes in ((4, 4, 4, 1), (1, 5, 3, 4), (1,) * 13):
        found = fewest(counted(*sizes))
        assert numbers(found) == list(range(13))
        assert [each.num_rows for each in found] == [3, 3, 3, 4]


@pytest.mark.usefixtures("small")
def test_a_source_gives_all_rows_of_a_chunk_that_is_too_large() -> None:
    stream = RowStream(iter(counted(4, 4, 4, 1, 4)))
    assert numbers(list(stream.chunks(13))) == list(range(13))
    assert numbers(list(stream.chunks(13))) == list(range(13, 17))


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(pa.ArrowInvalid, match="Schema"):
        fewest([pa.record_batch({"n": [1]}), pa.record_batch({"n": ["a"]})])
