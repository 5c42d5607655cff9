"""Memory of one driver script and its workers on a Ray cluster, sampled while it runs.

Counted are the anonymous pages (``RssAnon``) of the script's process and of the worker processes of its job, and the
bytes in Ray's object store: so neither libraries nor shared pages count twice, nor what other jobs hold. Whose a worker
is stands in the name of its log file, which may be asked for after the run.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_SAMPLE_SECONDS = 0.1
_LOG = re.compile(r"worker-[0-9a-f]+-([0-9a-f]+)-(\d+)\.out")


def anonymous_bytes(pid: int) -> int:
    """Of a process; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


@dataclass
class Sampler:
    """Samples of all workers; in a process that is connected to the cluster."""

    logs: Path
    samples: list[tuple[dict[int, int], int]] = field(default_factory=list)

    @contextmanager
    def sampling(self, driver: int) -> Iterator[None]:
        """Take samples till the end of the block. ``driver``: the script's process."""
        self.samples.clear()
        over = threading.Event()

        def sample() -> None:
            while not over.wait(_SAMPLE_SECONDS):
                pids = [driver, *self.workers()]
                self.samples.append(({pid: anonymous_bytes(pid) for pid in pids}, store_bytes()))

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def workers(self) -> dict[int, str]:
        """The job of each worker process there was, by its number."""
        found = (_LOG.fullmatch(path.name) for path in self.logs.glob("worker-*.out"))
        return {int(match[2]): match[1] for match in found if match}

    def peak(self, driver: int, job: str) -> int:
        """The most bytes at a time of the script and its job's workers."""
        mine = {driver, *(pid for pid, its in self.workers().items() if its == job)}
        return max((sum(size for pid, size in each.items() if pid in mine) + store for each, store in self.samples),
                   default=0)  # fmt: skip


def store_bytes() -> int:
    """In the object store of the one node."""
    import ray
    from ray._private.internal_api import node_stats

    node = next(node for node in ray.nodes() if node["Alive"])
    stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False)
    return int(stats.store_stats.object_store_bytes_used)
