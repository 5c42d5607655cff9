"""The feed to many ranks: what is saved where ranks of one machine read the same rows, and how far one server goes.

Run it as ``python benchmarks/feed_mesh.py``; it prints the two tables of ``docs/performance.md``. What a rank's
request costs among many ranks beside few is held to an aim, and goes to ``benchmarks/results/feed_mesh.json``.

- *Copies*: ranks that read the same rows, processes of this machine, from a server in another process, by unix sockets
  as within a machine, by TCP, or by TLS. It gives slices of one size as fast as they are taken. Processor time is that
  of all processes.
- *Ranks*: so many simulated ones that read in step, a window of 16 batches at a time, with slices of 4 KB. First a feed
  server alone, without sockets and threads: what it computes for a rank that joins, and for one that asks for a window.
  Then what its process takes for a window with a connection to each rank, and the windows a second of all.
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
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps
from harness import Row, make_row, report, results_folder, sized
from penstock.actors.feed import sharing
from penstock.actors.feed.discovery import FeedDiscovery, run_of
from penstock.actors.feed.job_feeds import feed_handle
from penstock.actors.feed.reader import FeedHandle
from penstock.actors.feed.tcp_link import TcpLink, TcpRoute
from penstock.actors.feed.tcp_server import TcpFeedServer
from penstock.actors.feed.wire import request_bytes
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
RANK_ROWS, ROW_BYTES = 4, 1_024
"""Of a rank's slice, where there are many ranks."""
MOST_CONNECTED = 1_000
FEW_RANKS, MANY_RANKS = sized((100, 3_000), (1, 100))
AIM = 0.5
"""A request costs at most twice as much among many ranks."""
ROUNDS = 3


def planned(room: int, rows: int = ROWS) -> JobPlan:
    flow = ps.Flow("mesh", lanes=1)
    flow.from_tables([pa.table({"x": [[1.0]]})]).feed(rows, room=room * rows)
    return plan_job(flow, 1)


