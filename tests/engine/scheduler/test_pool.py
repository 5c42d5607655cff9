"""The pool with real threads: everything arrives, nothing runs twice, and no thread is left."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import pytest

from penstock.engine.core.errors import ConfigurationError, InternalError
from penstock.engine.scheduler.pool import LONGEST_TURN_SECONDS, PoolScheduler, Worker, default_degree, shared_pool
from penstock.engine.scheduler.protocol import Blocked, QueryTimeoutError, Share
from penstock.engine.scheduler.serial import SerialScheduler
from penstock.engine.scheduler.threads import BACKGROUND_THREADS
from support.scheduling import BLOCKED, FINISHED, INPUT, PROGRESS, Endless, Probe, Script, add_chain
from support.simulated_scheduler import SimulatedScheduler

LONG = 60.0
"""Seconds: none of these tests waits for time to pass, so this only says when a hang is one."""


@pytest.fixture(params=[1, 2, 4, 8])
def pool(request):
    before = set(threading.enumerate())
    with PoolScheduler(request.param) as scheduler:
        yield scheduler
    assert set(threading.enumerate()) <= before


def check_ends(probes: list[Probe]) -> None:
    assert [probe.broken for probe in probes] == [[]] * len(probes)
    assert [probe.closed for probe in probes] == [1] * len(probes)


def test_chains_deliver_everything_at_every_degree(pool) -> None:
    queries, consumers, all_probes = [], [], []
    for n in range(6):
        query = pool.open(f"chain {n}")
        probes, consumer = add_chain(query, range(500), length=n % 3)
        queries.append(query), consumers.append(consumer), all_probes.extend(probes)
        query.start()
    for query in queries:
        query.closed.result(LONG)
    assert [consumer.got for consumer in consumers] == [list(range(500))] * 6
    check_ends(all_probes)


def test_failure_reaches_the_owner_and_leaves_nothing_running(pool) -> None:
    told = []
    query = pool.open("bad", on_failure=lambda handle, error: told.append((handle.name, error)))
    probes = [*(Endless(f"endless {n}") for n in range(4)), Script("bad", PROGRESS, ValueError("broken"))]
    for probe in probes:
        query.add(probe)
    query.start()
    query.closed.result(LONG)
    assert str(query.error) == "broken"
    assert told == [("bad", query.error)]
    check_ends(probes)


def test_cancel_ends_endless_runnables(pool) -> None:
    query = pool.open("endless")
    ran = threading.Event()
    probes = [Endless("a"), Script("b", lambda: ran.set() or PROGRESS, *[BLOCKED] * 100), Endless("c")]
    for probe in probes:
        query.add(probe)
    query.start()
    assert ran.wait(LONG)
    query.cancel().result(LONG)
    check_ends(probes)
    assert query.error is None


def test_pause_means_that_no_thread_is_inside(pool) -> None:
    query = pool.open("endless")
    probes = [Endless(f"r{n}") for n in range(5)]
    for probe in probes:
        query.add(probe)
    query.start()
    for _ in range(20):
        query.pause().result(LONG)
        assert [probe.inside for probe in probes] == [None] * 5
        turns = [probe.turns for probe in probes]
        pool.open("other").cancel().result(LONG)
        assert [probe.turns for probe in probes] == turns
        query.resume()
    query.cancel().result(LONG)
    check_ends(probes)


def test_timer_wakes_a_parked_pool(pool) -> None:
    query = pool.open("sleeper")
    probe = Script("r", lambda: Blocked(INPUT, wake_at=time.monotonic() + 0.01))
    query.add(probe)
    began = time.monotonic()
    query.start()
    query.closed.result(LONG)
    assert time.monotonic() - began >= 0.01
    assert probe.turns == 2, "it was woken once, and not before its time"
    assert query.error is None


def test_earlier_timer_replaces_the_one_that_is_waited_for(pool) -> None:
    late = pool.open("late")
    late.add(Script("late", lambda: Blocked(INPUT, wake_at=time.monotonic() + 10 * LONG)))
    late.start()
    soon = pool.open("soon")
    soon.add(Script("soon", lambda: Blocked(INPUT, wake_at=time.monotonic() + 0.01)))
    soon.start()
    soon.closed.result(LONG)
    assert not late.closed.done()
    late.cancel().result(LONG)


def test_time_limit_ends_a_query_that_nobody_wakes(pool) -> None:
    query = pool.share(Share(timeout=0.02)).open("stuck")
    probe = Script("r", *[BLOCKED] * 100)
    query.add(probe)
    query.start()
    query.closed.result(LONG)
    assert isinstance(query.error, QueryTimeoutError)
    check_ends([probe])


def test_capped_group_goes_on_when_its_time_comes(pool) -> None:
    pool.set_group("capped", cap=0.5)

    def work():
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass
        return PROGRESS

    query = pool.share(Share(group="capped")).open("capped")
    query.add(Script("r", work, work, work))
    started = time.monotonic()
    query.start()
    query.closed.result(LONG)
    # 0.09 s of work: two thirds must have been paid for before the last turn, less what the bucket held
    assert time.monotonic() - started > (0.06 - 0.05) / 0.5


def test_background_work_wakes_its_runnable(pool) -> None:
    query = pool.open("lookup")
    answers: list = []

    class Asking(Probe):
        def turn(self, quantum):
            if answers:
                return FINISHED
            if self.turns == 1:
                query.background(lambda: "found", answers.append, handle)
            return BLOCKED

    probe = Asking("r")
    handle = query.add(probe)
    query.start()
    query.closed.result(LONG)
    assert answers == ["found"]
    check_ends([probe])


def test_blocking_background_work_does_not_hold_a_worker(pool) -> None:
    gate = threading.Event()
    asking = pool.open("asking")
    handle = asking.add(Script("r", lambda: asking.background(gate.wait, lambda answer: None, handle) or BLOCKED))
    asking.start()
    for n in range(10):
        other = pool.open(f"other {n}")
        add_chain(other, range(10))
        other.start()
        other.closed.result(LONG)
    assert not asking.closed.done()
    gate.set()
    asking.closed.result(LONG)


def test_long_background_work_leaves_a_thread_for_what_it_waits_for() -> None:
    """Functions that read other plans fill all threads, and those plans' files are read on one more."""
    read, calls = threading.Event(), BACKGROUND_THREADS
    with PoolScheduler(1) as pool:
        asking = pool.open("asking")

        def ask() -> object:
            for _ in range(calls):
                asking.background(lambda: read.wait(LONG), lambda answer: None, handle, is_long=True)
            asking.background(read.set, lambda answer: None, handle)
            return FINISHED

        handle = asking.add(Script("r", ask))
        asking.start()
        asking.closed.result(LONG)
        assert read.is_set()
        assert asking.error is None


