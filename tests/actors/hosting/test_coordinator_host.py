"""Who waits for the status of a job gets what matters at once, and the progress of checkpoints together."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from msgspec.structs import replace

from penstock.actors.hosting import coordinator_host
from penstock.actors.hosting.coordinator_host import CoordinatorHost
from penstock.actors.protocol.messages import CheckpointsAsked
from penstock.coordinator.model.statistics import JobStatus

RUNNING = JobStatus("job", "running", 1, 0, 0, 0, None, None, {}, None, None, "everybody runs")


class Core:
    """A coordinator that does nothing but tell a status."""

    now = RUNNING
    then = RUNNING

    def status(self):
        return self.now

    def start(self, _now):
        return []

    def next_deadline(self):
        return None

    def checkpoint_statistics(self):
        """Called on the host's thread: from here on the core is as the test wants it."""
        self.now = self.then


class Files:
    def close(self, last):
        """Nothing is stored."""


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(coordinator_host, "COALESCING_DELAY", 60.0)
    made = CoordinatorHost(Core(), lambda _post: Files(), lambda _post: None)
    made.start()
    yield made
    made.close()


def become(host, **changes):
    """The status changes; returns when that is published."""
    core = host._core
    core.then = replace(core.now, **changes)
    for _ in range(2):  # the second question is taken after what the first one changed was published
        done: Future = Future()
        host.post(CheckpointsAsked(done))
        done.result(30.0)


def test_change_that_matters_is_published_at_once(host):
    version, _ = seen = host.wait_status(None, 0.0).version
    threading.Timer(0.05, become, (host,), {"checkpoints_completed": 1}).start()
    told = host.wait_status(seen, 30.0)
    assert (told.version[0], told.status.checkpoints_completed) == (version, 1)


def test_progress_of_checkpoints_is_coalesced(host):
    seen = host.wait_status(None, 0.0).version
    become(host, why="a checkpoint waits for a task")
    found: Future = Future()
    waiter = threading.Thread(target=lambda: found.set_result(host.wait_status(seen, 30.0).status))
    waiter.start()
    become(host, why="a checkpoint waits for another task")
    assert not found.done()
    become(host, state="finished")
    waiter.join(30.0)
    assert (found.result(0).state, found.result(0).why) == ("finished", "a checkpoint waits for another task")


def test_coalescing_ends_with_the_time_that_is_given(host):
    seen = host.wait_status(None, 0.0).version
    become(host, why="a checkpoint waits for a task")
    assert host.wait_status(seen, 0.05).status.why == "a checkpoint waits for a task"


def test_who_knows_another_coordinator_gets_the_status_at_once(host):
    become(host, why="a checkpoint waits for a task")
    assert host.wait_status(("another", 7), 30.0).status.why == "a checkpoint waits for a task"
