"""One batch of a feed once more: as the ranks got it, from checkpoints that are only read, and where it comes from."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.engine.core.errors import ConfigurationError, DataError
from penstock.engine.sources.memory import MemorySource
from penstock.jobs.cli import app
from support.feeds import batches_of, read_group, tables, take

FILES, ROWS, GROUP = 6, 240, 70
LISTS = pa.list_(pa.int64())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Files of rows (n, lists): three sequences of the number n in each row, of 0 to 8 tokens in all."""
    folder = tmp_path_factory.mktemp("inputs")
    for file in range(FILES):
        numbers = range(file * ROWS, (file + 1) * ROWS)
        lists = pa.array([[[n] * (n % 4), [], [n] * (n % 5)] for n in numbers], pa.list_(LISTS))
        pq.write_table(pa.table({"n": numbers, "tokens": lists}), folder / f"part-{file}.parquet", row_group_size=GROUP)
    return folder


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch):
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 20)


def flow_of(inputs, output=None, **options) -> ps.Flow:
    flow = ps.Flow("feeding", lanes=4)
    rows = flow.read_parquet(inputs, filter=ps.field("n") >= 33, name="rows").filter("n % 3 <> 0")
    if output is not None:
        rows.project("n").write_parquet(output)
    packed = rows.unnest("tokens").shuffle(64, seed=3).pack(16, segments=None, positions=None, remainder="drop")
    packed.feed(10, room=20, **options)
    return flow


@pytest.fixture(scope="module")
def delivered(inputs, tmp_path_factory):
    """The folder of a job that was stopped twice, and the batches that its ranks got: 15 of them."""
    folder = tmp_path_factory.mktemp("delivered")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 20)
        for parallelism in (1, 2, 4):
            kept = ps.Checkpoints(folder / "state", every=None, retained=9)
            job = ps.run_local(flow_of(inputs, folder / "out"), checkpoints=kept, parallelism=parallelism)
            found += read_group(job.feed(), parallelism, start=len(found), most=5, close=False)
            job.checkpoint(60)
            job.shutdown()
    return folder, found


def tree(folder):
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*"))