def test_workers_run_at_the_same_time() -> None:
    """Both must be inside at once, or the barrier breaks."""
    barrier = threading.Barrier(2, timeout=LONG)
    with PoolScheduler(2) as pool:
        query = pool.open("rendezvous")
        for name in "ab":
            query.add(Script(name, lambda: barrier.wait() >= 0 and PROGRESS))
        query.start()
        query.closed.result(LONG)
        assert query.error is None


def test_parallelism_of_a_query_is_bounded() -> None:
    inside, most, lock, two = [0], [0], threading.Lock(), threading.Event()

    class Counting(Endless):
        def turn(self, quantum):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                if inside[0] == 2:
                    two.set()
            two.wait(LONG)  # the bound is reached, however the system schedules the threads
            while not quantum.expired():
                pass
            with lock:
                inside[0] -= 1
            return FINISHED if self.turns == 5 else PROGRESS

    with PoolScheduler(4, slice_seconds=0.001) as pool:
        query = pool.share(Share(degree=2)).open("bounded")
        for n in range(6):
            query.add(Counting(f"r{n}"))
        query.start()
        query.closed.result(LONG)
    assert most[0] == 2


def test_slice_ends_by_the_threads_cpu_time() -> None:
    class Working(Probe):
        def turn(self, quantum):
            begun = time.thread_time()
            while not quantum.expired():
                pass
            self.spent = time.thread_time() - begun
            return FINISHED

    with PoolScheduler(1, slice_seconds=0.005) as pool:
        query = pool.open("q")
        probe = Working("r")
        query.add(probe)
        query.start()
        query.closed.result(LONG)
        assert probe.spent > 0.004
        assert query.statistics().handles[0].cpu >= probe.spent


