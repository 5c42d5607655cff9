"""Flow and Stream: the immutable graph that users build.

A :class:`Flow` collects nodes; a :class:`Stream` is a handle to one of them. Every method checks its arguments against
the schemas that are known, so that a missing column or a wrong type fails on the line that asks for it. Nothing runs
and nothing is read before the flow is handed to ``run`` or ``run_local``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from .errors import ConfigurationError, FlowError
from .explain import explain
from .graph import Gather, Graph, Node, NodeConfig
from .index import Index
from .operators import (
    Filter,
    HashJoin,
    LookupJoin,
    MapBatches,
    MergeJoin,
    Project,
    StreamAggregate,
    Union,
    Unnest,
)
from .operators.protocol import OperatorConfig, SinkConfig
from .pipelines import plan_job
from .relations import Asked, Relation, as_aggregates
from .sinks.collect import CollectSink
from .sinks.parquet import ParquetSink
from .sources.csv import CsvSource
from .sources.ipc import IpcSource
from .sources.memory import MemorySource
from .sources.parquet import ParquetSource
from .sources.protocol import SourceConfig


class Flow(Graph):
    """A dataflow under construction: sources, and the streams that are made of them. See :class:`Graph` for the name
    and the lanes."""

    # ------------------------------------------------------------------ sources

    def from_source(self, source: SourceConfig, *, name: str | None = None, rate: float = 0.0) -> Stream:
        """Read any :class:`~penstock.engine.sources.protocol.SourceConfig`. ``rate``: rows per second, 0 unlimited."""
        if rate < 0:
            raise FlowError(f"a rate of {rate} rows/s is impossible", "give 0 (no limit) or a positive number")
        return self._add(source, (), source.schema, name, rate)

    def from_spark(self, frame: object, *, name: str | None = None, rate: float = 0.0) -> Stream:
        """Read a Spark DataFrame: one Spark partition, one split, in the order of the partitions.

        The rows of a partition must always come in the same order (``sortWithinPartitions`` by a unique key).
        """
        found = [entry for entry in entry_points(group="penstock.frames") if entry.name == "spark"]
        if not found:
            raise ConfigurationError("Spark support is not installed", "pip install 'penstock[spark]'")
        open_frame = cast("Callable[[object], SourceConfig]", found[0].load())
        return self.from_source(open_frame(frame), name=name, rate=rate)

    def from_tables(self, tables: Sequence[pa.Table], *, name: str | None = None, rate: float = 0.0) -> Stream:
        """Read tables that are in memory: one table, one split."""
        return self.from_source(MemorySource(tuple(tables)), name=name, rate=rate)

    def read_parquet(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        name: str | None = None,
        rate: float = 0.0,
    ) -> Stream:
        """Read Parquet files or folders, in the order of their paths."""
        source = ParquetSource(path, columns=None if columns is None else tuple(columns), filter=filter)
        return self.from_source(source, name=name, rate=rate)

    def read_csv(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        types: Mapping[str, pa.DataType] | None = None,
        null_values: Sequence[str] | None = None,
        name: str | None = None,
        rate: float = 0.0,
    ) -> Stream:
        """Read CSV files with a header, one split a file. ``types``: of columns that should not be inferred;
        ``null_values``: texts that stand for a missing value, in text columns too."""
        return self.from_source(CsvSource(path, types=types, null_values=null_values), name=name, rate=rate)

    def read_ipc(
        self, path: str | Path | Sequence[str | Path], *, name: str | None = None, rate: float = 0.0
    ) -> Stream:
        """Read Arrow IPC files, one split a file."""
        return self.from_source(IpcSource(path), name=name, rate=rate)

    # ------------------------------------------------------------------ building

    def apply(self, config: OperatorConfig, inputs: Sequence[Stream], *, name: str | None = None) -> Stream:
        """Add an operator over ``inputs``: the seam for operators of your own."""
        for stream in inputs:
            if stream.flow is not self:
                raise FlowError(f"{config.kind} mixes streams of two flows", f"build all streams with {self.name!r}")
        id = self._id(config.kind, name)
        try:
            schema = config.output_schema([stream.schema for stream in inputs])
        except FlowError as error:
            raise error.at(id) from None
        return self._add(config, tuple(stream.id for stream in inputs), schema, name)

    def attach(self, config: SinkConfig, stream: Stream, *, name: str | None = None) -> None:
        """End a stream in a sink."""
        id = self._id(config.kind, name)
        try:
            config.output_schema([stream.schema])
        except FlowError as error:
            raise error.at(id) from None
        self._nodes[id] = Node(id, config, (stream.id,), None)

    def _add(
        self, config: NodeConfig, inputs: tuple[str, ...], schema: pa.Schema, name: str | None, rate: float = 0.0
    ) -> Stream:
        id = self._id(config.kind, name)
        self._nodes[id] = Node(id, config, inputs, schema, rate)
        return Stream(self, id)

    def explain(self, parallelism: int = 2) -> str:
        """What a run would do: stages, pipelines, edges, lanes, and each sink's guarantee."""
        return explain(plan_job(self, parallelism))


