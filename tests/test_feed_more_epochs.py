"""A feed goes on for more epochs than its job began with: what comes is what would have come if it had been told."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

import penstock as ps
from penstock.actors.claims import more_epochs
from penstock.actors.storage.log import create_entry_in, read_log_in
from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.coordinator.model.manifest import Manifest, TaskState
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.core.identity import Attempt, CheckpointId
from penstock.engine.flow.flow import Flow
from penstock.jobs.verify_order import verify_order
from support.feeds import batches_of, plain, read_group, tables, take, wait_for

MOST = 4
LISTS = pa.schema([("tokens", pa.list_(pa.int64()))])


def packed(flow: Flow) -> Any:
    return plain(flow).map_batches(with_lists, LISTS).pack(7, segments=None, positions=None)


def with_lists(batch: Any) -> Any:
    values = batch.column("n").to_pylist()
    return pa.record_batch({"tokens": pa.array([list(range(n, n + n % 4)) for n in values], LISTS.field(0).type)})


def mixed(flow: Flow, at_end: Any = "go on") -> Any:
    return flow.mix({plain(flow): 2, flow.from_tables(tables(3, 40), name="other"): 1}, seed=4, at_end=at_end)


def scheduled(flow: Flow) -> Any:
    """Weights that depend on how many rows have left in all."""
    schedule = ps.Schedule.steps({0: 1.0, 900: 5.0, 2000: 0.5})
    return flow.mix({plain(flow): schedule, flow.from_tables(tables(), name="other"): 1}, seed=4, at_end="stop")


def united(flow: Flow) -> Any:
    return plain(flow).union(flow.from_tables(tables(3, 40), name="other"))


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "in order": (plain, {}),
    "a window": (plain, {"shuffle": 70, "seed": 3}),
    "drawn splits": (plain, {"shuffle": True, "seed": 3}),
    "a permutation": (plain, {"shuffle": "full", "seed": 3}),
    "packed": (packed, {"shuffle": 10}),
    "mixed": (mixed, {"shuffle": 31}),
    "scheduled": (scheduled, {}),
    "united": (united, {}),
    "by cost": (plain, {"tokens": 200, "cost": "n % 7 + 1", "window": 40}),
    "whole batches": (plain, {"drop_last": True}),
}


def flow_of(way: str, epochs: int, **options: Any) -> Flow:
    shape, given = WAYS[way]
    flow = Flow("more", lanes=4)
    size = {} if "tokens" in given else {"batch_size": 60}
    shape(flow).feed(**{**size, **given, "epochs": epochs, **options})
    return flow


@cache
def whole(way: str) -> list[list[Any]]:
    return batches_of(flow_of(way, MOST))


@pytest.mark.parametrize("way", WAYS)
def test_epochs_are_raised_when_the_job_has_finished_and_when_its_sources_have_ended(way: str, tmp_path: Path) -> None:
    expected, state = whole(way), tmp_path / "state"
    with ps.run_local(flow_of(way, 2), checkpoints=state, parallelism=2) as job:
        with job.feed().reader(timeout=60) as reader:
            found = [records.to_pylist() for _ in range(2) for records in reader]
            reader.commit("two")
        assert job.wait(60).status().state == "finished"
    assert found == expected[: len(found)]
    with ps.run_local(flow_of(way, 3), checkpoints=state, resume_model="two") as job:
        feed = job.feed().resume("two")
        assert (feed.start, feed.start_epoch) == (len(found), 2)
        reader = feed.reader(timeout=60)
        found += take(reader, 3)
        kept = reader.state_dict()
        job.checkpoint(60)  # which holds the rest of what there is
        reader.close(0.0)
    with ps.run_local(flow_of(way, MOST), checkpoints=state, parallelism=3) as job:
        found += read_group(job.feed(), 3, kept["step"], epoch=kept["epoch"])
        assert job.wait(60).audit().clean
        audit = job.audit_feed()
        assert audit.clean or way in ("packed", "scheduled")
    assert found == expected
    with ps.run_local(flow_of(way, MOST), checkpoints=tmp_path / "other") as job:
        read_group(job.feed(), 2)
        job.wait(60)
    assert verify_order(state, tmp_path / "other").same
    step = len(found) - 3
    replayed = ps.replay(flow_of(way, MOST), checkpoints=state, step=step)
    assert (replayed.rows.to_pylist(), replayed.verified) == (expected[step], True)


@pytest.mark.parametrize("way", ["by cost", "whole batches", "united"])
@pytest.mark.parametrize("dies", [False, True])
def test_model_that_was_bound_when_the_job_was_over_can_be_gone_back_to_from_further_on(
    way: str, dies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no checkpoint of its own. Whoever goes on may die before it has kept the new one for the model."""
    expected, state = whole(way), ps.Checkpoints(tmp_path / "state", retained=1)

    def run(epochs: int, model: str | None = None) -> Any:
        return ps.run_local(flow_of(way, epochs, room=120), checkpoints=state, resume_model=model)

    with run(2) as job, job.feed().reader(timeout=60) as reader:
        found = [records.to_pylist() for _ in range(2) for records in reader]
        job.wait(60)
        reader.commit("two")
    if dies:
        with monkeypatch.context() as patched:
            patched.setattr(more_epochs, "_keep_for_models", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                run(MOST)
    for end in (-2, 0, -1):  # the job is over, and goes on
        with run(MOST, "two") as job:
            feed, more, wanted = job.feed().resume("two"), list[Any](), len(expected) + end - len(found)
            with feed.reader(timeout=60) as reader:
                while len(more) < wanted:
                    more += take(reader, wanted - len(more))  # of one epoch at most
                if end:
                    job.checkpoint(60)
                else:
                    assert not take(reader, 1)  # so all has been taken
            if not end:
                job.wait(60)
        assert found + more == expected[: len(found) + wanted]


def test_epochs_are_raised_within_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 30)
    expected, found = batches_of(flow_of("mixed", MOST)), []
    for epochs, ranks in ((2, 1), (3, 2), (MOST, 3)):
        at = len(found), len(found) // (len(expected) // MOST)
        with ps.run_local(flow_of("mixed", epochs, room=100, keep=10_000), checkpoints=tmp_path) as job:
            found += read_group(job.feed(), ranks, at[0], None if epochs == MOST else 5, close=False, epoch=at[1])
            job.checkpoint(60)
            job.shutdown() if epochs < MOST else job.wait(60)
    assert found == expected


