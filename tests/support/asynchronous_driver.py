"""A driver for asynchronous operators whose background does nothing until it is told to.

It keeps the promises of ``AsynchronousOperator``: batches only while the operator accepts them; ends of rounds,
barriers, snapshots and the end only while nothing is under way; ``poll`` for as long as something comes. What comes
back when is drawn from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.operator import AsynchronousOperator, OperatorConfig, run_at_once
from penstock.engine.operators import LookupJoin
from penstock.engine.operators.join.running_lookup import AsynchronousLookupJoin
from support.index_kinds import SCHEMA
from support.operator_harness import Collected, context


@dataclass
class HeldBackground:
    """Work that was handed over, and waits to be released."""

    waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = field(default_factory=list)

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))

    def release(self, number: int = 0) -> None:
        """Do one piece of the work and hand over what it gives."""
        run_at_once(*self.waiting.pop(number))


@dataclass
class Driven:
    """What came out, and the most pieces of work that waited at once."""

    batches: list[Batch]
    most_waiting: int = 0

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.records.to_pylist()]


def batches_of(table: pa.Table, size: int, round: int = 0, lane: int = 0) -> Iterator[Batch]:
    """The rows of a table as batches of one round and lane."""
    whole = table.combine_chunks()
    for number, start in enumerate(range(0, table.num_rows, size)):
        (records,) = whole.slice(start, size).to_batches()
        yield Batch(records, Tag(round, lane, number))


def drive(
    config: OperatorConfig, rounds: Sequence[Sequence[Batch]], schema: pa.Schema, *, seed: int = 0, **options: Any
) -> Driven:
    """Feed the rounds to one running operator; each ends with a snapshot, a barrier, or neither."""
    chooser, background = random.Random(seed), HeldBackground()
    running = config.build(replace(context(), background=background, **options), [schema], None)
    assert isinstance(running, AsynchronousOperator)
    output = Collected(config.output_schema([schema]))
    driven = Driven(output.batches)

    def release_some() -> None:
        driven.most_waiting = max(driven.most_waiting, len(background.waiting))
        assert background.waiting, f"waits for {running.waits_for!r}, and nothing is under way"
        background.release(chooser.randrange(len(background.waiting)))
        polled(running, output)

    def settle() -> None:
        polled(running, output)
        while running.waits_for:
            release_some()
        assert not background.waiting

    for number, batches in enumerate(rounds):
        for batch in batches:
            polled(running, output)
            while not running.accepts(0) or (background.waiting and chooser.random() < 0.3):
                release_some()
            running.process(0, batch, output)
            driven.most_waiting = max(driven.most_waiting, len(background.waiting))
        settle()
        running.end_round(0, number, output)
        match chooser.randrange(3):
            case 0:
                assert running.snapshot() is None
            case 1:
                running.drain(output)
    running.end_round(0, FINAL_ROUND, output)
    running.end_port(0, output)
    running.finish(output)
    output.closed = True
    running.close()
    return driven


def started(config: LookupJoin, **options: Any) -> tuple[AsynchronousLookupJoin, HeldBackground, Collected]:
    """A running lookup join over the key ``k``, its background, and where it puts its output."""
    background = HeldBackground()
    running = config.build(replace(context(), background=background, **options), [SCHEMA], None)
    assert isinstance(running, AsynchronousLookupJoin)
    return running, background, Collected(config.output_schema([SCHEMA]))


def polled(running: AsynchronousOperator, output: Collected) -> bool:
    """Poll for as long as something comes, as a driver does. Whether anything has."""
    any_came = False
    while running.poll(output):
        any_came = True
    return any_came


def values(output: Collected) -> list[Any]:
    """What came out in column ``v``."""
    return [value for batch in output.batches for value in batch.records.column("v").to_pylist()]
