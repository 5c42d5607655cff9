"""The running source: rounds, tags, cursors, proposals and barriers."""

import random

import pyarrow as pa
import pytest

from penstock.engine.core.elements import (
    FINAL_ROUND,
    Barrier,
    Batch,
    CancelBarrier,
    EndOfData,
    EndOfPartition,
    EndOfRound,
    Tag,
    ends_window,
)
from penstock.engine.core.errors import DataError, InternalError
from penstock.engine.core.identity import CLOSING_ROUND, BarrierKind, CheckpointId
from penstock.engine.core.operator import OUTPUT_BYTES
from penstock.engine.plan.rounds import CHUNK_ROWS, RowStream, lanes_of
from penstock.engine.sources.reader import SplitReader

SCHEMA = pa.schema([("x", pa.int64())])


class Rows:
    """A split of consecutive numbers, given out in batches of ``cut`` rows."""

    def __init__(self, number: int, rows: int, cut: int = 1000) -> None:
        self.id, self.rows, self._cut = f"s{number}", rows, cut
        self._first = number * 1000

    def open(self, start):
        values = range(self._first + start, self._first + self.rows)
        for at in range(0, len(values), self._cut):
            yield pa.record_batch([pa.array(values[at : at + self._cut], pa.int64())], SCHEMA)


def splits(*rows: int) -> list[Rows]:
    return [Rows(number, count) for number, count in enumerate(rows)]


def barrier(number: int = 1) -> Barrier:
    return Barrier(CheckpointId(1, number), BarrierKind.CHECKPOINT, 0.0)


def make(found, subtask=0, parallelism=1, lanes=2, **options) -> SplitReader:
    return SplitReader("source", SCHEMA, found, lanes_of(subtask, parallelism, lanes), lanes, **options)


def drain(reader) -> list:
    taken = []
    while reader.peek() is not None:
        taken.append(reader.pop())
    return taken


def shape(elements) -> list:
    return [
        (element.tag, element.records.column(0).to_pylist()) if isinstance(element, Batch) else element
        for element in elements
    ]


def test_lanes_take_turns_and_every_round_ends():
    assert shape(drain(make(splits(1, 2, 1)))) == [
        (Tag(0, 0, 0), [0]),
        (Tag(0, 1, 0), [1000, 1001]),
        EndOfRound(0),
        (Tag(1, 0, 0), [2000]),
        EndOfRound(1),
        EndOfData(),
    ]


def test_empty_splits_still_make_rounds():
    assert shape(drain(make(splits(0, 0)))) == [EndOfRound(0), EndOfData()]


def test_source_without_splits_ends_at_once():
    assert drain(make([])) == [EndOfData()]


def test_quota_cuts_a_split_into_rounds():
    elements = drain(make(splits(5), lanes=1, quota=2))
    assert [e.records.column(0).to_pylist() for e in elements if isinstance(e, Batch)] == [[0, 1], [2, 3], [4]]
    assert [e.round for e in elements if isinstance(e, EndOfRound)] == [0, 1, 2]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_tags_do_not_depend_on_parallelism(parallelism):
    found = splits(3, 1, 0, 2, 4, 5, 1)
    tagged = []
    for subtask in range(parallelism):
        tagged += [e for e in drain(make(found, subtask, parallelism, lanes=4)) if isinstance(e, Batch)]
    alone = [e for e in drain(make(found, lanes=4)) if isinstance(e, Batch)]
    assert shape(sorted(tagged, key=lambda e: e.tag)) == shape(alone)


def test_proposal_holds_the_reader_at_the_end_of_its_round():
    reader = make(splits(1, 1, 1, 1))
    reader.pop()
    assert reader.propose(CheckpointId(1, 1)) == 0
    assert [type(e) for e in drain(reader)] == [Batch, EndOfRound]
    assert reader.held


def test_barrier_stands_at_the_end_of_the_round_asked_for():
    reader = make(splits(*[1] * 8), lanes=1)
    reader.pop()
    assert reader.propose(CheckpointId(1, 1)) == 0
    reader.trigger(barrier(), at_round=2)
    elements = drain(reader)
    at = elements.index(barrier())
    assert elements[at - 1] == EndOfRound(2)
    assert isinstance(elements[at + 1], Batch)


def test_barrier_comes_before_the_first_round_if_none_has_begun():
    reader = make(splits(1))
    assert reader.propose(CheckpointId(1, 1)) == -1
    reader.trigger(barrier(), at_round=-1)
    assert reader.pop() == barrier()


def test_reader_that_has_ended_its_data_asks_for_a_barrier_behind_all_data():
    reader = make(splits(1))
    drain(reader)
    assert reader.propose(CheckpointId(1, 1)) == CLOSING_ROUND
    reader.acknowledge_drained()
    assert reader.propose(CheckpointId(1, 1)) == FINAL_ROUND
    reader.trigger(barrier(), at_round=FINAL_ROUND)
    assert drain(reader) == [barrier()]


