"""Union: the rows of several streams of one schema, as one stream.

Rules:

1. Within a round and lane the rows of the first stream come first, then those of the second, and so on: the order does
   not depend on which stream was faster.
2. Each port holds at most one batch: the smallest by (round, lane, port) is passed on as soon as every other port holds
   one too or has ended its round. A port that holds one accepts no other.
3. What the operators before it emit at a barrier comes after the end of the round. It is held until ``drain``, and
   then passed on in the same order: so a union drains at every barrier. Rows that a stream which has ended gave at its
   end come out with it, too, in the last round of the others: these go on. What is held is counted, and not spilled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.held_rows import HeldRows
from ...core.elements import FINAL_ROUND, Batch, Tag
from ...core.errors import FlowError
from ...core.operator import Emitter, OperatorContext, Output, Stateless, Steps
from ...core.schemas import check_inputs
from ...core.traits import ALL_INPUTS, Emission, Lineage, Multiplicity, Traits, all_kept


@dataclass(frozen=True)
class Union:
    """All rows of ``ports`` streams."""

    ports: int
    kind: str = "union"
    traits: ClassVar[Traits] = Traits(
        columns=all_kept(),
        emission=Emission.PER_ROUND,
        rows=Multiplicity.SAME,
        lineage=Lineage(follows=ALL_INPUTS),
        beyond_budget="what the operators before it hold until a task barrier",
        deterministic=True,
        always_drains=True,
        ends_epochs=True,
        early=lambda inputs, names: [{name: pc.field(name) for name in names} for _ in inputs],
    )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of the first stream; those of the others have the same names and types, in the same order."""
        if self.ports < 2:
            raise FlowError("union: it needs two streams or more", "give another stream")
        return same_columns(self.kind, inputs, self.ports)

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningUnion:
        """A running union with the batches of ``restored``."""
        running = RunningUnion(self.output_schema(inputs), self.ports, context)
        if restored is not None:
            running.restore(restored)
        return running

    def describe(self) -> str:
        """The number of streams."""
        return f"of {self.ports} streams"


class RunningUnion(Stateless):
    """See the module's rules."""

    def __init__(self, schema: pa.Schema, ports: int, context: OperatorContext) -> None:
        self._schema, self._memory = schema, context.memory
        #: port -> batches of rounds that have not ended there; at most one but after a restore
        self._held: list[list[Batch]] = [[] for _ in range(ports)]
        #: port -> batches that came behind the end of their round; empty between barriers
        self._late: list[list[Batch]] = [[] for _ in range(ports)]
        #: port -> the last round that has ended
        self._ended = [FINAL_ROUND if place.ended or place.is_final else place.round for place in context.ports] or [
            -1
        ] * ports
        #: bytes of all of them
        self._bytes = 0
        self._emitter = Emitter()

    def accepts(self, port: int) -> bool:
        """Whether the port holds nothing."""
        return not self._held[port]

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Hold the batch, and pass on those whose turn it is."""
        is_late = batch.tag.round <= self._ended[port]
        (self._late if is_late else self._held)[port].append(batch)
        self._hold(batch.size)
        return None if is_late else self._pass_on(out)

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """No other batch of the round comes on this port."""
        self._ended[port] = max(self._ended[port], round)
        return self._pass_on(out)

    def end_port(self, port: int, out: Output) -> Steps:
        """No other batch comes on this port."""
        return self.end_round(port, FINAL_ROUND, out)

    def drain(self, out: Output) -> Iterator[None]:
        """Pass on what the operators before have drained, and whatever else is held."""
        ports = range(len(self._held))
        last = max((round for round in self._ended if round < FINAL_ROUND), default=FINAL_ROUND)
        batches = [
            (min(batch.tag.round, last), batch.tag.lane, port, batch)
            for port in ports
            for batch in (*self._held[port], *self._late[port])
        ]
        self._held, self._late = [[] for _ in ports], [[] for _ in ports]
        batches.sort(key=lambda each: each[:3])
        batches.reverse()
        while batches:
            round, _, _, batch = batches.pop()
            self._emit(batch, out, round)
            yield

    def close(self) -> None:
        """Hold nothing any more."""
        self._hold(-self._bytes)

    def snapshot(self) -> pa.Table | None:
        """The rows held, with their port; none at the end of a round."""
        tables = []
        for port, batches in enumerate(self._held):
            held = HeldRows(self._schema)
            for batch in batches:
                held.add(Batch(self._conformed(batch.records), batch.tag))
            rows = held.snapshot()
            if rows is not None:
                tables.append(rows.append_column("port", pa.repeat(port, rows.num_rows)))
        return pa.concat_tables(tables) if tables else None

    def restore(self, table: pa.Table) -> None:
        """Take over the rows held by earlier operators."""
        for port, batches in enumerate(self._held):
            held = HeldRows(self._schema)
            held.restore(table.filter(pc.equal(table.column("port"), port)))
            whole = held.peek()
            for round, lane, start, rows in whole.units():
                batches.append(Batch(whole.records.slice(start, rows), Tag(round, lane, 0)))
                self._hold(batches[-1].size)

    # ------------------------------------------------------------------ parts

    def _hold(self, more: int) -> None:
        self._bytes += more
        self._memory.hold(self._bytes)

    def _pass_on(self, out: Output) -> Iterator[None]:
        while True:
            heads = [(held[0].tag.round, held[0].tag.lane, port) for port, held in enumerate(self._held) if held]
            if not heads:
                return
            round, _, port = min(heads)
            waiting = [self._ended[other] < round for other, held in enumerate(self._held) if not held]
            if any(waiting):
                return
            self._emit(self._held[port].pop(0), out, round)
            yield

    def _emit(self, batch: Batch, out: Output, round: int) -> None:
        self._hold(-batch.size)
        self._emitter.emit(self._conformed(batch.records), round, batch.tag.lane, out)

    def _conformed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(records.columns, schema=self._schema)


def same_columns(kind: str, inputs: Sequence[pa.Schema], ports: int) -> pa.Schema:
    """The columns of the first stream; raises FlowError unless the others have the same names and types, in order."""
    check_inputs(kind, inputs, ports)
    wanted = [(field.name, field.type) for field in inputs[0]]
    for number, schema in enumerate(inputs):
        if [(field.name, field.type) for field in schema] != wanted:
            columns = f"({_columns(schema)}), the first has ({_columns(inputs[0])})"
            raise FlowError(
                f"{kind}: stream {number + 1} has columns {columns}",
                "project all streams to the same columns, in the same order and of the same types",
            )
    nullable = [any(schema.field(place).nullable for schema in inputs) for place in range(len(wanted))]
    return pa.schema([field.with_nullable(null) for field, null in zip(inputs[0], nullable, strict=True)])


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
