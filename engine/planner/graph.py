"""The graph that a flow is: nodes with configs and schemas. What the planner reads; users build it through ``flow``.

Rules:

1. A node never changes. Its id is ``<kind>-<n>`` with the number of its kind, or the name that the user gave.
2. The graph knows configs, schemas and edges; pipelines, stages and parallelism are the planner's (``pipelines``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self, TypeAlias, cast

import pyarrow as pa

from ..core.arguments import Within, checked
from ..core.errors import FlowError
from ..core.operator import OperatorConfig
from ..core.source import SourceConfig
from ..operators.sequence.regroup import Regroup
from ..plan.partitioning import EARLIER_PARTS, MAX_PARTS, Exchanging, default_parts, divided
from ..plan.resources import NOTHING, Resources
from ..plan.rounds import EARLIER_ROUND_ROWS
from .exact import exact_text, expressions_in
from .placement import EXCHANGES, Placement, place, place_exchange

DEFAULT_LANES = 8
"""Order lanes of a flow: the largest parallelism of its sources, fixed for the life of its checkpoints."""

MAX_LANES = 32768
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


NodeConfig: TypeAlias = OperatorConfig | SourceConfig | Exchanging
Order: TypeAlias = Literal["deterministic", "arrival"]


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the graph. ``schema`` None: a sink, which has no output. ``hold``: at a task barrier the operator
    goes on with what it holds instead of emitting it."""

    id: str
    config: NodeConfig
    inputs: tuple[str, ...]
    schema: pa.Schema | None
    rate: float = 0.0
    hold: bool = False

    @property
    def is_exchange(self) -> bool:
        """Whether it moves rows between subtasks."""
        return isinstance(self.config, EXCHANGES)

    @property
    def is_partitioned(self) -> bool:
        """Whether it divides rows by part."""
        return isinstance(self.config, EXCHANGES) and self.config.is_partitioned


