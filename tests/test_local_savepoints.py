"""Savepoints, stops and starts from a snapshot, of whole jobs in this process."""

import json
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.actors.storage.log import read_log_in
from penstock.coordinator.model.manifest import Manifest
from penstock.engine.core.errors import ConfigurationError, StorageError

SPLITS, ROWS = 96, 10
PACE = 800.0
"""Rows a second: the flow has 960 in 24 rounds, so a paced job is on its way long enough to be asked for something."""
PATIENCE = 60
OPENED = threading.Event()
"""Until then :func:`held` gives nothing."""
CALLED = threading.Event()


def held(batch: pa.RecordBatch) -> pa.RecordBatch:
    CALLED.set()
    assert OPENED.wait(PATIENCE)
    return batch


def tables() -> list[pa.Table]:
    return [
        pa.table(
            {"key": pa.array([number // 12] * ROWS), "value": pa.array(range(number * 1000, number * 1000 + ROWS))}
        )
        for number in range(SPLITS)
    ]


def flow(output, rate=0.0, data=None, through=None) -> ps.Flow:
    """Rows, and sums by key that span splits and so rounds, behind an exchange."""
    flow = ps.Flow("saved", lanes=4)
    rows = flow.from_tables(data or tables(), name="numbers", rate=rate)
    rows = rows if through is None else rows.map_batches(through, tables()[0].schema)
    evens = rows.filter(pc.bit_wise_and(ps.field("value"), 1) == 0)
    evens.write_parquet(output / "rows", name="rows")
    totals = rows.aggregate(["key"], n=("value", "count"), total=("value", "sum"), name="totals")
    totals.gather().write_parquet(output / "sums", name="sums")
    return flow


def every(folder, **options) -> ps.Checkpoints:
    return ps.Checkpoints(folder, **{"every": "50ms", **options})


def read(output) -> list[pa.Table]:
    return [ds.dataset(output / part).to_table().sort_by(key) for part, key in (("rows", "value"), ("sums", "key"))]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[pa.Table]:
    output = tmp_path_factory.mktemp("undisturbed")
    ps.run_local(flow(output)).wait(PATIENCE)
    return read(output)


def started(tmp_path, **options):
    """A job on its way, with some checkpoints behind it."""
    job = ps.run_local(flow(tmp_path / "out", PACE), parallelism=2, **{"checkpoints": every(tmp_path / "a"), **options})
    job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
    return job


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_suspended_job_goes_on_from_its_savepoint_in_another_folder(tmp_path, undisturbed, parallelism):
    with started(tmp_path, rate=PACE / 10) as job:
        saved = job.stop(timeout=PATIENCE)
        assert job.status().state == "stopped"
    before = ds.dataset(tmp_path / "out" / "rows").count_rows()
    assert 0 < before < undisturbed[0].num_rows
    shutil.rmtree(tmp_path / "moved", ignore_errors=True)
    shutil.move(saved.path, tmp_path / "moved")
    shutil.rmtree(tmp_path / "a")
    options = {"parallelism": parallelism, "checkpoints": every(tmp_path / "b")}
    resumed = ps.run_local(flow(tmp_path / "out"), from_snapshot=tmp_path / "moved", **options).wait(PATIENCE)
    assert resumed.status().state == "finished"
    assert resumed.audit().clean
    assert read(tmp_path / "out") == undisturbed


def test_job_that_is_suspended_again_and_again_gives_the_same_rows(tmp_path, undisturbed):
    saved = None
    for number, parallelism in enumerate((2, 3, 1)):
        checkpoints = every(tmp_path / f"state-{number}")
        options = {"parallelism": parallelism, "checkpoints": checkpoints, "from_snapshot": saved, "threads": number}
        job = ps.run_local(flow(tmp_path / "out", PACE / 4), **options)
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
        saved = job.stop(timeout=PATIENCE).path
    ps.run_local(flow(tmp_path / "out"), checkpoints=tmp_path / "last", from_snapshot=saved).wait(PATIENCE)
    assert read(tmp_path / "out") == undisturbed


def test_rows_of_a_suspended_job_are_visible_up_to_the_savepoint_and_groups_stay_open(tmp_path):
    job = started(tmp_path, rate=PACE / 10)  # far from its end, however busy the machine is
    job.stop(timeout=PATIENCE, aligned=True)
    (numbers, *_) = job.audit().sources
    values = ds.dataset(tmp_path / "out" / "rows").to_table().num_rows
    assert values == numbers.rows / 2
    assert not list((tmp_path / "out" / "sums").glob("part-*")), "an aggregation that is not over has told its sums"
    assert job.audit().clean


def test_drained_job_has_emitted_its_open_groups(tmp_path):
    job = started(tmp_path)
    saved = job.stop(drain=True, savepoint=tmp_path / "mine", timeout=PATIENCE)
    assert saved.path == str(tmp_path / "mine")
    assert job.status().state == "stopped"
    rows, sums = read(tmp_path / "out")
    (numbers, *_) = job.audit().sources
    assert 0 < numbers.rows < SPLITS * ROWS
    assert sum(sums["n"].to_pylist()) == numbers.rows == 2 * rows.num_rows
    assert job.audit().clean


def test_drained_savepoint_is_no_start(tmp_path):
    saved = started(tmp_path).stop(drain=True, timeout=PATIENCE)
    with pytest.raises(ConfigurationError, match="stopped with drain=True"):
        ps.run_local(flow(tmp_path / "out"), checkpoints=tmp_path / "b", from_snapshot=saved.path)


@pytest.fixture
def ended(tmp_path):
    """A job that has taken one checkpoint at its beginning, whose tasks have all come to the end of their data since,
    and which takes no further one by itself."""
    OPENED.clear()
    checkpoints = every(tmp_path / "a", every=None, min_pause="1h")
    with ps.run_local(flow(tmp_path / "out", through=held), parallelism=2, checkpoints=checkpoints) as job:
        job.checkpoint(PATIENCE)
        OPENED.set()
        job.wait_until(lambda status: all(each == "data ended" for each in status.tasks.values()), PATIENCE)
        yield job


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("aligned", [False, True])
def test_job_that_is_stopped_behind_the_end_of_its_data_is_finished_by_whoever_goes_on(
    tmp_path, undisturbed, ended, parallelism, aligned
):
    saved = ended.stop(timeout=PATIENCE, aligned=aligned)
    assert ended.status().state == "stopped"
    options = {"parallelism": parallelism, "checkpoints": every(tmp_path / "b"), "from_snapshot": saved.path}
    with ps.run_local(flow(tmp_path / "out", through=held), **options) as resumed:
        assert resumed.wait(PATIENCE).audit().clean
    assert read(tmp_path / "out") == undisturbed


def test_savepoint_behind_the_end_of_the_data_commits_what_is_left_where_it_is_gone_on_with(
    tmp_path, undisturbed, ended
):
    saved = ended.savepoint(tmp_path / "mine", timeout=PATIENCE)
    ended.cancel()
    assert ended.wait(PATIENCE).status().state == "cancelled"
    assert not list((tmp_path / "out").glob("*/part-*")), "nothing is committed by a savepoint"
    shutil.rmtree(tmp_path / "a")
    options = {"checkpoints": every(tmp_path / "b"), "from_snapshot": saved.path}
    with ps.run_local(flow(tmp_path / "out", through=held), **options) as resumed:
        assert resumed.wait(PATIENCE).audit().clean
    assert read(tmp_path / "out") == undisturbed


def test_savepoint_of_a_running_job_is_a_start_once_that_job_is_cancelled(tmp_path, undisturbed):
    job = ps.run_local(flow(tmp_path / "out", PACE), parallelism=2, checkpoints=every(tmp_path / "a", every=None))
    job.wait_until(lambda status: status.state == "running", PATIENCE)
    job.checkpoint(PATIENCE)
    saved = job.savepoint(tmp_path / "mine", PATIENCE)
    job.cancel()
    assert job.wait(PATIENCE).status().state == "cancelled"
    assert saved.id > job.status().latest_completed, "the savepoint commits nothing by itself"
    shutil.rmtree(tmp_path / "a")
    resumed = ps.run_local(flow(tmp_path / "out"), checkpoints=every(tmp_path / "b"), from_snapshot=saved.path).wait(
        PATIENCE
    )
    assert resumed.audit().clean
    assert read(tmp_path / "out") == undisturbed


def test_job_goes_on_undisturbed_after_savepoints(tmp_path, undisturbed):
    job = started(tmp_path)
    first, second = job.savepoint(timeout=PATIENCE), job.savepoint(timeout=PATIENCE)
    assert first.id < second.id
    job.wait(PATIENCE)
    assert job.audit().clean
    assert read(tmp_path / "out") == undisturbed
    manifest = json.loads((tmp_path / "a" / "saved" / "savepoints" / str(first.id) / "savepoint.json").read_text())
    assert manifest["kind"] == "savepoint"


def test_snapshot_older_than_the_output_is_refused(tmp_path):
    job = started(tmp_path)
    saved = job.savepoint(timeout=PATIENCE)
    job.wait(PATIENCE)
    with pytest.raises(ConfigurationError, match="these rows would come twice"):
        ps.run_local(flow(tmp_path / "out"), checkpoints=tmp_path / "b", from_snapshot=saved.path)


def test_snapshot_without_the_rows_before_it_is_refused(tmp_path):
    saved = started(tmp_path).stop(timeout=PATIENCE)
    with pytest.raises(ConfigurationError, match="let the flow write where they are"):
        ps.run_local(flow(tmp_path / "elsewhere"), checkpoints=tmp_path / "b", from_snapshot=saved.path)


def test_flow_that_has_changed_takes_what_it_knows_of_a_snapshot_if_that_is_allowed(tmp_path, undisturbed, caplog):
    saved = started(tmp_path).stop(timeout=PATIENCE, aligned=True)
    less = ps.Flow("saved", lanes=4)
    rows = less.from_tables(tables(), name="numbers")
    rows.filter(pc.bit_wise_and(ps.field("value"), 1) == 0).write_parquet(tmp_path / "out" / "rows", name="rows")
    options = {"checkpoints": tmp_path / "b", "from_snapshot": saved.path}
    with pytest.raises(ConfigurationError, match="another flow, or of other data"):
        ps.run_local(less, **options)
    job = ps.run_local(less, allow_changes=True, **options).wait(PATIENCE)
    assert "holds of 'totals-in-lanes' is left behind" in caplog.text
    assert job.audit().clean
    assert ds.dataset(tmp_path / "out" / "rows").to_table().sort_by("value") == undisturbed[0]


def changed(output, through=held, further=True, rate=0.0, above=0) -> ps.Flow:
    """The flow with a further filter behind the sums, and a further branch."""
    flow = ps.Flow("saved", lanes=4)
    rows = flow.from_tables(tables(), name="numbers", rate=rate)
    rows = rows if through is None else rows.map_batches(through, tables()[0].schema)
    evens = rows.filter(pc.bit_wise_and(ps.field("value"), 1) == 0)
    evens.write_parquet(output / "rows", name="rows")
    if further:
        rows.filter(ps.field("value") > 90_000).write_parquet(output / "large", name="large")
    totals = rows.aggregate(["key"], n=("value", "count"), total=("value", "sum"), name="totals")
    totals.filter(ps.field("key") >= above).gather().write_parquet(output / "sums", name="sums")
    return flow


def saved_in_flight(made, tmp_path, parallelism=2):
    """A savepoint of a job whose function ``held`` has been given rows, and has given none."""
    OPENED.clear()
    CALLED.clear()
    with ps.run_local(made, parallelism=parallelism, checkpoints=every(tmp_path / "a", every=None)) as job:
        assert CALLED.wait(PATIENCE)
        saved = job.savepoint(tmp_path / "mine", timeout=PATIENCE)
        job.cancel()
        OPENED.set()
        job.wait(PATIENCE)
    shutil.rmtree(tmp_path / "a")
    return saved.path


@pytest.fixture
def in_flight(tmp_path):
    return saved_in_flight(flow(tmp_path / "out", through=held), tmp_path)


@pytest.mark.parametrize("further", [False, True])
@pytest.mark.parametrize("parallelism", [2, 3])
def test_rows_in_flight_where_a_flow_is_as_it_was_go_on_whatever_else_has_changed(
    tmp_path, undisturbed, in_flight, parallelism, further
):
    options = {"parallelism": parallelism, "checkpoints": every(tmp_path / "b"), "from_snapshot": in_flight}
    new = changed(tmp_path / "out", further=further)
    with ps.run_local(new, allow_changes=True, **options) as job:
        assert job.wait(PATIENCE).audit().clean
    assert read(tmp_path / "out") == undisturbed
    if further:
        assert ds.dataset(tmp_path / "out" / "large").count_rows() == 59


def test_rows_in_flight_in_what_a_changed_flow_does_not_have_are_named(tmp_path, in_flight):
    options = {"parallelism": 2, "checkpoints": tmp_path / "b", "from_snapshot": in_flight}
    with pytest.raises(ConfigurationError, match=r"[1-9]\d* rows at operator 'map-batches-1'") as found:
        ps.run_local(changed(tmp_path / "out", through=None), allow_changes=True, **options)
    assert "aligned=True" in str(found.value)


def divided(output, key, *, forward) -> ps.Flow:
    flow = ps.Flow("saved", lanes=4)
    rows = flow.from_tables(tables(), name="numbers").partition_by(key, name="apart")
    rows = rows.forward(name="next") if forward else rows
    rows.map_batches(held, tables()[0].schema, name="held").write_parquet(output, name="rows")
    return flow


@pytest.mark.parametrize("forward", [False, True])
def test_rows_that_were_divided_by_other_keys_are_not_gone_on_with(tmp_path, forward):
    out = tmp_path / "out"
    saved = saved_in_flight(divided(out, "key", forward=forward), tmp_path)
    options = {"parallelism": 2, "allow_changes": True, "from_snapshot": saved}
    with pytest.raises(ConfigurationError, match=r"[1-9]\d* rows at operator 'held'"):
        ps.run_local(divided(out, "value", forward=forward), checkpoints=tmp_path / "b", **options)
    with ps.run_local(divided(out, "key", forward=forward), checkpoints=tmp_path / "c", **options) as job:
        job.wait(PATIENCE)
    assert ds.dataset(out).to_table().sort_by("value") == pa.concat_tables(tables()).sort_by("value")


@dataclass(frozen=True)
class Repeated:
    """Each batch so often, with ``more`` added to its values: one copy, and the others once they may come."""

    times: int
    more: int
    kind: str = "repeated"
    traits: ClassVar[ps.Traits] = ps.Traits(cut={"process": ps.Cut.BEFORE})

    def output_schema(self, inputs):
        return inputs[0]

    def build(self, context, inputs, restored):
        return Repeating(self)

    def describe(self) -> str:
        return "each batch several times"


class Repeating(ps.Stateless):
    def __init__(self, config: Repeated) -> None:
        self.config = config

    def process(self, port, batch, out):
        values = pc.add(batch.records["value"], self.config.more)
        for _ in range(self.config.times):
            out.emit(ps.Batch(batch.records.set_column(1, "value", values), batch.tag))
            CALLED.set()
            yield
            OPENED.wait(0.05)


def repeated(output, times, more) -> ps.Flow:
    flow = ps.Flow("saved", lanes=1)
    rows = flow.from_tables(tables()[:2], name="numbers").apply(Repeated(times, more), name="repeated")
    rows.write_parquet(output, name="rows")
    return flow


def test_operator_that_has_changed_does_not_go_on_in_the_middle_of_what_it_gives(tmp_path):
    """Of the call that is made again as many rows are left out as had left: they would be others."""
    times, out = 300, tmp_path / "out"
    saved = saved_in_flight(repeated(out, times, 0), tmp_path, parallelism=1)
    options = {"allow_changes": True, "from_snapshot": saved}
    for other in (repeated(out, times, 1), repeated(out, 7, 0)):
        refused = r"[1-9]\d* rows at operator 'repeated', which was in the middle of what it gives"
        with pytest.raises(ConfigurationError, match=refused):
            ps.run_local(other, checkpoints=tmp_path / "b", **options)
    with ps.run_local(repeated(out, times, 0), checkpoints=tmp_path / "c", **options) as job:
        job.wait(PATIENCE)
    found = ds.dataset(out).to_table().sort_by("value")["value"].to_pylist()
    assert found == sorted(times * pa.concat_tables(tables()[:2])["value"].to_pylist())


def grouped(output, by="key", name="totals", label="total", **made) -> ps.Flow:
    flow = ps.Flow("saved", lanes=4)
    rows = flow.from_tables(tables(), name="numbers", rate=PACE)
    totals = rows.aggregate([by], name=name, **(made or {label: ("value", "sum")}))
    totals.gather().write_parquet(output, name="sums")
    return flow


def stopped(made, tmp_path):
    """An aligned savepoint of a job that has some checkpoints behind it."""
    with ps.run_local(made, parallelism=2, checkpoints=every(tmp_path / "a")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
        return job.stop(timeout=PATIENCE, aligned=True).path


def test_state_of_other_keys_or_functions_is_not_gone_on_with(tmp_path):
    out = tmp_path / "out"
    saved = stopped(grouped(out), tmp_path)
    options = {"parallelism": 2, "allow_changes": True, "from_snapshot": saved}
    changes = [
        (grouped(out, by="value"), r"groups by value \(int64\): sum\(value\)"),
        (grouped(out, total=("value", "max")), r"groups by key \(int64\): max\(value\)"),
        (
            grouped(out, total=("value", "sum"), ignore_null_keys=True),
            r"groups by key \(int64\): sum\(value\) over int64, without null keys",
        ),
        (grouped(out, total=("value", "sum"), n="count"), r"sum\(value\) over int64, count"),
    ]
    for other, now in changes:
        had = r"groups by key \(int64\): sum\(value\) over int64"
        with pytest.raises(ConfigurationError, match=rf"'totals.*' {had}.*has .*{now}.* there now") as found:
            ps.run_local(other, checkpoints=tmp_path / "b", **options)
        assert "another name" in str(found.value)
    with ps.run_local(grouped(out, label="sum"), checkpoints=tmp_path / "c", **options) as job:
        job.wait(PATIENCE)
    whole = pa.concat_tables(tables()).group_by("key").aggregate([("value", "sum")]).sort_by("key")
    assert ds.dataset(out).to_table().sort_by("key")["sum"].to_pylist() == whole["value_sum"].to_pylist()


def test_state_of_rows_that_were_divided_by_other_keys_is_not_gone_on_with(tmp_path):
    """Another subtask would have what a key has left."""
    out = tmp_path / "out"

    def seen(key):
        flow = ps.Flow("saved", lanes=4)
        rows = flow.from_tables(tables(), name="numbers", rate=PACE).partition_by(key, name="apart")
        rows.distinct("key", "value", name="seen").write_parquet(out, name="rows")
        return flow

    saved = stopped(seen("key"), tmp_path)
    options = {"allow_changes": True, "from_snapshot": saved}
    with pytest.raises(
        ConfigurationError, match=r"'seen' distinct .*divided by key \(.*divided by value \(.* there now"
    ):
        ps.run_local(seen("value"), parallelism=2, checkpoints=tmp_path / "b", **options)
    with ps.run_local(seen("key"), parallelism=3, checkpoints=tmp_path / "c", **options) as job:
        job.wait(PATIENCE)
    assert ds.dataset(out).to_table().sort_by("value") == pa.concat_tables(tables()).sort_by("value")


def test_operator_of_another_name_begins_anew(tmp_path):
    out = tmp_path / "out"
    saved = stopped(grouped(out), tmp_path)
    options = {"parallelism": 2, "allow_changes": True, "from_snapshot": saved}
    other = grouped(out, name="largest", total=("value", "max"))
    with ps.run_local(other, checkpoints=tmp_path / "b", **options) as job:
        job.wait(PATIENCE)
    found = ds.dataset(out).to_table().sort_by("key")
    assert found["key"][-1].as_py() == SPLITS // 12 - 1
    assert found["total"][-1].as_py() == pa.concat_tables(tables())["value"].to_pylist()[-1]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_flow_that_has_changed_goes_on_from_any_savepoint_with_nothing_in_flight(tmp_path, undisturbed, parallelism):
    """Of a source that is too slow to have given anything."""
    with ps.run_local(flow(tmp_path / "out", 1e-6), parallelism=2, checkpoints=every(tmp_path / "a")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
        saved = job.stop(timeout=PATIENCE).path
    options = {"parallelism": parallelism, "checkpoints": every(tmp_path / "b"), "from_snapshot": saved}
    with ps.run_local(changed(tmp_path / "out", through=None, above=3), allow_changes=True, **options) as job:
        assert job.wait(PATIENCE).audit().clean
    rows, sums = read(tmp_path / "out")
    assert rows == undisturbed[0]
    assert sums == undisturbed[1].slice(3)
    assert ds.dataset(tmp_path / "out" / "large").count_rows() == 59


def test_snapshot_of_other_data_is_refused(tmp_path):
    saved = started(tmp_path).stop(timeout=PATIENCE)
    other = flow(tmp_path / "out", data=tables()[:-1])
    with pytest.raises(ConfigurationError, match="the data of this memory source are not those"):
        ps.run_local(other, checkpoints=tmp_path / "b", from_snapshot=saved.path)


def test_checkpoint_of_another_folder_is_a_start_and_cannot_be_claimed(tmp_path, undisturbed):
    with started(tmp_path):
        pass
    options = {"checkpoints": every(tmp_path / "b"), "from_snapshot": tmp_path / "a" / "saved"}
    with pytest.raises(ConfigurationError, match="cannot be claimed"):
        ps.run_local(flow(tmp_path / "out"), claim="claim", **options)
    with pytest.raises(ConfigurationError, match="may go on: its log is open"):
        ps.run_local(flow(tmp_path / "out"), **options)
    job = ps.run_local(flow(tmp_path / "out"), take_over=True, **options).wait(PATIENCE)
    assert job.status().restored_from is not None
    assert read(tmp_path / "out") == undisturbed


@pytest.mark.parametrize("claim", ["claim", "no_claim"])
def test_claimed_savepoint_goes_when_it_is_not_needed_any_more_and_others_stay(tmp_path, undisturbed, claim):
    saved = started(tmp_path).stop(savepoint=tmp_path / "mine", timeout=PATIENCE)
    checkpoints = every(tmp_path / "b", retained=1)
    job = ps.run_local(flow(tmp_path / "out", PACE), checkpoints=checkpoints, from_snapshot=saved.path, claim=claim)
    job.wait(PATIENCE)
    assert read(tmp_path / "out") == undisturbed
    left = [path for path in (tmp_path / "mine").rglob("*") if path.is_file()]
    assert bool(left) == (claim == "no_claim")


def test_script_with_a_snapshot_can_be_run_again(tmp_path, undisturbed):
    saved = started(tmp_path).stop(savepoint=tmp_path / "mine", timeout=PATIENCE)
    options = {"checkpoints": every(tmp_path / "b"), "from_snapshot": saved.path}
    with ps.run_local(flow(tmp_path / "out", PACE), **options) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
        before = job.status().latest_completed
    again = ps.run_local(flow(tmp_path / "out"), **options).wait(PATIENCE)
    assert again.status().restored_from >= before > saved.id
    assert read(tmp_path / "out") == undisturbed


def test_stopped_job_says_where_to_go_on(tmp_path):
    saved = started(tmp_path).stop(timeout=PATIENCE)
    with pytest.raises(ConfigurationError) as caught:
        ps.run_local(flow(tmp_path / "out"), checkpoints=tmp_path / "a")
    assert f"from_snapshot={saved.path!r}" in caught.value.remedy


def test_savepoint_into_a_folder_that_has_one_is_refused_and_the_job_goes_on(tmp_path, undisturbed):
    job = started(tmp_path)
    job.savepoint(tmp_path / "mine", PATIENCE)
    with pytest.raises(ConfigurationError, match="holds a savepoint already"):
        job.savepoint(tmp_path / "mine", PATIENCE)
    job.wait(PATIENCE)
    assert read(tmp_path / "out") == undisturbed


@pytest.mark.parametrize(("ask", "word"), [("savepoint", "path"), ("stop", "savepoint")])
def test_savepoint_in_an_output_is_refused_and_the_job_goes_on(tmp_path, undisturbed, ask, word):
    """Its files were foreign ones there, so the job's next commit failed."""
    job = started(tmp_path)
    for place in (tmp_path / "out" / "rows", tmp_path / "out" / "sums" / "mine", tmp_path / "a"):
        with pytest.raises(ConfigurationError, match="would lie among the"):
            getattr(job, ask)(timeout=PATIENCE, **{word: place})
    job.wait(PATIENCE)
    assert read(tmp_path / "out") == undisturbed


def test_savepoint_that_cannot_be_written_is_told_and_the_job_goes_on(tmp_path, undisturbed):
    (tmp_path / "file").write_text("in the way")
    with started(tmp_path, rate=PACE / 10) as job:  # far from its end, however busy the machine is
        with pytest.raises(StorageError, match="write a savepoint into"):
            job.savepoint(tmp_path / "file" / "mine", PATIENCE)
        job.checkpoint(PATIENCE)
    ps.run_local(flow(tmp_path / "out"), parallelism=2, checkpoints=every(tmp_path / "a")).wait(PATIENCE)
    assert read(tmp_path / "out") == undisturbed


def test_savepoint_of_a_job_without_a_folder_wants_one(tmp_path):
    with ps.run_local(flow(tmp_path / "out", PACE)) as job:
        with pytest.raises(ConfigurationError, match="in a folder that goes with it"):
            job.savepoint()
        assert job.savepoint(tmp_path / "mine", PATIENCE).path == str(tmp_path / "mine")


@pytest.mark.parametrize("ask", ["savepoint", "stop", "checkpoint"])
def test_job_that_is_over_takes_no_savepoint(tmp_path, ask):
    job = ps.run_local(flow(tmp_path / "out"), checkpoints=tmp_path / "a").wait(PATIENCE)
    with pytest.raises(ConfigurationError, match="job 'saved' is over: finished"):
        getattr(job, ask)(timeout=PATIENCE)


def test_pinned_checkpoint_is_kept_until_it_is_unpinned(tmp_path):
    def kept() -> set[str]:
        entries = []
        for path in (tmp_path / "a" / "saved" / "log").iterdir():
            with suppress(FileNotFoundError):  # older ones go while we look
                entries.append(json.loads(path.read_text()))
        return {str(each["checkpoint"]["number"]) for each in entries if each["type"] == "checkpoint"}

    with started(tmp_path, checkpoints=every(tmp_path / "a", retained=1)) as job:
        pinned = job.pin("model-1", timeout=PATIENCE)
        job.checkpoint(PATIENCE)
        job.checkpoint(PATIENCE)
        assert job.status().pins == {"model-1": pinned}
        assert str(pinned.number) in kept()
        job.unpin("model-1", PATIENCE)
        assert job.status().pins == {}
        with pytest.raises(ConfigurationError, match="is not kept any more"):
            job.pin("late", pinned, PATIENCE)


def test_statistics_of_checkpoints_tell_of_kinds_sizes_and_tasks(tmp_path):
    job = started(tmp_path)
    job.savepoint(tmp_path / "mine", PATIENCE)
    shown = job.checkpoints()
    assert shown.counts.completed >= 3
    assert shown.savepoint.location == str(tmp_path / "mine")
    assert shown.completed.kind == "checkpoint"
    assert shown.completed.acknowledged == shown.completed.total == len(job.tasks())
    assert 0 < shown.completed.new_bytes <= shown.completed.bytes
    assert shown.completed.slowest.timing.asynchronous > 0
    assert shown.summary["duration"].least > 0
    assert {vertex.vertex for vertex in shown.completed.vertices} == {task.vertex for task in job.tasks()}
    job.wait(PATIENCE)
    assert job.checkpoints().counts.completed == job.status().checkpoints_completed


@pytest.mark.parametrize(("retention", "stays"), [("always", True), ("on_cancellation", False), ("never", False)])
def test_checkpoints_outlive_the_job_as_the_retention_says(tmp_path, undisturbed, retention, stays):
    job = ps.run_local(flow(tmp_path / "out"), checkpoints=every(tmp_path / "a", retention=retention)).wait(PATIENCE)
    entries = read_log_in(str(tmp_path / "a"), "saved")
    assert any(isinstance(entry, Manifest) for entry in entries) == stays
    assert read(tmp_path / "out") == undisturbed
    assert job.audit().clean, "made before they went"


@pytest.mark.parametrize("parallelism", [1, 3])
def test_job_whose_stages_are_one_task_goes_on_from_its_savepoint_as_several(tmp_path, undisturbed, parallelism):
    def gathered(rate: float = 0.0) -> ps.Flow:
        flow = ps.Flow("saved", lanes=4)
        rows = flow.from_tables(tables(), name="numbers", rate=rate)
        evens = rows.filter(pc.bit_wise_and(ps.field("value"), 1) == 0)
        evens.gather().write_parquet(tmp_path / "out" / "rows", name="rows")
        totals = rows.gather().aggregate(["key"], n=("value", "count"), total=("value", "sum"), name="totals")
        totals.write_parquet(tmp_path / "out" / "sums", name="sums")
        return flow

    with ps.run_local(gathered(PACE)) as job:
        assert len(job.plan.stages) == 1
        job.savepoint(tmp_path / "first", timeout=PATIENCE)
        saved = job.stop(savepoint=tmp_path / "mine", timeout=PATIENCE)
    options = {"parallelism": parallelism, "checkpoints": every(tmp_path / "b")}
    resumed = ps.run_local(gathered(), from_snapshot=saved.path, **options)
    assert len(resumed.plan.stages) == 3
    assert resumed.wait(PATIENCE).audit().clean
    assert read(tmp_path / "out") == undisturbed


def test_files_of_a_gathered_output_read_by_name_are_in_the_order_of_the_flow_whoever_has_gone_on(tmp_path):
    """Each of three jobs, two of them begun from a stop, is shut down and resumed once: its generations go on, too."""
    output = tmp_path / "out"

    def run(number, saved, rate):
        gathered = ps.Flow("gathered", lanes=4)
        gathered.from_tables(tables(), name="numbers", rate=rate).gather().write_parquet(output, name="rows")
        return ps.run_local(gathered, checkpoints=every(tmp_path / f"state-{number}"), from_snapshot=saved)

    def committed():
        return len(list(output.glob("part-*")))

    saved = None
    for number in range(3):
        for leaves in (True, False):
            before = committed()
            with run(number, saved, PACE / 8) as job:
                job.wait_until(lambda status: committed() > before, PATIENCE)  # noqa: B023
                saved = saved if leaves else job.stop(timeout=PATIENCE).path
    with run("last", saved, 0.0) as job:
        assert job.wait(PATIENCE).audit().clean
    names = sorted(path.name for path in output.glob("part-*"))
    assert len({name.rpartition("-")[2] for name in names}) == 4
    values = [value for name in names for value in pq.read_table(output / name)["value"].to_pylist()]
    in_order = ps.Flow("ordered", lanes=4)
    in_order.from_tables(tables(), name="numbers").gather().collect("rows")
    assert values == ps.run_local(in_order).wait(PATIENCE).output("rows").to_table()["value"].to_pylist()
