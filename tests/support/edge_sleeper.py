"""The process of a job that is stopped, and wakes up when another run has taken its output over.

    python -m support.edge_sleeper ROOT AUDIT CHECKPOINTS TOLD [SAVEPOINT]

It stops itself once so many checkpoints are completed (with SAVEPOINT: once that is taken), so whoever waits for it
knows where it stands, at whatever speed. Its rows come so slowly that most are left then. What became of it is pickled
into TOLD.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from random import Random
from typing import get_args

import penstock as ps
from penstock.engine.core.errors import PenstockError
from penstock.engine.core.identity import CommitPermit
from penstock.engine.plan.plan import Audited
from penstock.engine.sinks.file_committer import FileCommitter
from support.edge_disasters import PATIENCE, World

RATE = 100.0
QUIET = threading.Lock()
"""Held while something becomes visible. Between the look at the owner and the rename no sleep is asked for: what
becomes visible by that commit is not promised away (docs/design/sinks.md)."""


def main() -> None:
    root, audit, wanted, told = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    saved = Path(sys.argv[5]) if len(sys.argv) > 5 else None
    world = World(root, Random(0), audit=next(each for each in get_args(Audited) if each == audit))
    commit_quietly()
    try:
        with world.start(rate=RATE, every="1h" if saved else "40ms") as job:
            sleep(job, wanted, saved)
            if saved:
                job.stop(savepoint=root / "saved by the sleeper", timeout=PATIENCE)
            world.end(job)
    except PenstockError as error:
        world.said.append(f"{type(error).__name__}: {error.message[:120]}")
    told.write_bytes(pickle.dumps((world.said, world.expected, world.audits)))


def sleep(job: ps.Job, wanted: int, saved: Path | None) -> None:
    """Stop this process, somewhere behind a checkpoint or savepoint, until somebody wakes it."""
    if saved:
        job.savepoint(saved, PATIENCE)
    else:
        job.wait_until(lambda status: status.is_over or status.checkpoints_completed >= wanted, PATIENCE)
    with QUIET:
        os.kill(os.getpid(), signal.SIGSTOP)


def commit_quietly() -> None:
    commit = FileCommitter.commit

    def quietly(self: FileCommitter, permit: CommitPermit) -> None:
        with QUIET:
            commit(self, permit)

    FileCommitter.commit = quietly  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
