"""Nodes that Ray drains: their processes leave them before they go, as those do that get SIGTERM.

A node is drained by ``ray drain-node``, by the autoscaler, by what watches for spot notices, or by a node's own ``ray
start`` when it is told to end: all of them tell Ray's control store, which tells who asks. Ray puts no process on such
a node any more, and leaves those alone that are there.

Rules:

1. What is said of a process is said once.
2. If every node is drained, nobody leaves: there is nowhere to go.
3. A node that has no deadline has as much time as the job's ``preemption`` says, and no node has more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


class Draining:
    """Which processes are to leave. Pure; see the module's rules. ``most``: seconds that a hand-over may take."""

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._left: Mapping[str, float] = {}
        self._told: set[str] = set()

    def told(self, nodes: Mapping[str, float]) -> None:
        """The seconds left for each node that is being drained."""
        self._left = nodes

    def is_drained(self, node: str) -> bool:
        """Whether nothing should go there."""
        return node in self._left

    def must_leave(self, node: str, incarnation: str) -> float | None:
        """The seconds that a process has for leaving its node; None: it may stay, or knows."""
        if node not in self._left or incarnation in self._told:
            return None
        self._told.add(incarnation)
        return max(0.0, min(self._most, self._left[node]))


def seconds_left(deadlines: Mapping[str, int], alive: set[str], now: float) -> dict[str, float]:
    """By node, for nodes that are being drained. ``deadlines``: milliseconds since 1970, 0 for none; ``now``: seconds.
    Empty if no other node is alive (rule 2)."""
    if alive <= set(deadlines):
        return {}
    return {node: at / 1000 - now if at else math.inf for node, at in deadlines.items() if node in alive}
