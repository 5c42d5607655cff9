"""The ready-made jobs by name, and what the command line may ask of one.

A job is a module with ``run(options) -> int`` (an exit code) and ``explain(options) -> str``. It is imported when it is
asked for, so that ``penstock --help`` stays quick.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Protocol, cast

from ..engine.core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a ready-made job. ``rate`` None: the job's own choice; ``output`` None: a new folder for this run."""

    scale: int = 1
    rate: float | None = None
    parallelism: int = 2
    local: bool = False
    address: str | None = None
    output: str | None = None
    checkpoints: str | None = None
    every: str = "1s"
    restart: bool = False
    kill: bool = False
    verify: bool = True
    verbose: bool = False


class ReadyMadeJob(Protocol):
    """What a job's module offers."""

    def run(self, options: RunOptions) -> int: ...

    def explain(self, options: RunOptions) -> str: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A job's module, below ``penstock.jobs``, and one line about it."""

    module: str
    summary: str


JOBS = {"flights": Entry("flights_run", "features and daily statistics of New York's flights of 2013")}


def find_job(name: str) -> ReadyMadeJob:
    """The job's module. Raises ConfigurationError that names the jobs there are."""
    if name not in JOBS:
        raise ConfigurationError(
            f"there is no job named {name!r}",
            f"choose one of: {', '.join(sorted(JOBS))}; or name a flow: script.py:flow",
        )
    return cast(ReadyMadeJob, importlib.import_module(f".{JOBS[name].module}", __package__))
