"""Whose an output is: claims, copies of checkpoint folders, successors, races, and what must be there at a resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

import penstock as ps
from penstock.actors.claims.ownership import Claimant, _take
from penstock.engine.core.errors import ConfigurationError, PenstockError, StorageError
from penstock.engine.core.identity import JobIdentity
from penstock.engine.files.paths import resolve
from penstock.engine.sinks.output_folder import OWNERS, OutputFolder

PATIENCE = 60.0
ROWS = 2_000
FILES = 200


def inputs(folder: Path) -> Path:
    if not folder.exists():
        folder.mkdir(parents=True)
        for number in range(FILES):  # a checkpoint may stand behind every eighth
            begin = number * ROWS // FILES
            parquet.write_table(pa.table({"id": range(begin, begin + ROWS // FILES)}), folder / f"{number:03d}.parquet")
    return folder


def flow(base: Path, *, rate: float = 0.0, out: str = "out", mode: str = "new") -> ps.Flow:
    made = ps.Flow("daily")
    made.read_parquet(inputs(base / "in"), rate=rate).write_parquet(base / out, mode=mode)
    return made


def interrupted(base: Path, **options: str) -> None:
    """A run that has committed something and not ended."""
    with ps.run_local(flow(base, rate=400, **options), checkpoints=often(base / "state")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)


def often(folder: Path) -> ps.Checkpoints:
    return ps.Checkpoints(folder, every="50ms")


def read(folder: Path) -> list[int]:
    values: list[int] = dataset.dataset(str(folder), format="parquet").to_table()["id"].to_pylist()
    return sorted(values)


def resume(base: Path, state: str = "state", **options: bool) -> ps.Job:
    return ps.run_local(flow(base), checkpoints=often(base / state), **options).wait(PATIENCE)


# ---------------------------------------------------------------- whose


def test_job_goes_on_in_its_own_output_under_the_identity_of_its_log(tmp_path: Path) -> None:
    interrupted(tmp_path)
    job = resume(tmp_path)
    assert read(tmp_path / "out") == list(range(ROWS))
    (claim, *later) = [json.loads(path.read_bytes()) for path in logged(tmp_path / "state", "claim")]
    assert claim["uuid"] == job.status().uuid
    assert {each["uuid"] for each in later} == {claim["uuid"]}
    assert all(claim["uuid"] in path.name for path in (tmp_path / "out").glob("part-*"))


def logged(folder: Path, kind: str) -> list[Path]:
    return [path for path in sorted(folder.glob("daily/log/*")) if f'"type":"{kind}"' in path.read_text()]


def test_two_jobs_of_one_name_are_two_jobs(tmp_path: Path) -> None:
    interrupted(tmp_path)
    before = read(tmp_path / "out")
    with pytest.raises(ConfigurationError, match="already holds"):
        resume(tmp_path, "another")
    assert read(tmp_path / "out") == before


def test_output_without_data_of_a_job_that_may_go_on_is_refused_and_of_one_that_is_gone_is_not(tmp_path: Path) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "state", every=None)
    with ps.run_local(flow(tmp_path, rate=100), checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.state == "running", PATIENCE)
        with pytest.raises(ConfigurationError, match=r"belongs to job 'daily'; that job may go on: its log is open"):
            resume(tmp_path, "another")
    shutil.rmtree(tmp_path / "state")
    resume(tmp_path, "another")
    assert read(tmp_path / "out") == list(range(ROWS))


KILLED = """
    import os, signal, sys
    import pyarrow as pa, penstock as ps
    flow = ps.Flow("daily")
    flow.from_tables([pa.table({"id": range(10)})] * 100, rate=50).write_parquet(sys.argv[1])
    ps.run_local(flow).wait_until(lambda status: status.state == "running", 60)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_script_without_a_checkpoint_folder_that_was_killed_can_be_run_again(tmp_path: Path) -> None:
    with ps.run_local(flow(tmp_path, rate=100)) as job:
        job.wait_until(lambda status: status.state == "running", PATIENCE)
        with pytest.raises(ConfigurationError, match="may go on: its log is open"):
            ps.run_local(flow(tmp_path))
    done = subprocess.run([sys.executable, "-c", dedent(KILLED), str(tmp_path / "out")], check=False, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    ps.run_local(flow(tmp_path)).wait(PATIENCE)
    assert read(tmp_path / "out") == list(range(ROWS))


def test_moved_checkpoint_folder_goes_on_and_a_copied_one_does_not(tmp_path: Path) -> None:
    interrupted(tmp_path)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    with pytest.raises(ConfigurationError, match="of which this checkpoint folder is a copy"):
        resume(tmp_path, "copy")
    shutil.rmtree(tmp_path / "state")
    resume(tmp_path, "copy")
    assert read(tmp_path / "out") == list(range(ROWS))


@pytest.mark.parametrize("name", ["a/b: c?", "n" * 120])
def test_jobs_whose_names_are_no_names_of_files_are_known_by_their_logs_too(tmp_path: Path, name: str) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "state", every=None)
    with ps.run_local(flow(tmp_path, rate=100), checkpoints=checkpoints, name=name) as job:
        job.wait_until(lambda status: status.state == "running", PATIENCE)
        with pytest.raises(ConfigurationError, match="may go on: its log is open"):
            ps.run_local(flow(tmp_path), checkpoints=tmp_path / "another", name=name)


