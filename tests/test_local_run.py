"""Whole jobs in this process: results, resume, parallelism. The same hosts and cores run on Ray."""

import os
import time

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.engine.core.errors import ConfigurationError, TaskLostError, UserCodeError

SPLITS = 12


def numbers(splits=SPLITS, rows=50) -> list[pa.Table]:
    return [
        pa.table({"key": pa.array([number] * rows), "value": pa.array(range(number * 1000, number * 1000 + rows))})
        for number in range(splits)
    ]


def sums(output, name="sums", lanes=4, rate=0.0) -> ps.Flow:
    """Filtered rows and their sums by key, the sums in one ordered file."""
    flow = ps.Flow(name, lanes=lanes)
    rows = flow.from_tables(numbers(), name="numbers", rate=rate).filter(pc.bit_wise_and(ps.field("value"), 1) == 0)
    rows.write_parquet(output / "rows", name="rows")
    totals = rows.stream_aggregate(by=["key"], n=("value", "count"), total=("value", "sum"))
    totals.gather().write_parquet(output / "sums", name="sums")
    return flow


EXPECTED = pa.table(
    {
        "key": pa.array(range(SPLITS)),
        "n": pa.array([25] * SPLITS),
        "total": pa.array([sum(range(k * 1000, k * 1000 + 50, 2)) for k in range(SPLITS)]),
    }
)


def read(folder, key) -> pa.Table:
    return ds.dataset(folder).to_table().sort_by(key)


def check(output) -> None:
    assert read(output / "sums", "key").cast(EXPECTED.schema) == EXPECTED
    values = read(output / "rows", "value").column("value").to_pylist()
    assert values == [v for k in range(SPLITS) for v in range(k * 1000, k * 1000 + 50, 2)]


def test_job_gives_its_rows_once_and_a_clean_audit(tmp_path):
    job = ps.run_local(sums(tmp_path), checkpoints=ps.Checkpoints(tmp_path / "state")).wait()
    check(tmp_path)
    audit = job.audit()
    assert audit.clean
    assert [sink.rows for sink in audit.sinks] == [25 * SPLITS, SPLITS]
    assert [split.read for split in audit.sources[0].splits] == [50] * SPLITS
    assert "gaps 0, repeats 0" in str(audit)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_sequence_behind_a_gather_does_not_depend_on_parallelism(tmp_path, parallelism):
    flow = ps.Flow("order", lanes=4)
    stream = flow.from_tables(numbers(), name="numbers").filter(ps.field("value") < 11_010)
    stream.stream_aggregate(by=["key"], n="count").gather().collect("out")
    keys = ps.run_local(flow, parallelism=parallelism).result("out").column("key").to_pylist()
    assert keys == list(range(SPLITS))


def test_outputs_of_a_finished_job_hold_nothing_hidden_but_the_marker(tmp_path):
    ps.run_local(sums(tmp_path), parallelism=2, checkpoints=tmp_path / "state").wait()
    hidden = [path.name for path in tmp_path.glob("rows/*") if path.name.startswith(("_", "."))]
    assert hidden == ["_penstock"]


@pytest.mark.parametrize("again", [1, 2, 4])
def test_stopped_job_goes_on_from_its_checkpoint_at_another_parallelism(tmp_path, again):
    checkpoints = ps.Checkpoints(tmp_path / "state", every="50ms")
    with ps.run_local(sums(tmp_path, rate=500.0), parallelism=2, checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, timeout=60)
    assert job.status().state not in ("finished", "failed")
    resumed = ps.run_local(sums(tmp_path), parallelism=again, checkpoints=checkpoints).wait()
    assert resumed.status().restored_from is not None
    check(tmp_path)
    assert resumed.audit().clean


@pytest.mark.parametrize("threads", [0, 2])
def test_union_goes_on_when_one_side_has_only_final_rows_left(threads, monkeypatch):
    """The final rows come in several batches, of which the union takes one before the other side has ended."""
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 20_000)
    flow = ps.Flow("ends-early", lanes=2)
    groups = flow.from_tables([pa.table({"k": pa.array(range(140_000))})], name="short").aggregate(["k"], n="count")
    rows = flow.from_tables([pa.table({"k": pa.array(range(300_000)), "n": pa.array(range(300_000))})] * 2, name="long")
    groups.union(rows.gather()).collect("out")
    job = ps.run_local(flow, threads=threads)
    assert job.wait(120).result("out").num_rows == 740_000


def test_rows_that_a_limit_left_unread_are_no_gap(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 100)
    flow = ps.Flow("few", lanes=2)
    flow.from_tables([pa.table({"k": pa.array(range(100_000))})] * 4, name="rows", rate=50_000).limit(10).collect("out")
    job = ps.run_local(flow, parallelism=2, checkpoints=tmp_path).wait(60)
    audit = job.audit()
    assert audit.clean
    [source] = audit.sources
    assert source.needless > 0
    assert source.rows + source.needless == 400_000
    assert "more not needed" in str(audit)
    assert job.result("out").num_rows == 10


