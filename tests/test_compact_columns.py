"""Whole jobs over a source that gives compact columns: nobody who is told the declared types meets anything else."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from decimal import Decimal

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import DataError, UserCodeError
from penstock.engine.integrity.row_digests import RowDigest
from penstock.engine.sources.memory import MemorySource, MemorySplit
from support.compact_columns import CompactSource, compacted
from support.own_operators import Above

SCHEMA = pa.schema([("text", pa.string()), ("price", pa.decimal128(15, 2)), ("count", pa.int64())])


def tables() -> list[pa.Table]:
    chooser = random.Random(5)

    def table() -> pa.Table:
        texts = [chooser.choice(["", "a", "bb", None]) for _ in range(500)]
        prices = [chooser.choice([None, Decimal(chooser.randint(-(10**9), 10**9)).scaleb(-2)]) for _ in range(500)]
        return pa.table([texts, prices, [chooser.randint(0, 9) for _ in range(500)]], schema=SCHEMA)

    return [table() for _ in range(4)]


def watched(records: pa.RecordBatch) -> pa.RecordBatch:
    assert records.schema == SCHEMA
    return records


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("keyed", [False, True])
def test_functions_exchanges_and_sinks_get_plain_columns(parallelism, keyed):
    def rows_of(source: MemorySource) -> pa.Table:
        flow = ps.Flow("compact")
        stream = flow.from_source(source).filter("count <> 1 and price > 0")
        stream.collect("filtered")
        stream = stream.map_batches(watched, SCHEMA)
        if keyed:
            stream = stream.partition_by("text").aggregate("text", total=("price", "sum"), most=("count", "max"))
        stream.collect("out")
        result = ps.run_local(flow, parallelism=parallelism)
        assert result.result("filtered").schema == SCHEMA
        return result.result("out")

    assert rows_of(CompactSource(tables())).equals(rows_of(MemorySource(tables())))


class CodesSplit(MemorySplit):
    """A split of a user whose text is a dictionary, with a value twice and with null."""

    def open(self, start: int):
        for records in super().open(start):
            codes = pa.array([row % 3 for row in range(records.num_rows)], pa.int32())
            yield records.set_column(0, "text", pa.DictionaryArray.from_arrays(codes, pa.array(["a", "a", None])))


class CodesSource(MemorySource):
    def splits(self):
        return [CodesSplit(split.id, split.table) for split in super().splits()]


@pytest.mark.parametrize("condition", ["text is null", "count > 3"])
def test_splits_of_users_give_the_types_that_their_source_declares(condition):
    flow = ps.Flow("codes")
    flow.from_source(CodesSource(tables())).filter(condition).collect("out")
    with pytest.raises(DataError, match="dictionary"):
        ps.run_local(flow).result("out")


class AboveInAnyForm(Above):
    """A user's operator that takes compact columns, and passes them on."""

    @property
    def traits(self) -> ps.Traits:
        return replace(super().traits, takes_compact=True)


def test_an_operator_of_ones_own_may_take_compact_columns_and_pass_them_on():
    def rows_of(operator: Above) -> pa.Table:
        flow = ps.Flow("own")
        flow.from_source(CompactSource(tables())).apply(operator).map_batches(watched, SCHEMA).collect("out")
        return ps.run_local(flow).result("out")

    assert rows_of(AboveInAnyForm("count", 3)).equals(rows_of(Above("count", 3)))


def test_a_digest_of_rows_is_that_of_their_values():
    (records,) = tables()[0].to_batches()
    assert RowDigest(SCHEMA).of(compacted(records)) == RowDigest(SCHEMA).of(records)


class GivingCodes(ps.Stateless):
    def process(self, port, batch, out):
        words = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "a", None]))
        out.emit(ps.Batch(pa.RecordBatch.from_arrays([words], ["text"]), batch.tag))


@dataclass(frozen=True)
class GiveCodes:
    """An operator of a user whose text is a dictionary, with a value twice and with null."""

    kind: str = "codes"
    traits = ps.Traits()

    def output_schema(self, inputs):
        return pa.schema([("text", pa.string())])

    def build(self, context, inputs, restored):
        return GivingCodes()

    def describe(self):
        return ""


def test_operators_of_users_give_the_types_that_they_declare():
    flow = ps.Flow("compact")
    flow.from_tables([pa.table({"n": [1, 2, 3]})]).apply(GiveCodes()).filter("text is null").collect("out")
    with pytest.raises(UserCodeError, match="dictionary"):
        ps.run_local(flow).result("out")
