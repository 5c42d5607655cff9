"""The feed to many ranks: what is saved where ranks of one machine read the same rows, and how far one server goes.

Run it as ``python benchmarks/feed_mesh.py``; it prints the two tables of ``docs/performance.md``.

- *Copies*: ranks that read the same rows, processes of this machine, from a server in another process, by unix sockets
  as within a machine, by TCP, or by TLS. It gives slices of one size as fast as they are taken. Processor time is that
  of all processes.
- *Ranks*: a feed server alone, no sockets and no threads: what it computes for a request of each of so many simulated
  ranks that read in step, a window of batches at a time, and what a group of so many takes to join.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import resource
import secrets
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps
from harness import sized
from penstock.actors.feed import sharing
from penstock.actors.feed.discovery import FeedDiscovery, run_of
from penstock.actors.feed.job_feeds import feed_handle
from penstock.actors.feed.reader import FeedHandle
from penstock.actors.feed.tcp_link import TcpRoute
from penstock.actors.feed.tcp_server import TcpFeedServer
from penstock.actors.transport import listener
from penstock.actors.transport.dialling import Secrets
from penstock.actors.transport.tls import make_certificate
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.feed.messages import Ask
from penstock.engine.feed.sequencer import Sequencer
from penstock.engine.feed.server import FeedServer
from penstock.engine.plan.plan import JobPlan
from penstock.engine.planner.pipelines import plan_job

WIDTHS = sized((256 << 10, 1_600_000, 16_000_000), (1_600_000,))
WAYS = "unix", "TCP", "TLS"
COPIES = sized((2, 4), (2,))
BYTES = sized(1 << 30, 32 << 20)
"""What each rank reads."""
GROUPS = sized((1, 10, 100, 300, 1_000, 3_000), (1, 100))
STEPS, WINDOW = sized((64, 16), (8, 4))
ROWS = 16


def planned(room: int) -> JobPlan:
    flow = ps.Flow("mesh", lanes=1)
    flow.from_tables([pa.table({"x": [[1.0]]})]).feed(ROWS, room=room * ROWS)
    return plan_job(flow, 1)


def rows_of(size: int) -> pa.RecordBatch:
    each = max(1, size // ROWS // 4)
    values = pa.array(np.zeros(each * ROWS, np.float32))
    return pa.record_batch({"x": pa.FixedSizeListArray.from_arrays(values, each)})


# ---------------------------------------------------------------------- copies


def serve(folder: str, secret: Secrets, way: str, size: int, batches: int, over: Any) -> None:
    """The feed's process, which has the next batch whenever there is room for it."""
    if way != "unix":
        listener.this_machine = lambda: ""
    plan = planned(64)
    discovery = FeedDiscovery(folder, "mesh", run_of(secret.token))
    place = TaskId("gather-1", 0), discovery, secret.token, "bench", "127.0.0.1"
    tcp = TcpFeedServer(plan, *place, lambda event: None, secret.certificate)
    server = tcp.servers["feed"]
    server.open(Sequencer(plan.sinks["feed"][1].settings), lambda: None, Attempt(1, 1))  # type: ignore[attr-defined]
    rows = rows_of(size)
    for _ in range(batches):
        while not server.accepts_rows:
            time.sleep(0.0005)
        server.accept(rows)
    over.wait()
    tcp.close()


def read(handle: FeedHandle, rank: int, ranks: int, batches: int, least: int, times: Any) -> None:
    sharing.SHARED_BYTES = least
    reader = handle.reader(rank, mesh={"tp": ranks}, data=(), replicate="tp", timeout=300)
    taken = 0
    for records in reader.iter_batches():
        taken += 1
        if taken == batches // 10:
            began = time.perf_counter()
        elif taken == batches:
            break
        assert records.num_rows == ROWS
    times.put((time.perf_counter() - began, taken - batches // 10))
    reader.close(0)


def copies(way: str, size: int, ranks: int, least: int) -> tuple[float, float]:
    """Batches a second of each rank, and milliseconds of all processes a batch."""
    batches = max(40, min(2_000, BYTES // size))
    context = multiprocessing.get_context("spawn")
    over, times = context.Event(), context.Queue()
    secret = Secrets(secrets.token_bytes(32), make_certificate("mesh") if way == "TLS" else None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        handle = feed_handle(planned(64), "feed", lambda job, feed: TcpRoute(folder, job, feed, secret))
        feed = context.Process(target=serve, args=(folder, secret, way, size, batches, over))
        each = [
            context.Process(target=read, args=(handle, rank, ranks, batches, least, times)) for rank in range(ranks)
        ]
        for process in (feed, *each):
            process.start()
        found = [times.get(timeout=600) for _ in each]
        over.set()
        for process in (*each, feed):
            process.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return min(count / seconds for seconds, count in found), used * 1e3 / batches


def copies_table() -> str:
    lines = ["| a slice | by | copies | fetched once | fetched by each |", "|---|---|---|---|---|"]
    for size, way, ranks in itertools.product(WIDTHS, WAYS, COPIES):
        once, apart = (copies(way, size, ranks, least) for least in (1, 1 << 62))
        told = " | ".join(f"{speed:,.0f} / {cost:.2f}" for speed, cost in (once, apart))
        lines.append(f"| {size / 1e6:.2f} MB | {way} | {ranks} | {told} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


# ---------------------------------------------------------------------- ranks


def group_of(ranks: int) -> tuple[float, float]:
    """Microseconds of a rank's joining, and of a request for a window of batches."""
    plan = planned(8 * WINDOW)
    server = FeedServer("feed")
    server.open(Sequencer(plan.sinks["feed"][1].settings), lambda: None, Attempt(1, 1))  # type: ignore[attr-defined]
    names = [os.urandom(8).hex() for _ in range(ranks)]
    began = time.perf_counter()
    for rank, name in enumerate(names):
        server.serve(Ask(name, rank, ranks, 0, 0, 0, 0), 0.0)
    group = server.serve(Ask(names[0], 0, ranks, 0, 0, 0, 0), 0.0).group
    joined = (time.perf_counter() - began) / ranks * 1e6
    assert group is not None
    rows, spent = rows_of(64), 0.0
    for first in range(0, STEPS, WINDOW):
        for _ in range(WINDOW):
            server.accept(rows)
        began = time.perf_counter()
        for rank, name in enumerate(names):
            wanted = tuple(range(first, first + WINDOW))
            reply = server.serve(Ask(name, rank, ranks, 0, group.generation, first, first, wanted), 0.0)
            assert len(reply.answers) == WINDOW
        spent += time.perf_counter() - began
    return joined, spent / (STEPS // WINDOW) / ranks * 1e6


def groups_table() -> str:
    lines = [
        "| ranks | joining, µs a rank | a window of 16 batches, µs a rank | windows a second |",
        "|---|---|---|---|",
    ]
    for ranks in GROUPS:
        joined, asked = group_of(ranks)
        lines.append(f"| {ranks:,} | {joined:,.0f} | {asked:,.0f} | {1e6 / asked / ranks:,.1f} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("copies", "ranks"), help="a part of it")
    options = parser.parse_args()
    tables = [] if options.only == "copies" else [groups_table()]
    tables += [] if options.only == "ranks" else [copies_table()]
    print(*tables, sep="\n\n")


if __name__ == "__main__":
    main()
