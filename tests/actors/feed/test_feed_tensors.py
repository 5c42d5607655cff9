"""Columns of tensors, as Arrow and Ray write them, as arrays and for torch."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from penstock.actors.feed.collating import SlicePlace
from penstock.actors.feed.torch_batches import TorchBatches, ragged_forms
from penstock.engine.arrow.arrays import Arrays, to_numpy
from penstock.engine.arrow.plain_types import plain_type
from penstock.engine.core.errors import ConfigurationError, DataError

NAME, TEXT = "ARROW:extension:name", "ARROW:extension:metadata"
ROWS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((1, 3), np.float32), np.ones((4, 3), np.float32)]


def said(name: str, text: Any, storage: pa.Array) -> pa.RecordBatch:
    """A column of a type that this process need not know."""
    field = pa.field("x", storage.type, metadata={NAME: name, TEXT: json.dumps(text)})
    return pa.RecordBatch.from_arrays([storage], schema=pa.schema([field]))


def read(records: pa.RecordBatch) -> pa.RecordBatch:
    """As another process would read it, which knows some such types."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema) as writer:
        writer.write_batch(records)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def variable(rows: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Lists and shapes, as they lie in memory."""
    data = pa.array([None if each is None else each.ravel() for each in rows], kind or pa.list_(pa.float32()))
    rank = max((each.ndim for each in rows if each is not None), default=2)
    shapes = pa.array([[0] * rank if each is None else each.shape for each in rows], pa.list_(pa.int32(), rank))
    return pa.StructArray.from_arrays([data, shapes], ["data", "shape"])


def arrow(rows: list[Any], **text: Any) -> pa.RecordBatch:
    return said("arrow.variable_shape_tensor", text, variable(rows))


def tensors(records: pa.RecordBatch, ragged: Any = None, dtypes: Any = None, nulls: Any = None) -> dict[str, Any]:
    arrays = Arrays(records.schema, nulls, forms=ragged_forms(ragged, records.schema))
    made: dict[str, Any] = TorchBatches(arrays.names, dtypes).make(arrays.of(records), SlicePlace(0, 0, 1))
    return made


@pytest.mark.parametrize("known", [False, True])
def test_tensors_of_several_shapes_are_an_array_of_arrays(known: bool) -> None:
    for rows in (ROWS, ROWS[:1], [ROWS[0]] * 2):
        records = read(arrow(rows)) if known else arrow(rows)
        assert isinstance(records.schema.types[0], pa.BaseExtensionType) == known
        found = to_numpy(records)["x"]
        assert found.dtype == object
        assert all(np.array_equal(one, each) for one, each in zip(found, rows, strict=True))
    cut = to_numpy((read(arrow(ROWS)) if known else arrow(ROWS)).slice(1, 2))["x"]
    assert [each.shape for each in cut] == [(1, 3), (4, 3)]
    assert to_numpy(records.slice(0, 0))["x"].shape == (0,)


@pytest.mark.parametrize("known", [False, True])
def test_tensors_come_with_their_dimensions_in_the_order_that_is_said(known: bool) -> None:
    records = arrow(ROWS, permutation=[1, 0])
    found = to_numpy(read(records) if known else records)["x"]
    assert all(np.array_equal(one, each.T) for one, each in zip(found, ROWS, strict=True))
    as_nested = tensors(records, "nested")["x"]
    assert [each.tolist() for each in as_nested.unbind()] == [each.T.tolist() for each in ROWS]
    with pytest.raises(DataError, match="no jagged tensor"):
        tensors(records, "jagged")


def test_type_that_pyarrow_cannot_pickle_goes_to_other_processes() -> None:
    kind = read(arrow(ROWS, permutation=[1, 0])).schema.types[0]
    assert plain_type(kind) is kind
    assert pickle.loads(pickle.dumps(kind)) == kind
    assert "permutation=[1,0]" in str(pickle.loads(pickle.dumps(kind)))


def test_damaged_tensors_are_refused_by_name() -> None:
    data, shapes = pa.array([[1.0, 2.0]], pa.list_(pa.float32())), pa.array([[3]], pa.list_(pa.int64()))
    wrong = pa.StructArray.from_arrays([data, shapes], ["data", "shape"])
    with pytest.raises(DataError, match="column 'x' has a tensor whose shape is not that of its values"):
        to_numpy(said("ray.data.arrow_variable_shaped_tensor", 1, wrong))
    ranks = pa.StructArray.from_arrays([pa.array([[1.0], [1.0]]), pa.array([[1], [1, 1]])], ["data", "shape"])
    with pytest.raises(DataError, match="column 'x' has tensors of different numbers of dimensions"):
        to_numpy(said("ray.data.arrow_variable_shaped_tensor", 1, ranks))
    with pytest.raises(DataError, match="column 'x' has tensors without values or shape"):
        to_numpy(said("arrow.variable_shape_tensor", {}, variable([None, ROWS[0]])))
    absent = pa.array([None, {"data": [1.0], "shape": [1, 1]}], variable(ROWS).type)
    with pytest.raises(DataError, match="column 'x' has 1 nulls in place of tensors"):
        to_numpy(said("arrow.variable_shape_tensor", {}, absent))


def test_tensors_of_ray_are_read_with_ray_and_without(tmp_path: Path) -> None:
    """In a process of its own: what is imported here stays."""
    script = """
import sys, pyarrow as pa, numpy as np
from penstock.engine.arrow.arrays import to_numpy
def records(): return pa.ipc.open_stream(sys.argv[1]).read_next_batch()
def check(known):
    found = records()
    assert isinstance(found.schema.field("fixed").type, pa.BaseExtensionType) == known
    for cut in (found, found.slice(1), found.slice(3)):
        made, first = to_numpy(cut), 3 - len(cut)
        assert np.array_equal(made["fixed"], np.arange(18).reshape(3, 2, 3)[first:]), made
        assert [each.tolist() for each in made["several"]] == [[[n] * 2] * n for n in (1, 2, 3)][first:], made
check(False)
assert "ray" not in sys.modules
import ray.data
check(True)
"""
    write = """
import sys, pyarrow as pa, numpy as np
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray
several = ArrowVariableShapedTensorArray.from_numpy([np.full((n, 2), n) for n in (1, 2, 3)])
fixed = ArrowTensorArray.from_numpy(np.arange(18).reshape(3, 2, 3))
records = pa.record_batch({"fixed": fixed, "several": several})
with pa.ipc.new_stream(sys.argv[1], records.schema) as writer:
    writer.write_batch(records)
"""
    for each in (write, script):
        command = [sys.executable, "-c", each, str(tmp_path / "tensors.arrow")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr


def lists(rows: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(rows, pa.list_(pa.int32()))})


def test_lists_become_jagged_tensors_whether_they_differ_or_not() -> None:
    for rows in ([[1, 2], [], [3]], [[1, 2], [3, 4]], [[]]):
        for form in ("jagged", "nested", "list"):
            found = tensors(lists(rows), {"x": form})["x"]
            each = found if form == "list" else found.unbind()
            assert [one.tolist() for one in each] == rows
            assert {one.dtype for one in each} == {torch.int32}
            assert form == "list" or (found.is_nested, found.layout == torch.jagged) == (True, form == "jagged")
    cut = tensors(lists([[1, 2], [], [3]]).slice(1), "jagged")["x"]
    assert (cut.values().tolist(), cut.offsets().tolist()) == ([3], [0, 0, 1])


def test_slice_without_rows_is_a_jagged_tensor_of_the_shape_before() -> None:
    arrays = Arrays(arrow(ROWS).schema, forms={"x": "jagged"})
    torches = TorchBatches(arrays.names)
    full, empty = (
        torches.make(arrays.of(each), SlicePlace(0, 0, 1))["x"] for each in (arrow(ROWS), arrow(ROWS).slice(0, 0))
    )
    assert (full.size(0), full.size(2)) == (3, 3)
    assert (empty.size(0), empty.size(2)) == (0, 3)
    assert empty.layout == full.layout
    for form, length in (("nested", 0), ("list", 0)):
        found = tensors(arrow(ROWS).slice(0, 0), form)["x"]
        assert (len(found) if form == "list" else found.size(0)) == length


def test_images_of_several_sizes_are_nested_tensors_or_lists() -> None:
    images = [np.full((3, n, n + 1), n, np.float32) for n in (1, 2)]
    records = arrow(images)
    for form in ("nested", "list"):
        found = tensors(records, form, torch.float16)["x"]
        each = found if form == "list" else found.unbind()
        assert [tuple(one.shape) for one in each] == [(3, 1, 2), (3, 2, 3)]
        assert {one.dtype for one in each} == {torch.float16}
    with pytest.raises(DataError, match=r"column 'x' has tensors that differ in more[\s\S]*nested"):
        tensors(records, "jagged")
    with pytest.raises(DataError, match=r"column 'x' cannot become a tensor: its tensors have different"):
        tensors(records)


def test_masks_have_the_form_of_their_column() -> None:
    records = pa.record_batch({"x": pa.array([[1, None], [3]], pa.list_(pa.int32()))})
    found = tensors(records, "jagged", nulls="mask")
    assert found["x"].values().tolist() == [1, 0, 3]
    assert found["x_mask"].values().tolist() == [False, True, False]
    tensor = read(said("arrow.variable_shape_tensor", {}, variable(ROWS)))
    assert [each.any().item() for each in tensors(tensor, "list", nulls="mask")["x_mask"]] == [False] * 3
    holed = pa.record_batch({"x": pa.array([[1], None, [3, 4]], pa.list_(pa.int32()))})
    with pytest.raises(DataError, match="nulls in place of lists beside lists of different lengths"):
        tensors(holed, "jagged", nulls=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tensors_of_one_shape_come_whole_in_half_precision(dtype: torch.dtype) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    records = pa.record_batch({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(values)})
    found = tensors(records.slice(1), dtypes=dtype)["x"]
    assert (found.dtype, tuple(found.shape)) == (dtype, (3, 2, 3))
    assert found.to(torch.float32).tolist() == values[1:].tolist()
    jagged = tensors(lists([[1], [2, 3]]), "jagged", dtype)["x"]
    assert (jagged.dtype, jagged.values().tolist()) == (dtype, [1, 2, 3])


def test_tensors_of_one_shape_are_read_without_a_copy() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    ray = pa.LargeListArray.from_arrays(pa.array(range(0, 25, 6), pa.int64()), values.ravel())
    for records in (
        pa.record_batch({"x": column}),
        said("ray.data.arrow_tensor_v2", [2, 3], ray),
    ):
        assert np.shares_memory(to_numpy(records)["x"], values)


@pytest.mark.parametrize(
    ("ragged", "told"),
    [
        ("rows", "ragged='rows'"),
        ({"y": "list"}, "no column 'y'"),
        ({"n": "list"}, "all rows of column 'n' have one shape"),
        ({"one": "jagged"}, "all rows of column 'one' have one shape"),
    ],
)
def test_forms_that_cannot_be_are_refused(ragged: Any, told: str) -> None:
    schema = pa.schema([("n", pa.int8()), ("one", pa.list_(pa.int8(), 2)), ("x", pa.list_(pa.int8()))])
    with pytest.raises(ConfigurationError, match=told):
        ragged_forms(ragged, schema)
    assert ragged_forms("list", schema) == {"x": "list"}
