"""``Job``: a running job on Ray, in the hands of a script.

Rules:

1. A restart of the coordinator is a pause: calls to it are repeated by Ray until it is back.
2. Once a job is over, ``wait`` keeps what it knows (status, statistics) and ends all its processes, so that nothing is
   left behind and its name is free again. The queries go on answering from what was kept.
3. ``shutdown`` ends a job that is not over: its tasks stop, nothing more is committed, and a later ``run`` with the
   same checkpoint folder goes on from the last checkpoint.
4. A script that ends before the job, or is interrupted, ends the job's processes on its way, within ``EXIT_SECONDS``.
   A detached job ends its processes by itself; the end of a script, or of a ``with`` block, is none of its business. A
   job that another script owns is only let go of: its owner ends its processes.
5. Actors are asked only over the connection to the cluster that the job was started or found with. Once that is gone
   (``ray.shutdown``), asking would make Ray start or join another cluster; an owned job's processes have ended with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from types import TracebackType
from typing import Any, Self, cast

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

from ...coordinator.model.events import Event, Failure
from ...coordinator.model.manifest import Ended
from ...coordinator.model.statistics import JobStatus, Overview, WindowReport
from ...engine.core.arguments import Seconds, checked
from ...engine.core.errors import ConfigurationError, InternalError, PenstockError, TaskLostError
from ...engine.core.identity import TaskId
from ...engine.plan.plan import JobPlan
from ...engine.runtime.statistics import JobStatistics
from ..audit.audit import OVER, Audit, LastAudit, audit_job, check_what_is_left
from ..claims.cleaning import at_the_end, clean_outputs
from ..claims.resuming import Place
from ..feed.hosting import feed_handle
from ..feed.notices import FeedNotices, run_of, shut_down
from ..feed.reader import FeedHandle
from ..feed.stream_link import StreamRoute
from ..hosting.waiting_chain import chain_of_waiting
from ..process.ending import AtExit
from ..process.waiting import POLL_SECONDS, Deadline, wait_for_status
from ..protocol.messages import Address, Identity, Seat, Versioned
from ..protocol.translate import error_of
from ..storage.log import read_log_in
from ..transport.dialling import Secrets
from .creation import coordinator_died
from .departure import LastWords, answers_of, end_actors, leave_for_good, statistics_of
from .job_face import JobFace, cannot_be_asked

EXIT_SECONDS = 15.0
"""How long the end of a script waits for the processes of a job that it has not waited for."""


def connection() -> tuple[str, str] | None:
    """Which connection to a cluster this process has: the cluster's address, and Ray's id of this script there."""
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()


def left_cluster(job: str, detached: bool) -> TaskLostError:
    """The error for a question to a job over a connection that is gone."""
    why = "this script is not connected to its cluster any more"
    if not detached:
        return cannot_be_asked(job, why)
    return TaskLostError(f"job {job!r} cannot be asked: {why}", f"it goes on: ps.attach({job!r}, address=…) finds it")


class Tie(Enum):
    """What a script is to a job."""

    OWNER = "owner"
    """It has started the job, whose processes end with it."""
    GUEST = "guest"
    """Another script has."""
    DETACHED = "detached"
    """Nobody owns the job."""


class Job(JobFace):
    """See the module's rules."""

    def __init__(
        self,
        plan: JobPlan,
        place: Place,
        coordinator: Address,
        drivers: Mapping[Seat, Address],
        tie: Tie = Tie.OWNER,
        secrets: Secrets | None = None,
    ) -> None:
        self.plan = plan
        self.tie = tie
        self._secrets = secrets
        self.folder = place.folder
        self.folder_stays = place.stays
        self._address: Address = coordinator
        #: rule 5
        self._connection = connection()
        #: by seat: the driver actor of each task, and the spare ones
        self._actors = dict(drivers)
        self._release = place.release
        self._known: Versioned | None = None
        #: the highest generation of a coordinator that was seen
        self._generation = 0
        #: kept when the processes end
        self._last = LastWords()
        self._audit = LastAudit()
        self._closed = False
        self._at_exit = AtExit(self._leave, EXIT_SECONDS) if tie is Tie.OWNER else None

    @property
    def name(self) -> str:
        """The job's name."""
        return self.plan.name

    def tasks(self) -> list[TaskId]:
        """All tasks of the job."""
        return self.plan.tasks()

    @property
    def _coordinator(self) -> Address:
        """The coordinator's actor, as long as it can be asked."""
        if self._closed:
            raise cannot_be_asked(self.name, "its processes have ended")
        if not self._is_connected:
            raise left_cluster(self.name, self.tie is Tie.DETACHED)
        return self._address

    @property
    def _is_connected(self) -> bool:
        """See rule 5."""
        return connection() == self._connection

    @property
    def _drivers(self) -> dict[TaskId, Address]:
        """The actor that each task is on."""
        coordinator = self._coordinator
        if len(self._actors) == len(self.plan.tasks()):
            return self._actors
        placement: dict[TaskId, Seat] = self._ask(coordinator.placement.remote())
        return {task: self._actors[seat] for task, seat in placement.items()}

    # ------------------------------------------------------------------ waiting

    @checked(ConfigurationError)
    def wait(self, timeout: Seconds | None = None) -> Self:
        """Wait until the job is over. Raises its error if it failed, AuditError if what it has left does not balance,
        TimeoutError after ``timeout`` seconds."""
        deadline = Deadline(timeout)
        status = self.wait_until(lambda status: status.is_over, timeout)
        if not self._closed:
            self._hear_last_words(deadline)
            at_the_end(self.audit)  # what the job does not keep goes with its processes
            self._close()
        if status.failure is not None:
            raise error_of(status.failure)
        if status.state in OVER:
            check_what_is_left(self.name, self.audit)
        return self

    @checked(ConfigurationError)
    def wait_until(self, condition: Callable[[JobStatus], bool], timeout: Seconds | None = None) -> JobStatus:
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
        try:
            found: Versioned = self._ask(self._coordinator.wait_status.remote(version, timeout))
        except TaskLostError:
            if self._known is None or (told := self._as_logged(self._known.status)) is self._known.status:
                raise
            self._known = Versioned(self._known.version, told)
            return told
        status = cast(JobStatus, found.status)
        if status.failure is not None and status.generation < self._generation:
            status = self._as_logged(status)
        self._generation = max(self._generation, status.generation)
        self._known = Versioned(found.version, status)
        return status

    def _as_logged(self, status: JobStatus) -> JobStatus:
        """How the job has ended, by the log: a coordinator that comes after the end finds it closed and refuses it, and
        that of a guest's job may be gone."""
        last = next(reversed(read_log_in(self.folder, self.name)), None)
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
            raise coordinator_died(self.name, error) from error

    # ------------------------------------------------------------------ questions

    def why(self) -> list[str]:
        """What the job waits for; then the chain of waiting, from the consumers back to whoever holds them up, one
        sentence for each task."""
        status = self.status()
        if self._closed or status.is_over:
            return [status.why]
        return [status.why, *chain_of_waiting(self.tasks(), answers_of(self._drivers, "standing"), status.tasks)]

    def statistics(self) -> JobStatistics:
        """The counts of every task that is there to tell; ``statistics().stages`` has them by stage."""
        return JobStatistics(self._last.statistics if self._closed else statistics_of(self._drivers))

    def checkpoints(self) -> Overview:
        """Counts, history and summary of the coordinator's checkpoints, as Flink's pages show them."""
        if self._closed:
            return self._last.checkpoints
        found: Overview = self._ask(self._coordinator.checkpoints.remote())
        return found

    def _fetch_windows(self) -> tuple[WindowReport, ...] | None:
        if self._closed:
            return None
        found: tuple[WindowReport, ...] = self._ask(self._coordinator.windows.remote())
        return found

    def audit(self) -> Audit:
        """Compare what was read with what is visible, as of the last checkpoint."""
        return self._audit.make(lambda: audit_job(self.plan, self.folder, self.status()), is_closed=self._closed)

    @checked(ConfigurationError)
    def feed(self, name: str = "feed") -> FeedHandle:
        """The feed that ``stream.feed(batch_size, name=name)`` ends in. The handle can be pickled, and its readers made
        in any process that sees the checkpoint folder and reaches the cluster's machines."""
        secrets = self._secrets
        if secrets is None:
            raise InternalError(f"job {self.name!r} has no secrets")
        return feed_handle(self.plan, name, lambda job, feed: StreamRoute(self.folder, job, feed, secrets))

    # ------------------------------------------------------------------ requests

    def _tell(self, event: Event) -> None:
        if not self._closed:
            self._ask(self._coordinator.request.remote(event))

    def identities(self) -> dict[TaskId, Identity]:
        """The process of each task; waits for those that are being restarted."""
        refs = {task: driver.ready.options(max_task_retries=-1).remote() for task, driver in self._drivers.items()}
        return dict(zip(refs, ray.get(list(refs.values())), strict=True))

    def kill_task(self, task: TaskId) -> int:
        """End the process of a task with SIGKILL, as a crash would; the job recovers. Returns the process id."""
        driver = self._drivers[task]
        identity: Identity = ray.get(driver.ready.options(max_task_retries=-1).remote())
        driver.die.remote()
        return identity.pid

    def cut_task(self, task: TaskId) -> None:
        """Lose all streams of a task, as a failing network would; the job recovers."""
        ray.get(self._drivers[task].cut.options(max_task_retries=-1).remote())

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
        """End the job's processes, whatever it is doing, but for a job of another script. Nothing half done becomes
        visible. Raises TaskLostError for a detached job whose cluster this script has left: it goes on."""
        if self.tie is Tie.DETACHED and not self._closed and not self._is_connected:
            raise left_cluster(self.name, detached=True)
        if not self._closed:
            with suppress(PenstockError, RayActorError):
                self.status()
                if self.tie is Tie.DETACHED:
                    self._ask(self._coordinator.dismiss.remote())
                    leave_for_good(self._coordinator)
            if self.plan.feeds and self._secrets is not None and self.tie is not Tie.GUEST:
                run = run_of(self._secrets.token)
                FeedNotices(self.folder, self.name, run).end(shut_down(self.name, run))
            self._close()

    def _hear_last_words(self, deadline: Deadline) -> None:
        """Keep what the processes know: they end now. Those of a detached job have ended when its coordinator says."""
        if self.tie is not Tie.DETACHED:
            with suppress(TaskLostError):
                self._last = LastWords(self.statistics(), self.checkpoints())
            return
        words: LastWords | None = None
        while words is None:
            left = deadline.left()
            words = self._ask(self._coordinator.farewell.remote(POLL_SECONDS if left is None else left))
            if words is None and left == 0:
                raise TimeoutError(f"job {self.name!r} is over, but its processes have not ended yet")
        self._last = words

    def _leave(self) -> None:
        """The script ends, and nobody asks any more."""
        self._closed = True
        try:
            if self._is_connected:
                self._end_processes()
            clean_outputs(self.plan, self.folder, self._generation)
        finally:
            self._release()

    def _end_processes(self) -> None:
        if self.tie is Tie.OWNER:
            end_actors([self._address])
            end_actors(self._actors.values())
            self._close_leases()
        self._actors = dict.fromkeys(self._actors)

    def _close(self) -> None:
        self._closed = True
        if self._at_exit is not None:
            self._at_exit.call_off()
        try:
            if self._is_connected:  # else nobody knows whether they have all ended yet, or how
                self._end_processes()
                self._look_at_outputs()
        finally:
            if not self.folder_stays and self._secrets is not None:
                with suppress(PenstockError, OSError):
                    FeedNotices(self.folder, self.name, run_of(self._secrets.token)).remember(self.plan.feeds)
            self._release()

    def _look_at_outputs(self) -> None:
        if self.tie is Tie.OWNER:
            at_the_end(lambda: clean_outputs(self.plan, self.folder, self._generation))
        if self._known is not None:  # else its coordinator never came to life, and whoever asked has been told
            at_the_end(self.audit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.tie is Tie.OWNER:
            self.shutdown()
