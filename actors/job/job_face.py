"""What a user can ask of a running job, the same for ``Job`` and ``LocalJob``: checkpoints, savepoints, stops, pins.

Every request is an event for the coordinator, and what came of it stands in the job's status. No Ray.

Rules:

1. A request carries a name of its own, and is sent again when another coordinator has taken over meanwhile: asked twice
   it is one request. What a stop came to is also written in the log, where it is looked up if the coordinator that knew
   the name is gone.
2. A savepoint that failed for something that passes (a task was lost, or was just about to end) is asked for again, a
   few times. Anything else is the user's: the error is raised, and the job goes on.
3. Nothing is asked of a job that is over: that is a mistake, and the error says how it ended.
"""

from __future__ import annotations

import os
import uuid
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...coordinator.model.events import (
    CancelRequested,
    CheckpointRequested,
    Event,
    PinRequested,
    SavepointRequested,
    StopRequested,
    UnpinRequested,
)
from ...coordinator.model.kinds import CheckpointKind, StopMode
from ...coordinator.model.manifest import Manifest
from ...coordinator.model.statistics import JobStatus, Overview, SavepointResult
from ...engine.core.arguments import Seconds, checked
from ...engine.core.errors import ConfigurationError, TaskLostError
from ...engine.core.identity import CheckpointId
from ...engine.core.shown import hides_credentials
from ...engine.files.paths import safe_name
from ...engine.plan.plan import JobPlan
from ..audit.audit import last_state
from ..claims.leases import Leasing
from ..claims.savepoints import holds_savepoint
from ..feed.audit import FeedAudit, audit_feed
from ..feed.models import ModelBook
from ..process.waiting import Deadline
from ..protocol.messages import UNKNOWN_TIME
from ..protocol.translate import error_of
from ..storage.log import read_log_in
from ..storage.stores import is_gone, plain_address
from .outputs import Output, SparkSession, output_of
from .split_sets_face import SplitSetsFace

TRIES = 5
"""How often a savepoint is asked for that fails for something that passes."""
AGAIN = "ask again in a moment; near the end of the data wait for the job instead, with job.wait()"
"""What to do about a savepoint that failed for something that names no remedy of its own."""


