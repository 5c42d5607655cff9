"""Asks Ray which nodes are drained; what that means is decided by ``hosting.supervisor``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..hosting.supervisor import seconds_left
from ..protocol.messages import NodesDraining

LOOK_SECONDS = 1.0

_log = logging.getLogger(__name__)


class DrainWatch:
    """A thread that asks Ray which nodes are drained, and posts what has changed."""

    def __init__(self, post: Callable[[NodesDraining], None]) -> None:
        self._post = post
        self._over = threading.Event()
        threading.Thread(target=self._run, name="penstock-draining", daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._over.set()

    def _run(self) -> None:
        known: dict[str, float] = {}
        while not self._over.wait(LOOK_SECONDS):
            try:
                found = drained_nodes()
            except Exception as error:  # whatever Ray raises while its control store is away
                _log.warning("Ray does not tell which nodes are drained: %s", error)
                continue
            if found or known:
                self._post(NodesDraining(found))
            known = found


def drained_nodes() -> dict[str, float]:
    """The seconds left for each node of the cluster that is being drained."""
    import ray
    from ray._private.state import state

    deadlines = state.get_draining_nodes()
    if not deadlines:
        return {}
    return seconds_left(deadlines, {node["NodeID"] for node in ray.nodes() if node["Alive"]}, time.time())
