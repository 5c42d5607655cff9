"""The cluster's pool: who has been lent how many of the processes that wait, and when others are started. Pure.

It counts as a script's pool does (``warm_pool``), for many scripts at once. A *lease* is a number of processes that a
script may take for a job which starts now.

Rules:

1. Processes are lent once: one that begins work leaves the register, and is counted off the oldest lease. Nothing that
   was used comes back.
2. A lease ends with the start of its job, or after ``LEASE`` seconds, for its script may have died. What it has not
   used waits for others again. A script that comes for it later may find nothing: its job starts cold then.
3. Refilling waits for a job that starts, but not longer than ``HELD`` seconds, however many jobs start.
4. None is ended while a lease stands: it might be one that was lent.
"""

from __future__ import annotations

from dataclasses import dataclass

from .warm_pool import QUIET, WarmPool

LEASE = 30.0
"""Seconds that a job has for beginning its work in the processes that it was lent."""
HELD = 15.0
"""Seconds that starting jobs may hold up refilling in all."""


@dataclass(slots=True)
class _Lease:
    borrower: str
    left: int
    ends: float


class SharedPool:
    """See the module's rules. Times are seconds of a clock that never goes back."""

    def __init__(self, at_once: int = 1) -> None:
        self._pool = WarmPool(at_once)
        #: the oldest first; each has something left
        self._leases: list[_Lease] = []
        #: since when jobs that start hold up refilling
        self._held_since: float | None = None

    @property
    def ready(self) -> int:
        """How many processes can be lent."""
        return self._pool.ready

    @property
    def lent(self) -> int:
        """How many are lent, and have not begun work."""
        return sum(each.left for each in self._leases)

    @property
    def has_given_up(self) -> bool:
        """Whether nothing is asked for any more, though some are missing."""
        return self._pool.has_given_up

    def want(self, processes: int) -> None:
        """From now on so many are to be ready. 0: none."""
        self._pool.want(processes)

    def looked(self, names: frozenset[str]) -> None:
        """The register holds these."""
        before = self._pool.taken
        self._pool.looked(names)
        self._use(before - self._pool.taken)

    def lend(self, borrower: str, processes: int, now: float) -> int:
        """A job starts, and can use so many. How many of them it gets."""
        self._expire(now)
        held_since = now if self._held_since is None else self._held_since
        given = self._pool.take(processes, now, min(QUIET, max(0.0, held_since + HELD - now)))
        if given:
            self._held_since = held_since
            self._leases.append(_Lease(borrower, given, now + LEASE))
        return given

    def settled(self, borrower: str) -> None:
        """No job of this script's starts any more."""
        self._end([each for each in self._leases if each.borrower == borrower])

    def to_start(self, now: float) -> int:
        """How many processes are to be asked for now; they count as asked for."""
        self._expire(now)
        missing = self._pool.to_start(now)
        if missing:
            self._held_since = None
        return missing

    def to_end(self, now: float) -> int:
        """How many of those that wait are to be ended now."""
        self._expire(now)
        return 0 if self._leases else self._pool.to_end(now)

    def next_look(self, now: float) -> float | None:
        """Seconds until something is to be done; None: all is as it should be, or hopeless."""
        found = self._pool.next_look(now)
        if not self._leases:
            return found
        expiry = max(0.0, self._leases[0].ends - now)
        return expiry if found is None else min(found, expiry)

    def validate(self) -> None:
        """Raises AssertionError if the counts contradict each other."""
        self._pool.validate()
        assert self.lent == self._pool.taken, (self._leases, self._pool.taken)
        assert all(each.left > 0 for each in self._leases)
        assert self._leases == sorted(self._leases, key=lambda each: each.ends)

    def _use(self, processes: int) -> None:
        for lease in self._leases:
            used = min(lease.left, processes)
            lease.left -= used
            processes -= used
        self._leases = [each for each in self._leases if each.left]

    def _expire(self, now: float) -> None:
        self._end([each for each in self._leases if each.ends <= now])

    def _end(self, leases: list[_Lease]) -> None:
        if not leases:
            return
        self._leases = [each for each in self._leases if each not in leases]
        self._pool.give_back(sum(each.left for each in leases))
        if not self._leases:
            self._pool.settled()
            self._held_since = None
