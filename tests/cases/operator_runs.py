"""Runs a chain of operators through the operator protocol, as a driver does: one lane, splits as rounds, task barriers.

Rules:

1. Without barriers all batches of a port are one round. Ports speak in turns, within what ``accepts`` allows.
2. With barriers the n-th batch of each port is its n-th split, one round; behind it every operator drains, upstream
   first, and the rows that came out since the last barrier are one window.
3. Ends of rounds pass behind the rows, and every operator is finished before the one behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import pyarrow as pa
from cases.operator_plans import Plan

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.operator import RunningOperator, exhaust
from penstock.engine.kernels.pieces import cut
from support.operator_harness import Collected, context


@dataclass
class Link:
    """Hands what one operator emits to the next one; checks as an output does."""

    checked: Collected
    next: RunningOperator
    behind: Link | Collected

    def emit(self, batch: Batch) -> None:
        self.checked.emit(batch)
        self.checked.batches = [batch]
        exhaust(self.next.process(0, batch, self.behind))


class Chain:
    """The running operators of a plan."""

    def __init__(self, plan: Plan, output_rows: int) -> None:
        schemas = [[port[0].schema for port in plan.ports]]
        for config in plan.operators:
            schemas.append([config.output_schema(schemas[-1])])
        where = replace(context(lanes=1), output_rows=output_rows)
        self._running = [
            config.build(where, inputs, None) for config, inputs in zip(plan.operators, schemas, strict=False)
        ]
        self._end = Collected(schemas[-1][0])
        self._taken_batches = 0
        self._links: list[Link | Collected] = [self._end]
        for position in reversed(range(1, len(self._running))):
            behind = self._links[0]
            self._links.insert(0, Link(Collected(schemas[position][0]), self._running[position], behind))
        self._ports = len(plan.ports)
        self._sequences = [0] * self._ports

    def feed(self, ports: Sequence[Sequence[pa.RecordBatch]], round: int) -> None:
        """One round of every port, in turns; then its end."""
        waiting = [deque(batch for batch in port if batch.num_rows) for port in ports]
        first = self._running[0]
        while any(waiting):
            spoke = False
            for port, batches in enumerate(waiting):
                if batches and first.accepts(port):
                    tag = Tag(round, 0, self._sequences[port])
                    self._sequences[port] += 1
                    exhaust(first.process(port, Batch(batches.popleft(), tag), self._links[0]))
                    spoke = True
            assert spoke, "every port that has rows is refused"
        for port in range(self._ports):
            exhaust(first.end_round(port, round, self._links[0]))
        for running, link in self._behind_first():
            exhaust(running.end_round(0, round, link))

    def drain(self) -> list[pa.RecordBatch]:
        """A task barrier; what came out since the last one."""
        for running, link in zip(self._running, self._links, strict=True):
            exhaust(running.drain(link))
        return self._taken()

    def finish(self) -> list[pa.RecordBatch]:
        """No more splits: run to the end; what came out since the last barrier."""
        first = self._running[0]
        for port in range(self._ports):
            exhaust(first.end_round(port, FINAL_ROUND, self._links[0]))
            exhaust(first.end_port(port, self._links[0]))
        exhaust(first.finish(self._links[0]))
        for running, link in self._behind_first():
            exhaust(running.end_round(0, FINAL_ROUND, link))
            exhaust(running.end_port(0, link))
            exhaust(running.finish(link))
        for running in self._running:
            running.close()
        return self._taken()

    def _behind_first(self) -> list[tuple[RunningOperator, Link | Collected]]:
        return list(zip(self._running[1:], self._links[1:], strict=True))

    def _taken(self) -> list[pa.RecordBatch]:
        taken = self._end.batches[self._taken_batches :]
        self._taken_batches += len(taken)
        return [batch.records for batch in taken]


def windows_of(plan: Plan, output_rows: int, *, barriers: bool) -> list[list[pa.RecordBatch]]:
    """What comes out in each window; the last one is what comes after the last barrier."""
    chain = Chain(plan, output_rows)
    ports = [[piece for batch in port for piece in cut(batch, output_rows)] for port in plan.ports]
    if not barriers:
        chain.feed(ports, 0)
        return [chain.finish()]
    windows = []
    for round, splits in enumerate(zip_longest(*plan.ports)):
        chain.feed([list(cut(split, output_rows)) if split is not None else [] for split in splits], round)
        windows.append(chain.drain())
    return [*windows, chain.finish()]
