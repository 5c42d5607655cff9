"""Flows that end in feeds, and ranks that read them in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.actors.feed.reader import FeedHandle, Reader
from penstock.engine.exchange.channels import DEFAULT_CREDIT, InputChannel, OutputChannel
from penstock.engine.flow.flow import Flow, Stream

SPLITS, ROWS = 12, 100


def tables(splits: int = SPLITS, rows: int = ROWS) -> list[pa.Table]:
    """``n`` numbers all rows, ``key`` the splits."""
    return [
        pa.table({"n": pa.array(range(s * rows, (s + 1) * rows), pa.int64()), "key": pa.array([s] * rows)})
        for s in range(splits)
    ]


def plain(flow: Flow, rate: float = 0.0) -> Stream:
    """Two thirds of the rows."""
    return flow.from_tables(tables(), name="rows", rate=rate).filter("n % 3 <> 0")


def read_ranks(
    feed: FeedHandle,
    ranks: int,
    start: int = 0,
    most: int | None = None,
    timeout: float = 60.0,
    close: bool = True,
    epoch: int = 0,
    **place: Any,
) -> list[list[list[Any]]]:
    """The slices of all epochs that each rank of a group of so many reads, in a thread of its own; ``most`` at most.
    ``place``: what else the reader is told. Raises what the first rank raises."""
    parts: list[list[list[Any]]] = [[] for _ in range(ranks)]
    errors: list[BaseException] = []

    def read(rank: int) -> None:
        reader = feed.reader(rank, ranks, timeout=timeout, **place)
        try:
            if start:
                reader.load_state_dict({**reader.state_dict(), "step": start, "epoch": epoch})
            for _ in range(feed.epochs):
                for records in reader.iter_batches():
                    parts[rank].append(records.to_pylist())
                    if most is not None and len(parts[rank]) >= most:
                        return
        except BaseException as error:
            errors.append(error)
        finally:
            if close:
                reader.close(timeout)

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert len({len(part) for part in parts}) == 1, "ranks have taken different numbers of batches"
    return parts


def read_group(feed: FeedHandle, ranks: int, *given: Any, **options: Any) -> list[list[Any]]:
    """The global batches that such a group reads, put together."""
    parts = read_ranks(feed, ranks, *given, **options)
    return [[row for rows in slices for row in rows] for slices in zip(*parts, strict=True)]


def batches_of(flow: Flow, ranks: int = 1, **options: Any) -> list[list[Any]]:
    """The global batches of a job of its own, which ends with them. ``options``: of ``run_local``."""
    with ps.run_local(flow, **options) as job:
        return read_group(job.feed(), ranks)


def take(reader: Reader, batches: int) -> list[list[Any]]:
    """So many batches of one reader."""
    found = []
    for records in reader.iter_batches():
        found.append(records.to_pylist())
        if len(found) == batches:
            break
    return found


def chunked(rows: Sequence[Any], size: int) -> list[list[Any]]:
    """Rows in batches."""
    return [list(rows[at : at + size]) for at in range(0, len(rows), size)]


def shorten_channels(monkeypatch: pytest.MonkeyPatch, credit: int) -> None:
    """Let channels hold so many bytes: a mixture is ahead of its ranks by what they hold, which may be all rows."""
    for kind in (OutputChannel, InputChannel):
        shorter = tuple(credit if each == DEFAULT_CREDIT else each for each in kind.__init__.__defaults__ or ())
        monkeypatch.setattr(kind.__init__, "__defaults__", shorter)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until the condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"did not come true in {seconds:g} s"
        time.sleep(0.005)
