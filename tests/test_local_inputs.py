"""Inputs that change under a job: files and tables are those that it began with, or it is refused by their names."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import csv, ipc, parquet

import penstock as ps
from penstock.actors.claims.inputs import settle
from penstock.engine.core.errors import ConfigurationError, DataError, UserCodeError

FILES, ROWS = 24, 20
PATIENCE = 60
FORMS = ("parquet", "csv", "arrow")
Change = Callable[[Path], None]


def write(path: Path, first: int, rows: int = ROWS) -> None:
    """A file of the numbers from ``first`` on, all of the same width."""
    table = pa.table({"n": pa.array(range(100_000 + first, 100_000 + first + rows), pa.int64())})
    if path.suffix == ".parquet":
        parquet.write_table(table, path, use_dictionary=False, compression="none", write_statistics=False)
    elif path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        with ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)


def make(folder: Path, form: str) -> Path:
    folder.mkdir()
    for number in range(FILES):
        write(folder / f"{number:02d}.{form}", number * ROWS)
    return folder


def flow(folder: Path, output: Path, rate: float = 0.0, *, lanes: int = 4, **options: object) -> ps.Flow:
    made = ps.Flow("reading", lanes=lanes, **options)
    form = next(path for path in sorted(folder.iterdir())).suffix
    read = {".parquet": made.read_parquet, ".csv": made.read_csv, ".arrow": made.read_ipc}[form]
    read(folder, name="rows", rate=rate).write_parquet(output, name="out")
    return made


def numbers(output: Path) -> list[int]:
    found: list[int] = ds.dataset(output).to_table().column("n").to_pylist()
    return sorted(number - 100_000 for number in found)


def stopped_half_way(folder: Path, place: Path, **options: object) -> None:
    """A job that has committed some rows and was cut off."""
    with ps.run_local(
        flow(folder, place / "out", rate=400.0, **options), checkpoints=ps.Checkpoints(place / "state", every="50ms")
    ) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)
    assert 0 < len(numbers(place / "out")) < FILES * ROWS


def go_on(folder: Path, place: Path, **options: object) -> ps.Job:
    return ps.run_local(flow(folder, place / "out"), checkpoints=place / "state", **options).wait(PATIENCE)


@pytest.fixture(params=FORMS)
def half_way(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    stopped_half_way(make(tmp_path / "in", request.param), tmp_path)
    return tmp_path


def files_of(place: Path) -> list[Path]:
    return sorted((place / "in").iterdir())


# --- the same files ---------------------------------------------------------------------------------------------


def test_touched_files_of_the_same_content_are_the_same(half_way: Path) -> None:
    for path in files_of(half_way):
        os.utime(path)
    go_on(half_way / "in", half_way)
    assert numbers(half_way / "out") == list(range(FILES * ROWS))


def test_folder_may_be_moved(half_way: Path) -> None:
    shutil.copytree(half_way / "in", half_way / "there")
    shutil.rmtree(half_way / "in")
    go_on(half_way / "there", half_way)
    assert numbers(half_way / "out") == list(range(FILES * ROWS))


def test_files_that_came_since_are_not_read_and_named(half_way: Path, caplog: pytest.LogCaptureFixture) -> None:
    form = files_of(half_way)[0].suffix
    write(half_way / "in" / f"00-new{form}", 5000)  # in the middle of the others
    write(half_way / "in" / f"99{form}", 6000)
    job = go_on(half_way / "in", half_way)
    assert numbers(half_way / "out") == list(range(FILES * ROWS))
    assert f"rows: 00-new{form}; rows: 99{form}" in caplog.text
    assert job.audit().ignored == (f"rows: 00-new{form}", f"rows: 99{form}")
    assert f"not read 2 files that came since: rows: 00-new{form}" in str(job.audit())


def test_flow_that_does_not_say_its_parts_goes_on_with_those_of_its_checkpoint(tmp_path: Path) -> None:
    def counting(**options: int) -> ps.Flow:
        made = ps.Flow("counting", lanes=4, **options)
        rows = made.read_parquet(tmp_path / "in", name="rows", rate=400.0 if options else 0.0)
        rows.distinct("n", exchange="key").rebalance().write_parquet(tmp_path / "out", name="out")
        return made

    make(tmp_path / "in", "parquet")
    state = tmp_path / "state"
    with ps.run_local(counting(parts=128), checkpoints=ps.Checkpoints(state, every="50ms")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)
    job = ps.run_local(counting(), checkpoints=state, parallelism=2, resume="must").wait(PATIENCE)
    assert job.plan.parts == 128
    assert numbers(tmp_path / "out") == list(range(FILES * ROWS))


# --- other files ------------------------------------------------------------------------------------------------


def shift(path: Path) -> None:
    """As a new export would: the same size, other rows."""
    size = path.stat().st_size
    write(path, 7 * ROWS + 3)
    assert path.stat().st_size == size


def swap(path: Path) -> None:
    """The same files under each other's names."""
    other = path.with_name(f"01{path.suffix}")
    aside = path.with_name(".aside")
    for source, target in ((path, aside), (other, path), (aside, other)):
        source.rename(target)


