"""The scheduler: what threads bring, what blocked runnables and turns cost, and what a short query feels of long ones.

Run it as ``python benchmarks/scheduler.py``; the result goes to ``benchmarks/results/scheduler.json`` and the plot of
the last experiment to ``benchmarks/results/scheduler.svg``. All figures are ratios within one run:

1. *Two threads against one*, on kernels that compute and release the interpreter's lock. Aim 1.7 on two cores. Beside
   it stands what two bare threads make of the same work: on a machine that has something else to do neither gets there.
2. *64 blocked runnables* beside a busy chain, against the chain alone. They must cost nothing measurable.
3. *Latency of a query of 10 ms* beside eight long ones, against the same query alone: at most three times as long.
   The contrast is the same without the feedback queue, where the short query is one of nine.
4. *A turn*: claim, run, complete, for a runnable that does nothing, against the aim of 30 µs. (This one and the second
   are measured in CPU time of the process, which is what a turn costs whatever else the machine does.)
5. *Fixed threads with growing instances, and fixed instances with growing threads*: the same work, cut into more
   instances, on two threads; and 16 instances on more threads. What a plan is cut into should not matter much, and
   more threads than cores should neither help nor harm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from svg_plot import Series, write_plot

from harness import Row, compare, report, results_folder, sized
from penstock.engine.scheduler.pool import PoolScheduler
from penstock.engine.scheduler.protocol import (
    Blocked,
    Finished,
    Handle,
    Outcome,
    Progress,
    Quantum,
    Scheduler,
    Wait,
    WaitReason,
)
from penstock.engine.scheduler.serial import SerialScheduler
from penstock.engine.scheduler.shares import LEVEL_THRESHOLDS

BATCH = pa.array(np.random.default_rng(7).random(sized(64 * 1024, 1024)))
BATCHES, TURNS = sized(240, 12), sized(50_000, 500)
LONG_QUERIES = sized(8, 1)
SHORT_BATCHES = 9
SHORT_RUNS = sized(15, 2)
INSTANCES = sized((1, 2, 4, 8, 16, 32, 64, 128), (1, 4))
THREADS = sized((1, 2, 3, 4, 6, 8), (1, 2))
NOBODY = (Wait(WaitReason.INPUT, "nobody"),)

AIM_TWO_THREADS = 1.7
AIM_BARE = 0.95
AIM_BLOCKED = 0.97
AIM_LATENCY = 1 / 3
AIM_TURN_SECONDS = 30e-6


def kernel() -> None:
    """A batch's worth of computing, a bit over 1 ms, with the interpreter's lock released."""
    pc.sum(pc.sin(pc.exp(pc.multiply(BATCH, BATCH))))


class Batches:
    """Computes a number of batches; for ever if it is None."""

    def __init__(self, name: str, count: int | None, work: Callable[[], None] = kernel) -> None:
        self.name = name
        self._left = count
        self._work = work

    def open(self) -> None: ...

    def run(self, quantum: Quantum) -> Outcome:
        while self._left is None or self._left > 0:
            self._work()
            if self._left is not None:
                self._left -= 1
            if quantum.expired():
                return Progress()
        return Finished()

    def close(self) -> None: ...


class Sleeper(Batches):
    """Blocked until the end."""

    def run(self, quantum: Quantum) -> Outcome:
        return Blocked(NOBODY)


class Partner(Batches):
    """Wakes its partner and blocks, turn after turn: nothing but turns and wake-ups."""

    partner: Handle | None = None

    def run(self, quantum: Quantum) -> Outcome:
        assert self.partner is not None
        assert self._left is not None
        self._left -= 1
        self.partner.wake()
        return Blocked(NOBODY) if self._left > 0 else Finished()


def run_instances(scheduler: Scheduler, instances: int, batches: int) -> float:
    """Seconds for ``batches`` batches, dealt out to so many runnables of one query."""
    query = scheduler.open("work")
    for number in range(instances):
        query.add(Batches(f"instance {number}", batches // instances + (number < batches % instances)))
    started = time.perf_counter()
    query.start()
    query.closed.result()
    return time.perf_counter() - started


def on_threads(threads: int, instances: int = 8) -> float:
    with PoolScheduler(threads) as pool:
        return run_instances(pool, instances, BATCHES)


def on_bare_threads(threads: int) -> float:
    """The same batches on threads that do nothing else."""

    def work() -> None:
        for _ in range(BATCHES // threads):
            kernel()

    bare = [threading.Thread(target=work) for _ in range(threads)]
    started = time.perf_counter()
    for thread in bare:
        thread.start()
    for thread in bare:
        thread.join()
    return time.perf_counter() - started


def turns_beside(blocked: int) -> float:
    """CPU seconds per turn of two runnables that wake each other, beside so many blocked ones."""
    with PoolScheduler(1) as pool:
        sleeping = pool.open("sleeping")
        for number in range(blocked):
            sleeping.add(Sleeper(f"sleeper {number}", None))
        sleeping.start()
        query = pool.open("awake")
        partners = [Partner(f"partner {number}", TURNS // 2) for number in range(2)]
        handles = [query.add(partner) for partner in partners]
        for partner, handle in zip(partners, reversed(handles), strict=True):
            partner.partner = handle
        started = time.process_time()
        query.start()
        query.closed.result()
        return (time.process_time() - started) / TURNS


def turn_of(make: Callable[[], Scheduler]) -> float:
    """CPU seconds per turn of two runnables that do nothing."""
    scheduler = make()
    query = scheduler.open("turns")
    for number in range(2):
        query.add(Turns(f"turns {number}", TURNS // 2))
    started = time.process_time()
    query.start()
    if isinstance(scheduler, SerialScheduler):
        scheduler.turn()
    query.closed.result()
    seconds = time.process_time() - started
    scheduler.shutdown()
    return seconds / TURNS


class Turns(Batches):
    """Does nothing, a number of turns."""

    def run(self, quantum: Quantum) -> Outcome:
        assert self._left is not None
        self._left -= 1
        return Progress() if self._left else Finished()


# ---------------------------------------------------------------------- latency


def short_query(pool: Scheduler) -> float:
    """Seconds from opening a query of 10 ms to its end."""
    started = time.perf_counter()
    query = pool.open("short")
    query.add(Batches("short", SHORT_BATCHES))
    query.start()
    query.closed.result()
    return time.perf_counter() - started


class LongQueries:
    """A pool of two threads with some queries that never end, all of them past the level of the young."""

    def __init__(self, *, feedback: bool) -> None:
        self.pool = PoolScheduler(2, levels=LEVEL_THRESHOLDS if feedback else (0.0,))
        self._queries = [self.pool.open(f"long {number}") for number in range(LONG_QUERIES)]
        for query in self._queries:
            for part in "ab":
                query.add(Batches(f"{query.name} {part}", None))
            query.start()
        aged = threading.Event()
        while not aged.wait(0.2):
            if all(query.statistics().cpu > LEVEL_THRESHOLDS[1] for query in self._queries):
                aged.set()

    def latency(self) -> float:
        """Median seconds of a short query beside them."""
        return float(np.median([short_query(self.pool) for _ in range(SHORT_RUNS)]))

    def latency_alone(self) -> float:
        """The same while they are paused."""
        for pause in [query.pause() for query in self._queries]:
            pause.result()
        seconds = self.latency()
        for query in self._queries:
            query.resume()
        return seconds


def latency_row(*, feedback: bool) -> Row:
    beside = LongQueries(feedback=feedback)
    work = f"a query of 10 ms beside {LONG_QUERIES} long ones, {'with' if feedback else 'without'} feedback queue"
    row = compare(work, "the same alone", beside.latency, beside.latency_alone, aim=AIM_LATENCY)
    beside.pool.shutdown()
    return row


# ---------------------------------------------------------------------- the experiment


def experiment() -> None:
    """Both curves of point 5; the best of three runs each, since a plot has no spread."""

    def throughput(threads: int, instances: int) -> float:
        return BATCHES / min(on_threads(threads, instances) for _ in range(3))

    by_instances = [throughput(2, instances) for instances in INSTANCES]
    by_threads = [throughput(threads, 16) for threads in THREADS]
    write_plot(
        results_folder() / "scheduler.svg",
        "Throughput in batches per second",
        (
            Series("2 threads, growing instances", "instances", INSTANCES, by_instances),
            Series("16 instances, growing threads", "threads", THREADS, by_threads),
        ),
    )


def turn_row(name: str, make: Callable[[], Scheduler]) -> Row:
    return compare(f"a turn {name}", "the aim of 30 µs", partial(turn_of, make), lambda: AIM_TURN_SECONDS)


def main() -> None:
    two, one = partial(on_threads, 2), partial(on_threads, 1)
    crowded, empty = partial(turns_beside, 64), partial(turns_beside, 0)
    rows = [
        compare(f"{BATCHES} batches on 2 threads", "on 1 thread", two, one, aim=AIM_TWO_THREADS),
        compare(f"{BATCHES} batches on 2 threads", "on 2 bare threads", two, partial(on_bare_threads, 2), aim=AIM_BARE),
        compare("a turn with a wake-up beside 64 blocked", "beside none", crowded, empty, aim=AIM_BLOCKED),
        latency_row(feedback=True),
        latency_row(feedback=False),
        turn_row("in a pool of 1", partial(PoolScheduler, 1)),
        turn_row("in a pool of 2", partial(PoolScheduler, 2)),
        turn_row("at degree 0", SerialScheduler),
    ]
    report(rows, results_folder() / "scheduler.json")
    experiment()


if __name__ == "__main__":
    main()
