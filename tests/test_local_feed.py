"""Feeds in this process: the same global batches for any number of ranks, whatever happens to the flow meanwhile."""

from __future__ import annotations

import gc
import pickle
import threading
from dataclasses import replace

import pyarrow as pa
import pytest

import penstock as ps
from penstock.actors.feed.link import LocalRoute
from penstock.coordinator.model.events import TaskLost
from penstock.engine.core.errors import ConfigurationError, FlowError, UserCodeError
from penstock.engine.core.identity import TaskId
from support.feeds import ROWS, SPLITS, batches_of, chunked, plain, read_group, tables, take, wait_for


def joined(flow):
    left = plain(flow).partition_by("key")
    right = flow.from_tables(tables(), name="other").filter("n % 2 = 0").partition_by("key")
    sums = right.aggregate(["key"], total=("n", "sum"))
    return left.hash_join(sums, on=["key"], how="inner")


def exploded(flow):
    lists = plain(flow).map_batches(with_lists, pa.schema([("n", pa.int64()), ("each", pa.list_(pa.int64()))]))
    return lists.unnest("each").filter("each <> 7")


def with_lists(batch):
    values = batch.column("n").to_pylist()
    return pa.record_batch(
        {"n": batch.column("n"), "each": pa.array([list(range(n % 4)) for n in values], pa.list_(pa.int64()))}
    )


def grouped(flow):
    return plain(flow).aggregate(["key"], total=("n", "sum"), count="count")


SHAPES = {"filter": plain, "join": joined, "unnest": exploded, "aggregate": grouped}


def flow_of(shape, name="feeding", **options):
    flow = ps.Flow(name, lanes=4)
    SHAPES[shape](flow).feed(**{"batch_size": 50, **options})
    return flow


@pytest.mark.parametrize("shape", SHAPES)
def test_global_batches_are_the_same_at_any_parallelism_and_number_of_ranks(shape):
    flow = ps.Flow("one-list", lanes=4)
    SHAPES[shape](flow).gather().collect("list")
    rows = ps.run_local(flow).result("list").to_pylist()
    size = 5 if shape == "aggregate" else 50
    for parallelism, ranks in ((1, 1), (3, 2), (4, 5)):
        job = ps.run_local(flow_of(shape, batch_size=size), parallelism=parallelism)
        assert read_group(job.feed(), ranks) == chunked(rows, size)
        assert job.wait(60).audit().clean


def test_engine_that_goes_back_under_living_ranks_is_not_noticed():
    expected = batches_of(flow_of("filter"))
    job = ps.run_local(flow_of("filter", room=100, keep=100), parallelism=2)
    readers = [job.feed().reader(rank, 2, timeout=60) for rank in range(2)]
    iterators = [reader.iter_batches() for reader in readers]
    found = []
    for step in range(len(expected)):
        found.append([row for each in iterators for row in next(each).to_pylist()])
        if step in (2, 5, 11):
            lose(job)
        if step in (4, 9):
            job.checkpoint(60)
    assert found == expected
    assert [next(each, None) for each in iterators] == [None, None]
    for reader in readers:
        reader.close()
    assert job.wait(60).status().restarts == 3


def lose(job):
    """The region's tasks start anew, as if a process had died."""
    restarts = job.status().restarts
    task = TaskId("gather-1", 0)
    wait_for(lambda: job.statistics().get(task) is not None)
    job._request(TaskLost(task, job.statistics()[task].attempt, "the test says so", 0.0))
    job.wait_until(lambda status: status.restarts > restarts and status.state == "running", 60)


