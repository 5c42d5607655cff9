"""Threads for work that waits: order, number, ends, and the end of the interpreter."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import pytest

from penstock.engine.scheduler import threads
from penstock.engine.scheduler.threads import InOrder, Threads

PATIENCE = 60.0


def test_one_thread_does_the_work_in_order():
    done: list[int] = []
    pool = Threads(1, "one")
    for number in range(200):
        pool.submit(lambda number=number: done.append(number))
    pool.close()
    assert done == list(range(200))


def test_no_more_threads_than_allowed_are_started_and_idle_ones_are_used_first():
    pool, gate, begun = Threads(2, "two"), threading.Event(), threading.Semaphore(0)
    seen: set[int] = set()

    def work() -> None:
        seen.add(threading.get_ident())
        begun.release()
        gate.wait(PATIENCE)

    for _ in range(5):
        pool.submit(work)
    assert begun.acquire(timeout=PATIENCE)
    assert begun.acquire(timeout=PATIENCE)
    assert not begun.acquire(blocking=False)
    gate.set()
    pool.close()
    assert len(seen) == 2


def test_close_can_drop_what_has_not_begun_and_what_comes_later_is_dropped():
    pool, gate, begun = Threads(1, "drop"), threading.Event(), threading.Event()
    done: list[str] = []
    pool.submit(lambda: (begun.set(), gate.wait(PATIENCE), done.append("begun")))
    pool.submit(lambda: done.append("waiting"))
    assert begun.wait(PATIENCE)
    pool.close(wait=False, drop=True)
    gate.set()
    pool.join(PATIENCE)
    pool.submit(lambda: done.append("late"))
    pool.close()
    assert done == ["begun"]


def test_thread_that_is_about_to_end_is_waited_for():
    about_to_end, may_end = threading.Event(), threading.Event()

    class Slow(Threads):
        def _serve(self) -> None:
            super()._serve()
            about_to_end.set()
            may_end.wait(PATIENCE)

    pool = Slow(1, "slow to end")
    pool.submit(lambda: None)
    pool.close(wait=False)
    assert about_to_end.wait(PATIENCE)
    threading.Timer(0.1, may_end.set).start()
    pool.join(PATIENCE)
    assert "slow to end" not in {thread.name for thread in threading.enumerate()}


def test_work_may_close_the_pool_that_it_runs_on():
    pool, closed = Threads(1, "self"), threading.Event()
    pool.submit(lambda: (pool.close(), closed.set()))
    assert closed.wait(PATIENCE)


def test_error_is_logged_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture):
    pool, done = Threads(1, "fails"), threading.Event()
    pool.submit(lambda: 1 / 0)
    pool.submit(done.set)
    assert done.wait(PATIENCE)
    pool.close()
    assert "ZeroDivisionError" in caplog.text


def test_thread_without_work_leaves_and_another_one_comes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.01)
    pool, found = Threads(1, "leaves"), []
    for _ in range(3):
        done = threading.Event()
        pool.submit(lambda done=done: (found.append(threading.current_thread()), done.set()))
        assert done.wait(PATIENCE)
        found[-1].join(PATIENCE)
        assert not found[-1].is_alive()
    pool.close()


def program(text: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "import threading, time\nfrom penstock.engine.scheduler.threads import Threads\n" + text,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_program_ends_quietly_while_work_waits_and_what_is_submitted_then_is_dropped():
    ended = program("""
import atexit
pool, begun = Threads(1, "stuck"), threading.Event()
atexit.register(lambda: pool.submit(lambda: None))
pool.submit(lambda: (begun.set(), time.sleep(3600)))
pool.submit(lambda: print("never"))
begun.wait()
print("the end", flush=True)
""")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the end\n", "")


def test_work_that_has_begun_may_end_when_the_program_does():
    ended = program("""
import penstock.engine.scheduler.threads
penstock.engine.scheduler.threads.EXIT_SECONDS = 60
pool, begun, over = Threads(1, "write"), threading.Event(), threading.Event()
pool.submit(lambda: (begun.set(), over.wait(60), print("written", flush=True)))
begun.wait()
threading.Thread(target=lambda: (threading.main_thread().join(), over.set())).start()
print("the end", flush=True)
""")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the end\nwritten\n", "")


def test_work_in_order_is_done_one_piece_at_a_time_whatever_it_raises():
    pool, done, under_way = Threads(4, "order"), [], []
    order, over = InOrder(pool), threading.Event()

    def work(number):
        under_way.append(number)
        assert under_way == [number]
        done.append(number)
        under_way.clear()
        if number == 199:
            over.set()
        if number % 7 == 0:
            raise ValueError(number)

    for number in range(200):
        order.submit(partial(work, number))
    assert over.wait(PATIENCE)
    pool.close()
    assert done == list(range(200))
