"""Arrow as Spark's executors give it to the writer of a hand-off; without Spark."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from zipimport import zipimporter

import pyarrow as pa
import pytest

from penstock.actors.spark.writing import make_writer
from penstock.engine.arrow.nullability import nullable

TABLE = pa.table({"n": pa.array([1, 2]), "words": pa.array([["a", "b"], []], pa.list_(pa.string()))})


def written(folder: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    (answer,) = make_writer(str(folder), bytes(schema.serialize()), 100, (0, "1"))(iter(table.to_batches()))
    with pa.memory_map(str(folder / answer.to_pylist()[0]["file"])) as file:
        return pa.ipc.open_file(file).read_all()


def without_offsets() -> pa.Table:
    """One row with an empty list of strings, whose string array lacks its only offset, as Arrow for Java writes it."""
    strings = pa.Array.from_buffers(pa.string(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    lists = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), strings)
    inside = pa.StructArray.from_arrays([lists, pa.array([7])], ["words", "n"])
    return pa.table({"n": [1], "words": lists, "inside": inside})


def test_rows_come_in_the_declared_schema_which_promises_no_values(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False), TABLE.schema.field("words")])
    table = written(tmp_path, TABLE.cast(strict), nullable(strict))
    assert table.equals(TABLE)
    assert table.schema.field("n").nullable


def test_partition_without_rows_is_an_empty_table_of_the_declared_schema(tmp_path: Path) -> None:
    assert written(tmp_path, TABLE.slice(0, 0), TABLE.schema).equals(TABLE.schema.empty_table())


def test_arrays_that_lack_their_offset_are_made_anew_at_any_depth(tmp_path: Path) -> None:
    raw = without_offsets()
    assert raw["words"].chunk(0).values.buffers()[1].size == 0, "the rows do not show what this test is about"
    table = written(tmp_path, raw, raw.schema)
    assert table.to_pylist() == [{"n": 1, "words": [], "inside": {"words": [], "n": 7}}]
    for lists in (table["words"].chunk(0), table["inside"].chunk(0).field("words")):
        assert lists.values.buffers()[1].size >= 4


def test_worker_of_spark_forgets_finders_in_zip_files_which_each_task_would_have_it_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    task = SimpleNamespace(partitionId=lambda: 3, taskAttemptId=lambda: 8)
    monkeypatch.setattr(pyspark, "TaskContext", SimpleNamespace(get=lambda: task))
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("packed_module.py", "FOUND = True")
    monkeypatch.syspath_prepend(str(packed))
    monkeypatch.setitem(sys.path_importer_cache, str(packed), zipimporter(str(packed)))
    (answer,) = make_writer(str(tmp_path), bytes(TABLE.schema.serialize()), 100)(iter(TABLE.to_batches()))
    assert answer.to_pylist()[0]["file"] == "000003-8.arrow"
    assert str(packed) not in sys.path_importer_cache
    import packed_module  # type: ignore[import-not-found]

    assert packed_module.FOUND


WITHOUT_PENSTOCK = """
import pickle, sys
from types import SimpleNamespace
sys.modules["penstock"] = None
import pyarrow as pa, pyspark
task = SimpleNamespace(partitionId=lambda: 3, taskAttemptId=lambda: 8)
pyspark.TaskContext = SimpleNamespace(get=lambda: task)
write = pickle.loads(sys.stdin.buffer.read())
(answer,) = write(iter(pa.table({"n": range(250)}).to_batches(max_chunksize=7)))
print(answer.to_pylist()[0]["rows"])
"""


def test_executor_that_has_no_penstock_runs_what_spark_has_pickled(tmp_path: Path) -> None:
    from pyspark.serializers import CloudPickleSerializer

    writer = make_writer(str(tmp_path), bytes(pa.schema({"n": pa.int64()}).serialize()), 100)
    pickled = CloudPickleSerializer().dumps(writer)
    done = subprocess.run([sys.executable, "-c", WITHOUT_PENSTOCK], input=pickled, capture_output=True, check=False)
    assert done.stdout == b"250\n", done.stderr.decode()
    assert pa.ipc.open_file(tmp_path / "000003-8.arrow").read_all().column("n").to_pylist() == list(range(250))
