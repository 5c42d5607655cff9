"""``Job``: a running job in the hands of a script, wherever it runs.

Rules:

1. A question goes to the job's processes, a request to its coordinator, whose status says what came of it.
2. Once a job is over, ``wait`` keeps what its processes know and ends them, so that nothing is left behind and its name
   is free again. The queries go on answering from what was kept.
3. ``shutdown`` ends a job that is not over: its tasks stop, nothing more is committed, and a later ``run`` with the
   same checkpoint folder goes on from the last checkpoint.
4. A script that ends before its job, or is interrupted, ends the job's processes on its way, within some seconds. A
   detached job ends its processes by itself, and a job of another script is only let go of.
5. A request carries a name of its own, and is sent again when another coordinator has taken over meanwhile: asked twice
   it is one request. What a stop came to is also written in the log, where it is looked up if the coordinator that knew
   the name is gone.
6. A savepoint that failed for something that passes (a task was lost, or was just about to end) is asked for again, a
   few times. Anything else is the user's: the error is raised, and the job goes on.
7. Nothing is asked of a job that is over: that is a mistake, and the error says how it ended.
8. ``WindowBarrier.wait`` returns when all rows of what was added before the barrier are visible in the sinks, and when
   nothing of it is held in the job any more, but for operators that hold at barriers.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from msgspec.structs import replace as changed

from ...coordinator.model.events import (
    CancelRequested,
    CheckpointRequested,
    Event,
    Failure,
    PinRequested,
    ReweightRequested,
    SavepointRequested,
    SplitSetsAdded,
    StopRequested,
    UnpinRequested,
)
from ...coordinator.model.kinds import CheckpointKind, StopMode
from ...coordinator.model.manifest import Ended, LogEntry, Manifest
from ...coordinator.model.split_sets import SetPosition, SplitEntry
from ...coordinator.model.statistics import JobStatus, Overview, ReweightResult, SavepointResult, WindowReport
from ...engine.core.arguments import Seconds, checked
from ...engine.core.errors import ConfigurationError, PenstockError, TaskLostError
from ...engine.core.identity import Attempt, CheckpointId, Reweight, TaskId
from ...engine.core.shown import hides_credentials
from ...engine.files.paths import safe_name
from ...engine.flow.pictures import table, titled
from ...engine.plan.plan import JobPlan
from ...engine.runtime.statistics import JobStatistics
from ...engine.sinks.collect import COLLECTED
from ...engine.sources.given import NewSplit
from ..audit.audit import OVER, Audit, LastAudit, audit_job, check_what_is_left, last_state, log_left
from ..claims.deferred import follow_leases, leases_in
from ..claims.ownership import at_the_end, clean_outputs
from ..claims.place import Place
from ..claims.savepoints import holds_savepoint
from ..feed.audit import FeedAudit, audit_feed
from ..feed.job_feeds import feed_handle
from ..feed.mixtures import Steps, mixture_of, steps_of, too_late
from ..feed.models import ModelBook
from ..feed.reader import FeedHandle
from ..hosting.waiting_chain import chain_of_waiting, checkpoint_waits
from ..process.ending import AtExit
from ..process.waiting import Deadline, wait_for_status
from ..protocol.messages import UNKNOWN_TIME, Identity, Versioned
from ..protocol.translate import error_of
from ..storage.log import read_log_in
from ..storage.stores import is_gone, plain_address
from .backend import Backend, FinalStatistics, Ownership, Processes, cannot_be_asked
from .outputs import Output, SparkSession, output_of
from .split_sets import SplitSetWriter

PAUSES = (0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0)
"""Seconds after which a savepoint is asked for again that has failed for something that passes, as the end of a source
does that is on its way to the sinks."""
PAUSE = 0.02
"""Seconds between two looks at a feed whose ranks have not come yet."""
REWEIGHT = "change weights while the job runs"
AGAIN = "ask again in a moment; near the end of the data wait for the job instead, with job.wait()"
"""What to do about a savepoint that failed for something that names no remedy of its own."""


@hides_credentials
@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint at ``path``, complete and by itself. ``id``: the checkpoint that it was taken as."""

    path: str
    id: CheckpointId


