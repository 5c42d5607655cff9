"""A model that has seen the whole feed: the most usual final save, and what goes on from it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.actors.feed.models import ModelBook
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.flow.flow import Flow
from support.feeds import batches_of, plain, read_group, tables, take


def feeding(**options: Any) -> Flow:
    flow = Flow("training", lanes=4)
    plain(flow).feed(**{"batch_size": 50, **options})
    return flow


def train(feed: Any, rank: int, ranks: int, *, waits_for: Any = None) -> None:
    """A training as anybody writes it: all batches of all epochs, then the final save."""
    with feed.reader(rank, ranks, timeout=60) as reader:
        for _ in range(reader.epoch, feed.epochs):
            for _ in reader:
                pass
        if waits_for is not None:
            waits_for()
        reader.commit("last")


def train_all(feed: Any, ranks: int, **options: Any) -> None:
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            train(feed, rank, ranks, **options)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("epochs", [1, 2])
def test_model_is_committed_after_the_last_step_and_nothing_comes_behind_it(
    ranks: int, over: bool, epochs: int, tmp_path: Path
) -> None:
    whole = len(batches_of(feeding(epochs=epochs)))
    with ps.run_local(feeding(epochs=epochs), checkpoints=tmp_path) as job:
        train_all(job.feed(), ranks, waits_for=(lambda: job.wait(60)) if over else None)
        assert job.wait(60).status().state == "finished"
        assert job.audit_feed().clean
        feed = job.feed().resume("last")
        assert (feed.start, feed.start_epoch) == (whole, epochs if epochs > 1 else 0)
        assert read_group(feed, 2) == []
    with ps.run_local(feeding(epochs=epochs), checkpoints=tmp_path, resume_model="last") as again:
        feed = again.feed().resume("last")
        assert read_group(feed, 2) == []
        train(feed, 0, 1)  # and whoever runs the script again
        assert again.wait(60).status().state == "finished"
        assert again.audit_feed().clean
        with feed.reader(timeout=60) as reader:
            assert (reader.step, list(reader)) == (whole, [])
            reader.commit("another")
        assert again.feed().resume("another").start == whole


@pytest.mark.parametrize("over", [False, True])
def test_name_that_rotates_is_forgotten_and_bound_again_after_the_last_step(over: bool, tmp_path: Path) -> None:
    with ps.run_local(feeding(), checkpoints=ps.Checkpoints(tmp_path, every="50ms")) as job:
        with job.feed().reader(timeout=60) as reader:
            steps = len(list(reader))
            if over:
                job.wait(60)
            for _ in range(3):
                reader.commit("last")
                reader.forget("last")
            reader.commit("last")
            reader.flush(60)
            reader.commit("gone")
            reader.forget("gone")
        book = ModelBook(str(tmp_path), "training")
        assert [(each.model, each.step) for each in book.records("feed")] == [("last", steps)]


def test_model_is_not_bound_to_the_end_if_it_is_bound_before(tmp_path: Path) -> None:
    with ps.run_local(feeding(room=10_000), checkpoints=tmp_path) as job:
        with job.feed().reader(timeout=60) as reader:
            take(reader, 3)
            reader.commit("m")
            reader.flush(60)
        feed = job.feed().resume("m")
        with feed.reader(timeout=60) as reader:
            steps = 3 + len(list(reader))
        job.wait(60)
        late = job.feed().reader(timeout=60)
        late.load_state_dict({**late.state_dict(), "step": steps})
        assert list(late) == []
        late.commit("m")
        with pytest.raises(ConfigurationError, match=f"'m' is bound to step 3 and cannot be bound to step {steps}"):
            late.close()


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("retention", ["always", "never"])
def test_job_that_has_ended_goes_on_from_its_models_alone(retention: Any, stops: bool, tmp_path: Path) -> None:
    kept = ps.Checkpoints(tmp_path, retention=retention)

    def run(model: str | None = None) -> Any:
        return ps.run_local(feeding(room=10_000), checkpoints=kept, resume_model=model)

    expected = batches_of(feeding())
    with run() as job:
        with job.feed().reader(timeout=60) as reader:
            take(reader, 3)
            reader.commit("m")
            if stops:
                reader.flush(60)
                job.stop(timeout=60)
            else:
                list(reader)
                reader.commit("last")
        job.wait(60)
    with pytest.raises(ConfigurationError, match="'training' is over"):
        run()
    for left in (2, 0):  # its log is open in between
        with run("m") as again:
            feed = again.feed().resume("m")
            assert feed.start == 3
            with feed.reader(timeout=60) as reader:
                assert take(reader, len(expected) - 3 - left) == expected[3 : len(expected) - left]
                if not left:
                    assert not take(reader, 1)
            if not left:
                assert again.wait(60).audit_feed().clean
    if stops:
        return
    with run("last") as again:
        assert read_group(again.feed().resume("last"), 3) == []
        with pytest.raises(ConfigurationError, match="read to the end"):
            read_group(again.feed(), 1)


def test_job_that_has_written_more_than_a_model_has_seen_does_not_go_back_to_it(tmp_path: Path) -> None:
    """Its rows would come twice."""

    def run(model: str | None = None) -> Any:
        flow = feeding()
        rows = flow.from_tables(tables(), name="more", rate=500.0)  # goes on behind the model
        rows.write_parquet(tmp_path / "out")
        return ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state"), resume_model=model)

    with run() as job:
        with job.feed().reader(timeout=60) as reader:
            take(reader, 3)
            reader.commit("m")
            reader.flush(60)
            list(reader)
        job.wait(60)
    with pytest.raises(ConfigurationError, match=r"twice|written since"):
        run("m")


def test_loop_that_counts_its_steps_and_never_hears_of_the_end(tmp_path: Path) -> None:
    steps = len(batches_of(feeding()))
    with ps.run_local(feeding(), checkpoints=tmp_path) as job:
        with job.feed().reader(timeout=60) as reader:
            assert len(take(reader, steps)) == steps
            reader.commit("last")
        job.wait(60)
    with ps.run_local(feeding(), checkpoints=tmp_path, resume_model="last") as again:
        assert read_group(again.feed().resume("last"), 1) == []


def test_model_of_a_job_without_a_folder_is_bound_to_nothing_and_that_is_said(caplog: Any) -> None:
    with ps.run_local(feeding()) as job:
        with job.feed().reader(timeout=60) as reader:
            list(reader)
            job.wait(60)
            assert not Path(job.folder).exists()
            reader.commit("last")
            reader.flush(60)
        assert not Path(job.folder).exists()
    assert "'last'" in caplog.text
    assert "nothing goes on from it" in caplog.text


def test_second_feed_of_a_job_goes_on_when_one_was_read_to_its_end(tmp_path: Path) -> None:
    def both() -> Flow:
        flow = Flow("training", lanes=4)
        plain(flow).feed(50, name="long")
        flow.from_tables(tables(3), name="few").feed(50, name="short")
        return flow

    expected = batches_of(feeding())
    with ps.run_local(both(), checkpoints=tmp_path) as job:
        long = job.feed("long").reader(timeout=60)
        found = take(long, 2)
        train(job.feed("short"), 0, 1)
        long.commit("last")
        long.flush(60)
        long.close(0.0)
    with ps.run_local(both(), checkpoints=tmp_path, resume_model="last") as again:
        assert read_group(again.feed("short").resume("last"), 2) == []
        assert found + read_group(again.feed("long").resume("last"), 2) == expected
        assert again.wait(60).status().state == "finished"
