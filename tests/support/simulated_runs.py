"""One simulated run and its verdict.

A run is right if the visible rows are, sink by sink and lane by lane, those of a run without failures: in order in a
deterministic flow, as a multiset in any other. Of a job that was stopped for good they are a part of those, each once,
and what the sinks' last rows count. A savepoint that was taken on the way is right if another job that begins with it,
and with the rows that were visible then, ends with the right rows too.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache

from penstock.coordinator.model.retention import RetentionPolicy
from support.simulated_cluster import SimulatedCluster
from support.simulated_cuts import CutTask
from support.simulated_faults import NO_FAULTS, SETTINGS
from support.simulated_flows import SHAPES, flows_for, that_cut

FORK_EVERY = 4
"""One in so many savepoints is tried."""


@cache
def expected_rows(shape: int) -> dict[str, list[str]]:
    """What the flow of seed ``shape`` writes if nothing goes wrong."""
    return SimulatedCluster(0, flows_for(shape)[:1], NO_FAULTS).run().rows()


def check(cluster: SimulatedCluster, seed: int) -> None:
    """Compare the rows that are visible with those of a run without failures."""
    expected, found = expected_rows(seed % (2 * len(SHAPES))), cluster.rows()
    if cluster.drained:
        check_drained(seed, expected, found)
        return
    if not flows_for(seed)[0].graph.deterministic:
        expected = {key: sorted(rows) for key, rows in expected.items()}
        found = {key: sorted(rows) for key, rows in found.items()}
    for key in sorted(expected.keys() | found.keys()):
        mine, theirs = found.get(key, []), expected.get(key, [])
        missing, extra = [row for row in theirs if row not in mine], [row for row in mine if row not in theirs]
        said = f"seed {seed}: {key}: {len(mine)} rows instead of {len(theirs)}, missing {missing}, extra {extra}"
        assert mine == theirs, f"{said}\n{mine}\n{theirs}"


def check_drained(seed: int, expected: dict[str, list[str]], found: dict[str, list[str]]) -> None:
    """No row is repeated, none is invented, and every sink's last row counts those before it.

    The trainers of a feed may have seen less: the rest stands in the savepoint. In order it is the beginning of all.
    """
    for key, rows in found.items():
        sums = [row for row in rows if " counts " in row]
        plain = Counter(row for row in rows if row not in sums)
        assert not plain - Counter(expected.get(key, [])), f"seed {seed}: {key} has rows that no other run has: {rows}"
        if key == "feed":
            beginning = [row for row in expected[key] if " counts " not in row][: len(rows) - len(sums)]
            ordered = flows_for(seed)[0].graph.deterministic
            assert not ordered or rows[: len(beginning)] == beginning, f"seed {seed}: {rows} does not begin the feed"
            continue
        own = [row for row in sums if row.startswith(f"{key.split(' lane')[0]} counts ")]
        for row in own:
            said = int(row.split(" counts ")[1].split()[0])
            assert said == len(rows) - len(own), f"seed {seed}: {key} counts {said} of {len(rows) - len(own)} rows"


def check_fork(cluster: SimulatedCluster, seed: int) -> None:
    """Begin another job with one of the savepoints."""
    savepoints = sorted(cluster.users.savepoints.values())
    chance = random.Random(seed)
    standing = [place for place in savepoints if place in cluster.storage.savepoints]
    if not standing or chance.random() * FORK_EVERY > 1 or cluster.drained or "Dropped" in cluster.seen:
        return
    fork = cluster.fork(chance.choice(standing))
    cluster.seen.add("fork")
    check(fork, seed)


def cluster_for(seed: int) -> SimulatedCluster:
    """In some seeds tasks cut as a whole, and they keep more or fewer checkpoints, or none when the job ends; in some a
    region that restarts is gone for long."""
    chance, flows = random.Random(seed), flows_for(seed)
    settings = replace(
        SETTINGS,
        retained=chance.choice((1, 2, 3)),
        max_drift=(1, 1, 2, 0)[seed // 14 % 4],
    )
    if not flows[0].feed and chance.random() < 0.4:  # what trainers have seen, nobody can take back
        settings = replace(settings, retention=RetentionPolicy.NEVER)
    if chance.random() < 0.2:  # other regions' checkpoints go on
        settings = replace(settings, restart_delay=0.1, max_restart_delay=0.3)
    if chance.random() < 0.5:
        settings = replace(settings, unaligned=True, alignment_timeout=chance.choice((0, 0, 0.02)))
        return SimulatedCluster(seed, that_cut(flows), settings=settings, task_type=CutTask)
    return SimulatedCluster(seed, flows, settings=settings)


def simulate(seed: int) -> SimulatedCluster:
    """One run, checked."""
    cluster = cluster_for(seed).run()
    check(cluster, seed)
    check_fork(cluster, seed)
    return cluster
