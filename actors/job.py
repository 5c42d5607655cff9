"""``Job``: a running job, in the hands of the script that started it.

Rules:

1. A restart of the coordinator is a pause: calls to it are repeated by Ray until it is back.
2. Once a job is over, ``wait`` keeps what it knows (status, statistics) and ends all its processes, so that nothing is
   left behind and its name is free again. The queries go on answering from what was kept.
3. ``shutdown`` ends a job that is not over: its tasks stop, nothing more is committed, and a later ``run`` with the
   same checkpoint folder goes on from the last checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, cast

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

from ..coordinator.events import Failure
from ..coordinator.manifest import Ended
from ..coordinator.statistics import JobStatus
from ..engine.errors import ConfigurationError, PenstockError, TaskLostError
from ..engine.identity import CheckpointId, TaskId
from ..engine.plan import JobPlan
from ..engine.statistics import TaskStatistics
from .audit import Audit, audit_job
from .calls import short_reason
from .cleaning import clean_outputs
from .messages import Address, Identity, Versioned
from .resuming import Place
from .storage.log import read_log
from .storage.opening import open_store
from .translate import error_of
from .waiting import wait_for_status

SHUTDOWN_SECONDS = 10.0
"""How long processes may take to stop by themselves before they are ended."""


_log = logging.getLogger(__name__)


class Job:
    """See the module's rules."""

    def __init__(
        self,
        plan: JobPlan,
        place: Place,
        coordinator: Address,
        drivers: Mapping[TaskId, Address],
    ) -> None:
        self.plan = plan
        self.folder = place.folder
        self._coordinator = coordinator
        self._drivers = dict(drivers)
        self._release = place.release
        self._known: Versioned | None = None
        #: the highest generation of a coordinator that was seen
        self._generation = 0
        #: kept when the processes end
        self._statistics: dict[TaskId, TaskStatistics] = {}
        self._audit: Audit | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The job's name."""
        return self.plan.name

    def tasks(self) -> list[TaskId]:
        """All tasks of the job."""
        return list(self._drivers)

    # ------------------------------------------------------------------ waiting

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until the job is over. Raises its error if it failed, TimeoutError after ``timeout`` seconds."""
        status = self.wait_until(lambda status: status.is_over, timeout)
        self._statistics = self.statistics()
        self._close()
        if status.failure is not None:
            raise error_of(status.failure)
        return self

    def wait_until(self, condition: Callable[[JobStatus], bool], timeout: float | None = None) -> JobStatus:
        """Wait for a status of which ``condition`` holds, or for the last one that there is."""
        return wait_for_status(self.status(), self._next_status, condition, timeout)

    def status(self) -> JobStatus:
        """Where the job stands now."""
        if self._closed and self._known is not None:
            return cast(JobStatus, self._known.status)
        return self._fetch(None, 0.0)

    def _next_status(self, timeout: float) -> JobStatus:
        return self._fetch(None if self._known is None else self._known.version, timeout)

    def _fetch(self, version: tuple[str, int] | None, timeout: float) -> JobStatus:
        found: Versioned = self._ask(self._coordinator.wait_status.remote(version, timeout))
        status = cast(JobStatus, found.status)
        if status.failure is not None and status.generation < self._generation:
            status = self._as_logged(status)
        self._generation = max(self._generation, status.generation)
        self._known = Versioned(found.version, status)
        return status

    def _as_logged(self, status: JobStatus) -> JobStatus:
        """A coordinator that was restarted after the end finds the log closed and refuses it: the log says how."""
        last = next(reversed(read_log(open_store(self.folder), self.name)), None)
        if not isinstance(last, Ended) or last.generation < self._generation:
            return status
        failure = None if last.status != "failed" else Failure(last.reason, retry=False)
        return replace(status, state=last.status, failure=failure)

    def _ask(self, ref: Any) -> Any:
        """The answer of the coordinator, whose own errors come back as they are."""
        try:
            return ray.get(ref)
        except RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, PenstockError) else error) from None
        except ActorDiedError as error:
            raise TaskLostError(
                f"the coordinator of job {self.name!r} is gone: {short_reason(error)}",
                "run the flow again with the same checkpoint folder: it goes on from the last checkpoint",
            ) from error

    # ------------------------------------------------------------------ questions

    def why(self) -> list[str]:
        """What the job waits for, and what each task waits for, one sentence each."""
        if self._closed:
            return [self.status().why]
        answers = self._ask_drivers("why")
        return [self.status().why] + [f"{task}: {each}" for task, found in answers.items() for each in found]

    def statistics(self) -> dict[TaskId, TaskStatistics]:
        """The counts of every task that is there to tell."""
        if self._closed:
            return dict(self._statistics)
        return {task: found for task, found in self._ask_drivers("statistics").items() if found is not None}

    def _ask_drivers(self, question: str) -> dict[TaskId, Any]:
        """The answers of all processes that are up; all are asked before any answer is waited for."""
        refs = {task: getattr(driver, question).remote() for task, driver in self._drivers.items()}
        answers: dict[TaskId, Any] = {}
        for task, ref in refs.items():
            try:
                answers[task] = ray.get(ref)
            except RayActorError:
                continue  # its process is being restarted
        return answers

    def audit(self) -> Audit:
        """Compare what was read with what is visible, as of the last checkpoint."""
        return self._audit or audit_job(self.plan, self.folder, self.status())

    # ------------------------------------------------------------------ requests

    def checkpoint(self, timeout: float | None = None) -> CheckpointId:
        """Take a checkpoint now and wait for it."""
        before = self.status()
        after = before.pending.checkpoint if before.pending is not None else before.latest_completed
        self._ask(self._coordinator.checkpoint.remote())
        status = self.wait_until(lambda status: _newer(status.latest_completed, after) is not None, timeout)
        taken = _newer(status.latest_completed, after)
        if taken is None:
            raise ConfigurationError(
                f"job {self.name!r} ended as {status.state} without another checkpoint", "ask for it while the job runs"
            )
        return taken

    def cancel(self) -> None:
        """End the job; what is committed stays. ``wait`` returns once it has ended."""
        if not self._closed:
            self._ask(self._coordinator.cancel.remote())

    def identities(self) -> dict[TaskId, Identity]:
        """The process of each task; waits for those that are being restarted."""
        refs = [driver.ready.options(max_task_retries=-1).remote() for driver in self._drivers.values()]
        return {identity.task: identity for identity in ray.get(refs)}

    def kill_task(self, task: TaskId) -> int:
        """End the process of a task with SIGKILL, as a crash would; the job recovers. Returns the process id."""
        driver = self._drivers[task]
        identity: Identity = ray.get(driver.ready.options(max_task_retries=-1).remote())
        driver.die.remote()
        return identity.pid

    def coordinator_process(self) -> int:
        """The process id of the coordinator; waits for it if it is being restarted."""
        return int(self._ask(self._coordinator.process.remote()))

    def kill_coordinator(self) -> int:
        """End the coordinator's process with SIGKILL, as a crash would; the job goes on. Returns the process id."""
        pid = self.coordinator_process()
        self._coordinator.die.options(max_task_retries=0).remote()
        return pid

    # ------------------------------------------------------------------ the end

    def shutdown(self) -> None:
        """End the job's processes, whatever it is doing. Nothing half done becomes visible."""
        if not self._closed:
            with suppress(PenstockError, RayActorError):
                self.status()
            self._close()

    def _close(self) -> None:
        self._closed = True
        _end([self._coordinator])
        _end(list(self._drivers.values()))
        self._drivers = dict.fromkeys(self._drivers)
        self._coordinator = None
        try:
            clean_outputs(self.plan, self.folder, self._generation)
            self._audit = audit_job(self.plan, self.folder, self.status())
        except PenstockError as error:
            _log.warning("%s", error)
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _newer(checkpoint: CheckpointId | None, after: CheckpointId | None) -> CheckpointId | None:
    """The checkpoint, if it is later than ``after``."""
    return checkpoint if checkpoint is not None and (after is None or checkpoint > after) else None


def _end(actors: list[Address]) -> None:
    """Let actors stop what they do, then end their processes."""
    goodbyes = [actor.shutdown.options(max_task_retries=0).remote() for actor in actors]
    ray.wait(goodbyes, num_returns=len(goodbyes), timeout=SHUTDOWN_SECONDS)
    for actor in actors:
        ray.kill(actor)
