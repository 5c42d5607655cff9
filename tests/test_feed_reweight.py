"""Weights of a mixture that are changed while its feed is read: the log has it, and every run has the same batches."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.actors.feed.mixtures import Steps, mixture_of
from penstock.actors.storage.log import read_log_in
from penstock.coordinator.model.events import TaskLost
from penstock.coordinator.model.manifest import reweights_in
from penstock.engine.core.errors import ConfigurationError, TaskLostError
from support.feeds import shorten_channels
from support.sweeps import seeds

SIZES = (8_000, 8_000, 4_000)
SIZE = 32
FIRST, SECOND, END = 120, 180, 220
"""The steps that weights are changed from, and where reading ends."""


@pytest.fixture(autouse=True)
def short_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixture is ahead of its ranks by what channels hold, which here would be all."""
    shorten_channels(monkeypatch, 8192)


def flow_of(
    weights: Sequence[Any] = (2, 1, 1), at_end: Any = "go on", between: Any = None, before: Any = None, **feed: Any
) -> ps.Flow:
    flow, mixed = ps.Flow("mixed", lanes=4), {}
    for number, (size, weight) in enumerate(zip(SIZES, weights, strict=True)):
        tables = [pa.table({"of": [number] * 40, "n": list(range(at, at + 40))}) for at in range(0, size, 40)]
        stream = flow.from_tables(tables, name=f"s{number}")
        mixed[stream if before is None else before(stream)] = weight
    stream = flow.mix(mixed, seed=3, at_end=at_end)
    (stream if between is None else between(stream)).feed(**({"batch_size": SIZE, "room": 200} | feed))
    return flow


def batches_of(reader: Any, end: int | None = None) -> list[Any]:
    found = []
    for records in reader:
        found.append(records.to_pylist())
        if reader.step == end:
            break
    return found


def planned() -> list[Any]:
    """The batches of a flow that knew the changes beforehand."""
    steps = {FIRST * SIZE: 0.0, SECOND * SIZE: 4.0}
    weights = (2, ps.Schedule.steps({0: 1, **steps}), ps.Schedule.steps({0: 1, FIRST * SIZE: 3.0}))
    with ps.run_local(flow_of(weights), parallelism=2) as job, job.feed().reader(timeout=60) as reader:
        return batches_of(reader, END)


def test_changed_weights_are_those_of_every_run_that_goes_on(tmp_path: Path) -> None:
    """From models whose checkpoints lie before and behind the changes; so are batches that are rebuilt."""
    expected, state = planned(), ps.Checkpoints(tmp_path / "state", every="50ms", retained=100)
    job = ps.run_local(flow_of(), checkpoints=state)
    reader, found, models = job.feed().reader(timeout=60), [], []
    for cut in (20, 40, 150):
        found += batches_of(reader, cut)
        if cut == 20:
            job.feed().reweight({"s1": 0.0, "s2": 3.0}, from_step=FIRST, timeout=30)
            assert 0 < len(job.status().reweights) < 3
        if cut == 40:
            job.feed().reweight({"s1": 4.0}, from_step=SECOND, timeout=30)
        reader.commit(f"model {cut}")
        reader.flush(60)
        models.append(cut)
    assert found == expected[:150]
    reader.close(0.0)
    job.shutdown()
    for cut in reversed(models):
        job = ps.run_local(flow_of(), checkpoints=state, resume_model=f"model {cut}", parallelism=2)
        with job.feed().resume(f"model {cut}").reader(timeout=60) as reader:
            assert batches_of(reader, END) == expected[cut:]
        job.shutdown()
    for step in (10, FIRST):
        again = ps.replay(flow_of(), checkpoints=state.folder, step=step)
        assert again.rows.to_pylist() == expected[step]
        assert again.verified is not False


def test_a_step_of_batches_that_are_balanced_is_known_beforehand() -> None:
    planned = flow_of((2, ps.Schedule.steps({0: 1, FIRST * SIZE: 4.0}), 1), balance="n % 7 + 1")
    with ps.run_local(planned) as job, job.feed().reader(timeout=60) as reader:
        expected = batches_of(reader, END)
    with ps.run_local(flow_of(balance="n % 7 + 1")) as job, job.feed().reader(timeout=60) as reader:
        found = batches_of(reader, 3)
        job.feed().reweight({"s1": 4.0}, from_step=FIRST, timeout=30)
        assert found + batches_of(reader, END) == expected


