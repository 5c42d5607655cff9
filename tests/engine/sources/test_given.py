"""What a caller may give as a split: brought into the source's form, or refused."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from penstock.engine.core.errors import FlowError, PenstockError
from penstock.engine.sources.given import split_of
from penstock.engine.sources.memory import MemorySplit

SCHEMA = pa.schema([("k", pa.int64()), ("name", pa.string())])
ROWS = pa.table([[1, 2, 3], ["a", None, "c"]], schema=SCHEMA)


def rows_of(given: object, schema: pa.Schema = SCHEMA) -> pa.Table:
    split = split_of(given, schema, "rows/0")
    return pa.Table.from_batches(split.open(0), schema=schema)


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        ROWS.to_batches()[0],
        ROWS.to_pandas(),
        ROWS.to_pandas()[["name", "k"]],
        ROWS.to_pydict(),
        {"name": ["a", None, "c"], "k": np.array([1, 2, 3], np.int32)},
        {"name": ROWS["name"], "k": ROWS["k"]},
        MemorySplit("mine", ROWS),
        pa.table([ROWS["k"], ROWS["name"].cast(pa.string_view())], names=["k", "name"]),
    ],
    ids=["table", "batch", "frame", "frame, other order", "dict", "numpy", "arrays", "split", "views"],
)
def test_every_form_of_a_table_gives_its_rows(given):
    assert rows_of(given).equals(ROWS)


@pytest.mark.parametrize("as_path", [str, lambda path: path])
@pytest.mark.parametrize(
    ("name", "write"),
    [("in.parquet", parquet.write_table), ("in.csv", csv.write_csv), ("in.arrow", feather.write_feather)],
)
def test_file_is_read_by_its_suffix(tmp_path, name, write, as_path):
    write(ROWS.filter(pa.array([True, False, True])), tmp_path / name)
    assert rows_of(as_path(tmp_path / name)).equals(ROWS.filter(pa.array([True, False, True])))


def test_types_of_a_csv_file_are_the_sources(tmp_path):
    schema = pa.schema([("k", pa.string()), ("name", pa.float32())])
    (tmp_path / "in.csv").write_text("name,k,other\n1,007,x\n")
    assert rows_of(tmp_path / "in.csv", schema).to_pylist() == [{"k": "007", "name": 1.0}]


@pytest.mark.parametrize(
    "given",
    [
        ROWS.select(["k"]),
        ROWS.select(["name", "k"]),
        ROWS.append_column("more", ROWS["k"]),
        ROWS.set_column(0, "k", ROWS["k"].cast(pa.int32())),
        ROWS.to_pandas()[["k"]],
        pd.DataFrame({"k": ["x"], "name": ["a"]}),
        {"k": [1]},
        {"k": [1], "name": ["a", "b"]},
        {"k": ["x"], "name": ["a"]},
        {"k": [2**70], "name": ["a"]},
        {"k": 1, "name": "a"},
        {1: [1], "name": ["a"]},
        {"k": [1], "name": ["a"], "more": [1]},
        MemorySplit("mine", ROWS.select(["k"])),
        [1, 2],
        None,
        7,
        MemorySplit,
        "no-such-file.parquet",
        "in.unknown",
        "half a character \ud800.parquet",
        "",
    ],
    ids=ascii,
)
def test_what_does_not_fit_is_refused(given):
    with pytest.raises(PenstockError):
        split_of(given, SCHEMA, "rows/0")


def test_csv_file_without_a_column_is_refused_when_it_is_given(tmp_path):
    (tmp_path / "in.csv").write_text("k\n1\n")
    with pytest.raises(PenstockError, match="name"):
        split_of(tmp_path / "in.csv", SCHEMA, "rows/0")


def test_null_in_a_column_that_has_none_is_refused():
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    for given in (pa.table({"k": [1, None]}), {"k": [1, None]}, pd.DataFrame({"k": pd.array([1, None], "Int64")})):
        with pytest.raises(FlowError, match="fit"):
            split_of(given, schema, "rows/0")
    assert rows_of({"k": [1]}, schema).schema.equals(schema)
