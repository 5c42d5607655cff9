"""A snapshot of another flow, or of another plan of the flow: what was in flight goes on where it can, and is missed
nowhere.

Rules:

1. What is compared are drivers: their ports, operators and outputs (``engine/runtime/places.py``, rule 4). A driver
   that reads and runs the same goes on in the middle of what it was doing, whatever has changed elsewhere. What is
   new starts empty.
2. What is in flight in a place that is gone or has changed is refused, with its rows and the way on. A place that was
   empty is no reason.
3. Flights are of subtasks: the parallelism must be that of the snapshot wherever something goes on. At another one the
   job first goes on there (``actors/client/moving.py``).
4. The newest checkpoint of a job's own folder may be of another plan of the same flow: another version of Penstock has
   made it. It is compared in the same way, its states as those of a snapshot, and the coordinator told the shape and
   the checkpoint of which it may go on (``former_shape``): an old run may have made another one meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

from ...coordinator.model.execution_graph import ExecutionGraph
from ...coordinator.model.manifest import Manifest
from ...coordinator.restore.stored_channels import adopted, fits, former_of
from ...coordinator.restore.stored_state import Snapshot, check_snapshot
from ...engine.core.errors import ConfigurationError
from ...engine.plan.plan import JobPlan
from ...engine.runtime.driver_shape import shapes_of
from ...engine.runtime.places import PLACES, fitted
from ..storage.damage import START_ELSEWHERE
from ..storage.snapshots import SnapshotFiles

_MOST = 5


def in_changed_flow(manifest: Manifest, root: str, plan: JobPlan, graph: ExecutionGraph) -> Manifest:
    """The snapshot in ``root``, as one of this plan. Raises ConfigurationError if something in flight has no place
    there, StorageError if it cannot be read."""
    same = fits(graph, manifest)
    if (same and manifest.fingerprint == plan.fingerprint) or not (same or _at_its_parallelism(manifest, graph)):
        return manifest
    stranded = _stranded(manifest, root, plan)
    if stranded:
        raise ConfigurationError(
            f"the snapshot in {root} holds what was in flight where the flow has changed: {_in_words(stranded)}",
            "run the flow as it was and take the savepoint with aligned=True: it has nothing in flight, and fits every "
            "flow that knows its operators; or leave these parts of the flow as they were",
        )
    return manifest if same else adopted(graph, manifest)


def former_shape(manifest: Manifest, root: str, plan: JobPlan, graph: ExecutionGraph) -> str:
    """The shape of another plan of this flow in which the newest checkpoint was taken, and with which this plan can go
    on; empty: of none, or nothing is in flight. Raises ConfigurationError if something in flight has no place in this
    one, or a state is of something else (rule 4)."""
    fit = fits(graph, manifest)
    ours = manifest.fingerprint == plan.fingerprint and (fit or _at_its_parallelism(manifest, graph))
    if not ours or manifest.shape == graph.shape:
        return ""
    stranded = {} if fit else _stranded(manifest, root, plan)
    if stranded:
        raise ConfigurationError(
            f"the newest checkpoint of the job in {root} holds what was in flight where this version of Penstock plans "
            f"the flow differently: {_in_words(stranded)}",
            "run it with the version that it ran with and take a savepoint with aligned=True, which has nothing in "
            "flight; then start from it with an empty checkpoint folder (from_snapshot=)",
        )
    former = "" if fit else former_of(manifest)
    refused = check_snapshot(replace(graph, former_shape=former), Snapshot(manifest, root))
    if refused is not None:
        raise ConfigurationError(
            f"this version of Penstock plans the flow differently, and cannot go on from the newest checkpoint of the "
            f"job in {root}: {refused.message}",
            "run it with the version that it ran with, or begin anew in an empty checkpoint folder",
        )
    return former


def _in_words(stranded: dict[str, int]) -> str:
    held = [f"{rows:,} rows at {where}" if rows else f"an end at {where}" for where, rows in stranded.items()]
    more = f", and at {len(held) - _MOST} other places" if len(held) > _MOST else ""
    return f"{', '.join(held[:_MOST])}{more}"


def _at_its_parallelism(manifest: Manifest, graph: ExecutionGraph) -> bool:
    """Rule 3: of stages, and of operators, which may be in other stages now."""
    stages = graph.parallelism.items()
    stood = {entry.operator: entry.parallelism for entry in manifest.operators}
    now = {operator: graph.parallelism[stage] for stage, found in graph.operators.items() for operator in found}
    return all(manifest.parallelism.get(stage, size) == size for stage, size in stages) and all(
        stood.get(operator, size) == size for operator, size in now.items()
    )


def _stranded(manifest: Manifest, root: str, plan: JobPlan) -> dict[str, int]:
    """Rows in flight that have no place, by where they are; none: only other elements are there."""
    files = SnapshotFiles(root, plan.name, way_on=START_ELSEWHERE)
    shapes = {name: shapes_of(plan, stage) for name, stage in plan.stages.items()}
    living = {part.name for drivers in shapes.values() for shape in drivers.values() for part in shape.operators}
    found: dict[str, int] = {}
    for state in manifest.tasks:
        place = files.read_place(state.state)
        drivers = {} if place is None else PLACES.decode(place).drivers
        for each in fitted(drivers, shapes.get(state.task.vertex, {}), living)[1]:
            found[each.where] = found.get(each.where, 0) + each.rows
    return found