def test_job_that_was_shut_down_does_not_wait_for_its_end(tmp_path):
    job = ps.run_local(sums(tmp_path / "out", rate=50.0))
    job.wait_until(lambda status: status.state == "running", 60)
    job.shutdown()
    assert job.status().state == "running", "the last that was heard"
    with pytest.raises(TaskLostError, match="cannot be asked: it was shut down"):
        job.wait()


def test_cancelled_job_can_be_resumed(tmp_path):
    checkpoints = ps.Checkpoints(tmp_path / "state", every="50ms")
    job = ps.run_local(sums(tmp_path, rate=500.0), checkpoints=checkpoints)
    job.wait_until(lambda status: status.checkpoints_completed >= 1, timeout=60)
    job.cancel()
    assert job.wait(timeout=60).status().state == "cancelled"
    ps.run_local(sums(tmp_path), checkpoints=checkpoints).wait()
    check(tmp_path)


def test_second_run_of_a_finished_job_is_refused_and_changes_nothing(tmp_path):
    ps.run_local(sums(tmp_path), checkpoints=tmp_path / "state").wait()
    with pytest.raises(ConfigurationError):
        ps.run_local(sums(tmp_path), checkpoints=tmp_path / "state").wait()
    check(tmp_path)


def test_script_that_runs_twice_at_once_is_told_in_which_process_the_other_run_is(tmp_path):
    checkpoints, whose = ps.Checkpoints(tmp_path / "state", every="50ms"), f"in process {os.getpid()} on host "
    with ps.run_local(sums(tmp_path / "one", rate=100.0), checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, timeout=60)
        with pytest.raises(ConfigurationError, match=f"is in use: a run that began at .* UTC {whose}") as caught:
            ps.run_local(sums(tmp_path / "two", lanes=2), checkpoints=checkpoints).wait()
        assert caught.value.remedy == "end it first, or give this run a folder of its own"
        with pytest.raises(ConfigurationError, match=f"is in use: a run that began at .* UTC {whose}"):
            ps.run_local(sums(tmp_path / "one"), checkpoints=checkpoints, resume="never")
        again = ps.run_local(sums(tmp_path / "one"), checkpoints=checkpoints)
        with pytest.raises(ConfigurationError, match=f"has taken over job 'sums'; it was claimed last by .* {whose}"):
            job.wait(60)
        again.wait(60)
    check(tmp_path / "one")


def test_run_that_is_over_is_not_said_to_go_on_though_its_process_does(tmp_path):
    checkpoints = ps.Checkpoints(tmp_path / "state", every="50ms")
    with ps.run_local(sums(tmp_path, rate=500.0), checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, timeout=60)
        job.cancel()
        job.wait_until(lambda status: status.is_over, timeout=60)
        with pytest.raises(ConfigurationError, match="another flow; it was claimed last by a run that began at"):
            ps.run_local(sums(tmp_path / "two", lanes=2), checkpoints=checkpoints).wait()


def test_checkpoint_folder_of_another_flow_is_refused_and_says_which(tmp_path):
    checkpoints = ps.Checkpoints(tmp_path / "state", every="50ms")
    with ps.run_local(sums(tmp_path / "one", rate=500.0), checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, timeout=60)
    before = sorted(tmp_path.glob("state/**/*"))
    flow = ps.Flow("sums", lanes=4)
    flow.from_tables(numbers(), name="numbers").filter(ps.field("value") > 7).write_parquet(tmp_path / "two")
    with pytest.raises(ConfigurationError) as caught:
        ps.run_local(flow, checkpoints=checkpoints).wait()
    assert "folder" in caught.value.remedy
    assert "another flow" in str(caught.value) or "different flow" in str(caught.value)
    assert sorted(tmp_path.glob("state/**/*")) == before, "nothing was written"
    assert not list(tmp_path.glob("two/part-*"))


def test_resume_never_refuses_a_folder_with_checkpoints(tmp_path):
    ps.run_local(sums(tmp_path), checkpoints=tmp_path / "state").wait()
    with pytest.raises(ConfigurationError, match="holds checkpoints"):
        ps.run_local(sums(tmp_path / "again"), checkpoints=tmp_path / "state", resume="never")


def test_resume_must_refuses_a_folder_without_checkpoints_and_goes_on_from_one(tmp_path):
    with pytest.raises(ConfigurationError, match="holds no checkpoint of job 'sums' to go on from") as caught:
        ps.run_local(sums(tmp_path / "out"), checkpoints=tmp_path / "state", resume="must")
    assert "path" in caught.value.remedy
    job = ps.run_local(sums(tmp_path / "out", rate=200.0), checkpoints=ps.Checkpoints(tmp_path / "state", every="20ms"))
    job.wait_until(lambda status: status.checkpoints_completed >= 1, 60)
    job.shutdown()
    again = ps.run_local(sums(tmp_path / "out"), checkpoints=tmp_path / "state", resume="must").wait()
    assert again.status().restored_from is not None
    check(tmp_path / "out")


def test_resume_that_is_none_of_the_three_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="resume='always' does not fit"):
        ps.run_local(sums(tmp_path / "out"), checkpoints=tmp_path / "state", resume="always")


