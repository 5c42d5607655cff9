"""Where barriers may overtake, what sources do for them, and batches in flight as tables."""

import msgspec
import pyarrow as pa
import pytest

from penstock.actors.transport.wire import control_note, element_of
from penstock.engine.core.elements import FINAL_ROUND, Barrier, Batch, EndOfData, EndOfRound, Tag
from penstock.engine.core.identity import CLOSING_ROUND, BarrierKind, CheckpointId, TaskId
from penstock.engine.exchange.channel_state import channel_batches, channel_table
from penstock.engine.exchange.channels import ChannelId, InputChannel, OutputChannel
from penstock.engine.flow.flow import Flow
from penstock.engine.plan.partitioning import wire_schema
from penstock.engine.plan.rounds import lanes_of, read_cursors
from penstock.engine.planner.overtaking import FreeEdges, Overtaking, with_alignment
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.sources.reader import SplitReader
from support.driver_rig import ATTEMPTS, batch
from support.overtaking_rig import timed, unaligned, values

TABLES = [pa.table({"k": pa.array([1, 2, 3]), "x": pa.array([1, 2, 3])})] * 4


def flow(order="arrival") -> Flow:
    return Flow("overtaking", lanes=2, order=order)


def what_may_be_passed(made: Flow) -> dict[str, Overtaking]:
    plan = plan_job(made, 2)
    free = FreeEdges(plan)
    return {each.name: free.of(each) for stage in plan.stages.values() for each in stage.pipelines}


def test_barriers_overtake_everywhere_in_a_flow_without_joins_and_unions() -> None:
    made = flow()
    made.from_tables(TABLES, name="rows").partition_by("k").filter("x > 1").gather().collect("out")
    assert what_may_be_passed(made) == {
        "rows": Overtaking("", "partition-by-1"),
        "partition-by-1": Overtaking("partition-by-1", "gather-1"),
        "gather-1": Overtaking("gather-1", None),
    }


def test_barriers_keep_their_place_before_a_union_and_overtake_behind_it() -> None:
    made = flow()
    rows = made.from_tables(TABLES, name="rows")
    rows.partition_by("k").union(rows.rebalance()).partition_by("x").collect("out")
    found = what_may_be_passed(made)
    behind = found.pop("partition-by-2")
    assert behind == Overtaking("partition-by-2", None)
    assert set(found.values()) == {Overtaking()}


def test_driver_with_a_reader_in_its_own_task_sends_barriers_in_order() -> None:
    made = flow()
    rows = made.from_tables(TABLES, name="rows").partition_by("k")
    rows.filter("x > 1").gather().collect("one")
    rows.filter("x > 2").collect("other")
    assert what_may_be_passed(made)["partition-by-1"] == Overtaking("partition-by-1", None)


def test_in_a_flow_with_deterministic_order_no_barrier_overtakes_by_itself() -> None:
    made = flow("deterministic")
    made.from_tables(TABLES, name="rows").gather().collect("out")
    plan = plan_job(made, 2)
    for timeout in (None, 0.0, 5.0):
        assert with_alignment(plan, timeout) == plan


# --- sources


class Rows:
    """A split of consecutive numbers, in batches of two rows."""

    def __init__(self, number: int, rows: int) -> None:
        self.id, self.rows, self._first = f"s{number}", rows, number * 100

    def open(self, start):
        for at in range(start, self.rows, 2):
            found = range(self._first + at, self._first + min(at + 2, self.rows))
            yield pa.record_batch({"x": pa.array(found, pa.int64())})


SCHEMA = pa.schema([("x", pa.int64())])


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.plan.rounds.CHUNK_ROWS", 2)


def reader(sizes=(6, 6), rounds="free", restored=None, quota=4) -> SplitReader:
    found = [Rows(number, size) for number, size in enumerate(sizes)]
    return SplitReader("s", SCHEMA, found, lanes_of(0, 1, 2), 2, quota=quota, rounds=rounds, restored=restored)


def taken(source: SplitReader, count: int | None = None) -> list:
    found = []
    while (count is None or len(found) < count) and source.peek() is not None:
        found.append(source.pop())
    return values(found)


def values_of(elements: list) -> list[int]:
    return sorted(value for each in elements if isinstance(each, list) for value in each)


@pytest.mark.usefixtures("small_chunks")
def test_round_is_cut_short_for_a_barrier_and_the_lane_goes_on_in_the_next_one() -> None:
    source = reader()
    assert taken(source, 3) == [[0, 1], [2, 3], [100, 101]]
    source.trigger(unaligned(1), source.propose(CheckpointId(1, 1)))
    assert taken(source, 2) == [EndOfRound(0), unaligned(1)]
    state = source.snapshot()
    rest = [[102, 103], EndOfRound(1), [4, 5], [104, 105], EndOfRound(2), EndOfData()]
    assert taken(source) == rest
    assert values_of(taken(reader(restored=state))) == [4, 5, 102, 103, 104, 105]
    assert read_cursors(state, range(2))[0].round == 1


