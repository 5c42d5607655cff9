"""Columns as NumPy arrays: the type is that of the column, in every slice."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.arrow.arrays import Arrays, to_numpy
from penstock.engine.core.errors import ConfigurationError, DataError

KINDS: list[tuple[pa.DataType, Any]] = [
    (pa.int8(), 1),
    (pa.int64(), 2**53 + 1),
    (pa.uint64(), 2**64 - 1),
    (pa.bool_(), True),
    (pa.float16(), 1.5),
    (pa.float32(), 1.5),
    (pa.float64(), 1.5),
    (pa.string(), "a"),
    (pa.large_string(), "a"),
    (pa.string_view(), "a"),
    (pa.binary(), b"a"),
    (pa.binary(2), b"ab"),
    (pa.binary_view(), b"a"),
    (pa.date32(), datetime.date(2026, 1, 2)),
    (pa.date64(), datetime.date(2026, 1, 2)),
    (pa.time32("s"), datetime.time(1)),
    (pa.time64("us"), datetime.time(1)),
    (pa.timestamp("us"), datetime.datetime.fromisoformat("2026-01-02")),
    (pa.timestamp("ns", "UTC"), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)),
    (pa.duration("s"), datetime.timedelta(1)),
    (pa.decimal128(5, 2), decimal.Decimal("1.10")),
    (pa.dictionary(pa.int8(), pa.string()), "a"),
    (pa.dictionary(pa.int8(), pa.int32()), 7),
    (pa.struct([("a", pa.int64())]), {"a": 1}),
    (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    (pa.uuid(), b"a" * 16),
    (pa.bool8(), 1),
    (pa.null(), None),
    (pa.list_(pa.int32()), [1, 2]),
    (pa.list_(pa.float32(), 2), [1.0, 2.0]),
    (pa.large_list(pa.string()), ["a", "b"]),
    (pa.list_view(pa.int64()), [1, 2]),
    (pa.large_list_view(pa.bool_()), [True, False]),
    (pa.list_(pa.list_(pa.float32())), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    (pa.list_(pa.list_(pa.float32(), 1), 2), [[1.0], [2.0]]),
    (pa.list_(pa.list_(pa.list_(pa.int8(), 2)), 1), [[[1, 2], [3, 4], [5, 6]]]),
    (pa.list_(pa.dictionary(pa.int8(), pa.int16())), [3, 3]),
]
CHOICES = [None, "mask", "nan", 0, -1.5, True]


def column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def one(kind: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({"x": column(kind, values)})


def shape_and_type(arrays: Arrays, records: pa.RecordBatch) -> dict[str, Any]:
    return {name: (found.dtype, found.shape[1:]) for name, found in arrays.of(records).items()}


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
@pytest.mark.parametrize(("kind", "value"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_every_slice_has_the_same_types_and_dimensions_or_is_refused_by_name(
    kind: pa.DataType, value: Any, choice: Any
) -> None:
    whole, empty, holed = (one(kind, values) for values in ([value] * 3, [], [value, None, value]))
    found: list[dict[str, Any]] = []
    shapes: dict[str, tuple[int, ...]] = {}
    told: list[str] = []
    for records in (whole, empty, holed):
        try:
            arrays = Arrays(whole.schema, choice, shapes)
            found.append(shape_and_type(arrays, records))
        except (ConfigurationError, DataError) as error:
            told.append(error.message)
    assert all(each == found[0] for each in found)
    assert all("'x'" in each for each in told)
    assert choice is not None or len(found) >= 2, "what has rows may have none"


def test_values_are_those_of_the_columns() -> None:
    for kind, value in KINDS:
        found = to_numpy(one(kind, [value] * 2))["x"]
        assert len(found) == 2
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            assert found.tolist() == [value] * 2
            assert found.dtype == kind.to_pandas_dtype()
        elif "list" in str(kind):
            assert found.tolist() == [value] * 2


def test_whole_numbers_with_a_null_are_refused_by_name_unless_the_user_chooses() -> None:
    records = pa.record_batch({"id": pa.array([2**53 + 1, None]), "x": [None, 0.5], "ok": [True, None]})
    with pytest.raises(DataError, match=r"column 'id' is int64 and has 1 nulls") as raised:
        to_numpy(records)
    assert "nulls=" in raised.value.remedy
    found = Arrays(records.schema, {"id": -1, "ok": False}).of(records)
    assert found["id"].tolist() == [2**53 + 1, -1]
    assert found["ok"].tolist() == [True, False]
    assert np.isnan(found["x"][0])
    masked = Arrays(records.schema, "mask").of(records)
    assert [masked[name].tolist() for name in ("id", "x", "ok")] == [[2**53 + 1, 0], [0.0, 0.5], [True, False]]
    assert [masked[f"{name}_mask"].tolist() for name in ("id", "x", "ok")] == [
        [False, True],
        [True, False],
        [False, True],
    ]
    with pytest.raises(DataError, match="column 'id' is int64 and cannot become numbers with NaN unchanged"):
        Arrays(records.schema, "nan").of(records)
    small = pa.record_batch({"id": pa.array([1, None]), "x": [None, 0.5], "ok": [True, None]})
    floats = Arrays(small.schema, "nan").of(small)
    assert {found.dtype for found in floats.values()} == {np.dtype("f8")}


def test_nulls_of_lists_and_in_them() -> None:
    records = one(pa.list_(pa.int32()), [[1, None], None, [3, 4]])
    with pytest.raises(DataError, match="column 'x' has 1 nulls in place of lists"):
        to_numpy(records)
    assert Arrays(records.schema, -1).of(records)["x"].tolist() == [[1, -1], [-1, -1], [3, 4]]
    masked = Arrays(records.schema, "mask").of(records)
    assert masked["x"].tolist() == [[1, 0], [0, 0], [3, 4]]
    assert masked["x_mask"].tolist() == [[False, True], [True, True], [False, False]]
    inner = one(pa.list_(pa.int32()), [[1, None]])
    with pytest.raises(DataError, match="column 'x' is int32 and has 1 nulls"):
        to_numpy(inner)
    ragged = one(pa.list_(pa.int32()), [[1], None, [3, 4]])
    with pytest.raises(DataError, match="nulls in place of lists beside lists of different lengths"):
        Arrays(ragged.schema, 0).of(ragged)


def test_lists_of_different_lengths_are_arrays_whose_values_have_the_type_of_the_column() -> None:
    records = one(pa.list_(pa.int64()), [[2**53 + 1], [1, None], []])
    found = Arrays(records.schema, 0).of(records)["x"]
    assert found.dtype == object
    assert [each.tolist() for each in found] == [[2**53 + 1], [1, 0], []]
    assert {each.dtype for each in found} == {np.dtype("i8")}
    with pytest.raises(DataError, match="column 'x' is int64 and has 1 nulls"):
        to_numpy(records)


def test_lists_of_lists_differ_in_how_many_there_are_or_are_refused() -> None:
    kind = pa.list_(pa.list_(pa.int64()))
    found = to_numpy(one(kind, [[[1, 2]], [[3, 4], [5, 6]]]))["x"]
    assert [each.tolist() for each in found] == [[[1, 2]], [[3, 4], [5, 6]]]
    for rows in ([[[1], [2, 3]]], [[[1]], [[2], [3, 4]]]):
        with pytest.raises(DataError, match=r"column 'x' has .* no matrix"):
            to_numpy(one(kind, rows))


def test_tensors_have_their_own_shape_in_logical_order() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    for each in (values, values.transpose(0, 2, 1)):
        tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(each)
        records = pa.record_batch({"x": tensors}).slice(1)
        assert np.array_equal(to_numpy(records)["x"], each[1:])
        assert to_numpy(records.slice(0, 0))["x"].shape == (0, *each.shape[1:])


def test_slice_without_rows_has_the_lengths_of_the_slice_before() -> None:
    kind = pa.list_(pa.list_(pa.float32()))
    full, empty = one(kind, [[[1.0, 2.0, 3.0]] * 2]), one(kind, [])
    arrays = Arrays(full.schema)
    assert arrays.of(empty)["x"].shape == (0, 0, 0)
    arrays.of(full)
    assert arrays.of(empty)["x"].shape == (0, 2, 3)


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"y": 0}, "no column 'y'"),
        ({"n": 0.5}, "0.5 cannot take the place of a null in column 'n', which is int8"),
        ({"n": True}, "column 'n'"),
        ({"n": "mask", "word": "nan"}, "column 'word' is string and cannot be \"nan\""),
        ({"word": 0}, "column 'word'"),
        (300, "300 cannot take the place of a null in column 'n'"),
        (float("nan"), "column 'n'"),
        ("zero", "nulls='zero'"),
        ([0], "nulls="),
        ("mask", "the mask of column 'word' would be column word_mask"),
    ],
)
def test_choices_that_cannot_be_are_refused_before_anything_is_read(choice: Any, told: str) -> None:
    schema = pa.schema([("n", pa.int8()), ("word", pa.string()), ("word_mask", pa.bool_())])
    with pytest.raises(ConfigurationError, match=told):
        Arrays(schema, choice)


def test_column_that_no_array_can_hold_is_refused_by_name() -> None:
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])
    with pytest.raises(DataError, match="column 'x' of type dense_union"):
        to_numpy(pa.record_batch({"x": union}))
