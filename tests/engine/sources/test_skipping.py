"""Rows left out by what files tell of them: what is left, and where readers stand, is as if all had been decoded."""

import datetime
import random
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.engine.core.elements import Batch
from penstock.engine.core.errors import DataError
from penstock.engine.expressions.expressions import as_expression
from penstock.engine.kernels.key_filter import KeyFilter
from penstock.engine.kernels.page_library import page_library
from penstock.engine.operators.rowwise.filter import Filter
from penstock.engine.plan.rounds import lanes_of
from penstock.engine.sources.parquet import ParquetSource
from penstock.engine.sources.parquet_columns import OpenGroups
from penstock.engine.sources.parquet_index import index_places
from penstock.engine.sources.picking import Keys, Pick
from penstock.engine.sources.reader import SplitReader
from penstock.engine.sources.skipping import DICTIONARIES, PAGES

pytestmark = pytest.mark.skipif(page_library() is None, reason="pyarrow reads whole row groups")

START = datetime.datetime(2020, 1, 1)  # noqa: DTZ001 the type has no zone
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("u", pa.uint32()),
        ("m", pa.decimal128(15, 2)),
        ("a", pa.date32()),
        ("t", pa.timestamp("us")),
        ("f", pa.float64()),
        ("s", pa.string()),
    ]
)
CONDITIONS = [
    "n < {0}",
    "n between {0} and {1} and s like '%1%'",
    "u > {0} or n < {0}",
    "m between {0}.50 and {1}.505 and m < 100",
    "a >= date '2020-01-31' and a < date '2020-02-05'",
    "t < timestamp '2020-01-03 07:00:00'",
    "f > {1}.5",
    "not (f <= {0}.25)",
    "f <> {0}",
    "s >= 'w{1}'",
    "s like 'w{0}%' or s = 'wü'",
    "n in ({0}, {1}) and f is not null",
    "n is null",
    "100 / n > {0} and n > {1}",
]