def test_reader_with_rows_left_goes_on_to_the_end_of_its_data_if_another_has_ended():
    reader = make(splits(1))
    assert reader.propose(CheckpointId(1, 1)) == -1
    reader.trigger(barrier(), at_round=FINAL_ROUND)
    assert drain(reader)[-2:] == [EndOfData(), barrier()]


def test_checkpoint_is_given_up_if_the_rows_end_before_its_round():
    """Before the end of the data the barrier would move that end among the rounds of those that have more rows."""
    reader = make(splits(1))
    assert reader.propose(CheckpointId(1, 1)) == -1
    reader.trigger(barrier(), at_round=17)
    assert drain(reader)[-3:] == [EndOfRound(0), CancelBarrier(CheckpointId(1, 1)), EndOfData()]
    assert reader.declined == CheckpointId(1, 1)


def test_reader_of_which_nobody_needs_more_ends_where_it_stands_also_after_a_restore():
    reader = make(splits(5, 5, 5, 5), lanes=2, quota=2)
    reader.pop()
    reader.cancel_input(True)
    assert drain(reader) == [EndOfRound(0), EndOfData()]
    state = reader.snapshot()
    assert reader.rows == sum(state.column("rows").to_pylist()) == 2
    assert state.column("needless").to_pylist() == [True, True]
    assert drain(make(splits(5, 5, 5, 5), lanes=2, quota=2, restored=state)) == [EndOfData()]


def test_held_reader_does_not_end_its_data_before_the_round_is_chosen():
    reader = make(splits(1))
    reader.pop()
    assert reader.propose(CheckpointId(1, 1)) == 0
    assert drain(reader) == [EndOfRound(0)]
    reader.trigger(barrier(), at_round=0)
    assert drain(reader) == [barrier(), EndOfData()]


def test_abort_lets_a_held_reader_go_on():
    reader = make(splits(1, 1, 1), lanes=1)
    reader.pop()
    reader.propose(CheckpointId(1, 1))
    drain(reader)
    reader.abort(CheckpointId(1, 1))
    assert isinstance(drain(reader)[-1], EndOfData)


def test_snapshot_in_the_middle_of_a_round_is_an_error():
    reader = make(splits(1, 1))
    reader.pop()
    with pytest.raises(InternalError):
        reader.snapshot()


@pytest.mark.parametrize("quota", [None, 2, 3])
@pytest.mark.parametrize("stop", range(4))
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_restored_readers_go_on_exactly_where_the_cut_was(stop, quota, parallelism):
    found = splits(3, 1, 0, 2, 4, 5, 1, 7)
    whole = [e for e in drain(make(found, lanes=4, quota=quota)) if isinstance(e, Batch)]
    reader = make(found, lanes=4, quota=quota)
    reader.trigger(barrier(), at_round=stop)
    before = []
    while (element := reader.pop()) not in (barrier(), CancelBarrier(barrier().checkpoint)):
        before += [element] if isinstance(element, Batch) else []
    state = reader.snapshot()
    after = []
    for subtask in range(parallelism):
        restored = make(found, subtask, parallelism, lanes=4, quota=quota, restored=state)
        after += [e for e in drain(restored) if isinstance(e, Batch)]
    assert shape(before + sorted(after, key=lambda e: e.tag)) == shape(whole)


@pytest.mark.parametrize("parallelism", [1, 2, 8])
@pytest.mark.parametrize(("given", "seconds"), [([80], 1.0), ([40, 40], 1.0), ([10] * 8, 1.0), ([10] * 16, 2.0)])
def test_a_source_keeps_its_rate_whatever_the_number_of_splits(parallelism, given, seconds):
    readers = [make(splits(*given), subtask, parallelism, lanes=8, rate=80.0) for subtask in range(parallelism)]
    for reader in readers:
        while reader.peek() is not None:
            reader.pop()
            reader.now = reader.due
    assert max(reader.due for reader in readers) == pytest.approx(seconds)


def test_pacing_waits_until_the_rows_are_due():
    reader = make(splits(10, 10, 10), lanes=1, rate=5.0)
    reader.now = 100.0
    assert isinstance(reader.pop(), Batch)
    assert reader.peek() is None
    assert reader.due == 102.0
    reader.now = 102.0
    assert [type(e) for e in (reader.pop(), reader.pop())] == [EndOfRound, Batch]


def test_split_is_opened_once_however_many_rounds_it_takes():
    class Counted(Rows):
        opened = 0

        def open(self, start):
            Counted.opened += 1
            return super().open(start)

    drain(make([Counted(0, 50, 7)], lanes=1, quota=3))
    assert Counted.opened == 1


def test_split_that_is_shorter_than_planned_is_an_error():
    class Shrunk(Rows):
        def open(self, start):
            return Rows(0, self.rows - 1).open(start)

    reader = make([Shrunk(0, 5)], lanes=1)
    reader.pop()
    with pytest.raises(DataError, match="had 5 rows when the job was planned and gave 4"):
        reader.peek()