def newest(folder: Path) -> Manifest:
    return next(entry for entry in reversed(read_log_in(str(folder), "more")) if isinstance(entry, Manifest))


def ended(manifest: Manifest) -> set[str]:
    return {each.operator for state in manifest.tasks for each in state.ended}


def begin_to_say_all_anew(folder: Path, sources: set[str]) -> None:
    """Let the newest checkpoint be one right behind a start of the sources, which had said their end before, and not
    again: their operators' ends are in it, as whoever gets their rows was not started anew."""
    former, last = newest(folder), read_log_in(str(folder), "more")[-1].number
    checkpoint = CheckpointId(former.checkpoint.generation + 1, former.checkpoint.number + 1)
    files, tasks = SnapshotFiles(str(folder), "more"), []
    for state in former.tasks:
        mine = [each for each in state.state if each.operator in sources and not each.is_flight]
        if mine:
            tables = {
                id: table.set_column(table.schema.get_field_index("said"), "said", pa.array(["open"] * len(table)))
                for id, table in files.read(mine).items()
            }
            written = files.write(state.task, checkpoint, Attempt(checkpoint.generation, 1), tables)
        tasks.append(TaskState(task=state.task, state=written) if mine else state)
    anew = structs.replace(former, number=last + 1, checkpoint=checkpoint, tasks=tuple(tasks))
    assert "full-shuffle-1" in ended(anew)
    assert create_entry_in(str(folder), "more", anew) == "stored"


def test_epochs_are_raised_where_sources_had_not_said_again_that_they_had_ended(tmp_path: Path) -> None:
    expected = whole("a permutation")
    with ps.run_local(flow_of("a permutation", 2), checkpoints=tmp_path, parallelism=2) as job:
        found = read_group(job.feed(), 1, 0, 3, close=False, epoch=0)
        job.checkpoint(60)
        while "full-shuffle-1" not in ended(newest(tmp_path)):
            job.checkpoint(60)
        job.shutdown()
    begin_to_say_all_anew(tmp_path, {"rows"})
    with ps.run_local(flow_of("a permutation", MOST), checkpoints=tmp_path, parallelism=2) as job:
        found += read_group(job.feed(), 2, len(found), epoch=0)
        assert job.wait(60).audit().clean
    assert found == expected


HELD = threading.Event()


def slowly(batch: Any) -> Any:
    """Till the test has seen what it waits for."""
    HELD.wait(0.1)
    return batch


