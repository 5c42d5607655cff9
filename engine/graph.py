"""The graph that a flow is: nodes with configs and schemas. What the planner reads; users build it through ``flow``.

Rules:

1. A node never changes. Its id is ``<kind>-<n>`` with the number of its kind, or the name that the user gave.
2. The graph knows configs, schemas and edges; pipelines, stages and parallelism are the planner's (``pipelines``).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from .errors import FlowError
from .operators.protocol import OperatorConfig
from .sources.protocol import SourceConfig

DEFAULT_LANES = 8
"""Order lanes of a flow: the largest parallelism of its sources, fixed for the life of its checkpoints."""

MAX_LANES = 32768
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Gather:
    """An exchange: all rows to one subtask, in the order of their tags."""

    kind: str = "gather"

    def describe(self) -> str:
        return "all rows to one subtask, in order"


NodeConfig: TypeAlias = OperatorConfig | SourceConfig | Gather


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the graph. ``schema`` None: a sink, which has no output."""

    id: str
    config: NodeConfig
    inputs: tuple[str, ...]
    schema: pa.Schema | None
    rate: float = 0.0


class Graph:
    """The nodes of a dataflow, each after its inputs.

    ``name`` (letters, digits, ``_ . -``) names the job and its checkpoints. ``lanes``: number of order lanes; lane
    ``l`` reads the splits ``l, l + lanes, …`` of every source, so the order of rows depends on it and on nothing else.
    """

    def __init__(self, name: str, *, lanes: int = DEFAULT_LANES) -> None:
        check_name("flow", name)
        if not 1 <= lanes <= MAX_LANES:
            raise FlowError(f"a flow needs between 1 and {MAX_LANES} lanes, not {lanes}", "leave it at the default")
        self.name = name
        self.lanes = lanes
        self._nodes: dict[str, Node] = {}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, each after its inputs."""
        return tuple(self._nodes.values())

    def node(self, id: str) -> Node:
        """The node with this id."""
        return self._nodes[id]

    def is_gathered(self, id: str) -> bool:
        """Whether the node's stage has one subtask: it is a gather, or follows one."""
        node = self._nodes[id]
        return isinstance(node.config, Gather) or any(self.is_gathered(source) for source in node.inputs)

    def _id(self, kind: str, name: str | None) -> str:
        if name is not None:
            check_name("operator", name)
            if name in self._nodes:
                raise FlowError(f"two operators are named {name!r}", "give each its own name")
            return name
        stem = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")
        number = 1
        while f"{stem}-{number}" in self._nodes:
            number += 1
        return f"{stem}-{number}"

    def describe(self) -> str:
        """The flow in words, one line an operator: equal for equal flows, wherever their data lie."""
        return "\n".join(
            f"{node.id}: {node.config.kind} {node.config.describe()} <- {', '.join(node.inputs) or '-'}"
            for node in self.nodes
        )

    def fingerprint(self) -> str:
        """A hash of the flow: operators, expressions, schemas and lanes; not of its data, paths or parallelism."""
        schemas = "\n".join("" if node.schema is None else node.schema.to_string() for node in self.nodes)
        text = f"{self.name}\n{self.lanes}\n{self.describe()}\n{schemas}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_name(what: str, name: str) -> None:
    """Names become parts of paths and of actor names: refuse what could not."""
    if not _NAME.fullmatch(name):
        raise FlowError(f"{name!r} is no name for a {what}", "use letters, digits, '_', '.' and '-', at most 100")