CHANGES: dict[str, tuple[Change, str]] = {
    "written again": (shift, r"/00\.\w+ has other content than when the job was planned"),
    "exchanged": (swap, r"/00\.\w+ has other content than when the job was planned"),
    "cut": (lambda path: write(path, 0, ROWS - 3), r"/00\.\w+ had \d+ bytes when the job was planned and has \d+ now"),
    "grown": (lambda path: write(path, 0, ROWS + 99), r"/00\.\w+ had \d+ bytes .* and has \d+ now"),
    "removed": (Path.unlink, r"00\.\w+ is gone"),
    "renamed": (lambda path: path.rename(path.with_name(f"00-b{path.suffix}")) and None, r"00\.\w+ is gone"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_that_have_changed_are_refused_by_name_before_anything_starts(half_way: Path, change: str) -> None:
    alter, match = CHANGES[change]
    before = numbers(half_way / "out")
    alter(files_of(half_way)[0])
    with pytest.raises(ConfigurationError, match=match) as caught:
        go_on(half_way / "in", half_way)
    assert caught.value.operator == "rows"
    assert "put the files back as they were" in caught.value.remedy
    assert numbers(half_way / "out") == before


def test_paths_in_another_order_are_said_to_be_that(tmp_path: Path) -> None:
    paths = sorted(make(tmp_path / "in", "parquet").iterdir())[:3]

    def over(paths: Sequence[Path], rate: float = 0.0) -> ps.Flow:
        made = ps.Flow("reading", lanes=2)
        made.read_parquet(paths, name="rows", rate=rate).write_parquet(tmp_path / "out", name="out")
        return made

    with ps.run_local(over(paths, 100.0), checkpoints=ps.Checkpoints(tmp_path / "state", every="50ms")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
    with pytest.raises(ConfigurationError, match="paths of this source are in another order") as caught:
        ps.run_local(over([paths[2], paths[0], paths[1]]), checkpoints=tmp_path / "state")
    assert "those of now in the order 2, 3, 1" in caught.value.remedy
    ps.run_local(over(paths), checkpoints=tmp_path / "state").wait(PATIENCE)
    assert numbers(tmp_path / "out") == list(range(3 * ROWS))


def test_job_goes_on_when_the_file_is_put_back(half_way: Path) -> None:
    path = files_of(half_way)[0]
    shutil.copy(path, half_way / "aside")
    shift(path)
    with pytest.raises(ConfigurationError, match="other content"):
        go_on(half_way / "in", half_way)
    shutil.copy(half_way / "aside", path)
    go_on(half_way / "in", half_way)
    assert numbers(half_way / "out") == list(range(FILES * ROWS))


def test_job_without_a_checkpoint_begins_with_what_is_there(tmp_path: Path) -> None:
    """A file that the flow could not work with is repaired, and the script run again."""

    def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert 109_999 not in batch["n"].to_pylist()
        return batch

    folder = make(tmp_path / "in", "csv")
    write(folder / "00.csv", 9_990)
    checkpoints = ps.Checkpoints(tmp_path / "state", every=None)
    made = ps.Flow("reading", lanes=4)
    rows = made.read_csv(folder, name="rows")
    rows.map_batches(refuse, rows.schema).write_parquet(tmp_path / "out", name="out")
    with pytest.raises(UserCodeError):
        ps.run_local(made, checkpoints=checkpoints).wait(PATIENCE)
    write(folder / "00.csv", 0)
    ps.run_local(made, checkpoints=checkpoints).wait(PATIENCE)
    assert numbers(tmp_path / "out") == list(range(FILES * ROWS))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("change", ["written again", "cut", "grown"])
def test_file_that_changes_while_the_job_runs_ends_it_by_name(tmp_path: Path, change: str, kept: bool) -> None:
    folder = make(tmp_path / "in", "csv")
    made = flow(folder, tmp_path / "out", rate=200.0)
    with ps.run_local(made, checkpoints=tmp_path / "state" if kept else None) as job:
        last = folder / f"{FILES - 1}.csv"
        alter, match = CHANGES[change]
        alter(last)
        with pytest.raises(DataError, match=match.replace("00", str(FILES - 1))):
            job.wait(PATIENCE)


def test_file_that_goes_while_the_job_runs_ends_it_by_name(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "csv")
    checkpoints = ps.Checkpoints(tmp_path / "state")
    with ps.run_local(flow(folder, tmp_path / "out", rate=200.0), checkpoints=checkpoints) as job:
        (folder / f"{FILES - 1}.csv").unlink()
        with pytest.raises(DataError, match=f"{folder}/{FILES - 1}.csv was there when the job was planned and is gone"):
            job.wait(PATIENCE)
        assert job.status().restarts == 0


def test_flow_that_was_built_before_its_files_changed_reads_what_is_there_when_it_starts(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "csv")
    made = flow(folder, tmp_path / "out")
    write(folder / "00.csv", 0, 1)
    write(folder / "new.csv", 5000, 1)
    ps.run_local(made, checkpoints=tmp_path / "state").wait(PATIENCE)
    assert numbers(tmp_path / "out") == [0, *range(ROWS, FILES * ROWS), 5000]


# --- taking in new files ----------------------------------------------------------------------------------------


def test_new_files_are_taken_in_behind_the_others_if_that_is_asked_for(tmp_path: Path) -> None:
    """Once taken in they belong to the job, also when it goes on again without being asked."""
    folder = make(tmp_path / "in", "csv")
    stopped_half_way(folder, tmp_path)
    for number in range(8):
        write(folder / f"00-{number}.csv", (FILES + number) * ROWS)
    made = flow(folder, tmp_path / "out", rate=400.0)
    checkpoints = ps.Checkpoints(tmp_path / "state", every="50ms")
    with ps.run_local(made, checkpoints=checkpoints, include_new=True) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)
        ids = [split.id for split in job.plan.sources["rows"].splits]
    assert ids == [f"{n:02d}.csv" for n in range(FILES)] + [f"00-{n}.csv" for n in range(8)]
    go_on(folder, tmp_path)
    assert numbers(tmp_path / "out") == list(range((FILES + 8) * ROWS))


def test_new_files_of_a_deterministic_flow_are_refused_when_a_lane_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 2)
    folder = make(tmp_path / "in", "csv")
    stopped_half_way(folder, tmp_path, lanes=FILES + 4)
    write(folder / "new.csv", 5000)
    again = flow(folder, tmp_path / "out", lanes=FILES + 4)
    with pytest.raises(ConfigurationError, match=r"4 of 28 lanes have come to the end") as caught:
        ps.run_local(again, checkpoints=tmp_path / "state", include_new=True)
    assert 'order="arrival"' in caught.value.remedy
    ps.run_local(again, checkpoints=tmp_path / "state").wait(PATIENCE)
    assert numbers(tmp_path / "out") == list(range(FILES * ROWS))


def test_new_files_of_a_flow_without_an_order_are_taken_in_while_all_subtasks_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 2)
    folder = make(tmp_path / "in", "csv")
    stopped_half_way(folder, tmp_path, lanes=FILES + 4, order="arrival")
    write(folder / "new.csv", FILES * ROWS)
    again = flow(folder, tmp_path / "out", lanes=FILES + 4, order="arrival")
    ps.run_local(again, checkpoints=tmp_path / "state", include_new=True).wait(PATIENCE)
    assert numbers(tmp_path / "out") == list(range((FILES + 1) * ROWS))