def rows_of(size: int, rows: int = ROWS) -> pa.RecordBatch:
    each = max(1, size // rows // 4)
    values = pa.array(np.zeros(each * rows, np.float32))
    return pa.record_batch({"x": pa.FixedSizeListArray.from_arrays(values, each)})


# ---------------------------------------------------------------------- copies


def serve(folder: str, secret: Secrets, way: str, size: int, batches: int, over: Any, each: int = ROWS) -> None:
    """The feed's process, which has the next batch of so many rows whenever there is room for it."""
    if way != "unix":
        listener.this_machine = lambda: ""
    plan = planned(64, each)
    discovery = FeedDiscovery(folder, "mesh", run_of(secret.token))
    place = TaskId("gather-1", 0), discovery, secret.token, "bench", "127.0.0.1"
    tcp = TcpFeedServer(plan, *place, lambda event: None, secret.certificate)
    server = tcp.servers["feed"]
    server.open(Sequencer(plan.sinks["feed"][1].settings), lambda: None, Attempt(1, 1))  # type: ignore[attr-defined]
    rows = rows_of(size, each)
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
    """Microseconds of processor time of a rank's joining, and of a request for a window of batches."""
    plan = planned(8 * WINDOW, RANK_ROWS * ranks)
    server = FeedServer("feed")
    server.open(Sequencer(plan.sinks["feed"][1].settings), lambda: None, Attempt(1, 1))  # type: ignore[attr-defined]
    names = [os.urandom(8).hex() for _ in range(ranks)]
    began = time.thread_time()
    for rank, name in enumerate(names):
        server.serve(Ask(name, rank, ranks, 0, 0, 0, 0), 0.0)
    group = server.serve(Ask(names[0], 0, ranks, 0, 0, 0, 0), 0.0).group
    joined = (time.thread_time() - began) / ranks * 1e6
    assert group is not None
    rows, spent = rows_of(RANK_ROWS * ranks * ROW_BYTES, RANK_ROWS * ranks), 0.0
    for first in range(0, STEPS, WINDOW):
        for _ in range(WINDOW):
            server.accept(rows)
        began = time.thread_time()
        for rank, name in enumerate(names):
            wanted = tuple(range(first, first + WINDOW))
            reply = server.serve(Ask(name, rank, ranks, 0, group.generation, first, first, wanted), 0.0)
            assert len(reply.answers) == WINDOW
        spent += time.thread_time() - began
    return joined, spent / (STEPS // WINDOW) / ranks * 1e6


def connected(ranks: int) -> tuple[float, float]:
    """Microseconds of a window's request with a connection to each rank: of the feed's process, and by the clock. The
    other ends are in one thread, which asks for all ranks before it reads an answer."""
    context, secret = multiprocessing.get_context("spawn"), Secrets(secrets.token_bytes(32))
    over, rows = context.Event(), RANK_ROWS * ranks
    with tempfile.TemporaryDirectory() as folder:
        feed = context.Process(target=serve, args=(folder, secret, "TCP", rows * ROW_BYTES, STEPS, over, rows))
        feed.start()
        route = TcpRoute(folder, "mesh", "feed", secret)
        while FeedDiscovery(folder, "mesh", run_of(secret.token)).server("feed") is None:
            time.sleep(0.05)
        links = [TcpLink(route) for _ in range(ranks)]
        names = [os.urandom(8).hex() for _ in links]
        for rank, link in enumerate(links):
            group = link.ask(Ask(names[rank], rank, ranks, 0, 0, 0, 0), 0.0).group
        assert group is not None, "the last one to come completes the group"
        before, began = processor_of(feed.pid), time.perf_counter()
        for first in range(0, STEPS, WINDOW):
            ask_all(links, names, group.generation, range(first, first + WINDOW))
        each = 1e6 * WINDOW / STEPS / ranks
        spent, gone = (processor_of(feed.pid) - before) * each, (time.perf_counter() - began) * each
        over.set()
        for link in links:
            link.close()
        feed.join()
    return spent, gone


def ask_all(links: list[TcpLink], names: list[str], generation: int, window: range) -> None:
    """Each rank asks for a window of batches, and takes it."""
    ranks = len(links)
    for rank, link in enumerate(links):
        ask = Ask(names[rank], rank, ranks, 0, generation, window.start, window.start, tuple(window))
        link._send(request_bytes(ask, 30.0))
    for link in links:
        assert link._replies is not None
        assert len(link._replies.next().answers) == len(window)


def processor_of(process: int | None) -> float:
    """The seconds that it has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def groups_table() -> str:
    lines = ["| ranks | joining | a window | with connections | windows a second |", "|---|---|---|---|---|"]
    for ranks in GROUPS:
        joined, asked = group_of(ranks)
        spent, gone = connected(ranks) if ranks <= MOST_CONNECTED else (0.0, 0.0)
        told = f"{spent:,.0f} µs | {1e6 / gone / ranks:,.1f}" if gone else "– | –"
        lines.append(f"| {ranks:,} | {joined:,.0f} µs | {asked:,.0f} µs | {told} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def request_row() -> Row:
    """What one costs the server, beside what it costs with few ranks; both are measured in turn."""
    many, few = zip(*((group_of(MANY_RANKS)[1], group_of(FEW_RANKS)[1]) for _ in range(ROUNDS)), strict=True)
    work = f"feed, a rank's request for {WINDOW} batches, {MANY_RANKS:,} ranks"
    return make_row(work, f"{FEW_RANKS} ranks", (many, few), "µs", AIM, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("copies", "ranks", "requests"), help="a part of it")
    options = parser.parse_args()
    tables = [groups_table()] if options.only in (None, "ranks") else []
    tables += [copies_table()] if options.only in (None, "copies") else []
    print(*tables, sep="\n\n")
    report([request_row()] if options.only in (None, "requests") else [], results_folder() / "feed_mesh.json")


if __name__ == "__main__":
    main()