def test_checkpoint_folder_may_be_reached_by_another_path(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "state")
    resume(tmp_path, "link")
    assert read(tmp_path / "out") == list(range(ROWS))


def test_job_that_begins_anew_where_its_log_and_its_files_were_removed_has_its_output(tmp_path: Path) -> None:
    interrupted(tmp_path)
    shutil.rmtree(tmp_path / "state")
    for part in (tmp_path / "out").glob("part-*"):
        part.unlink()
    resume(tmp_path)
    assert read(tmp_path / "out") == list(range(ROWS))


def stopped(base: Path) -> str:
    """A savepoint that a job has stopped with."""
    job = ps.run_local(flow(base, rate=400), checkpoints=often(base / "state"))
    job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    path: str = job.stop(savepoint=base / "saved", timeout=PATIENCE).path
    return path


def test_heir_may_have_a_sink_less_where_the_flow_may_change(tmp_path: Path) -> None:
    def forked(rate: float, second: bool) -> ps.Flow:
        made = ps.Flow("daily")
        rows = made.read_parquet(inputs(tmp_path / "in"), rate=rate, name="read")
        rows.write_parquet(tmp_path / "out", name="first")
        if second:
            rows.write_parquet(tmp_path / "more", name="second")
        return made

    job = ps.run_local(forked(400, True), checkpoints=often(tmp_path / "state"))
    job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    saved = job.stop(savepoint=tmp_path / "saved", timeout=PATIENCE, aligned=True)
    heir = {"checkpoints": often(tmp_path / "b"), "from_snapshot": saved.path}
    ps.run_local(forked(0, False), allow_changes=True, **heir).wait(PATIENCE)
    assert read(tmp_path / "out") == list(range(ROWS))


def test_heir_whose_sink_has_another_name_is_told_so(tmp_path: Path) -> None:
    def named(sink: str, rate: float = 0.0) -> ps.Flow:
        made = ps.Flow("daily")
        made.read_parquet(inputs(tmp_path / "in"), rate=rate, name="read").write_parquet(tmp_path / "out", name=sink)
        return made

    job = ps.run_local(named("first", 400), checkpoints=often(tmp_path / "state"))
    job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    saved = job.stop(savepoint=tmp_path / "saved", timeout=PATIENCE, aligned=True)
    heir = {"checkpoints": often(tmp_path / "b"), "from_snapshot": saved.path, "allow_changes": True}
    with pytest.raises(ConfigurationError, match="was written by sink first, and second has written") as caught:
        ps.run_local(named("second"), **heir).wait(PATIENCE)
    assert "name='first'" in caught.value.remedy


def test_heir_that_wrote_nothing_leaves_the_output_to_the_next_one(tmp_path: Path) -> None:
    saved = stopped(tmp_path)
    never = ps.Checkpoints(tmp_path / "b", every=None)
    with ps.run_local(flow(tmp_path, rate=50), checkpoints=never, from_snapshot=saved) as job:
        job.wait_until(lambda status: status.state == "running", PATIENCE)
    with pytest.raises(ConfigurationError, match="may go on: its log is open"):
        ps.run_local(flow(tmp_path), checkpoints=often(tmp_path / "c"), from_snapshot=saved)
    ps.run_local(flow(tmp_path), checkpoints=often(tmp_path / "c"), from_snapshot=saved, take_over=True).wait(PATIENCE)
    assert read(tmp_path / "out") == list(range(ROWS))


