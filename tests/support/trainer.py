"""A rank of a training run, as a program: ``python trainer.py PLAN`` with a pickled handle of a feed on its input.

It writes down every batch that it was handed before it goes on, commits a model every few steps, and may end itself at
a step that its plan names, as somebody who is killed there would.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any


@dataclass(frozen=True)
class Plan:
    """What one rank does."""

    rank: int
    ranks: int
    journal: str
    #: what the names of its models begin with; a model is committed every so many steps, by rank 0
    models: str
    every: int
    #: the step at which it gets this signal; 0: never
    step: int = 0
    signal: int = 0
    #: the signal comes behind a commit, before the model is known to be bound
    amid_commit: bool = False

    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__)), json.dumps(asdict(self))]


def train(feed: Any, plan: Plan, journal: IO[str]) -> None:
    """Every batch from the feed's place to its end."""
    accident = partial(os.kill, os.getpid(), plan.signal)
    with feed.reader(plan.rank, plan.ranks, timeout=60) as reader:
        for _ in range(reader.epoch, feed.epochs):
            for records in reader:
                step = reader.step
                print(json.dumps([step - 1, records.column("n").to_pylist()]), file=journal, flush=True)
                if plan.rank == 0 and step % plan.every == 0:
                    save(reader, plan, step, accident if plan.amid_commit and plan.step == step else None)
                if plan.step == step:
                    accident()


def save(reader: Any, plan: Plan, step: int, accident: Callable[[], None] | None) -> None:
    """Commit a model, and say so when it is bound."""
    reader.commit(f"{plan.models}{step}")
    if accident is not None:
        accident()
    reader.flush(60)
    with Path(plan.journal).with_suffix(".bound").open("a", encoding="utf-8") as bound:
        print(f"{plan.models}{step}", file=bound, flush=True)


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Path(plan.journal).open("a", encoding="utf-8") as journal:
        train(pickle.load(sys.stdin.buffer), plan, journal)


if __name__ == "__main__":
    main()
