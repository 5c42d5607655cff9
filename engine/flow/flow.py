"""Flow and Stream: the immutable graph that users build.

A :class:`Flow` collects nodes; a :class:`Stream` is a handle to one of them. Every method checks its arguments against
the schemas that are known, so that a missing column or a wrong type fails on the line that asks for it. Nothing runs
and nothing is read before the flow is handed to ``run`` or ``run_local``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.plain_types import check_plain, plain_schema
from ..core.arguments import Parallelism, Rate, checked
from ..core.errors import FlowError
from ..core.operator import OperatorConfig, SinkConfig
from ..core.source import SourceConfig
from ..feed.sink import FeedSink
from ..operators import Filter, MapBatches, Mix, Project, Union, Unnest
from ..operators.sequence.mix import AtEnd
from ..plan.partitioning import Broadcast, Exchanging, Gather, HashPartitioning, RangePartitioning, RoundRobin
from ..plan.resources import resources_of
from ..planner.explain import RunsOn, explain
from ..planner.graph import Graph, Node, NodeConfig
from ..planner.pipelines import plan_job
from ..planner.placement import Placement
from ..sources.csv import CsvSource
from ..sources.fed import FedSource
from ..sources.ipc import IpcSource
from ..sources.memory import MemorySource
from ..sources.parquet import ParquetSource
from ..state.memory import DEFAULT_BUDGET
from .ends import Ends
from .handoff import open_outer
from .joins import Joins
from .relations import FLUSH, AtBarrier


class Flow(Graph):
    """A dataflow under construction: sources, and the streams that are made of them. See :class:`Graph` for the name
    and the lanes."""

    # ------------------------------------------------------------------ sources

    @checked()
    def from_source(self, source: SourceConfig, *, name: str | None = None, rate: Rate = 0.0) -> Stream:
        """Read any :class:`~penstock.engine.core.source.SourceConfig`. ``rate``: rows per second,
        0 unlimited; behind each batch the source waits as long as its rows should take. Views and run-end encoded
        columns are read as plain ones: ``string_view`` as ``string``, ``list_view`` as ``list``."""
        try:
            schema = plain_schema(source.schema)
        except FlowError as error:
            raise error.at(self._id(source.kind, name)) from None
        return self._add(source, (), schema, name, rate)

    @checked()
    def from_spark(
        self,
        frame: object,
        *,
        handoff: Literal["auto", "stage", "lease"] = "auto",
        name: str | None = None,
        rate: Rate = 0.0,
    ) -> Stream:
        """Read a Spark DataFrame: one Spark partition, one split, in the order of the partitions.

        The rows of a partition must always come in the same order (``sortWithinPartitions`` by a unique key).
        ``handoff``: "stage" lets Spark write the partitions into the checkpoint folder when a job starts; they outlive
        Spark and this script. "lease" pulls them into Ray's object store while the job runs, from a session that runs
        on Ray; ``job.spark_released`` says when Spark may stop. "auto" stages where something has to be kept.
        """
        return self.from_source(open_outer("spark", frame, handoff), name=name, rate=rate)

    @checked()
    def from_ray_dataset(self, dataset: object, *, name: str | None = None, rate: Rate = 0.0) -> Stream:
        """Read a Ray Dataset: one block, one split, in the order of the blocks. It is computed when a job starts; where
        something has to outlive this script, its blocks are written into the checkpoint folder then."""
        return self.from_source(open_outer("ray", dataset), name=name, rate=rate)

    @checked()
    def from_tables(
        self, tables: pa.Table | Sequence[pa.Table], *, name: str | None = None, rate: Rate = 0.0
    ) -> Stream:
        """Read tables that are in memory: one table, one split."""
        return self.from_source(
            MemorySource((tables,) if isinstance(tables, pa.Table) else tuple(tables)), name=name, rate=rate
        )

    @checked()
    def from_split_sets(self, schema: pa.Schema, *, name: str, rate: Rate = 0.0) -> Stream:
        """Read what the caller feeds: ``job.add_splits({name: table, …})``, or ``task.add_split`` of a ``PlanTask``.
        In a job either all sources are fed, or none."""
        return self.from_source(FedSource(schema, name), name=name, rate=rate)

    @checked()
    def read_parquet(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        name: str | None = None,
        rate: Rate = 0.0,
    ) -> Stream:
        """Read Parquet files or folders, in the order of their paths."""
        source = ParquetSource(path, columns=None if columns is None else tuple(columns), filter=filter)
        return self.from_source(source, name=name, rate=rate)

    @checked()
    def read_csv(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        types: Mapping[str, pa.DataType] | None = None,
        null_values: Sequence[str] | None = None,
        name: str | None = None,
        rate: Rate = 0.0,
    ) -> Stream:
        """Read CSV files with a header, one split a file. ``types``: of columns that should not be inferred;
        ``null_values``: texts that stand for a missing value, in text columns too."""
        return self.from_source(CsvSource(path, types=types, null_values=null_values), name=name, rate=rate)

    @checked()
    def read_ipc(self, path: str | Path | Sequence[str | Path], *, name: str | None = None, rate: Rate = 0.0) -> Stream:
        """Read Arrow IPC files, one split a file."""
        return self.from_source(IpcSource(path), name=name, rate=rate)

    @checked()
    def mix(
        self,
        weights: Mapping[Stream, float],
        *,
        seed: int = 0,
        epoch: int = 0,
        at_end: AtEnd = "stop",
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Stream:
        """The rows of several streams of one schema, each in its order, interleaved at random in the ratio of their
        ``weights``. Whose turn it is depends on ``seed``, ``epoch`` and the position alone.

        ``at_end``: when it is the turn of a stream that has ended, "stop" ends the mixture (the others' rows that are
        left are not read), "go on" goes on with the others. Sources are read in the ratio of the weights; what comes
        early nevertheless, because streams are cut or filtered differently, waits, on disk if it is much.
        """
        config = Mix(tuple(weights.values()), seed, epoch, at_end)
        return self.apply(config, [stream._gathered() for stream in weights], name=name, at_barrier=at_barrier)

    # ------------------------------------------------------------------ building

    @checked()
    def apply(
        self,
        config: OperatorConfig,
        inputs: Sequence[Stream],
        *,
        name: str | None = None,
        at_barrier: AtBarrier = FLUSH,
    ) -> Stream:
        """Add an operator over ``inputs``: the seam for operators of your own. ``at_barrier``: what it does at a task
        barrier: "flush" emits what it holds and forgets it, "hold" goes on with it."""
        if at_barrier not in ("flush", "hold"):
            raise FlowError(f"{config.kind}: at_barrier is {at_barrier!r}", "choose 'flush' or 'hold'")
        if at_barrier == "hold" and getattr(config, "always_drains", False):
            raise FlowError(f"{config.kind}: it has nothing of its own to hold", "leave out at_barrier")
        for stream in inputs:
            if stream.flow is not self:
                raise FlowError(f"{config.kind} mixes streams of two flows", f"build all streams with {self.name!r}")
        id = self._id(config.kind, name)
        try:
            schema = config.output_schema([stream.schema for stream in inputs])
            check_plain(config.kind, schema)
        except FlowError as error:
            raise error.at(id) from None
        return self._add(config, tuple(stream.id for stream in inputs), schema, name, hold=at_barrier == "hold")

    @checked()
    def attach(self, config: SinkConfig, stream: Stream, *, name: str | None = None) -> None:
        """End a stream in a sink."""
        id = self._id(config.kind, name)
        try:
            config.output_schema([stream.schema])
            self._place(Node(id, config, (stream.id,), None))
        except FlowError as error:
            raise error.at(id) from None

    def _add(
        self,
        config: NodeConfig,
        inputs: tuple[str, ...],
        schema: pa.Schema,
        name: str | None,
        rate: Rate = 0.0,
        hold: bool = False,
    ) -> Stream:
        id = self._id(config.kind, name)
        if not len(schema):
            message = "its rows would have no columns, and neither files nor messages keep the number of such rows"
            raise FlowError(message, "keep one column, or count: aggregate([], n='count')", id)
        try:
            self._place(Node(id, config, inputs, schema, rate, hold))
        except FlowError as error:
            raise error.at(id) from None
        return Stream(self, id)

    def _exchange(self, config: Exchanging, stream: Stream, name: str | None) -> Stream:
        if not isinstance(config, Gather | Broadcast):
            try:
                config.check(stream.schema)
            except FlowError as error:
                raise error.at(self._id(config.kind, name)) from None
        return self._add(config, (stream.id,), stream.schema, name)

    @checked()
    def explain(
        self, parallelism: Parallelism = 2, *, memory_budget: int | None = DEFAULT_BUDGET, runtime: RunsOn | None = None
    ) -> str:
        """What a run would do: stages, pipelines, edges, lanes, each sink's guarantee, and the most memory that it may
        take. ``memory_budget``, ``runtime``: as the run would get them."""
        return explain(plan_job(self, parallelism, memory_budget=memory_budget), runtime)


class Stream(Joins, Ends):
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
        return self.placement.place == "one"

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        """The columns in which rows that are equal are known to be in one part; none if nothing is known."""
        return () if self.placement.partitioning is None else self.placement.partitioning.keys

    @property
    def placement(self) -> Placement:
        """Where the rows are."""
        return self.flow.placement(self.id)

    def _then(self, config: OperatorConfig, name: str | None = None, at_barrier: AtBarrier = FLUSH) -> Self:
        return cast("Self", self.flow.apply(config, [self], name=name, at_barrier=at_barrier))

    def _with(self, other: Self, config: OperatorConfig, name: str | None, at_barrier: AtBarrier = FLUSH) -> Self:
        return cast("Self", self.flow.apply(config, [self, other], name=name, at_barrier=at_barrier))

    @checked()
    def resources(
        self, *, num_cpus: float = 0.0, num_gpus: float = 0.0, resources: Mapping[str, float] | None = None
    ) -> Self:
        """Let each subtask of the stage that makes this stream have these resources of the cluster (Ray's meaning of
        them): ``stream.map_batches(Model, schema).resources(num_gpus=1)``. By default a stage asks for nothing."""
        self.flow.ask(self.id, resources_of(num_cpus, num_gpus, resources))
        return self

    @checked()
    def filter(self, predicate: pc.Expression | str, *, name: str | None = None) -> Stream:
        """The rows for which ``predicate``, an expression or SQL text, is true (neither false nor null)."""
        return self._then(Filter(predicate), name)

    @checked()
    def project(self, *columns: str, name: str | None = None, **derived: pc.Expression | str) -> Stream:
        """These columns, then the derived ones (expressions or SQL text), and nothing else."""
        kept = tuple((column, pc.field(column)) for column in columns)
        return self._then(Project((*kept, *derived.items())), name)

    @checked()
    def with_columns(self, *, name: str | None = None, **derived: pc.Expression | str) -> Stream:
        """All columns and the derived ones; a derived column replaces one of the same name."""
        kept = tuple((column, derived.pop(column, pc.field(column))) for column in self.schema.names)
        return self._then(Project((*kept, *derived.items())), name)

    @checked()
    def map_batches(self, function: Callable[..., Any] | type, schema: pa.Schema, *, name: str | None = None) -> Stream:
        """What ``function`` makes of each batch (a RecordBatch of the canonical chunks). A class is built once per
        driver and called with each batch; use it for models. ``schema``: of the result."""
        return self._then(MapBatches(function, schema), name)

    @checked()
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

    @checked()
    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """The rows of this stream and of others of the same schema: in each round and lane those of this one first."""
        return self.flow.apply(Union(1 + len(others)), [self, *others], name=name)

    # ------------------------------------------------------------------ exchanges

    @checked()
    def gather(self, *, name: str | None = None) -> Self:
        """All rows in one subtask, in the order of their tags: the same sequence at any parallelism."""
        return cast("Self", self.flow._exchange(Gather(), self, name))

    @checked()
    def partition_by(self, *keys: str | Sequence[str], name: str | None = None) -> Self:
        """Rows with equal ``keys`` in one part of the flow's ``parts``: what groups, joins or sorts them by these keys
        then runs in every subtask. Null is a key. Each round comes part by part, at any parallelism in the same order.
        """
        names = tuple(each for key in keys for each in ((key,) if isinstance(key, str) else key))
        return cast("Self", self.flow._exchange(HashPartitioning(names, self.flow.parts), self, name))

    @checked()
    def partition_by_range(self, column: str, bounds: Sequence[Any], *, name: str | None = None) -> Self:
        """One part more than there are ``bounds``, which ascend: the rows below the first one, from there to below the
        second one, …; nulls are in the last part."""
        return cast("Self", self.flow._exchange(RangePartitioning(column, tuple(bounds)), self, name))

    @checked()
    def rebalance(self, *, name: str | None = None) -> Self:
        """Rows in turn to all parts, whatever they hold: for lanes that have too much to do."""
        return cast("Self", self.flow._exchange(RoundRobin(self.flow.parts), self, name))

    @checked()
    def broadcast(self, *, name: str | None = None) -> Self:
        """All rows in every subtask: for a small stream that is to be the right side of a hash join."""
        return cast("Self", self.flow._exchange(Broadcast(), self, name))

    def _end(self, sink: SinkConfig, name: str | None) -> None:
        if isinstance(sink, FeedSink) and self.flow.order != "deterministic":
            raise FlowError("a feed of a flow without an order", 'build it with order="deterministic"', sink.name)
        self.flow.attach(sink, self, name=name)
