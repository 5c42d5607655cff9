"""Readers that are cut at any moment, also within a round: what is restored goes on as if nothing had happened."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from penstock.engine.core.channel_states import Demand
from penstock.engine.core.elements import Barrier, Batch, EndOfData, EndOfPartition, EndOfRound, PickedBatch
from penstock.engine.core.epochs import Epochs
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.core.source import Split
from penstock.engine.core.traits import SplitDraws
from penstock.engine.integrity.lane_digests import LaneDigests, sums_by_lane
from penstock.engine.integrity.row_digests import RowDigest
from penstock.engine.kernels.key_filter import KeyFilter
from penstock.engine.operators.rowwise.filter import RunningFilter
from penstock.engine.plan import rounds
from penstock.engine.plan.rounds import CURSOR_SCHEMA, lanes_of
from penstock.engine.sources import parquet_columns
from penstock.engine.sources.csv import CsvSource
from penstock.engine.sources.drawn_splits import DrawnSplits
from penstock.engine.sources.ipc import IpcSource
from penstock.engine.sources.memory import MemorySplit
from penstock.engine.sources.parquet import ParquetSource
from penstock.engine.sources.picking import Keys, Pick
from penstock.engine.sources.reader import SplitReader
from support.other_threads import OtherThreads

SCHEMA = pa.schema([("n", pa.int64())])
Make = Callable[[pa.Table | None], SplitReader]


def tables(chance: random.Random, most: int = 9) -> list[pa.Table]:
    sizes = [chance.randrange(most) for _ in range(chance.randrange(1, 9))]
    return [pa.table({"n": pa.array(range(100 * at, 100 * at + size), pa.int64())}) for at, size in enumerate(sizes)]


class Unknown:
    """A split of which nobody knows the number of rows."""

    rows = None

    def __init__(self, split: Split) -> None:
        self.id, self._split = split.id, split

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        return self._split.open(start)


def in_memory(chance: random.Random, folder: Path) -> list[Split]:
    found: list[Split] = [MemorySplit(str(at), table) for at, table in enumerate(tables(chance))]
    return [Unknown(each) if chance.random() < 0.3 else each for each in found]


def drawn(chance: random.Random, folder: Path) -> list[Split]:
    splits = in_memory(chance, folder) if chance.random() < 0.3 else None
    splits = splits or [MemorySplit(str(at), table) for at, table in enumerate(tables(chance))]
    asked = SplitDraws(chance.randrange(9), 0, chance.randrange(1, 4), 100)
    return list(DrawnSplits("source", splits, asked, 4, chance.randrange(1, 9)).segments())


def parquet(chance: random.Random, folder: Path) -> list[Split]:
    for at, table in enumerate(tables(chance, 30)):
        pq.write_table(table, folder / f"{at}.parquet", row_group_size=chance.choice([4, 100]))
    return list(ParquetSource(folder, split_by=chance.choice(["file", "row group"])).splits())


def ipc(chance: random.Random, folder: Path) -> list[Split]:
    for at, table in enumerate(tables(chance)):
        with pa.ipc.new_file(folder / f"{at}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return list(IpcSource(folder).splits())


def csv(chance: random.Random, folder: Path) -> list[Split]:
    for at, table in enumerate(tables(chance)):
        pa.csv.write_csv(table, folder / f"{at}.csv")
    return list(CsvSource(folder, types={"n": pa.int64()}).splits())


KINDS = {each.__name__: each for each in (in_memory, drawn, parquet, ipc, csv)}


def made(chance: random.Random, splits: list[Split]) -> Make:
    """Makes readers of these splits."""
    lanes = chance.randrange(1, 5)
    epochs = Epochs(2, 25) if chance.random() < 0.3 else None
    options = {
        "quota": chance.choice([None, 1, 2, 5, 7]),
        "rate": chance.choice([0.0, 0.0, 3.0]),
        "epochs": epochs,
        "at_once": chance.choice([1, 2, 3]),
    }
    is_background, is_audited = chance.random() < 0.5, chance.random() < 0.3
    picks = not is_audited and chance.random() < 0.5

    def make(restored: pa.Table | None) -> SplitReader:
        digests = LaneDigests(RowDigest(SCHEMA), restored) if is_audited else None
        threads = OtherThreads(random.Random(1)) if is_background else None
        found = SplitReader(
            *("source", SCHEMA, splits, range(lanes), lanes),
            **options,
            restored=restored,
            handed_on=digests,
            background=threads,
        )
        found.threads = threads
        if picks:
            found.pick(
                Pick(SCHEMA, (RunningFilter(pc.bit_wise_and(pc.field("n"), 3) != 1, "", SCHEMA).condition(SCHEMA),))
            )
        return found

    return make


def looked_at(reader: SplitReader) -> object:
    """What comes next; None if nothing ever does."""
    while (element := reader.peek()) is None:
        if reader.now < reader.due:
            reader.now = reader.due
        elif reader.threads is None or not reader.threads.run():
            return None
    return element


def next_of(reader: SplitReader) -> object:
    if looked_at(reader) is None:
        return None
    element = reader.pop()
    if isinstance(element, EndOfData):
        reader.acknowledge_drained()
        reader.close()
    if not isinstance(element, Batch):
        return element
    if reader.handed_on is not None:
        reader.handed_on.take(element.tag.lane, element.records)
    return element.tag, element.records.to_pydict(), element.counts if isinstance(element, PickedBatch) else ()


def all_of(reader: SplitReader) -> list[object]:
    return list(iter(lambda: next_of(reader), None))


def restored(make: Make, reader: SplitReader) -> SplitReader:
    found = make(reader.capture())
    assert found.rows == found.restored_rows
    if found.data_ended:
        found.close()  # the task says it again
    return found


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch, now_and_then_on_disk: None) -> None:
    monkeypatch.setattr(rounds, "CHUNK_ROWS", 3)
    monkeypatch.setattr(parquet_columns, "CHUNK_ROWS", 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_cut_behind_any_element_changes_nothing(small_chunks, tmp_path, kind: str, seed: int) -> None:
    chance = random.Random(f"{kind} {seed}")
    make = made(chance, KINDS[kind](chance, tmp_path))
    uncut = make(None)
    wanted = all_of(uncut)
    assert [type(each) for each in wanted[-2:]] == [EndOfData, EndOfPartition]
    places = range(len(wanted) + 1)
    for place in places if kind == "in_memory" else chance.sample(places, min(6, len(places))):
        reader = make(None)
        begun = [next_of(reader) for _ in range(place)]
        if chance.random() < 0.5:
            looked_at(reader)
        behind = restored(make, reader)
        assert begun + all_of(behind) == wanted
        assert begun + all_of(reader) == wanted, "a cut changes nothing in who is cut"
        assert behind.capture().equals(uncut.capture())


@pytest.mark.parametrize("seed", range(30))
def test_reader_that_is_cut_again_and_again_says_what_it_would_have_said(small_chunks, tmp_path, seed: int) -> None:
    chance = random.Random(seed)
    make = made(chance, in_memory(chance, tmp_path))
    wanted, found, reader = all_of(make(None)), [], make(None)
    while True:
        if chance.random() < 0.5:
            if chance.random() < 0.5:
                looked_at(reader)
            reader = restored(make, reader)
        element = next_of(reader)
        if element is None:
            break
        found.append(element)
    assert found == wanted
    if reader.handed_on is not None:
        rows = [table for each in found if isinstance(each, tuple) for table in [pa.table(each[1], schema=SCHEMA)]]
        digest, lanes = RowDigest(SCHEMA), sums_by_lane(reader.capture())
        told = sum(each for _, each in lanes.values()) % 2**64, sum(count for count, _ in lanes.values())
        batches = list(chain.from_iterable(table.to_batches() for table in rows))
        assert told == (sum(map(digest.of, batches)) % 2**64, sum(batch.num_rows for batch in batches))


@pytest.mark.parametrize("seed", range(40))
def test_cancelled_input_stays_cancelled(small_chunks, tmp_path, seed: int) -> None:
    chance = random.Random(seed)
    make = made(chance, in_memory(chance, tmp_path))
    count = len(all_of(make(None)))
    at, cuts = chance.randrange(count), {chance.randrange(count) for _ in range(3)}
    looks = chance.random() < 0.5

    def run(places: set[int]) -> list[object]:
        found, reader = [], make(None)
        for place in range(10**6):
            if place == at:
                if looks:
                    looked_at(reader)
                reader.cancel_input(True)
            if place in places:
                reader = restored(make, reader)
            element = next_of(reader)
            if element is None:
                return found
            found.append(element)

    assert run(cuts) == run(set())


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_a_join_that_tells_its_keys_late_come_once(small_chunks, tmp_path, seed: int) -> None:
    chance = random.Random(seed)
    splits, quota = parquet(chance, tmp_path), chance.choice([None, 5])

    def keys() -> KeyFilter:
        return KeyFilter()

    def make(state: pa.Table | None, filter: KeyFilter) -> SplitReader:
        reader = SplitReader("source", SCHEMA, splits, range(3), 3, quota=quota, restored=state)
        reader.threads = None
        reader.pick(Pick(SCHEMA, (), (Keys(filter, ("n",)),)))
        return reader

    count = len(all_of(make(None, keys())))
    at, cut = chance.randrange(count), chance.randrange(count)

    def run(cut: int | None) -> list[object]:
        filter = keys()
        found, reader = [], make(None, filter)
        for place in range(count):
            if place == at:
                filter.publish(0, [pa.array(range(0, 10_000, 7), pa.int64())])
            if place == cut:
                reader = restored(lambda state: make(state, filter), reader)
            found.append(next_of(reader))
        return found

    def joined(found: list[object]) -> list[object]:
        return [(e[0], [n for n in e[1]["n"] if n % 7 == 0]) if isinstance(e, tuple) else e for e in found]

    assert joined(run(cut)) == joined(run(None))


# ------------------------------------------------------------------ several readers' lanes


@pytest.mark.parametrize("seed", range(30))
def test_lanes_of_several_cuts_are_each_read_once_in_their_rounds(small_chunks, tmp_path, seed: int) -> None:
    """Another parallelism: readers that were in different rounds become one, or others."""
    chance = random.Random(seed)
    splits, quota, lanes = in_memory(chance, tmp_path), chance.choice([None, 1, 3]), 6

    def make(subtask: int, parallelism: int, state: pa.Table | None = None) -> SplitReader:
        mine = lanes_of(subtask, parallelism, lanes)
        reader = SplitReader("source", SCHEMA, splits, mine, lanes, quota=quota, restored=state)
        reader.threads = None
        return reader

    def rows(elements: list[object]) -> list[tuple]:
        return [each for each in elements if isinstance(each, tuple)]

    wanted = sorted(rows(all_of(make(0, 1))), key=lambda each: each[0])
    old, found, states = chance.choice([1, 2, 3, 6]), [], []
    for subtask in range(old):
        reader = make(subtask, old)
        for _ in range(chance.randrange(12)):
            found.append(next_of(reader))
        states.append(reader.capture())
    state = pa.concat_tables(states, promote_options="default")
    new = chance.choice([1, 2, 3, 6])
    for subtask in range(new):
        reader = make(subtask, new, state)
        said = all_of(reader)
        tags = [each[0] for each in rows(said)]
        assert tags == sorted(tags)
        ends = [each.round for each in said if isinstance(each, EndOfRound)]
        assert ends == list(range(ends[0], ends[0] + len(ends))) if ends else True
        assert all(tag.round >= ends[0] for tag in tags) if ends else not tags
        found += said
    assert sorted(rows(found), key=lambda each: each[0]) == wanted


def test_reader_begins_with_the_smallest_round_of_those_that_have_not_ended() -> None:
    splits = [MemorySplit(str(at), pa.table({"n": pa.array(range(size))})) for at, size in enumerate([1, 9, 9])]

    def cut(lane: int, elements: int) -> pa.Table:
        reader = SplitReader("source", SCHEMA, splits, range(lane, lane + 1), 3, quota=2)
        for _ in range(elements):
            reader.pop()
        return reader.capture()

    state = pa.concat_tables([cut(0, 3), cut(1, 6), cut(2, 3)])
    reader = SplitReader("source", SCHEMA, splits, range(3), 3, quota=2, restored=state)
    found = [reader.pop() for _ in range(5)]
    said = [(each.tag.round, each.tag.lane) if isinstance(each, Batch) else each.round for each in found]
    assert said == [1, (2, 2), 2, (3, 1), (3, 2)]


# ------------------------------------------------------------------ what is stored


def reader_of(*sizes: int, **options) -> SplitReader:
    splits = [MemorySplit(str(at), pa.table({"n": pa.array(range(size))})) for at, size in enumerate(sizes)]
    reader = SplitReader("source", SCHEMA, splits, range(2), 2, **options)
    reader.threads = None
    return reader


def test_what_stands_between_rounds_is_stored_as_before() -> None:
    reader = reader_of(3, 3, 3)
    assert reader.snapshot().schema == CURSOR_SCHEMA
    assert reader.capture().schema.names[: len(CURSOR_SCHEMA)] == CURSOR_SCHEMA.names


def test_element_that_was_looked_at_is_not_counted() -> None:
    reader = reader_of(3, 3)
    reader.peek()
    assert reader.rows == 3
    assert pc.sum(reader.capture()["rows"]).as_py() == 0


def test_end_that_was_said_is_not_said_again_and_one_that_was_looked_at_is() -> None:
    reader = reader_of(1, quota=5)
    assert [type(reader.pop()) for _ in range(2)] == [Batch, EndOfRound]
    assert isinstance(reader.peek(), EndOfData)
    assert not reader_of(1, restored=reader.capture()).data_ended
    reader.pop()
    again = reader_of(1, restored=reader.capture())
    assert again.data_ended
    assert again.peek() is None
    again.close()
    assert all_of(again) == [EndOfPartition()]
    assert reader_of(1, restored=again.capture()).closed


def test_rows_that_were_added_behind_an_end_that_was_said_are_read_all_the_same() -> None:
    """Whoever gets them can say what is wrong; nobody could say that they are missing."""
    reader = reader_of(1, 1)
    all_of(reader)
    again = reader_of(1, 1, 1, restored=reader.capture())
    assert not again.data_ended
    assert isinstance(next_of(again), tuple)


def test_barriers_that_wait_for_their_turn_are_left_out_of_a_cut() -> None:
    reader = reader_of(3, 3, 3)
    reader.pop()
    reader.propose(CheckpointId(1, 1))
    reader.trigger(Barrier(CheckpointId(1, 1), BarrierKind.CHECKPOINT, 0.0), 0)
    again = reader_of(3, 3, 3, restored=reader.capture())
    assert not again.held
    assert not any(isinstance(each, Barrier) for each in all_of(again))


def test_window_of_which_no_rows_are_needed_is_known_behind_a_cut() -> None:
    reader = SplitReader("source", SCHEMA, [], range(1), 1, more=True)
    reader.add_splits(1, {0: MemorySplit("0", pa.table({"n": pa.array([1, 2])}))})
    reader.cancel_input(False)
    again = SplitReader("source", SCHEMA, [], range(1), 1, more=True, restored=reader.capture())
    assert again.capture()["demand"].to_pylist() == [Demand.NEXT_WINDOW.value]


def test_reader_of_which_everything_is_processed_says_so_behind_a_cut() -> None:
    reader = reader_of(1)
    all_of(reader)
    assert reader_of(1, restored=reader.capture()).propose(CheckpointId(1, 1)) == reader.propose(CheckpointId(1, 1))