def _is_in_kernel() -> bool:
    """Whether this process is a notebook's; others may have imported what a kernel is made of."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


@dataclass(frozen=True, slots=True)
class WindowBarrier:
    """A task barrier that was requested. ``number``: of its window, from 1, over the whole life of the job."""

    job: Job
    number: int

    @property
    def is_done(self) -> bool:
        """Whether the window's rows are visible in every sink."""
        return _is_published(self.number, self.job.status())

    def wait(self, timeout: float | None = None) -> WindowReport:
        """Wait until they are. The window's statistics; those of a window that was complete before the coordinator
        began are not known. Raises the job's error if it fails before, TimeoutError after ``timeout`` seconds."""
        return self.job._wait_for_window(self.number, timeout)


class Job:
    """See the module's rules. ``plan``: what it runs; ``folder``: its checkpoint folder; ``folder_stays``: whether that
    outlives the job."""

    def __init__(self, plan: JobPlan, place: Place, backend: Backend) -> None:
        self.plan = plan
        self.folder, self.folder_stays = place.folder, place.stays
        self._place, self._backend = place, backend
        self._splits = SplitSetWriter(plan, place.folder, self._first_position, self._splits_added)
        #: the newest status that was seen, and the highest generation of a coordinator
        self._known: Versioned | None = None
        self._generation = 0
        #: the last answers, for when the processes have ended
        self._final = FinalStatistics()
        self._audit = LastAudit()
        #: rule 2: nobody is asked any more
        self._closed = False
        owned = backend.ownership is Ownership.OWNER
        self._at_exit = AtExit(self._leave, backend.exit_seconds) if owned else None

    @property
    def name(self) -> str:
        """The job's name."""
        return self.plan.name

    def tasks(self) -> list[TaskId]:
        """All tasks of the job."""
        return self.plan.tasks()

    @property
    def _live(self) -> Backend:
        """The backend, as long as it can be asked."""
        if self._closed:
            over = self._known is not None and self._known.status.is_over
            raise cannot_be_asked(self.name, "it is over" if over else "it was shut down")
        return self._backend

    # ------------------------------------------------------------------ waiting

    @checked(ConfigurationError)
    def wait(self, timeout: Seconds | None = None, *, progress: bool | None = None) -> Self:
        """Wait until the job is over. Raises its error if it failed, AuditError if what it has left does not balance,
        TimeoutError after ``timeout`` seconds. ``progress``: whether a line tells meanwhile how far it is; None: on a
        terminal and in a notebook, and not where output goes into a file or a log."""
        deadline = Deadline(timeout)
        self._show(progress, deadline)
        status = self.wait_until(lambda status: status.is_over, deadline.left())
        if not self._closed:
            self._keep(self._backend.wait_ended(deadline))
            self._close()
        if status.failure is not None:
            raise error_of(status.failure)
        if status.state in OVER:
            check_what_is_left(self.name, self.audit)
        return self

    def _show(self, progress: bool | None, deadline: Deadline) -> None:
        """The progress until the job is over or the deadline has come, if it is wanted."""
        if progress is None:
            progress = (sys.stderr is not None and sys.stderr.isatty()) or _is_in_kernel()
        if progress and not self._closed:
            from .progress import show  # its library is slow to import, and mostly nobody looks

            show(self, deadline)

    @checked(ConfigurationError)
    def wait_until(self, condition: Callable[[JobStatus], bool], timeout: Seconds | None = None) -> JobStatus:
        """Wait for a status of which ``condition`` holds, or for the last one that there is."""
        return wait_for_status(self.status(), self._next_status, condition, timeout)

    def status(self) -> JobStatus:
        """The state of the job now."""
        if self._closed and self._known is not None:
            return self._known.status
        return self._fetch_status(None, 0.0)

    def _next_status(self, timeout: float) -> JobStatus:
        return self._fetch_status(None if self._known is None else self._known.version, timeout)

    def _fetch_status(self, version: tuple[str, int] | None, timeout: float) -> JobStatus:
        try:
            found = self._live.wait_status(version, timeout)
        except TaskLostError:
            if self._known is None or (logged := self._as_logged(self._known.status)) is self._known.status:
                raise
            self._known = Versioned(self._known.version, logged)
            return logged
        status = found.status
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
        return changed(status, state=last.status, failure=failure)

    # ------------------------------------------------------------------ questions

    def __repr__(self) -> str:
        """Asks nobody: with the state that was last seen."""
        seen = "" if self._known is None else f", {self._known.status.state}"
        return f"Job {self.name!r}{seen}"

    def _repr_html_(self) -> str:
        """What a notebook shows: how far the job is now."""
        title = f"Job {self.name}"
        try:
            status = self.status()
        except PenstockError as error:
            return titled(title, table([("state",), (error.message,)]))
        tasks = ", ".join(f"{count} {state}" for state, count in Counter(status.tasks.values()).items())
        counts = str(status.checkpoints_completed), str(status.restarts)
        heads = ("state", "tasks", "checkpoints", "restarts", "waits for")
        return titled(title, table([heads, (status.state, tasks, *counts, status.why)]))

    def why(self) -> list[str]:
        """What the job waits for; what open checkpoints wait for; who waits at its feeds, the ranks or the data; then
        the chain of waiting, from the consumers back to what holds them up, one sentence for each task."""
        status = self.status()
        if self._closed or status.is_over:
            return [status.why]
        standings = self._live.fetch_tasks()
        open_ones = [words for pending in status.in_flight for words in checkpoint_waits(pending, standings)]
        at_feeds = [words for name in self.plan.feeds for words in self._waiting_at(name)]
        return [status.why, *open_ones, *at_feeds, *chain_of_waiting(self.tasks(), standings, status.tasks)]

    def _waiting_at(self, feed: str) -> list[str]:
        """Who waits there, if that can be asked."""
        try:
            return self.feed(feed).status().sentences
        except (PenstockError, TimeoutError):
            return []

    def statistics(self) -> JobStatistics:
        """The last known counts of each task; ``statistics().stages`` has them by stage."""
        if not self._closed:
            for task, found in self._live.fetch_tasks().items():
                if found.statistics is not None:
                    self._final.statistics[task] = found.statistics
        return JobStatistics(self._final.statistics)

    def checkpoints(self) -> Overview:
        """Counts, history and summary of the coordinator's checkpoints, as Flink's pages show them."""
        if not self._closed:
            self._final.checkpoints = self._live.fetch_checkpoints()
        return self._final.checkpoints

    def audit(self) -> Audit:
        """Compare what was read with what is visible, as of the last checkpoint."""
        return self._audited(self._log)

    def _log(self) -> list[LogEntry]:
        return log_left(self.folder, self.name)

    def _audited(self, log: Callable[[], list[LogEntry]]) -> Audit:
        def look() -> Audit:
            return audit_job(self.plan, self.folder, self.status(), log())

        return self._audit.make(look, is_closed=self._closed)

    @checked(ConfigurationError)
    def feed(self, name: str = "feed") -> FeedHandle:
        """The feed that ``stream.feed(batch_size, name=name)`` ends in. Of a job on Ray the handle can be pickled, and
        its readers made in any process that sees the checkpoint folder and reaches the cluster's machines; of one that
        runs in this process they are made here."""
        return replace(feed_handle(self.plan, name, self._backend.feed_route), change=self._change_weights)

    def _change_weights(
        self, feed: str, weights: Mapping[str, float], step: int | None, row: int, timeout: float | None
    ) -> None:
        """See ``FeedHandle.reweight``, and rule 5. ``row``: where no step is given."""
        mixture, deadline = mixture_of(self.plan, feed), Deadline(timeout)
        steps = None if step is None else steps_of(self.plan, feed)
        wanted = mixture.change(weights, row if steps is None else steps.position_of(step or 0), "")
        found = None
        while found is None or found.again:
            attempt, unseen = self._unseen(feed, steps is None, deadline)
            if step is not None and step < unseen:
                why = "ranks have been given that batch, or have asked for it"
                raise too_late(feed, f"step {step}", why, f"step that is possible now is {unseen}")
            found = self._changed(changed(wanted, request=uuid.uuid4().hex), attempt, deadline)
        if found.refused:
            raise _refused_change(feed, found, steps, step, row)

    def _changed(self, wanted: Reweight, attempt: Attempt, deadline: Deadline) -> ReweightResult:
        """What comes of a change of weights."""
        status = self._running(REWEIGHT)
        while not status.is_over and status.reweight(wanted.request) is None:
            self._request(ReweightRequested(wanted, attempt, UNKNOWN_TIME))
            answered = partial(_is_changed, wanted.request, status.generation)
            status = self.wait_until(answered, deadline.left())
        found = status.reweight(wanted.request)
        if found is None:
            raise _over(status, "before the log had the change of weights, or soon after", "run it again to go on")
        return found

    def _unseen(self, feed: str, by_row: bool, deadline: Deadline) -> tuple[Attempt, int]:
        """The first batch that no rank can have, and the attempt of the feed's task that says so. ``by_row``: once it
        has all before that again which attempts before it gave, so its mixture has come behind their rows."""
        while True:
            self._running(REWEIGHT)
            with suppress(TimeoutError):
                status = feed_handle(self.plan, feed, self._live.feed_route).status()
                is_there = status.caught_up or not by_row
                if status.attempt is not None and status.unseen is not None and is_there:
                    return status.attempt, status.unseen
            left = deadline.left()
            if left is not None and left <= 0:
                raise TimeoutError(f"feed {feed!r} of job {self.name!r} has not heard yet how far its ranks have come")
            time.sleep(PAUSE)

    @checked(ConfigurationError)
    def audit_feed(self, name: str = "feed") -> FeedAudit:
        """Whether a feed has given every input row exactly once, by count and by content, as of the last checkpoint,
        and what its ranks had taken of it. It reads all inputs again, here. Raises ConfigurationError without a
        checkpoint (in a folder that stays)."""
        state = {} if is_gone(self.folder) else last_state(self.plan, self.folder)
        if not state and not self.folder_stays:
            raise ConfigurationError(
                f"job {self.name!r} runs without checkpoints=, and a feed is audited by its last checkpoint",
                'run it with checkpoints=ps.Checkpoints("state/")',
            )
        if not state and self.status().is_over:
            raise ConfigurationError(
                f"job {self.name!r} is over, and none of its checkpoints is left to audit a feed by",
                'run it with ps.Checkpoints(…, retention="always"), and audit it before its folder is removed',
            )
        return audit_feed(self.plan, state, name, ModelBook(self.folder, self.plan.name).records(name))

    # ------------------------------------------------------------------ results

    @checked(ConfigurationError)
    def output(self, name: str | None = None) -> Output:
        """What one of the sinks has made visible by now; ``name`` may be left out where there is one sink."""
        return output_of(self.plan, name)

    @checked(ConfigurationError)
    def to_spark(self, spark: SparkSession, name: str | None = None) -> Any:
        """The same as a DataFrame of ``spark``, which may be any session."""
        return self.output(name).to_spark(spark)

    @checked(ConfigurationError)
    def to_ray_dataset(self, name: str | None = None) -> Any:
        """The same as a ``ray.data.Dataset``, on the cluster that this process is connected to."""
        return self.output(name).to_ray_dataset()

    @checked(ConfigurationError)
    def result(self, name: str) -> pa.Table:
        """The rows that ``stream.collect(name)`` has kept, once the job is over."""
        self.wait()
        return COLLECTED.read(self.plan.key, name, self.name)

    @property
    def spark_released(self) -> bool:
        """Whether Spark may stop: no partition is left to be pulled. Always so if the frames were staged."""
        return all(lease.released for lease in leases_in(self.plan).values())

    @checked(ConfigurationError)
    def wait_spark_released(self, timeout: Seconds | None = None) -> None:
        """Wait until Spark may stop. Raises the error of a hand-off that failed, or TimeoutError."""
        deadline = Deadline(timeout)
        for lease in leases_in(self.plan).values():
            lease.wait_released(deadline.left())

    def follow_leases(self) -> None:
        """Blocks of leased frames go when no retained checkpoint needs them."""
        follow_leases(self.plan, self.folder)

    # ------------------------------------------------------------------ checkpoints and their end

    @checked(ConfigurationError)
    def checkpoint(self, timeout: Seconds | None = None) -> CheckpointId:
        """Take a checkpoint now and wait for it; while a part of the job restarts, for one of all of it."""
        before = self._running("ask for a checkpoint while the job runs")
        after = before.pending.checkpoint if before.pending is not None else before.latest_completed
        self._request(CheckpointRequested(UNKNOWN_TIME))
        status = self.wait_until(lambda status: _newer(status.latest_whole, after) is not None, timeout)
        taken = _newer(status.latest_whole, after)
        if taken is None:
            raise _over(status, "without another checkpoint", "ask for it while the job runs")
        return taken

    def cancel(self) -> None:
        """End the job; what is committed stays. ``wait`` returns once it has ended."""
        self._request(CancelRequested(UNKNOWN_TIME))

    @checked(ConfigurationError)
    def pin(self, name: str, checkpoint: CheckpointId | None = None, timeout: Seconds | None = None) -> CheckpointId:
        """Keep a completed checkpoint (by default the newest) until ``name`` is unpinned; returns which one it is.

        A name holds one checkpoint: pinned again, it lets go of the one before once the new one is held.
        """
        status = self._running("pin checkpoints while the job runs")
        wanted = checkpoint or status.latest_completed
        if wanted is None:
            raise ConfigurationError(f"job {self.name!r} has no checkpoint yet", "wait for one: job.checkpoint()")
        refused = status.refused_pins.count(name)
        self._request(PinRequested(wanted, name, UNKNOWN_TIME))

        def answered(status: JobStatus) -> bool:
            return status.pins.get(name) == wanted or status.refused_pins.count(name) > refused

        status = self.wait_until(answered, timeout)
        if status.pins.get(name) == wanted:
            return wanted
        if status.is_over:
            raise _over(status, f"before {name!r} was pinned", "pin checkpoints while the job runs")
        remedy = "pin one of the newest; Checkpoints(…, retained=) says how many are kept"
        raise ConfigurationError(f"checkpoint {wanted} of job {self.name!r} is not kept any more", remedy)

    @checked(ConfigurationError)
    def unpin(self, name: str, timeout: Seconds | None = None) -> None:
        """``name`` does not need its checkpoint any more."""
        self._running("unpin while the job runs")
        self._request(UnpinRequested(name, UNKNOWN_TIME))
        status = self.wait_until(lambda status: name not in status.pins, timeout)
        if name in status.pins:
            raise _over(status, f"before {name!r} was unpinned", "the pin stays; delete the checkpoint folder by hand")

    # ------------------------------------------------------------------ savepoints

    @checked(ConfigurationError)
    def savepoint(
        self,
        path: str | os.PathLike[str] | None = None,
        timeout: Seconds | None = None,
        *,
        aligned: bool = False,
    ) -> Savepoint:
        """Take a savepoint and wait for it: a checkpoint that belongs to you, in a folder that needs nothing else.

        ``path``: a new folder; by default one below the checkpoint folder. The job goes on, and what the savepoint
        holds is committed by the job's own checkpoints. By default it is taken at once, as checkpoints are, and holds
        what is in flight, so it is for this flow; a job that starts from it at another parallelism first goes on at the
        former one for a checkpoint with nothing in flight. ``aligned``: its barriers stand at the end of one round of
        all sources, with nothing in flight: a portable one, for any parallelism and for a flow that has changed. It
        waits for that round, which may take long where rows come slowly. So do all savepoints of jobs whose checkpoints
        are aligned, or that have no checkpoint folder.
        """
        self._check_restorable()
        target = self._target(path)

        def ask(name: str) -> Event:
            return SavepointRequested(name, target, UNKNOWN_TIME, aligned)

        return self._saved(ask, Deadline(timeout))

    @checked(ConfigurationError)
    def stop(
        self,
        *,
        drain: bool = False,
        savepoint: str | os.PathLike[str] | None = None,
        timeout: Seconds | None = None,
        aligned: bool = False,
    ) -> Savepoint:
        """Stop the job with a savepoint, as its last checkpoint; what has come to the sinks by then is committed.

        By default the job is suspended: operators keep what they hold, what is in flight belongs to the savepoint, and
        a job that starts from it (``run(flow, from_snapshot=…)``) goes on where this one has stopped. ``drain``: the
        data end here for good, open groups and windows are emitted. ``savepoint``: a new folder, by default one below
        the checkpoint folder; ``aligned``: as for :meth:`savepoint`; one that drains is always.
        """
        if drain and self.plan.feeds:
            raise ConfigurationError(
                f"job {self.name!r} has feeds: what operators emit early at a drained stop could not be taken back",
                "stop it without drain=True; the feed goes on from the savepoint",
            )
        self._check_restorable()
        target = self._target(savepoint)
        mode = StopMode.DRAIN if drain else StopMode.SUSPEND
        deadline = Deadline(timeout)
        saved = self._saved(lambda name: StopRequested(name, target, mode, UNKNOWN_TIME, aligned), deadline)
        self.wait(deadline.left())
        return saved

    def _check_restorable(self) -> None:
        """Raise ConfigurationError if a savepoint would be of rows that end with the script."""
        for id, source in self.plan.sources.items():
            if getattr(source.config, "ends_with_script", False):
                raise ConfigurationError(
                    f"nothing could be restored from a savepoint of job {self.name!r}: these rows are blocks that end "
                    "with the script that handed them over",
                    "to end the job now, cancel() it; to save it, run it with a checkpoint folder that keeps its "
                    'checkpoints, and not with handoff="lease": the rows are staged there, and go into savepoints',
                    id,
                )

    def _target(self, path: str | os.PathLike[str] | None) -> str:
        if path is None:
            if not self.folder_stays:
                raise ConfigurationError(
                    f"job {self.name!r} keeps its checkpoints in a folder that goes with it; so would the savepoint",
                    'name a folder for the savepoint, or run the flow with checkpoints=ps.Checkpoints("state/")',
                )
            return ""
        target = plain_address(path, "the folder of the savepoint")
        self.plan.check_savepoint(target, f"{self.folder}/{safe_name(self.name)}")
        if holds_savepoint(target):
            raise ConfigurationError(f"{target} holds a savepoint already", "name another folder")
        return target

    def _saved(self, ask: Callable[[str], Event], deadline: Deadline) -> Savepoint:
        """Rules 5 and 6."""
        splits = self._heard_of_all_sets(self._running("take savepoints while the job runs"), deadline).splits
        if splits is not None and splits.open_sets and not splits.ended:
            message = f"{splits.open_sets} split sets of job {self.name!r} were added after its last task barrier"
            raise ConfigurationError(message, "request a barrier first: job.request_barrier()")
        for pause in (*PAUSES, None):
            result, status = self._answer(ask, deadline)
            if result is None:
                return self._logged_stop(status)
            if result.location is not None and result.checkpoint is not None:
                return Savepoint(result.location, result.checkpoint)
            failure = result.failure
            if status.is_over or failure is None:
                raise _over(status, "before the savepoint was taken", "take savepoints while the job runs")
            if not failure.retry or pause is None:
                raise error_of(failure if failure.remedy else changed(failure, remedy=AGAIN))
            left = deadline.left()
            with suppress(TimeoutError):
                self.wait_until(lambda status: status.is_over, pause if left is None else min(pause, left))
            self.wait_until(lambda status: status.state == "running", deadline.left())
        raise AssertionError("unreachable")

    def _heard_of_all_sets(self, status: JobStatus, deadline: Deadline) -> JobStatus:
        """The status once every split set that has been accepted so far has been read: they are in the log of this job,
        where one that starts from the savepoint does not look."""
        if status.splits is None:
            return status
        added = self._splits.count()

        def has_read(status: JobStatus) -> bool:
            splits = status.splits
            if status.is_over or splits is None:
                return True
            return splits.entries >= added and splits.reached >= splits.requested

        return status if has_read(status) else self.wait_until(has_read, deadline.left())

    def _answer(self, ask: Callable[[str], Event], deadline: Deadline) -> tuple[SavepointResult | None, JobStatus]:
        """What came of one request; None: the job is over and nobody knows."""
        name = uuid.uuid4().hex
        status = self.status()
        while not status.is_over and status.savepoint(name) is None:
            self._request(ask(name))
            status = self.wait_until(partial(_is_answered, name, status.generation), deadline.left())
        return status.savepoint(name), status

    def _logged_stop(self, status: JobStatus) -> Savepoint:
        """The savepoint that the job has stopped with, as the log says."""
        entries = read_log_in(self.folder, self.name) if status.state == "stopped" else []
        for entry in reversed(entries):
            if isinstance(entry, Manifest) and entry.kind == CheckpointKind.STOP_WITH_SAVEPOINT.value:
                return Savepoint(entry.savepoint, entry.checkpoint)
        raise _over(status, "before the savepoint was taken", "take savepoints while the job runs")

    def _running(self, remedy: str) -> JobStatus:
        """The status of a job that is not over (rule 7)."""
        status = self.status()
        if status.is_over:
            raise _over(status, "", remedy)
        return status

    # ------------------------------------------------------------------ split sets and windows

    @checked(ConfigurationError)
    def add_splits(self, split_set: Mapping[str, NewSplit | Sequence[NewSplit]]) -> int:
        """Feed one split set: for every source one split, or a list of splits, the same number for each source: the
        ``k``-th ones are read side by side. A split is a table (a record batch, a pandas frame or a dict of arrays,
        too), or the path of a file that all processes see. Returns the set's number, from 1, over the whole life of the
        job. It is durable then.

        Raises ConfigurationError or FlowError if the set does not fit the job, and ConfigurationError if the job is
        over or no_more_splits() was called.
        """
        self._check_open()
        return self._splits.add(split_set).at.sets + 1

    def request_barrier(self) -> WindowBarrier:
        """Ask for a task barrier behind everything added so far, and go on. Windows may be queued ahead."""
        self._check_open()
        return WindowBarrier(self, self._splits.end_window(time.time()).at.windows + 1)

    def no_more_splits(self) -> None:
        """What was added is all: the window that is open is drained, then the job finishes. Said twice it is said."""
        self._must_be_fed()
        if not self._splits.has_ended():
            self._check_open()
            self._splits.end(time.time())

    @checked(ConfigurationError)
    def window(self, number: int) -> WindowBarrier:
        """The barrier of a window by its number."""
        return WindowBarrier(self, number)

    def windows(self) -> tuple[WindowReport, ...]:
        """The statistics of the newest windows, oldest first."""
        self._must_be_fed()
        if not self._closed:
            self._final.windows = self._live.fetch_windows()
        return self._final.windows

    def _must_be_fed(self) -> None:
        if not self.plan.fed:
            raise ConfigurationError(
                f"the sources of job {self.name!r} read splits of their own", "build them with flow.from_split_sets(…)"
            )

    def _check_open(self) -> None:
        """Raise ConfigurationError unless splits can be added."""
        self._must_be_fed()
        status = self.status()
        if status.is_over:
            raise _over(status, "", "start it again")

    def _first_position(self) -> SetPosition:
        """Where the log of split sets begins: a job that started from a snapshot counts on from what that covered."""
        status = self.wait_until(lambda status: status.splits is not None)
        found = status.splits
        if found is None:
            raise _over(status, "", "start it again")
        return SetPosition(number=found.entries, sets=found.sets, windows=found.requested, rounds=found.rounds)

    def _splits_added(self, entry: SplitEntry) -> None:
        self._request(SplitSetsAdded((entry,), UNKNOWN_TIME))

    def _wait_for_window(self, number: int, timeout: float | None) -> WindowReport:
        status = self.wait_until(lambda status: _is_published(number, status), timeout)
        if not _is_published(number, status):
            if status.failure is not None:
                raise error_of(status.failure)
            remedy = "start it again with the same checkpoint folder: what was added is in it"
            raise _over(status, f"before window {number} was complete", remedy)
        found = (each for each in self.windows() if each.number == number)
        return next(found, WindowReport(number, 0, 0.0, {}, reached=True))

    # ------------------------------------------------------------------ processes

    def identities(self) -> dict[TaskId, Identity]:
        """The process of each task; waits for those that are being restarted."""
        return self._processes.identities()

    def kill_task(self, task: TaskId) -> int:
        """End the process of a task with SIGKILL, as a crash would; the job recovers. Returns the process id."""
        return self._processes.kill_task(task)

    def cut_task(self, task: TaskId) -> None:
        """Lose all streams of a task, as a failing network would; the job recovers."""
        self._processes.cut_task(task)

    def coordinator_process(self) -> int:
        """The process id of the coordinator; waits for it if it is being restarted."""
        return self._processes.coordinator_process()

    def kill_coordinator(self) -> int:
        """End the coordinator's process with SIGKILL, as a crash would; the job goes on. Returns the process id."""
        return self._processes.kill_coordinator()

    @property
    def _processes(self) -> Processes:
        found = self._live.processes
        if found is None:
            raise ConfigurationError(
                f"job {self.name!r} runs as threads of this process, and has no processes of its own",
                "run it on Ray: ps.run(flow)",
            )
        return found

    # ------------------------------------------------------------------ the end

    def _request(self, event: Event) -> None:
        """Send the coordinator an event, unless the job is over and gone."""
        if not self._closed:
            self._live.request(event)

    def shutdown(self) -> None:
        """End the job's processes, whatever it is doing, but for a job of another script. Nothing half done becomes
        visible. Raises TaskLostError for a detached job whose cluster this script has left: it goes on."""
        if self._closed:
            return
        with suppress(PenstockError):
            self.status()
        self._keep(self._backend.stop())
        self._close()

    def _keep(self, final: FinalStatistics | None) -> None:
        """Keep what the processes know: they end now."""
        if final is not None:
            self._final = replace(final, windows=final.windows or self._final.windows)
            return
        for ask in (self.statistics, self.checkpoints, *([self.windows] if self.plan.fed else [])):
            with suppress(PenstockError, TimeoutError):
                ask()

    def _close(self) -> None:
        """Processes first: what the outputs have become must not keep them. But what the job does not keep goes with
        them, so it is audited before. A store that does not answer is waited for once: whoever ends a job need not wait
        again for the same."""
        is_away = False
        if self._known is not None and self._known.status.is_over:
            is_away = not self._look_at_what_is_left()
        self._closed = True
        if self._at_exit is not None:
            self._at_exit.call_off()
        try:
            if self._end_processes() and not is_away:  # else nobody knows whether they have all ended yet, or how
                self._look_at_what_is_left(clean=True)
        finally:
            self._place.release()

    def _look_at_what_is_left(self, *, clean: bool = False) -> bool:
        """Audit the job, and ``clean`` its outputs before. False: its log cannot be read."""
        entries = at_the_end(self._log)
        if entries is None:
            return False
        if clean and self._is_owner:
            self._clean_outputs(entries)
        if self._known is not None:  # else its coordinator never came to life, and the script has got the error
            at_the_end(lambda: self._audited(lambda: entries))
        return True

    def _leave(self) -> None:
        """The script ends, and nobody asks any more."""
        self._closed = True
        try:
            status = self._backend.peek_status()
            self._tell_left(status)
            self._generation = self._generation if status is None else status.generation
            self._end_processes()
            if self._is_owner and (entries := at_the_end(self._log)) is not None:
                self._clean_outputs(entries)
        finally:
            self._place.release()

    def _tell_left(self, status: JobStatus | None) -> None:
        """A script that ends by itself while its job runs has mostly forgotten to wait. Not one that fails, or that
        somebody types line by line."""
        status = status or (None if self._known is None else self._known.status)
        if (status is not None and status.is_over) or hasattr(sys, "last_type") or hasattr(sys, "ps1"):
            return
        on = ", and the script goes on from there when it is run again" if self.folder_stays else ""
        print(
            f"penstock: job {self.name!r} was not over when its script ended, and ends with it: what is committed "
            f"stays{on}. job.wait() waits for it; job.shutdown() says that this is meant.",
            file=sys.stderr,
        )

    def _end_processes(self) -> bool:
        ended = self._backend.end()
        if ended:
            for lease in leases_in(self.plan).values():
                lease.close()
        return ended

    def _clean_outputs(self, entries: Sequence[LogEntry]) -> None:
        at_the_end(lambda: clean_outputs(self.plan, self.folder, self._generation, entries))

    @property
    def _is_owner(self) -> bool:
        return self._backend.ownership is Ownership.OWNER

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_owner:
            self.shutdown()