def test_second_heir_of_one_savepoint_is_refused_once_the_first_has_written(tmp_path: Path) -> None:
    saved = stopped(tmp_path)
    ps.run_local(flow(tmp_path), checkpoints=often(tmp_path / "b"), from_snapshot=saved).wait(PATIENCE)
    for take_over in (False, True):
        with pytest.raises(ConfigurationError, match="that are not this job's"):
            ps.run_local(
                flow(tmp_path), checkpoints=often(tmp_path / "c"), from_snapshot=saved, take_over=take_over
            ).wait(PATIENCE)
    assert read(tmp_path / "out") == list(range(ROWS))


def test_copy_that_was_made_before_the_job_went_on_is_refused_for_good(tmp_path: Path) -> None:
    interrupted(tmp_path)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    resume(tmp_path)
    for state in ("copy", "state"):
        if state == "state":  # the same, put back in its place
            shutil.rmtree(tmp_path / "state")
            shutil.copytree(tmp_path / "copy", tmp_path / "state")
        with pytest.raises(ConfigurationError, match=r"a claim that the log in .* does not hold"):
            resume(tmp_path, state)
    with pytest.raises(ConfigurationError, match="these rows would come twice"):
        resume(tmp_path, take_over=True)
    assert read(tmp_path / "out") == list(range(ROWS))


def test_copy_that_is_told_to_takes_the_output_and_the_original_cannot_commit_any_more(tmp_path: Path) -> None:
    original = ps.run_local(flow(tmp_path, rate=200), checkpoints=ps.Checkpoints(tmp_path / "state", every=None))
    with original:
        original.wait_until(lambda status: status.state == "running", PATIENCE)
        shutil.copytree(tmp_path / "state", tmp_path / "copy")
        resume(tmp_path, "copy", take_over=True)
        original.checkpoint(PATIENCE)
        with pytest.raises(PenstockError, match="it was taken over while this job wrote"):
            original.wait(PATIENCE)
    assert read(tmp_path / "out") == list(range(ROWS))


def test_copy_that_goes_on_in_the_generation_of_the_original_is_another_one(tmp_path: Path) -> None:
    """Both count on from the same entry, so only the name of the claim tells them apart."""
    interrupted(tmp_path)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    rarely = ps.Checkpoints(tmp_path / "state", every=None)
    with ps.run_local(flow(tmp_path, rate=40), checkpoints=rarely) as original:
        original.wait_until(lambda status: status.state == "running", PATIENCE)
        with pytest.raises(ConfigurationError, match=r"a claim that the log in .*/copy/daily does not hold"):
            resume(tmp_path, "copy")
        heir = resume(tmp_path, "copy", take_over=True)
        assert heir.status().generation == original.status().generation
        original.checkpoint(PATIENCE)
        with pytest.raises(PenstockError, match="it was taken over while this job wrote"):
            original.wait(PATIENCE)
    assert read(tmp_path / "out") == list(range(ROWS))


