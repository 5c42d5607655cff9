"""Operators as users write them: with the traits that they need to be planned like built-in ones, and one without."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from penstock.engine.core.elements import FINAL_ROUND
from penstock.engine.core.operator import Emitter, OperatorContext, Output


@dataclass(frozen=True)
class Above:
    """The rows whose ``column`` is above ``least``: what a filter does."""

    column: str
    least: int
    kind: str = "above"

    @property
    def traits(self) -> ps.Traits:
        return ps.Traits.row_wise(lambda inputs: [ps.Columns.passed_on(inputs[0], [self.column])])

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningAbove:
        return RunningAbove(self)

    def describe(self) -> str:
        return f"{self.column} > {self.least}"


class RunningAbove(ps.Stateless):
    def __init__(self, config: Above) -> None:
        self._config = config

    def process(self, port: int, batch: ps.Batch, out: Output) -> None:
        found = batch.records.filter(pc.greater(batch.records.column(self._config.column), self._config.least))
        if found.num_rows:
            out.emit(ps.Batch(found, batch.tag))


@dataclass(frozen=True)
class AboveUntold(Above):
    """The same, and says nothing of itself."""

    traits: ClassVar[ps.Traits] = ps.Traits()  # type: ignore[misc]


@dataclass(frozen=True)
class AboveInParts(Above):
    """The same, two rows at once."""

    @property
    def traits(self) -> ps.Traits:
        return replace(super().traits, rows_at_once=2)


@dataclass(frozen=True)
class Calls:
    """Each row, with the number of the call that it came in, how many rows that had, and the number of its tag: what
    no operator should tell. Up to ``rows`` at once."""

    rows: int | None = 2
    kind: str = "calls"

    @property
    def traits(self) -> ps.Traits:
        return ps.Traits(rows_at_once=self.rows)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return pa.schema([*inputs[0], *((name, pa.int64()) for name in ("call", "rows", "number"))])

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningCalls:
        return RunningCalls(context.lanes.start, self.output_schema(inputs), restored)

    def describe(self) -> str:
        return "tell calls"


class RunningCalls(ps.Stateless):
    def __init__(self, lane: int, schema: pa.Schema, restored: pa.Table | None) -> None:
        self._lane, self._schema = lane, schema
        self._calls = 0 if restored is None else restored.column("calls")[0].as_py()

    def process(self, port: int, batch: ps.Batch, out: Output) -> None:
        self._calls += 1
        rows = batch.records.num_rows
        told = [pa.array([value] * rows, pa.int64()) for value in (self._calls, rows, batch.tag.sequence)]
        out.emit(ps.Batch(pa.RecordBatch.from_arrays([*batch.records.columns, *told], schema=self._schema), batch.tag))

    def snapshot(self) -> pa.Table:
        return pa.table({"__lane": pa.array([self._lane], pa.int32()), "calls": [self._calls]})


@dataclass(frozen=True)
class Doubled:
    """These columns, doubled, beside ``key``, which gets another name: what a projection does."""

    key: str
    columns: tuple[str, ...]
    kind: str = "doubled"

    @property
    def traits(self) -> ps.Traits:
        uses = {f"{name}_2": [name] for name in self.columns}
        columns = [ps.Columns([self.key], {self.key: "key"}, uses)]
        return ps.Traits.row_wise(lambda _: columns, self._narrowed, ps.Lineage(of_batch=True))

    def _narrowed(self, names: Collection[str]) -> Doubled:
        return Doubled(self.key, tuple(name for name in self.columns if f"{name}_2" in names))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        fields = [pa.field(f"{name}_2", inputs[0].field(name).type) for name in self.columns]
        return pa.schema([inputs[0].field(self.key).with_name("key"), *fields])

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningDoubled:
        return RunningDoubled(self, self.output_schema(inputs))

    def describe(self) -> str:
        return f"{', '.join(self.columns)} by {self.key}"


class RunningDoubled(ps.Stateless):
    def __init__(self, config: Doubled, schema: pa.Schema) -> None:
        self._config, self._schema = config, schema

    def process(self, port: int, batch: ps.Batch, out: Output) -> None:
        doubled = [pc.multiply(batch.records.column(name), 2) for name in self._config.columns]
        arrays = [batch.records.column(self._config.key), *doubled]
        out.emit(ps.Batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema), batch.tag))


@dataclass(frozen=True)
class Counted:
    """How many rows each ``key`` has: keyed state, which is emitted at the end."""

    key: str
    kind: str = "counted"

    @property
    def traits(self) -> ps.Traits:
        return ps.Traits(
            columns=lambda _: [ps.Columns([self.key], {self.key: self.key})],
            emission=ps.Emission.AT_END,
            deterministic=True,
            grouped_by=(self.key,),
            blocking=True,
        )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return pa.schema([inputs[0].field(self.key), ("rows", pa.int64())])

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningCounted:
        return RunningCounted(self.key, context, self.output_schema(inputs), restored)

    def describe(self) -> str:
        return f"by {self.key}"


class RunningCounted(ps.Stateless):
    def __init__(self, key: str, context: OperatorContext, schema: pa.Schema, restored: pa.Table | None) -> None:
        self._key, self._lane, self._schema = key, context.lanes.start, schema
        rows = [] if restored is None else restored.to_pylist()
        self._counts: dict[object, int] = {}
        for row in rows:
            self._counts[row["key"]] = self._counts.get(row["key"], 0) + row["rows"]
        self._emitter, self._round = Emitter(), max(context.ended_round, 0)

    def process(self, port: int, batch: ps.Batch, out: Output) -> None:
        for key in batch.records.column(self._key).to_pylist():
            self._counts[key] = self._counts.get(key, 0) + 1

    def end_round(self, port: int, round: int, out: Output) -> None:
        self._round = round if round != FINAL_ROUND else self._round

    def finish(self, out: Output) -> None:
        self._give(FINAL_ROUND, out)

    def drain(self, out: Output) -> None:
        self._give(self._round, out)

    def _give(self, round: int, out: Output) -> None:
        arrays = [pa.array(list(self._counts), self._schema.types[0]), pa.array(list(self._counts.values()))]
        self._emitter.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema), round, self._lane, out)
        self._counts = {}

    def snapshot(self) -> pa.Table | None:
        if not self._counts:
            return None
        keys, counts = list(self._counts), list(self._counts.values())
        lanes = pa.array([self._lane] * len(keys), pa.int32())
        return pa.table({"__lane": lanes, "key": pa.array(keys, self._schema.types[0]), "rows": counts})
