"""Sources whose rows are handed over when a job starts: where to is known only then.

Rules:

1. A *deferred* source stands in a flow for an outer system's data (a Spark DataFrame, say). It gives its schema while
   the flow is built, and a source with splits when a job is about to start and says where its checkpoints will be.
2. :func:`hand_over` gives a flow in which every deferred source is replaced so; the flow that the user built stays as
   it is and can be run again. The new source has the same kind and the same description, so the flow's fingerprint
   does not change by it.
3. Handing over may take as long as computing the data, and may fail; nothing of the job has been started by then.
   So whatever can be refused without the data is refused before (:func:`not_handed_over`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Protocol, TypeVar, cast, runtime_checkable

import pyarrow as pa

from ..core.errors import ConfigurationError, PenstockError
from ..core.source import SourceConfig, Split
from ..planner.graph import Graph, Node

G = TypeVar("G", bound=Graph)


@dataclass(frozen=True, slots=True)
class Destination:
    """What the job that is about to start says about itself.

    ``folder``: its checkpoint folder; None: it has none that outlives it. ``description``: in the words of the job's
    log, what the run before was made of; empty if there was none. ``resuming``: it goes on from a checkpoint or a
    snapshot. ``detached``: it outlives this script. ``on_ray``: its tasks are actors. ``keeps_checkpoints``: some of
    them stay when the job is over. ``snapshot``: the folder of the savepoint, or of the other job, that it starts from,
    if it has no checkpoint of its own. ``recorded``: the fingerprints of the sources that it goes on with, as they are
    recorded.
    """

    job: str
    folder: str | None = None
    description: str = ""
    resuming: bool = False
    detached: bool = False
    on_ray: bool = False
    keeps_checkpoints: bool = False
    snapshot: str = ""
    recorded: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Deferred(Protocol):
    """A source that hands its rows over when a job starts."""

    def handed_over(self, source: str, to: Destination) -> SourceConfig:
        """The source to read instead, called ``source`` in the flow. Raises PenstockError."""


def has_deferred(flow: Graph) -> bool:
    """Whether anything is left to be handed over."""
    return any(_deferred(flow))


def _deferred(flow: Graph) -> Iterator[Node]:
    """The sources that are left. Nothing else is asked: looking at a protocol is slow."""
    return (node for node in flow.nodes if not node.inputs and isinstance(cast(object, node.config), Deferred))


def hand_over(flow: G, to: Destination) -> G:
    """The flow with the deferred sources replaced, one after the other. Raises PenstockError that names the source."""
    for node in _deferred(flow):
        try:
            flow = flow.with_nodes([replace(node, config=cast(Deferred, node.config).handed_over(node.id, to))])
        except PenstockError as error:
            raise error.at(node.id) from error
    return flow


def not_handed_over(flow: G) -> G:
    """The flow as it is known before anything was handed over: to be planned and checked, not to be run."""
    for node in _deferred(flow):
        config = cast(SourceConfig, node.config)
        stand_in = _StandIn(config.kind, config.schema, config.describe())
        flow = flow.with_nodes([replace(node, config=stand_in)])
    return flow


@dataclass(frozen=True)
class _StandIn:
    """A source whose partitions nobody has counted."""

    kind: str
    schema: pa.Schema = field(hash=False)
    described: str

    def describe(self) -> str:
        return self.described

    def splits(self) -> Sequence[Split]:
        return ()


def open_outer(system: str, *arguments: object) -> SourceConfig:
    """The source for an outer system's data ("spark", "ray"), by whoever knows that system: an entry point, so that the
    engine need not know it. Raises ConfigurationError if the installed package has none."""
    found = [entry for entry in entry_points(group="penstock.frames") if entry.name == system]
    if not found:
        message = f"support for {system} is not among the entry points of the installed Penstock"
        raise ConfigurationError(message, "install Penstock again: pip install 'penstock[spark]'")
    open_frame = cast("Callable[..., SourceConfig]", found[0].load())
    return open_frame(*arguments)
