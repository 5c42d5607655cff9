"""Which sources of a job with several epochs are read again and again, in how many rounds, and what stands in the way.
Pure.

Rules:

1. Every feed of a flow has as many epochs. A source repeats its splits in each, in rounds of the same number everywhere
   (``epochs``): short sources have empty rounds. So nobody has to be told where an epoch ends.
2. The right side of a hash join is built once: its sources are read once, in the first epoch, and its lookup stays. It
   is complete before the last round of that epoch, so left rows that wait for it stay in their epoch.
3. An operator of what repeats must let go of its rows, and of what it remembers of them, at the latest when an epoch's
   last round ends (``Traits.ends_epochs``). Others are refused: so are sinks that would be given every row several
   times.
4. How many rounds a split takes must be known beforehand: where rows of splits are not known they are read whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from ..core.epochs import Epochs
from ..core.errors import FlowError
from ..core.traits import State, traits_of
from ..plan.plan import SourcePlan
from ..plan.rounds import SplitAssignment, evenly_assigned
from .graph import Node
from .stages import LiveGraph

_REMEDY = "write its result with another job first, or run a job for each epoch: shuffle(…, epoch=…)"


def plan_epochs(
    graph: LiveGraph, sources: Mapping[str, SourcePlan], lanes: int, *, ordered: bool
) -> tuple[Epochs | None, dict[str, SourcePlan]]:
    """The epochs of a flow, and its sources with what they mean for them. Raises FlowError."""
    count = _count(graph)
    if count == 1:
        return None, dict(sources)
    if not ordered:
        raise FlowError(f"{count} epochs of a flow without an order", 'run it with order="deterministic"')
    repeats = _what_repeats(graph)
    for id in sorted(repeats):
        _check(graph, graph.nodes[id], repeats, count)
    planned = {id: replace(_by_known_rounds(each), repeats=id in repeats) for id, each in sources.items()}
    rounds = max(_rounds(each, lanes) + (not each.repeats) for each in planned.values())
    return Epochs(count, max(1, rounds)), planned


def _count(graph: LiveGraph) -> int:
    asked = {id: traits_of(node.config).epochs for id, node in graph.nodes.items()}
    found = {id: count for id, count in asked.items() if count is not None}
    if len(set(found.values())) > 1:
        each = ", ".join(f"{id} of {count}" for id, count in found.items())
        raise FlowError(
            f"the feeds of one flow are to have different epochs: {each}",
            "give them the same epochs=, or a flow each: a source is read as often for all that follow it",
        )
    return max(found.values(), default=1)


def _what_repeats(graph: LiveGraph) -> set[str]:
    """All nodes that rows of every epoch come through. Raises FlowError if one of them is also built once."""
    repeats: set[str] = set()
    once: set[str] = set()
    for node in reversed(list(graph.nodes.values())):
        if node.schema is None:
            repeats.add(node.id)
        build = traits_of(node.config).build_side
        for port, source in enumerate(node.inputs):
            is_built = build is not None and port == build.port
            if node.id in once or is_built:
                once.add(source)
            if node.id in repeats and not is_built:
                repeats.add(source)
    if both := sorted(repeats & once):
        raise FlowError(
            "its rows come in every epoch, and are also built into the right side of a hash join, which is read once",
            "read the right side from a source of its own",
            both[0],
        )
    return repeats


def _check(graph: LiveGraph, node: Node, repeats: set[str], count: int) -> None:
    config, traits = node.config, traits_of(node.config)
    if node.schema is None:
        if traits.epochs is None:
            message = f"it would be given every row {count} times, because the feeds of the flow have {count} epochs"
            raise FlowError(message, "write these rows with a flow of their own", node.id)
    elif not node.inputs:
        if getattr(config, "fed", False):
            raise FlowError(f"{count} epochs of split sets", "add every set as often as it is to be read", node.id)
        if getattr(config, "reads_once", False):
            raise FlowError(
                f"{count} epochs of a source that is read only once, as a DataFrame is whose partitions are leased",
                'hand a frame over with handoff="stage"; write other rows into files, and read these',
                node.id,
            )
    elif (build := traits.build_side) is not None:
        if build.gives_rows:
            why = f"gives right rows at the end, and its right side is built once for {count} epochs"
            raise FlowError(f"{build.gives_rows} {why}", f"{build.instead}, or {_REMEDY}", node.id)
    elif not (node.is_exchange or traits.ends_epochs or traits.state is State.NONE):
        message = f"{config.kind}: what it holds or remembers would pass from one of the {count} epochs to the next"
        raise FlowError(message, _REMEDY, node.id)


def _by_known_rounds(source: SourcePlan) -> SourcePlan:
    return replace(source, quota=None) if source.rows is None else source


def _rounds(source: SourcePlan, lanes: int) -> int:
    """In how many rounds the source is read once."""
    if source.quota is None:
        return ceil(len(source.splits) / lanes)
    each, assignment = [0] * lanes, SplitAssignment(lanes, evenly_assigned(len(source.splits), lanes))
    for number, split in enumerate(source.splits):
        each[assignment.lane_of(number)] += (split.rows or 0) // source.quota + 1
    return max(each)