def test_who_only_waits_gives_its_thread_back_by_the_clock() -> None:
    """A function that sleeps uses up no CPU time, and others would never come in."""

    class Sleeping(Probe):
        def turn(self, quantum):
            self.slept = 0
            while not quantum.expired():
                time.sleep(LONGEST_TURN_SECONDS)
                self.slept += 1
            return FINISHED

    with PoolScheduler(1) as pool:
        query = pool.open("q")
        probe = Sleeping("r")
        query.add(probe)
        query.start()
        query.closed.result(LONG)
        assert probe.slept == 1


def test_pool_has_threads_only_while_something_is_open() -> None:
    before = set(threading.enumerate())
    pool = PoolScheduler(2)
    for _ in range(3):
        query = pool.open("q")
        assert set(threading.enumerate()) <= before, "nothing has been started"
        query.add(Script("r", PROGRESS))
        query.start()
        query.closed.result(LONG)
        pool.settle([query.closed])
        assert set(threading.enumerate()) <= before
    pool.shutdown()


def test_thread_that_is_about_to_end_is_waited_for() -> None:
    about_to_end, may_end = threading.Event(), threading.Event()

    class Slow(PoolScheduler):
        def _serve(self, worker: Worker) -> None:
            super()._serve(worker)
            about_to_end.set()
            may_end.wait(LONG)

    before = set(threading.enumerate())
    pool = Slow(1)
    query = pool.open("q")
    query.add(Script("r", PROGRESS))
    query.start()
    query.closed.result(LONG)
    assert about_to_end.wait(LONG)
    timer = threading.Timer(0.1, may_end.set)
    timer.start()
    pool.settle([query.closed])
    timer.join()
    assert set(threading.enumerate()) <= before
    pool.shutdown()


def test_threads_for_background_work_leave_with_the_last_query() -> None:
    """They stayed for half a minute after a job whose tasks had threads of their own."""
    for scheduler in (PoolScheduler(1), SerialScheduler()):
        before = set(threading.enumerate())
        query = scheduler.open("q")
        done = threading.Event()
        probe = Script("r")
        handle = query.add(probe)
        ask = partial(query.background, lambda: 1, lambda _, done=done: done.set(), handle)
        probe.steps.append(lambda ask=ask: ask() or PROGRESS)
        query.start()
        if isinstance(scheduler, SerialScheduler):
            scheduler.finish(query.closed, LONG)
        else:
            scheduler.settle([query.closed])
        assert done.is_set()
        assert set(threading.enumerate()) <= before


def test_share_that_asks_for_more_threads_than_cores_gets_them() -> None:
    """Ten must be inside at once, or the barrier breaks; and no more than the share's bound ever are."""
    asked, most = default_degree() + 3, []
    barrier, lock = threading.Barrier(asked, timeout=LONG), threading.Lock()
    inside = [0]

    def meet():
        with lock:
            inside[0] += 1
            most.append(inside[0])
        barrier.wait()
        with lock:
            inside[0] -= 1
        return PROGRESS

    pool = PoolScheduler()
    query = pool.share(Share(degree=asked)).open("rendezvous")
    for number in range(2 * asked):
        query.add(Script(f"r{number}", meet))
    query.start()
    pool.settle([query.closed])
    assert query.error is None
    assert max(most) == asked
    assert pool._core.moves.workers == default_degree(), "what was asked for goes with the share"
    pool.shutdown()


def test_turn_that_waits_for_others_of_its_pool_does_not_keep_them_from_running() -> None:
    pool = PoolScheduler(1)

    def nested():
        inner = pool.open("inner")
        inner.add(Script("r", PROGRESS))
        inner.start()
        with pool.waiting():
            inner.closed.result(LONG)
        return PROGRESS

    query = pool.open("outer")
    query.add(Script("r", nested, nested))
    query.start()
    pool.settle([query.closed])
    assert query.error is None
    assert pool._core.moves.workers == 1
    pool.shutdown()


def test_what_is_to_be_closed_does_not_wait_for_a_turn_that_is_stuck() -> None:
    pool = PoolScheduler(1)
    stuck, free = threading.Event(), threading.Event()
    busy = pool.open("busy")
    busy.add(Script("r", lambda: stuck.set() or (free.wait(LONG) and PROGRESS)))
    busy.start()
    assert stuck.wait(LONG)
    other = pool.open("other")
    other.add(Script("r", PROGRESS))
    other.start()
    other.cancel().result(LONG)
    assert not busy.closed.done()
    free.set()
    pool.shutdown()


