"""What checkpoints cost and how long they take: under back-pressure, by state, by interval, after a death.

Run it as ``python benchmarks/checkpoints.py``; the result goes to ``benchmarks/results/checkpoints.json``.

- *pressure* (``checkpoint_pressure.py``): jobs that cannot keep up; seconds from trigger to complete, and to visible.
- *state* (``checkpoint_state.py``): bytes, seconds and the tasks' pause by the number of keys, and seconds to resume.
- *parts* (``checkpoint_parts.py``): bytes and processor seconds of states in parts: aggregates, distinct, joins.
- *recovery*: the same on Ray, where the process that holds the state is killed, without a spare and with one; with
  ``--place`` also on that object store, with and without local copies.
- *cost*: processor time by interval (``checkpoint_work.py``).
- *control*: the same of a job that has next to nothing to do, at one checkpoint a second and one in ten
  (``checkpoint_control.py``).
- *stores*: the state's checkpoints on an object store beside a local folder; ``--place s3://…`` names it.
- *flink*: the slow function as a Python function of Flink's, with unaligned checkpoints.

Where there are aims they stand as peers. ``--full`` takes ten million keys, and longer.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from typing import Any

from checkpoint_control import control_rows
from checkpoint_parts import CONFIGS, stored_in_parts
from checkpoint_pressure import JOBS, SECONDS, pressed
from checkpoint_state import Sized, sized_job
from checkpoint_work import cost_rows
from house_sides import Side

from harness import Row, make_row, report, results_folder, sized

AIM_COMPLETE, AIM_VISIBLE, AIM_PAUSE, AIM_CHANGED, AIM_RECOVERED = 0.5, 2.0, 0.05, 0.05, 1.0
AIM_RESTORE = 1.3
AIM_RECOVERED_WITH_SPARE = 0.3
QUICK_KEYS, FULL_KEYS = sized(((100_000, 1_000_000), (100_000, 1_000_000, 10_000_000)), ((10_000,), (10_000,)))
LEAST = 1e-6


def _beside(work: str, value: float, aim: float, unit: str = "s", peer: str = "the aim") -> Row:
    return make_row(work, peer, ([max(value, LEAST)], [max(aim, LEAST)]), unit, 1.0, False)


def pressure_rows(options: argparse.Namespace) -> list[Row]:
    """Two rows for each job."""
    rows: list[Row] = []
    for name in JOBS:
        found = pressed(name, options.order, options.alignment)
        print(f"{name}: {found}", flush=True)
        rows.append(_beside(f"{name}: checkpoint complete after", found.complete, AIM_COMPLETE))
        if name != "slow rank":
            rows.append(_beside(f"{name}: longest time without a new visible row", found.gap, AIM_VISIBLE))
    return rows


def state_rows(options: argparse.Namespace) -> list[Row]:
    """Embedded."""
    return [row for keys in _keys(options) for row in _sized_rows(keys, sized_job(keys), "resume")]


def parts_rows(options: argparse.Namespace) -> list[Row]:
    """In this process, by operator."""
    return [row for rows in _keys(options) for name in CONFIGS for row in _parts_of(name, rows)]


def _parts_of(name: str, rows: int) -> list[Row]:
    found = stored_in_parts(name, rows)
    print(f"{name}, {rows:,} rows: {found}", flush=True)
    work, share, aim = f"{name}, {rows:,} rows", AIM_CHANGED, "5 % of a full one"
    again = found.restarted_bytes / 1e6
    restored, full = found.restore_seconds, AIM_RESTORE * found.restore_full_seconds
    return [
        _beside(f"{work}: 1 % new, bytes", found.changed_bytes / 1e6, found.full_bytes * share / 1e6, "MB", aim),
        _beside(f"{work}: 1 % new, processor", found.changed_seconds, found.full_seconds * share, peer=aim),
        _beside(f"{work}: 1 % new, pause", found.pause, AIM_PAUSE),
        _beside(f"{work}: restore, processor", restored, full, peer="1.3 times a full one"),
        _beside(f"{work}: first behind it, bytes", again, found.full_bytes * share / 1e6, "MB", aim),
    ]


def recovery_rows(options: argparse.Namespace) -> list[Row]:
    """On Ray: only what the death costs; on an object store also by whether machines have copies."""
    rows = []
    for keys in _keys(options):
        for spares, aim in ((0, AIM_RECOVERED), (1, AIM_RECOVERED_WITH_SPARE)):
            found = sized_job(keys, on_ray=True, spares=spares)
            print(f"{keys:,} keys, {spares} spare: {found}", flush=True)
            rows.append(_beside(f"{keys:,} keys: on Ray, a death{', with a spare' * spares}", found.recovered, aim))
        if options.place is not None:
            rows.append(_copies_row(keys, options.place.rstrip("/")))
    return rows


def _copies_row(keys: int, place: str) -> Row:
    """With a spare, so that reading the state is most of it."""
    with_them, without = (
        sized_job(keys, on_ray=True, place=f"{place}/{keys}-{copies}-{os.getpid()}", spares=1, copies=copies)
        for copies in (True, False)
    )
    print(f"{keys:,} keys: with copies {with_them}, without {without}", flush=True)
    work = f"{keys:,} keys on {place.partition(':')[0]}: on Ray, a death, with a spare and local copies"
    return _beside(work, with_them.recovered, without.recovered, peer="without copies")


def store_rows(options: argparse.Namespace) -> list[Row]:
    """The same job twice."""
    if options.place is None:
        return []
    rows = []
    for keys in _keys(options):
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as local:
            here, there = sized_job(keys, place=local), sized_job(keys, place=f"{options.place.rstrip('/')}/{keys}")
        work = f"{keys:,} keys on {options.place.partition(':')[0]}"
        rows.append(_beside(f"{work}: full checkpoint", there.full_seconds, here.full_seconds, peer="local folder"))
        rows.append(_beside(f"{work}: 1 % changed", there.changed_seconds, here.changed_seconds, peer="local folder"))
        rows.append(_beside(f"{work}: resume", there.recovered, here.recovered, peer="local folder"))
    return rows


def _keys(options: argparse.Namespace) -> tuple[int, ...]:
    return FULL_KEYS if options.full else QUICK_KEYS


def _sized_rows(keys: int, found: Sized, recovery: str) -> list[Row]:
    print(f"{keys:,} keys: {found}", flush=True)
    work, share = f"{keys:,} keys", AIM_CHANGED
    return [
        _beside(f"{work}: 1 % changed, bytes", found.changed_bytes / 1e6, found.full_bytes * share / 1e6, "MB",
                "5 % of a full one"),
        _beside(f"{work}: 1 % changed, complete after", found.changed_seconds, found.full_seconds, peer="a full one"),
        _beside(f"{work}: pause", found.pause, AIM_PAUSE),
        _beside(f"{work}: {recovery}", found.recovered, AIM_RECOVERED),
    ]  # fmt: skip


def flink_rows(options: argparse.Namespace) -> list[Row]:
    """The slow function."""
    ours = pressed("slow function", options.order, options.alignment)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as state:
        settings = {"state": state, "seconds": SECONDS}
        with Side("checkpoints flink", "flink", "checkpoints_flink.py", settings) as side:
            theirs = side.run()
    print(f"ours: {ours}\nFlink: {theirs}", flush=True)
    work, peer = "slow function: checkpoint complete after", "Flink, unaligned, a Python function"
    return [_beside(work, ours.complete, theirs["complete"], peer=peer)]


PARTS: dict[str, Callable[[Any], list[Row]]] = {
    "pressure": pressure_rows,
    "state": state_rows,
    "parts": parts_rows,
    "recovery": recovery_rows,
    "cost": lambda options: cost_rows(3 if options.full else 1),
    "control": lambda options: control_rows(3 if options.full else 1),
    "stores": store_rows,
    "flink": flink_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="some parts")
    parser.add_argument("--full", action="store_true", help="ten million keys, three rounds of the cost")
    parser.add_argument("--order", choices=("deterministic", "arrival"), default="deterministic")
    parser.add_argument("--alignment", choices=("aligned", "unaligned"), default="aligned")
    parser.add_argument("--place", help="an object store for checkpoints, such as s3://bucket/folder")
    options = parser.parse_args()
    rows = [row for name in options.only for row in PARTS[name](options)]
    report(rows, results_folder() / "checkpoints.json")


if __name__ == "__main__":
    main()
