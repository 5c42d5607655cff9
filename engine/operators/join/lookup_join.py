"""Lookup join: each row of the stream with its matches in an index, in the order of the stream.

Rules:

1. A row with a null in a key, or in a column that a condition compares with, is not looked up: it has no match.
   ``inner`` drops rows without match, ``left`` keeps them once, with nulls. Matches of one row come in the order of the
   index.
2. Conditions and filter are judged on each pair behind the lookup; a null result is no match. A row whose pairs all
   fail is a row without match.
3. Batches keep round and lane, and their order. Several matches per row may make a batch grow; pieces have at most
   ``output_rows`` rows and ``output_bytes`` bytes.
4. An index that blocks is asked on other threads for up to 1 + ``prefetch`` batches at once (``running_lookup``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from ...core.errors import FlowError
from ...core.operator import OperatorContext
from ...core.schemas import check_columns, check_distinct, check_inputs, check_movable, check_same_types, unique_schema
from ...core.traits import Columns, Emission, Lineage, Traits
from ...expressions.expressions import as_expression, same_expression
from ...expressions.kernel_calls import columns_read
from ...kernels.keys import check_key_types
from ...kernels.pieces import Bound
from .index_protocol import Index
from .join_shape import JoinShape, check_join_type
from .lookup_conditions import Between, InList
from .lookup_output import LookupOutput
from .matching import PairFilter
from .running_lookup import AsynchronousLookupJoin, Inquiry, RunningLookupJoin

JOIN_TYPES = ("inner", "left")

PREFETCH = 2
"""Batches that are looked up ahead unless the flow says otherwise: one to cover the wait, one for its variation."""


@dataclass(frozen=True, eq=False)
class LookupJoin:
    """Joins with ``index``; ``on`` are the stream's columns that stand for the index's key, in its order.

    ``with_key``: the index's key columns are in the output, too. ``conditions``: what an index row must fulfil besides.
    ``filter``: a condition over the joined row. ``marker``: a last column that tells rows with a match from others.
    ``prefetch``: how many batches to look up ahead in an index that blocks. ``split_output``: cut large output into
    pieces; False: one batch of output for each batch of input, however large.
    """

    index: Index
    on: tuple[str, ...]
    how: str = "inner"
    suffix: str = "_right"
    with_key: bool = False
    conditions: tuple[Between | InList, ...] = ()
    filter: pc.Expression | str | None = None
    marker: str | None = None
    prefetch: int = PREFETCH
    split_output: bool = True
    kind: str = "lookup join"

    @property
    def fingerprint(self) -> str:
        """The index's: what tells after a failure whether it still has the content that the job began with."""
        return self.index.fingerprint()

    @property
    def traits(self) -> Traits:
        """Lookups in an index that blocks are under way on other threads while the stream goes on."""
        return Traits(
            columns=self._columns,
            emission=Emission.PER_BATCH,
            lineage=Lineage(follows=0),
            asynchronous=self.index.blocks,
            beyond_budget="what the index has in memory, and its answers for a batch",
            may_be_copied=True,
            ends_epochs=True,
        )

    def _columns(self, inputs: Sequence[pa.Schema]) -> list[Columns]:
        """A column of the index gets a suffix if the stream has the name: then the stream's must stay."""
        pairs = self.shape(inputs).pairs
        filtered = [] if self.filter is None else [as_expression(self.kind, self.filter, pairs)]
        probes = [name for condition in self.conditions for name in condition.probe_columns]
        reads = {*self.on, *probes, *columns_read(filtered, pairs), *self.index.schema.names}
        return [Columns.passed_on(inputs[0], reads)]

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The stream's columns, then the index's (without its key), then the marker."""
        shape = self.shape(inputs)
        self.condition(shape)
        if self.marker is None:
            return shape.schema
        fields = [*shape.schema, pa.field(self.marker, pa.bool_())]
        return unique_schema(self.kind, fields, "choose another name for the marker")

    def shape(self, inputs: Sequence[pa.Schema]) -> JoinShape:
        """Where the output's columns come from; checks the input."""
        check_inputs(self.kind, inputs, 1)
        check_join_type(self.kind, self.how, JOIN_TYPES)
        self._check_options()
        check_distinct(self.kind, "key", self.on)
        check_columns(self.kind, inputs[0], self.on)
        check_movable(self.kind, inputs[0])
        if len(self.on) != len(self.index.key):
            raise FlowError(
                f"lookup join: {len(self.on)} columns {list(self.on)} stand for the key {list(self.index.key)}",
                "name one column of the stream for each column of the index's key",
            )
        fields = [inputs[0].field(name) for name in self.on]
        check_key_types(self.kind, fields)
        theirs = [self.index.schema.field(name) for name in self.index.key]
        check_same_types(self.kind, zip(fields, theirs, strict=True), "stream", "index")
        for condition in self.conditions:
            check_columns(self.kind, self.index.schema, [condition.column], "index")
            check_columns(self.kind, inputs[0], condition.probe_columns)
        once = [] if self.with_key else list(zip(self.on, self.index.key, strict=True))
        return JoinShape.of(self.kind, (inputs[0], self.index.schema), once, self.how, self.suffix)

    def _check_options(self) -> None:
        if not isinstance(self.index, Index):
            raise FlowError(
                f"lookup join: {type(self.index).__name__} is no index",
                "use ps.index.memory, ps.index.parquet or ps.index.sql, or give an object with the members of "
                "ps.index.Index: schema, key, blocks, open, fingerprint, describe",
            )
        if self.prefetch < 0:
            raise FlowError(f"lookup join: prefetch is {self.prefetch}", "give 0 or more batches to look up ahead")

    def condition(self, shape: JoinShape) -> PairFilter | None:
        """Conditions and filter as one, ready to run."""
        parts = [each.expression(self._index_column(shape, each.column), shape.pairs) for each in self.conditions]
        if self.filter is not None:
            parts.append(as_expression(self.kind, self.filter, shape.pairs))
        if not parts:
            return None
        return PairFilter(self.kind, reduce(lambda one, other: one & other, parts), shape)

    def _index_column(self, shape: JoinShape, name: str) -> str:
        """The name of an index column in the joined row."""
        if name in self.index.key and not self.with_key:
            return self.on[self.index.key.index(name)]
        position = self.index.schema.get_field_index(name)
        places = [
            place for place, source in enumerate(shape.pair_sources) if source.side and source.position == position
        ]
        return str(shape.pairs.field(places[0]).name)

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningLookupJoin:
        """A running join; opens the index."""
        shape = self.shape(inputs)
        bound = Bound(context.output_rows, context.output_bytes) if self.split_output else None
        output = LookupOutput(shape, self.output_schema(inputs), self.condition(shape), self.how, bound)
        compared = [name for condition in self.conditions for name in condition.probe_columns]
        inquiry = Inquiry(self.index, self.on, list(dict.fromkeys([*self.on, *compared])))
        if not self.index.blocks:
            return RunningLookupJoin(inquiry, output)
        return AsynchronousLookupJoin(inquiry, output, context.background, self.prefetch)

    def describe(self) -> str:
        """Join type, keys, index and conditions."""
        conditions = [each.describe() for each in self.conditions]
        conditions += [] if self.filter is None else [str(self.filter)]
        extra = [f"where {' and '.join(conditions)}"] if conditions else []
        extra += ["with its key"] if self.with_key else []
        extra += [f"marker {self.marker}"] if self.marker is not None else []
        return ", ".join([f"{self.how} on {', '.join(self.on)}", self.index.describe(), *extra])

    def _identity(self) -> tuple[object, ...]:
        options = (self.suffix, self.with_key, self.conditions, self.marker, self.prefetch, self.split_output)
        return self.index, self.on, self.how, *options

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LookupJoin)
            and self._identity() == other._identity()
            and same_expression(self.filter, other.filter)
        )

    def __hash__(self) -> int:
        return hash(self._identity())