def table(chance: random.Random, rows: int) -> pa.Table:
    order = np.arange(rows)
    match chance.randrange(3):
        case 0:
            order = np.random.default_rng(chance.randrange(99)).permutation(rows)
        case 1:
            order = (order // 50) * 37 % rows
    nulls = chance.choice([0.0, 0.05])

    def column(made):
        return [None if chance.random() < nulls or (nulls and 200 < each < 300) else made(int(each)) for each in order]

    values = [
        column(lambda each: each // 4 + 1),
        column(lambda each: 2**32 - rows + each),
        column(lambda each: Decimal(each).scaleb(-2)),
        column(lambda each: (START + datetime.timedelta(days=each // 10)).date()),
        column(lambda each: START + datetime.timedelta(minutes=each * 10)),
        column(lambda each: chance.choice([float("nan"), -0.0]) if each % 97 == 0 else each / 8 - 5),
        column(lambda each: "wü" if each % 91 == 0 else f"w{each}" * (1 + 9 * (each % 89 == 0))),
    ]
    return pa.table(values, schema=SCHEMA)


def write(rows: pa.Table, path, chance: random.Random) -> None:
    size = chance.choice([60, 150, 1000])
    if chance.random() < 0.3:
        duckdb.from_arrow(rows).write_parquet(str(path), row_group_size=size)
        return
    pq.write_table(
        rows,
        path,
        row_group_size=size,
        use_dictionary=chance.random() < 0.5,
        data_page_size=chance.choice([200, 2**20]),
        write_page_index=chance.random() < 0.5,
        store_decimal_as_integer=chance.random() < 0.5,
        write_statistics=chance.random() < 0.9,
    )


class Opened:
    """A split that can only be opened."""

    def __init__(self, split) -> None:
        self.id, self.rows, self.open = split.id, split.rows, split.open


def reader(source, wrap, quota=None, restored=None) -> SplitReader:
    splits = [wrap(split) for split in source.splits()]
    return SplitReader("s", source.schema, splits, lanes_of(0, 1, 2), 2, quota=quota, restored=restored)


def given(found: SplitReader, stop: int = 10**9):
    """Tag, rows and counts of the batches, up to ``stop`` elements that are none."""
    batches, others = [], 0
    while others < stop and (found.peek()) is not None:
        element = found.pop()
        if isinstance(element, Batch):
            batches.append((element.tag, element.records, getattr(element, "counts", ())))
        else:
            others += 1
    return batches


def same(one, other) -> bool:
    return [(tag, counts, records.num_rows) for tag, records, counts in one] == [
        (tag, counts, records.num_rows) for tag, records, counts in other
    ] and all(
        repr(mine.to_pydict()) == repr(theirs.to_pydict())
        for (_, mine, _), (_, theirs, _) in zip(one, other, strict=True)
    )


def picked(texts, keys=()) -> Pick:
    conditions = tuple(Filter(each).build(None, [SCHEMA], None).condition(SCHEMA) for each in texts)
    return Pick(SCHEMA, conditions, keys)


@pytest.mark.parametrize("seed", range(16))
def test_rows_and_counts_are_those_of_reading_all(tmp_path, seed):
    chance = random.Random(seed)
    for number in range(2):
        write(table(chance, chance.randrange(1, 900)), tmp_path / f"{number}.parquet", chance)
    source = ParquetSource(tmp_path, split_by=chance.choice(["file", "row group"]))
    skipped = 0
    for _ in range(6):
        texts = [each.format(*sorted(chance.sample(range(220), 2))) for each in chance.sample(CONDITIONS, 2)]
        quota = chance.choice([None, 40])
        plain, skipping = reader(source, Opened, quota), reader(source, lambda split: split, quota)
        for each in (plain, skipping):
            each.pick(pick := picked(texts))
        wanted = given(plain)
        stopped = given(skipping, stop=chance.randrange(1, 6))
        resumed = reader(source, lambda split: split, quota, skipping.snapshot())
        resumed.pick(picked(texts))
        assert same(stopped + given(resumed), wanted), texts
        skipped += pick.skipped.rows
    assert skipped or seed < 6


def sorted_file(path) -> ParquetSource:
    pq.write_table(pa.table({"n": range(1000), "s": [f"w{each:04}" for each in range(1000)]}), path, row_group_size=100)
    return ParquetSource(path)


def paged_file(path, **options) -> ParquetSource:
    """One row group, of which each column has a page for every 50 rows, and the wide one for every 10."""
    rows = {
        "n": range(1000),
        "s": [f"w{each:04}" for each in range(1000)],
        "even": [2 * (each % 40) for each in range(1000)],
    }
    wide = [f"{each:04}" * 20 for each in range(1000)]
    given = {
        "data_page_size": 100,
        "write_batch_size": 50,
        "use_dictionary": False,
        "write_page_index": True,
        **options,
    }
    pq.write_table(pa.table({**rows, "wide": wide}), path, **given)
    return ParquetSource(path)


def picked_conditions(source, *texts):
    return tuple(Filter(each).build(None, [source.schema], None).condition(source.schema) for each in texts)


def skipped_by(source, texts=(), keys=()):
    found = reader(source, lambda split: split)
    pick = Pick(source.schema, picked_conditions(source, *texts), keys)
    found.pick(pick)
    rows = sum(records.num_rows for _, records, _ in given(found))
    return rows, pick.skipped.groups, pick.skipped.groups_left_out, pick.skipped.rows


def test_row_groups_that_no_row_passes_are_not_decoded(tmp_path):
    source = sorted_file(tmp_path / "a.parquet")
    assert skipped_by(source, ["n between 150 and 250"]) == (101, 10, 8, 800)
    assert skipped_by(source, ["s like 'w09%'", "n < 950"]) == (50, 10, 9, 900)
    assert skipped_by(source, ["n >= 0"]) == (1000, 10, 0, 0)


@pytest.mark.parametrize("split_by", ["file", "row group"])
def test_rows_that_two_filters_leave_out_count_once(tmp_path, split_by):
    sorted_file(tmp_path / "a.parquet")
    source = ParquetSource(tmp_path / "a.parquet", ["n"], split_by=split_by)
    # the second one leaves those of the third group out that the first one lets pass
    assert skipped_by(source, ["n < 250", "n < 150"]) == (150, 10, 8, 750)
    assert skipped_by(source, ["n >= 150", "n < 250"]) == (100, 10, 8, 800)


def test_filter_that_may_fail_leaves_nothing_out(tmp_path):
    source = sorted_file(tmp_path / "a.parquet")
    assert skipped_by(source, ["1000 / (n + 1) > 400 and n < 100"]) == (2, 10, 0, 0)
    assert skipped_by(source, ["1000 / (n + 1) > 0", "n < 100"]) == (100, 10, 0, 0)


def test_keys_of_a_join_leave_row_groups_out(tmp_path):
    source = sorted_file(tmp_path / "a.parquet")
    known = KeyFilter()
    known.publish(0, [pa.array([310, 320, 450], pa.int64())])
    assert skipped_by(source, (), (Keys(known, ("n",)),)) == (3, 10, 0, 800)


@pytest.mark.parametrize("wrap", [Opened, lambda split: split])
def test_what_filters_and_joins_were_asked_and_let_through_is_counted(tmp_path, wrap):
    source = sorted_file(tmp_path / "a.parquet")
    few, more, none = KeyFilter(), KeyFilter(), KeyFilter()
    few.publish(0, [pa.array([310, 320, 460], pa.int64())])
    more.publish(0, [pa.array(range(300, 450), pa.int64())])
    keys = tuple(Keys(each, ("n",)) for each in (few, none, more))
    pick = Pick(source.schema, picked_conditions(source, "n < 600"), keys)
    found = reader(source, wrap)
    found.pick(pick)
    assert sum(records.num_rows for _, records, _ in given(found)) == 2
    counted = [(each.rows, each.passed) for each in (pick.filtered, pick.met[1])]
    assert counted == [(1000, 600), (0, 0)]
    assert (pick.met[0].passed, pick.met[2].passed) == (3, 2)
    # what statistics leave out for a later join is not asked of the first one
    assert pick.met[0].rows + (pick.met[2].rows - 3) == 600


def test_rows_of_a_join_that_is_not_asked_any_more_count_as_passed(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.engine.kernels.key_filter.TRIED", 0)
    source = sorted_file(tmp_path / "a.parquet")
    known = KeyFilter()
    known.publish(0, [pa.array(range(0, 990), pa.int64())])
    pick = Pick(source.schema, (), (Keys(known, ("n",)),))
    found = SplitReader("s", source.schema, source.splits(), lanes_of(0, 1, 1), 1)
    found.pick(pick)
    assert sum(records.num_rows for _, records, _ in given(found)) == 1000
    assert (pick.met[0].rows, pick.met[0].passed) == (1000, 1000)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_pages_that_no_row_passes_are_not_decoded(tmp_path, version, compression):
    source = paged_file(tmp_path / "a.parquet", data_page_version=version, compression=compression)
    assert skipped_by(source, ["n between 160 and 240"]) == (81, 1, 0, 900)
    assert skipped_by(source, ["n < 90 or s >= 'w0960'"]) == (130, 1, 0, 850)
    assert skipped_by(source, ["even < 100"]) == (1000, 1, 0, 0)
    pick = Pick(source.schema, picked_conditions(source, "n = 160"))
    found = reader(source, lambda split: split)
    found.pick(pick)
    (batch,) = given(found)
    assert batch[1].to_pylist() == [{"n": 160, "s": "w0160", "even": 0, "wide": "0160" * 20}]
    assert (pick.skipped.pages, pick.skipped.pages_left_out) == (20, 19)


def test_keys_of_a_join_leave_pages_out(tmp_path):
    source = paged_file(tmp_path / "a.parquet")
    known = KeyFilter()
    known.publish(0, [pa.array([310, 320, 360], pa.int64())])
    assert skipped_by(source, (), (Keys(known, ("n",)),)) == (3, 1, 0, 900)


def test_page_index_that_leaves_nothing_out_is_not_looked_at_for_ever(tmp_path):
    source = paged_file(tmp_path / "a.parquet", row_group_size=100)
    pick = Pick(source.schema, picked_conditions(source, "even < 100"))
    found = reader(source, lambda split: split)
    found.pick(pick)
    assert sum(records.num_rows for _, records, _ in given(found)) == 1000
    assert pick.skipped.pages < 2 * PAGES


def test_row_group_whose_dictionary_lacks_what_is_asked_for_is_not_decoded(tmp_path):
    source = paged_file(
        tmp_path / "a.parquet", use_dictionary=["even", "s"], row_group_size=100, write_page_index=False
    )
    for text, left_out, by_dictionary in [
        ("even = 33", 10, 10),
        ("even in (33, 35) and n < 500", 10, 5),
        ("even = 34", 0, 0),
        ("s = 'w0455'", 9, 0),
    ]:
        pick = Pick(source.schema, picked_conditions(source, text))
        found = reader(source, lambda split: split)
        found.pick(pick)
        wanted = duckdb.sql(f"from '{tmp_path}/a.parquet' where {text}").to_arrow_table().num_rows
        assert sum(records.num_rows for _, records, _ in given(found)) == wanted
        assert pick.skipped.groups_left_out == left_out
        assert pick.skipped.by_dictionary == by_dictionary


def test_dictionaries_that_leave_nothing_out_are_not_looked_through_for_ever(tmp_path):
    source = paged_file(tmp_path / "a.parquet", use_dictionary=["even"], row_group_size=40)
    pick = Pick(source.schema, picked_conditions(source, "even = 34"))
    found = reader(source, lambda split: split)
    found.pick(pick)
    assert sum(records.num_rows for _, records, _ in given(found)) == 25
    assert pick.skipped.dictionaries == DICTIONARIES


def test_dictionary_beside_plain_pages_tells_nothing(tmp_path):
    values = [*range(0, 2000, 2), 1001]
    options = {"use_dictionary": True, "dictionary_pagesize_limit": 1000, "data_page_size": 100, "write_batch_size": 20}
    pq.write_table(pa.table({"n": values}), tmp_path / "a.parquet", **options)
    assert skipped_by(ParquetSource(tmp_path / "a.parquet"), ["n = 1001"])[0] == 1


@pytest.mark.parametrize("seed", range(8))
def test_damaged_page_index_breaks_nothing(tmp_path, seed):
    path, chance = tmp_path / "a.parquet", random.Random(seed)
    paged_file(path)
    content, footer = path.read_bytes(), pq.read_metadata(path)
    places = [index_places(footer, 0, leaf) for leaf in range(3)]
    for _ in range(20):
        damaged = bytearray(content)
        place = chance.choice(places)
        at, size = chance.choice([(place.offsets_at, place.offsets_size), (place.ranges_at, place.ranges_size)])
        for _ in range(chance.randrange(1, 4)):
            where = at + chance.randrange(size)
            damaged[where] = chance.choice([damaged[where] ^ 1 << chance.randrange(8), chance.randrange(256)])
        path.write_bytes(damaged)
        source = ParquetSource(path)
        found = reader(source, lambda split: split)
        found.pick(Pick(source.schema, picked_conditions(source, "n between 160 and 240 or s = 'w0500'")))
        for _, records, _ in given(found):
            assert all(
                row == {"n": row["n"], "s": f"w{row['n']:04}", "even": row["n"] % 40 * 2, "wide": f"{row['n']:04}" * 20}
                and (160 <= row["n"] <= 240 or row["n"] == 500)
                for row in records.to_pylist()
            )


def test_pages_that_are_left_out_are_not_fetched(tmp_path, monkeypatch):
    wide = [f"{each:04}" * 1000 for each in range(1000)]
    options = {"data_page_size": 1000, "write_batch_size": 50, "use_dictionary": False, "write_page_index": True}
    pq.write_table(pa.table({"n": range(1000), "wide": wide}), tmp_path / "a.parquet", compression="none", **options)
    fetched = []
    fetch = OpenGroups.fetch
    monkeypatch.setattr(
        OpenGroups, "fetch", lambda self, at, memory: (fetched.append(len(memory)), fetch(self, at, memory))[1]
    )
    assert skipped_by(ParquetSource(tmp_path / "a.parquet"), ["n = 660"])[0] == 1
    assert sum(fetched) < 500_000


@pytest.mark.parametrize("seed", range(6))
def test_filter_of_the_source_gives_what_a_scan_gives(tmp_path, monkeypatch, seed):
    chance = random.Random(seed)
    write(table(chance, chance.randrange(1, 900)), tmp_path / "a.parquet", chance)
    for text in chance.sample([each for each in CONDITIONS if "/ n" not in each], 4):
        where = as_expression("filter", text.format(*sorted(chance.sample(range(220), 2))), SCHEMA)
        columns = chance.choice([None, ["s", "n"], ["f"]])
        source = ParquetSource(tmp_path, columns, where, split_by=chance.choice(["file", "row group"]))
        for split in source.splits():
            start = chance.choice([0, 7])
            decoded = pa.Table.from_batches(split.open(start), source.schema)
            with monkeypatch.context() as changed:
                changed.setattr("penstock.engine.sources.parquet.page_library", lambda: None)
                assert repr(pa.Table.from_batches(split.open(start), source.schema).to_pydict()) == repr(
                    decoded.to_pydict()
                )


def test_filter_of_the_source_that_fails_names_the_file(tmp_path):
    pq.write_table(pa.table({"n": [1, 0]}), tmp_path / "a.parquet")
    (split,) = ParquetSource(tmp_path, filter=pc.scalar(1) / pc.field("n") > 0).splits()
    with pytest.raises(DataError, match=r"a\.parquet cannot be read: divide by zero"):
        list(split.open(0))
