"""One feed's part of a flow, alone, and so that its rows say where they are from (``origins``).

Rules:

1. What leads to the feed is kept, under its names; other sinks are left out, with what leads to them alone.
2. The origin travels as one more column through operators that pass rows on: these neither look at it nor emit other
   rows because of it. An operator that compares whole rows goes on with the columns that it had.
3. A join passes on the origins of the side whose rows it follows (``Lineage.follows``). Rows that right and full joins
   give of the right side alone are from nowhere.
4. Operators that make rows of several others say how (``operators``), or end the trace: what comes behind them is from
   nowhere, and ``ends`` says why.
5. An operator whose output would differ by anything but the origin ends the trace too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from ..buffers.state_rows import in_one
from ..core.errors import ConfigurationError
from ..core.operator import OperatorConfig
from ..core.source import SourceConfig, Split
from ..core.traits import ALL_INPUTS, State, traits_of
from ..operators import Project
from ..plan.plan import JobPlan
from ..planner.graph import Graph, Node
from ..planner.pruning import pruned
from .operators import DOCUMENTS, TracedBatches, TracedNumbers
from .origins import ONE, ORIGIN, SPANS, TracedSource


class FeedGraph(Graph):
    """See the module's rules. ``plan``: of the whole flow, whose splits are read; ``traced``: whether rows say where
    they are from; ``skipped``: splits (source, id) that have no rows."""

    def __init__(
        self,
        flow: Graph,
        feed: str,
        plan: JobPlan,
        *,
        traced: bool = True,
        skipped: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        super().__init__(flow.name, lanes=plan.lanes, parts=flow.parts, order=flow.order)
        flow = self._flow = pruned(flow)
        self._feed = feed
        needed = _upstream(flow, feed)
        #: by number
        self.splits: list[tuple[str, Split]] = []
        #: operator to why the trace ends there
        self.ends: dict[str, str] = {}
        wide = any(traits_of(node.config).lineage.of_several() for node in flow.nodes if node.id in needed)
        self._type = None if not traced else SPANS if wide else ONE
        for node in flow.nodes:
            if node.id in needed and not node.inputs:
                names = frozenset(split for source, split in skipped if source == node.id)
                given = plan.sources[node.id].own_splits
                source = TracedSource(
                    cast(SourceConfig, node.config),
                    given,
                    cast(pa.Schema, node.schema),
                    len(self.splits),
                    self._type,
                    names,
                )
                self.put(replace(node, config=source, schema=source.schema))
                self.splits += [(node.id, split) for split in given]
            elif node.id in needed:
                self._add(node)

    @property
    def is_traced(self) -> bool:
        """Whether origins arrive at the feed."""
        return self._has_origin(self.node(self._feed).inputs[0])

    def traced_state(self, operator: str, table: pa.Table) -> pa.Table | None:
        """The state of an operator of the flow for the same one here, whose rows have one more column. None: there is
        no way to tell."""
        if operator not in self._nodes:
            return table
        node, before = self.node(operator), self._flow.node(operator)
        if not node.inputs or not any(self._has_origin(each) for each in node.inputs):
            return table
        if traits_of(node.config).state in (State.NONE, State.COUNTERS):
            return table
        if traits_of(before.config).state is not State.ROWS:
            return None
        return _with_null_origins(table, self._schema(node.inputs[0]))

    # ------------------------------------------------------------------ building

    def _schema(self, id: str) -> pa.Schema:
        return cast(pa.Schema, self.node(id).schema)

    def _has_origin(self, id: str) -> bool:
        return ORIGIN in self._schema(id).names

    def _add(self, node: Node) -> None:
        if node.schema is None or not any(self._has_origin(each) for each in node.inputs):
            self.put(node)
            return
        if node.is_exchange:
            self.put(replace(node, schema=self._schema(node.inputs[0])))
            return
        found = self._traced(node)
        config, inputs = found if found is not None else self._cut(node)
        schema = config.output_schema([self._schema(each) for each in inputs])
        if not _same_but_origin(schema, node.schema):
            config, inputs = self._cut(node)
            schema = config.output_schema([self._schema(each) for each in inputs])
        self.put(replace(node, config=config, inputs=inputs, schema=schema))

    def _traced(self, node: Node) -> tuple[OperatorConfig, tuple[str, ...]] | None:
        """Config and inputs of the node that passes origins on; None: there is none."""
        config, lineage = cast(OperatorConfig, node.config), traits_of(node.config).lineage
        before = self._flow.node(node.id).inputs
        if lineage.numbering is not None:
            return TracedNumbers(config, *lineage.numbering(DOCUMENTS)), node.inputs
        if lineage.of_batch:
            return TracedBatches(config), node.inputs
        if lineage.follows is None:
            return None
        if lineage.follows == ALL_INPUTS:
            return config, tuple(self._in_order(node, port) for port in range(len(node.inputs)))
        if lineage.lost:
            self.ends[node.id] = f"of rows that {node.id} {lineage.lost} nothing is known"
        if lineage.carrying is not None:
            config = lineage.carrying(ORIGIN, [cast(pa.Schema, self._flow.node(each).schema) for each in before])
        return config, tuple(
            each if port == lineage.follows else self._dropped(node, port) for port, each in enumerate(node.inputs)
        )

    def _cut(self, node: Node) -> tuple[OperatorConfig, tuple[str, ...]]:
        """The node as it was: it passes no origins on."""
        self.ends[node.id] = f"{node.id} makes other rows of those that come to it"
        return cast(OperatorConfig, node.config), tuple(
            self._dropped(node, port) for port in range(len(self._flow.node(node.id).inputs))
        )

    def _dropped(self, node: Node, port: int) -> str:
        """The stream of a port without origins."""
        source = self._flow.node(node.id).inputs[port]
        if not self._has_origin(source):
            return source
        names = cast(pa.Schema, self._flow.node(source).schema).names
        return self._projected(node, port, "dropped", Project.keeping(names))

    def _in_order(self, node: Node, port: int) -> str:
        """The stream of a port with the origin as its last column, null where it has none."""
        source = node.inputs[port]
        names = cast(pa.Schema, self._flow.node(source).schema).names
        if self._schema(source).names == [*names, ORIGIN]:
            return source
        origin = pc.field(ORIGIN) if self._has_origin(source) else pc.scalar(pa.scalar(None, self._type))
        return self._projected(node, port, "ordered", Project.keeping(names, {ORIGIN: origin}))

    def _projected(self, node: Node, port: int, how: str, config: Project) -> str:
        source = self._flow.node(node.id).inputs[port]
        id = f"{node.id}.{how}-{port}"
        if id not in self._nodes:
            self.put(Node(id, config, (source,), config.output_schema([self._schema(source)])))
        return id


def find_feed(flow: Graph, name: str | None) -> Node:
    """The feed with this name; None: the only one. Raises ConfigurationError."""
    feeds = [node for node in flow.nodes if traits_of(node.config).throttled]
    known = ", ".join(node.id for node in feeds)
    if not feeds:
        message, remedy = f"flow {flow.name!r} has no feed", "name a flow that ends in stream.feed(batch_size)"
        raise ConfigurationError(message, remedy)
    if name is None and len(feeds) > 1:
        raise ConfigurationError(f"flow {flow.name!r} has several feeds", f"say which one: {known}")
    found = next((node for node in feeds if name in (None, node.id)), None)
    if found is None:
        raise ConfigurationError(f"flow {flow.name!r} has no feed {name!r}", f"its feeds: {known}")
    return found


def without_origin(table: pa.Table) -> tuple[pa.Table, pa.ChunkedArray | None]:
    """Rows, and their origins, if they have any."""
    if ORIGIN not in table.schema.names:
        return table, None
    return table.drop_columns([ORIGIN]), table.column(ORIGIN)


def _upstream(flow: Graph, sink: str) -> set[str]:
    found = {sink}
    for node in reversed(flow.nodes):
        if node.id in found:
            found.update(node.inputs)
    return found


def _same_but_origin(found: pa.Schema, wanted: pa.Schema) -> bool:
    place = found.get_field_index(ORIGIN)
    return bool((found if place < 0 else found.remove(place)).equals(wanted))


def _with_null_origins(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A state table whose ``row`` has one more field. Null structs, which hold counters, stay so."""
    rows = in_one(table, "row")
    place = schema.get_field_index(ORIGIN)
    fields = [rows.type.field(at) for at in range(rows.type.num_fields)]
    fields.insert(place, schema.field(place))
    valid = rows.drop_null()
    children = valid.flatten()
    children.insert(place, pa.nulls(len(valid), schema.field(place).type))
    made = pa.StructArray.from_arrays(children, fields=fields)
    numbers = pc.if_else(rows.is_valid(), pc.subtract(pc.cumulative_sum(rows.is_valid().cast(pa.int64())), 1), None)
    return table.set_column(table.schema.get_field_index("row"), "row", made.take(numbers))