@pytest.mark.parametrize("parallelism", [1, 3])
def test_end_that_is_on_its_way_comes_first(parallelism: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The sources have ended, and what is behind the gather is not half through."""

    def flow(epochs: int) -> Flow:
        flow = Flow("more", lanes=4)
        united(flow).shuffle(20, seed=1).map_batches(slowly, batch_size=10).feed(60, epochs=epochs)
        return flow

    HELD.set()
    expected = batches_of(flow(3))
    HELD.clear()
    kept = ps.Checkpoints(tmp_path, every="50ms")
    with ps.run_local(flow(2), checkpoints=kept) as job:
        sources = [task for task in job.status().tasks if "gather" not in task.vertex]
        assert sources
        wait_for(lambda: has_ended(tmp_path, sources))
        job.shutdown()
    HELD.set()
    assert not all(task.data_ended for task in manifests(tmp_path)[-1].tasks)
    with ps.run_local(flow(3), checkpoints=kept, parallelism=parallelism) as job:
        assert "comes to the end of the 2 epochs" in caplog.text
        assert read_group(job.feed(), 2) == expected
        job.wait(60)


def manifests(folder: Path) -> list[Manifest]:
    return [entry for entry in read_log_in(str(folder), "more") if isinstance(entry, Manifest)]


def has_ended(folder: Path, tasks: Any) -> bool:
    """Whether these had come to their end in the newest checkpoint, if there is one."""
    found = [state.data_ended for newest in manifests(folder)[-1:] for state in newest.tasks if state.task in tasks]
    return bool(found) and all(found)


def test_job_of_files_goes_on_with_those_that_it_began_with(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number, table in enumerate(tables(3)):
        pq.write_table(table, files / f"{number}.parquet")

    def flow(epochs: int) -> Flow:
        flow = Flow("files", lanes=2)
        flow.read_parquet(files, name="rows").feed(50, shuffle=True, epochs=epochs)
        return flow

    expected = batches_of(flow(3))
    with ps.run_local(flow(2), checkpoints=tmp_path / "state") as job:
        found = read_group(job.feed(), 2)
        job.wait(60)
    pq.write_table(tables(4)[3], files / "3.parquet")
    with ps.run_local(flow(3), checkpoints=tmp_path / "state") as job:
        assert found + read_group(job.feed(), 1, len(found), epoch=2) == expected
        job.wait(60)
    pq.write_table(tables(5)[4], files / "0.parquet")
    with pytest.raises(ConfigurationError, match=r"not what the job has begun with: [\s\S]*0\.parquet"):
        ps.run_local(flow(4), checkpoints=tmp_path / "state")


@pytest.mark.parametrize("ended", [False, True])
def test_another_job_starts_from_a_savepoint_for_more_epochs(ended: bool, tmp_path: Path) -> None:
    room = 10_000 if ended else 60  # the sources begin no further round while there is no room
    with ps.run_local(flow_of("a window", 2, room=room, keep=10_000), checkpoints=tmp_path / "first") as job:
        reader = job.feed().reader(timeout=60)
        found = take(reader, 3)
        if ended:
            wait_for(lambda: job.checkpoint(60) is not None and has_ended(tmp_path / "first", job.status().tasks))
        saved = job.savepoint(tmp_path / "saved", aligned=True).path
        reader.close(0.0)
    with ps.run_local(flow_of("a window", MOST), checkpoints=tmp_path / "second", from_snapshot=saved) as job:
        assert found + read_group(job.feed(), 2, 3) == whole("a window")
        job.wait(60)


def finished(folder: Path, flow: Flow) -> None:
    with ps.run_local(flow, checkpoints=folder) as job:
        read_group(job.feed(), 1)
        job.wait(60)


def test_fewer_epochs_are_refused(tmp_path: Path) -> None:
    with ps.run_local(flow_of("in order", 3), checkpoints=tmp_path) as job:
        reader = job.feed().reader(timeout=60)
        take(reader, 2)
        job.checkpoint(60)
        reader.close(0.0)
    with pytest.raises(ConfigurationError, match="checkpoint of 3 epochs: 2 are fewer"):
        ps.run_local(flow_of("in order", 2), checkpoints=tmp_path)


def test_right_side_that_was_built_once_is_gone_at_the_end(tmp_path: Path) -> None:
    def flow(epochs: int) -> Flow:
        flow = Flow("more", lanes=4)
        other = flow.from_tables(tables(30, 20), name="other").filter("n % 2 = 0")
        plain(flow).hash_join(other, on=["n"], how="anti", exchange="key").feed(50, epochs=epochs)
        return flow

    finished(tmp_path, flow(2))
    with pytest.raises(ConfigurationError, match="had built of other for a hash join is gone"):
        ps.run_local(flow(3), checkpoints=tmp_path)


def test_one_epoch_is_another_flow_than_several(tmp_path: Path) -> None:
    finished(tmp_path, flow_of("in order", 1))
    with pytest.raises(ConfigurationError, match="is over"):
        ps.run_local(flow_of("in order", 2), checkpoints=tmp_path)
