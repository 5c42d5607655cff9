"""``penstock run script.py:flow``: any flow, embedded or on Ray, and its audit; ``explain``: what it would do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..actors.claims.place import Resume
from ..actors.client.job import Job
from ..actors.client.progress import console_on, watch
from ..actors.protocol.settings import Checkpoints
from ..engine.core.errors import ConfigurationError
from ..engine.feed.sink import FeedSink
from ..engine.flow.flow import Flow
from .flow_finder import find_flow
from .flow_paths import with_paths
from .local_run import run_local
from .registry import RunOptions

_READY_MADE = ("scale", "output", "kill", "verify")
"""What only ready-made jobs have."""


@dataclass(frozen=True, slots=True)
class FlowJob:
    """A flow of the user's, as a job of the command line. ``where``: script.py:flow; ``given``: its arguments."""

    where: str
    given: Mapping[str, str]
    paths: Mapping[str, str] = field(default_factory=dict)

    def run(self, options: RunOptions) -> int:
        """0 if it finished and the audit is clean."""
        for name in _READY_MADE:
            if getattr(options, name) != getattr(RunOptions(), name):
                raise ConfigurationError(f"--{name} is of ready-made jobs, and {self.where} is a flow", "leave it out")
        if options.restart and options.checkpoints is None:
            raise ConfigurationError("--restart names no job that is over", "say where it was: --checkpoints FOLDER")
        flow, console = self._flow(), console_on(sys.stdout)
        _refuse_feeds(flow)
        try:
            with self._start(flow, options) as job:
                watch(job, console)
                job.wait(progress=False)
                audit = job.audit()
        except KeyboardInterrupt:
            on = "and the same command goes on from there" if options.checkpoints else "without --checkpoints to go on"
            raise KeyboardInterrupt(f"what is committed stays, {on}") from None
        console.print(str(audit), highlight=False, markup=False, soft_wrap=True)
        return 0 if audit.clean else 1

    def explain(self, options: RunOptions) -> str:
        """What it would do."""
        return self._flow().explain(options.parallelism)

    def _flow(self) -> Flow:
        return with_paths(find_flow(self.where, self.given), self.paths)

    def _start(self, flow: Flow, options: RunOptions) -> Job:
        kept = None if options.checkpoints is None else Checkpoints(options.checkpoints, every=options.every)
        resume: Resume = "restart" if options.restart else "auto"
        if options.local:
            return run_local(flow, parallelism=options.parallelism, checkpoints=kept, rate=options.rate, resume=resume)
        from ..actors.job.launch import run

        return run(
            flow,
            parallelism=options.parallelism,
            checkpoints=kept,
            rate=options.rate,
            resume=resume,
            address=options.address,
            verbose=options.verbose,
        )


def _refuse_feeds(flow: Flow) -> None:
    if any(isinstance(node.config, FeedSink) for node in flow.nodes):
        raise ConfigurationError(
            f"flow {flow.name!r} ends in a feed, which nobody would read here",
            "run the script that trains; `penstock replay` and `penstock shuffle-quality` read a feed by themselves",
        )
