"""One simulated run and its verdict.

A run is right if the visible rows are, sink by sink and lane by lane, those of a run without failures: in order in a
deterministic flow, as a multiset in any other.
"""

from __future__ import annotations

from functools import cache

from support.simulated_cluster import NO_FAULTS, SimulatedCluster
from support.simulated_flows import SHAPES, flows_for


@cache
def expected_rows(shape: int) -> dict[str, list[str]]:
    """What the flow of seed ``shape`` writes if nothing goes wrong."""
    return SimulatedCluster(0, flows_for(shape)[:1], NO_FAULTS).run().storage.visible_rows()


def check(cluster: SimulatedCluster, seed: int) -> None:
    """Compare the rows that are visible with those of a run without failures."""
    expected, found = expected_rows(seed % (2 * len(SHAPES))), cluster.storage.visible_rows()
    if not flows_for(seed)[0].graph.deterministic:
        expected = {key: sorted(rows) for key, rows in expected.items()}
        found = {key: sorted(rows) for key, rows in found.items()}
    for key in sorted(expected.keys() | found.keys()):
        mine, theirs = found.get(key, []), expected.get(key, [])
        missing, extra = [row for row in theirs if row not in mine], [row for row in mine if row not in theirs]
        said = f"seed {seed}: {key}: {len(mine)} rows instead of {len(theirs)}, missing {missing}, extra {extra}"
        assert mine == theirs, f"{said}\n{mine}\n{theirs}"


def simulate(seed: int) -> SimulatedCluster:
    """One run, checked."""
    cluster = SimulatedCluster(seed, flows_for(seed)).run()
    check(cluster, seed)
    return cluster
