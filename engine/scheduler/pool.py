"""A few threads around one core: started when there is work, gone when nothing is open.

One lock guards the core: turns last milliseconds and the interpreter runs one thread at a time anyhow, so local queues
and stealing are there for warm caches, not to keep threads apart. The rules of waking:

1. After every change, if there is work and somebody is parked, one worker is unparked: the one in whose queue the last
   runnable was put, if it is parked, else the one that was parked last; if nobody is, a new one is started as long as
   there may be more. Having claimed something, it does the same: a burst of work unparks everybody, one piece of work
   one.
2. Of the parked workers at most one, the *timekeeper*, waits with a time limit: until the next timer. If it is unparked
   to work, another one takes its place. There is no thread for timers, and none polls.
3. What the core wants told (an error, an end) is told by the thread that made the change, outside the lock.
4. A worker that finds nothing to do while no query is open leaves. So a pool that nobody uses has no threads.
5. There are as many workers as there are cores, or as a share's ``degree`` asks for, if that is more. One that waits
   inside a turn for what others of the pool will do (a user's function that reads another plan) says so, and is not
   counted meanwhile: else the last one would wait for itself. Something to close may have one more: it does not wait
   for what a function of another plan is stuck in.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Lock, Thread, get_ident

from ..core.errors import ConfigurationError, InternalError
from .core import Core
from .entries import Entry
from .observation import Trace
from .protocol import DriverState, Outcome
from .shares import LEVEL_THRESHOLDS
from .shell import OpenQuery, Shell, close, resolve, run

# ------------------------------------------------------------------ worker
#
# One thread of the pool, and the turns that it gives.
#
# A slice is measured in CPU time of this thread, so that neither a busy machine nor a wait for the interpreter's lock
# shortens it. It ends early, at the next question, when someone more urgent wants the worker, and late when it has only
# waited: a user's function that asks a service takes no CPU time.

SLICE_SECONDS = 0.004
"""CPU time of a turn: long against the 30 µs that giving one costs, short against what people notice."""

LONGEST_TURN_SECONDS = 0.05
"""By the clock: behind whoever sleeps between two questions others wait no longer, nor does a checkpoint for them."""


class SlicedQuantum:
    """A turn that lasts ``SLICE_SECONDS`` of this thread's CPU time, and ``LONGEST_TURN_SECONDS`` by the clock. It is
    asked between any two operators. The clock of the thread costs a call of the system: it is looked at when so much
    time has passed that it may be over."""

    __slots__ = ("_earliest", "_entry", "_latest", "_until", "now", "started")

    def __init__(self, entry: Entry, now: float, seconds: float) -> None:
        self._entry = entry
        self.now = now
        self.started = time.thread_time()
        self._until = self.started + seconds
        began = time.perf_counter()
        self._earliest = began + seconds
        self._latest = began + LONGEST_TURN_SECONDS

    def expired(self) -> bool:
        if self._entry.yield_asked:
            return True
        passed = time.perf_counter()
        if passed < self._earliest:
            return False
        if passed >= self._latest:
            return True
        left = self._until - time.thread_time()
        self._earliest = passed + left
        return left <= 0


class Worker:
    """A thread and the condition on which it is parked; all workers' conditions share the pool's lock."""

    def __init__(self, number: int, lock: Lock, serve: Callable[[Worker], None]) -> None:
        self.number = number
        self.condition = Condition(lock)
        self.thread = Thread(target=serve, args=(self,), name=f"penstock-worker-{number}", daemon=True)
        # Parked: in the pool's list of parked ones. `until`: when it will look by itself, if it was told to.
        self.parked = False
        self.until: float | None = None

    def run(self, entry: Entry, now: float, seconds: float) -> tuple[Outcome, float]:
        """One turn: its outcome and the CPU seconds that it took."""
        quantum = SlicedQuantum(entry, now, seconds)
        outcome = run(entry, quantum)
        return outcome, time.thread_time() - quantum.started


BEYOND_WAKING = frozenset(
    {DriverState.READY, DriverState.FINISHING, DriverState.CLOSED, DriverState.RELEASED},
)
"""States in which a wake-up changes nothing: it will run anyhow, or never again."""


CONTAINER_LIMIT = "/sys/fs/cgroup/cpu.max"
"""Microseconds of CPU time in a period, or "max", and those of the period."""

LEAVE_SECONDS = 1.0
"""How long ``settle`` waits for threads that are about to leave."""


def default_degree() -> int:
    """The cores that this process may use: of those that it may run on, as many as its container is given time of."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # there is no such limit
        quota, period = Path(CONTAINER_LIMIT).read_text(encoding="ascii").split()
        cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores


class PoolScheduler(Shell):
    """See the module's docstring. ``degree``: how many threads at most; unset, as rule 5 says."""

    def __init__(
        self,
        degree: int | None = None,
        *,
        slice_seconds: float = SLICE_SECONDS,
        levels: Sequence[float] = LEVEL_THRESHOLDS,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.degree = default_degree() if degree is None else degree
        if self.degree < 1:
            raise ConfigurationError(f"a pool of {self.degree} threads", "use SerialScheduler for degree 0")
        self._mutex = Lock()
        super().__init__(Core(self.degree, trace, levels, grows=degree is None), self._mutex, clock)
        self._slice = slice_seconds
        self._stopping = False
        self._parked: list[Worker] = []
        self._timekeeper: Worker | None = None
        #: those that have been started and have not left, by their thread's number
        self._workers: dict[int, Worker] = {}
        #: the threads of those that have left, and may not have ended yet
        self._left: set[Thread] = set()

    # ------------------------------------------------------------------ a worker's life

    def _hire(self) -> None:
        """Start another worker; under the lock."""
        taken = {worker.number for worker in self._workers.values()}
        worker = Worker(min(set(range(len(taken) + 1)) - taken), self._mutex, self._serve)
        self._left = {each for each in self._left if each.is_alive()}
        worker.thread.start()
        assert worker.thread.ident is not None  # it has begun
        self._workers[worker.thread.ident] = worker

    def _serve(self, worker: Worker) -> None:
        try:
            while self._work(worker):
                pass
        except BaseException as error:
            self._break(error)

    def _work(self, worker: Worker) -> bool:
        """Find something to do and do it. False: the worker has left."""
        core = self._core
        with self._mutex:
            now = self._clock()
            core.tick(now)
            effects = core.take_effects() if core.effects else None
            entry = None if effects else self._claim(worker, now)
            if entry is not None or effects:
                self.unpark()
            elif self._stopping or not self._open or len(self._workers) > core.moves.workers:
                del self._workers[get_ident()]
                self._left.add(worker.thread)
                self.unpark()  # what this one was not to do, another may
                return False
            else:
                self._park(worker, now)
                return True
        if effects:
            self.perform(effects)
        elif entry is not None:
            self._do(worker, entry, now)
        return True

    def _claim(self, worker: Worker, now: float) -> Entry | None:
        """What there is to do; nothing but to close if there are more workers than there may be."""
        core = self._core
        surplus = len(self._workers) > core.moves.workers
        return core.endings.claim_closing(now) or (None if surplus else core.claim(worker.number, now))

    def _do(self, worker: Worker, entry: Entry, now: float) -> None:
        """Run or close what was claimed. This worker looks for more at once: others need not be unparked for it, unless
        it has something to tell first."""
        core = self._core
        if entry.closing:
            error = close(entry)
            with self._mutex:
                core.endings.closed(entry, error, self._clock())
                effects = core.take_effects()
        else:
            outcome, cost = worker.run(entry, now, self._slice)
            with self._mutex:
                entry.cpu += cost
                core.complete(entry, outcome, cost, self._clock())
                effects = core.take_effects() if core.effects else []
        if effects:
            with self._mutex:
                self.unpark()
            self.perform(effects)

    def _break(self, error: BaseException) -> None:
        """A bug of the scheduler itself: nobody may wait for ever for what will not happen."""
        with self._mutex:
            self._shut = self._stopping = True
            self._workers.pop(get_ident(), None)
            queries = list(self._open.values())
            self._open.clear()
            self._dismiss()
        for query in queries:
            query.record.error = query.record.error or error
            resolve(query.closed)

    def _dismiss(self) -> None:
        """Let those that are parked look whether they should leave; under the lock."""
        while self._parked:
            self._unpark(self._parked[-1])

    def _park(self, worker: Worker, now: float) -> None:
        """Sleep until unparked, or, as timekeeper, until the next timer."""
        deadline = self._core.next_deadline()
        keeper = self._timekeeper
        keeps = deadline is not None and (keeper is None or keeper.until is None or deadline < keeper.until)
        if keeps:
            self._timekeeper = worker
            worker.until = deadline
        worker.parked = True
        self._parked.append(worker)
        timeout = max(0.0, deadline - now) if keeps and deadline is not None else None
        worker.condition.wait(timeout)
        if worker.parked:
            worker.parked = False
            self._parked.remove(worker)
        if self._timekeeper is worker:
            self._timekeeper = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What is done within waits for others. In a turn of this pool, somebody takes the worker's place (rule 5)."""
        if get_ident() not in self._workers:
            yield
            return
        with self._mutex:
            self._core.moves.workers += 1
            self.unpark()
        try:
            yield
        finally:
            with self._mutex:
                self._core.moves.workers -= 1

    # ------------------------------------------------------------------ waking

    def unpark(self) -> None:
        """See the rules above; under the lock."""
        core = self._core
        if core.endings.eager or core.shares.active:
            self._unpark_one()
        if self._parked or not self._workers:
            deadline, keeper = core.next_deadline(), self._timekeeper
            if deadline is not None and (keeper is None or (keeper.until is not None and deadline < keeper.until)):
                self._unpark_one()

    def _unpark_one(self) -> None:
        if self._parked:
            home = self._core.moves.last_home
            self._unpark(next((parked for parked in self._parked if parked.number == home), self._parked[-1]))
        elif len(self._workers) < self._core.moves.workers + bool(self._core.endings.eager) and not self._stopping:
            self._hire()

    def _unpark(self, worker: Worker) -> None:
        worker.parked = False
        self._parked.remove(worker)
        if self._timekeeper is worker:
            self._timekeeper = None
        worker.condition.notify()

    def wake(self, entry: Entry) -> None:
        # Looked at without the lock: what the waker changed, it changed before this, and whoever is READY or marked
        # will begin another turn after this.
        if entry.notified or entry.state in BEYOND_WAKING:
            return
        with self._mutex:
            worker = self._workers.get(get_ident())
            self._core.wake(entry, self._clock(), None if worker is None else worker.number)
            self.unpark()

    # ------------------------------------------------------------------ end

    def forget(self, query: OpenQuery) -> None:
        super().forget(query)
        if not self._open:
            self._dismiss()

    def settle(self, closed: Sequence[Future[None]]) -> None:
        """Wait until the queries are closed, and, if no others are open, until the threads have left (but not for one
        that is still telling). A worker does not wait: it may be inside of what is to be closed."""
        if get_ident() in self._workers:
            return
        for future in closed:
            future.result()
        with self._mutex:
            if self._open:
                return
            leaving = self._threads()
        deadline = time.monotonic() + LEAVE_SECONDS
        for thread in leaving:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._pool.join(max(0.0, deadline - time.monotonic()))

    def _threads(self) -> list[Thread]:
        """All that may not have ended; under the lock."""
        return [*(worker.thread for worker in self._workers.values()), *self._left]

    def shutdown(self) -> None:
        """Cancel every query, wait until all is closed, and end the threads. Not from a worker's thread."""
        if get_ident() in self._workers:
            raise InternalError("a pool was shut down by one of its own threads", "do it from outside")
        with self._mutex:
            self._shut = True
            queries = list(self._open.values())
        for query in queries:
            query.resume()
            query.cancel()
        for query in queries:
            query.closed.result()
        with self._mutex:
            self._stopping = True
            leaving = self._threads()
            self._dismiss()
        for thread in leaving:
            thread.join()
        self._pool.release()
        self._pool.join()


# ------------------------------------------------------------------ the process's pool
#
# One for all tasks of a process: what runs there shares the cores by its weights, whoever started it. Threads of each
# task's own would take turns by the system's choice, and with the interpreter's lock, as many as there are tasks.

_SHARED: list[PoolScheduler] = []


def shared_pool() -> PoolScheduler:
    """The pool that all tasks of this process share. It has threads as long as something is open on it."""
    if not _SHARED:
        _SHARED.append(PoolScheduler())
    return _SHARED[0]


os.register_at_fork(after_in_child=_SHARED.clear)  # a fork has the pool's memory, and none of its threads
