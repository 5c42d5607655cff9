"""Runs one operator the way drivers do: rounds, lanes, ports, any batch size, any parallelism, restored on the way.

Rules:

1. Input is given per port and unit (round, lane) as tables; the harness cuts them into batches. The order in which the
   ports speak is drawn from a seed, within what ``accepts`` allows; both ports refused is a failure.
2. Every promise of ``engine.core.operator`` that can be seen from outside is checked: no empty batch, tags
   strictly increasing, the promised schema, nothing emitted by ``close``.
3. With ``restore`` every round ends with a snapshot, from which the next round's operators are built, at the next of
   the ``parallelisms``. State passes through Arrow IPC, as in a checkpoint.
4. An operator that takes compact columns gets some of them so, drawn from the seed; what it emits is made plain.
5. With ``memory`` the operators have accounts there; each one holds nothing and has no file once it is closed.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.engine.arrow.compact import fits, plain_records
from penstock.engine.core.elements import FINAL_ROUND, Batch, EndOfRound, Tag
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.core.operator import (
    LANE,
    OUTPUT_BYTES,
    OUTPUT_ROWS,
    AsynchronousOperator,
    OperatorConfig,
    OperatorContext,
    RunningOperator,
    exhaust,
)
from penstock.engine.core.traits import traits_of
from penstock.engine.plan.rounds import lanes_of
from penstock.engine.state.memory import TaskMemory
from support.compact_columns import compacted

Units = Mapping[tuple[int, int], pa.Table]

LANES = 4
SIZES = (1, 3, 16, 1024)


@dataclass
class Collected:
    """An output that checks what comes."""

    schema: pa.Schema
    batches: list[Batch] = field(default_factory=list)
    closed: bool = False

    def emit(self, batch: Batch) -> None:
        assert not self.closed, "a closed operator emitted a batch"
        assert batch.records.num_rows, "an empty batch was emitted"
        records = batch.records
        if not records.schema.equals(self.schema):
            assert fits(records.schema, self.schema), f"{records.schema} instead of {self.schema}"
            records = plain_records(records, self.schema)
            batch = Batch(records, batch.tag)
        assert not self.batches or self.batches[-1].tag < batch.tag, f"{batch.tag} after {self.batches[-1].tag}"
        records.validate(full=True)
        self.batches.append(batch)


@dataclass
class Outcome:
    """What came out, over all subtasks, in the order of the tags."""

    schema: pa.Schema
    batches: list[Batch]
    #: number of snapshots that were not None
    states: int = 0

    @property
    def table(self) -> pa.Table:
        return pa.Table.from_batches([batch.records for batch in self.batches], self.schema)

    @property
    def units(self) -> dict[tuple[int, int], list[tuple[Any, ...]]]:
        """The rows of each (round, lane): what may not depend on batch sizes."""
        found: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
        for batch in self.batches:
            found.setdefault((batch.tag.round, batch.tag.lane), []).extend(rows_of(batch.records))
        return found


def rows_of(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Rows as tuples that compare: floats by their text, so that NaN equals NaN and -0.0 differs from 0.0."""
    columns = [[repr(v) if isinstance(v, float) else v for v in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True))


def context(subtask: int = 0, parallelism: int = 1, lanes: int = LANES) -> OperatorContext:
    return OperatorContext(
        "operator-1", TaskId("stage", subtask), Attempt(1, 1), parallelism, lanes_of(subtask, parallelism, lanes)
    )