def test_savepoint_knows_the_change_and_so_does_a_job_that_starts_from_a_checkpoint(tmp_path: Path) -> None:
    expected = planned()
    job = ps.run_local(flow_of(), checkpoints=ps.Checkpoints(tmp_path / "state"))
    with job.feed().reader(timeout=60) as reader:
        batches_of(reader, 10)
        job.checkpoint(30)
        job.feed().reweight({"s1": 0.0, "s2": 3.0}, from_step=FIRST, timeout=30)
        job.feed().reweight({"s1": 4.0}, from_step=SECOND, timeout=30)
        batches_of(reader, 30)
        position, saved = reader.state_dict(), job.savepoint(tmp_path / "saved", 30)
    job.shutdown()
    for number, start in enumerate((saved.path, tmp_path / "state" / "mixed")):
        folder = tmp_path / f"next {number}"
        job = ps.run_local(flow_of(), checkpoints=folder, from_snapshot=start)
        reader = job.feed().reader(timeout=60)
        reader.load_state_dict(position)
        with reader:
            assert batches_of(reader, END) == expected[30:]
        job.shutdown()


def test_change_that_comes_too_late_is_refused_with_the_first_step_that_is_possible(tmp_path: Path) -> None:
    job = ps.run_local(flow_of(), checkpoints=tmp_path / "state")
    with job.feed().reader(timeout=60) as reader:
        batches_of(reader, 30)
        with pytest.raises(ConfigurationError, match="ranks have been given") as seen:
            job.feed().reweight({"s1": 0.0}, from_step=20, timeout=30)
        assert seen.value.remedy.startswith("the first step that is possible now is ")
        step = int(str(seen.value.remedy).rpartition(" ")[2])
        assert step >= 30
        job.feed().reweight({"s1": 0.0}, from_step=step + 100, timeout=30)
    entries = reweights_in(read_log_in(str(tmp_path / "state"), "mixed"))
    assert [each.position for each in entries] == [(step + 100) * SIZE]
    job.shutdown()