def test_of_many_that_take_a_folder_at_once_one_has_it(tmp_path: Path) -> None:
    for number in range(20):
        output = OutputFolder(*resolve(str(tmp_path / f"out{number}")))
        ready, won = threading.Barrier(4), []

        def take(name: str, output: OutputFolder = output, ready: threading.Barrier = ready, won: list = won) -> None:
            claimant = Claimant(JobIdentity(name, 1, name), (name,), name, str(tmp_path / name))
            ready.wait()
            try:
                _take(output, "exclusive", claimant, "write")
            except ConfigurationError:
                return
            won.append(name)

        for name in "abcd":  # jobs whose logs are open
            (tmp_path / name / "log").mkdir(parents=True, exist_ok=True)
        threads = [threading.Thread(target=take, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _, owner = output.owner()
        assert owner is not None
        assert owner.uuid in won
        # the logs are empty here, so an owner may be followed; but each entry was created once, by one of them
        assert len(os.listdir(f"{output.folder}/{OWNERS}")) == len(won)


def test_damaged_marker_is_named(tmp_path: Path) -> None:
    interrupted(tmp_path)
    path = sorted((tmp_path / "out" / OWNERS).iterdir())[-1]
    path.write_bytes(path.read_bytes().replace(b'"job": "daily"', b'"job": "dailz"'))
    with pytest.raises(StorageError, match="is damaged: its bytes do not fit") as caught:
        resume(tmp_path)
    assert str(path) in caught.value.message


# ---------------------------------------------------------------- exclusive and append


def test_jobs_that_append_at_once_are_exact_and_clean_up_only_after_themselves(tmp_path: Path) -> None:
    jobs = [
        ps.run_local(flow(tmp_path, rate=4000, mode="append"), checkpoints=often(tmp_path / f"state{number}"))
        for number in range(2)
    ]
    for job in jobs:
        job.wait(PATIENCE)
        assert job.audit().clean
        assert job.audit().sinks[0].visible == ROWS
    assert read(tmp_path / "out") == sorted(2 * list(range(ROWS)))


def test_job_that_appends_finds_what_is_missing_of_its_own(tmp_path: Path) -> None:
    parquet_of_others = tmp_path / "out" / "older.parquet"
    parquet_of_others.parent.mkdir()
    parquet.write_table(pa.table({"id": [-1]}), parquet_of_others)
    interrupted(tmp_path, mode="append")
    min((tmp_path / "out").glob("part-*")).unlink()  # of the oldest checkpoint, so it is not committed again
    with pytest.raises(ConfigurationError, match="files that the log counts are gone"):
        ps.run_local(flow(tmp_path, mode="append"), checkpoints=often(tmp_path / "state")).wait(PATIENCE)


def test_exclusive_folder_is_not_appended_to_while_its_job_may_go_on_nor_the_other_way_round(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.raises(ConfigurationError, match="adding to it would break its count"):
        ps.run_local(flow(tmp_path, mode="append"), checkpoints=often(tmp_path / "b"))
    ps.run_local(flow(tmp_path, out="added", mode="append"), checkpoints=often(tmp_path / "c")).wait(PATIENCE)
    for path in (tmp_path / "added").glob("part-*"):
        path.unlink()
    with pytest.raises(ConfigurationError, match="is one that jobs append to"):
        ps.run_local(flow(tmp_path, out="added"), checkpoints=often(tmp_path / "d"))


def test_foreign_file_in_an_exclusive_folder_fails_the_next_commit(tmp_path: Path) -> None:
    job = ps.run_local(flow(tmp_path, rate=400), checkpoints=ps.Checkpoints(tmp_path / "state", every="50ms"))
    job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    parquet.write_table(pa.table({"id": [7]}), tmp_path / "out" / "mine.parquet")
    with pytest.raises(PenstockError, match=r"files that are not this job's"):
        job.wait(PATIENCE)


# ---------------------------------------------------------------- what must be there


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda part: part.unlink(), "files that the log counts are gone"),
        (lambda part: part.rename(part.with_name("part-of-mine.parquet")), "files that are not this job's"),
        (lambda part: part.write_bytes(part.read_bytes()[:-9]), "other sizes"),
    ],
    ids=["gone", "renamed", "cut"],
)
def test_output_that_is_not_as_it_was_left_is_refused_at_the_resume(tmp_path: Path, damage, message: str) -> None:
    interrupted(tmp_path)
    damage(sorted((tmp_path / "out").glob("part-*"))[0])
    with pytest.raises(ConfigurationError, match=message):
        resume(tmp_path)


def test_log_whose_newest_entry_is_lost_does_not_repeat_rows(tmp_path: Path) -> None:
    interrupted(tmp_path)
    logged(tmp_path / "state", "checkpoint")[-1].unlink()
    before = read(tmp_path / "out")
    with pytest.raises(ConfigurationError, match="these rows would come twice"):
        resume(tmp_path)
    assert read(tmp_path / "out") == before


