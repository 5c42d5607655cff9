"""Batches that are skipped on purpose: the same ones in every rank, and known to whoever goes on."""

from __future__ import annotations

import pickle

import pytest

import penstock as ps
from penstock.actors.feed.reader import united
from penstock.engine.core.errors import ConfigurationError
from support.feeds import plain, read_group, take


def job_of() -> ps.Job:
    flow = ps.Flow("skipping", lanes=4)
    plain(flow).feed(50, keep=10_000)
    return ps.run_local(flow)


@pytest.fixture(scope="module")
def expected():
    return read_group(job_of().feed(), 1)


@pytest.mark.parametrize("ranks", [1, 3])
def test_skipped_batches_are_not_handed_out_and_the_others_keep_their_numbers(ranks, expected):
    job = job_of()
    feed = pickle.loads(pickle.dumps(job.feed().skip(range(3, 6)).skip(range(14, 99))))
    assert read_group(feed, ranks) == expected[:3] + expected[6:14]
    job.wait(60)


def test_edit_is_part_of_the_state_and_stays_when_a_reader_goes_on(expected):
    job = job_of()
    reader = job.feed().skip(range(2, 4)).reader(timeout=60)
    assert take(reader, 3) == [*expected[:2], expected[4]]
    state = reader.state_dict()
    assert (state["step"], state["skipped"]) == (5, [[2, 4]])
    reader.close(0.0)
    again = job.feed().skip(range(6, 7)).reader(timeout=60)
    again.load_state_dict(state)
    assert take(again, 2) == [expected[5], expected[7]]
    assert again.state_dict() == {**state, "step": 8, "skipped": [[2, 4], [6, 7]]}
    assert take(again, 100) == expected[8:]
    assert len(again) == len(expected) - 3
    again.close()
    job.wait(60)


def test_ranges_that_touch_are_one():
    assert united([(5, 7), (1, 3)], [(3, 4), (6, 9), (20, 21)]) == ((1, 4), (5, 9), (20, 21))


@pytest.mark.parametrize("steps", [range(5, 5), range(9, 3), range(0, 9, 2), range(-1, 3)])
def test_steps_that_are_no_run_of_batches_are_refused(steps):
    job = job_of()
    with pytest.raises(ConfigurationError, match="cannot be skipped"):
        job.feed().skip(steps)
    job.shutdown()


def test_edit_is_in_the_record_of_a_committed_model(tmp_path, expected):
    def begin(**options):
        flow = ps.Flow("skipping", lanes=4)
        plain(flow).feed(50, room=100)
        return ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path, every="50ms", retained=1), **options)

    job = begin()
    reader = job.feed().skip(range(2, 4)).skip(range(6, 7)).reader(timeout=60)
    take(reader, 3)
    state = reader.state_dict()
    reader.commit("m")
    reader.flush(60)
    job.feed().reader(timeout=60).close()
    other = job.feed().resume("m").reader(timeout=60)
    with pytest.raises(ConfigurationError, match=r"with no batch skipped, but model 'm' .* 2 to 3, batches 6"):
        other.load_state_dict({**state, "skipped": []})
    other.load_state_dict(state)
    reader.close(0.0)
    job.shutdown()
    again = begin(resume_model="m", parallelism=3)
    feed = again.feed().skip(range(9, 10)).resume("m")
    assert read_group(feed, 2) == [expected[5], *expected[7:9], *expected[10:]]
    again.wait(60)


def test_model_that_was_committed_with_one_edit_cannot_be_committed_with_another():
    job = job_of()
    reader = job.feed().skip(range(2, 4)).reader(timeout=60)
    take(reader, 1)
    reader.commit("m")
    reader.flush(60)
    state = reader.state_dict()
    reader.close(0.0)
    other = job.feed().skip(range(8, 9)).reader(timeout=60)
    other.load_state_dict(state)
    other.commit("m")
    with pytest.raises(ConfigurationError, match=r"bound with batches 2 to 3 skipped and cannot .* 8 to 8 skipped"):
        other.flush(60)
    other.close(0.0)
    job.shutdown()