class Stream(Relation):
    """The rows that one node of a flow gives. Streams are values: a method gives a new one and changes nothing."""

    def __init__(self, flow: Flow, id: str) -> None:
        self.flow = flow
        self.id = id

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        schema = self.flow.node(self.id).schema
        assert schema is not None, "a stream is never a sink"
        return schema

    @property
    def is_gathered(self) -> bool:
        """Whether all rows pass through one subtask."""
        return self.flow.is_gathered(self.id)

    def _then(self, config: OperatorConfig, name: str | None) -> Self:
        return cast("Self", self.flow.apply(config, [self], name=name))

    def filter(self, predicate: pc.Expression | str, *, name: str | None = None) -> Stream:
        """The rows for which ``predicate``, an expression or SQL text, is true (neither false nor null)."""
        return self._then(Filter(predicate), name)

    def project(self, *columns: str, name: str | None = None, **derived: pc.Expression | str) -> Stream:
        """These columns, then the derived ones (expressions or SQL text), and nothing else."""
        kept = tuple((column, pc.field(column)) for column in columns)
        return self._then(Project((*kept, *derived.items())), name)

    def with_columns(self, *, name: str | None = None, **derived: pc.Expression | str) -> Stream:
        """All columns and the derived ones; a derived column replaces one of the same name."""
        kept = tuple((column, derived.pop(column, pc.field(column))) for column in self.schema.names)
        return self._then(Project((*kept, *derived.items())), name)

    def map_batches(self, function: Callable[..., Any] | type, schema: pa.Schema, *, name: str | None = None) -> Stream:
        """What ``function`` makes of each batch (a RecordBatch of the canonical chunks). A class is built once per
        driver and called with each batch; use it for models. ``schema``: of the result."""
        return self._then(MapBatches(function, schema), name)

    def unnest(
        self,
        *columns: str,
        ordinality: str | None = None,
        outer: bool = False,
        marker: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """One row for each element of the list columns; ``ordinality`` names a column for its position, from 1.

        Several lists are unnested side by side, the shorter ones padded with null. ``outer`` keeps rows without any
        element as one row of nulls; so does ``marker``, a column that tells elements from such rows.
        """
        return self._then(Unnest(columns, ordinality=ordinality, outer=outer, marker=marker), name)

    def merge_join(
        self,
        other: Stream,
        on: Sequence[str],
        *,
        how: str = "inner",
        right_on: Sequence[str] | None = None,
        filter: pc.Expression | str | None = None,
        suffix: str = "_right",
        name: str | None = None,
    ) -> Stream:
        """Join with ``other`` by merging. Both sides consist of the same number of splits, hold equal keys in splits
        of equal position, and are sorted by the keys within each split.

        ``how``: inner, left, right, full, left semi, right semi, anti. ``right_on``: the keys of ``other``, if they
        have other names. ``filter``: what rows with equal keys must fulfil besides, over the joined row.
        """
        keys = None if right_on is None else tuple(right_on)
        join = MergeJoin(tuple(on), how=how, suffix=suffix, right_on=keys, filter=filter)
        return self.flow.apply(join, [self, other], name=name)

    def hash_join(self, other: Stream, on: Sequence[str], *, name: str | None = None, **options: Any) -> Stream:
        """Join with ``other``, both in any order: gathered into one subtask, where ``other`` is held in memory.

        Options as for ``merge_join``; ``right_on`` is a tuple.
        """
        return self.flow.apply(HashJoin(tuple(on), **options), [self._gathered(), other._gathered()], name=name)

    def lookup_join(
        self, index: Index, on: str | Sequence[str], *, how: str = "inner", name: str | None = None, **options: Any
    ) -> Stream:
        """Join with an index (``ps.index.memory(table, key=…)``), in the order of this stream; ``how``: inner or left.

        Options as for ``LookupJoin``: suffix, with_key, conditions (``ps.index.Between``, ``InList``), filter, marker.
        """
        keys = (on,) if isinstance(on, str) else tuple(on)
        return self._then(LookupJoin(index, keys, how=how, **options), name)

    def stream_aggregate(self, by: Sequence[str], *, name: str | None = None, **aggregates: Asked) -> Stream:
        """Aggregate rows whose equal keys stand next to each other. ``total=("delay", "sum")``, ``n="count"``.

        Functions as for ``aggregate``. A group may span batches and splits of one lane.
        """
        return self._then(StreamAggregate(tuple(by), as_aggregates(aggregates)), name)

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """The rows of this stream and of others of the same schema: in each round and lane those of this one first."""
        return self.flow.apply(Union(1 + len(others)), [self, *others], name=name)

    def gather(self, *, name: str | None = None) -> Self:
        """All rows in one subtask, in the order of their tags: the same sequence at any parallelism."""
        return cast("Self", self.flow._add(Gather(), (self.id,), self.schema, name))

    def write_parquet(
        self, path: str | Path, *, mode: Literal["new", "append"] = "new", name: str | None = None
    ) -> None:
        """Write a folder of Parquet files, exactly once: files appear when the checkpoint that covers them commits."""
        self.flow.attach(ParquetSink(str(path), mode=mode), self, name=name)

    def collect(self, name: str) -> None:
        """Keep the rows in memory: ``ps.run_local(flow).result(name)``."""
        self.flow.attach(CollectSink(name), self, name=name)
