"""A fixed number of threads around one core.

One lock guards the core: turns last milliseconds and the interpreter runs one thread at a time anyhow, so local queues
and stealing are there for warm caches, not to keep threads apart. The rules of waking:

1. After every change, if there is work and somebody is parked, one worker is unparked: the one in whose queue the last
   runnable was put, if it is parked, else the one that was parked last. Having claimed something, it does the same: a
   burst of work unparks everybody, one piece of work one.
2. Of the parked workers at most one, the *timekeeper*, waits with a time limit: until the next timer. If it is unparked
   to work, another one takes its place. There is no thread for timers, and none polls.
3. What the core wants told (an error, an end) is told by the thread that made the change, outside the lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Event, Lock, Thread, get_ident

from ..core.errors import ConfigurationError, InternalError
from .core import Core
from .entries import Entry
from .observation import Trace
from .protocol import DriverState, Outcome
from .shares import LEVEL_THRESHOLDS
from .shell import Shell, close, resolve, run

# ------------------------------------------------------------------ worker
#
# One thread of the pool, and the turns that it gives.
#
# A slice is measured in CPU time of this thread, so that neither a busy machine nor a wait for the interpreter's lock
# shortens it. It ends early, at the next question, when someone more urgent wants the worker.

SLICE_SECONDS = 0.004
"""CPU time of a turn: long against the 30 µs that giving one costs, short against what people notice."""


@dataclass(frozen=True, slots=True)
class WorkerHooks:
    """Called on each worker's thread with its number, first and last of all: connections, device contexts."""

    start: Callable[[int], None] | None = None
    stop: Callable[[int], None] | None = None


class SlicedQuantum:
    """A turn that lasts ``SLICE_SECONDS`` of this thread's CPU time."""

    __slots__ = ("_entry", "_until", "now", "started")

    def __init__(self, entry: Entry, now: float, seconds: float) -> None:
        self._entry = entry
        self.now = now
        self.started = time.thread_time()
        self._until = self.started + seconds

    def expired(self) -> bool:
        return self._entry.yield_asked or time.thread_time() >= self._until


class Worker:
    """A thread and the condition on which it is parked; all workers' conditions share the pool's lock."""

    def __init__(self, number: int, lock: Lock, serve: Callable[[Worker], None]) -> None:
        self.number = number
        self.condition = Condition(lock)
        self.thread = Thread(target=serve, args=(self,), name=f"penstock-worker-{number}", daemon=True)
        # The start hook has returned or raised.
        self.hooked = Event()
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


def default_degree() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


class PoolScheduler(Shell):
    """See the module's docstring. ``degree``: how many threads; unset, as many as there are cores."""

    def __init__(
        self,
        degree: int | None = None,
        *,
        hooks: WorkerHooks | None = None,
        slice_seconds: float = SLICE_SECONDS,
        levels: Sequence[float] = LEVEL_THRESHOLDS,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.degree = default_degree() if degree is None else degree
        if self.degree < 1:
            raise ConfigurationError(f"a pool of {self.degree} threads", "use SerialScheduler for degree 0")
        self._mutex = Lock()
        super().__init__(Core(self.degree, trace, levels), self._mutex, clock)
        self._slice = slice_seconds
        self._hooks = hooks or WorkerHooks()
        self._stopping = False
        self._parked: list[Worker] = []
        self._timekeeper: Worker | None = None
        self._hook_errors: list[BaseException] = []
        self._workers = [Worker(number, self._mutex, self._serve) for number in range(self.degree)]
        self._start_threads()

    def _start_threads(self) -> None:
        for worker in self._workers:
            worker.thread.start()
        self._numbers = {worker.thread.ident: worker.number for worker in self._workers}
        for worker in self._workers:
            worker.hooked.wait()
        if self._hook_errors:
            self.shutdown()
            raise self._hook_errors[0]

    # ------------------------------------------------------------------ a worker's life

    def _serve(self, worker: Worker) -> None:
        try:
            if self._hooks.start is not None:
                self._hooks.start(worker.number)
        except BaseException as error:
            self._hook_errors.append(error)
            return
        finally:
            worker.hooked.set()
        try:
            while self._work(worker):
                pass
        except BaseException as error:
            self._break(error)
        finally:
            if self._hooks.stop is not None:
                self._hooks.stop(worker.number)

    def _work(self, worker: Worker) -> bool:
        """Find something to do and do it. False: the pool is shut down."""
        core = self._core
        with self._mutex:
            now = self._clock()
            core.tick(now)
            effects = core.take_effects() if core.effects else None
            entry = None if effects else core.endings.claim_closing(now) or core.claim(worker.number, now)
            if entry is not None or effects:
                self.unpark()
            elif self._stopping:
                return False
            else:
                self._park(worker, now)
                return True
        if effects:
            self.perform(effects)
        elif entry is not None:
            self._do(worker, entry, now)
        return True

    def _do(self, worker: Worker, entry: Entry, now: float) -> None:
        """Run or close what was claimed."""
        core = self._core
        if entry.closing:
            error = close(entry)
            with self._mutex:
                core.endings.closed(entry, error, self._clock())
                effects = core.take_effects()
                self.unpark()
        else:
            outcome, cost = worker.run(entry, now, self._slice)
            with self._mutex:
                entry.cpu += cost
                core.complete(entry, outcome, cost, self._clock())
                effects = core.take_effects() if core.effects else []
                self.unpark()
        if effects:
            self.perform(effects)

    def _break(self, error: BaseException) -> None:
        """A bug of the scheduler itself: nobody may wait for ever for what will not happen."""
        with self._mutex:
            self._shut = self._stopping = True
            queries = list(self._open.values())
            self._open.clear()
            for worker in self._workers:
                worker.condition.notify()
        for query in queries:
            query.record.error = query.record.error or error
            resolve(query.closed)

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

    # ------------------------------------------------------------------ waking

    def unpark(self) -> None:
        """See the rules above; under the lock."""
        if not self._parked:
            return
        core = self._core
        if core.endings.eager or core.shares.active:
            self._unpark_one()
        if self._parked:
            deadline, keeper = core.next_deadline(), self._timekeeper
            if deadline is not None and (keeper is None or (keeper.until is not None and deadline < keeper.until)):
                self._unpark_one()

    def _unpark_one(self) -> None:
        home = self._core.moves.last_home
        worker = next((parked for parked in self._parked if parked.number == home), self._parked[-1])
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
            self._core.wake(entry, self._clock(), self._numbers.get(get_ident()))
            self.unpark()

    # ------------------------------------------------------------------ end

    def shutdown(self) -> None:
        """Cancel every query, wait until all is closed, and end the threads. Not from a worker's thread."""
        if get_ident() in self._numbers:
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
            for worker in self._workers:
                worker.condition.notify()
        for worker in self._workers:
            worker.thread.join()
        self._pool.release(wait=True)
