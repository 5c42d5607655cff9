"""Flow and Stream: the immutable graph that users build.

A :class:`Flow` collects nodes; a :class:`Stream` is a handle to one of them. Every method checks its arguments against
the schemas that are known, so that a missing column or a wrong type fails on the line that asks for it. Nothing runs
before the flow is handed to ``run`` or ``run_local``, but what one looks at, and functions that do not say what they
give.

Rules for the methods that group, order, join and cut a stream; each becomes the operators that give one answer in all:

1. What must see all rows happens in one subtask: rows are gathered there, in the order of their tags, unless they are
   already. What must see all rows of a key happens in every subtask, if the stream is partitioned by (some of) these
   columns, or with ``exchange="key"``. So the result does not depend on parallelism.
2. What can be done before an exchange does not wait for it: partial aggregates, the first rows of every lane, the
   distinct rows of every lane. It is done per lane, so that how lanes are spread over subtasks cannot be seen in the
   result.
3. A hash join needs rows with equal keys in one subtask. They are already if both streams are gathered, or divided into
   parts alike by (some of) the keys; or if the right one is broadcast. Otherwise both are gathered, or, with
   ``exchange="key"``, partitioned by the keys.
4. Training sequences are made of the stream as it is consumed: gathered, in the order of its tags. So they are a
   function of positions in that stream, whatever the parallelism.
5. ``name`` names the operator that gives the rows. What it emits under one lane of its subtask is put back under the
   lanes of its parts (``Regroup``).
6. ``at_barrier``: at a task barrier an operator emits what it holds and forgets it ("flush"), or goes on with it
   ("hold"). It holds for all operators that a method becomes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.plain_types import check_plain, plain_schema
from ..core.arguments import Parallelism, Rate, Within, checked
from ..core.errors import FlowError, PenstockError
from ..core.operator import OperatorConfig, SinkConfig
from ..core.schemas import check_distinct
from ..core.source import SourceConfig
from ..core.traits import Emission, traits_of
from ..core.user_code import is_users_object, raised
from ..expressions.expressions import Expressible, written
from ..expressions.fluent import Aggregated, Expression
from ..feed.sink import CutFeedSink, FeedSink
from ..kernels.sorting import SortBy, as_sort_keys, sort_keys
from ..operators import (
    Aggregate,
    AggregateFunction,
    Distinct,
    HashAggregate,
    HashJoin,
    Limit,
    LookupJoin,
    MarkDistinct,
    MergeJoin,
    Mix,
    Pack,
    PackWhole,
    Sample,
    Schedule,
    Shuffle,
    Sort,
    SortKey,
    StreamAggregate,
    TopN,
    Union,
    Unnest,
    Window,
    WindowFunction,
)
from ..operators.join.join_shape import RIGHT_STAYS, JoinType
from ..operators.join.lookup_join import PREFETCH
from ..operators.join.replicated_join import MarkPart, ReplicatedJoin
from ..operators.rowwise.bad_rows import BadRows
from ..operators.rowwise.user_calls import BatchFormat, Called, arguments_of
from ..operators.sequence.limit import Per
from ..operators.sequence.mix import AtEnd
from ..operators.sequence.pack import Remainder
from ..operators.sequence.regroup import Regroup
from ..plan.partitioning import Broadcast, Exchanging, Forward, Gather, HashPartitioning, RangePartitioning, RoundRobin
from ..plan.resources import Resources, resources_of
from ..planner.explain import RunsOn, explain
from ..planner.graph import Graph, Node, NodeConfig
from ..planner.pipelines import plan_job
from ..planner.placement import Placement
from ..sinks.collect import CollectSink
from ..sinks.file_formats import TextCompression
from ..sinks.output_folder import WriteMode
from ..sinks.parquet import ParquetSink
from ..sinks.texts import CsvSink, JsonSink
from ..sources.csv import CsvSource
from ..sources.fed import FedSource
from ..sources.ipc import IpcSource
from ..sources.memory import MemorySource
from ..sources.parquet import ParquetSource
from ..sources.records import BinarySource, JsonSource, TextSource
from ..state.memory import DEFAULT_BUDGET
from .batch_rules import BatchRules, Buckets
from .calling import GROUPS, Calling, Calls, OnError, told_schema
from .handoff import open_outer
from .index import Between, Index, InList
from .looking import Looking
from .pictures import picture, titled
from .shaping import FLUSH, AtBarrier, Shaping, named
from .shuffling import AskedShuffle, ShuffleOptions, operator_of

Asked: TypeAlias = tuple[str, str | AggregateFunction] | str | Aggregate
"""An aggregate as a flow asks for it: (column, function), a function of the rows, or all of it. A function is a
name, or one of the user's own."""

_UNDER_ONE_LANE = (Emission.AT_END, Emission.AFTER_BUILD, Emission.UNKNOWN)
"""Operators that emit like this put rows of many parts under one lane of their subtask."""

Through: TypeAlias = Literal["gather", "key"]
"""The exchange that brings rows of one key together, where they are not yet."""
GATHER: Literal["gather"] = "gather"


def check_exchange(kind: str, through: str, keys: Sequence[str] = ("a key",)) -> None:
    """``through`` is an exchange, and possible."""
    if through not in ("gather", "key"):
        raise FlowError(f"{kind}: exchange is {through!r}", "choose 'gather' or 'key'")
    if through == "key" and not keys:
        raise FlowError(f"{kind}: there is no key to partition by", "leave out exchange='key', or name a key")


