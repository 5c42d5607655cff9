"""How actors end: when their script says so or, those of a detached job, by themselves.

Rules:

1. A detached job has no owner that would end its processes. Its coordinator does, once the job is over: it keeps what
   the tasks have counted, ends their actors, and cleans the outputs.
2. The coordinator then stays for one lease after the last question, so that a late caller learns how the job ended. Its
   process does not come back: the plan is gone.
3. An actor that leaves for good kills itself through Ray; one that only ended its process would be restarted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import ray
from ray.exceptions import GetTimeoutError, RayError

from ...coordinator.model.statistics import JobStatus
from ...engine.core.errors import PenstockError
from ...engine.core.identity import TaskId
from ...engine.plan.plan import JobPlan
from ...engine.runtime.statistics import TaskStatistics
from ..audit.audit import log_left
from ..claims.ownership import at_the_end, clean_outputs
from ..client.backend import FinalStatistics
from ..cluster.calls import SHUTDOWN_SECONDS, end_for_good
from ..hosting.coordinator_host import CoordinatorHost
from ..hosting.waiting_chain import Standing
from ..process.waiting import POLL_SECONDS, Deadline
from ..protocol.messages import Address, WorkerSlot
from .options import SharedPlan

PROCESS_SECONDS = 20.0
"""How long a process may take to say what its task does; it says so if the task is too busy to answer (5 s)."""

_log = logging.getLogger(__name__)


def end_actors(actors: Iterable[Address]) -> None:
    """Let actors stop what they do, then end their processes for good."""
    found = list(actors)
    shutdowns = [actor.shutdown.options(max_task_retries=0).remote() for actor in found]
    ray.wait(shutdowns, num_returns=len(shutdowns), timeout=SHUTDOWN_SECONDS)
    for actor in found:
        ray.kill(actor)


def ask_tasks(actors: Mapping[TaskId, Address]) -> dict[TaskId, Standing]:
    """What tasks say of themselves whose processes are up; all are asked before any answer is waited for."""
    refs = {task: actor.standing.remote() for task, actor in actors.items()}
    answers: dict[TaskId, Standing] = {}
    deadline = Deadline(PROCESS_SECONDS)
    for task, ref in refs.items():
        try:
            answers[task] = ray.get(ref, timeout=deadline.left())
        except (RayError, GetTimeoutError):
            continue  # its process is being restarted, or has ended, or does nothing
    return answers


def _statistics(actors: Mapping[TaskId, Address]) -> dict[TaskId, TaskStatistics]:
    return {task: each.statistics for task, each in ask_tasks(actors).items() if each.statistics is not None}


class Shutdown:
    """See the module's rules. ``me``: the coordinator's own actor; ``lease``: in seconds; ``placement``: the slot that
    each task is on at the moment."""

    def __init__(
        self,
        host: CoordinatorHost,
        plan: JobPlan,
        folder: str,
        shared: SharedPlan,
        actors: Mapping[WorkerSlot, Address],
        placement: Callable[[], Mapping[TaskId, WorkerSlot]],
        me: Address,
        lease: float,
    ) -> None:
        self._host, self._plan, self._folder, self._shared = host, plan, folder, shared
        self._actors, self._placement, self._me, self._lease = dict(actors), placement, me, lease
        #: when somebody last asked for something
        self._asked_at = time.monotonic()
        self._final = FinalStatistics()
        self._ending = threading.Lock()
        #: all other processes have ended
        self._ended = threading.Event()

    def start(self) -> None:
        """Wait for the end of the job, on a thread."""
        threading.Thread(target=self._run, name="penstock-shutdown", daemon=True).start()

    def touch(self) -> None:
        """Somebody has asked for something."""
        self._asked_at = time.monotonic()

    def wait(self, timeout: float) -> FinalStatistics | None:
        """The last answers of the other processes, once they have ended; None: they have not."""
        return self._final if self._ended.wait(timeout) else None

    def dismiss(self) -> None:
        """End the other processes now, whatever they do."""
        with self._ending:
            if self._ended.is_set():
                return
            placed = {task: self._actors[slot] for task, slot in self._placement().items()}
            with suppress(PenstockError, TimeoutError):
                checkpoints = self._host.checkpoints(SHUTDOWN_SECONDS)
                self._final = FinalStatistics(_statistics(placed), checkpoints)
            self._host.close()
            end_actors(self._actors.values())
            at_the_end(self._clean_outputs)
            self._shared.forget()
            self._ended.set()

    def _clean_outputs(self) -> None:
        entries = log_left(self._folder, self._plan.name)
        clean_outputs(self._plan, self._folder, self._status().generation, entries)

    def _run(self) -> None:
        self._wait_for_end()
        self.dismiss()
        left = self._lease
        while left > 0:
            threading.Event().wait(left)
            left = self._asked_at + self._lease - time.monotonic()
        end_for_good(self._me)

    def _wait_for_end(self) -> None:
        try:
            version = None
            while not self._status().is_over and not self._ended.is_set():
                version = self._host.wait_status(version, POLL_SECONDS).version
        except PenstockError as error:
            _log.error("%s", error)  # who asks gets it as well

    def _status(self) -> JobStatus:
        status: JobStatus = self._host.wait_status(None, 0.0).status
        return status
