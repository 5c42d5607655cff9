"""Which sources may leave out rows that a join drops, as no row of its other input has their keys. Pure.

Rules:

1. A join says which of its inputs that is possible for, and by which keys (``Traits.key_filters``). From there the way
   leads up, through exchanges that take each row for itself, and operators that may miss rows
   (``Traits.may_miss_rows``) and keep a key, to a source. Nobody else may read what is on the way: all that the source
   gives goes to this join. Filters directly behind the source may be any: its reader applies them first (``picking``).
2. No row, no order and no error depends on whether a join tells its keys in time: it would drop the rows itself, and
   whatever is on the way does not mind. Cursors and rounds count what is left out, too. Nor do batches: the way ends at
   what might cut them elsewhere, if a function of a user behind it would see that.
3. Where the join reads its other input first (``reading_order``), the reader waits for what it tells: the rows that it
   would read meanwhile would wait in the join's channels. Whom that stalls has been looked at there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.traits import Columns, traits_of
from ..plan.partitioning import Forward, Gather, HashPartitioning, RangePartitioning
from ..plan.plan import KeyFilterPlan
from .stages import LiveGraph


def plan_key_filters(graph: LiveGraph, first: Mapping[str, int]) -> tuple[KeyFilterPlan, ...]:
    """See the module's rules. ``first``: which input joins read first, where they do."""
    return tuple(_found(graph, first))


def _found(graph: LiveGraph, first: Mapping[str, int]) -> Iterator[KeyFilterPlan]:
    ways = _WaysUp(graph)
    for node in graph.nodes.values():
        if node.is_exchange or node.hold:
            continue
        for port, keys in traits_of(node.config).key_filters.items():
            end = ways.end_of(_Reached(node.inputs[port], tuple(enumerate(keys))))
            if ways.is_source(end.at):
                yield KeyFilterPlan(
                    join=node.id,
                    port=port,
                    stage=graph.stage_of[node.id].name,
                    source=end.at,
                    keys=tuple(place for place, _ in end.keys),
                    columns=tuple(name for _, name in end.keys),
                    scattered=end.scattered,
                    waits=first.get(node.id, port) != port,
                )


class _ColumnsOfNodes:
    """What nodes do with the columns of their inputs: many ways lead through the same nodes."""

    def __init__(self, graph: LiveGraph) -> None:
        self._graph = graph
        self._known: dict[str, Sequence[Columns]] = {}

    def __getitem__(self, id: str) -> Sequence[Columns]:
        found = self._known.get(id)
        if found is None:
            node = self._graph.nodes[id]
            schemas = [self._graph.schema(each) for each in node.inputs]
            found = self._known[id] = traits_of(node.config).columns_of(schemas)
        return found


@dataclass(frozen=True, slots=True)
class _Reached:
    """Where a way has come to. ``keys``: places of the join's keys, and their names there."""

    at: str
    keys: tuple[tuple[int, str], ...]
    scattered: bool = False


class _WaysUp:
    """From inputs of joins up to where keys can be told. Joins one behind the other go most of their ways together: a
    step that has been taken is known."""

    def __init__(self, graph: LiveGraph) -> None:
        self._graph, self._columns = graph, _ColumnsOfNodes(graph)
        self._ends: dict[_Reached, _Reached] = {}

    def end_of(self, place: _Reached) -> _Reached:
        """As far up as the way leads."""
        steps = [place]
        while (end := self._ends.get(steps[-1])) is None and (above := self._above(steps[-1])) is not None:
            steps.append(above)
        self._ends |= dict.fromkeys(steps, end or steps[-1])
        return end or steps[-1]

    def is_source(self, id: str) -> bool:
        """Whether a reader can be told there, and all that it gives goes this way."""
        return not self._graph.nodes[id].inputs and self._is_alone(id)

    def _is_alone(self, id: str) -> bool:
        return len(self._graph.consumers[id]) == 1

    def _above(self, place: _Reached) -> _Reached | None:
        """The input that the rows come from; None: the way ends here."""
        node = self._graph.nodes[place.at]
        if not node.inputs or not self._is_alone(node.id) or node.id in self._graph.cuts_are_seen:
            return None
        if node.is_exchange:
            if not isinstance(node.config, Forward | Gather | HashPartitioning | RangePartitioning):
                return None
            return replace(place, at=node.inputs[0], scattered=place.scattered or not isinstance(node.config, Forward))
        traits = traits_of(node.config)
        may: Sequence[bool] = [False] * len(node.inputs)
        if traits.may_miss_rows is not None:
            may = traits.may_miss_rows([self._graph.schema(each) for each in node.inputs])
        for port, columns in enumerate(self._columns[node.id]):
            above = {mine: theirs for theirs, mine in columns.keeps.items()}
            keys = tuple((number, above[name]) for number, name in place.keys if name in above)
            if keys and (may[port] or node.id in self._graph.picked):
                return _Reached(node.inputs[port], keys, place.scattered)
        return None