@pytest.mark.parametrize("parallelism", [1, 2])
def test_batch_is_what_was_delivered_and_its_rows_are_where_the_lineage_says(inputs, delivered, parallelism):
    folder, batches = delivered
    before = tree(folder)
    starts = set()
    for step in range(15):
        found = ps.replay(
            flow_of(inputs, folder / "out"), checkpoints=folder / "state", step=step, parallelism=parallelism
        )
        assert (found.rows.to_pylist(), found.verified) == (batches[step], True)
        starts.add(found.start)
        shown = {place: set() for place in range(10)}
        for line in found.lineage.to_pylist():
            file = int(line["file"][-len("0.parquet")])
            assert line["split"] == f"part-{file}.parquet#{line['row_group']}"
            assert (line["row"] // GROUP, line["rows"]) == (line["row_group"], 1)
            shown[line["position"] - step * 10].add(file * ROWS + line["row"])
        assert [shown[place] for place in range(10)] == [set(row["tokens"]) for row in batches[step]]
    assert {"the beginning"} < starts, "a checkpoint is near enough for some, and too near for others"
    assert tree(folder) == before


def test_nearest_checkpoint_serves_where_no_lineage_is_wanted(inputs, delivered):
    folder, batches = delivered
    found = ps.replay(flow_of(inputs, folder / "out"), checkpoints=folder / "state", step=14, trace=False)
    assert (found.rows.to_pylist(), found.lineage, found.verified) == (batches[14], None, True)
    assert found.start.startswith("checkpoint ")
    alone = ps.replay(flow_of(inputs, folder / "out"), step=14)
    assert (alone.rows.to_pylist(), alone.start, alone.verified) == (batches[14], "the beginning", None)


def test_ranks_get_their_slices(inputs, delivered):
    folder, batches = delivered
    slices = [
        ps.replay(flow_of(inputs, folder / "out"), checkpoints=folder / "state", step=7, rank=rank, world_size=3)
        for rank in range(3)
    ]
    assert [row for each in slices for row in each.rows.to_pylist()] == batches[7]
    assert [(each.first, each.rows.num_rows, each.batch_rows) for each in slices] == [
        (70, 3, 10),
        (73, 3, 10),
        (76, 4, 10),
    ]
    assert {line["position"] for line in slices[1].lineage.to_pylist()} == {73, 74, 75}
    assert "batch 7 of feed feed, job feeding, rank 1 of 3: 3 rows of 10, positions 73 to 75" in str(slices[1])


def test_job_that_runs_meanwhile_is_not_disturbed(inputs, tmp_path):
    flow = flow_of(inputs, tmp_path / "out")
    job = ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state", every="20ms"), parallelism=2)
    reader = job.feed().reader(timeout=60)
    found = []
    for step in range(6):
        found += take(reader, 2)
        job.checkpoint(60)
        assert ps.replay(flow, checkpoints=tmp_path / "state", step=2 * step).rows.to_pylist() == found[-2]
    while batch := take(reader, 1):
        found += batch
    reader.close()
    assert job.wait(60).audit().clean
    assert found == batches_of(flow_of(inputs))
    again = ps.replay(flow, checkpoints=tmp_path / "state", step=len(found) - 1)
    assert (again.rows.to_pylist(), again.verified) == (found[-1], True)


def test_model_keeps_a_checkpoint_to_begin_with_and_says_what_it_skips(inputs, tmp_path):
    job = ps.run_local(flow_of(inputs), checkpoints=ps.Checkpoints(tmp_path, alignment="aligned"))
    reader = job.feed().skip(range(6, 8)).reader(timeout=60)
    take(reader, 8)
    reader.commit("model")
    reader.flush(60)
    state = reader.state_dict()
    for _ in range(4):
        take(reader, 2)
        job.checkpoint(60)
    reader.close(0.0)
    job.shutdown()
    skipped = ps.replay(flow_of(inputs), checkpoints=tmp_path, step=7, state=state)
    assert skipped.skipped_by == ("model 'model'", "the state that was given")
    assert "SKIPPED by model 'model'" in str(skipped)
    assert skipped.verified
    found = ps.replay(flow_of(inputs), checkpoints=tmp_path, step=11, trace=False)
    assert (found.skipped_by, found.verified, found.start[:10]) == ((), True, "checkpoint")


def test_batch_that_is_not_what_was_delivered_is_refused(tmp_path):
    numbers = list(range(1000))

    def flow():
        flow = ps.Flow("changing", lanes=1)
        rows = flow.from_tables([pa.table({"n": range(1000)})])
        looked_up = rows.map_batches(
            lambda batch: pa.record_batch([pa.array(numbers).take(batch["n"])], batch.schema), rows.schema
        )
        looked_up.feed(10)
        return flow

    job = ps.run_local(flow(), checkpoints=tmp_path)
    read_group(job.feed(), 1)
    job.wait(60)
    numbers[432], numbers[437] = numbers[437], numbers[432]
    with pytest.raises(DataError, match=r"batch 43 of feed 'feed'.* is not what was delivered"):
        ps.replay(flow(), checkpoints=tmp_path, step=43)
    found = ps.replay(flow(), checkpoints=tmp_path, step=43, check=False)
    assert (found.verified, found.rows.column("n").to_pylist()) == (False, numbers[430:440])
    assert "NOT what was delivered" in str(found)
    assert ps.replay(flow(), checkpoints=tmp_path, step=42).verified


def test_rounds_are_those_of_the_whole_flow_though_a_part_of_it_runs(tmp_path):
    """The other feed's mixture makes the rounds of the source shorter."""

    def flow():
        flow = ps.Flow("mixing", lanes=4)
        rows = flow.from_tables(tables(), name="rows")
        rows.feed(30, name="plain")
        flow.mix({rows: 1, flow.from_tables(tables(), name="more"): 4}).feed(30, name="mixed", room=10_000)
        return flow

    job = ps.run_local(flow(), checkpoints=tmp_path)
    batches = read_group(job.feed("plain"), 1)
    read_group(job.feed("mixed"), 1)
    job.wait(60)
    for step in (0, 7, 39):
        found = ps.replay(flow(), checkpoints=tmp_path, step=step, feed="plain")
        assert (found.rows.to_pylist(), found.verified) == (batches[step], True)


class Frame:
    """A deferred source that notes whom it was handed over to."""

    kind = "frame"
    schema = tables()[0].schema

    def __init__(self):
        self.asked = []

    def splits(self):
        return []

    def describe(self):
        return "rows of a frame"

    def handed_over(self, source, to):
        self.asked.append(to)
        return Staged(tuple(tables()))


class Staged(MemorySource):
    kind = "frame"

    def describe(self):
        return "rows of a frame"


def test_frame_is_read_where_it_was_staged_and_never_staged_again(tmp_path):
    frame = Frame()
    flow = ps.Flow("staged", lanes=4)
    flow.from_source(frame, name="rows").feed(50)
    job = ps.run_local(flow, checkpoints=tmp_path)
    batches = read_group(job.feed(), 1)
    job.wait(60)
    assert ps.replay(flow, checkpoints=tmp_path, step=3).rows.to_pylist() == batches[3]
    first, again = frame.asked
    assert (first.resuming, again.resuming, again.folder) == (False, True, str(tmp_path))
    assert "rows: 12 splits, 1,200 rows" in again.description
    with pytest.raises(ConfigurationError, match=r"handed over when its job started[\s\S]*pass the job's checkpoints"):
        ps.replay(flow, step=3)


def test_what_cannot_be_replayed_is_refused_with_the_remedy(inputs, delivered, tmp_path):
    folder, _ = delivered
    flow, state = flow_of(inputs, folder / "out"), folder / "state"
    refusals = {
        r"rank 3 of 3": {"step": 1, "rank": 3, "world_size": 3},
        r"depends on the number of ranks": {"step": 1, "rank": 3},
        r"step -1": {"step": -1},
        r"no feed 'other'[\s\S]*its feeds: feed": {"step": 1, "feed": "other"},
        r"holds nothing of a job 'other'[\s\S]*it has: feeding": {"step": 1, "name": "other"},
        r"none with number 9999[\s\S]*the last one is \d+": {"step": 9999},
        r"the state is that of feed 'x'": {"step": 1, "state": {"feed": "x", "batch_size": 10}},
    }
    for match, options in refusals.items():
        with pytest.raises(ConfigurationError, match=match):
            ps.replay(flow, checkpoints=state, **options)
    with pytest.raises(ConfigurationError, match="does not exist"):
        ps.replay(flow, checkpoints=tmp_path / "nowhere", step=1)
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(ConfigurationError, match=r"was one of another flow[\s\S]*now:  feed: [\s\S]*is dropped"):
        ps.replay(flow_of(inputs, drop_last=True), checkpoints=state, step=1)
    fewer = [inputs / f"part-{file}.parquet" for file in range(FILES - 1)]
    with pytest.raises(
        ConfigurationError, match=r"rows: the input is not what the job has begun with: part-0.parquet is gone"
    ):
        ps.replay(flow_of(fewer, folder / "out"), checkpoints=state, step=1)
    fed = ps.Flow("fed", lanes=2)
    fed.from_split_sets(pa.schema([("n", pa.int64())]), name="sets").feed(10)
    with pytest.raises(ConfigurationError, match="were fed by the caller"):
        ps.replay(fed, step=1)
    several = ps.Flow("several", lanes=2)
    rows = several.from_tables(tables())
    rows.feed(10, name="one")
    rows.feed(10, name="two")
    with pytest.raises(ConfigurationError, match=r"several feeds[\s\S]*one, two"):
        ps.replay(several, step=1)
    assert ps.replay(several, step=1, feed="two").rows.num_rows == 10


def test_command_rebuilds_a_batch_and_writes_it(inputs, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(inputs=str(inputs)))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True
    )
    batches = json.loads(done.stdout)
    command = ["replay", "train.py:build", "--checkpoints", "state", "--step", "5"]
    written = ["--output", "batch.parquet", "--lineage", "lineage.arrow"]
    told = subprocess.run(
        [sys.executable, "-m", "penstock.jobs", *command, *written, "--rank", "1", "--world-size", "2"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert (told.returncode, told.stderr) == (0, "")
    assert "job trained, rank 1 of 2: 5 rows of 10, positions 55 to 59" in told.stdout
    assert "equal to what was delivered" in told.stdout
    assert "part-0.parquet, row group 1: " in told.stdout
    assert pq.read_table(tmp_path / "batch.parquet").column("n").to_pylist() == batches[5][5:]
    with pa.ipc.open_file(tmp_path / "lineage.arrow") as file:
        lineage = file.read_all()
    assert lineage.column("row").to_pylist() == batches[5][5:]


SCRIPT = """
import json
import penstock as ps

def build():
    flow = ps.Flow("trained")
    flow.read_parquet({inputs!r}).filter("n % 2 = 1").project("n").shuffle(50, seed=1).feed(10)
    return flow

if __name__ == "__main__":
    job = ps.run_local(build(), checkpoints="state")
    with job.feed().reader() as reader:
        print(json.dumps([batch.column("n").to_pylist() for batch in reader]))
    job.wait()
"""


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("flights", "is a ready-made job, and no flow"),
        ("train.py", "names no flow"),
        ("missing.py:flow", "does not exist"),
        ("no_such_module:flow", "there is no module 'no_such_module'"),
        ("{folder}/flows.py:other", "is nothing, not a flow"),
        ("{folder}/flows.py:number", "is a int, not a flow"),
        ("{folder}/flows.py:fails", "raised ValueError: not today"),
    ],
)
def test_command_says_which_flows_it_can_find(job, words, tmp_path):
    (tmp_path / "flows.py").write_text("number = 3\n\ndef fails():\n    raise ValueError('not today')\n")
    told = CliRunner().invoke(app, ["replay", job.format(folder=tmp_path), "--step", "1"])
    assert told.exit_code == 2
    assert words in told.output