def test_changes_that_many_threads_ask_for_are_all_there(tmp_path: Path) -> None:
    job = ps.run_local(flow_of(room=64), checkpoints=tmp_path / "state")
    with job.feed().reader(timeout=60) as reader:
        found = batches_of(reader, 2)
        steps = range(120, 180, 10)
        threads = [
            threading.Thread(
                target=job.feed().reweight, args=({"s0": step / 100},), kwargs={"from_step": step, "timeout": 30}
            )
            for step in steps
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        found += batches_of(reader, END)
    job.shutdown()
    weights = (ps.Schedule.steps({0: 2, **{step * SIZE: step / 100 for step in steps}}), 1, 1)
    with ps.run_local(flow_of(weights)) as other, other.feed().reader(timeout=60) as again:
        assert found == batches_of(again, END)


def test_weights_are_changed_from_a_step_of_a_later_epoch_on(tmp_path: Path) -> None:
    """Where batches do not divide an epoch: its last batch is short, or left out."""
    size = 190
    for drop_last, each in ((False, 106), (True, 105)):  # 20,000 rows
        feed = {"batch_size": size, "epochs": 3, "drop_last": drop_last, "room": 600, "keep": 60_000}
        step = each + 40
        position = sum(SIZES) + 40 * size
        weights = (2, ps.Schedule.steps({0: 1, position: 5.0}), 1)
        with ps.run_local(flow_of(weights, **feed)) as job:
            expected = epochs_of(job.feed().reader(timeout=60))
        assert len(expected) == 3 * each
        folder = tmp_path / f"{drop_last}"
        with ps.run_local(flow_of(**feed), checkpoints=folder, parallelism=2) as job:
            reader = job.feed().reader(timeout=60, prefetch_batches=1)
            found = batches_of(reader, 3)
            job.feed().reweight({"s1": 5.0}, from_step=step, timeout=30)
            found += batches_of(reader, 5)
            with pytest.raises(ConfigurationError, match="ranks have been given"):
                job.feed().reweight({"s1": 1.0}, from_step=4, timeout=30)
            job.checkpoint(60)
            job.shutdown()
        with ps.run_local(flow_of(**feed), checkpoints=folder) as job:
            reader = job.feed().reader(timeout=60)
            reader.load_state_dict({**reader.state_dict(), "step": 5})
            assert found + epochs_of(reader) == expected


def epochs_of(reader: Any) -> list[Any]:
    """The batches that are left of all epochs."""
    with reader:
        return [records.to_pylist() for _ in range(reader.epoch, reader.feed.epochs) for records in reader]


@pytest.mark.parametrize(("drop_last", "per_epoch"), [(False, 4), (True, 3)])
def test_steps_and_positions_of_later_epochs(drop_last: bool, per_epoch: int) -> None:
    steps = Steps(10, 33, drop_last)
    starts = [33 * epoch + 10 * batch for epoch in range(3) for batch in range(per_epoch)]
    assert [steps.position_of(step) for step in range(len(starts))] == starts
    for position in range(99):
        step = steps.first_step(position)
        assert step == next((at for at, start in enumerate(starts) if start >= position), 3 * per_epoch)


@pytest.mark.parametrize(
    ("feed", "before", "why"),
    [
        ({"epochs": 2, "drop_last": True, "batch_size": 20_001, "room": 50_000}, None, "its epochs have no batch"),
        ({"epochs": 2}, lambda stream: stream.filter("n > 3"), "may change how many rows"),
        ({"epochs": 2, "at_end": "stop"}, None, "makes other rows of its input"),
    ],
)
def test_epochs_of_which_it_is_not_known_where_they_begin_are_refused(feed: Any, before: Any, why: str) -> None:
    with ps.run_local(flow_of(before=before, **feed)) as job:
        with pytest.raises(ConfigurationError) as raised:
            job.feed().reweight({"s1": 2.0}, from_step=50)
        assert why in f"{raised.value.message} {raised.value.remedy}"


@pytest.mark.parametrize(
    ("feed", "between", "why"),
    [
        ({}, lambda stream: stream.filter("n > 3"), "may change how many rows"),
        ({}, lambda stream: stream.shuffle(100, seed=1), "or their order"),
    ],
)
def test_feeds_whose_batches_are_not_counts_of_the_mixture_are_refused(feed: Any, between: Any, why: str) -> None:
    job = ps.run_local(flow_of(between=between, **feed))
    with pytest.raises(ConfigurationError) as raised:
        job.feed().reweight({"s1": 2.0}, from_step=50)
    assert why in f"{raised.value.message} {raised.value.remedy}"
    job.shutdown()


def up_to(reader: Any, end: int) -> list[Any]:
    """The batches before this one, of any epoch."""
    found: list[Any] = []
    while reader.step < end:
        found += batches_of(reader, end)
    return found


BETWEEN: dict[str, Any] = {
    "nothing": None,
    "filter": lambda stream: stream.filter("n % 3 > 0"),
    "window": lambda stream: stream.shuffle(100, seed=1),
    "spread": lambda stream: stream.rebalance().filter("n % 5 > 0"),
}
FEEDS: dict[str, Any] = {
    "cost": {"batch_size": None, "cost": "n % 17 + 3", "tokens": 400},
    "by fit": {"batch_size": None, "cost": "n % 17 + 3", "tokens": 400, "window": 60},
    "rows": {},
}


def kill_a_task(job: ps.Job) -> None:
    for task, counts in list(job.statistics().items())[-1:]:
        job._request(TaskLost(task, counts.attempt, "the test says so", 0.0))


@pytest.mark.parametrize("seed", seeds(6, of=400))
def test_weights_are_changed_from_a_row_on_whatever_a_batch_is(seed: int, tmp_path: Path) -> None:
    """Tasks die before and behind the change; a model goes on; batches are rebuilt."""
    chance = random.Random(seed)
    between, feed = BETWEEN[list(BETWEEN)[seed % 4]], {**FEEDS[list(FEEDS)[seed % 3]], "epochs": 2, "room": 300}
    feed["keep"] = 60_000  # who is behind may read all again
    row = chance.choice([9_000, 17_000, 23_000])
    at_end = chance.choice(["go on", "stop", "begin again"])
    schedule = (2, ps.Schedule.steps({0: 1, row: 5.0}), ps.Schedule.steps({0: 1, row: 0.25}))
    with ps.run_local(flow_of(schedule, at_end, between, **feed)) as job:
        expected = epochs_of(job.feed().reader(timeout=60))
    state = ps.Checkpoints(tmp_path / "state", every="50ms", retained=100)
    job = ps.run_local(flow_of((2, 1, 1), at_end, between, **feed), checkpoints=state, parallelism=2)
    reader = job.feed().reader(timeout=60, prefetch_batches=chance.choice([0, 3]))
    cut = chance.randrange(2, 20)
    found = up_to(reader, cut)
    if chance.random() < 0.7:
        kill_a_task(job)
        if chance.random() < 0.5:
            cut += 5
            found += up_to(reader, cut)
    job.feed().reweight({"s1": 5.0, "s2": 0.25}, from_row=row, timeout=60)
    reader.commit("model")
    reader.flush(60)
    if chance.random() < 0.7:
        kill_a_task(job)
    found += up_to(reader, len(expected) - 2)  # then the job is not over
    assert found == expected[:-2]
    reader.close(0.0)
    job.shutdown()
    again = ps.replay(flow_of((2, 1, 1), at_end, between, **feed), checkpoints=state.folder, step=len(expected) - 3)
    assert again.rows.to_pylist() == expected[-3]
    job = ps.run_local(
        flow_of((2, 1, 1), at_end, between, **feed), checkpoints=state.folder, resume_model="model", parallelism=1
    )
    assert epochs_of(job.feed().resume("model").reader(timeout=60)) == expected[cut:]
    job.shutdown()


def test_row_that_has_left_is_refused_with_the_first_one_that_is_possible() -> None:
    with ps.run_local(flow_of(**FEEDS["by fit"])) as job, job.feed().reader(timeout=60) as reader:
        batches_of(reader, 5)
        with pytest.raises(ConfigurationError, match="from row 7 of the mixture on") as seen:
            job.feed().reweight({"s1": 0.0}, from_row=7, timeout=30)
        row = int(str(seen.value.remedy).rpartition(" ")[2])
        assert row > 7
        job.feed().reweight({"s1": 0.0}, from_row=row + 4_000, timeout=30)
        with pytest.raises(ConfigurationError, match="its batches are cut by what rows cost"):
            job.feed().reweight({"s1": 0.0}, from_step=5_000)
        for both in ({}, {"from_row": 9_000, "from_step": 5_000}):
            with pytest.raises(ConfigurationError, match="from one place on"):
                job.feed().reweight({"s1": 0.0}, **both)


def test_what_is_no_change_is_refused() -> None:
    job = ps.run_local(flow_of(between=lambda stream: stream.project("n")))
    feed = job.feed()
    with pytest.raises(ConfigurationError, match="no stream"):
        feed.reweight({"s9": 1.0}, from_step=100)
    for wrong in ({}, {"s0": 0.0, "s1": 0.0, "s2": 0.0}, {"s0": -1.0}, {"s0": float("nan")}):
        with pytest.raises(ConfigurationError, match="weight"):
            feed.reweight(wrong, from_step=100)
    with pytest.raises(ConfigurationError, match="sent to another process"):
        pickle.loads(pickle.dumps(feed)).reweight({"s0": 1.0}, from_step=100)
    job.shutdown()
    with pytest.raises(TaskLostError, match="it was shut down"):
        feed.reweight({"s0": 1.0}, from_step=100)


def test_stream_that_was_mixed_before_is_named_by_all_that_were_mixed() -> None:
    """Its weight is one: who names one of its sources must not change the others without knowing."""
    flow = ps.Flow("nested", lanes=2)
    a, b, c, d, prices = (
        flow.from_tables([pa.table({"n": [1], "key": [1]}), pa.table({"n": [2], "key": [2]})], name=name)
        for name in ("a", "b", "c", "d", "prices")
    )
    joined = c.hash_join(prices, ["key"]).project("n", "key")
    flow.mix({flow.mix({a: 1, b.filter("n > 0").union(d): 1}): 1, joined: 1}, at_end="go on").feed(1)
    with ps.run_local(flow) as job:
        mixture = mixture_of(job.plan, "feed")
        job.feed().reader(timeout=60).close(0)
    for some in ({"a": 0.0}, {"a": 1.0, "b": 1.0}, {"d": 2.0, "c": 1.0}):
        with pytest.raises(ConfigurationError, match="come as one stream") as seen:
            mixture.change(some, 10, "asked")
        assert str(seen.value.remedy) == "name all of them, with one weight: that of the stream"
    with pytest.raises(ConfigurationError, match="come as one stream"):
        mixture.change({"a": 1.0, "b": 1.0, "d": 2.0}, 10, "asked")
    stream = dict.fromkeys("abd", 3.0)
    assert mixture.change(stream, 10, "asked").weights == ((0, 3.0),)
    assert mixture.change({"c": 2.0}, 10, "asked").weights == ((1, 2.0),), "rows of prices are none of the mixture"
    assert mixture.change({**stream, "prices": 0.0}, 10, "asked").weights == ((0, 3.0), (1, 0.0))
    with pytest.raises(ConfigurationError, match="no stream is given a weight"):
        mixture.change({**dict.fromkeys("abd", 0.0), "c": 0.0}, 10, "asked")
