"""Which conditions further down readers of sources ask of their rows already: what they drop is not decoded. Pure.

Rules:

1. An operator says which conditions the rows of its inputs must meet so that anything comes of them (``Traits.asks``):
   filters, and joins by theirs. From there a condition travels up, a part of it at least, to whatever its columns come
   from (``Traits.early``, or columns that are kept by what may miss rows): past projections, joins, unions and
   exchanges that take each row for itself, to a source. Where others read what is on the way, too, a row must meet
   what one of them asks.
2. The operator stays where it is, and asks again. So plans, fingerprints, cursors, tags and checkpoints are what they
   are without; a job may go on with it, or without.
3. Only what has an answer for every row travels, by what cannot fail: no error depends on it. Filters directly behind
   the source may be any: its reader applies them first, and counts what they pass (``picking``). A join of which one
   side becomes empty does not end the other one if something can fail there (``OperatorPlan.reads_whole``).
4. A condition on the keys of a join holds for the keys of the other side, too (a part of what ``Traits.early`` says).
5. Batches are cut where they are without: nothing is asked by, or goes past, what might cut them elsewhere, if a
   function of a user behind it would see that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

import pyarrow as pa
import pyarrow.compute as pc

from ..core.traits import Traits, traits_of
from ..expressions.bounds import has_answers
from ..expressions.implied import implied
from ..expressions.kernel_calls import columns_of
from ..expressions.tree import serialized
from ..plan.partitioning import Broadcast, Forward, Gather, HashPartitioning, RangePartitioning
from ..plan.plan import EarlyFilterPlan
from .graph import Node
from .stages import LiveGraph

MOST_ASKED = 32
"""Conditions that travel together; others stay where they are."""
MOST_BYTES = 64 * 1024
"""Of a condition that is put together of those of several readers."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A condition on the rows that a node gives. ``by``: the operators that ask."""

    by: tuple[str, ...]
    condition: pc.Expression
    columns: frozenset[str]

    @classmethod
    def of(cls, by: tuple[str, ...], condition: pc.Expression | None) -> Iterator[_Asked]:
        """None, if its columns are not known."""
        columns = None if condition is None else columns_of(condition)
        if columns:
            yield cls(by, condition, frozenset(columns))

    def before(self, columns: Mapping[str, pc.Expression], same: set[str]) -> Iterator[_Asked]:
        """What of it can be asked where these stand for columns; ``same``: those that stand for themselves."""
        if self.columns <= same:
            yield self
        elif not self.columns.isdisjoint(columns):
            yield from _Asked.of(self.by, implied(self.condition, columns))


def plan_early_filters(graph: LiveGraph) -> tuple[EarlyFilterPlan, ...]:
    """See the module's rules."""
    return tuple(_Ways(graph).ends())


def _by_any(readers: Sequence[Sequence[_Asked]]) -> Iterator[_Asked]:
    """What rows must meet so that one of several readers needs them."""
    by = tuple(dict.fromkeys(name for asked in readers for each in asked for name in each.by))
    condition = reduce(or_, (reduce(and_, (each.condition for each in asked)) for asked in readers))
    if len(serialized(condition)) <= MOST_BYTES:
        yield from _Asked.of(by, condition)


class _Ways:
    """The ways of conditions up a flow."""

    def __init__(self, graph: LiveGraph) -> None:
        self._graph = graph

    def ends(self) -> Iterator[EarlyFilterPlan]:
        """Those that come to a source."""
        asked: dict[str, list[list[_Asked]]] = defaultdict(list)
        for node in reversed(self._graph.nodes.values()):
            readers, mine = asked.pop(node.id, []), list[_Asked]()
            if readers and len(readers) == len(self._graph.consumers[node.id]):
                mine = readers[0] if len(readers) == 1 else list(_by_any(readers[::-1]))
            if not node.inputs:
                yield from self._of_source(node, mine)
                continue
            for source, found in zip(node.inputs, self._before(node, mine), strict=True):
                if found:
                    asked[source].append(found[:MOST_ASKED])

    def _of_source(self, node: Node, asked: Sequence[_Asked]) -> Iterator[EarlyFilterPlan]:
        schema = self._graph.schema(node.id)
        for each in asked:
            if has_answers(each.condition, schema):
                yield EarlyFilterPlan(node.id, each.by, each.condition)

    def _before(self, node: Node, asked: Sequence[_Asked]) -> list[list[_Asked]]:
        """What is asked of each input of a node, of which that is asked."""
        found: list[list[_Asked]] = [[] for _ in node.inputs]
        if node.is_exchange:
            passes = isinstance(node.config, Broadcast | Forward | Gather | HashPartitioning | RangePartitioning)
            return [list(asked)] if passes else found
        if node.id in self._graph.cuts_are_seen:
            return found
        traits = traits_of(node.config)
        asks = None if node.id in self._graph.picked else traits.asks
        if asks is None and not asked:
            return found
        schemas = self._schemas(node)
        if asks is not None:
            for port, own in enumerate(asks(schemas)):
                found[port] += _Asked.of((node.id,), own)
        if asked:
            names = set[str]().union(*(each.columns for each in asked))
            for port, columns in enumerate(self._early(node, traits, schemas, names)):
                same = {name for name, value in columns.items() if value.equals(pc.field(name))}
                found[port] += [before for each in asked for before in each.before(columns, same)]
        return found

    def _early(
        self, node: Node, traits: Traits, schemas: Sequence[pa.Schema], names: set[str]
    ) -> Sequence[Mapping[str, pc.Expression]]:
        """For each input what stands there for these columns of the output, if a condition may be asked of it early."""
        if traits.early is not None:
            return traits.early(schemas, names)
        may: Sequence[bool] = [node.id in self._graph.picked] * len(schemas)
        if traits.may_miss_rows is not None and not may[0]:
            may = traits.may_miss_rows(schemas)
        if not any(may):
            return [{} for _ in schemas]
        kept = [each.keeps if may[port] else {} for port, each in enumerate(traits.columns_of(schemas))]
        return [{name: pc.field(mine) for mine, name in each.items() if name in names} for each in kept]

    def _schemas(self, node: Node) -> list[pa.Schema]:
        return [self._graph.schema(source) for source in node.inputs]
