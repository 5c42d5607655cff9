"""Rows picked where they are read: the same elements, states and counts as when the filters meet every row."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow, run_local
from penstock.engine.core.elements import Batch, EndOfData, PickedBatch
from penstock.engine.core.errors import DataError
from penstock.engine.kernels.key_filter import KeyFilter
from penstock.engine.operators.rowwise.filter import Filter, NarrowedFilter
from penstock.engine.plan.rounds import lanes_of
from penstock.engine.sources.parquet import ParquetSource
from penstock.engine.sources.picking import Keys, Pick
from penstock.engine.sources.reader import SplitReader

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int32())])


class Known(KeyFilter):
    """A filter of keys that is known from some chunk on."""

    def __init__(self, keys, ready: int) -> None:
        super().__init__()
        self._keys, self._left = pa.array(keys, pa.int32()), ready

    def picked(self, window, columns):
        self._left -= 1
        if not self._left:
            self.publish(0, [self._keys])
        return super().picked(window, columns)


def table(chance: random.Random, rows: int) -> pa.Table:
    def maybe(value):
        return None if chance.random() < 0.1 else value

    return pa.table(
        {
            "a": [maybe(chance.randrange(100)) for _ in range(rows)],
            "b": [maybe(chance.choice(["", "x", "long text"]) * chance.randrange(3)) for _ in range(rows)],
            "c": [maybe(chance.randrange(10)) for _ in range(rows)],
        },
        SCHEMA,
    )


def parquet(folder, chance: random.Random, files: int = 3) -> str:
    for number in range(files):
        rows = table(chance, chance.randrange(500))
        options = {"use_dictionary": chance.random() < 0.5, "compression": chance.choice(["none", "snappy", "zstd"])}
        pq.write_table(rows, folder / f"{number}.parquet", row_group_size=chance.randrange(50, 200), **options)
    return str(folder)


class Opened:
    """A split that can only be opened."""

    def __init__(self, split) -> None:
        self.id, self.rows, self.open = split.id, split.rows, split.open


def reader(source, quota, restored=None, wrap=Opened) -> SplitReader:
    splits = [wrap(split) for split in source.splits()]
    return SplitReader("s", source.schema, splits, lanes_of(0, 1, 2), 2, quota=quota, restored=restored)


def as_it_is(split):
    return split


def running(config):
    return config.build(None, [SCHEMA], None)


class Chain:
    """The filters, one behind the other."""

    def __init__(self, filters) -> None:
        self.filters, self.counts, self.given = [running(each) for each in filters], [0] * (len(filters) + 1), []

    def emit(self, batch: Batch) -> None:
        self.counts[self._at] += batch.rows
        if self._at == len(self.filters):
            self.given.append(batch)
            return
        at, self._at = self._at, self._at + 1
        self.filters[at].process(0, batch, self)
        self._at = at

    def push(self, batch: Batch) -> None:
        self._at = 0
        if batch.matters:
            self.emit(batch)


def elements(found: SplitReader, filters, stop=None):
    """What leaves the chain, what is no batch, the rows at each place of the chain; at most ``stop`` elements."""
    chain, others = Chain(filters), []
    while not (stop is not None and len(others) >= stop) and found.peek() is not None:
        element = found.pop()
        if isinstance(element, Batch):
            chain.push(element)
        else:
            others.append(element)
    given = [(each.tag, each.records.to_pydict()) for each in chain.given if each.records.num_rows]
    return given, others, chain.counts


FILTERS = [
    [Filter("a < 30")],
    [Filter("a < 30 and b = 'x'"), Filter("c > 3")],
    [NarrowedFilter("b <> 'x' or a is null", keeps=frozenset({"c"}))],
    [Filter("c > 2"), NarrowedFilter("a > 1000", keeps=frozenset({"b", "c"}))],
    [Filter("c >= 0"), Filter("a / c > 3")],
]


@pytest.mark.parametrize("wrap", [Opened, as_it_is])
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_picked_rows_are_those_that_the_filters_give(tmp_path, seed, wrap, compact):
    chance = random.Random(seed)
    source = ParquetSource(parquet(tmp_path, chance), split_by=chance.choice(["file", "row group"]))
    filters, quota = FILTERS[seed % 5], chance.choice([None, 7, 60])
    wanted, others, counts = elements(reader(source, quota), filters)
    picking = reader(source, quota, wrap=wrap)
    picking.pick(Pick(SCHEMA, tuple(running(each).condition(SCHEMA) for each in filters)), compact)
    assert elements(picking, filters) == (wanted, others, counts)
    assert picking.rows == counts[0]


@pytest.mark.parametrize("seed", range(6))
def test_cursors_count_rows_that_were_read(tmp_path, seed):
    chance = random.Random(seed)
    source, filters = ParquetSource(parquet(tmp_path, chance)), FILTERS[1]
    whole, _, _ = elements(reader(source, 20), filters)
    picking = reader(source, 20, wrap=as_it_is)
    picking.pick(Pick(SCHEMA, tuple(running(each).condition(SCHEMA) for each in filters)))
    first, others, _ = elements(picking, filters, stop=chance.randrange(1, 8))
    rest = reader(source, 20, restored=picking.snapshot())  # as a job of before would go on
    second, others, _ = elements(rest, filters)
    assert first + second == whole
    assert isinstance(others[-1], EndOfData)


@pytest.mark.parametrize("ready", [1, 3, 100])
def test_keys_drop_rows_at_whatever_time_they_are_known(tmp_path, ready):
    source = ParquetSource(parquet(tmp_path, random.Random(5)))
    wanted = [
        (tag, row)
        for tag, rows in elements(reader(source, None), FILTERS[0])[0]
        for row in zip(rows["a"], rows["c"], strict=True)
        if row[1] in (2, 4)
    ]
    picking = reader(source, None, wrap=as_it_is)
    condition = running(FILTERS[0][0]).condition(SCHEMA)
    picking.pick(
        Pick(
            SCHEMA, (condition,), tuple(Keys(known, ("c",)) for known in (Known([1, 2, 4], ready), Known([2, 4, 5], 1)))
        )
    )
    found, _, counts = elements(picking, FILTERS[0])
    rows = [(tag, row) for tag, rows in found for row in zip(rows["a"], rows["c"], strict=True)]
    assert [each for each in rows if each[1][1] in (2, 4)] == wanted
    assert picking.rows == counts[0] == elements(reader(source, None), FILTERS[0])[2][0]


def test_condition_that_fails_is_the_filters_error(tmp_path):
    pq.write_table(pa.table({"a": ["1", "two"]}), tmp_path / "a.parquet")
    flow = Flow("failing", lanes=1)
    flow.read_parquet(str(tmp_path)).filter("cast(a as bigint) > 2", name="number").collect("out")
    with pytest.raises(DataError, match=r"predicate = cast\(a as bigint\) > 2.*a.parquet#0") as raised:
        run_local(flow).result("out")
    assert raised.value.operator == "number"


def test_batch_without_a_row_left_matters_as_long_as_filters_count():
    records = pa.record_batch({"a": pa.array([], pa.int64())})
    assert PickedBatch(records, None, counts=(5, 0)).matters
    assert not PickedBatch(records, None, counts=(5, 0)).counted().matters
    assert not PickedBatch(records, None, counts=(5,)).matters