def test_rank_that_stands_still_delays_no_checkpoint_and_its_feed_does_not_grow(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 50)
    flow = ps.Flow("still", lanes=4)
    rows = flow.from_tables([pa.table({"n": pa.array(range(100_000))})] * 4, name="rows")
    rows.feed(100, room=500)
    job = ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path, every="20ms"), parallelism=2)
    readers = [job.feed().reader(rank, 2, timeout=60) for rank in range(2)]
    quick, slow = (reader.iter_batches() for reader in readers)
    assert len([next(each) for each in (quick, slow, quick)]) == 3
    completed = job.status().checkpoints_completed

    def position():
        return job.statistics()[TaskId("gather-1", 0)].operators[-1].rows_in

    job.wait_until(lambda status: status.checkpoints_completed >= completed + 5, 60)
    taken = position()
    job.wait_until(lambda status: status.checkpoints_completed >= completed + 40, 60)
    assert position() == taken, "sources go on though nobody reads"
    assert taken < 400_000, "sources hold before their end; where depends on when they are told"
    wait_for(lambda: any("rank 1 of 2, which is at batch 1" in why for why in job.why()))
    wait_for(lambda: "feed feed: data wait for rank 1 of 2, which is at batch 1" in job.why())
    readers[0].timeout = 0.5
    with pytest.raises(TimeoutError, match=r"rank 0 of 2 has waited 0.5 s for batch \d+ of feed 'feed': .*rank 1 of 2"):
        list(quick)
    for reader in readers:
        reader.close()
    job.shutdown()


def test_why_says_which_rank_waits_for_data_and_for_which_rank_data_wait():
    """First the data stand still before their last batch, then a rank does."""
    gate = threading.Event()

    def hold(batch):
        if batch.num_rows and batch.column("n")[0].as_py() >= 400:
            assert gate.wait(60)
        return batch

    flow = ps.Flow("who-waits", lanes=1)
    parts = [pa.table({"n": pa.array(range(start, start + 100))}) for start in range(0, 3200, 100)]
    flow.from_tables(parts).map_batches(hold).feed(100, room=200)
    with ps.run_local(flow, parallelism=1) as job:
        readers = [job.feed().reader(rank, 2, timeout=60, prefetch_batches=0) for rank in range(2)]
        slices = [reader.iter_batches() for reader in readers]
        for _ in range(4):
            assert [next(each).num_rows for each in slices] == [50, 50]
        quick = threading.Thread(target=lambda: next(slices[0]))
        quick.start()
        lacking = "feed feed: rank 0 waits for data: rows of the flow: 100 are missing"
        wait_for(lambda: lacking in job.why())
        assert lacking in job.feed().status().sentences
        assert "waits for data: rows of the flow" in str(job.feed().status())
        gate.set()
        standing = "feed feed: data wait for rank 1 of 2, which is at batch 4"
        wait_for(lambda: standing in job.why())
        assert job.feed().status().waits_for == "rank 1 of 2, which is at batch 4"
        quick.join(60)
        assert not any("waits for data" in words for words in job.why())
        for reader in readers:
            reader.close(0)


def test_ranks_may_leave_at_the_end_though_the_feed_starts_anew_just_then():
    job = ps.run_local(flow_of("filter"))
    assert len(read_group(job.feed(), 3)) == 16
    task = job.tasks()[-1]
    if not job.status().is_over:
        job._request(TaskLost(task, job.statistics()[task].attempt, "late", 0.0))
    assert job.wait(60).status().state == "finished"


def fails(batch):
    if 700 in batch.column("n").to_pylist():
        raise ValueError("no 700")
    return batch


def test_ranks_are_told_at_once_why_a_job_has_failed():
    flow = ps.Flow("failing", lanes=4)
    stream = flow.from_tables(tables(), name="rows", rate=2000.0)
    stream.map_batches(fails, stream.schema).feed(50)
    job = ps.run_local(flow)
    with pytest.raises(UserCodeError, match="no 700"):
        read_group(job.feed(), 2)
    with pytest.raises(UserCodeError):
        job.wait(60)


@pytest.mark.parametrize("end", ["cancel", "shutdown"])
def test_ranks_are_told_at_once_that_a_job_is_over(end):
    job = ps.run_local(flow_of("filter", room=50))
    reader = job.feed().reader(timeout=60)
    take(reader, 1)
    getattr(job, end)()
    with pytest.raises(ConfigurationError, match=r"feeding' (is over: cancelled|was shut down)"):
        take(reader, 100)
    reader.close()
    job.shutdown()


