"""Batches from process to process: our channels against a bare Arrow loop, Arrow Flight, and Ray.

Run it as ``python benchmarks/transport.py``; the result goes to ``benchmarks/results/transport.json``. All figures are
microseconds per batch, of three columns of int64 (24 bytes a row), between this process and one other on this machine.

- *Ours* is the whole channel: both ends of ``engine.exchange.channels`` with numbering and 16 MiB of credit, and
  between them the stream transport with its threads, over a unix socket or TCP on loopback.
- *Bare* is the floor: one thread writes an Arrow stream into a socket, one thread of the other process reads it. There
  is no order, no credit, no attempt, nobody but these two threads.
- *Local exchange* is the channel within a process: a function call, without a copy.
- *Flight* is ``do_put`` with one stream. *One call per batch* is an actor's method that is called with each batch, 16
  of them under way; *object store* is the same with the batch put there first.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from transport_peers import BATCHES, SIZES, Peer, local_exchange, ray_calls, started_peer

from harness import Row, compare, report, results_folder, sized

AIM_OF_BARE = 0.8
AIM_OF_RAY = 8.0
ROUNDS = sized(5, 1)

Run = Callable[[str, int, int], float]


@contextmanager
def started_ray() -> Iterator[None]:
    """A small cluster on loopback."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=400 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield
    finally:
        ray.shutdown()


def per_batch(peer: Peer, kind: str, rows: int) -> Callable[[], float]:
    """A side: sends the batches and returns microseconds for each."""
    return lambda: peer.run(kind, rows, BATCHES[rows])


def stream_rows(peer: Peer) -> Iterator[Row]:
    """Our channel against the bare loop and against Flight."""
    for rows in SIZES:
        name = f"{rows >> 10} Ki rows"
        for kind in ("unix", "tcp"):
            ours, bare = per_batch(peer, kind, rows), per_batch(peer, f"bare {kind}", rows)
            yield compare(
                f"{name}, {kind}", f"bare Arrow loop, {kind}", ours, bare, unit="µs", aim=AIM_OF_BARE, rounds=ROUNDS
            )
        ours, flight = per_batch(peer, "unix", rows), per_batch(peer, "flight", rows)
        yield compare(f"{name}, unix", "Arrow Flight", ours, flight, unit="µs", rounds=ROUNDS)
        ours, bare = (lambda rows=rows: local_exchange(rows, BATCHES[rows])), per_batch(peer, "bare unix", rows)
        yield compare(f"{name}, local exchange", "bare Arrow loop, unix", ours, bare, unit="µs", rounds=ROUNDS)


def ray_rows(peer: Peer) -> Iterator[Row]:
    """Our channel against calls of an actor."""
    for rows in SIZES:
        for store, name in ((False, "one Ray call per batch"), (True, "object store and Ray call")):
            ours, calls = per_batch(peer, "unix", rows), ray_calls(rows, BATCHES[rows] // 8, store)
            work = f"{rows >> 10} Ki rows, unix"
            yield compare(work, name, ours, calls, unit="µs", aim=AIM_OF_RAY if rows <= 16 << 10 else 1.0, rounds=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-ray", action="store_true", help="leave out the comparisons that start Ray")
    options = parser.parse_args()
    with started_peer() as peer:
        rows = list(stream_rows(peer))
        if not options.no_ray:
            with started_ray():
                rows += ray_rows(peer)
    report(rows, results_folder() / "transport.json")


if __name__ == "__main__":
    main()
