"""Lanes that are read at once: the same elements and cursors as one by one, whichever thread is faster."""

import random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.engine.core.elements import Batch
from penstock.engine.core.errors import DataError
from penstock.engine.kernels.key_filter import KeyFilter
from penstock.engine.kernels.page_library import page_library
from penstock.engine.operators.rowwise.filter import RunningFilter
from penstock.engine.plan.rounds import lanes_of
from penstock.engine.sources.parquet import ParquetSource
from penstock.engine.sources.picking import Keys, Pick
from penstock.engine.sources.reader import SplitReader
from support.other_threads import OtherThreads

pytestmark = pytest.mark.skipif(page_library() is None, reason="splits are opened by pyarrow, each by itself")
LANES = 4


def source_of(folder, chance: random.Random, files: int) -> ParquetSource:
    for number in range(files):
        rows = chance.choice([0, 9_000, 20_000, 70_000])
        values = pa.array(range(100_000 * number, 100_000 * number + rows), pa.int64())
        group = chance.choice([9_000, 100_000])
        pq.write_table(pa.table({"n": values, "m": pc.add(values, 1)}), folder / f"{number:03}.parquet", group)
    return ParquetSource(folder)


def reader(source, others, at_once, *, quota=None, restored=None, pick=None) -> SplitReader:
    lanes = lanes_of(0, 1, LANES), LANES
    found = SplitReader(
        *("s", source.schema, source.splits(), *lanes),
        quota=quota,
        restored=restored,
        background=others,
        at_once=at_once,
    )
    found.pick(pick)
    return found


def elements(found: SplitReader, others: OtherThreads | None, stop: int = 10**9, given: list | None = None) -> list:
    given, rounds = [] if given is None else given, 0
    while rounds < stop:
        element = found.peek()
        if element is None:
            if others is None or not others.run():
                return given
            continue
        found.pop()
        rounds += not isinstance(element, Batch)
        given.append((element.tag, element.records.to_pydict()) if isinstance(element, Batch) else element)
    return given


def picked(source, chance: random.Random) -> Pick | None:
    if chance.random() < 0.3:
        return None
    schema, joins = source.schema, ()
    condition = RunningFilter(pc.field("n") > 50_000, "", schema).condition(schema)
    if chance.random() < 0.5:
        keys = KeyFilter()
        keys.publish(0, [pa.array(range(0, 1_000_000, 7), pa.int64())])
        joins = (Keys(keys, ("n",)),)
    return Pick(schema, (condition,), joins)


@pytest.mark.parametrize("seed", range(10))
def test_elements_are_those_of_reading_one_by_one(tmp_path, seed, now_and_then_on_disk):
    chance = random.Random(seed)
    source = source_of(tmp_path, chance, chance.randrange(1, 12))
    quota, state = chance.choice([None, 30_000, 10_000]), chance.getstate()

    def pick() -> Pick | None:
        chance.setstate(state)
        return picked(source, chance)

    wanted = elements(reader(source, None, 1, quota=quota, pick=pick()), None)
    others = OtherThreads(chance)
    options = {"at_once": chance.choice([2, 3, 9]), "quota": quota, "pick": pick()}
    found = reader(source, others, **options)
    begun = elements(found, others, stop=chance.randrange(1, 6))
    if not found.data_ended:
        found = reader(source, others, restored=found.snapshot(), **options)
    assert begun + elements(found, others) == wanted


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_so_many_lanes_are_read_at_once(on_disk, tmp_path, at_once):
    for number in range(8):
        pq.write_table(pa.table({"n": range(20_000)}), tmp_path / f"{number}.parquet")
    others = OtherThreads(random.Random(1))
    elements(reader(ParquetSource(tmp_path), others, at_once), others)
    assert others.most == at_once


def test_split_that_fails_fails_at_its_turn(on_disk, tmp_path):
    for number in range(8):
        pq.write_table(pa.table({"n": [number] * 20_000}), tmp_path / f"{number}.parquet")
    source, others, given = ParquetSource(tmp_path), OtherThreads(random.Random(2)), []
    found = reader(source, others, 3)
    (tmp_path / "5.parquet").write_bytes(b"PAR1" + b"x" * 4000 + b"PAR1")
    with pytest.raises(DataError, match=r"5\.parquet"):
        elements(found, others, given=given)
    assert [each[1]["n"][0] for each in given if isinstance(each, tuple)] == list(range(5))


def test_rows_behind_a_task_barrier_wait_for_what_joins_tell_then(on_disk, tmp_path):
    """The next round may lie behind a barrier, and joins need other rows there."""
    for number in range(8):
        pq.write_table(pa.table({"n": range(20_000)}), tmp_path / f"{number}.parquet")
    source, others = ParquetSource(tmp_path), OtherThreads(random.Random(3))
    found = reader(source, others, 4, pick=Pick(source.schema, (), (Keys(KeyFilter(), ("n",)),)))
    elements(found, others, stop=1)
    assert not others.waiting


def test_rows_that_are_not_needed_are_not_waited_for(on_disk, tmp_path):
    for number in range(8):
        pq.write_table(pa.table({"n": range(20_000)}), tmp_path / f"{number}.parquet")
    others = OtherThreads(random.Random(4))
    found = reader(ParquetSource(tmp_path), others, 2)
    assert found.peek() is None
    others.run()
    found.cancel_input(True)
    left = elements(found, others)
    assert not any(isinstance(each, tuple) for each in left)
    assert found.data_ended
