"""A task on its own: checkpoints, the end of its life, errors. The owner is played by the test."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.core.elements import FINAL_ROUND, Barrier, Batch, EndOfData, EndOfPartition, EndOfRound
from penstock.engine.core.errors import UserCodeError
from penstock.engine.core.identity import CommitPermit, TaskId
from penstock.engine.exchange.channels import ChannelId, DrainedAck, EndOfDataAck, Grant
from penstock.engine.flow.flow import Flow
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.runtime.driver import Driver
from penstock.engine.runtime.orders import JoinBarrier, NotifyCommitted
from penstock.engine.sinks.collect import COLLECTED
from support.task_owner import ATTEMPT, Owner, cp, end_checkpoint, gathered, source_owner, tables


def test_source_task_sends_its_rows_and_says_that_the_data_have_ended():
    owner = source_owner().run()
    assert [type(e) for e in owner.elements()][-2:] == [EndOfRound, EndOfData]
    assert owner.elements()[-2] == EndOfRound(FINAL_ROUND)
    assert owner.said == ["data ended"]


def test_proposed_round_holds_the_sources_until_the_trigger():
    owner = source_owner()
    owner.task.propose_round(cp(1))
    owner.run()
    assert owner.proposed == [(1, -1)]
    assert owner.frames == []
    assert owner.task.why()[-1].endswith("the coordinator's choice of a round")
    owner.trigger(1, at_round=0).run()
    at = [type(e) for e in owner.elements()].index(Barrier)
    assert owner.elements()[at - 1] == EndOfRound(0)
    assert owner.snapshots[1].tables["numbers"].column("ordinal").to_pylist() == [1, 1]


def test_abort_lets_held_sources_go_on():
    owner = source_owner()
    owner.task.propose_round(cp(1))
    owner.task.abort(cp(1))
    assert owner.run().said == ["data ended"]


def test_late_trigger_of_an_aborted_checkpoint_does_nothing():
    owner = source_owner()
    owner.task.abort(cp(2))
    owner.trigger(1).trigger(2).run()
    assert owner.snapshots == {}
    assert not any(isinstance(e, Barrier) for e in owner.elements())


def test_repeated_trigger_makes_one_barrier():
    owner = source_owner().trigger(1, at_round=0).trigger(1, at_round=0).run()
    assert sum(isinstance(e, Barrier) for e in owner.elements()) == 1


def test_late_proposal_of_a_triggered_checkpoint_does_not_hold_the_sources_again():
    owner = source_owner().trigger(1, at_round=0)
    owner.task.propose_round(cp(1))
    assert owner.run().said == ["data ended"]


def test_cut_lets_sources_go_on_that_hold_for_a_checkpoint_that_was_given_up():
    owner = source_owner()
    owner.task.propose_round(cp(1))
    owner.run().cut(2)
    assert owner.run().said == ["data ended"]
    assert owner.snapshots[2].unaligned


def test_cut_drops_the_barriers_of_older_checkpoints_that_sources_have_yet_to_place():
    owner = source_owner()
    owner.task.propose_round(cp(1))
    owner.run().trigger(1, at_round=FINAL_ROUND).cut(2).run()
    assert [e.checkpoint for e in owner.elements() if isinstance(e, Barrier)] == [cp(2)]
    [reader] = owner.task.readers
    assert not reader._barriers
    assert owner.trigger(3).run().snapshots.keys() == {2, 3}


def test_proposal_of_an_older_checkpoint_is_late_where_a_barrier_has_asked_for_a_cut():
    source, sink = sink_owner()
    source.cut(2).run()
    forward(source, sink)
    assert sink.snapshots.keys() == {2}
    sink.task.propose_round(cp(1))
    assert sink.run().proposed == []


def test_reports_of_the_end_are_repeated_on_request():
    owner = source_owner().run()
    owner.task.report_again()
    assert owner.said == ["data ended", "data ended"]


def test_task_ends_only_after_its_final_checkpoint_is_committed_and_all_is_processed():
    owner = source_owner().run()
    [channel] = {frame.channel for frame in owner.frames}
    owner.task.notify_committed(cp(0))
    owner.task.deliver(EndOfDataAck(channel, (ATTEMPT, ATTEMPT)))
    owner.run().trigger(1).run()
    assert owner.snapshots[1].data_ended
    assert owner.said == ["data ended"]
    owner.task.notify_committed(cp(1))
    owner.run()
    assert owner.said == ["data ended", "finished"]
    assert owner.elements()[-1] == EndOfPartition()


def test_task_does_not_end_while_a_consumer_still_processes():
    owner = source_owner()
    end_checkpoint(owner)
    assert owner.run().said == ["data ended"]


def test_checkpoint_taken_before_the_end_of_the_data_is_no_final_one():
    owner = source_owner().trigger(1, at_round=0).run()
    [channel] = {frame.channel for frame in owner.frames}
    owner.task.deliver(EndOfDataAck(channel, (ATTEMPT, ATTEMPT)))
    owner.task.notify_committed(cp(1))
    assert owner.run().said == ["data ended"]
    assert not owner.snapshots[1].data_ended


def test_restored_task_goes_on_after_the_cut():
    first = source_owner().trigger(1, at_round=0).run()
    state = first.snapshots[1].tables
    second = Owner(gathered(), TaskId("numbers", 0), state).run()
    rows = [v for e in second.elements() if isinstance(e, Batch) for v in e.records.column(0).to_pylist()]
    assert rows == [20, 21, 30, 31]


def test_state_of_all_subtasks_is_picked_by_lane_at_another_parallelism():
    wide = [Owner(gathered(2), TaskId("numbers", subtask)).trigger(1, at_round=0).run() for subtask in range(2)]
    state = {"numbers": pa.concat_tables(owner.snapshots[1].tables["numbers"] for owner in wide)}
    alone = Owner(gathered(1), TaskId("numbers", 0), state).run()
    rows = [v for e in alone.elements() if isinstance(e, Batch) for v in e.records.column(0).to_pylist()]
    assert rows == [20, 21, 30, 31]


def sink_owner(sizes=(2, 2)):
    plan = gathered(1, sizes)
    source = Owner(plan, TaskId("numbers", 0))
    sink = Owner(plan, TaskId("gather-1", 0))
    return source, sink


def forward(source, sink, seen=0) -> int:
    for frame in source.frames[seen:]:
        sink.task.receive(frame)
    sink.run()
    for message in sink.upstream:
        source.task.deliver(message)
    return len(source.frames)


def test_barrier_passes_from_task_to_task_and_the_sink_prepares_its_rows():
    source, sink = sink_owner()
    source.trigger(1, at_round=0).run()
    forward(source, sink)
    [committable] = sink.snapshots[1].committables
    assert committable.rows == 4
    assert {type(message) for message in sink.upstream} == {Grant, EndOfDataAck, DrainedAck}


def test_what_a_sink_prepared_for_an_aborted_checkpoint_comes_with_the_next_one():
    source, sink = sink_owner((2, 2, 2, 2))
    source.trigger(1, at_round=0).run()
    seen = forward(source, sink)
    sink.task.abort(cp(1))
    source.trigger(2).run()
    forward(source, sink, seen)
    assert sum(committable.rows for committable in sink.snapshots[2].committables) == 8


def test_trigger_reaches_a_sink_whose_producers_have_all_finished():
    source, sink = sink_owner()
    seen = forward(source.run(), sink)
    end_checkpoint(source)
    seen = forward(source, sink, seen)
    source.run()
    forward(source, sink, seen)
    assert source.said[-1] == "finished"
    sink.trigger(2).run()
    sink.task.notify_committed(cp(2))
    sink.run()
    assert sink.said == ["data ended", "finished"]


def test_barrier_and_trigger_of_one_checkpoint_make_one_snapshot():
    source, sink = sink_owner()
    source.run().trigger(1).run()
    forward(source, sink)
    assert list(sink.snapshots) == [1]
    first = sink.snapshots.pop(1)
    sink.trigger(1).run()
    assert first.data_ended
    assert sink.snapshots == {}


def test_rows_become_visible_with_the_commit_and_not_before():
    plan = gathered(1, (2, 2))
    source, sink = sink_owner()
    forward(source.trigger(1, at_round=0).run(), sink)
    assert COLLECTED.read("gathered", "out").num_rows == 0
    plan.committer("out").commit(CommitPermit(cp(1), sink.snapshots[1].committables))
    assert COLLECTED.read("gathered", "out").column("x").to_pylist() == [0, 1, 10, 11]
    COLLECTED.forget("gathered")


def test_error_of_user_code_names_operator_split_and_rows():
    def explode(batch):
        raise ValueError("no such plane")

    flow = Flow("broken", lanes=1)
    flow.from_tables(tables(1, 3), name="numbers").map_batches(explode, pa.schema([("x", pa.int64())])).collect("out")
    owner = Owner(plan_job(flow, 1), TaskId("numbers", 0)).run()
    assert isinstance(owner.error, UserCodeError)
    assert owner.error.operator == "map-batches-1"
    assert "no such plane" in str(owner.error)
    assert "explode" in owner.error.detail
    split = plan_job(flow, 1).sources["numbers"].splits[0].id
    assert f"split numbers {split}" in owner.error.message
    assert owner.task.state == "failed"
    owner.error = None
    owner.task.report_again()
    assert isinstance(owner.error, UserCodeError)


def test_failed_task_closes_its_operators_and_does_nothing_more():
    class Warm:
        closed = 0

        def __call__(self, batch):
            raise RuntimeError

        def close(self):
            Warm.closed += 1

    flow = Flow("warm", lanes=1)
    flow.from_tables(tables(1), name="numbers").map_batches(Warm, pa.schema([("x", pa.int64())])).collect("out")
    owner = Owner(plan_job(flow, 1), TaskId("numbers", 0)).run()
    owner.task.cancel()
    assert owner.task.state == "failed"
    assert not owner.task.step(0.0).progressed


def test_throttled_task_says_when_it_wants_to_be_woken():
    flow = Flow("paced", lanes=1)
    flow.from_tables(tables(10, 10), name="numbers", rate=5.0).collect("out")
    owner = Owner(plan_job(flow, 1), TaskId("numbers", 0))
    owner.run(now=100.0)
    assert owner.task.step(100.0).wake_at == pytest.approx(102.0)


def test_channels_of_a_gather_are_named_after_their_tasks():
    plan = gathered(2)
    owner = Owner(plan, TaskId("gather-1", 0))
    inputs, outputs = owner.task._parts.inputs, owner.task._parts.outputs
    assert list(inputs) == [ChannelId("gather-1", TaskId("numbers", n), TaskId("gather-1", 0)) for n in range(2)]
    assert not outputs


def test_drivers_are_told_once_of_a_barrier_that_has_come_to_others(monkeypatch):
    sent = []
    send = Driver.send
    monkeypatch.setattr(Driver, "send", lambda self, order: sent.append(order) or send(self, order))
    flow = Flow("many", lanes=1)
    stream = flow.from_tables(tables(1), name="numbers")
    for number in range(9):
        stream = stream.union(flow.from_tables(tables(1), name=f"numbers-{number}").filter(pc.field("x") >= 0))
    stream.gather().collect("out")
    owner = Owner(plan_job(flow, 1), TaskId("numbers", 0)).run().trigger(1).run()
    assert owner.snapshots[1].data_ended
    drivers = len(owner.task.drivers)
    assert drivers > 10
    assert sum(isinstance(order, JoinBarrier) for order in sent) == drivers - 1
    sent.clear()
    owner.task.notify_committed(cp(1))
    assert not any(isinstance(order, NotifyCommitted) for order in sent)
