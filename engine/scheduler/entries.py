"""The scheduler's records of queries and of the runnables in them: data, no decisions.

All fields are changed by the core alone, which is entered by one thread at a time. Other threads may read single
fields (a state, the waits, an asked-for yield): each is one reference, replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .dependency import Dependency
from .protocol import HandleStatistics, QueryStatistics
from .ready_queue import Queued, ReadyQueue
from .runnable import Runnable
from .shares import Group, Member
from .states import DriverState, Wait


class Entry(Queued):
    """One scheduled runnable; also the handle that its users hold."""

    __slots__ = (
        "after",
        "closing",
        "cpu",
        "inhibitions",
        "last_worker",
        "name",
        "neighbours",
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
        "wanted",
        "yield_asked",
        "yields",
    )

    def __init__(
        self,
        runnable: Runnable,
        query: QueryEntry,
        number: int,
        rank: int,
        after: tuple[Dependency, ...],
        wake_call: Callable[[Entry], None],
        now: float,
    ) -> None:
        super().__init__(rank)
        self.runnable = runnable
        self.name = runnable.name
        self.query = query
        self.number = number
        self.after = after
        self.wake_call = wake_call
        # Not empty in WAITING, and in CREATED while something in `after` is not ready.
        self.waits: tuple[Wait, ...] = ()
        # A wake-up has come since the running turn began, or while it is paused: it must run again.
        self.notified = False
        # It waits for nothing but its neighbours (WAITING only).
        self.wanted = False
        # Those that may not run at the same time; symmetric. `inhibitions`: how many of them are busy.
        self.neighbours: list[Entry] = []
        self.inhibitions = 0
        self.opened = False
        # Background work under way: it cannot be closed before that is 0.
        self.outstanding = 0
        # A thread is in `close` (FINISHING only).
        self.closing = False
        self.last_worker: int | None = None
        self.yield_asked = False
        self.since = now
        self.spent: dict[DriverState, float] = {}
        self.wait_seconds: dict[str, float] = {}
        self.cpu = 0.0
        self.turns = self.wakeups = self.steals = self.yields = 0

    def wake(self) -> None:
        self.wake_call(self)

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

    def statistics(self) -> HandleStatistics:
        def spent(state: DriverState) -> float:
            return self.spent.get(state, 0.0)

        return HandleStatistics(
            name=self.name,
            state=self.state.value,
            queued=spent(DriverState.READY),
            running=spent(DriverState.RUNNING),
            paused=spent(DriverState.PAUSED),
            waiting=dict(self.wait_seconds),
            cpu=self.cpu,
            turns=self.turns,
            wakeups=self.wakeups,
            steals=self.steals,
            yields=self.yields,
        )


class QueryEntry(Member):
    """One query: its runnables, its place among the others, and how it ends."""

    __slots__ = (
        "cancelled",
        "deadline",
        "ending",
        "entries",
        "error",
        "inside",
        "limit",
        "name",
        "open_count",
        "over",
        "paused",
        "pauses",
        "ready",
        "reporting",
        "running",
        "started",
        "suppressed",
        "timeout",
    )

    def __init__(
        self, name: str, number: int, group: Group[QueryEntry], weight: float, timeout: float | None, limit: int | None
    ) -> None:
        super().__init__(number, group, weight)
        self.name = name
        self.timeout = timeout
        self.limit = limit
        self.entries: list[Entry] = []
        self.ready = ReadyQueue[Entry]()
        # Runnables that are RUNNING; those and the ones being closed; those not yet closed.
        self.running = 0
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

    def statistics(self, entries: Sequence[Entry] | None = None) -> QueryStatistics:
        return QueryStatistics(
            name=self.name,
            group=self.group.name,
            level=self.level.number,
            cpu=self.cpu,
            handles=tuple(entry.statistics() for entry in (self.entries if entries is None else entries)),
            suppressed=tuple(self.suppressed),
        )
