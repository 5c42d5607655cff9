"""Task barriers over whole jobs in this process: the rows of every window, durably fed, through losses and restarts."""

from __future__ import annotations

import logging
import random
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.coordinator.model.events import TaskLost
from penstock.engine.core.errors import ConfigurationError, DataError, FlowError
from penstock.engine.exchange.channels import OutputChannel
from penstock.engine.plan import rounds
from penstock.engine.sources.fed import file_split
from support.split_jobs import (
    LEFT,
    SHAPES,
    draw_windows,
    expected,
    flat,
    job_flow,
    joined,
    kept,
    sums,
    written,
)

PATIENCE = 60


@pytest.fixture(autouse=True)
def validated(monkeypatch):
    monkeypatch.setenv("PENSTOCK_VALIDATE", "1")


def feed(job, window):
    for split_set in window:
        job.add_splits(split_set)
    return job.request_barrier()


def rows(*pairs) -> pa.Table:
    return pa.table([[k for k, _ in pairs], [v for _, v in pairs]], schema=LEFT)


def checkpoints(tmp_path, **options) -> ps.Checkpoints:
    return ps.Checkpoints(
        tmp_path / "state", **{"every": "50ms", "restart_delay": 0.01, "max_restarts": 100, **options}
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_each_window_are_those_of_a_plan_task_and_visible_when_its_barrier_is_reached(shape, tmp_path):
    build = SHAPES[shape]
    windows = draw_windows(7, build)
    wanted = expected(build, windows)
    with ps.run_local(job_flow(build, tmp_path), parallelism=2) as job:
        for number, window in enumerate(windows):
            report = feed(job, window).wait(PATIENCE)
            assert (report.number, report.sets, report.reached) == (number + 1, len(window), True)
            for output, found in wanted.items():
                assert written(tmp_path / output) == flat(found[: number + 1]), f"{output}, window {number + 1}"
        job.no_more_splits()
        job.wait(PATIENCE)
    for output, found in wanted.items():
        assert written(tmp_path / output) == flat(found)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_windows_that_are_queued_ahead_give_the_same_rows_at_any_parallelism(shape, parallelism, tmp_path):
    build = SHAPES[shape]
    windows = draw_windows(11, build, windows=12)
    with ps.run_local(job_flow(build, tmp_path), parallelism=parallelism) as job:
        barriers = [feed(job, window) for window in windows]
        job.no_more_splits()
        assert [barrier.wait(PATIENCE).number for barrier in barriers] == list(range(1, 13))
        assert job.wait(PATIENCE).audit().clean
    for output, found in expected(build, windows).items():
        assert written(tmp_path / output) == flat(found)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_doubled_when_tasks_are_lost_and_the_process_ends_in_the_middle(seed, tmp_path):
    draw = random.Random(seed)
    build = SHAPES[draw.choice(sorted(SHAPES))]
    windows = draw_windows(seed, build, windows=10)
    fed = 0
    while True:
        job = ps.run_local(
            job_flow(build, tmp_path), parallelism=draw.choice((1, 2)), checkpoints=checkpoints(tmp_path)
        )
        until = len(windows) if fed else draw.randrange(len(windows))
        with job:
            for window in windows[fed:until]:
                feed(job, window)
                if draw.random() < 0.4:
                    job._request(TaskLost(draw.choice(job.tasks()), None, "the test says so", 0.0))
            fed = until
            if fed == len(windows):
                job.no_more_splits()
                job.wait(PATIENCE)
                break
            job.wait_until(lambda status: status.splits is not None and draw.random() < 0.3, PATIENCE)
    for output, found in expected(build, windows).items():
        assert written(tmp_path / output) == flat(found)


def test_job_that_resumes_tells_what_it_has_been_fed_and_counts_on(tmp_path):
    with ps.run_local(job_flow(kept, tmp_path), checkpoints=checkpoints(tmp_path)) as job:
        assert job.add_splits({"left": rows((1, 1))}) == 1
        job.request_barrier().wait(PATIENCE)
        assert job.add_splits({"left": rows((2, 2))}) == 2  # behind the last barrier when the process ends
    with ps.run_local(job_flow(kept, tmp_path), checkpoints=checkpoints(tmp_path)) as job:
        status = job.wait_until(lambda status: status.splits is not None and status.splits.sets == 2, PATIENCE)
        assert (status.splits.requested, status.splits.open_sets) == (1, 1)
        assert job.window(1).wait(PATIENCE).tasks == {}, "its statistics went with the process"
        assert job.add_splits({"left": rows((4, 4))}) == 3
        assert job.request_barrier().wait(PATIENCE).sets == 2
        assert written(tmp_path / "kept") == [(1, 1, 2), (2, 2, 4), (4, 4, 8)]


def test_savepoint_between_windows_goes_on_in_another_folder_at_another_parallelism(tmp_path):
    windows = draw_windows(3, sums, windows=6)
    with ps.run_local(job_flow(sums, tmp_path / "a"), checkpoints=checkpoints(tmp_path)) as job:
        for window in windows[:3]:
            feed(job, window).wait(PATIENCE)
        saved = job.stop(timeout=PATIENCE)
    second = ps.Checkpoints(tmp_path / "second", every="50ms")
    options = {"checkpoints": second, "from_snapshot": saved.path, "parallelism": 3}
    with ps.run_local(job_flow(sums, tmp_path / "a"), **options) as job:
        for number, window in enumerate(windows[3:]):
            assert feed(job, window).number == number + 4
        job.no_more_splits()
        job.wait(PATIENCE)
    assert written(tmp_path / "a" / "sums") == flat(expected(sums, windows)["sums"])


def test_every_window_that_was_accepted_is_in_the_savepoint_that_a_job_stops_with(tmp_path):
    for tried in range(6):
        output, old = tmp_path / f"out{tried}", tmp_path / f"old{tried}"
        flow = ps.Flow("fed", lanes=4)
        flow.from_split_sets(LEFT, name="left").write_parquet(output)
        job = ps.run_local(flow, checkpoints=ps.Checkpoints(old, every="20ms"))
        for number in range(6):
            job.add_splits({"left": rows((number, number))})
            job.request_barrier()
        saved = job.stop(timeout=PATIENCE)
        heir = ps.run_local(flow, checkpoints=tmp_path / f"new{tried}", from_snapshot=saved.path)
        heir.no_more_splits()
        heir.wait(PATIENCE)
        assert sorted(read_values(output)) == list(range(6))


def read_values(output):
    return [value for path in output.glob("part-*") for value in pq.read_table(path).column(1).to_pylist()]


def test_savepoint_is_refused_while_a_window_is_open(tmp_path):
    with ps.run_local(job_flow(kept, tmp_path), checkpoints=checkpoints(tmp_path)) as job:
        job.add_splits({"left": rows((1, 1))})
        job.wait_until(lambda status: status.splits is not None and status.splits.open_sets == 1, PATIENCE)
        with pytest.raises(ConfigurationError, match=r"1 split sets .* were added after its last task barrier"):
            job.savepoint(tmp_path / "mine")


def test_several_callers_feed_one_job(tmp_path):
    with ps.run_local(job_flow(kept, tmp_path), parallelism=2) as job:

        def add(first: int) -> None:
            for value in range(first, first + 10):
                job.add_splits({"left": rows((value, value + 1))})

        threads = [threading.Thread(target=add, args=(100 * each,)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert job.request_barrier().wait(PATIENCE).sets == 40
        assert len(written(tmp_path / "kept")) == 40
        assert job.why()[0] == "all windows are complete: 1; waiting for split sets (add_splits)"


@pytest.mark.parametrize("name", ["one.parquet", "one.arrow"])
def test_file_that_changes_after_it_was_added_is_refused(tmp_path, name):
    """With the same number of rows, and the same size."""

    def write(first):
        table = pa.table({"n": pa.array([first, first + 1], pa.int64())})
        if name.endswith("parquet"):
            pq.write_table(table, tmp_path / name, use_dictionary=False, compression="none", write_statistics=False)
        else:
            with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
                writer.write_table(table)

    write(1)
    split = file_split("rows/0", str(tmp_path / name), pa.schema([("n", pa.int64())]))
    assert [batch["n"].to_pylist() for batch in split.open(0)] == [[1, 2]]
    (tmp_path / name).touch()
    assert [batch["n"].to_pylist() for batch in split.open(0)] == [[1, 2]]
    write(5)
    with pytest.raises(DataError, match=f"{name} is another one than when it was added as split rows/0"):
        split.open(0)


def test_files_and_large_tables_are_splits(tmp_path):
    table = rows(*((number, number + 1) for number in range(20_000)))
    pq.write_table(table, tmp_path / "one.parquet")
    with ps.run_local(job_flow(kept, tmp_path / "out"), checkpoints=checkpoints(tmp_path)) as job:
        job.add_splits({"left": [table, tmp_path / "one.parquet"]})
        report = job.request_barrier().wait(PATIENCE)
        assert report.rows["with-columns-1" if "with-columns-1" in report.rows else "filter-1"] == 40_000
        assert len(written(tmp_path / "out" / "kept")) == 40_000
        job.no_more_splits()
        job.wait(PATIENCE)
    left = [path.name for path in (tmp_path / "state" / "fed" / "splits").rglob("*") if path.is_file()]
    assert left == ["000000000002.json"], "sets that a checkpoint covers are not kept"


def test_statistics_say_when_rows_came_who_waited_and_who_was_last(tmp_path):
    with ps.run_local(job_flow(joined, tmp_path), parallelism=2) as job:
        [window] = draw_windows(2, joined, windows=1)
        tables = {name: rows((1, 1)).rename_columns(["k", name]) for name in ("v", "w")}
        job.add_splits({"left": [tables["v"]] * 2, "right": [tables["w"]] * 2})
        report = feed(job, window).wait(PATIENCE)
    assert set(report.tasks) == set(job.tasks())
    assert report.slowest in report.tasks
    assert report.seconds is not None
    assert set(report.first_token) == set(job.tasks())
    merge = [each for task in report.tasks.values() for each in task.operators if len(each.waits) == 2]
    assert {name for each in merge for name, _ in each.waits} >= {"left", "right"}
    assert all(min(wait for _, wait in each.waits) == 0.0 for each in merge), "the last input waits for nobody"


def refused(job, kind, match, split_set) -> None:
    with pytest.raises(kind, match=match):
        job.add_splits(split_set)


def test_sets_that_do_not_fit_the_job_are_refused_where_they_are_added(tmp_path):
    some = rows((1, 1))
    with ps.run_local(job_flow(joined, tmp_path), parallelism=2) as job:
        other = some.rename_columns(["k", "w"])
        refused(job, ConfigurationError, "there is no source 'middle'", {"middle": some})
        refused(job, ConfigurationError, "has nothing for right", {"left": some})
        refused(job, ConfigurationError, "left has 2, right has 1 splits", {"left": [some, some], "right": other})
        refused(job, FlowError, r"has the columns k \(int64\), v \(int64\)", {"left": some, "right": some})
        refused(job, ConfigurationError, "does not exist", {"left": some, "right": tmp_path / "none.parquet"})
        refused(job, ConfigurationError, "the form of .* is unknown", {"left": some, "right": "rows.txt"})
        job.no_more_splits()
        job.no_more_splits()
        refused(job, ConfigurationError, "no more splits come", {"left": some, "right": other})
        with pytest.raises(ConfigurationError, match="no more splits come"):
            job.request_barrier()
        job.wait(PATIENCE)
        refused(job, ConfigurationError, "is over: finished", {"left": some, "right": other})


def test_barrier_that_the_job_does_not_reach_tells_why(tmp_path):
    def explode(batch):
        raise ValueError("no")

    flow = ps.Flow("fed")
    rows_of = flow.from_split_sets(LEFT, name="left").map_batches(explode, LEFT)
    rows_of.write_parquet(tmp_path / "out")
    with ps.run_local(flow) as job:
        job.add_splits({"left": rows((1, 1))})
        with pytest.raises(ps.errors.UserCodeError, match="no"):
            job.request_barrier().wait(PATIENCE)


def test_flow_that_is_fed_only_in_part_is_refused(tmp_path):
    flow = ps.Flow("mixed")
    own = flow.from_tables([rows((1, 1))], name="own")
    flow.from_split_sets(LEFT, name="left").union(own).write_parquet(tmp_path / "out")
    with pytest.raises(ConfigurationError, match="feeds left, but not own"):
        ps.run_local(flow)


@pytest.mark.parametrize("order", ["arrival", "deterministic"])
def test_checkpoints_of_a_fed_flow_stand_between_windows_with_nothing_in_flight(tmp_path, order):
    """So a job that goes on in the middle of an open window needs no window to end at its former parallelism first."""

    def flow() -> ps.Flow:
        made = ps.Flow("between", order=order)
        made.from_split_sets(LEFT, name="left").gather().write_parquet(tmp_path / "out")
        return made

    with ps.run_local(flow(), parallelism=2, checkpoints=checkpoints(tmp_path)) as job:
        feed(job, [{"left": rows((1, 1), (2, 2))}]).wait(PATIENCE)
        job.add_splits({"left": rows((3, 3))})
        assert {each.unaligned for each in job.checkpoints().history} == {0}
    with ps.run_local(flow(), parallelism=1, checkpoints=checkpoints(tmp_path)) as job:
        feed(job, [{"left": rows((4, 4))}]).wait(PATIENCE)
        job.no_more_splits()
        assert job.wait(PATIENCE).audit().clean
    assert written(tmp_path / "out") == [(1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize(("every", "warned"), [("50ms", 1), (None, 0)])
def test_an_interval_that_cannot_hold_within_a_window_is_warned_of_once(tmp_path, caplog, every, warned):
    flow = ps.Flow("warned")
    flow.from_split_sets(LEFT, name="left").gather().write_parquet(tmp_path / "out")
    assert "checkpoints: between windows" in flow.explain()
    with (
        caplog.at_level(logging.WARNING),
        ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state", every=every)) as job,
    ):
        feed(job, [{"left": rows((1, 1))}]).wait(PATIENCE)
    assert caplog.text.count("no checkpoint stands within a window, so one every 0.05 s is for windows") == warned


def test_job_with_splits_of_its_own_cannot_be_fed(tmp_path):
    flow = ps.Flow("own")
    flow.from_tables([rows((1, 1))]).write_parquet(tmp_path / "out")
    with ps.run_local(flow) as job, pytest.raises(ConfigurationError, match="read splits of their own"):
        job.request_barrier()


@pytest.mark.parametrize(("parallelism", "threads"), [(1, 0), (2, 2)])
def test_what_is_held_is_visible_at_the_end_and_a_limit_does_not_end_the_job(parallelism, threads, tmp_path):
    """The limit is reached in the second of three windows: the caller goes on until it says that no more comes."""
    flow = ps.Flow("held")
    first = flow.from_split_sets(LEFT, name="left").sort("v").limit(4)
    first.aggregate(["k"], n="count", at_barrier="hold").write_parquet(tmp_path / "out")
    with ps.run_local(flow, parallelism=parallelism, threads=threads) as job:
        for keys in ([1], [5, 6, 7, 8, 9], [1, 2]):
            job.add_splits({"left": rows(*((key, key) for key in keys))})
            job.request_barrier().wait(PATIENCE)
            assert written(tmp_path / "out") == []
        job.no_more_splits()
        job.wait(PATIENCE)
        job.no_more_splits()
    assert written(tmp_path / "out") == [(1, 1), (5, 1), (6, 1), (7, 1)]


def test_side_of_which_a_join_needs_no_more_in_a_window_is_read_no_further_on_any_subtask(tmp_path, monkeypatch):
    """Each subtask's lane has two rows on the left, and a hundred batches on the right; so has the next window."""
    monkeypatch.setattr(rounds, "CHUNK_ROWS", 100)
    monkeypatch.setattr("penstock.engine.operators.join.merge_join.HELD_ROWS", 1000)
    monkeypatch.setattr(OutputChannel.__init__, "__defaults__", (1000,))
    seen = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        return batch

    flow = ps.Flow("few", lanes=2)
    left, right = (flow.from_split_sets(LEFT, name=name) for name in ("l", "r"))
    left.merge_join(right.map_batches(note, LEFT, name="noted"), on=["k"]).write_parquet(tmp_path / "out")
    few, many = rows((1, 1), (2, 2)), rows(*((key, key) for key in range(10_000)))
    with ps.run_local(flow, parallelism=2) as job:
        barriers = [feed(job, [{"l": [few, few], "r": [many, many]}]) for _ in range(3)]
        for number, barrier in enumerate(barriers):
            barrier.wait(PATIENCE)
            assert pq.read_table(tmp_path / "out").num_rows >= 4 * (number + 1)
        job.no_more_splits()
        job.wait(PATIENCE)
    assert pq.read_table(tmp_path / "out")["k"].to_pylist().count(1) == 6
    assert 600 <= sum(seen) <= 20_000, "there are 60,000"