def _is_answered(request: str, asked_of: int, status: JobStatus) -> bool:
    """Whether there is a result, or a coordinator that was not asked."""
    return status.savepoint(request) is not None or status.generation > asked_of


def _is_changed(request: str, asked_of: int, status: JobStatus) -> bool:
    return status.reweight(request) is not None or status.generation > asked_of


def _refused_change(feed: str, found: ReweightResult, steps: Steps | None, step: int | None, row: int) -> Exception:
    """The error that says from where on weights can be changed."""
    if steps is None:
        possible = "" if found.possible is None else f"row that is possible now is {found.possible}"
        return too_late(feed, f"row {row} of the mixture", found.refused, possible)
    possible = "" if found.possible is None else f"step that is possible now is {steps.first_step(found.possible)}"
    return too_late(feed, f"step {step}", found.refused, possible)


def _is_published(number: int, status: JobStatus) -> bool:
    return status.splits is not None and status.splits.published >= number


def _over(status: JobStatus, addition: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"job {status.job!r} is over: {status.state} {addition}".rstrip(), remedy)


def _newer(checkpoint: CheckpointId | None, after: CheckpointId | None) -> CheckpointId | None:
    """The checkpoint, if it is later than ``after``."""
    return checkpoint if checkpoint is not None and (after is None or checkpoint > after) else None