def test_end_of_partition_waits_until_the_task_closes():
    reader = make(splits(1))
    drain(reader)
    assert reader.peek() is None
    reader.close()
    assert drain(reader) == [EndOfPartition()]
    assert reader.closed


@pytest.mark.parametrize("cut", [1, 7, 1000, CHUNK_ROWS + 1])
def test_canonical_chunks_do_not_depend_on_how_the_source_cuts(cut):
    rows = 2 * CHUNK_ROWS + 5 if cut > 7 else 50
    chunks = list(RowStream(Rows(0, rows, cut).open(0)).chunks(None))
    sizes = [chunk.num_rows for chunk in chunks]
    assert sizes == ([CHUNK_ROWS, CHUNK_ROWS, 5] if cut > 7 else [50])
    assert [v for chunk in chunks for v in chunk.column(0).to_pylist()] == list(range(rows))


def cells(widths: list[int], cut: int) -> list[pa.RecordBatch]:
    """Texts of these widths, ``cut`` to a batch."""
    texts = pa.array(["x" * width for width in widths])
    return [pa.record_batch([texts.slice(low, cut)], names=["x"]) for low in range(0, len(widths), cut)]


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_chunks_of_wide_rows_have_bounded_bytes(cut):
    widths = [48 * 1024] * 1000
    chunks = list(RowStream(iter(cells(widths, cut))).chunks(None))
    assert max(chunk.nbytes for chunk in chunks) <= OUTPUT_BYTES
    assert [chunk.num_rows for chunk in chunks] == [341, 341, 318]
    assert [len(text) for chunk in chunks for text in chunk.column(0).to_pylist()] == widths


def test_row_that_is_wider_than_a_chunk_is_one_by_itself():
    widths = [10, OUTPUT_BYTES, 10, 10]
    chunks = list(RowStream(iter(cells(widths, 1))).chunks(None))
    assert [chunk.num_rows for chunk in chunks] == [1, 1, 2]


def test_limit_of_a_round_holds_for_wide_rows_too():
    stream = RowStream(iter(cells([48 * 1024] * 500, 100)))
    assert [sum(chunk.num_rows for chunk in stream.chunks(limit)) for limit in (300, 150, 150)] == [300, 150, 50]


def test_large_dictionary_does_not_make_chunks_small():
    large = pa.array(["x" * OUTPUT_BYTES, "y" * OUTPUT_BYTES])
    codes = pa.array([0, 1] * 1000, pa.int32())
    lists = pa.ListArray.from_arrays(pa.array(range(2001), pa.int32()), pa.DictionaryArray.from_arrays(codes, large))
    columns = [lists, pa.StructArray.from_arrays([lists], names=["l"]), lists.flatten()]
    (chunk,) = RowStream(iter([pa.record_batch(columns, names=["l", "s", "d"])])).chunks(None)
    assert chunk.num_rows == 2000


@pytest.mark.parametrize("seed", range(100))
def test_reader_knows_that_no_batch_comes_before_the_end_of_a_window(seed):
    chance = random.Random(seed)
    lanes = chance.choice([1, 3])
    reader = make(
        [], subtask=chance.randrange(lanes), parallelism=lanes, lanes=3, more=True, quota=chance.choice([None, 2])
    )
    orders = []
    for number in range(chance.randrange(1, 4)):
        rounds = chance.randrange(3)
        given = {place: Rows(place, chance.randrange(4)) for place in range(3 * rounds) if chance.random() < 0.4}
        orders.append(lambda rounds=rounds, given=given: reader.add_splits(rounds, given))
        window = Barrier(CheckpointId(1, number), BarrierKind.DRAIN, 0.0)
        orders.append(lambda window=window: reader.trigger(window, reader.last_round))
    orders.append(reader.no_more_splits)
    ended = False
    while not reader.data_ended:
        if orders and (chance.random() < 0.4 or reader.peek() is None):
            orders.pop(0)()
        ended = ended or reader.window_ends
        if reader.peek() is None:
            continue
        element = reader.pop()
        assert not (ended and isinstance(element, Batch)), "a row comes behind the end of its window"
        ended = ended and not ends_window(element)
    assert not orders


def test_reader_knows_the_end_of_a_window_before_its_empty_rounds():
    reader = make([], lanes=1, more=True)
    reader.add_splits(5, {0: Rows(0, 3)})
    reader.trigger(Barrier(CheckpointId(1, 1), BarrierKind.DRAIN, 0.0), reader.last_round)
    reader.add_splits(1, {0: Rows(1, 3)})
    assert isinstance(reader.pop(), Batch)
    assert reader.pop() == EndOfRound(0)
    assert reader.window_ends
    assert [type(each) for each in drain(reader)] == [*([EndOfRound] * 4), Barrier, Batch, EndOfRound]
    assert not reader.window_ends, "who adds splits may add more"
    reader.no_more_splits()
    assert reader.window_ends