def test_user_function_that_raises_ends_the_job_with_operator_split_rows_and_traceback(tmp_path):
    def explode(batch):
        if batch.column("key")[0].as_py() == 7:
            raise ValueError("key 7 is unlucky")
        return batch

    flow = ps.Flow("unlucky", lanes=2)
    stream = flow.from_tables(numbers(), name="numbers")
    stream.map_batches(explode, stream.schema, name="explode").write_parquet(tmp_path / "out")
    job = ps.run_local(flow, parallelism=2, checkpoints=ps.Checkpoints(tmp_path / "state", every="10ms"))
    with pytest.raises(UserCodeError) as caught:
        job.wait(timeout=60)
    error = caught.value
    assert error.operator == "explode"
    assert "key 7 is unlucky" in str(error)
    assert "split numbers" in error.message
    assert "rows 0" in error.message
    assert "in explode" in error.detail
    assert not list((tmp_path / "out").glob("_staging/*/*")), "nothing half committed is left"


def test_job_says_what_it_waits_for(tmp_path):
    with ps.run_local(sums(tmp_path, rate=1.0), checkpoints=ps.Checkpoints(tmp_path / "state", every=None)) as job:
        job.wait_until(lambda status: status.state == "running", timeout=60)
        deadline = time.monotonic() + 60
        while not any("waits for" in sentence for sentence in job.why()):
            assert time.monotonic() < deadline, job.why()


def test_second_sink_in_the_folder_of_another_job_is_refused(tmp_path):
    ps.run_local(sums(tmp_path)).wait()
    flow = ps.Flow("other")
    flow.from_tables(numbers(), name="numbers").write_parquet(tmp_path / "rows")
    with pytest.raises(ConfigurationError, match="belongs to job 'sums'"):
        ps.run_local(flow)
    check(tmp_path)


def test_unwritable_output_folder_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("in the way")
    flow = ps.Flow("blocked")
    flow.from_tables(numbers(), name="numbers").write_parquet(tmp_path / "file" / "out", name="out")
    with pytest.raises(ConfigurationError) as caught:
        ps.run_local(flow)
    assert caught.value.operator == "out"
    assert str(tmp_path / "file") in caught.value.message


def test_unsorted_side_of_a_merge_join_ends_the_job_and_names_the_keys(tmp_path):
    flow = ps.Flow("unsorted", lanes=1)
    left = flow.from_tables([pa.table({"k": [1, 3, 2], "a": [1, 2, 3]})], name="left")
    right = flow.from_tables([pa.table({"k": [1, 2, 3], "b": [1, 2, 3]})], name="right")
    left.merge_join(right, on=["k"], name="join").write_parquet(tmp_path / "out")
    with pytest.raises(ps.errors.DataError) as caught:
        ps.run_local(flow).wait(timeout=60)
    assert caught.value.operator == "join"
    assert "left" in caught.value.message
    assert "3" in caught.value.message
    assert "2" in caught.value.message
    assert "sort" in caught.value.remedy.lower()
    assert not list((tmp_path / "out").glob("part-*"))


def test_job_without_checkpoints_takes_the_one_that_it_ends_with_and_no_other():
    flow = ps.Flow("unasked")
    joined = flow.from_tables(numbers(splits=40))
    for name, splits in (("one", 1), ("two", 9), ("three", 20)):
        side = flow.from_tables(numbers(splits=splits), name=name).project("value", **{name: ps.field("key")})
        joined = joined.hash_join(side, ["value"], how="left")
    joined.collect("out")
    job = ps.run_local(flow, parallelism=2).wait()
    assert job.result("out").num_rows == 40 * 50
    assert (job.checkpoints().counts.triggered, job.checkpoints().counts.completed) == (1, 1)


def sorted_rows(rows, other):
    return rows.sort("value")


def fully_shuffled(rows, other):
    return rows.shuffle("full")


def joined(rows, other):
    return other.hash_join(rows, ["value"], exchange="key")


def grouped(rows, other):
    return rows.aggregate(["value"], n=("key", "count"))


@pytest.mark.parametrize("holding", [sorted_rows, fully_shuffled, joined, grouped])
def test_a_job_goes_on_from_state_that_is_more_than_its_memory_budget(tmp_path, holding):
    def flow():
        flow = ps.Flow("much", lanes=4)
        rows = flow.from_tables(numbers(rows=500), name="rows", rate=20_000)
        other = flow.from_tables(numbers(rows=500), name="other", rate=2_000).project("value")
        holding(rows, other).gather().collect("all")
        return flow

    expected = ps.run_local(flow(), rate=0).result("all")
    job = ps.run_local(flow(), checkpoints=str(tmp_path / "state"), memory_budget=2_000)
    time.sleep(0.2)
    job.checkpoint(30)
    job.shutdown()
    job = ps.run_local(flow(), checkpoints=str(tmp_path / "state"), memory_budget=2_000, rate=0)
    assert job.wait(60).result("all") == expected
    assert job.status().restarts == 0