class Graph:
    """The nodes of a dataflow, each after its inputs.

    ``name`` (letters, digits, ``_ . -``) names the job and its checkpoints. ``lanes``: number of order lanes; lane
    ``l`` reads the splits ``l, l + lanes, …`` of every source, so the order of rows depends on it and on nothing else.
    ``parts``: into how many parts its exchanges divide rows by key, or in turn; no stage behind them has more subtasks.
    By default two for each lane, at most 128; a job that goes on keeps the number that it began with.
    ``order``: "deterministic", or "arrival", in which whoever has rows goes first: faster, and another order each time.
    ``round_rows``: at most so many rows of a lane stand together in the order, before those of the next lane: what
    comes behind them in a gather, a union or a join waits for them. Few make rows visible sooner and cost more: about
    0.2 ms for each lane of a round. By default 65,536; where a source has a ``rate``, half a second of its rows, and
    at least 1,024; a job that goes on keeps the number that it began with.
    """

    @checked()
    def __init__(
        self,
        name: str,
        *,
        lanes: int = DEFAULT_LANES,
        parts: int | None = None,
        order: Order = "deterministic",
        round_rows: Annotated[int, Within(1)] | None = None,
    ) -> None:
        check_name("flow", name)
        if parts is not None and not 1 <= parts <= MAX_PARTS:
            raise FlowError(f"a flow needs between 1 and {MAX_PARTS} parts, not {parts}", "leave it at the default")
        if order not in ("deterministic", "arrival"):
            raise FlowError(f"a flow has no order {order!r}", "choose 'deterministic' or 'arrival'")
        if not 1 <= lanes <= MAX_LANES:
            raise FlowError(f"a flow needs between 1 and {MAX_LANES} lanes, not {lanes}", "leave it at the default")
        self.name = name
        self.lanes = lanes
        self.parts = default_parts(lanes) if parts is None else parts
        self._says_parts = parts is not None
        self.order: Order = order
        #: rows of a lane's round; None: the plan chooses
        self.round_rows = round_rows
        self._says_round_rows = round_rows is not None
        #: the joins by key whose right sides are broadcast, as a job that goes on has begun; None: the plan chooses
        self.broadcasts: tuple[str, ...] | None = None
        self._placements: dict[str, Placement] = {}
        self._nodes: dict[str, Node] = {}
        #: the last number of each kind of node; all before it are taken
        self._numbers: dict[str, int] = {}
        #: what the operators ask of the cluster that ask for anything
        self._asked: dict[str, Resources] = {}

    def copy(self) -> Self:
        """A graph of the same nodes, to which others can be added."""
        other = copy(self)
        other._nodes, other._placements = dict(self._nodes), dict(self._placements)
        other._asked, other._numbers = dict(self._asked), dict(self._numbers)
        return other

    def with_nodes(self, nodes: Iterable[Node]) -> Self:
        """A copy in which these stand for those of the same ids; their inputs must be the same."""
        other = self.copy()
        for node in nodes:
            other._nodes[node.id] = node
        return other

    def without(self, exchanges: Collection[str]) -> Self:
        """A copy without these exchanges: whoever reads one reads what it brings."""
        other, instead = self.copy(), dict[str, str]()
        other._nodes = {}
        for node in self.nodes:
            inputs = tuple(instead.get(source, source) for source in node.inputs)
            if node.id in exchanges:
                instead[node.id] = inputs[0]
            else:
                other._nodes[node.id] = node if inputs == node.inputs else replace(node, inputs=inputs)
        return other

    def leading_to(self, id: str) -> Self:
        """A copy with this node and those that it needs."""
        other, needed = self.copy(), {id}
        for node in reversed(self.nodes):
            if node.id in needed:
                needed.update(node.inputs)
        other._nodes = {node.id: node for node in self.nodes if node.id in needed}
        return other

    def emptied(self) -> Self:
        """The graph without its nodes."""
        other = self.copy()
        other._nodes, other._placements = {}, {}
        return other

    def free(self, id: str) -> str:
        """The id, or one like it that no node has."""
        while id in self._nodes:
            id += "."
        return id

    def with_broadcasts(self, recorded: tuple[str, ...]) -> Self:
        """The flow of a job that goes on with these broadcasts."""
        other = self.copy()
        other.broadcasts = recorded
        return other

    def with_parts_of(self, recorded: int) -> Self:
        """A flow that does not say how many parts it has, with as many as a checkpoint was taken with (0: the
        checkpoint is of a version that had always the same number)."""
        parts = recorded or EARLIER_PARTS
        if self._says_parts or parts == self.parts:
            return self
        other = self.emptied()
        other.parts = parts
        for node in self.nodes:
            other.put(replace(node, config=_divided(node.config, parts)))
        return other

    def with_rounds_of(self, recorded: int) -> Self:
        """A flow that does not say how many rows a round has, with as many as a checkpoint was taken with (0: the
        checkpoint is of a version that had always the same number)."""
        if self._says_round_rows:
            return self
        other = self.copy()
        other.round_rows = recorded or EARLIER_ROUND_ROWS
        return other

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, each after its inputs."""
        return tuple(self._nodes.values())

    def node(self, id: str) -> Node:
        """The node with this id."""
        return self._nodes[id]

    def placement(self, id: str) -> Placement:
        """Where the rows of a node are."""
        return self._placements[id]

    def asked(self, id: str) -> Resources:
        """What a node asks of the cluster."""
        return self._asked.get(id, NOTHING)

    def ask(self, id: str, resources: Resources) -> None:
        """Let a node ask the cluster for something. Raises FlowError if it asks for something else already."""
        if self._asked.setdefault(id, resources) != resources:
            message = f"asks for {resources}, and has asked for {self._asked[id]} before"
            raise FlowError(message, "ask once, for everything", id)

    def put(self, node: Node) -> None:
        """Take in a node, and find out where its rows are."""
        before = [self._placements[source] for source in node.inputs]
        if isinstance(node.config, EXCHANGES):
            placement = place_exchange(node.config, before[0])
        elif node.inputs:
            schemas = [cast(pa.Schema, self._nodes[source].schema) for source in node.inputs]
            placement = place(cast(OperatorConfig, node.config), before, schemas)
        else:
            placement = Placement()
        self._nodes[node.id], self._placements[node.id] = node, placement

    def take_out(self, id: str) -> None:
        """Take out a node that no other one reads."""
        del self._nodes[id], self._placements[id]

    def _id(self, kind: str, name: str | None) -> str:
        if name is not None:
            check_name("operator", name)
            if name in self._nodes:
                raise FlowError(f"two operators are named {name!r}", "give each its own name")
            return name
        stem = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")
        number = self._numbers.get(stem, 1)
        while f"{stem}-{number}" in self._nodes:
            number += 1
        self._numbers[stem] = number
        return f"{stem}-{number}"

    def describe(self) -> str:
        """The flow in words, one line an operator: equal for equal flows, wherever their data lie."""
        return "\n".join(
            f"{node.id}: {node.config.kind} {node.config.describe()}{' (holds at barriers)' if node.hold else ''}"
            f" <- {', '.join(node.inputs) or '-'}"
            for node in self.nodes
        )

    def fingerprint(self, lanes: int | None = None, order: Order | None = None) -> str:
        """A hash of the flow: operators, expressions, exchanges, schemas, lanes and order; not of its data, paths or
        parallelism. ``lanes`` and ``order`` stand for the flow's own."""
        schemas = "\n".join("" if node.schema is None else node.schema.to_string() for node in self.nodes)
        exact = "\n".join(
            exact_text(node.config)
            if node.inputs and node.schema is not None
            else " ".join(expressions_in(node.config))
            for node in self.nodes
        )
        text = f"{self.name}\n{lanes or self.lanes} {order or self.order}\n{self.describe()}\n{schemas}\n{exact}"
        if self._says_round_rows:
            text += f"\nrounds of {self.round_rows} rows"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _divided(config: NodeConfig, parts: int) -> NodeConfig:
    if isinstance(config, Regroup) and config.partitioning is not None:
        return replace(config, partitioning=divided(config.partitioning, parts))
    return cast(NodeConfig, divided(config, parts))


def check_name(what: str, name: str) -> None:
    """Names become parts of paths and of actor names: refuse what could not."""
    if not _NAME.fullmatch(name):
        raise FlowError(f"{name!r} is no name for a {what}", "use letters, digits, '_', '.' and '-', at most 100")