@hides_credentials
@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint that stands at ``path``, complete and by itself. ``id``: the checkpoint that it was taken as."""

    path: str
    id: CheckpointId


class JobFace(Leasing, SplitSetsFace):
    """See the module's rules. ``folder``: the checkpoint folder; ``folder_stays``: whether it outlives the job."""

    plan: JobPlan
    folder: str
    folder_stays: bool

    @property
    @abstractmethod
    def name(self) -> str:
        """The job's name."""

    @abstractmethod
    def status(self) -> JobStatus:
        """Where the job stands now."""

    @abstractmethod
    def wait(self, timeout: Seconds | None = None) -> Any:
        """Wait until the job is over."""

    @abstractmethod
    def wait_until(self, condition: Callable[[JobStatus], bool], timeout: Seconds | None = None) -> JobStatus:
        """Wait for a status of which ``condition`` holds, or for the last one that there is."""

    @abstractmethod
    def checkpoints(self) -> Overview:
        """Counts, history and summary of the coordinator's checkpoints, as Flink's pages show them."""

    @abstractmethod
    def _tell(self, event: Event) -> None:
        """Send the coordinator an event; not for a job that is over and gone."""

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

    # ------------------------------------------------------------------ checkpoints and their end

    @checked(ConfigurationError)
    def checkpoint(self, timeout: Seconds | None = None) -> CheckpointId:
        """Take a checkpoint now and wait for it."""
        before = self._running("ask for a checkpoint while the job runs")
        after = before.pending.checkpoint if before.pending is not None else before.latest_completed
        self._tell(CheckpointRequested(UNKNOWN_TIME))
        status = self.wait_until(lambda status: _newer(status.latest_completed, after) is not None, timeout)
        taken = _newer(status.latest_completed, after)
        if taken is None:
            raise _over(status, "without another checkpoint", "ask for it while the job runs")
        return taken

    def cancel(self) -> None:
        """End the job; what is committed stays. ``wait`` returns once it has ended."""
        self._tell(CancelRequested(UNKNOWN_TIME))

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
        self._tell(PinRequested(wanted, name, UNKNOWN_TIME))

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
        self._tell(UnpinRequested(name, UNKNOWN_TIME))
        status = self.wait_until(lambda status: name not in status.pins, timeout)
        if name in status.pins:
            raise _over(status, f"before {name!r} was unpinned", "the pin stays; delete the checkpoint folder by hand")

    # ------------------------------------------------------------------ savepoints

    @checked(ConfigurationError)
    def savepoint(self, path: str | os.PathLike[str] | None = None, timeout: Seconds | None = None) -> Savepoint:
        """Take a savepoint and wait for it: a checkpoint that belongs to you, in a folder that needs nothing else.

        ``path``: a new folder; by default one below the checkpoint folder. The job goes on, and what the savepoint
        holds is committed by the job's own checkpoints.
        """
        self._check_restorable()
        target = self._target(path)
        return self._saved(lambda name: SavepointRequested(name, target, UNKNOWN_TIME), Deadline(timeout))

    @checked(ConfigurationError)
    def stop(
        self, *, drain: bool = False, savepoint: str | os.PathLike[str] | None = None, timeout: Seconds | None = None
    ) -> Savepoint:
        """Stop the job with a savepoint, as its last checkpoint; all rows up to it are committed.

        By default the job is suspended: operators keep what they hold, and a job that starts from the savepoint
        (``run(flow, from_snapshot=…)``) goes on where this one has stopped. ``drain``: the data end here for good, open
        groups and windows are emitted. ``savepoint``: a new folder, by default one below the checkpoint folder.
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
        saved = self._saved(lambda name: StopRequested(name, target, mode, UNKNOWN_TIME), deadline)
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
        """Rules 1 and 2."""
        splits = self._heard_of_all_sets(self._running("take savepoints while the job runs"), deadline).splits
        if splits is not None and splits.open_sets and not splits.ended:
            message = f"{splits.open_sets} split sets of job {self.name!r} stand behind its last task barrier"
            raise ConfigurationError(message, "request a barrier first: job.request_barrier()")
        for tried in range(1, TRIES + 1):
            result, status = self._answer(ask, deadline)
            if result is None:
                return self._logged_stop(status)
            if result.location is not None and result.checkpoint is not None:
                return Savepoint(result.location, result.checkpoint)
            failure = result.failure
            if status.is_over or failure is None:
                raise _over(status, "before the savepoint was taken", "take savepoints while the job runs")
            if not failure.retry or tried == TRIES:
                raise error_of(failure if failure.remedy else replace(failure, remedy=AGAIN))
            self.wait_until(lambda status: status.state == "running", deadline.left())
        raise AssertionError("unreachable")

    def _heard_of_all_sets(self, status: JobStatus, deadline: Deadline) -> JobStatus:
        """The status once every split set that has been accepted so far has been read: they are in the log of this job,
        where one that starts from the savepoint does not look."""
        if status.splits is None:
            return status
        added = self._entries_added()

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
            self._tell(ask(name))
            status = self.wait_until(partial(_is_answered, name, status.generation), deadline.left())
        return status.savepoint(name), status

    def _logged_stop(self, status: JobStatus) -> Savepoint:
        """The savepoint that the job has stopped with, as the log tells."""
        entries = read_log_in(self.folder, self.name) if status.state == "stopped" else []
        for entry in reversed(entries):
            if isinstance(entry, Manifest) and entry.kind == CheckpointKind.STOP_WITH_SAVEPOINT.value:
                return Savepoint(entry.savepoint, entry.checkpoint)
        raise _over(status, "before the savepoint was taken", "take savepoints while the job runs")

    def _running(self, remedy: str) -> JobStatus:
        """The status of a job that is not over (rule 3)."""
        status = self.status()
        if status.is_over:
            raise _over(status, "", remedy)
        return status


def cannot_be_asked(job: str, why: str) -> TaskLostError:
    """The error for a question to a job whose processes are gone."""
    remedy = "run the flow again with the same checkpoint folder: it goes on from the last checkpoint"
    return TaskLostError(f"job {job!r} cannot be asked: {why}", remedy)


def _is_answered(request: str, asked_of: int, status: JobStatus) -> bool:
    """Whether there is a result, or a coordinator that was not asked."""
    return status.savepoint(request) is not None or status.generation > asked_of


def _over(status: JobStatus, addition: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"job {status.job!r} is over: {status.state} {addition}".rstrip(), remedy)


def _newer(checkpoint: CheckpointId | None, after: CheckpointId | None) -> CheckpointId | None:
    """The checkpoint, if it is later than ``after``."""
    return checkpoint if checkpoint is not None and (after is None or checkpoint > after) else None