def test_turn_that_is_stuck_after_its_query_has_ended_keeps_no_place() -> None:
    """A new attempt of a task, in the old one's share, or any other plan: the user's function may never return."""
    pool = PoolScheduler(1)
    stuck, free = threading.Event(), threading.Event()
    shares = [pool.share(Share(degree=1)), pool.share(Share())]
    over = shares[0].open("over")
    over.add(Script("r", lambda: stuck.set() or (free.wait(LONG) and PROGRESS)))
    over.start()
    assert stuck.wait(LONG)
    over.cancel()
    for share in shares:
        other = share.open("other")
        other.add(Script("r", PROGRESS, PROGRESS))
        other.start()
        other.closed.result(LONG)
        assert other.error is None
        assert not over.closed.done()
    free.set()
    over.closed.result(LONG)
    assert pool._core.moves.workers == 1
    pool.shutdown()


def test_time_limit_ends_a_query_for_which_no_thread_has_ever_worked() -> None:
    pool = PoolScheduler(1)
    query = pool.share(Share(timeout=0.01)).open("empty")
    query.start()
    query.closed.result(LONG)
    assert isinstance(query.error, QueryTimeoutError)
    pool.shutdown()


def test_tasks_of_a_process_share_one_pool() -> None:
    assert shared_pool() is shared_pool()


@pytest.mark.parametrize(("limit", "degree"), [("100000 100000", 1), ("max 100000", None), ("9900000 100000", None)])
def test_degree_is_no_more_than_the_time_that_a_container_is_given(limit, degree, tmp_path, monkeypatch) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr("penstock.engine.scheduler.pool.CONTAINER_LIMIT", str(tmp_path / "cpu.max"))
    assert default_degree() == (degree or len(os.sched_getaffinity(0)))


def test_degree_is_the_cores_that_the_process_may_use_unless_set() -> None:
    with PoolScheduler() as pool:
        assert pool.degree == default_degree() <= len(os.sched_getaffinity(0))


def test_pool_of_no_threads_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match="SerialScheduler"):
        PoolScheduler(0)


def test_pool_cannot_be_shut_down_by_its_own_thread() -> None:
    with PoolScheduler(1) as pool:
        query = pool.open("q")
        query.add(Script("r", lambda: pool.shutdown() or PROGRESS))
        query.start()
        query.closed.result(LONG)
        assert isinstance(query.error, InternalError)


def test_shutdown_of_a_busy_pool_with_a_paused_query_ends_all() -> None:
    before = set(threading.enumerate())
    pool = PoolScheduler(2)
    probes = [Endless(f"r{n}") for n in range(6)]
    queries = [pool.open(f"q{n}") for n in range(3)]
    for n, probe in enumerate(probes):
        queries[n % 3].add(probe)
    for query in queries:
        query.start()
    queries[0].pause().result(LONG)
    pool.shutdown()
    check_ends(probes)
    assert set(threading.enumerate()) <= before


def test_bug_inside_the_scheduler_resolves_all_futures() -> None:
    pool = PoolScheduler(2)
    query = pool.open("q")
    query.add(Script("r", BLOCKED))
    pool._core.complete = lambda *call: 1 // 0
    query.start()
    query.closed.result(LONG)
    assert isinstance(query.error, ZeroDivisionError)
    pool.shutdown()


@pytest.mark.parametrize("kind", ["serial", "pool", "simulated"])
def test_three_schedulers_tell_the_same_story_of_a_query(kind: str) -> None:
    scheduler = {"serial": SerialScheduler, "pool": PoolScheduler, "simulated": lambda: SimulatedScheduler(5)}[kind]()
    query = scheduler.share(Share(weight=2.0)).open("chain")
    _, consumer = add_chain(query, range(50))
    query.start()
    if isinstance(scheduler, SerialScheduler):
        scheduler.turn()
    elif isinstance(scheduler, SimulatedScheduler):
        scheduler.run()
    query.closed.result(LONG)
    statistics = query.statistics()
    assert consumer.got == list(range(50))
    assert [handle.state for handle in statistics.handles] == ["released"] * 3
    assert (statistics.name, statistics.group, query.why()) == ("chain", "default", [])
    scheduler.shutdown()
