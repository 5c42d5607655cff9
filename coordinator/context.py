"""What the coordinator's parts share: the job's facts, the current time, and the list of orders being written."""

from __future__ import annotations

from .commands import Command
from .execution_graph import ExecutionGraph
from .log_writer import LogWriter
from .manifest import Claim
from .settings import Settings
from .tasks import TaskTable


class Context:
    """One per coordinator; parts hold it and nothing of each other beyond what they are given."""

    def __init__(self, job: str, fingerprint: str, graph: ExecutionGraph, settings: Settings) -> None:
        self.job = job
        self.fingerprint = fingerprint
        self.graph = graph
        self.settings = settings
        self.tasks = TaskTable(graph)
        self.log = LogWriter()
        #: 0 until the job is claimed.
        self.generation = 0
        #: The claim that made the job ours; None until it stands.
        self.claim: Claim | None = None
        #: The largest time that any event told.
        self.now = float("-inf")
        #: The orders of the event being handled.
        self.out: list[Command] = []

    def order(self, command: Command) -> None:
        self.out.append(command)