def run(
    config: OperatorConfig,
    *ports: Units,
    schemas: Sequence[pa.Schema] | None = None,
    size: int = 16,
    seed: int = 0,
    restore: bool = False,
    parallelisms: Sequence[int] = (1,),
    lanes: int = LANES,
    output_rows: int = OUTPUT_ROWS,
    output_bytes: int = OUTPUT_BYTES,
    memory: TaskMemory | None = None,
    read_first: int | None = None,
    prompt: bool = False,
) -> Outcome:
    """Run ``config`` over ``ports``; each maps (round, lane) to rows."""
    config = pickle.loads(pickle.dumps(config))
    inputs = [next(iter(port.values())).schema for port in ports] if schemas is None else list(schemas)
    schema = config.output_schema(inputs)
    rounds = 1 + max((round for port in ports for round, _ in port), default=0)
    chooser = random.Random(seed)
    forms = random.Random(seed) if traits_of(config).takes_compact else None
    outcome = Outcome(schema, [])
    parts = [range(rounds)] if not restore else [range(round, round + 1) for round in range(rounds)]
    states: list[pa.Table] = []
    for number, part in enumerate(parts):
        parallelism = parallelisms[number % len(parallelisms)]
        last, old, states = part[-1] == rounds - 1, states, []
        for subtask in range(parallelism):
            where = context(subtask, parallelism, lanes)
            where = replace(where, output_rows=output_rows, output_bytes=output_bytes, read_first=read_first)
            where = where if memory is None else replace(where, memory=memory.account("operator-1"))
            running = config.build(where, inputs, _handed_over(old, where.lanes))
            output = Collected(schema)
            streams = [list(_events(port, where.lanes, part, size, forms)) for port in ports]
            _feed(running, streams, output, chooser, ends=prompt)
            if last:
                _finish(running, 0 if prompt else len(ports), output)
            state = running.snapshot()
            if state is not None:
                states.append(through_storage(state))
            output.closed = True
            running.close()
            if last:
                _end_again(config.build(where, inputs, state), len(ports), Collected(schema))
            assert memory is None or (memory.statistics().held, memory.statistics().files) == (0, 0)
            outcome.batches += output.batches
    outcome.states = len(states)
    outcome.batches.sort(key=lambda batch: batch.tag)
    return outcome


def _end_again(restored: RunningOperator, ports: int, output: Collected) -> None:
    """What is restored from a checkpoint behind the end of its data comes to that end again, with nothing to say."""
    _finish(restored, ports, output)
    restored.close()
    assert not output.batches, "an operator gives rows again that it gave before the checkpoint"


def _events(
    port: Units, lanes: range, rounds: range, size: int, forms: random.Random | None
) -> Iterator[Batch | EndOfRound]:
    for round in rounds:
        for lane in lanes:
            rows = port.get((round, lane))
            if rows is None:
                continue
            whole = rows.combine_chunks()
            for number, start in enumerate(range(0, rows.num_rows, size)):
                (records,) = whole.slice(start, size).to_batches()
                yield Batch(records if forms is None else compacted(records, forms), Tag(round, lane, number))
        yield EndOfRound(round)


def _feed(
    running: RunningOperator,
    streams: list[list[Batch | EndOfRound]],
    output: Collected,
    chooser: random.Random,
    *,
    ends: bool = False,
) -> None:
    positions, ended = [0] * len(streams), [False] * len(streams)
    while True:
        left = [port for port, stream in enumerate(streams) if positions[port] < len(stream)]
        for port in range(len(streams)):
            if ends and port not in left and not ended[port]:
                ended[port] = True
                _end(running, port, output)
        if not left:
            return
        welcome = [
            port for port in left if not isinstance(streams[port][positions[port]], Batch) or running.accepts(port)
        ]
        assert welcome, f"ports {left} have input, and none is accepted"
        port = chooser.choice(welcome)
        event = streams[port][positions[port]]
        positions[port] += 1
        if isinstance(event, Batch):
            exhaust(running.process(port, event, output))
            while isinstance(running, AsynchronousOperator) and running.poll(output):
                pass
        else:
            exhaust(running.end_round(port, event.round, output))


def _finish(running: RunningOperator, ports: int, output: Collected) -> None:
    for port in range(ports):
        _end(running, port, output)
    exhaust(running.finish(output))


def _end(running: RunningOperator, port: int, output: Collected) -> None:
    exhaust(running.end_round(port, FINAL_ROUND, output))
    exhaust(running.end_port(port, output))


def _handed_over(states: Sequence[pa.Table], lanes: range) -> pa.Table | None:
    """The rows of earlier states that belong to ``lanes``."""
    if not states:
        return None
    whole = pa.concat_tables(states)
    keep = pa.array([lane in lanes for lane in whole.column(LANE).to_pylist()], pa.bool_())
    mine = whole.filter(keep)
    return mine if mine.num_rows else None


def through_storage(state: pa.Table) -> pa.Table:
    """A state as a checkpoint gives it back."""
    assert state.schema.field(LANE).type == pa.int32()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, state.schema) as writer:
        writer.write_table(state)
    return pa.ipc.open_file(sink.getvalue()).read_all()
