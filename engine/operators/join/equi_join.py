"""What the joins of two streams on equal keys ask for: keys, join type, filter; checked against the inputs.

``MergeJoin`` and ``HashJoin`` differ in how they find the pairs, not in what they are asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias
from weakref import ref

import pyarrow as pa
import pyarrow.compute as pc

from ...core.errors import FlowError
from ...core.schemas import check_columns, check_distinct, check_inputs, check_movable, check_same_types
from ...core.traits import BuildSide, Columns, Lineage
from ...expressions.bounds import has_answers, is_exact
from ...expressions.expressions import as_expression, same_expression
from ...expressions.implied import implied
from ...expressions.kernel_calls import columns_of, columns_read
from ...kernels.keys import check_key_types
from .join_shape import LEFT, LEFT_ALONE, RIGHT, RIGHT_STAYS, JoinShape, OutputColumn, check_join_type
from .matching import PairFilter

NAMES = ("left", "right")

NEED_A_MATCH = (
    frozenset({"inner", "left semi", "right", "right semi"}),
    frozenset({"inner", "left semi", "right semi", "left", "anti"}),
)
"""For each port the join types in which its rows without a match give nothing."""


_SHOWS = {
    "inner": (LEFT, RIGHT), "left": (LEFT,), "left semi": (LEFT,), "anti": (LEFT,),
    "right": (RIGHT,), "right semi": (RIGHT,),
}  # fmt: skip
"""Of which sides every row of the output shows a row."""
_FOLLOWS = {"inner": (LEFT, RIGHT), "left semi": (RIGHT,), "right semi": (LEFT,)}
"""For which sides a condition on the keys of the other one holds, too."""
_shapes: Final[dict[int, tuple[ref[EquiJoin], tuple[pa.Schema, ...], JoinShape]]] = {}
"""Of joins that are there, by address, for the inputs that they were last asked about."""
_Before: TypeAlias = tuple[dict[str, pc.Expression], dict[str, pc.Expression]]


def _are_same(some: Sequence[pa.Schema], others: Sequence[pa.Schema]) -> bool:
    return len(some) == len(others) and all(
        one is other or one.equals(other, check_metadata=True) for one, other in zip(some, others, strict=True)
    )


def _forget(place: int, _: object, known: dict[int, Any] = _shapes) -> None:
    known.pop(place, None)


@dataclass(frozen=True, eq=False)
class EquiJoin:
    """Joins port 0 (left) with port 1 (right) ``on`` columns that both have.

    ``right_on``: the right side's names of the keys, if they differ; then the keys of both sides are in the output.
    ``how``: inner, left, right, full, left semi, right semi or anti (left rows without match, null keys included).
    ``filter``: what a pair of rows with equal keys must fulfil besides, over the joined row.
    """

    on: tuple[str, ...]
    how: str = "inner"
    suffix: str = "_right"
    right_on: tuple[str, ...] | None = None
    filter: pc.Expression | str | None = None
    kind: str = "join"

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The key columns of both sides."""
        return self.on, self.on if self.right_on is None else self.right_on

    @property
    def lineage(self) -> Lineage:
        """A row of the output is one of the left side, but for a right semi join."""
        lost = "gives of its right side alone" if self.how in RIGHT_STAYS else ""
        return Lineage(RIGHT if self.how == "right semi" else LEFT, lost=lost)

    @property
    def key_filters(self) -> dict[int, tuple[str, ...]]:
        """Those sides. The reader of one may wait for keys where the plan has the other one read first."""
        return {port: self.keys[port] for port in self.needs_match}

    @property
    def needs_match(self) -> tuple[int, ...]:
        """The sides whose rows give nothing without a match."""
        return tuple(port for port in (LEFT, RIGHT) if self.how in NEED_A_MATCH[port])

    @property
    def build_side(self) -> BuildSide:
        """The right side, where one is built."""
        gives = "" if self.how in LEFT_ALONE else f"a {self.how} join"
        return BuildSide(RIGHT, gives, f"join it as one of {', '.join(LEFT_ALONE)}")

    def columns(self, inputs: Sequence[pa.Schema]) -> list[Columns]:
        """It looks at keys and at what the filter names. A right column gets a suffix if the left side has the name:
        then the left one must stay."""
        shape, names = self.shape(inputs), [schema.names for schema in inputs]
        reads = [set(keys) for keys in self.keys]
        filtered = set()
        if self.filter is not None:
            filtered = columns_read([as_expression(self.kind, self.filter, shape.pairs)], shape.pairs)
        for name, source in zip(shape.pairs.names, shape.pair_sources, strict=True):
            if name in filtered:
                reads[source.side].add(names[source.side][source.position])
        lefts = set(names[LEFT])
        uses: tuple[dict[str, set[str]], ...] = ({}, {})
        for name, source in zip(shape.schema.names, shape.sources, strict=True):
            column = names[source.side][source.position]
            uses[source.side][name] = {column}
            if source.side == RIGHT and column in lefts:
                uses[LEFT][name] = {column}
        reads[LEFT] |= reads[RIGHT] & lefts
        kept = self._kept(inputs)
        return [Columns(reads[side], kept[side], uses[side]) for side in (LEFT, RIGHT)]

    def asks(self, inputs: Sequence[pa.Schema]) -> list[pc.Expression | None]:
        """What its filter says of one side alone, of a side whose rows give nothing without a match."""
        if self.filter is None or not self._has_answers(shape := self.shape(inputs)):
            return [None, None]
        condition = as_expression(self.kind, self.filter, shape.pairs)
        own, keys = self._before(inputs, columns_of(condition) or (), shape.pairs, shape.pair_sources)
        found = [implied(condition, keys[side] | own[side]) for side in (LEFT, RIGHT)]
        return [each if side in self.needs_match else None for side, each in enumerate(found)]

    def early(self, inputs: Sequence[pa.Schema], names: Collection[str]) -> list[dict[str, pc.Expression]]:
        """The columns of sides that every row shows, and keys that are equal to some of these."""
        shape = self.shape(inputs)
        if not self._has_answers(shape):
            return [{}, {}]
        own, keys = self._before(inputs, names, shape.schema, shape.sources)
        found: list[dict[str, pc.Expression]] = [{}, {}]
        for side in (LEFT, RIGHT):
            if side in _FOLLOWS.get(self.how, ()):
                found[side] |= keys[side]
            if side in _SHOWS.get(self.how, ()):
                found[side] |= own[side]
        return found

    def _has_answers(self, shape: JoinShape) -> bool:
        if self.filter is None:
            return True
        return has_answers(as_expression(self.kind, self.filter, shape.pairs), shape.pairs)

    def _before(
        self, inputs: Sequence[pa.Schema], names: Collection[str], schema: pa.Schema, sources: Sequence[OutputColumn]
    ) -> tuple[_Before, _Before]:
        """What these columns of joined rows are on each side, and what the keys of the other side are."""
        own: _Before = {}, {}
        keys: _Before = {}, {}
        equal = [dict(zip(self.keys[side], self.keys[1 - side], strict=True)) for side in (LEFT, RIGHT)]
        columns = [each.names for each in inputs]
        for name, source in zip(schema.names, sources, strict=True):
            if name not in names:
                continue
            side, column = source.side, columns[source.side][source.position]
            own[side][name] = pc.field(column)
            other = equal[side].get(column)
            if other is None:
                continue
            types = inputs[side].field(column).type, inputs[1 - side].field(other).type
            if types[0] == types[1] and is_exact(types[0]):
                # a key that stands once for both is the right one's, too, where a row has no left side
                (keys if source.other is None else own)[1 - side][name] = pc.field(other)
        return own, keys

    def _kept(self, inputs: Sequence[pa.Schema]) -> tuple[dict[str, str], dict[str, str]]:
        """Left columns keep their names. Where a row may lack a left side, a key must stand once for both."""
        if self.how == "right semi":
            return {}, {name: name for name in inputs[RIGHT].names}
        if self.how not in RIGHT_STAYS:
            return {name: name for name in inputs[LEFT].names}, {}
        return ({name: name for name in self.on} if self.right_on is None else {}), {}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of both sides, or of one; see ``join_shape``."""
        shape = self.shape(inputs)
        self.condition(shape)
        return shape.schema

    def shape(self, inputs: Sequence[pa.Schema]) -> JoinShape:
        """Where the output's columns come from; checks the inputs."""
        known = _shapes.get(id(self))
        if known is not None and known[0]() is self and _are_same(inputs, known[1]):
            return known[2]
        shape = self._shape(inputs)
        _shapes[id(self)] = ref(self, partial(_forget, id(self))), tuple(inputs), shape
        return shape

    def _shape(self, inputs: Sequence[pa.Schema]) -> JoinShape:
        check_inputs(self.kind, inputs, 2)
        check_join_type(self.kind, self.how)
        if not self.on:
            raise FlowError(f"{self.kind}: no key is given", "name at least one column to join on")
        if len(self.keys[LEFT]) != len(self.keys[RIGHT]):
            raise FlowError(
                f"{self.kind}: {len(self.on)} keys on the left, {len(self.keys[RIGHT])} on the right",
                "name as many columns in right_on as in on",
            )
        for name, schema, keys in zip(NAMES, inputs, self.keys, strict=True):
            check_distinct(self.kind, "key", keys)
            check_columns(self.kind, schema, keys, f"{name} input")
            check_movable(self.kind, schema, side=f"{name} input")
            check_key_types(self.kind, [schema.field(key) for key in keys])
        pairs = list(zip(*self.keys, strict=True))
        fields = [(inputs[LEFT].field(mine), inputs[RIGHT].field(theirs)) for mine, theirs in pairs]
        check_same_types(self.kind, fields, "left", "right")
        return JoinShape.of(self.kind, inputs, pairs if self.right_on is None else (), self.how, self.suffix)

    def condition(self, shape: JoinShape) -> PairFilter | None:
        """The filter, ready to run."""
        return None if self.filter is None else PairFilter(self.kind, self.filter, shape)

    def describe(self) -> str:
        """Join type, keys and filter."""
        pairs = zip(*self.keys, strict=True)
        keys = ", ".join(mine if self.right_on is None else f"{mine} = {theirs}" for mine, theirs in pairs)
        return f"{self.how} on {keys}" + ("" if self.filter is None else f" where {self.filter}")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, EquiJoin)
            and (self.kind, self.keys, self.right_on is None, self.how, self.suffix)
            == (other.kind, other.keys, other.right_on is None, other.how, other.suffix)
            and same_expression(self.filter, other.filter)
        )

    def __hash__(self) -> int:
        return hash(self.describe())
