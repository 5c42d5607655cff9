"""What a transport promises to the two ends of a channel.

A transport carries frames downstream and grants upstream, between the processes of two tasks. It replaces nothing of
``engine.exchange.channels``: numbering, credit and fencing stay with the channel's ends, so a transport may be small.

Rules:

1. Messages to one task arrive in the order in which they were given to ``send`` and ``reply``, each at most once, and
   none is missing before one that arrived; only of several grants of one channel the largest alone may arrive.
2. A transport that cannot keep rule 1 reports the link as broken, once, and delivers nothing more on it. It never
   goes on after a loss and never retries by itself: the coordinator restarts the tasks on both sides.
3. ``send`` and ``reply`` never block and never raise for what the network does. Credit bounds what is queued.
4. ``connect`` replaces every link. What was queued on the old ones is dropped: it belonged to an older attempt.

Every implementation passes ``tests/support/channel_contract.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from ...engine.core.identity import Attempt, TaskId
from ...engine.exchange.channels import Frame, Upstream
from ..protocol.messages import Address


class BrokenLink(msgspec.Struct, frozen=True):
    """The process of ``task``, which was to run ``attempt``, can no longer be reached."""

    task: TaskId
    attempt: Attempt
    reason: str


class Transport(Protocol):
    """The sending half that a process owns. Received messages come in through the process's own door."""

    def connect(self, peers: Mapping[TaskId, tuple[Attempt, Address]]) -> None:
        """Open a link to every task named, in place of all links before. The own task is named with its attempt."""

    def send(self, frame: Frame) -> None:
        """Carry a frame to the process of its consumer."""

    def reply(self, message: Upstream) -> None:
        """Carry a message to the process of its producer."""

    def close(self) -> None:
        """Drop what is queued and end."""
