"""Let seeded disasters happen to jobs on Ray: ``python tests/scenarios/chaos.py --seeds 100``.

Prints one line per seed and a table by kind; ``--write FILE`` puts the table between the marks of a document.
``--first N --seeds 1`` runs a seed again. ``--nodes``: a cluster of several nodes, one of which dies in each run.
``--journal FILE`` remembers each outcome, so that a sweep that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.disasters import Disaster, Outcome

TESTS = Path(__file__).parent.parent
NODE_KILLED = "node killed"


@contextmanager
def one_node() -> Iterator[Mapping[str, Disaster]]:
    """A small cluster, and what may happen on it."""
    import ray

    from support.disasters import KINDS

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        namespace="penstock",
    )
    try:
        yield KINDS
    finally:
        ray.shutdown()


@contextmanager
def several_nodes() -> Iterator[Mapping[str, Disaster]]:
    """A cluster of three nodes on this machine; each disaster kills one that is not the head, and another one joins."""
    from support.nodes import three_nodes

    def kill_node(job: Any, draw: random.Random) -> str:
        hosts, both = nodes.below(job.coordinator_process()), draw.random() < 0.3
        victim = draw.choice([node for node in nodes.others if (node in hosts) is both] or nodes.others)
        return nodes.kill(victim, job)

    with three_nodes() as nodes:
        yield {NODE_KILLED: kill_node}


def run_all(seeds: range, nodes: bool, journal: Path | None = None) -> list[Outcome]:
    """The outcomes, each printed as it comes; those that the journal has are not run again."""
    import penstock as ps
    from support.chaos_job import make_flow, outputs
    from support.disasters import undergo

    found = remembered(journal, seeds, nodes)
    missing = sorted(set(seeds) - {outcome.seed for outcome in found})
    if not missing:
        return found
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as name:
        ps.run_local(make_flow(Path(name) / "undisturbed", rate=0.0), parallelism=2).wait()
        undisturbed = outputs(Path(name) / "undisturbed")
        with several_nodes() if nodes else one_node() as kinds:
            for seed in missing:
                found.append(undergo(seed, Path(name) / str(seed), undisturbed, kinds, spread=nodes))
                print(describe(found[-1]), flush=True)
                remember(journal, found[-1], nodes)
    return found


def remembered(journal: Path | None, seeds: range, nodes: bool) -> list[Outcome]:
    """What the journal has of these seeds."""
    from support.disasters import Outcome

    lines = journal.read_text().splitlines() if journal and journal.exists() else []
    entries = [entry for entry in map(json.loads, lines) if entry.pop("nodes") is nodes and entry["seed"] in seeds]
    return [Outcome(**{**entry, "wrong": tuple(entry["wrong"])}) for entry in entries]


def remember(journal: Path | None, outcome: Outcome, nodes: bool) -> None:
    """Append an outcome to the journal."""
    if journal:
        with journal.open("a") as lines:
            print(json.dumps({**dataclasses.asdict(outcome), "nodes": nodes}), file=lines)


def describe(outcome: Outcome) -> str:
    """A line for people."""
    verdict = f"WRONG: {'; '.join(outcome.wrong)}" if outcome.wrong else "equal"
    lives = f"{outcome.restarts} restarts, {outcome.generation} coordinators"
    return f"seed {outcome.seed}: {outcome.what}: {lives}, {outcome.seconds:.0f} s: {verdict}"


def table(outcomes: list[Outcome]) -> str:
    """By kind: runs, how many were equal, restarts and time."""
    from support.reports import markdown

    head = ["disaster", "runs", "outputs equal", "restarts, median (most)", "seconds of a run, median (most)"]
    rows = []
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        runs = [outcome for outcome in outcomes if outcome.kind == kind]
        equal = sum(not run.wrong for run in runs)
        restarts, seconds = [run.restarts for run in runs], [run.seconds for run in runs]
        most = f"{median(restarts):g} ({max(restarts)})", f"{median(seconds):.0f} ({max(seconds):.0f})"
        rows.append([kind, len(runs), equal, *most])
    return markdown(head, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--nodes", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--journal", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    outcomes = run_all(seeds, arguments.nodes, arguments.journal)
    if not arguments.nodes and arguments.write:
        outcomes += run_all(range(max(1, arguments.seeds // 10)), nodes=True, journal=arguments.journal)
    equal = sum(not outcome.wrong for outcome in outcomes)
    print(f"{table(outcomes)}\n\n{equal} of {len(outcomes)} equal")
    if arguments.write:
        from support.reports import put_between_marks

        told = f"{equal} of {len(outcomes)} runs ended with equal outputs.\n\n{table(outcomes)}"
        put_between_marks(arguments.write, "chaos", told)
    return 0 if equal == len(outcomes) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    from support.seeded import prepare_processes

    prepare_processes()
    sys.exit(main())
