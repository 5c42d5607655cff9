"""Which side of a join is read before the other one: the smaller one, so that the other need not be held. Pure.

Rules:

1. A side waits for the other one only if its rows give nothing without a match (``Traits.needs_match``), in flows of a
   deterministic order whose sources have their splits. Which one is read first changes no row and no order.
2. What waits stalls whoever sends to it. So a side may wait if nothing of it is forked on the way, as far as its rows
   stream: what blocks (a sort), or is read first itself, takes in all that comes.
3. What is read first must come to its end whatever the join gives. So wherever a stream that it comes of is forked,
   all branches must end somewhere that takes in all that comes: a sink that nobody outside paces, what blocks, or
   what is read first; on the way they may meet, at joins, what no fork can hold up. All joins begin with what suits
   them; those that would be held up lose it, the last one first, until that is so. Where both sides of such a join
   come of one fork, it may read its build side first instead, which is held in any case: the fork then leads to what
   takes in all of it, and joins above may begin with their smaller side.
4. Of equal sides the build side is first. Sizes are guesses (``estimates``).
5. Rows of a join that reads a side first leave under later rounds than their own (``hash_join``, rule 8), and so before
   a barrier that stands at an earlier one. What takes its streams round by round (a union, a mixture) would wait for
   the others to come to that round, and these, at that barrier, for the rows. No such join stands before one of those.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..core.traits import traits_of
from .estimates import Estimates
from .graph import Node
from .stages import LiveGraph


def read_first(sizes: Estimates) -> dict[str, int]:
    """For each join that reads one port before the other: which one."""
    if not sizes.are_known:
        return {}
    graph = sizes.graph
    found: dict[str, int] = {}
    in_step = _met_round_by_round(graph)
    for node in graph.nodes.values():
        traits = traits_of(node.config)
        build, waits = traits.build_side, traits.needs_match
        if build is None or not waits or node.id in in_step:
            continue
        other = 1 - build.port
        rows = {port: sizes.of(node.inputs[port]) for port in (build.port, other)}
        best = other if build.port in waits and (rows[other] < rows[build.port] or other not in waits) else build.port
        if 1 - best in waits and rows[best] <= rows[1 - best]:
            found[node.id] = best
    while wrong := [id for id, port in found.items() if not _may(graph, graph.nodes[id], port, found)]:
        _take_back(graph, wrong[-1], found)
    return found


def _met_round_by_round(graph: LiveGraph) -> set[str]:
    """The nodes whose rows come, however far down, to where streams are taken round by round (rule 5)."""
    found = set[str]()
    for node in reversed(graph.nodes.values()):
        if node.id in found or (len(node.inputs) > 1 and traits_of(node.config).build_side is None):
            found.update(node.inputs)
    return found


def _take_back(graph: LiveGraph, id: str, found: dict[str, int]) -> None:
    """Let a join that may not read a side first read its build side first, if both come of one fork, or none."""
    node, port = graph.nodes[id], found.pop(id)
    build = traits_of(node.config).build_side
    if build is not None and build.port != port and graph.meets_itself(node, build.port):
        found[id] = build.port


def _may(graph: LiveGraph, join: Node, first: int, found: Mapping[str, int]) -> bool:
    """Whether the other port may wait for this one (rules 2 and 3)."""
    mine, other = join.inputs[first], join.inputs[1 - first]
    if other in graph.forked and any(len(graph.consumers[id]) > 1 for id in _stalled(graph, other, found)):
        return False
    forks = [id for id in graph.upstream(mine) if len(graph.consumers[id]) > 1] if mine in graph.forked else []
    return all(_takes_all(graph, id, found) for id in forks)


def _stalled(graph: LiveGraph, id: str, found: Mapping[str, int]) -> set[str]:
    """Who stops if nobody reads what this node gives."""
    node = graph.nodes[id]
    if node.inputs and traits_of(node.config).blocking:
        return {id}
    waiting = [source for port, source in enumerate(node.inputs) if found.get(id) != port]
    return {id}.union(*(_stalled(graph, source, found) for source in waiting))


def _meets_what_comes(graph: LiveGraph, node: Node, port: int) -> bool:
    """Whether rows of this port wait for nobody, or at a join for what no fork can hold up."""
    others = [source for number, source in enumerate(node.inputs) if number != port]
    return not others or (traits_of(node.config).build_side is not None and graph.forked.isdisjoint(others))


def _takes_all(graph: LiveGraph, id: str, found: Mapping[str, int]) -> bool:
    """Whether whatever this node gives is taken by all who read it, in the end."""
    for consumer, port in graph.consumers[id]:
        node = graph.nodes[consumer]
        traits = traits_of(node.config)
        if traits.blocking or found.get(consumer) == port:
            continue
        if traits.throttled or not (_meets_what_comes(graph, node, port) and _takes_all(graph, consumer, found)):
            return False
    return True