def test_job_goes_on_from_its_checkpoint_and_ranks_of_another_number_from_their_step(tmp_path):
    expected = batches_of(flow_of("filter"))
    job = ps.run_local(flow_of("filter", room=100), checkpoints=tmp_path, parallelism=2)
    first = read_group(job.feed(), 2, most=5, close=False)
    state = {"step": 5}
    job.checkpoint(60)
    job.shutdown()
    again = ps.run_local(flow_of("filter", room=100), checkpoints=tmp_path, parallelism=3)
    assert first + read_group(again.feed(), 3, start=state["step"]) == expected
    assert again.wait(60).audit().clean


def test_place_before_the_checkpoint_is_refused_with_the_remedy(tmp_path):
    job = ps.run_local(flow_of("filter", room=50), checkpoints=tmp_path)
    read_group(job.feed(), 1, most=9, close=False)
    job.checkpoint(60)
    job.shutdown()
    again = ps.run_local(flow_of("filter", room=50), checkpoints=tmp_path)
    with pytest.raises(ConfigurationError, match=r"not kept any more[\s\S]*resume_model[\s\S]*keep=rows"):
        read_group(again.feed(), 1)
    again.shutdown()


def test_new_group_takes_over_in_the_middle_and_the_old_one_is_told():
    expected = batches_of(flow_of("filter"))
    job = ps.run_local(flow_of("filter", keep=10_000))
    old = job.feed().reader(timeout=60, prefetch_batches=4)
    assert take(old, 4) == expected[:4]
    assert read_group(job.feed(), 3, start=2) == expected[2:]
    with pytest.raises(ConfigurationError, match=r"a newer group reads the feed[\s\S]*end this process"):
        take(old, 1000)
    old.close()
    job.wait(60)


def test_no_batch_is_handed_out_before_all_ranks_have_come():
    job = ps.run_local(flow_of("filter"))
    lonely = job.feed().reader(1, 3, timeout=2)
    with pytest.raises(TimeoutError, match=r"rank 1 of 3 has waited .* rank 0, 2 of 3 to join"):
        take(lonely, 1)
    lonely.close()
    assert len(read_group(job.feed(), 2)) == 16  # their group is not that of three
    job.wait(60)


def test_rank_that_gave_up_before_all_had_come_keeps_no_rank_from_those_that_come_later():
    job = ps.run_local(flow_of("filter"))
    for ends in (True, False):  # closed, or only not waiting any more
        lonely = job.feed().reader(2, 3, timeout=2)
        with pytest.raises(TimeoutError, match="to join"):
            take(lonely, 1)
        if ends:
            lonely.close()
    wait_for(lambda: "rank 0, 1, 2 of 3" in job.feed().route.server._members.missing)
    others = [job.feed().reader(rank, 3, timeout=60) for rank in range(2)]
    slices = [reader.iter_batches() for reader in others]
    threads = [threading.Thread(target=next, args=(each,)) for each in slices]
    for thread in threads:
        thread.start()
    lonely.timeout = 60.0
    assert len(take(lonely, 1)) == 1, "it waits again, as a new reader"
    for thread in threads:
        thread.join()
    assert [reader.step for reader in others] == [1, 1], "nobody was told of a newer group"
    job.shutdown()
    for reader in [lonely, *others]:
        reader.close()


@pytest.mark.parametrize(("drop_last", "batches"), [(False, 12), (True, 11)])
def test_last_batch_may_be_short_or_be_left_out(drop_last, batches):
    flow = ps.Flow("short", lanes=2)
    flow.from_tables([pa.table({"n": pa.array(range(112))})]).feed(10, drop_last=drop_last)
    job = ps.run_local(flow)
    feed = job.feed()
    assert len(feed.reader(0, 5)) == batches
    found = read_group(feed, 5)
    assert [len(batch) for batch in found] == [10] * 11 + ([] if drop_last else [2])
    job.wait(60)


def test_feed_without_rows_ends_without_ranks():
    flow = ps.Flow("nothing", lanes=2)
    flow.from_tables([pa.table({"n": pa.array([1, 2])})]).filter("n > 5").feed(10)
    assert ps.run_local(flow).wait(60).status().state == "finished"


