"""Loaders for frameworks that fetch a batch ahead of their model: what is saved is the place of the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock as ps
from support.feeds import batches_of, plain, read_group, wait_for

EPOCHS = 2


def feeding(**options: Any) -> ps.Flow:
    flow = ps.Flow("training", lanes=4)
    plain(flow).shuffle(90, seed=2).feed(**{"batch_size": 50, "room": 100, "epochs": EPOCHS, **options})
    return flow


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return [[row["n"] for row in batch] for batch in batches_of(feeding())]


def fetching_ahead(loader: Any) -> Iterator[list[int]]:
    """An epoch as Lightning goes through it: the next batch is asked for before the model gets this one."""
    batches = iter(loader)
    waiting = next(batches, None)
    while waiting is not None:
        found, waiting = waiting, next(batches, None)
        yield found["n"].tolist()


def test_state_is_that_of_the_model_at_every_step_of_every_epoch(expected):
    job = ps.run_local(feeding())
    reader = job.feed().reader(timeout=60)
    loader = reader.loader()
    seen, places = [], []
    for _ in range(EPOCHS):
        for rows in fetching_ahead(loader):
            seen.append(rows)
            places.append((loader.state_dict()["step"], loader.state_dict()["epoch"]))
    reader.close()
    job.wait(60)
    assert seen == expected
    assert [step for step, _ in places] == list(range(1, len(expected) + 1))
    half = len(expected) // EPOCHS
    assert [epoch for _, epoch in places] == [(number + 1) // half for number in range(len(expected))]


@pytest.mark.parametrize("step", [1, 7, 15, 16, 17, 31])
def test_run_goes_on_with_the_batch_that_was_fetched_and_not_seen(tmp_path, expected, step):
    state = {}
    job = ps.run_local(feeding(keep=10_000), checkpoints=ps.Checkpoints(tmp_path / "state", every="50ms"))
    reader = job.feed().reader(timeout=60)
    loader, seen = reader.loader(), 0
    while not state:
        for _ in fetching_ahead(loader):
            seen += 1
            if seen == step:
                state = loader.state_dict()
                break
    reader.close(0)
    assert state["step"] == step
    other = job.feed().reader(timeout=60)
    again = other.loader()
    again.load_state_dict(state)
    rest = [rows for _ in range(other.epoch, EPOCHS) for rows in fetching_ahead(again)]
    other.close()
    assert rest == expected[step:]
    job.shutdown()


def test_reader_that_goes_back_from_the_last_batch_lets_nothing_go(tmp_path, expected):
    job = ps.run_local(feeding(keep=10_000), checkpoints=ps.Checkpoints(tmp_path / "state", every="50ms"))
    reader = job.feed().reader(timeout=60)
    state, seen = {}, 0
    for _ in range(EPOCHS):
        for _ in reader.iter_batches():
            seen += 1
            if seen == 5:
                state = reader.state_dict()
            if seen == len(expected):
                break
    completed = job.status().checkpoints_completed
    reader.load_state_dict(state)
    wait_for(lambda: job.status().checkpoints_completed >= completed + 2)
    rest = [batch["n"].tolist() for _ in range(reader.epoch, EPOCHS) for batch in reader.iter_batches()]
    reader.close()
    assert rest == expected[5:]
    job.shutdown()


def test_checkpoint_of_a_model_holds_the_batch_that_was_fetched_and_not_seen(tmp_path, expected):
    """Also if checkpoints completed meanwhile: the rank claims to have taken what its model has seen."""
    places = ps.Checkpoints(tmp_path / "state", every="50ms", retained=1)
    job = ps.run_local(feeding(), checkpoints=places)
    reader = job.feed().reader(timeout=60)
    batches = fetching_ahead(reader.loader())
    assert [next(batches) for _ in range(5)] == expected[:5]
    completed = job.status().checkpoints_completed
    wait_for(lambda: job.status().checkpoints_completed >= completed + 2)
    reader.commit("models/5")
    reader.flush(60)
    job.shutdown()
    job = ps.run_local(feeding(), checkpoints=places, resume_model="models/5")
    found = read_group(job.feed().resume("models/5"), 2)
    assert [[row["n"] for row in batch] for batch in found] == expected[5:]
    job.shutdown()


@pytest.mark.parametrize("how", ["closed", "given another position"])
def test_iteration_that_goes_on_when_its_reader_does_not_gives_nothing_of_what_it_had_fetched(how):
    job = ps.run_local(feeding(keep=10_000, room=10_000))
    reader = job.feed().reader(timeout=60, prefetch_batches=8)
    batches = reader.iter_batches()
    next(batches)
    state = reader.state_dict()
    assert [next(batches).num_rows for _ in range(2)] == [50, 50]
    prefetcher = reader._prefetcher
    assert prefetcher is not None
    wait_for(lambda: not prefetcher._wanted())
    if how == "closed":
        reader.close(0)
    else:
        reader.load_state_dict(state)
    with pytest.raises(ps.errors.ConfigurationError, match=how):
        next(batches)
    assert reader.step == (3 if how == "closed" else 1)
    job.shutdown()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_loop_that_fails_at_the_last_batch_goes_on_from_its_model(tmp_path, expected, error):
    places = ps.Checkpoints(tmp_path / "state", every="50ms")
    job = ps.run_local(feeding(), checkpoints=places)

    def train() -> None:
        with job.feed().reader(timeout=60) as reader:
            for _ in range(EPOCHS):
                for _ in reader:
                    if reader.step == len(expected):
                        raise error
                    if reader.step == len(expected) - 1:
                        reader.commit("models/last")
                        reader.flush(60)

    with pytest.raises(error):
        train()
    completed = job.status().checkpoints_completed
    wait_for(lambda: job.status().state == "finished" or job.status().checkpoints_completed >= completed + 3)
    job.shutdown()
    job = ps.run_local(feeding(), checkpoints=places, resume_model="models/last")
    reader = job.feed().resume("models/last").reader(timeout=60)
    assert [batch["n"].to_pylist() for batch in reader] == expected[-1:]
    reader.close()
    job.shutdown()


def at_the_end_of_a_loader(job: Any, expected: list[list[int]]) -> Any:
    """Its reader, when the framework has heard that there are no more batches, some checkpoints later."""
    reader = job.feed().reader(timeout=60)
    loader = reader.loader()
    assert [rows for _ in range(EPOCHS) for rows in fetching_ahead(loader)] == expected
    completed = job.status().checkpoints_completed
    wait_for(lambda: job.status().state == "finished" or job.status().checkpoints_completed >= completed + 3)
    return reader


def test_loader_at_its_end_commits_its_model_before_it_lets_go(tmp_path, expected):
    """A framework hears that there are no more batches before its model gets the last one."""
    job = ps.run_local(feeding(), checkpoints=ps.Checkpoints(tmp_path / "state", every="20ms", retained=1))
    with at_the_end_of_a_loader(job, expected) as reader:
        reader.commit("models/last")
        reader.flush(60)
    job.wait(60)


def test_loader_at_its_end_lets_nothing_go_when_its_model_fails(tmp_path, expected):
    job = ps.run_local(feeding(), checkpoints=ps.Checkpoints(tmp_path / "state", every="20ms", retained=1))
    reader = at_the_end_of_a_loader(job, expected)
    with pytest.raises(ValueError, match="the last batch"), reader:
        raise ValueError("the last batch")
    completed = job.status().checkpoints_completed
    wait_for(lambda: job.status().state == "finished" or job.status().checkpoints_completed >= completed + 3)
    assert job.status().state == "running"
    job.shutdown()