# --- snapshots --------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A job that was stopped with a savepoint, whose own folder is gone."""
    folder = make(tmp_path / "in", "csv")
    checkpoints = ps.Checkpoints(tmp_path / "old", every="50ms")
    with ps.run_local(flow(folder, tmp_path / "out", rate=400.0), checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)
        shutil.move(job.stop(timeout=PATIENCE).path, tmp_path / "saved")
    shutil.rmtree(tmp_path / "old")
    return tmp_path


def test_savepoint_carries_what_is_recorded_of_the_inputs(saved: Path) -> None:
    write(saved / "in" / "00-new.csv", 5000)
    go_on(saved / "in", saved, from_snapshot=saved / "saved")
    assert numbers(saved / "out") == list(range(FILES * ROWS))


def test_job_that_starts_from_a_savepoint_of_other_files_is_refused_also_where_the_flow_may_change(saved: Path) -> None:
    path = saved / "in" / f"{FILES - 1}.csv"
    write(path, (FILES - 1) * ROWS, ROWS + 5)
    for allow_changes in (False, True):  # the state says which rows of which file were read
        with pytest.raises(ConfigurationError, match=rf"{path} had \d+ bytes"):
            go_on(saved / "in", saved, from_snapshot=saved / "saved", allow_changes=allow_changes)


def test_job_that_starts_from_another_jobs_checkpoint_is_held_to_that_ones_files(half_way: Path) -> None:
    shift(files_of(half_way)[-1])
    again = flow(half_way / "in", half_way / "out")
    with pytest.raises(ConfigurationError, match="other content"):
        ps.run_local(again, checkpoints=half_way / "b", from_snapshot=half_way / "state" / "reading")