@pytest.mark.parametrize(("rows", "options"), [(0, {}), (5, {"drop_last": True}), (0, {"epochs": 3})])
def test_feed_without_a_batch_gives_none_to_ranks_that_come_when_its_job_is_over(rows, options):
    flow = ps.Flow("empty")
    flow.from_tables([pa.table({"n": pa.array(range(rows), pa.int64())})]).feed(10, **options)
    job = ps.run_local(flow).wait(60)
    assert read_group(job.feed(), 2) == []


def identity_of(rows, **options):
    flow = ps.Flow("identity")
    flow.from_tables([pa.table({"n": list(range(rows))})]).filter("n >= 0").feed(10, **options)
    return flow


def state_at(step, **options):
    job = ps.run_local(identity_of(1000, **options))
    reader = job.feed().reader(timeout=60)
    take(reader, step)
    reader.close(0.0)
    job.shutdown()
    return reader.state_dict()


def test_state_names_what_it_is_of_and_that_of_something_else_is_refused():
    state = state_at(60)
    assert (state["step"], state["epoch"], state["ranks"], state["layout"]) == (60, 0, 1, "contiguous")
    for flow, why in (
        (identity_of(300), "over other data"),
        (identity_of(1000, shuffle=50), "another flow .*: other flow"),
        (identity_of(1000, drop_last=True), "another flow .*: other flow, drop_last"),
    ):
        job = ps.run_local(flow)
        with pytest.raises(ConfigurationError, match=f"the state was saved .*{why}"):
            job.feed().reader().load_state_dict(state)
        job.shutdown()
    job = ps.run_local(identity_of(1000, keep=500))
    job.feed().reader().load_state_dict(state)  # how much is kept changes no batch
    with pytest.raises(ConfigurationError, match="version 1"):
        job.feed().reader().load_state_dict({**state, "version": 1})
    job.shutdown()


