"""The feed of a training loop beside Ray Data, and what resuming costs beside what else one does.

Run it as ``python benchmarks/feed.py``; the result goes to ``benchmarks/results/feed.json``, and the curves of resuming
to ``feed_resume.svg`` beside it (see ``feed_resume.py`` for those).

Against ``ray.data.read_parquet → filter → map_batches → iter_torch_batches``, in the same cluster with two CPUs, on the
same files, in batches of 1,024 rows. Every round is a new script on a cluster that stands, as a training run is: its
imports are done, its job and all its worker processes are started within the time that is measured.

- *Batches a second* from the first batch to the last, and from the call to the last.
- *First batch*: seconds from the call.
- *Memory*: the peak of the script, its workers and its share of the object store (``feed_memory.py``).

Ray Data has its best settings: a filter as an expression, Arrow batches for the function. The rows of both are the same
by a digest, in a run of its own, and by a sum in those that are measured. ``--no-peers`` leaves Ray Data out.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from feed_memory import Sampler
from feed_resume import BATCH, resume_rows
from house_data import bid_files
from house_sides import LOCAL, OURS, Answer, Side

from harness import Row, make_row, report, results_folder, sized

ROWS, FILES = sized((8_000_000, 8), (8_000, 2))
ROUNDS = sized(5, 1)
AIM_SPEED, AIM_FIRST, AIM_MEMORY = 5.0, 2.0, 1.0
STORE_BYTES = 2 * 2**30
SIDES = {"ours": "feed_ours.py", "Ray Data": "feed_ray_data.py"}


def run_once(name: str, folder: Path, sampler: Sampler, checked: bool = False) -> Answer:
    """A new script that reads everything once."""
    settings = {"folder": str(folder), "batch": BATCH, "checked": checked}
    with Side(f"feed {name}", OURS, SIDES[name], settings) as side:
        with sampler.sampling(side.pid):
            answer = side.run()
        answer["memory"] = max(1, sampler.peak(side.pid, answer["job"]))
    return answer


def measure(names: list[str], rounds: int) -> dict[str, list[Answer]]:
    """All sides in turn, behind the run that tells their rows apart, which is the warm-up too. Raises AssertionError if
    they have read different rows."""
    import ray

    here = Path(__file__).resolve().parent
    os.environ.update(LOCAL, PYTHONPATH=os.pathsep.join((str(here), str(here / "sides"))))  # for the workers
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=2, object_store_memory=STORE_BYTES, **quiet)
    try:
        os.environ["PENSTOCK_BENCH_RAY"] = ray.get_runtime_context().gcs_address
        sampler = Sampler(Path(ray._private.worker.global_worker.node.get_session_dir_path()) / "logs")
        folder = bid_files(ROWS, "parquet", FILES)
        same([run_once(name, folder, sampler, checked=True) for name in names])
        found: dict[str, list[Answer]] = {name: [] for name in names}
        for _ in range(rounds):
            answers = [run_once(name, folder, sampler) for name in names]
            same(answers)
            for name, answer in zip(names, answers, strict=True):
                found[name].append(answer)
        return found
    finally:
        os.environ.pop("PENSTOCK_BENCH_RAY", None)
        ray.shutdown()


def same(answers: list[Answer]) -> None:
    """Raises AssertionError if the digests differ."""
    digests = {answer["digest"] for answer in answers}
    assert len(digests) == 1, f"the sides have read different rows: {sorted(digests)}"


def rows_of(ours: list[Answer], theirs: list[Answer]) -> list[Row]:
    """The comparison as rows."""
    work = f"feed to a training loop, batches of {BATCH:,}"

    def row(what: str, unit: str, of: Any, aim: float, higher: bool) -> Row:
        return make_row(f"{work}: {what}", "Ray Data iter_torch_batches", ([of(each) for each in ours],
                        [of(each) for each in theirs]), unit, aim, higher)  # fmt: skip

    return [
        row("from the first on", "batches/s", lambda a: a["batches"] / a["running"], AIM_SPEED, True),
        row("start of the job included", "batches/s", lambda a: a["batches"] / a["seconds"], AIM_SPEED, True),
        row("first batch", "s", lambda a: a["first"], AIM_FIRST, False),
        row("peak memory", "MB", lambda a: a["memory"] / 1e6, AIM_MEMORY, False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-peers", action="store_true", help="leave out Ray Data")
    parser.add_argument("--only", choices=("speed", "resume"), help="a part of it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    rows: list[Row] = []
    if options.only != "resume":
        found = measure(["ours"] if options.no_peers else list(SIDES), options.rounds)
        rows += rows_of(found["ours"], found["Ray Data"]) if not options.no_peers else []
    if options.only != "speed":
        rows += resume_rows(options.rounds)
    report(rows, results_folder() / "feed.json")


if __name__ == "__main__":
    main()
