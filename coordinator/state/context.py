"""What the coordinator's parts share: the job's facts, the current time, and the list of orders being written."""

from __future__ import annotations

from collections.abc import Iterable

from ...engine.core.identity import JobIdentity, Reweight
from ..log.log_writer import LogWriter
from ..log.retained import RetainedCheckpoints
from ..model.commands import Command
from ..model.execution_graph import ExecutionGraph
from ..model.manifest import Claim
from ..model.settings import Settings
from ..model.split_sets import Skipped
from .released_splits import ReleasedSplits
from .tasks import TaskTable


class Context:
    """One per coordinator. A part changes its own things and asks the others, or tells them by a method of theirs."""

    def __init__(
        self,
        job: str,
        fingerprint: str,
        graph: ExecutionGraph,
        settings: Settings,
        identity: JobIdentity,
        has_outputs: bool = False,
        inputs: tuple[str, ...] = (),
    ) -> None:
        self.job = job
        #: Who we are; its generation is 0 until the job is claimed.
        self.identity = identity
        #: Whether there are places that must be taken over before anything is written.
        self.has_outputs = has_outputs
        self.fingerprint = fingerprint
        #: What is recorded of the inputs (first), and what this job can go on from besides: it only adds files.
        self.inputs = inputs
        self.graph = graph
        self.settings = settings
        self.tasks = TaskTable(graph)
        self.log = LogWriter()
        #: The completed checkpoints that are kept; changed by the finalizer and by pins alone.
        self.retained = RetainedCheckpoints(settings.retained, settings.retention)
        #: Which of the split sets that the caller has added the tasks may have, if they take any.
        self.splits = ReleasedSplits()
        #: 0 until the job is claimed.
        self.generation = 0
        #: The claim that made the job ours; None until it is durable.
        self.claim: Claim | None = None
        #: Splits that are not read any more.
        self.skipped: tuple[Skipped, ...] = ()
        #: What the log says of mixtures whose weights were changed.
        self.reweights: tuple[Reweight, ...] = ()
        #: The largest time that any event told.
        self.now = float("-inf")
        #: The orders of the event being handled.
        self.out: list[Command] = []

    @property
    def recorded_inputs(self) -> str:
        """The digest of what is recorded of the inputs; empty: nothing is."""
        return self.inputs[0] if self.inputs else ""

    def skip(self, skipped: Iterable[Skipped]) -> None:
        """Read these splits no more; what is known is not said again."""
        known = {each.name for each in self.skipped}
        self.skipped += tuple(each for each in skipped if each.name not in known)

    def reweigh(self, reweights: Iterable[Reweight]) -> None:
        """The log says these; what is known is not said again."""
        known = {each.request for each in self.reweights}
        self.reweights += tuple(each for each in reweights if each.request not in known)

    def order(self, command: Command) -> None:
        self.out.append(command)