def test_step_behind_the_end_is_an_error_and_the_feed_is_not_taken_for_read():
    state = state_at(60)
    job = ps.run_local(identity_of(1000))
    with pytest.raises(ConfigurationError, match="starts at batch 101 of a feed that has 100"):
        read_group(job.feed(), 2, start=101)
    assert not job.status().is_over
    assert job.feed().route.server.waits_for
    job.shutdown()
    flow = ps.Flow("known")
    flow.from_tables([pa.table({"n": list(range(50))})]).feed(10)
    job = ps.run_local(flow)
    own = job.feed().reader().state_dict()
    with pytest.raises(ConfigurationError, match="names step 6, but feed 'feed' ends at step 5"):
        job.feed().reader().load_state_dict({**own, "step": state["step"] // 10})
    job.shutdown()


def test_two_feeds_of_one_job_are_read_side_by_side():
    flow = ps.Flow("two", lanes=2)
    rows = flow.from_tables(tables(), name="rows")
    rows.filter("n % 10 > 0").feed(50, name="training")
    rows.filter("n % 10 = 0").feed(10, name="validation")
    job = ps.run_local(flow, parallelism=2)
    validation = read_group(job.feed("validation"), 2)
    training = read_group(job.feed("training"), 2)
    assert sorted(row["n"] for batch in validation + training for row in batch) == list(range(SPLITS * ROWS))
    job.wait(60)


def test_rows_come_as_dictionaries_numpy_arrays_and_frames_too():
    job = ps.run_local(flow_of("filter"))
    reader = job.feed().reader(timeout=60)
    rows = reader.iter_rows()
    assert next(rows)["n"] == 1
    arrays = next(reader.iter_batches(batch_format="numpy"))
    assert arrays["n"].shape == (50,)
    assert reader.step == 2
    state = reader.state_dict()
    frame = next(reader.iter_batches(batch_format="pandas"))
    reader.load_state_dict(state)
    assert next(reader.iter_batches()).to_pandas().equals(frame)
    reader.close()
    job.shutdown()


def test_handle_of_another_process_names_the_way_out():
    job = ps.run_local(flow_of("filter"))
    handle = pickle.loads(pickle.dumps(job.feed()))
    assert isinstance(handle.route, LocalRoute)
    with pytest.raises(ConfigurationError, match=r"another process[\s\S]*ps.run"):
        replace(handle.route, process=-1).open()
    job.shutdown()
    gc.collect()


def test_what_cannot_be_is_refused():
    stream = ps.Flow("arrival", order="arrival").from_tables(tables())
    with pytest.raises(FlowError, match="without an order"):
        stream.feed(10)
    with pytest.raises(FlowError, match="two columns named 'a'"):
        ps.Flow("twice").from_tables([pa.table([[1], [2]], names=["a", "a"])]).feed(1)
    with pytest.raises(FlowError, match="global batches of 0 rows"):
        flow_of("filter", batch_size=0)
    with pytest.raises(FlowError, match="global batches of 1000000000000 rows"):
        flow_of("filter", batch_size=10**12)
    with pytest.raises(FlowError, match="epochs=1000000000000"):
        flow_of("filter", epochs=10**12)
    with pytest.raises(FlowError, match="room for 10 rows"):
        flow_of("filter", room=10)
    job = ps.run_local(flow_of("filter"))
    with pytest.raises(ConfigurationError, match="no feed 'other'"):
        job.feed("other")
    with pytest.raises(ConfigurationError, match="rank 2 of 2"):
        job.feed().reader(2, 2)
    with pytest.raises(ConfigurationError, match="without drain=True"):
        job.stop(drain=True, savepoint="/nowhere")
    with pytest.raises(ConfigurationError, match="feed 'other'"):
        job.feed().reader().load_state_dict({"version": 2, "feed": "other", "batch_size": 1, "step": 0})
    job.shutdown()


def test_rank_that_comes_when_all_has_been_read_is_not_sent_to_the_same_folder():
    job = ps.run_local(flow_of("filter"))
    read_group(job.feed(), 1)
    job.wait(60)
    with job.feed().reader(timeout=60) as late, pytest.raises(ConfigurationError, match="over: finished") as raised:
        next(late.iter_batches())
    assert "in another checkpoint folder" in raised.value.remedy
    job.shutdown()


def test_slice_without_rows_has_the_shape_of_the_others():
    flow = ps.Flow("lists", lanes=2)
    column = pa.array([[float(n)] * 4 for n in range(9)], pa.list_(pa.float32()))
    flow.from_tables([pa.table({"x": column})]).feed(8)
    job = ps.run_local(flow)
    shapes = {}

    def read(rank):
        with job.feed().reader(rank, 2, timeout=60) as reader:
            shapes[rank] = [tuple(batch["x"].shape) for batch in reader.iter_torch_batches()]

    ranks = [threading.Thread(target=read, args=(rank,)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert shapes == {0: [(4, 4), (0, 4)], 1: [(4, 4), (1, 4)]}
    job.shutdown()


def test_rows_are_shuffled_by_the_seed_first():
    def batches(seed, ranks):
        made = batches_of(flow_of("filter", shuffle=100, seed=seed), ranks, parallelism=ranks)
        return [[row["n"] for row in batch] for batch in made]

    found = batches(1, 1)
    assert found == batches(1, 3)
    assert found != batches(2, 1)
    assert sorted(n for batch in found for n in batch) == [n for n in range(SPLITS * ROWS) if n % 3]


def test_explain_says_who_sets_the_pace():
    text = flow_of("filter").explain()
    assert "paced by its readers" in text
    assert "global batches of 50 rows" in text


@pytest.mark.parametrize("taking", [1, 4, 9, 10])
def test_savepoint_behind_the_end_of_the_sources_gives_ranks_what_they_have_not_taken(tmp_path, taking):
    def flow():
        made = ps.Flow("read")
        made.from_tables([pa.table({"n": range(100)})]).feed(10)
        return made

    def rows(batches):
        return [n for batch in batches for n in batch["n"].to_pylist()]

    with ps.run_local(flow(), checkpoints=tmp_path / "a") as job:
        reader = job.feed().reader(timeout=60)
        taken = rows([next(iter(reader)) for _ in range(taking)])
        state = reader.state_dict()
        job.wait_until(lambda status: "processed everything" in status.why, 60)
        saved = job.stop(timeout=60)
        reader.close(0)
    with ps.run_local(flow(), checkpoints=tmp_path / "b", from_snapshot=saved.path) as again:
        late = again.feed().reader(timeout=60)
        late.load_state_dict(state)
        with late:
            assert taken + rows(late) == list(range(100))
        assert again.wait(60).audit().clean
