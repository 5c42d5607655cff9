"""In which rounds the rows of a stream come, and which streams a merge join can therefore join. Pure.

A merge join takes together what comes in the same round and lane. That is right only if both inputs are alike:

1. *by round*: every row is in the round of the source rows that it is made of. Split sets then meet as they were read.
2. *at barriers*: all rows come at a task barrier, behind the last round before it, or in the final round. *At the end*:
   in the final round alone, because the operator holds at task barriers.
3. *mixed*: some rows come in another round than those that they are made of, and others do not. No partner can be sure
   to find them: such an input is refused, and so are two that are not of the same kind.

An operator that holds all rows back until a barrier or the end makes any stream one of 2. One that does not say how it
emits (``Traits.emission``) counts as mixed. Where the order is that of arrival, exchanges mix rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..core.errors import FlowError
from ..core.traits import Emission, traits_of
from ..plan.partitioning import Forward
from .graph import Node
from .placement import Placement

When: TypeAlias = Literal["by round", "at barriers", "at the end", "mixed"]

_WORDS = {
    "by round": "come round by round",
    "at barriers": "come together, at the end or at a task barrier",
    "at the end": "come together, at the end alone",
}
_REMEDY = "sort both inputs, use hash_join, or do this after the join"


@dataclass(frozen=True, slots=True)
class EmissionProperties:
    """When the rows of a stream come; ``why`` and ``remedy`` if not by round."""

    when: When = "by round"
    why: str = ""
    remedy: str = _REMEDY


BY_ROUND = EmissionProperties()


def emission_properties(nodes: Iterable[Node], *, ordered: bool = True) -> dict[str, EmissionProperties]:
    """When the rows of each node come. ``nodes``: each after its inputs; ``ordered``: the flow is deterministic."""
    found: dict[str, EmissionProperties] = {}
    for node in nodes:
        found[node.id] = _behind(node, [found[source] for source in node.inputs], ordered)
    return found


def check_co_partitioned(
    nodes: Sequence[Node], placement: Callable[[str], Placement], *, ordered: bool = True
) -> set[str]:
    """Refuse merge joins of inputs that could miss each other (FlowError). The ids of those that join by split."""
    found = emission_properties(nodes, ordered=ordered)
    by_split = set()
    for node in nodes:
        keys = traits_of(node.config).co_partitioned_by
        if not keys:
            continue
        _check_rounds(node, found)
        left, right = (placement(source) for source in node.inputs)
        if left.place == "parts" and not left.matches(right, *keys):
            message = "its inputs are not partitioned alike by its keys: rows with equal keys may be in different parts"
            raise FlowError(message, "call partition_by(…) with the keys of the join on both", node.id)
        if found[node.inputs[0]].when == "by round" or left.place == "lanes":
            by_split.add(node.id)
    return by_split


def _check_rounds(node: Node, found: Mapping[str, EmissionProperties]) -> None:
    left, right = (found[source] for source in node.inputs)
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


def _behind(node: Node, inputs: Sequence[EmissionProperties], ordered: bool) -> EmissionProperties:
    if not inputs:
        return BY_ROUND
    if node.is_exchange and not ordered and not isinstance(node.config, Forward):
        why = f"{node.id} brings them in the order of their arrival"
        return EmissionProperties("mixed", why, "use order='deterministic', sort both inputs, or use hash_join")
    if node.is_exchange or node.schema is None:
        return inputs[0]
    return _emitted(node, inputs, traits_of(node.config).emission)


def _emitted(node: Node, inputs: Sequence[EmissionProperties], emission: Emission) -> EmissionProperties:
    if emission is Emission.PER_BATCH:
        return inputs[0]
    if emission is Emission.AT_END:
        at_the_end = node.hold or inputs[0].when == "at the end"
        return EmissionProperties(
            "at the end" if at_the_end else "at barriers", f"{node.id} gives all of them together"
        )
    if emission is Emission.AFTER_BUILD:
        return _behind_build_side(node, inputs)
    if emission is Emission.IN_TURN:
        why = f"{node.id} gives rows when it is their turn, which may be in a later round"
        return EmissionProperties("mixed", why)
    mixed = next((each for each in inputs if each.when == "mixed"), None)
    if mixed is not None:
        return mixed
    if emission in (Emission.PER_GROUP, Emission.PER_BLOCK):
        return _behind_groups(node, inputs[0], emission)
    if emission is Emission.PER_ROUND:
        return _together(node, inputs)
    return EmissionProperties(
        "mixed",
        f"it is not known in which rounds {node.id} gives them",
        "declare it if rows leave in the rounds they came in (traits = ps.Traits(emission=ps.Emission.PER_ROUND)), or "
        "use hash_join",
    )


def _behind_build_side(node: Node, inputs: Sequence[EmissionProperties]) -> EmissionProperties:
    """Left rows wait for the end of the right side, then come in the round that is open, unless they come behind the
    last round themselves."""
    if all(each.when == "at the end" for each in inputs):
        return inputs[0]
    if inputs[0].when == "at barriers" and not node.hold:
        return inputs[0]
    return EmissionProperties("mixed", f"{node.id} gives rows that have waited for its right side in a later round")


def _behind_groups(node: Node, before: EmissionProperties, emission: Emission) -> EmissionProperties:
    if before.when == "at the end" or (before.when == "at barriers" and not node.hold):
        return before
    return EmissionProperties("mixed", f"{node.id} gives {emission.value}, which may be in a later round")


def _together(node: Node, inputs: Sequence[EmissionProperties]) -> EmissionProperties:
    if len({each.when for each in inputs}) > 1:
        words = " and rows that ".join(dict.fromkeys(_WORDS[each.when] for each in inputs))
        return EmissionProperties("mixed", f"{node.id} takes together rows that {words}")
    if node.hold and inputs[0].when == "at barriers":
        return EmissionProperties("mixed", f"{node.id} holds at a barrier what comes at it")
    return inputs[0]
