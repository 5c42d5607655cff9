"""Models and the feed: what a model is bound to, and going on from it with another number of ranks."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import penstock as ps
from penstock.actors.feed.models import ModelBook
from penstock.actors.feed.prefetch import Prefetcher
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.feed import server as feed_desk
from support.feeds import batches_of, plain, read_group, tables, take, wait_for


def feeding(**options):
    flow = ps.Flow("training", lanes=4)
    plain(flow).feed(**{"batch_size": 50, "room": 100, **options})
    return flow


@pytest.fixture
def start(tmp_path):
    """Starts the job in one folder, again and again; ends what still runs."""
    jobs: list[Any] = []

    def begin(flow=None, every="50ms", **options):
        if jobs:
            jobs[-1].shutdown()
        checkpoints = ps.Checkpoints(tmp_path / "state", every=every, retained=1)
        jobs.append(ps.run_local(feeding() if flow is None else flow, checkpoints=checkpoints, **options))
        return jobs[-1]

    yield begin
    jobs[-1].shutdown()


@pytest.fixture(scope="module")
def expected():
    return batches_of(feeding())


def test_job_that_shuts_down_waits_for_the_record_that_it_writes(start, monkeypatch):
    write, begun, written = ModelBook.write, threading.Event(), []

    def slowly(book, record):
        begun.set()
        time.sleep(0.3)
        write(book, record)
        written.append(record.model)

    monkeypatch.setattr(ModelBook, "write", slowly)
    job = start()
    with job.feed().reader(timeout=60) as reader:
        take(reader, 2)
        reader.commit("m")
        assert begun.wait(60)
        job.shutdown()
        assert written == ["m"]


def go_on(job):
    """Wait for two more checkpoints, so that the first of them begins after what was read."""
    completed = job.status().checkpoints_completed
    job.wait_until(lambda status: status.checkpoints_completed >= completed + 2, 60)


@pytest.mark.parametrize("ranks", [1, 3])
def test_group_of_another_size_goes_on_from_a_model_though_the_engine_was_far_ahead(start, expected, ranks):
    job = start(parallelism=2)
    readers = [job.feed().reader(rank, 2, timeout=60) for rank in range(2)]
    slices = [reader.iter_batches() for reader in readers]
    for step in range(12):
        assert [row for each in slices for row in next(each).to_pylist()] == expected[step]
        if step == 4:
            readers[0].commit("models/5")
            readers[0].flush(60)
    wait_for(lambda: job.status().latest_completed > job.status().pins["model models/5 of feed feed"])
    go_on(job)
    for reader in readers:
        reader.close(0.0)
    again = start(parallelism=3, resume_model="models/5")
    assert read_group(again.feed().resume("models/5"), ranks) == expected[5:]
    assert again.wait(60).audit().clean


def test_job_goes_on_from_its_newest_checkpoint_if_that_still_holds_what_comes_next(start, expected):
    job = start(feeding(keep=10_000))
    reader = job.feed().reader(timeout=60)
    take(reader, 5)
    reader.commit("m")
    reader.flush(60)
    job.checkpoint(60)
    newest = job.status().latest_completed
    reader.close(0.0)
    again = start(feeding(keep=10_000), resume_model="m")
    restored = again.wait_until(lambda status: status.restored_from is not None, 60).restored_from
    assert restored is not None
    assert restored >= newest
    assert read_group(again.feed().resume("m"), 2) == expected[5:]


def test_commit_before_the_first_checkpoint_asks_for_one_and_the_training_goes_on(start, expected):
    job = start(every=None)
    with job.feed().reader(timeout=60) as reader:
        assert take(reader, 1) == expected[:1]
        reader.commit("first")
        assert take(reader, 3) == expected[1:4]
        reader.flush(60)
        wait_for(lambda: list(job.status().pins) == ["model first of feed feed"])
        assert job.feed().resume("first").start == 1
        assert take(reader, 100) == expected[4:]
        reader.commit("last")
        reader.flush(60)
        assert job.feed().resume("last").start == len(expected)
    assert job.wait(60).status().state == "finished"


def test_all_ranks_may_commit_at_the_same_step_but_not_at_another(start, monkeypatch):
    monkeypatch.setattr(feed_desk, "SLOW_SECONDS", 0.2)
    job = start()
    readers = [job.feed().reader(rank, 2, timeout=60) for rank in range(2)]
    threads = [threading.Thread(target=take, args=(reader, 3)) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reader in readers:
        reader.commit("m")
    for reader in readers:
        reader.flush(60)
    take(readers[1], 1)
    readers[1].commit("m")
    with pytest.raises(ConfigurationError, match="'m' is bound to step 3 and cannot be bound to step 4"):
        readers[1].flush(60)
    for reader in readers:
        reader.close(0.0)


def test_loop_that_never_flushes_hears_that_a_model_was_refused(start):
    job = start(every=None)

    def loop():
        with job.feed().reader(timeout=60) as reader:
            for _ in reader:
                if reader.step in (2, 4):
                    reader.commit("last")

    with pytest.raises(ConfigurationError, match="'last' is bound to step 2 and cannot be bound to step 4"):
        loop()
    assert job.feed().resume("last").start == 2


def test_forgotten_model_lets_its_checkpoint_go_and_can_be_bound_anew(start):
    job = start()
    reader = job.feed().reader(timeout=60)
    take(reader, 2)
    reader.commit("m")
    reader.flush(60)
    reader.forget("m")
    reader.flush(60)
    wait_for(lambda: not job.status().pins)
    with pytest.raises(ConfigurationError, match="'m' is not bound to feed 'feed'"):
        job.feed().resume("m")
    take(reader, 1)
    reader.commit("m")
    reader.flush(60)
    assert job.feed().resume("m").start == 3
    reader.close(0.0)


def test_one_name_is_forgotten_and_bound_anew_as_often_as_the_user_likes_and_without_waiting_in_between(start):
    job = start()
    reader = job.feed().reader(timeout=60)
    for _ in range(4):
        take(reader, 1)
        reader.forget("last")
        reader.commit("last")
        reader.flush(60)
        assert job.feed().resume("last").start == reader.step
        wait_for(lambda: list(job.status().pins) == ["model last of feed feed"])
    reader.forget("last")
    reader.flush(60)
    wait_for(lambda: not job.status().pins)  # the log says so already, the status in a moment
    reader.close(0.0)


def test_model_that_covers_more_than_a_rank_has_taken_is_bound_and_says_so_here_in_its_record_and_in_the_audit(
    start, caplog, monkeypatch
):
    monkeypatch.setattr(feed_desk, "SLOW_SECONDS", 0.5)
    job = start(feeding(room=400))
    readers = [job.feed().reader(rank, 2, timeout=60) for rank in range(2)]
    other = threading.Thread(target=take, args=(readers[1], 1))
    other.start()
    take(readers[0], 4)
    other.join()
    readers[0].commit("early")
    readers[0].flush(60)
    told = "covers batches that not all ranks have taken: rank 1 of 2, from batch 0 on: taken before 1"
    assert f"model 'early' of feed 'feed' {told}" in caplog.text
    job.checkpoint(60)
    audit = job.audit_feed()
    assert not audit.clean
    assert [(model.model, model.step) for model in audit.models] == [("early", 4)]
    assert [place.taken for place in audit.ranks] == [4, 1]
    assert "model 'early' covers the batches before 4, but rank 1 of 2" in str(audit)
    take(readers[1], 3)
    readers[1].commit("later")
    readers[1].flush(60)
    job.checkpoint(60)
    audit = job.audit_feed()
    assert audit.clean, "it has caught up"
    assert [place.taken for place in audit.ranks] == [4, 4]
    assert "'later'" not in caplog.text
    for reader in readers:
        reader.close(0.0)


@pytest.mark.parametrize("options", [{}, {"max_ahead": 1}])
def test_rank_is_never_farther_before_one_that_stands_still_than_it_was_told(start, options):
    job = start(feeding(room=250))
    readers = [job.feed().reader(rank, 2, timeout=60, **options) for rank in range(2)]
    other = threading.Thread(target=take, args=(readers[1], 1))
    other.start()
    take(readers[0], 1)
    other.join()
    most = 3 if options else 6
    take(readers[0], most - 1)  # these come, however busy the machine is
    readers[0].timeout = 1.0
    with pytest.raises(TimeoutError, match="waits for rank 1 of 2, which is at batch 1"):
        take(readers[0], 1)
    assert readers[0].step == most
    for reader in readers:
        reader.close(0.0)


def test_pair_that_does_not_match_is_refused(start):
    job = start()
    reader = job.feed().reader(timeout=60)
    take(reader, 2)
    state = reader.state_dict()
    take(reader, 1)
    reader.commit("m")
    reader.flush(60)
    with pytest.raises(ConfigurationError, match="of step 2, but model 'm' has come to step 3"):
        job.feed().resume("m").reader().load_state_dict(state)
    reader.close(0.0)
    with pytest.raises(ConfigurationError, match="another flow, other data, or global batches that may have another"):
        start(feeding(batch_size=25), resume_model="m")
    with pytest.raises(ConfigurationError, match="'other' is not bound"):
        start(resume_model="other")


def test_going_back_behind_rows_that_another_sink_has_written_is_refused(start, tmp_path):
    def both():
        flow = ps.Flow("training", lanes=4)
        rows = flow.from_tables(tables(), name="rows", rate=600.0)
        rows.feed(50, room=100)
        rows.write_parquet(tmp_path / "out", name="files")
        return flow

    job = start(both())
    reader = job.feed().reader(timeout=60)
    take(reader, 1)
    reader.commit("m")
    reader.flush(60)
    take(reader, 15)
    go_on(job)
    job.checkpoint(60)
    reader.close(0.0)
    with pytest.raises(ConfigurationError, match=r"files: the output folder .* these rows would come twice"):
        start(both(), resume_model="m")


def test_models_that_are_not_bound_yet_when_a_reader_leaves_are_bound_first(start, monkeypatch):
    """The feed is read to its end before the first answer comes: it is not let go before the models are bound."""
    said, question = [], Prefetcher._next_request
    monkeypatch.setattr(Prefetcher, "_next_request", lambda self: said.append(question(self)) or said[-1])
    job = start(every="10s", flow=feeding(batch_size=300, room=10_000))
    with job.feed().reader(timeout=60) as reader:
        for _ in reader.iter_batches():
            reader.commit(f"models/{reader.step}")
    job.wait(60)
    assert [job.feed().resume(f"models/{step}").start for step in (1, 2, 3)] == [1, 2, 3]
    assert all(ask.saved <= commit.step for ask in said if ask is not None for commit in ask.commits)