@pytest.mark.usefixtures("small_chunks")
def test_source_that_is_behind_ends_the_rounds_of_the_others_without_rows() -> None:
    source = reader()
    taken(source, 1)
    source.trigger(timed(1, 9.0), 5)
    assert taken(source, 2) == [EndOfRound(5), timed(1, 9.0)]
    assert read_cursors(source.snapshot(), range(2))[0].round == 6


@pytest.mark.usefixtures("small_chunks")
def test_savepoint_does_not_cut_a_round_short() -> None:
    source = reader()
    taken(source, 1)
    savepoint = Barrier(CheckpointId(1, 1), BarrierKind.SAVEPOINT, 0.0)
    source.trigger(savepoint, 0)
    assert taken(source, 5) == [[2, 3], [100, 101], [102, 103], EndOfRound(0), savepoint]


@pytest.mark.usefixtures("small_chunks")
def test_batch_that_nobody_has_taken_is_behind_a_barrier_that_overtakes_it() -> None:
    source = reader()
    taken(source, 1)
    assert source.peek() is not None
    source.trigger(unaligned(1), 0)
    assert source.overtake(CheckpointId(1, 1)) == unaligned(1)
    state = source.snapshot()
    assert taken(source, 2) == [[2, 3], EndOfRound(0)]
    assert values_of(taken(reader(restored=state))) == [*range(2, 6), *range(100, 106)]


def test_barrier_that_is_placed_or_given_up_is_not_overtaken() -> None:
    source = reader()
    source.trigger(unaligned(1), 0)
    source.abort(CheckpointId(1, 1))
    assert source.overtake(CheckpointId(1, 1)) is None


@pytest.mark.parametrize(
    ("rounds", "proposed"), [("free", FINAL_ROUND), ("short", CLOSING_ROUND), ("whole", CLOSING_ROUND)]
)
def test_source_whose_end_is_on_its_way_leaves_a_checkpoint_undecided_only_where_rounds_count(rounds, proposed) -> None:
    source = reader((0, 0), rounds)
    taken(source)
    assert source.propose(CheckpointId(1, 1)) == proposed


# --- channels


def test_barrier_is_taken_out_of_a_queue_and_the_batches_before_it_stay() -> None:
    channel = ChannelId("edge", TaskId("up", 0), TaskId("down", 0))
    consumer = InputChannel(channel, ATTEMPTS, lambda message: None)
    producer = OutputChannel(channel, ATTEMPTS, consumer.receive)
    for element in (batch(0, 0, 1), unaligned(1), batch(0, 0, 2), unaligned(2)):
        producer.send(element)
    assert values(consumer.queued_before(CheckpointId(1, 2))[0]) == [[1], [2]]
    assert consumer.overtake(CheckpointId(1, 2)) == unaligned(2)
    assert consumer.overtake(CheckpointId(1, 2)) is None
    assert not consumer.queued_before(CheckpointId(1, 2))[1]
    assert values([consumer.pop() for _ in range(3)]) == [[1], unaligned(1), [2]]


def test_batches_in_flight_come_back_as_they_were_with_the_rows_of_the_lanes_asked_for() -> None:
    schema = wire_schema(pa.schema([("x", pa.string()), ("x", pa.dictionary(pa.int32(), pa.string()))]))
    words = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()]
    found = [
        Batch(
            pa.RecordBatch.from_arrays([pa.array(["p", "q"]), word, pa.array([3, 4], pa.uint16())], schema=schema), tag
        )
        for word, tag in zip(words, (Tag(0, 1, 5), Tag(FINAL_ROUND, 1, 0)), strict=True)
    ]
    table = channel_table([(2, found)])
    assert table is not None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    stored = pa.ipc.open_file(sink.getvalue()).read_all()
    again = list(channel_batches(stored, schema, None))
    assert [each.records.column(1).to_pylist() for each in again] == [["a", "b"], ["c", "a"]]
    assert [each.tag for each in again] == [Tag(0, 1, 5), Tag(FINAL_ROUND - 1, 1, 0)]
    assert [each.records.column(0).to_pylist() for each in channel_batches(stored, schema, range(4, 9))] == [["q"]] * 2
    assert channel_table([(0, [])]) is None


def test_barrier_crosses_the_wire_and_one_of_an_older_process_is_understood() -> None:
    for sent in (unaligned(3), timed(4, 2.5)):
        assert element_of(control_note(0, 0, sent)) == sent
    old = control_note(0, 0, unaligned(3))
    fields = msgspec.msgpack.decode(old.fields)
    del fields["unaligned"], fields["timeout"]
    note = msgspec.structs.replace(old, fields=msgspec.Raw(msgspec.msgpack.encode(fields)))
    assert element_of(note) == Barrier(CheckpointId(1, 3), BarrierKind.CHECKPOINT, 0.0)