# --- other sources ----------------------------------------------------------------------------------------------


class Counted:
    """A source of a user's own. ``version``: of its data."""

    kind = "counted"
    schema = pa.schema([("n", pa.int64())])

    def __init__(self, version: int | None) -> None:
        self.version = version
        if version is not None:
            self.fingerprint = lambda: f"version {self.version}"

    def splits(self) -> Sequence[Part]:
        return [Part(str(number)) for number in range(FILES)]

    def describe(self) -> str:
        return "numbers"


class Part:
    def __init__(self, id: str) -> None:
        self.id, self.rows = id, ROWS

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        first = 100_000 + int(self.id) * ROWS
        yield pa.record_batch({"n": pa.array(range(first + start, first + ROWS), pa.int64())})


def counting(place: Path, version: int | None, rate: float = 0.0) -> ps.Flow:
    made = ps.Flow("counting", lanes=4)
    made.from_source(Counted(version), name="rows", rate=rate).write_parquet(place / "out", name="out")
    return made


def test_users_source_is_known_by_its_fingerprint(tmp_path: Path) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "state", every="50ms")
    with ps.run_local(counting(tmp_path, 1, 400.0), checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)
    with pytest.raises(ConfigurationError, match="the data of this counted source are not those") as caught:
        ps.run_local(counting(tmp_path, 2), checkpoints=checkpoints)
    assert caught.value.operator == "rows"
    ps.run_local(counting(tmp_path, 1), checkpoints=checkpoints).wait(PATIENCE)
    assert numbers(tmp_path / "out") == list(range(FILES * ROWS))


def test_explain_says_whose_changes_nobody_notices(tmp_path: Path) -> None:
    said = "nobody notices if its data change"
    assert said in counting(tmp_path, None).explain()
    assert said not in counting(tmp_path, 1).explain()
    assert said not in flow(make(tmp_path / "in", "csv"), tmp_path / "out").explain()


def test_other_tables_in_memory_are_refused(tmp_path: Path) -> None:
    def reading(shift: int, rate: float = 0.0) -> ps.Flow:
        made = ps.Flow("memory", lanes=4)
        tables = [pa.table({"n": range(n * ROWS + shift, (n + 1) * ROWS + shift)}) for n in range(FILES)]
        made.from_tables(tables, name="rows", rate=rate).write_parquet(tmp_path / "out", name="out")
        return made

    checkpoints = ps.Checkpoints(tmp_path / "state", every="50ms")
    with ps.run_local(reading(0, 400.0), checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)
    with pytest.raises(ConfigurationError, match="the data of this memory source are not those"):
        ps.run_local(reading(1), checkpoints=checkpoints)
    ps.run_local(reading(0), checkpoints=checkpoints).wait(PATIENCE)


# --- looking back -----------------------------------------------------------------------------------------------


def test_replay_reads_the_jobs_files_and_refuses_others(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "csv")

    def feeding() -> ps.Flow:
        made = ps.Flow("feeding", lanes=4)
        made.read_csv(folder, name="rows").feed(10)
        return made

    with ps.run_local(feeding(), checkpoints=tmp_path / "state") as job:
        with job.feed().reader(rank=0, world_size=1) as reader:
            batches = [batch.column("n").to_pylist() for batch in reader]
        job.wait(PATIENCE)
    write(folder / "00-new.csv", 5000)
    found = ps.replay(feeding(), checkpoints=tmp_path / "state", step=7)
    assert (found.rows.column("n").to_pylist(), found.verified) == (batches[7], True)
    shift(folder / "03.csv")
    with pytest.raises(ConfigurationError, match=r"03\.csv has other content"):
        ps.replay(feeding(), checkpoints=tmp_path / "state", step=7)


def calls_of(work: Callable[[], object]) -> int:
    """How many functions it calls, in Python and in C."""
    kinds: list[str] = []
    sys.setprofile(lambda _frame, kind, _argument: kinds.append(kind))
    try:
        work()
    finally:
        sys.setprofile(None)
    return kinds.count("call") + kinds.count("c_call")


def test_settling_ten_times_the_files_takes_ten_times_the_calls(tmp_path: Path) -> None:
    """docs/design/inputs.md has the figures."""
    folder = tmp_path / "in"
    folder.mkdir()
    calls = []
    for numbers in (range(100), range(100, 1000)):
        for number in numbers:
            (folder / f"{number:05d}.csv").write_text('"n"\n100000\n')
        made = flow(folder, tmp_path / "out")
        assert len(settle(made, settle(made, None).recorded).recorded.files["rows"]) == numbers.stop
        calls.append(calls_of(lambda made=made: settle(made, settle(made, None).recorded)))
    assert calls[1] <= 10 * calls[0], calls
