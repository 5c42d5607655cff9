"""What the joins of two streams on equal keys ask for: keys, join type, filter; checked against the inputs.

``MergeJoin`` and ``HashJoin`` differ in how they find the pairs, not in what they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...core.errors import FlowError
from ...core.schemas import check_columns, check_distinct, check_inputs, check_movable, check_same_types
from ...expressions.expressions import same_expression
from ...kernels.keys import check_key_types
from .join_shape import LEFT, RIGHT, JoinShape, check_join_type
from .matching import PairFilter

NAMES = ("left", "right")


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

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of both sides, or of one; see ``join_shape``."""
        shape = self.shape(inputs)
        self.condition(shape)
        return shape.schema

    def shape(self, inputs: Sequence[pa.Schema]) -> JoinShape:
        """Where the output's columns come from; checks the inputs."""
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
