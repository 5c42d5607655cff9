"""Small files are read several in one go: the same elements as one by one, errors and cursors at their turn."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.engine.core.elements import Batch
from penstock.engine.core.errors import DataError
from penstock.engine.kernels.key_filter import KeyFilter
from penstock.engine.kernels.page_library import page_library
from penstock.engine.plan.rounds import lanes_of
from penstock.engine.sources.parquet import ParquetSource
from penstock.engine.sources.picking import Keys, Pick
from penstock.engine.sources.read_ahead import SmallSplits
from penstock.engine.sources.reader import SplitReader
from support.other_threads import OtherThreads

pytestmark = pytest.mark.skipif(page_library() is None, reason="splits are opened by pyarrow, each by itself")


def source_of(folder, chance: random.Random, files: int) -> ParquetSource:
    for number in range(files):
        rows = chance.choice([0, 1, 5, 10, 9000 if chance.random() < 0.1 else 7])
        values = pa.array(range(1000 * number, 1000 * number + rows), pa.int64())
        pq.write_table(pa.table({"n": values}), folder / f"{number:03}.parquet")
    return ParquetSource(folder)


def reader(source, background, quota=None, restored=None) -> SplitReader:
    return SplitReader(
        *("s", source.schema, source.splits(), lanes_of(0, 1, 4), 4),
        quota=quota,
        restored=restored,
        background=background,
    )


def elements(found: SplitReader, elsewhere: OtherThreads | None, stop: int = 10**9, given: list | None = None) -> list:
    given = [] if given is None else given
    rounds = 0
    while rounds < stop:
        element = found.peek()
        if element is None:
            if elsewhere is None or not elsewhere.run():
                return given
            continue
        found.pop()
        rounds += not isinstance(element, Batch)
        given.append((element.tag, element.records.to_pydict()) if isinstance(element, Batch) else element)
    return given


@pytest.mark.parametrize("seed", range(12))
def test_elements_are_those_of_reading_one_by_one(tmp_path, seed, now_and_then_on_disk):
    chance = random.Random(seed)
    source, quota = source_of(tmp_path, chance, chance.randrange(1, 80)), chance.choice([None, 6, 8])
    wanted, elsewhere = elements(reader(source, None, quota), None), OtherThreads()
    found = reader(source, elsewhere, quota)
    begun = elements(found, elsewhere, stop=chance.randrange(1, 10))
    if not found.data_ended:
        found = reader(source, elsewhere, quota, restored=found.snapshot())
    assert begun + elements(found, elsewhere) == wanted


def test_thirty_two_are_read_in_one_go(on_disk, tmp_path):
    for number in range(100):
        pq.write_table(pa.table({"n": [number]}), tmp_path / f"{number:03}.parquet")
    elsewhere = OtherThreads()
    elements(reader(ParquetSource(tmp_path), elsewhere), elsewhere)
    assert elsewhere.goes == 4


def test_split_that_fails_fails_at_its_turn(on_disk, tmp_path):
    for number in range(20):
        pq.write_table(pa.table({"n": [number]}), tmp_path / f"{number:03}.parquet")
    source = ParquetSource(tmp_path)
    elsewhere = OtherThreads()
    found = reader(source, elsewhere)
    (tmp_path / "013.parquet").write_bytes(b"PAR1" + b"x" * 400 + b"PAR1")
    given = []
    with pytest.raises(DataError, match=r"013\.parquet"):
        elements(found, elsewhere, given=given)
    assert [each[1]["n"] for each in given if isinstance(each, tuple)] == [[number] for number in range(13)]
    assert found.current_split == "013.parquet#0"


def test_rows_that_are_not_needed_are_passed_over(on_disk, tmp_path):
    source, elsewhere = source_of(tmp_path, random.Random(1), 40), OtherThreads()
    found = reader(source, elsewhere)
    while found.peek() is None:
        elsewhere.run()
    found.cancel_input(for_good=True)
    assert not [each for each in elements(found, elsewhere) if isinstance(each, tuple)]


def test_joins_keep_splits_apart_as_windows_may(on_disk, tmp_path):
    for number in range(20):
        pq.write_table(pa.table({"n": [number]}), tmp_path / f"{number:03}.parquet")
    source, elsewhere = ParquetSource(tmp_path), OtherThreads()
    found = reader(source, elsewhere)
    found.pick(Pick(source.schema, (), (Keys(KeyFilter(), ("n",)),)))
    elements(found, elsewhere)
    assert elsewhere.goes >= 20


def test_wide_rows_of_a_small_split_are_not_read_all_at_once(on_disk, tmp_path):
    table = pa.table({"n": range(300), "text": [chr(97 + n % 26) * 128 * 1024 for n in range(300)]})
    for number in range(2):
        pq.write_table(table, tmp_path / f"{number}.parquet", use_dictionary=False, compression="zstd")
    source, elsewhere = ParquetSource(tmp_path), OtherThreads()
    splits = [split.column_stream(0, None, compact=False).chunks(None) for split in source.splits()]
    several = SmallSplits(splits, elsewhere)
    elsewhere.run()
    assert len(several.answers(0)) == 1
    assert several.answers(1) is None
    elements_of = [reader(ParquetSource(tmp_path), background, 1000) for background in (None, elsewhere)]
    wanted, found = elements(elements_of[0], None), elements(elements_of[1], elsewhere)
    assert found == wanted
