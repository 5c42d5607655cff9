"""In which rounds the rows of a stream come, and which streams a merge join can therefore join. Pure.

A merge join takes together what comes in the same round and lane. That is right only if both inputs are alike:

1. *by round*: every row is in the round of the source rows that it is made of. Split sets then meet as they were read.
2. *at barriers*: all rows come at a task barrier, behind the last round before it, or in the final round. *At the end*:
   in the final round alone, because the operator holds at task barriers.
3. *mixed*: some rows come in another round than those that they are made of, and others do not. No partner can be sure
   to find them: such an input is refused, and so are two that are not of the same kind.

An operator that holds all rows back until a barrier or the end makes any stream one of 2. One that is not known here
counts as mixed, unless its config has an attribute ``keeps_rounds`` that is true: it emits the rows of a round before
the round ends, and what comes at a barrier at that barrier (``drain``). Where the order is that of arrival, exchanges
mix rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..core.errors import FlowError
from ..operators import (
    Distinct,
    Filter,
    HashAggregate,
    HashJoin,
    Limit,
    LookupJoin,
    MapBatches,
    MarkDistinct,
    MergeJoin,
    Mix,
    Pack,
    Project,
    Shuffle,
    Sort,
    StreamAggregate,
    TopN,
    Union,
    Unnest,
    Window,
)
from ..operators.join.replicated_join import MarkPart, ReplicatedJoin
from ..operators.sequence.regroup import Regroup
from .graph import Node
from .placement import Placement

When: TypeAlias = Literal["by round", "at barriers", "at the end", "mixed"]

_AT_ONCE = (Filter, Project, MapBatches, Unnest, LookupJoin, Limit, MarkPart)
_WITH_THE_ROUND = (Distinct, MarkDistinct, Regroup, Union, MergeJoin)
_GROUP_BY_GROUP = (StreamAggregate, Window)
_BLOCK_BY_BLOCK = (Shuffle, Pack)
_ALL_TOGETHER = (Sort, TopN, HashAggregate)

_WORDS = {
    "by round": "come round by round",
    "at barriers": "come together, at the end or at a task barrier",
    "at the end": "come together, at the end alone",
}
_REMEDY = "sort both inputs, use hash_join, or do this after the join"


@dataclass(frozen=True, slots=True)
class Coming:
    """When the rows of a stream come; ``why`` and ``remedy`` if not by round."""

    when: When = "by round"
    why: str = ""
    remedy: str = _REMEDY


BY_ROUND = Coming()


def rounds_kept(nodes: Iterable[Node], *, ordered: bool = True) -> dict[str, Coming]:
    """When the rows of each node come. ``nodes``: each after its inputs; ``ordered``: the flow is deterministic."""
    found: dict[str, Coming] = {}
    for node in nodes:
        found[node.id] = _behind(node, [found[source] for source in node.inputs], ordered)
    return found


def check_merge_joins(
    nodes: Sequence[Node], placement: Callable[[str], Placement], *, ordered: bool = True
) -> set[str]:
    """Refuse merge joins of inputs that could miss each other (FlowError). The ids of those that join by split."""
    coming = rounds_kept(nodes, ordered=ordered)
    by_split = set()
    for node in nodes:
        if not isinstance(node.config, MergeJoin):
            continue
        _check_rounds(node, coming)
        left, right = (placement(source) for source in node.inputs)
        if left.place == "parts" and not left.matches(right, *node.config.keys):
            message = "its inputs are not partitioned alike by its keys: rows with equal keys may be in different parts"
            raise FlowError(message, "call partition_by(…) with the keys of the join on both", node.id)
        if coming[node.inputs[0]].when == "by round" or left.place == "lanes":
            by_split.add(node.id)
    return by_split


def _check_rounds(node: Node, coming: Mapping[str, Coming]) -> None:
    left, right = (coming[source] for source in node.inputs)
    for side, each in (("left", left), ("right", right)):
        if each.when == "mixed":
            raise FlowError(f"rows of its {side} input do not stay in their rounds: {each.why}", each.remedy, node.id)
    if left.when != right.when:
        whose = "; ".join(each.why for each in (left, right) if each.why)
        message = f"rows of its left input {_WORDS[left.when]}, those of its right input {_WORDS[right.when]} ({whose})"
        is_by_round = "by round" in (left.when, right.when)
        remedy = "sort both inputs, or use hash_join" if is_by_round else "give both inputs the same at_barrier"
        raise FlowError(f"{message}: they would never meet", remedy, node.id)
    if node.hold and left.when == "at barriers":
        message = f"it holds at barriers, but rows join within their window only ({left.why})"
        raise FlowError(message, "leave out at_barrier='hold'", node.id)


def _behind(node: Node, inputs: Sequence[Coming], ordered: bool) -> Coming:
    config = node.config
    if not inputs:
        return BY_ROUND
    if node.is_exchange and not ordered:
        why = f"{node.id} brings them in the order of their arrival"
        return Coming("mixed", why, "use order='deterministic', sort both inputs, or use hash_join")
    if node.is_exchange or isinstance(config, _AT_ONCE) or node.schema is None:
        return inputs[0]
    if isinstance(config, _ALL_TOGETHER):
        at_the_end = node.hold or inputs[0].when == "at the end"
        return Coming("at the end" if at_the_end else "at barriers", f"{node.id} gives all of them together")
    if isinstance(config, HashJoin | ReplicatedJoin):
        return _behind_hash_join(node, inputs)
    if isinstance(config, Mix):
        return Coming("mixed", f"{node.id} gives rows when it is their turn, which may be in a later round")
    mixed = next((each for each in inputs if each.when == "mixed"), None)
    if mixed is not None:
        return mixed
    if isinstance(config, _GROUP_BY_GROUP + _BLOCK_BY_BLOCK):
        return _behind_groups(node, inputs[0])
    if isinstance(config, _WITH_THE_ROUND) or getattr(config, "keeps_rounds", False):
        return _together(node, inputs)
    return Coming(
        "mixed",
        f"it is not known in which rounds {node.id} gives them",
        "give its config an attribute keeps_rounds = True if rows leave in the rounds they came in, or use hash_join",
    )


def _behind_hash_join(node: Node, inputs: Sequence[Coming]) -> Coming:
    """Left rows wait for the end of the right side, then come in the round that is open, unless they come behind the
    last round themselves."""
    if all(each.when == "at the end" for each in inputs):
        return inputs[0]
    if inputs[0].when == "at barriers" and not node.hold:
        return inputs[0]
    return Coming("mixed", f"{node.id} gives rows that have waited for its right side in a later round")


def _behind_groups(node: Node, before: Coming) -> Coming:
    if before.when == "at the end" or (before.when == "at barriers" and not node.hold):
        return before
    what = "a group when the next one begins" if isinstance(node.config, _GROUP_BY_GROUP) else "a block when it is full"
    return Coming("mixed", f"{node.id} gives {what}, which may be in a later round")


def _together(node: Node, inputs: Sequence[Coming]) -> Coming:
    if len({each.when for each in inputs}) > 1:
        words = " and rows that ".join(dict.fromkeys(_WORDS[each.when] for each in inputs))
        return Coming("mixed", f"{node.id} takes together rows that {words}")
    if node.hold and inputs[0].when == "at barriers":
        return Coming("mixed", f"{node.id} holds at a barrier what comes at it")
    return inputs[0]
