"""The queue of one link of the simulated network: what waits to travel to one process. No threads.

Rules:

1. Messages leave in the order in which they came in. Of several grants of one channel only the largest leaves.
2. A packet holds whatever waits, up to ``PACKET_BYTES`` of batches, and at least one message.
3. A link that is broken or closed holds nothing and takes nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.engine.core.elements import size_of
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.exchange.channels import ChannelId, Frame, Grant, Upstream

PACKET_BYTES = 8 * 1024 * 1024
WINDOW = 2
"""Packets under way per link."""


class PacketLink:
    """The way to the process of ``task``, as long as it runs ``attempt``."""

    def __init__(self, task: TaskId, attempt: Attempt, address: Any) -> None:
        self.task = task
        self.attempt = attempt
        self.address = address
        #: packets sent and not yet answered; at most ``WINDOW``
        self.under_way = 0
        #: nothing is taken or given any more
        self.closed = False
        self._frames: deque[Frame] = deque()
        #: the largest grant per channel that has not left yet
        self._grants: dict[ChannelId, Grant] = {}
        self._others: list[Upstream] = []

    def put_frame(self, frame: Frame) -> None:
        """Queue a frame."""
        if not self.closed:
            self._frames.append(frame)

    def put_upstream(self, message: Upstream) -> None:
        """Queue a message to a producer. Grants count totals, so a later one takes the place of an earlier one."""
        if self.closed:
            return
        if isinstance(message, Grant):
            self._grants[message.channel] = message
        else:
            self._others.append(message)

    @property
    def sendable(self) -> bool:
        """Whether a packet could leave now."""
        return self.under_way < WINDOW and bool(self._frames or self._grants or self._others)

    def take(self) -> tuple[list[Frame], list[Upstream]]:
        """The messages of the next packet, which counts as under way from now on."""
        frames: list[Frame] = []
        size = 0
        while self._frames and size < PACKET_BYTES:
            frames.append(self._frames.popleft())
            size += size_of(frames[-1].element)
        upstream: list[Upstream] = [*self._grants.values(), *self._others]
        self._grants, self._others = {}, []
        self.under_way += 1
        return frames, upstream

    def close(self) -> None:
        """Drop what is queued and take nothing any more."""
        self.closed = True
        self._frames.clear()
        self._grants, self._others = {}, []
