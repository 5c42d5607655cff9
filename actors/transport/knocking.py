"""Who is being greeted, and who has to go when there are too many of them. Pure: no sockets, no threads, no clocks.

Rules:

1. Open greetings are bounded per peer (a machine's address, or a process of this machine) and in all.
2. Who comes is always let in; in his place the oldest greeting has to go: of the same peer, if that has its share, else
   of the peer with most. A member of the job needs milliseconds, so the oldest are those who do not get on; and
   strangers at many doors do not keep others out, however many they are.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

PER_PEER = 64
IN_ALL = 256

C = TypeVar("C")


class Greetings(Generic[C]):
    """See the module's rules."""

    def __init__(self, per_peer: int = PER_PEER, in_all: int = IN_ALL) -> None:
        self._per_peer, self._in_all = per_peer, in_all
        #: of each connection its peer, the oldest first
        self._open: dict[C, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: C, peer: str) -> C | None:
        """Let a connection in; the one that has to go for it, if any."""
        self._open[connection] = peer
        counts = Counter(self._open.values())
        if counts[peer] <= self._per_peer:
            if len(self._open) <= self._in_all:
                return None
            peer = counts.most_common(1)[0][0]
        oldest = next(each for each, its in self._open.items() if its == peer)
        del self._open[oldest]
        return oldest

    def leave(self, connection: C) -> bool:
        """The greeting is over. False: it had to go before."""
        return self._open.pop(connection, None) is not None

    def all(self) -> list[C]:
        """Those that are being greeted."""
        return list(self._open)
