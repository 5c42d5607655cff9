"""The scheduler's records of shares, of their queries and of the runnables in them: data, no decisions.

All fields are changed by the core alone, which is entered by one thread at a time. Other threads may read single
fields (a state, the waits, an asked-for yield): each is one reference, replaced as a whole.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from .protocol import DriverState, HandleStatistics, QueryStatistics, Runnable, Wait
from .shares import Group, Member

# ------------------------------------------------------------------ ready queue
#
# The ready runnables of one share, and which of them a worker takes.
#
# 1. Downstream first: a lower rank before a higher one. What is nearest to the sink frees memory.
# 2. Within a rank a worker prefers its own local queue (what it ran last, or woke: its data are in that core's cache),
#    but at most ``LOCAL_IN_A_ROW`` times in a row while others wait; then the one that has waited longest.
# 3. Whoever has nothing of its own takes what has waited longest, also out of another worker's queue: it steals.
# 4. Every ``OLDEST_FIRST`` picks, and when ``OLDEST_SECONDS`` have passed since that, the one that has waited
#    longest of all is taken, whatever its rank: nobody starves, nor waits for 61 turns of those that sleep in theirs.
#
# An item is (entry, generation). One whose entry is no longer ready, or was made ready anew, is void and dropped when
# it is met: so taking an entry out of the middle costs nothing.

LOCAL_IN_A_ROW = 3
OLDEST_FIRST = 61
OLDEST_SECONDS = 0.05


class Queued:
    """What the queue needs to know of an entry."""

    __slots__ = ("generation", "home", "rank", "state", "ticket")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.state = DriverState.CREATED
        # Raised by each move to and from READY; what a queue holds of an older generation is void.
        self.generation = 0
        # The worker in whose local queue it stands or would stand.
        self.home: int | None = None
        # Its place in the order of arrival, as long as it is READY.
        self.ticket = 0


E = TypeVar("E", bound=Queued)


class RankQueue(Generic[E]):
    """The entries of one rank: one queue per worker, and one of those that belong to none."""

    __slots__ = ("listed", "local_in_a_row", "queues")

    def __init__(self) -> None:
        # In the order of ranks that are looked at.
        self.listed = False
        self.queues: dict[int | None, deque[tuple[E, int]]] = {None: deque()}
        self.local_in_a_row = 0

    def push(self, entry: E) -> None:
        queue = self.queues.get(entry.home)
        if queue is None:
            queue = self.queues[entry.home] = deque()
        queue.append((entry, entry.generation))

    def take(self, worker: int | None) -> E | None:
        """The entry for this worker, out of the queue; None if there is none."""
        if len(self.queues) == 1:
            queue = self.queues[None]
            entry = head(queue)
        else:
            own = self.queues.get(worker)
            entry = head(own) if own and self.local_in_a_row < LOCAL_IN_A_ROW else None
            if entry is not None and own is not None:
                self.local_in_a_row += 1
                queue = own
            else:
                self.local_in_a_row = 0
                entry = self.oldest()
                queue = self.queues[entry.home] if entry is not None else self.queues[None]
        if entry is not None:
            queue.popleft()
        return entry

    def oldest(self) -> E | None:
        """The one that has waited longest; it stays in the queue."""
        heads = [entry for queue in self.queues.values() if (entry := head(queue)) is not None]
        return min(heads, key=lambda entry: entry.ticket, default=None)


def head(queue: deque[tuple[E, int]]) -> E | None:
    """The first valid entry; void ones before it are dropped."""
    while queue:
        entry, generation = queue[0]
        if entry.generation == generation and entry.state is DriverState.READY:
            return entry
        queue.popleft()
    return None


class ReadyQueue(Generic[E]):
    """See above. ``count`` is the number of READY entries of the share; the core keeps it.

    Listed are the ranks in which anything may stand: one that is found empty leaves the list until something comes."""

    __slots__ = ("_oldest_at", "_order", "_picks", "_ranks", "_tickets", "count")

    def __init__(self) -> None:
        self._ranks: dict[int, RankQueue[E]] = {}
        self._order: list[int] = []
        self._picks = 0
        # When the one that had waited longest was taken last, or the first one of all.
        self._oldest_at: float | None = None
        self._tickets = 0
        self.count = 0

    def push(self, entry: E) -> None:
        queue = self._ranks.get(entry.rank)
        if queue is None:
            queue = self._ranks[entry.rank] = RankQueue()
        if not queue.listed:
            queue.listed = True
            insort(self._order, entry.rank)
        self._tickets += 1
        entry.ticket = self._tickets
        queue.push(entry)

    def take(self, worker: int | None, now: float) -> E | None:
        """The entry that the worker should run, out of the queue."""
        self._picks += 1
        if self._oldest_at is None:
            self._oldest_at = now
        if self._picks % OLDEST_FIRST == 0 or now - self._oldest_at >= OLDEST_SECONDS:
            self._oldest_at = now
            return self._take_oldest()
        while self._order:
            queue = self._ranks[self._order[0]]
            entry = queue.take(worker)
            if entry is not None:
                return entry
            queue.listed = False
            del self._order[0]
        return None

    def _take_oldest(self) -> E | None:
        listed = (self._ranks[rank] for rank in self._order)
        found = [entry for queue in listed if (entry := queue.oldest()) is not None]
        entry = min(found, key=lambda entry: entry.ticket, default=None)
        if entry is not None:
            self._ranks[entry.rank].queues[entry.home].popleft()
        return entry

    def items(self) -> list[tuple[E, int]]:
        """All that it holds, void ones included (for ``validate``)."""
        queues = [queue for rank in self._ranks.values() for queue in rank.queues.values()]
        return [item for queue in queues for item in queue]


def _wake_nobody(entry: Entry) -> None:
    """It is over."""


class Entry(Queued):
    """One scheduled runnable; also the handle that its users hold."""

    __slots__ = (
        "closing",
        "cpu",
        "displaced",
        "last_worker",
        "name",
        "notified",
        "number",
        "opened",
        "outstanding",
        "query",
        "runnable",
        "since",
        "spent",
        "steals",
        "turns",
        "wait_seconds",
        "waits",
        "wake_call",
        "wakeups",
        "yield_asked",
        "yields",
    )

    def __init__(
        self,
        runnable: Runnable,
        query: QueryEntry,
        number: int,
        rank: int,
        wake_call: Callable[[Entry], None],
        now: float,
    ) -> None:
        super().__init__(rank)
        self.runnable = runnable
        self.name = runnable.name
        self.query = query
        self.number = number
        self.wake_call = wake_call
        # Not empty in WAITING.
        self.waits: tuple[Wait, ...] = ()
        # A wake-up has come since the running turn began, or while it is paused: it must run again.
        self.notified = False
        self.opened = False
        # Background work under way: it cannot be closed before that is 0.
        self.outstanding = 0
        # A thread is in `close` (FINISHING only).
        self.closing = False
        self.last_worker: int | None = None
        self.yield_asked = False
        # Its query has ended during this turn, which may last: somebody else has its place (RUNNING only).
        self.displaced = False
        self.since = now
        self.spent: dict[DriverState, float] = {}
        self.wait_seconds: dict[str, float] = {}
        self.cpu = 0.0
        self.turns = self.wakeups = self.steals = self.yields = 0

    def wake(self) -> None:
        self.wake_call(self)

    def release(self) -> None:
        """Nothing happens to it any more: let go of the runnable, and of whoever it wakes."""
        del self.runnable
        self.wake_call = _wake_nobody

    @property
    def busy(self) -> bool:
        """Whether a thread is inside the runnable."""
        return self.state is DriverState.RUNNING or self.closing

    def spend(self, seconds: float) -> None:
        """Book the time in the present state."""
        state = self.state
        if state is DriverState.WAITING and self.waits:
            reason = self.waits[0].reason.value
            self.wait_seconds[reason] = self.wait_seconds.get(reason, 0.0) + seconds
        else:
            self.spent[state] = self.spent.get(state, 0.0) + seconds

    def statistics(self, now: float) -> HandleStatistics:
        """With the state that it is in until ``now``: who waits for an hour is to be seen before that is over."""
        present = max(0.0, now - self.since)
        waiting = dict(self.wait_seconds)
        if self.state is DriverState.WAITING and self.waits:
            reason = self.waits[0].reason.value
            waiting[reason] = waiting.get(reason, 0.0) + present

        def spent(state: DriverState) -> float:
            return self.spent.get(state, 0.0) + (present if self.state is state else 0.0)

        return HandleStatistics(
            name=self.name,
            state=self.state.value,
            queued=spent(DriverState.READY),
            running=spent(DriverState.RUNNING),
            paused=spent(DriverState.PAUSED),
            waiting=waiting,
            cpu=self.cpu,
            turns=self.turns,
            wakeups=self.wakeups,
            steals=self.steals,
            yields=self.yields,
            present=present,
        )


class ShareEntry(Member):
    """What the queries of one plan, or of one job in this process, may take together; ``limit``: how many of their
    runnables may run at once."""

    __slots__ = ("limit", "queries", "ready", "running")

    def __init__(self, number: int, group: Group[ShareEntry], weight: float, limit: int | None) -> None:
        super().__init__(number, group, weight)
        self.limit = limit
        # How many queries it has that are not over.
        self.queries = 0
        self.ready = ReadyQueue[Entry]()
        # How many of its runnables are RUNNING.
        self.running = 0


class QueryEntry:
    """One query: its runnables, and how it ends. What it uses is its share's."""

    __slots__ = (
        "cancelled",
        "deadline",
        "ending",
        "entries",
        "error",
        "inside",
        "name",
        "number",
        "open_count",
        "over",
        "paused",
        "pauses",
        "reporting",
        "share",
        "started",
        "suppressed",
        "timeout",
    )

    def __init__(self, name: str, number: int, share: ShareEntry, timeout: float | None) -> None:
        self.name = name
        self.number = number
        self.share = share
        self.timeout = timeout
        self.entries: list[Entry] = []
        # Runnables that are RUNNING or being closed; those not yet closed.
        self.inside = 0
        self.open_count = 0
        self.started = False
        self.paused = False
        # What callers of `pause` hold and the shell resolves.
        self.pauses: list[object] = []
        # Ending: nothing of it runs again. Reporting: its error is being told, nothing may be closed yet.
        self.ending = False
        self.cancelled = False
        self.reporting = False
        self.over = False
        self.error: BaseException | None = None
        self.suppressed: list[BaseException] = []
        self.deadline: float | None = None

    def statistics(self, now: float) -> QueryStatistics:
        return QueryStatistics(
            name=self.name,
            group=self.share.group.name,
            level=self.share.level.number,
            cpu=self.share.cpu,
            handles=tuple(entry.statistics(now) for entry in self.entries),
            suppressed=tuple(self.suppressed),
        )


# ------------------------------------------------------------------ effects
#
# What a core asks its shell to do, because it calls out of the scheduler: after the change, outside all locks.


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the query's owner of its first error, then say ``Core.reported``: nothing is closed before."""

    query: QueryEntry
    entry: Entry | None
    error: BaseException


@dataclass(frozen=True, slots=True)
class Halted:
    """A pause of the query is complete, or over: resolve the futures that its callers hold. They travel with it,
    because by the time when this is performed the query may have been resumed and paused anew."""

    query: QueryEntry
    futures: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Over:
    """Everything of the query is closed: resolve its future."""

    query: QueryEntry


Effect: TypeAlias = Report | Halted | Over
