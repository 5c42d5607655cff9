"""Where the rows of a stream are: what an operator needs to know to do without an exchange.

Rules:

1. A stream is in one of four places: *lanes* (of its sources, spread over subtasks), *parts* (behind a partitioned
   exchange), *one* (gathered into one subtask), *every* (broadcast: each subtask has all rows).
2. In parts it is known, or not, by which columns: ``partitioning`` then names them as the stream does now. Rows that
   are equal in these columns are in one part. What an operator makes of the columns is followed where it is certain:
   through kept and renamed columns, keys of aggregates and joins; not through functions of users.
3. What each subtask has a copy of may be filtered, mapped, unnested and looked up, and joined as the right side of a
   hash join that gives no right rows of its own. Anything else would see, or give, each row once per subtask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

import pyarrow as pa

from ..core.errors import FlowError
from ..core.operator import OperatorConfig
from ..expressions.expressions import plain_column
from ..operators import (
    Distinct,
    Filter,
    HashAggregate,
    HashJoin,
    Limit,
    LookupJoin,
    MapBatches,
    MarkDistinct,
    Project,
    Sort,
    StreamAggregate,
    TopN,
    Union,
    Unnest,
    Window,
)
from ..operators.join.equi_join import EquiJoin
from ..operators.join.join_shape import RIGHT_STAYS
from ..operators.join.replicated_join import MarkPart, ReplicatedJoin
from ..operators.sequence.regroup import Regroup
from ..plan.partitioning import (
    Broadcast,
    Exchanging,
    Gather,
    HashPartitioning,
    Partitioning,
    RangePartitioning,
    RoundRobin,
    same_parts,
)

Place: TypeAlias = Literal["lanes", "parts", "one", "every"]

EXCHANGES = (Gather, Broadcast, HashPartitioning, RoundRobin, RangePartitioning)
_KEEP_COLUMNS = (Filter, Sort, TopN, Distinct, Limit, MarkDistinct, Window, LookupJoin, MarkPart)
_MAY_COPY = (Filter, Project, MapBatches, Unnest, LookupJoin)
_REPLICABLE = ("inner", "left", "left semi", "anti")


@dataclass(frozen=True, slots=True)
class Placement:
    """See the module's rules. ``partitioning`` is None where it is not known by which columns, or there are none."""

    place: Place = "lanes"
    partitioning: Partitioning | None = None

    def holds_groups(self, by: Sequence[str]) -> bool:
        """Whether all rows that are equal in the columns ``by`` are in one part, or in the only subtask."""
        if self.place == "one":
            return True
        return self.partitioning is not None and set(self.partitioning.keys) <= set(by)

    def matches(self, other: Placement, on: Sequence[str], other_on: Sequence[str]) -> bool:
        """Whether rows of this stream and of another with equal keys, pair by pair, are in equal parts."""
        one, two = self.partitioning, other.partitioning
        if one is None or two is None or not same_parts(one, two):
            return False
        pairs = set(zip(on, other_on, strict=True))
        return all(pair in pairs for pair in zip(one.keys, two.keys, strict=True))


def place_exchange(config: Exchanging, before: Placement) -> Placement:
    """Where the rows are behind an exchange."""
    if before.place == "every":
        raise _copied(config.kind)
    if isinstance(config, Gather):
        return Placement("one")
    if isinstance(config, Broadcast):
        return Placement("every")
    return Placement("parts", config if config.keys else None)


def place(config: OperatorConfig, before: Sequence[Placement], inputs: Sequence[pa.Schema]) -> Placement:
    """Where the rows are behind an operator over streams with these placements and schemas."""
    if isinstance(config, Regroup):
        return Placement(before[0].place, config.partitioning or before[0].partitioning)
    if any(each.place == "every" for each in before):
        _check_copies(config, before)
    places = {each.place for each in before}
    if len(before) > 1:
        places.discard("every")
    found: Place = next(name for name in ("lanes", "parts", "one", "every") if name in places)
    return Placement(found, _partitioning(config, before, inputs) if found == "parts" else None)


def _check_copies(config: OperatorConfig, before: Sequence[Placement]) -> None:
    if len(before) == 1 and isinstance(config, _MAY_COPY):
        return
    if not isinstance(config, HashJoin | ReplicatedJoin) or before[0].place == "every":
        raise _copied(config.kind)
    if config.how not in _REPLICABLE:
        raise FlowError(
            f"{config.kind}: a {config.how} join with a broadcast right side would give its rows once per subtask",
            f"join it as one of {', '.join(_REPLICABLE)}, or partition both sides by the keys",
        )
    if before[0].place == "lanes":
        raise FlowError(
            f"{config.kind}: its right side is broadcast, and its left side comes from a source without an exchange",
            "call .rebalance() or .partition_by(…) on the left side",
        )


def _copied(kind: str) -> FlowError:
    return FlowError(
        f"{kind}: its input is broadcast, so that every subtask would do the same with all rows",
        "join it as the right side of a hash join, or do this before broadcast()",
    )


def _partitioning(
    config: OperatorConfig, before: Sequence[Placement], inputs: Sequence[pa.Schema]
) -> Partitioning | None:
    known = before[0].partitioning
    if isinstance(config, EquiJoin | ReplicatedJoin):
        return _of_join(config, before)
    if isinstance(config, Union):
        alike = all(each.partitioning is not None and _equal(each.partitioning, known) for each in before)
        return known if alike else None
    if known is None or isinstance(config, _KEEP_COLUMNS):
        return known
    return _renamed(known, _names_behind(config, inputs[0]))


def _of_join(config: EquiJoin | ReplicatedJoin, before: Sequence[Placement]) -> Partitioning | None:
    """The left columns keep their names. Where a row may lack a left side, the key must stand once for both."""
    left, right = before[0].partitioning, before[1].partitioning
    if config.how == "right semi":
        return right
    if config.how not in RIGHT_STAYS or left is None:
        return left
    join = config.join if isinstance(config, ReplicatedJoin) else config
    return left if join.right_on is None and set(left.keys) <= set(join.on) else None


def _equal(one: Partitioning, other: Partitioning | None) -> bool:
    return other is not None and one.keys == other.keys and same_parts(one, other)


def _names_behind(config: OperatorConfig, schema: pa.Schema) -> Mapping[str, str]:
    """Input column to the output column that holds the same values, where there is one."""
    if isinstance(config, Project):
        found: dict[str, str] = {}
        for name, expression in config.compiled(schema):
            position = plain_column(expression, schema)
            if position is not None:
                found.setdefault(schema.names[position], name)
        return found
    if isinstance(config, Unnest):
        return {name: name for name in schema.names if name not in config.columns}
    if isinstance(config, HashAggregate | StreamAggregate):
        return {name: name for name in config.by}
    return {}


def _renamed(partitioning: Partitioning, names: Mapping[str, str]) -> Partitioning | None:
    keys = tuple(names[key] for key in partitioning.keys if key in names)
    if len(keys) < len(partitioning.keys) or not keys:
        return None
    if isinstance(partitioning, RangePartitioning):
        return replace(partitioning, column=keys[0])
    return replace(cast(HashPartitioning, partitioning), keys=keys)
