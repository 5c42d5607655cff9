"""How many processes wait, ready, for a script's next job; when others are started. Pure: no Ray, no threads, no clock.

A process is *asked for*, then *ready*: it has imported everything, and waits. A job takes ready ones; which, Ray
decides, so they are only counted here. What there is is found out by looks at the register where processes enter
themselves when they are ready and strike themselves out when they begin a job's work.

Rules:

1. Those that a job has taken stay in the register until their work begins. So what is taken is subtracted until that
   many are gone, or the job has settled.
2. While a job starts nobody else does: refilling waits until it has settled, or for ``QUIET`` seconds.
3. Only ``at_once`` are asked for at a time: Ray starts as many as a machine has cores, and forgets the others. What
   has not come ``PATIENCE`` seconds after it was asked for is asked for again. ``TRIES`` rounds in which none came, and
   nothing is asked for any more until somebody wants something: there is a reason, and trying for ever would cost what
   the pool is to save.
4. What is too many is ended: those that wait when somebody wants fewer, and those that come after all though they were
   given up. ``TRIES`` times in which none goes, and they are left alone: they do not wait, but work for somebody whom
   nobody here knows, and processes that others take in vain cost more than they.
"""

from __future__ import annotations

QUIET = 3.0
"""Seconds after the start of a job for which no process is started beside it."""
PATIENCE = 30.0
TRIES = 6
LOOK_SECONDS = 0.25
"""How long between two looks while processes are on their way."""


class WarmPool:
    """See the module's rules. Times are seconds of a clock that never goes back."""

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._wanted = 0
        #: in the register, by their names
        self._ready: frozenset[str] = frozenset()
        #: how many of them a job has taken
        self._taken = 0
        #: when each process was asked for that is not ready yet
        self._asked: list[float] = []
        #: rule 2
        self._quiet_until = float("-inf")
        #: orders in a row that nothing came of
        self._vain = 0
        #: ends in a row by which none has gone
        self._vain_ends = 0

    @property
    def ready(self) -> int:
        """How many processes the next job may take."""
        return max(0, len(self._ready) - self._taken)

    @property
    def taken(self) -> int:
        """How many processes jobs have taken that have not begun work."""
        return self._taken

    @property
    def has_given_up(self) -> bool:
        """Whether nothing is asked for any more, though some are missing (rule 3)."""
        return self._vain >= TRIES

    def want(self, processes: int) -> None:
        """From now on so many are to be ready. 0: none."""
        self._wanted, self._vain, self._vain_ends = processes, 0, 0

    def looked(self, names: frozenset[str]) -> None:
        """The register holds these."""
        come, gone = len(names - self._ready), len(self._ready - names)
        self._ready = names
        self._taken = min(max(0, self._taken - gone), len(names))
        if come:
            self._vain = 0
            del self._asked[:come]
        if gone:
            self._vain_ends = 0

    def take(self, processes: int, now: float, quiet: float = QUIET) -> int:
        """A job starts, and can use so many. How many of them it gets. ``quiet``: seconds for which refilling waits."""
        given = min(processes, self.ready)
        self._taken += given
        self._quiet_until = now + quiet
        self._vain = 0
        return given

    def give_back(self, processes: int) -> None:
        """So many of those taken have not been used, and will not be."""
        self._taken -= processes

    def settled(self) -> None:
        """No job starts any more: it runs, is over, or was refused."""
        self._taken = 0
        self._quiet_until = float("-inf")

    def to_start(self, now: float) -> int:
        """How many processes are to be asked for now; they count as asked for."""
        if now < self._quiet_until:
            return 0
        waited = [at for at in self._asked if at + PATIENCE > now]
        if len(waited) < len(self._asked):
            self._vain += 1
        self._asked = waited
        missing = min(self._wanted - self.ready, self._at_once) - len(self._asked)
        missing = 0 if self.has_given_up else max(0, missing)
        self._asked += [now] * missing
        return missing

    def to_end(self, now: float) -> int:
        """How many of those that wait are to be ended now: not beside a job that starts, which might have got them."""
        if now < self._quiet_until or self.ready <= self._wanted or self._vain_ends >= TRIES:
            return 0
        self._vain_ends += 1
        return self.ready - self._wanted

    def next_look(self, now: float) -> float | None:
        """Seconds until something is to be done; None: all is as it should be, or hopeless."""
        coming = sum(at + PATIENCE > now for at in self._asked)
        too_many = self.ready + coming > self._wanted and (coming or self._vain_ends < TRIES)
        if not too_many and (self.ready >= self._wanted or self.has_given_up):
            return None
        return max(LOOK_SECONDS, self._quiet_until - now)

    def validate(self) -> None:
        """Raises AssertionError if the counts contradict each other."""
        assert 0 <= self._taken <= len(self._ready), (self._taken, self._ready)
        assert self._wanted >= 0
        assert self._asked == sorted(self._asked)