def test_downstream_may_take_away_what_was_retired(tmp_path: Path) -> None:
    interrupted(tmp_path)
    leaving = ps.retire_output(tmp_path / "state" / "daily", tmp_path / "out")
    assert leaving
    taken = tmp_path / "taken"
    taken.mkdir()
    for path in leaving:
        shutil.move(path, taken)
    assert ps.retire_output(tmp_path / "state" / "daily", tmp_path / "out") == []
    resume(tmp_path)
    assert sorted(read(taken) + read(tmp_path / "out")) == list(range(ROWS))


def test_heir_counts_its_checkpoints_from_one_whatever_its_parent_has_retired(tmp_path: Path) -> None:
    for _ in range(2):  # generations: the parent's checkpoints have larger numbers than the heir's
        interrupted(tmp_path)
    taken = tmp_path / "taken"
    taken.mkdir()
    for path in ps.retire_output(tmp_path / "state" / "daily", tmp_path / "out"):
        shutil.move(path, taken)
    saved = stopped(tmp_path)
    heir = {"checkpoints": often(tmp_path / "b"), "from_snapshot": saved}
    with ps.run_local(flow(tmp_path, rate=800), **heir) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
    for path in ps.retire_output(tmp_path / "b" / "daily", tmp_path / "out"):
        shutil.move(path, taken)
    ps.run_local(flow(tmp_path), **heir).wait(PATIENCE)
    assert sorted(read(taken) + read(tmp_path / "out")) == list(range(ROWS))


def test_what_is_prepared_and_not_visible_yet_is_not_missed_by_who_retires(tmp_path: Path) -> None:
    job = ps.run_local(flow(tmp_path, rate=4000), checkpoints=ps.Checkpoints(tmp_path / "state", every="5ms"))
    job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
    while not job.status().is_over:
        ps.retire_output(tmp_path / "state" / "daily", tmp_path / "out")
    job.wait(PATIENCE)


def test_retiring_refuses_what_is_not_there_and_what_is_unknown(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.raises(ConfigurationError, match="no completed checkpoint"):
        ps.retire_output(tmp_path / "state" / "daily", tmp_path / "out", up_to="0.1")
    with pytest.raises(ConfigurationError, match="up_to='soon'"):
        ps.retire_output(tmp_path / "state" / "daily", tmp_path / "out", up_to="soon")
    with pytest.raises(ConfigurationError, match="holds no log of a job"):
        ps.retire_output(tmp_path / "state", tmp_path / "out")
    with pytest.raises(ConfigurationError, match="has no output of job 'daily'"):
        ps.retire_output(tmp_path / "state" / "daily", tmp_path / "elsewhere")
    next((tmp_path / "out").glob("part-*")).unlink()
    with pytest.raises(ConfigurationError, match="files that the log counts are gone"):
        ps.retire_output(tmp_path / "state" / "daily", tmp_path / "out")


# ---------------------------------------------------------------- within one process


def test_jobs_of_one_name_in_one_process_have_their_own_rows_and_feeds() -> None:
    jobs = []
    for value in (1, 2):
        made = ps.Flow("same")
        made.from_tables([pa.table({"a": [value] * 100})]).collect("rows")
        jobs.append(ps.run_local(made))
    assert [set(job.result("rows")["a"].to_pylist()) for job in jobs] == [{1}, {2}]
    fed = []
    for value in (1, 2):
        made = ps.Flow("same")
        made.from_tables([pa.table({"a": [value] * 100})]).feed(10)
        fed.append(ps.run_local(made))
    for value, job in zip((1, 2), fed, strict=True):
        with job.feed().reader(timeout=PATIENCE) as reader:
            seen = {each for batch in reader.iter_batches() for each in batch.column("a").to_pylist()}
        assert seen == {value}
    for job in fed:
        job.wait(PATIENCE)


def test_rows_of_a_finished_job_go_with_it() -> None:
    from penstock.engine.sinks.collect import COLLECTED

    made = ps.Flow("short")
    made.from_tables([pa.table({"a": [1]})]).collect("rows")
    job = ps.run_local(made).wait(PATIENCE)
    key = job.plan.key
    assert COLLECTED.read(key, "rows").num_rows == 1
    del job
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            COLLECTED.read(key, "rows")
        except ConfigurationError:
            return
        import gc

        gc.collect()
    raise AssertionError("the rows of a job that nobody holds are still there")
