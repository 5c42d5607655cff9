"""What tasks were in the middle of at a checkpoint, and who goes on with it.

A flight (``Holds.FLIGHT``) is what one subtask was in the middle of when it cut as a whole. It goes to that subtask,
and only in a plan of that shape: :func:`fits`. Of stages that can be moved (``Vertex.is_movable``) it goes, at another
parallelism, to the subtasks that have its lanes. Any other parallelism is reached by way of an aligned checkpoint,
which holds none (``actors/client/moving.py``). A snapshot of another flow is compared with the plan by whoever starts
it (``actors/claims/changed_flow.py``), and is :func:`adopted` then: nothing of it moves before the next checkpoint.
What nobody can read is refused before anything is deployed.
"""

from __future__ import annotations

from msgspec import structs

from ...engine.core.identity import StateHandle
from ..model.events import Failure
from ..model.execution_graph import ExecutionGraph
from ..model.manifest import Manifest


def check_channels(graph: ExecutionGraph, manifest: Manifest) -> Failure | None:
    """Why what was in flight cannot be restored; None if it can."""
    if fits(graph, manifest):
        return None
    held = [handle for handle in flights(manifest) if handle.operator not in graph.parallelism]
    names = ", ".join(sorted({repr(handle.operator) for handle in held}))
    message = f"the flow has no stage {names}" if held else "the plan has another shape now"
    return Failure(
        message=f"the checkpoint holds batches that were in flight and that nobody can read: {message}",
        retry=False,
        remedy="run the flow as it was until it has made an aligned savepoint, or start from one that was taken with "
        "aligned=True, which holds none",
        kind="ConfigurationError",
    )


def flights(manifest: Manifest) -> list[StateHandle]:
    """What tasks were in the middle of."""
    return [handle for state in manifest.tasks for handle in state.state if handle.is_flight]


def fits(graph: ExecutionGraph, manifest: Manifest) -> bool:
    """Whether tasks of the graph can go on in the middle of what the manifest's were doing."""
    if not flights(manifest):
        return True
    movable = graph.movable if manifest.shape == graph.shape else ()
    known = manifest.shape in (graph.shape, _adopted(graph)) or former_of(manifest) == graph.former_shape
    return known and all(
        vertex in movable or manifest.parallelism.get(vertex, size) == size
        for vertex, size in graph.parallelism.items()
    )


def adopted(graph: ExecutionGraph, manifest: Manifest) -> Manifest:
    """A snapshot of another flow, as one that tasks of the graph can go on with at its parallelism."""
    return structs.replace(manifest, shape=_adopted(graph))


def former_of(manifest: Manifest) -> str:
    """The shape of a checkpoint of another plan, and which: nobody has looked at what another one of it holds."""
    return f"{manifest.shape} at {manifest.checkpoint}"


def _adopted(graph: ExecutionGraph) -> str:
    return f"{graph.shape} of another flow"
