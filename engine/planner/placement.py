"""Where the rows of a stream are: what an operator needs to know to do without an exchange.

Rules:

1. A stream is in one of four places: *lanes* (of its sources, spread over subtasks), *parts* (behind a partitioned
   exchange), *one* (gathered into one subtask), *every* (broadcast: each subtask has all rows).
2. In parts it is known, or not, by which columns: ``partitioning`` then names them as the stream does now. Rows that
   are equal in these columns are in one part. What an operator makes of the columns is followed where it is certain:
   through the columns that it says it keeps.
3. What each subtask has a copy of may go through operators that may be copied (a filter, say), and be the build side of
   one that gives no rows of it alone. Anything else would see, or give, each row once per subtask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

import pyarrow as pa

from ..core.errors import FlowError
from ..core.operator import OperatorConfig
from ..core.traits import ALL_INPUTS, Columns, traits_of
from ..plan.partitioning import (
    Broadcast,
    Exchanging,
    Forward,
    Gather,
    HashPartitioning,
    Partitioning,
    RangePartitioning,
    RoundRobin,
    same_parts,
)

Place: TypeAlias = Literal["lanes", "parts", "one", "every"]

EXCHANGES = (Gather, Forward, Broadcast, HashPartitioning, RoundRobin, RangePartitioning)


@dataclass(frozen=True, slots=True)
class Placement:
    """See the module's rules. ``partitioning`` is None where it is not known by which columns, or there are none.
    ``crossed``: rows in the lanes of their sources have passed an exchange (``Forward``)."""

    place: Place = "lanes"
    partitioning: Partitioning | None = None
    crossed: bool = False

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
    if isinstance(config, Forward):
        return replace(before, crossed=True)
    if isinstance(config, Gather):
        return Placement("one")
    if isinstance(config, Broadcast):
        return Placement("every")
    return Placement("parts", config if config.keys else None)


def place(config: OperatorConfig, before: Sequence[Placement], inputs: Sequence[pa.Schema]) -> Placement:
    """Where the rows are behind an operator over streams with these placements and schemas."""
    if any(each.place == "every" for each in before):
        _check_copies(config, before)
    places = {each.place for each in before}
    if len(before) > 1:
        places.discard("every")
    found: Place = next(name for name in ("lanes", "parts", "one", "every") if name in places)
    crossed = any(each.crossed for each in before)
    return Placement(found, _partitioning(config, before, inputs) if found == "parts" else None, crossed)


def _check_copies(config: OperatorConfig, before: Sequence[Placement]) -> None:
    traits = traits_of(config)
    if len(before) == 1 and traits.may_be_copied:
        return
    build = traits.build_side
    if build is None:
        raise _copied(config.kind)
    others = [each for port, each in enumerate(before) if port != build.port]
    if any(each.place == "every" for each in others):
        raise _copied(config.kind)
    if build.gives_rows:
        raise FlowError(
            f"{config.kind}: {build.gives_rows} with a broadcast right side would give its rows once per subtask",
            f"{build.instead}, or partition both sides by the keys",
        )
    if any(each.place == "lanes" and not each.crossed for each in others):
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
    """That of an input, whose columns all rows still have; of all inputs, if rows are of any of them."""
    traits = traits_of(config)
    ports = zip(before, traits.columns_of(inputs), strict=True)
    found = [None if each.partitioning is None else _renamed(each.partitioning, columns) for each, columns in ports]
    if traits.lineage.follows != ALL_INPUTS:
        return next((each for each in found if each is not None), None)
    return found[0] if all(found[0] is not None and _equal(found[0], each) for each in found) else None


def _equal(one: Partitioning, other: Partitioning | None) -> bool:
    return other is not None and one.keys == other.keys and same_parts(one, other)


def _renamed(partitioning: Partitioning, columns: Columns) -> Partitioning | None:
    keys = tuple(columns.keeps[key] for key in partitioning.keys if key in columns.keeps)
    if len(keys) < len(partitioning.keys) or not keys:
        return None
    if isinstance(partitioning, RangePartitioning):
        return replace(partitioning, column=keys[0])
    return replace(cast(HashPartitioning, partitioning), keys=keys)