def as_aggregates(asked: dict[str, Asked]) -> tuple[Aggregate, ...]:
    """What the keyword arguments of an aggregation ask for; the keyword is the output column."""
    return tuple(_as_aggregate(label, each) for label, each in asked.items())


def _as_aggregate(label: str, asked: Asked) -> Aggregate:
    if isinstance(asked, Aggregate):
        return replace(asked, name=label)
    return Aggregate(label, None, asked) if isinstance(asked, str) else Aggregate(label, asked[0], asked[1])


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


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
        hive_partitioning: bool = True,
        hive_schema: Mapping[str, pa.DataType] | None = None,
        name: str | None = None,
        rate: Rate = 0.0,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Read Parquet files, folders or globs (``logs/*/2024-*.parquet``, ``**``), in the order of their paths.

        Folders named ``key=value`` are columns behind those of the files; filters on them pass over files.
        ``hive_schema``: their types, where whole numbers, days or text are not it. ``storage_options``: who asks the
        bucket, and where (``access_key_id``, ``secret_access_key``, ``endpoint``, ``region``, …); else the environment
        says it."""
        source = ParquetSource(
            path,
            columns=None if columns is None else tuple(columns),
            filter=filter,
            hive_partitioning=hive_partitioning,
            hive_schema=hive_schema,
            storage_options=storage_options,
        )
        return self.from_source(source, name=name, rate=rate)

    @checked()
    def read_csv(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        types: Mapping[str, pa.DataType] | None = None,
        columns: Sequence[str] | None = None,
        null_values: Sequence[str] | None = None,
        delimiter: str = ",",
        quote: str = '"',
        column_names: Sequence[str] | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
        rate: Rate = 0.0,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Read CSV files, one split a file; also compressed ones (gzip, zstd, bzip2).

        ``types``: of columns that should not be inferred from the beginning of the first file; ``null_values``: texts
        that stand for a missing value, in text columns too; ``quote``: "" if nothing is in quotes; ``column_names``: of
        files whose first line does not tell them. ``on_error``: rows that cannot be read "raise", or are left out
        ("skip"), or have nulls in all columns and say what is wrong in ``_error`` ("keep"): a struct of ``file``,
        ``line``, ``reason`` and ``text``. ``storage_options`` as in :meth:`read_parquet`."""
        source = CsvSource(
            path,
            types=types,
            columns=None if columns is None else tuple(columns),
            null_values=null_values,
            delimiter=delimiter,
            quote=quote,
            column_names=None if column_names is None else tuple(column_names),
            keeps_bad=on_error != "raise",
            storage_options=storage_options,
        )
        return self.from_source(source, name=name, rate=rate)._counting_bad(on_error)

    @checked()
    def read_json(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        types: Mapping[str, pa.DataType] | None = None,
        columns: Sequence[str] | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
        rate: Rate = 0.0,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Read files with an object of JSON in each line, large ones in parts; also compressed ones.

        ``types``: of fields that should not be inferred from the beginning of the first file. A field that is missing
        is null. One that nobody knew of is an error, unless ``columns`` says which to read. ``on_error`` as in
        :meth:`read_csv`, ``storage_options`` as in :meth:`read_parquet`."""
        source = JsonSource(
            path,
            types=types,
            columns=None if columns is None else tuple(columns),
            keeps_bad=on_error != "raise",
            storage_options=storage_options,
        )
        return self.from_source(source, name=name, rate=rate)._counting_bad(on_error)

    @checked()
    def read_text(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        name: str | None = None,
        rate: Rate = 0.0,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Read lines of files, also of compressed ones, into a column ``text``; large files in parts. Empty lines are
        rows, too. ``storage_options`` as in :meth:`read_parquet`."""
        return self.from_source(TextSource(path, storage_options=storage_options), name=name, rate=rate)

    @checked()
    def read_binary(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        name: str | None = None,
        rate: Rate = 0.0,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Read whole files, each a row: ``path``, within what is named here, and ``bytes``. ``storage_options`` as in
        :meth:`read_parquet`."""
        return self.from_source(BinarySource(path, storage_options=storage_options), name=name, rate=rate)

    @checked()
    def read_ipc(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        name: str | None = None,
        rate: Rate = 0.0,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Read Arrow IPC files, one split a file. ``storage_options`` as in :meth:`read_parquet`."""
        return self.from_source(IpcSource(path, storage_options=storage_options), name=name, rate=rate)

    @checked()
    def mix(
        self,
        weights: Mapping[Stream, float | Schedule],
        *,
        seed: int = 0,
        epoch: int = 0,
        at_end: AtEnd | Mapping[Stream, AtEnd] = "stop",
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Stream:
        """The rows of several streams of one schema, each in its order, interleaved at random in the ratio of their
        ``weights``. Whose turn it is depends on ``seed``, ``epoch`` and the position alone. A weight may change with
        the rows of the mixture or by epoch (``ps.Schedule``).

        ``at_end``: when it is the turn of a stream that has ended, "stop" ends the mixture (the others' rows that are
        left are not read), "go on" goes on with the others, "begin again" begins that stream again, its rows in another
        order, until each stream has ended once: rows that may come again are kept, on disk if they are much. A mapping
        says it for each stream. Sources are read in the ratio of the weights; what comes
        early nevertheless, because streams are cut or filtered differently, waits, on disk if it is much.
        """
        if not isinstance(at_end, str) and at_end.keys() != weights.keys():
            raise FlowError("mix: at_end names other streams than the weights", "name each of them once")
        ends = at_end if isinstance(at_end, str) else tuple(at_end[stream] for stream in weights)
        config = Mix(tuple(weights.values()), seed, epoch, ends)
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
        if at_barrier == "hold" and traits_of(config).always_drains:
            raise FlowError(f"{config.kind}: it has nothing of its own to hold", "leave out at_barrier")
        for stream in inputs:
            if stream.flow is not self:
                raise FlowError(f"{config.kind} mixes streams of two flows", f"build all streams with {self.name!r}")
        id = self._id(config.kind, name)
        try:
            schema = _output_schema(config, [stream.schema for stream in inputs])
            check_plain(config.kind, schema)
        except PenstockError as error:
            raise error.at(id) from None
        return self._add(config, tuple(stream.id for stream in inputs), schema, name, hold=at_barrier == "hold")

    @checked()
    def attach(self, config: SinkConfig, stream: Stream, *, name: str | None = None) -> None:
        """End a stream in a sink. At a prompt or in a notebook it replaces one of the same name or place: a
        cell can be run again."""
        former = self._said_before(config, stream, name) if hasattr(sys, "ps1") else None
        again = former is not None and name in (None, former)
        id = former if again and former is not None else self._id(config.kind, name)
        if traits_of(config).needs_order and self.order != "deterministic":
            raise FlowError(f"a {config.kind} of a flow without an order", 'build it with order="deterministic"', id)
        try:
            _output_schema(config, [stream.schema])
            if former is not None:
                self.take_out(former)
            self.put(Node(id, config, (stream.id,), None))
        except PenstockError as error:
            raise error.at(id) from None

    def _said_before(self, config: SinkConfig, stream: Stream, name: str | None) -> str | None:
        """The sink that this one would be beside itself."""
        for node in self.nodes:
            if node.schema is None:
                sink = cast(SinkConfig, node.config)
                same = node.inputs == (stream.id,) and sink == config
                if node.id == name or (config.place and sink.place == config.place) or (name is None and same):
                    return node.id
        return None

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
            self.put(Node(id, config, inputs, schema, rate, hold))
        except FlowError as error:
            raise error.at(id) from None
        return Stream(self, id)

    def _exchange(self, config: Exchanging, stream: Stream, name: str | None) -> Stream:
        if isinstance(config, HashPartitioning | RoundRobin | RangePartitioning):
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

    def __repr__(self) -> str:
        return "\n  ".join([f"Flow {self.name!r}", *self.describe().splitlines()])

    def _repr_html_(self) -> str:
        """What a notebook shows: the graph."""
        return titled(f"Flow {self.name}", picture(self))


class Stream(Shaping, Looking, Calling):
    """The rows that one node of a flow gives. Streams are values: a method gives a new one and changes nothing."""

    flow: Flow

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

    def _with(self, other: Stream, config: OperatorConfig, name: str | None, at_barrier: AtBarrier = FLUSH) -> Stream:
        return self.flow.apply(config, [self, other], name=name, at_barrier=at_barrier)

    @checked()
    def apply(
        self,
        config: OperatorConfig,
        *others: Stream,
        exchange: Through = GATHER,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Stream:
        """What an operator of your own (:class:`ps.Operator`) makes of this stream, and of ``others`` if it has several
        inputs. Its traits say what it needs: rows of a group are brought into one subtask first, where they are not
        yet. ``exchange="key"``: groups into different subtasks, by the key that the traits name."""
        traits, streams = traits_of(config), [self, *others]
        if traits.grouped_by is None:
            return self.flow.apply(config, streams, name=name, at_barrier=at_barrier)
        check_exchange(config.kind, exchange, traits.grouped_by)
        grouped = [each._grouped(traits.grouped_by, exchange) for each in streams]
        made = self.flow.apply(config, grouped, name=name, at_barrier=at_barrier)
        return made._regrouped() if traits.emission in _UNDER_ONE_LANE else made

    def _gathered(self) -> Stream:
        return self if self.is_gathered else self.gather()

    def _grouped(self, by: Sequence[str], exchange: Through) -> Stream:
        """With all rows of a group in one subtask."""
        if self.placement.holds_groups(by):
            return self
        return self.gather() if exchange == GATHER else self.partition_by(*by)

    def _regrouped(self) -> Stream:
        """With rows under the lanes of their parts, which an operator has emitted under one lane of its subtask."""
        known = self.placement.partitioning
        return self if known is None else self._then(Regroup(known))

    # ------------------------------------------------------------------ rows by themselves

    @checked()
    def resources(
        self,
        *,
        num_cpus: float = 0.0,
        num_gpus: float = 0.0,
        memory: float = 0.0,
        resources: Mapping[str, float] | None = None,
    ) -> Stream:
        """Let each subtask of the stage that makes this stream have these resources of the cluster (Ray's meaning of
        them; ``memory`` in bytes): ``index_join.resources(num_cpus=2)``. By default a stage asks for nothing. The
        operators of a stage share them: ``map_batches(…, num_gpus=1)`` makes a stage of its own."""
        return self._ask(resources_of(num_cpus, num_gpus, memory, resources))

    def _ask(self, resources: Resources) -> Self:
        self.flow.ask(self.id, resources)
        return self

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
    def gather(self, *, name: str | None = None) -> Stream:
        """All rows in one subtask, in the order of their tags: the same sequence at any parallelism."""
        return self.flow._exchange(Gather(), self, name)

    @checked()
    def forward(self, *, name: str | None = None) -> Self:
        """The same rows in a stage of its own, each subtask's in the subtask of its number: for what shall have other
        resources (``.resources``) or fail by itself. Where only such edges lie between sources and sinks, a failure
        restarts the tasks of one number alone."""
        return cast("Self", self.flow._exchange(Forward(), self, name))

    @checked()
    def partition_by(self, *keys: str | Sequence[str], name: str | None = None) -> Stream:
        """Rows with equal ``keys`` in one part of the flow's ``parts``: what groups, joins or sorts them by these keys
        then runs in every subtask. Null is a key. Each round comes part by part, at any parallelism in the same order.
        """
        names = tuple(each for key in keys for each in ((key,) if isinstance(key, str) else key))
        return self.flow._exchange(HashPartitioning(names, self.flow.parts), self, name)

    @checked()
    def partition_by_range(self, column: str, bounds: Sequence[Any], *, name: str | None = None) -> Stream:
        """One part more than there are ``bounds``, which ascend: the rows below the first one, from there to below the
        second one, …; nulls are in the last part."""
        return self.flow._exchange(RangePartitioning(column, tuple(bounds)), self, name)

    @checked()
    def rebalance(self, *, name: str | None = None) -> Stream:
        """Rows in turn to all parts, whatever they hold: for lanes that have too much to do."""
        return self.flow._exchange(RoundRobin(self.flow.parts), self, name)

    @checked()
    def broadcast(self, *, name: str | None = None) -> Stream:
        """All rows in every subtask: for a small stream that is to be the right side of a hash join."""
        return self.flow._exchange(Broadcast(), self, name)

    # ------------------------------------------------------------------ rows brought together and put in order

    @checked()
    def aggregate(
        self,
        by: Sequence[str] = (),
        *,
        ignore_null_keys: bool = False,
        exchange: Through = GATHER,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
        **aggregates: Asked,
    ) -> Stream:
        """One row per distinct key, or one in all if there is no key. ``total=("delay", "sum")``, ``n="count"``,
        ``late=ps.Aggregate("", "delay", "count", where="is_late")``.

        Functions: count, sum, min, max, mean, variance, stddev, median, quantile(0.9), quantile_disc(0.9),
        count_distinct, first, last, collect_list, and in little memory approx_count_distinct and approx_quantile(0.9);
        or one of your own: a :class:`~penstock.AggregateFunction`, or a plain function of all values
        (:func:`~penstock.aggregate_function`).
        Rows come when the input ends. Functions whose value depends on the order of rows see all rows of a key in
        order; the others are computed per lane first, and then their groups come lane by lane. That happens in one
        subtask, or in every one if the stream is partitioned by keys of the aggregation; ``exchange="key"`` partitions
        it so.
        """
        by = tuple(by)
        check_exchange("hash aggregate", exchange, by)
        single = HashAggregate(by, as_aggregates(aggregates), ignore_null_keys=ignore_null_keys)
        if self.placement.holds_groups(by) or any(each.resolved.ordered for each in single.aggregates):
            return self._grouped(by, exchange)._then(single, name, at_barrier)._regrouped()
        partial = self._then(replace(single, step="partial"), _in_lanes(name), at_barrier)
        brought = partial._grouped(by, exchange)
        return brought._then(replace(single, step="partial").final(self.schema), name, at_barrier)._regrouped()

    @checked()
    def group_by(
        self, *by: str | Expression, ignore_null_keys: bool = False, exchange: Through = GATHER
    ) -> GroupedStream:
        """The rows by these keys, for ``agg``: ``group_by("carrier").agg(ps.col("delay").mean(), n="count")``. A key
        that is computed has an alias that no column has. Options as for :meth:`aggregate`."""
        return GroupedStream(self, by, ignore_null_keys, exchange)

    @checked()
    def stream_aggregate(
        self, by: Sequence[str], *, at_barrier: AtBarrier = FLUSH, name: str | None = None, **aggregates: Asked
    ) -> Stream:
        """Aggregate rows whose equal keys stand next to each other. ``total=("delay", "sum")``, ``n="count"``.

        Functions as for ``aggregate``. A group may span batches and splits of one lane.
        """
        return self._then(StreamAggregate(tuple(by), as_aggregates(aggregates)), name, at_barrier)

    @checked()
    def distinct(
        self, *by: str, exchange: Through = GATHER, at_barrier: AtBarrier = FLUSH, name: str | None = None
    ) -> Stream:
        """The first row for each value of the columns ``by`` (none: of all columns), in the order of the stream."""
        keys = by or tuple(self.schema.names)
        check_exchange("distinct", exchange, keys)
        if self.placement.holds_groups(keys):
            return self._then(Distinct(by), name, at_barrier)
        first = self._then(Distinct(by, per_lane=True), _in_lanes(name), at_barrier)._grouped(keys, exchange)
        return first._then(Distinct(by), name, at_barrier)

    @checked()
    def mark_distinct(
        self,
        *by: str,
        marker: str,
        masks: dict[str, str] | None = None,
        exchange: Through = GATHER,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Stream:
        """A boolean column ``marker``: whether the row is the first one with its values of ``by``. ``masks``: boolean
        columns, each with the name of a column that marks the first row of a key in which the mask is true."""
        config = MarkDistinct(by, marker, tuple((masks or {}).items()))
        return self.apply(config, exchange=exchange, at_barrier=at_barrier, name=name)

    @checked()
    def sort(
        self,
        *keys: SortBy,
        descending: bool | Sequence[bool] = False,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Stream:
        """All rows in the order of ``keys``: names or ``ps.SortKey``, one after the other or in a list. ``descending``:
        for names, all alike or one by one. Equal rows stay as they came."""
        return self.apply(Sort(sort_keys("sort", keys, descending)), at_barrier=at_barrier, name=name)

    @checked()
    def top_n(
        self,
        count: int,
        *keys: SortBy,
        descending: bool | Sequence[bool] = False,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Stream:
        """The first ``count`` rows in the order of ``keys``, as for :meth:`sort`."""
        top = TopN(sort_keys("top_n", keys, descending), count)
        first = self if self.is_gathered else self._then(replace(top, per_lane=True), None, at_barrier).gather()
        return first._then(top, name, at_barrier)

    @checked()
    def limit(
        self,
        count: int,
        *,
        offset: int = 0,
        per: Per = "task",
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Stream:
        """``count`` rows after the first ``offset``, in the order of the stream; of each window between barriers with
        ``per="window"``."""
        return self.apply(Limit(count, offset, per), at_barrier=at_barrier, name=name)

    @checked()
    def sample(self, fraction: Annotated[float, Within(0, 1)], *, seed: int = 0, name: str | None = None) -> Stream:
        """About ``fraction`` of the rows, in their order: each one with equal probability, by ``seed`` and its place in
        the stream, whatever it holds. So they are the same rows at any parallelism, in each run and each epoch."""
        return self._then(Sample(fraction, seed), name)

    @checked()
    def window(
        self,
        by: Sequence[str],
        order_by: SortKey | Sequence[str | SortKey] = (),
        *,
        is_sorted: bool = False,
        exchange: Through = GATHER,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
        **functions: tuple[str, str] | str | WindowFunction,
    ) -> Stream:
        """A column for each function of the rows around: ``place="row_number"``, ``before=("delay", "lag")``,
        ``sofar=("delay", "sum")``, ``next=ps.WindowFunction("", "lead", "delay", offset=2)``.

        Functions: row_number, rank, dense_rank, ntile(4), percent_rank, cume_dist, lag, lead, and over a frame of rows
        count, sum, mean, min, max, first, last: up to the current row, or another (``ps.WindowFunction``):
        ``week=ps.WindowFunction("", "mean", "delay", frame=(-6, 0))``, which is "rows between 6 preceding and current
        row". Rows come sorted by the keys ``by``, then ``order_by``; part by part if the stream is partitioned by some
        of ``by``, as it is with ``exchange="key"``. ``is_sorted``: they already are, in each lane.
        """
        check_exchange("window", exchange, by)
        # within a partition its own key orders nothing
        keys = tuple(key for key in as_sort_keys(order_by) if key.column not in by)
        asked = tuple(_as_function(label, each) for label, each in functions.items())
        config = Window(tuple(by), keys, asked)
        sorting = (*as_sort_keys(by), *keys)
        ordered = self if is_sorted else self._grouped(by, exchange)
        if sorting and not is_sorted:
            ordered = ordered._then(Sort(sorting), None, at_barrier)._regrouped()
        return ordered._then(config, name, at_barrier)

    # ------------------------------------------------------------------ joins

    @checked()
    def merge_join(
        self,
        other: Stream,
        on: Sequence[str],
        *,
        how: JoinType = "inner",
        right_on: Sequence[str] | None = None,
        filter: Expressible | None = None,
        suffix: str = "_right",
        name: str | None = None,
    ) -> Stream:
        """Join with ``other`` by merging. Both sides consist of the same number of splits, hold equal keys in splits
        of equal position, and are sorted by the keys within each split.

        ``how``: inner, left, right, full, left semi, right semi, anti. ``right_on``: the keys of ``other``, if they
        have other names. ``filter``: what rows with equal keys must fulfil besides, over the joined row.
        """
        keys = None if right_on is None else tuple(right_on)
        join = MergeJoin(tuple(on), how=how, suffix=suffix, right_on=keys, filter=_or_none(filter))
        return self._with(other, join, name)

    @checked()
    def hash_join(
        self,
        other: Stream,
        on: Sequence[str],
        *,
        how: JoinType = "inner",
        right_on: Sequence[str] | None = None,
        filter: Expressible | None = None,
        suffix: str = "_right",
        exchange: Through = GATHER,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Stream:
        """Join with ``other``, both in any order; ``other`` is held in memory, as far as there is some.

        It runs in every subtask if both streams are partitioned alike by keys of the join, or ``other`` is broadcast;
        ``exchange="key"`` partitions them so. Otherwise both are gathered. Options as for ``merge_join``.
        """
        check_exchange("hash join", exchange)
        keys = None if right_on is None else tuple(right_on)
        join = HashJoin(tuple(on), how=how, suffix=suffix, right_on=keys, filter=_or_none(filter))
        if other.placement.place == "every":
            marked = self._then(MarkPart())
            return marked._with(other, ReplicatedJoin(join), name, at_barrier)._then(Regroup())
        left, right = (self, other) if exchange == GATHER else (self._keyed(join.keys[0]), other._keyed(join.keys[1]))
        if _is_local(join, left.placement, right.placement):
            return left._with(right, join, name, at_barrier)._regrouped()
        return self._gathered()._with(other._gathered(), join, name, at_barrier)

    def _keyed(self, keys: tuple[str, ...]) -> Stream:
        """Partitioned by just these keys."""
        known = self.placement.partitioning
        return self if isinstance(known, HashPartitioning) and known.keys == keys else self.partition_by(*keys)

    @checked()
    def lookup_join(
        self,
        index: Index,
        on: Sequence[str],
        *,
        how: Literal["inner", "left"] = "inner",
        suffix: str = "_right",
        with_key: bool = False,
        conditions: Sequence[Between | InList] = (),
        filter: Expressible | None = None,
        marker: str | None = None,
        prefetch: int = PREFETCH,
        split_output: bool = True,
        name: str | None = None,
    ) -> Stream:
        """Join with an index (``ps.index.memory(table, key=…)``), in the order of this stream; ``how``: inner or left.

        Options as for :class:`LookupJoin`; ``conditions``: ``ps.index.Between``, ``InList``.
        """
        config = LookupJoin(
            index,
            tuple(on),
            how=how,
            suffix=suffix,
            with_key=with_key,
            conditions=tuple(conditions),
            filter=_or_none(filter),
            marker=marker,
            prefetch=prefetch,
            split_output=split_output,
        )
        return self._then(config, name)

    # ------------------------------------------------------------------ sequences for trainers

    @checked()
    def shuffle(
        self,
        window: int | Literal[True, "full"] | ShuffleOptions,
        *,
        seed: int = 0,
        epoch: int = 0,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Stream:
        """The rows of every ``window`` consecutive rows in a random order, which depends on ``seed``, ``epoch`` and the
        position in the stream alone. The open window is part of a checkpoint: a job that goes on gives the same order.
        A window must fit into memory.

        ``True``, or ``ps.Shuffle(window=…, interleave=…)``: the splits of the sources come in a drawn order too, many
        of them in turn, so that a window has rows of all of these. They do where nothing between them and this minds
        the order (``flow.explain()`` says so): in front of ``limit``, ``distinct`` or a merge join they stay as they
        are.

        ``"full"``: all rows in an order of which each is as likely as any other, sorted on disk if they are many. The
        first one leaves behind the last one that comes.
        """
        asked = Shuffle(window, seed, epoch) if type(window) is int else operator_of(window, seed, epoch)
        return self.apply(asked, at_barrier=at_barrier, name=name)

    @checked()
    def pack(
        self,
        length: int,
        *,
        tokens: str = "tokens",
        separator: int | None = None,
        pad: int = 0,
        remainder: Remainder = "pad",
        segments: str | None = "segment_ids",
        positions: str | None = "position_ids",
        documents: str | None = None,
        window: int | None = None,
        too_long: Literal["raise", "truncate", "drop", "split"] = "raise",
        alike: Sequence[str] = (),
        each: Sequence[str] = (),
        cu_seqlens: str | None = None,
        labels: str | None = None,
        ignore: int = -100,
        seed: int = 0,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Stream:
        """The sequences of the list column ``tokens``, in order, as rows of ``length`` tokens: lists of one size, which
        become a tensor as they are. A sequence that does not fit goes on in the next row; ``separator`` is put behind
        each one. What is left at the end is padded with ``pad``, or dropped (``remainder="drop"``).

        ``window``: no sequence is cut; those of so many rows are laid out together so that rows are full, and filled up
        with ``pad``. ``too_long``: what becomes of a sequence of more than ``length`` tokens. ``alike``: list columns
        that are packed like the tokens, which they are as long as in each row; ``each``: columns of which a packed row
        has the values of its sequences. ``cu_seqlens``: where in the row sequences end, behind a 0. ``labels``: that
        column, or the tokens, with ``ignore`` at the first token of each sequence and at padding. ``seed``: of the
        order in which the rows of a window come.

        ``segments``, ``positions``, ``documents``: names of the columns that tell the sequences of a row apart (from 1;
        0 is padding), where each token stands in its part of a sequence (from 0), and which sequence of the stream it
        is of (from 0; −1 is padding; with a window they are counted as they are packed). None leaves a column out.
        Other columns of the stream are left out.
        """
        if window is not None:
            if separator is not None or remainder != "pad":
                raise FlowError("pack: a separator or remainder with a window", "leave them out: rows are filled up")
            rules = BatchRules(
                *(None, length, (tokens, *alike), None, too_long, window, False, Buckets(None, (), ()), None, seed)
            )
            whole = PackWhole(
                *(length, tokens, tuple(alike), tuple(each), pad, segments, positions, documents),
                *(cu_seqlens, labels, ignore),
            )
            stream = self._cut(rules, name or "pack", at_barrier)
            return stream.apply(whole, name=name)
        if too_long != "raise" or alike or each or cu_seqlens is not None or labels is not None:
            raise FlowError("pack: sequences are whole only in a window", "say of how many rows: window=8192")
        config = Pack(length, tokens, separator, pad, remainder, segments, positions, documents)
        return self.apply(config, at_barrier=at_barrier, name=name)

    def _counting_bad(self, on_error: OnError) -> Stream:
        return self if on_error == "raise" else self._then(BadRows(self.id, drops=on_error == "skip"))

    # ------------------------------------------------------------------ ends

    @checked()
    def write_parquet(
        self,
        path: str | Path,
        *,
        mode: WriteMode = "new",
        partition_by: str | Sequence[str] = (),
        max_rows_per_file: int = 1 << 20,
        row_group_size: int = 1 << 17,
        compression: str = "zstd",
        name: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Write a folder of Parquet files, exactly once: files appear when the checkpoint that covers them commits.

        ``mode``: "new" wants a folder without data, "append" adds to what is there, "overwrite" replaces what jobs have
        written there before, and nothing else: the old files go when the first of the new ones are committed (without
        ``checkpoints``, all at once at the end). ``partition_by``: columns that become folders
        (``year=2024/kind=a``), which :meth:`Flow.read_parquet`, Spark, DuckDB and pyarrow read back.
        ``compression``: "zstd" makes the smallest files, "snappy" and "lz4" take about two thirds of the time; others
        are "none", "gzip", "brotli". ``row_group_size`` in rows. ``storage_options`` as in :meth:`Flow.read_parquet`.
        """
        sink = ParquetSink(
            str(path),
            mode=mode,
            rows_per_file=max_rows_per_file,
            row_group_rows=row_group_size,
            compression=compression,
            storage_options=storage_options,
            partition_by=_names(partition_by),
        )
        self.write_to(sink, name=name)

    @checked()
    def write_csv(
        self,
        path: str | Path,
        *,
        mode: WriteMode = "new",
        partition_by: str | Sequence[str] = (),
        delimiter: str = ",",
        header: bool = True,
        max_rows_per_file: int = 1 << 20,
        compression: TextCompression = "none",
        name: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Write a folder of CSV files, exactly once. ``header``: names stand in the first line of each file. Texts are
        in quotes; a missing value is an empty field without. The rest is as in :meth:`write_parquet`."""
        sink = CsvSink(
            str(path),
            mode=mode,
            rows_per_file=max_rows_per_file,
            storage_options=storage_options,
            partition_by=_names(partition_by),
            delimiter=delimiter,
            header=header,
            compression=compression,
        )
        self.write_to(sink, name=name)

    @checked()
    def write_json(
        self,
        path: str | Path,
        *,
        mode: WriteMode = "new",
        partition_by: str | Sequence[str] = (),
        max_rows_per_file: int = 1 << 20,
        compression: TextCompression = "none",
        name: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Write a folder of files with an object of JSON in each line, exactly once. Numbers have all their digits,
        days and times are texts. The rest is as in :meth:`write_parquet`."""
        sink = JsonSink(
            str(path),
            mode=mode,
            rows_per_file=max_rows_per_file,
            storage_options=storage_options,
            partition_by=_names(partition_by),
            compression=compression,
        )
        self.write_to(sink, name=name)

    @checked()
    def feed(
        self,
        batch_size: int | None = None,
        *,
        tokens: int | None = None,
        length: str | Sequence[str] | None = None,
        cost: Expressible | None = None,
        too_long: Literal["raise", "truncate", "drop", "split"] = "raise",
        window: int | None = None,
        padded: bool = False,
        bucket_by: Expressible | None = None,
        boundaries: Sequence[int] = (),
        batch_sizes: Sequence[int] = (),
        balance: Expressible | None = None,
        seed: int = 0,
        shuffle: AskedShuffle | None = None,
        drop_last: bool = False,
        room: int | str | None = None,
        keep: int = 0,
        epochs: int = 1,
        name: str = "feed",
    ) -> None:
        """End the stream in a feed: training ranks read it in global batches of ``batch_size`` rows, the same whatever
        their number (``job.feed(name).reader(rank, world_size)``).

        ``tokens``: batches of as many rows as fit instead, never more: a row has as many as its list ``length`` (by
        default "tokens"; of several names the first one counts, and they are cut alike), or what ``cost`` says, a
        column or an expression that is a whole number. ``padded``: each row of a batch counts as much as its dearest
        one. ``too_long``: what becomes of a row that has more than a batch. ``window``: so many rows are laid out
        together, so that batches are full; without it rows stay in order. ``bucket_by`` and ``boundaries``: only rows
        of one bucket are in a batch, those below the first boundary, and so on; each bucket has batches of its number
        of ``batch_sizes``, one more than boundaries, or of ``tokens``. ``balance``: ranks get rows that are about
        equal by this column or expression, not equally many.

        ``shuffle``: shuffle the rows first, by ``seed`` (:meth:`shuffle`): ``True``, ``ps.Shuffle(…)``, ``"full"``, or
        a number, which is a window: splits are drawn here.
        ``epochs``: how often the job reads its sources, one time behind the other without a pause; no batch has rows of
        two epochs, and shuffles and mixtures draw anew in each, by (seed, epoch). ``drop_last``: a last batch of an
        epoch that is not full is left out. ``room``: rows that may wait for the slowest rank, or bytes of them
        ("2GiB"), and so how far ranks may be apart, by default 16 batches, and at least 128 Ki rows, but no more of
        them wait than have 256 MiB; the batch that is wanted next always fits. ``keep``: rows that are kept after all
        ranks have taken them, for ranks that come back to an older place, but never from before what they have started
        from or committed: an older model goes on with ``resume_model``.
        """
        stream = self if shuffle is None or shuffle is False else self.apply(operator_of(shuffle, seed, 0))
        lists = (length,) if isinstance(length, str) else tuple(length or ())
        buckets = Buckets(_or_none(bucket_by), tuple(boundaries), tuple(batch_sizes))
        rules = BatchRules(
            batch_size, tokens, lists, _or_none(cost), too_long, window, padded, buckets, _or_none(balance), seed
        )
        most = rules.check(name)
        if rules.are_plain:
            sink = FeedSink.of(name, most, drop_last, room, keep, epochs)
            stream._gathered().write_to(sink, name=name)
            return
        sink = CutFeedSink.over(FeedSink.of(name, 1, drop_last, room, keep, epochs), most, rules.balance)
        stream._cut(rules, name).write_to(sink, name=name)

    def _cut(self, rules: BatchRules, name: str, at_barrier: AtBarrier = FLUSH) -> Stream:
        """In whole batches, whose last rows say so."""
        fitting = rules.fitting()
        stream = self if fitting is None else self.apply(fitting, name=f"{name}.too_long")
        return stream._gathered().apply(rules.cutting(), name=f"{name}.batches", at_barrier=at_barrier)

    @checked()
    def collect(self, name: str) -> None:
        """Keep the rows in memory: ``ps.run_local(flow).result(name)``."""
        self.write_to(CollectSink(name), name=name)

    @checked()
    def write_to(self, sink: SinkConfig, *, name: str | None = None) -> None:
        """End the stream in a sink of your own (:class:`ps.Sink`)."""
        self.flow.attach(sink, self, name=name)


class GroupedStream:
    """Rows by keys; see :meth:`Stream.group_by`."""

    def __init__(
        self, stream: Stream, by: Sequence[str | Expression], ignore_null_keys: bool, exchange: Through
    ) -> None:
        self._stream, self._ignore_null_keys, self._exchange = stream, ignore_null_keys, exchange
        #: what is computed before rows are grouped
        self._computed: list[Expression] = []
        self._by = [each if isinstance(each, str) else self._key(each) for each in by]

    def _key(self, key: Expression) -> str:
        column, _ = named(key)
        if not key.is_column:
            if column in self._stream.schema.names:
                message = f"group_by: the key {key.sql} is called as the column {column!r}"
                raise FlowError(message, "give it another name: .alias('name')")
            self._computed.append(key)
        return column

    @checked()
    def agg(self, *aggregates: Aggregated, name: str | None = None, **more: Asked | Aggregated) -> Stream:
        """One row per distinct key, as :meth:`Stream.aggregate` gives it: ``ps.col("delay").mean()``, which is called
        as its column, or has an ``alias``; by keyword also what ``aggregate`` takes."""
        check_distinct("agg", "aggregate", [*(each.name for each in aggregates), *more])
        computed = list(self._computed)
        asked: dict[str, Any] = {each.name: each for each in aggregates} | more
        for label, each in asked.items():
            if isinstance(each, Aggregated):
                column = each.expression.name or ""
                if not each.expression.is_column:
                    column = next(free for n in count() if (free := f"{label}_{n}") not in self._stream.schema.names)
                    computed.append(each.expression.alias(column))
                asked[label] = Aggregate(label, column, each.function)
        rows = self._stream.with_columns(*computed) if computed else self._stream
        options: dict[str, Any] = {"ignore_null_keys": self._ignore_null_keys, "exchange": self._exchange}
        return rows.aggregate(self._by, name=name, **options, **asked)

    @checked()
    def map_groups(
        self,
        function: Callable[..., Any] | type,
        schema: pa.Schema | None = None,
        *,
        batch_format: BatchFormat = "arrow",
        fn_args: Sequence[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: Calls = 1,
        num_cpus: float = 0.0,
        num_gpus: float = 0.0,
        memory: float = 0.0,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Stream:
        """What ``function`` makes of all rows of each key, in their order, when the input has ended: it gets them at
        once, with all columns. The rows of a key must fit into memory. Arguments as for :meth:`Stream.map_batches`;
        without ``schema`` the function is called with some of the rows of the first keys. What is bad
        (``on_error``) is a key with all its rows, which are lists in ``_error``."""
        rows = self._stream.with_columns(*self._computed) if self._computed else self._stream
        names = tuple(rows.schema.names)
        given = arguments_of(fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        called = Called(function, batch_format, *given, each="group", columns=names)
        called.check()
        marks = ("_" * length for length in count(2))
        before = next(mark for mark in marks if not {mark + name for name in names} & {*self._by})
        lists = tuple(Aggregate(before + name, name, "collect_list") for name in names)
        config = HashAggregate(tuple(self._by), lists, ignore_null_keys=self._ignore_null_keys)
        check_exchange("map_groups", self._exchange, self._by)
        if schema is None:
            first = Flow("first-rows").from_tables(pa.Table.from_batches([rows._first(called)]))
            schema = told_schema(called, first.gather()._then(config)._first(called), on_error != "raise")
        grouped = rows._grouped(self._by, self._exchange)._then(config)._regrouped()
        asked = resources_of(num_cpus, num_gpus, memory)
        return grouped._calling(called, schema, GROUPS, concurrency, asked, name, on_error)


def _in_lanes(name: str | None) -> str | None:
    """The name of the first step of an operator that has one: with another name both of them begin anew."""
    return None if name is None else f"{name}-in-lanes"


def _or_none(given: Expressible | None) -> pc.Expression | str | None:
    return None if given is None else written(given)


def _as_function(label: str, asked: tuple[str, str] | str | WindowFunction) -> WindowFunction:
    if isinstance(asked, WindowFunction):
        return replace(asked, name=label)
    return WindowFunction(label, asked) if isinstance(asked, str) else WindowFunction(label, asked[1], asked[0])


def _output_schema(config: OperatorConfig | SinkConfig, inputs: Sequence[pa.Schema]) -> pa.Schema:
    """What a config says of its output. Raises FlowError if that is no schema, or a user's config raises."""
    what = f"output_schema() of {type(config).__name__}"
    try:
        found: object = config.output_schema(inputs)
    except PenstockError:
        raise
    except Exception as error:
        if not is_users_object(config):
            raise
        raise raised(what, error, "raise ps.errors.FlowError for inputs that it does not take") from error
    if not isinstance(found, pa.Schema):
        raise FlowError(f"{what} gave a {type(found).__name__}", "give a pyarrow.Schema")
    return found


def _is_local(join: HashJoin, left: Placement, right: Placement) -> bool:
    """Whether rows that may match are in the same part, and the rows that come out can be told theirs."""
    if not left.matches(right, *join.keys):
        return False
    return join.how not in RIGHT_STAYS or join.right_on is None
