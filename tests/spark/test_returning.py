"""Arrow's types as Spark's; without a session."""

from __future__ import annotations

from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from penstock.actors.spark.results import files_to_spark
from penstock.actors.spark.types import spark_schema
from penstock.engine.core.errors import ConfigurationError

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (pa.uint8(), "smallint"),
        (pa.uint16(), "int"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.duration("us"), "interval day to second"),
        (pa.timestamp("ms", "Europe/Berlin"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.null(), "void"),
        (pa.date64(), "date"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary(3), "binary"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (pa.decimal256(38, 2), "decimal(38,2)"),
        (pa.list_(pa.float32(), 2), "array<float>"),
        (pa.large_list_view(pa.bool_()), "array<boolean>"),
        (pa.map_(pa.string(), pa.struct([("x", pa.int8())])), "map<string,struct<x:tinyint>>"),
    ],
)
def test_type_goes_back_as_the_one_that_holds_its_values(kind: pa.DataType, told: str) -> None:
    schema = pa.schema([("x", kind)])
    assert spark_schema(schema, stored=True)["x"].dataType.simpleString() == told
    assert spark_schema(schema, stored=False) == spark_schema(schema, stored=True)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (pa.duration("s"), "Spark takes intervals in files for microseconds"),
        (pa.timestamp("ns"), "Spark reads no nanoseconds from files"),
        (pa.float16(), "Spark reads no half-precision numbers from files"),
        (pa.struct([("x", pa.null())]), "Spark reads no void inside other types from files"),
    ],
)
def test_type_that_spark_would_misread_in_a_file_is_refused_by_name(kind: pa.DataType, why: str) -> None:
    schema = pa.schema([("odd", kind)])
    with pytest.raises(ConfigurationError, match="column 'odd' of type") as raised:
        spark_schema(schema, stored=True)
    assert why in raised.value.message
    assert "cast it before the sink" in raised.value.remedy
    assert spark_schema(schema, stored=False)


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.decimal256(50, 2), pa.month_day_nano_interval()])
def test_type_that_spark_does_not_have_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match="column 'odd' of type"):
        spark_schema(pa.schema([("odd", pa.list_(kind))]), stored=False)


def test_files_that_spark_has_no_file_system_for_are_refused_with_the_setting() -> None:
    session = MagicMock()
    reader = session.read.schema.return_value.options.return_value
    reader.parquet.side_effect = RuntimeError('UnsupportedFileSystemException: No FileSystem for scheme "s3"')
    with pytest.raises(ConfigurationError, match='No FileSystem for scheme "s3"') as raised:
        files_to_spark(session, ["s3://bucket/out/part.parquet"], pa.schema([("n", pa.int64())]))
    assert "spark.hadoop.fs.s3.impl" in raised.value.remedy
