"""Which share runs next: groups by their weight, levels by youth, shares by what they have used.

Everything has a *virtual time*: the CPU time that it has used, divided by its weight. The smallest one is served:
first among the groups, then among the levels of that group, then among the shares of that level. Virtual time never
decreases, and whoever becomes active is lifted to the virtual time that was served last, so that an idle hour gives
nobody a claim to the next one.

Levels are a multi-level feedback queue. A share begins at level 0 and sinks as it uses CPU time; a level's weight is
twice that of the next one, in favour of the *young*: a short plan overtakes long ones, and a long one still gets at
least 1/16 beside any number of young ones (one in 31 beside all other levels). One turn counts at most
``CONTRIBUTION_CAP`` seconds against its level, lest a batch that takes minutes starve everybody else in it.

A group may have a cap, in CPU seconds per second: a token bucket of ``CAP_BURST`` seconds of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

LEVEL_THRESHOLDS = (0.0, 1.0, 10.0, 60.0, 300.0)
LEVEL_RATIO = 2.0
CONTRIBUTION_CAP = 0.1
CAP_BURST = 0.1


class Member:
    """One share, as far as it matters here."""

    __slots__ = ("active", "cpu", "group", "level", "listed", "number", "vtime", "weight")

    def __init__(self, number: int, group: Group[Any], weight: float) -> None:
        self.number = number
        self.group = group
        self.weight = weight
        # By the CPU time that it has used; its virtual time is that time divided by the weight, lifted on entry.
        self.level: Level[Any] = group.levels[0]
        self.cpu = 0.0
        self.vtime = 0.0
        # Active: something of it is ready and may run. Listed: it stands in its level's heap.
        self.active = False
        self.listed = False


M = TypeVar("M", bound=Member)


class Level(Generic[M]):
    """The shares of one group that are about equally old. Active: something in it is ready."""

    __slots__ = ("active", "floor", "heap", "next_threshold", "number", "vtime", "weight")

    def __init__(self, number: int, thresholds: Sequence[float]) -> None:
        self.number = number
        self.weight = LEVEL_RATIO ** (len(thresholds) - 1 - number)
        last = number + 1 == len(thresholds)
        self.next_threshold = float("inf") if last else thresholds[number + 1]
        self.vtime = 0.0
        # The virtual time of the share that was served last.
        self.floor = 0.0
        # How many of its shares are active.
        self.active = 0
        # (virtual time when it was put in, number, share): the time may be too low by now, never too high. Shares
        # that are no longer active stay until they come up.
        self.heap: list[tuple[float, int, M]] = []

    def put(self, share: M) -> None:
        """List a share that became active."""
        share.vtime = max(share.vtime, self.floor)
        if not share.listed:
            share.listed = True
            heapq.heappush(self.heap, (share.vtime, share.number, share))

    def first(self) -> M:
        """The active share with the smallest virtual time; there is one."""
        while True:
            vtime, number, share = self.heap[0]
            if not share.active:
                share.listed = False
                heapq.heappop(self.heap)
            elif vtime < share.vtime:
                heapq.heapreplace(self.heap, (share.vtime, number, share))
            else:
                self.floor = vtime
                return share

    def remove(self, share: M) -> None:
        """Take out a share that sinks or has nothing left: rare, hence no index."""
        if share.listed:
            self.heap = [item for item in self.heap if item[2] is not share]
            heapq.heapify(self.heap)
            share.listed = False


class Group(Generic[M]):
    """Shares that have one weight together, and perhaps a cap."""

    __slots__ = ("active", "cap", "floor", "levels", "name", "refilled_at", "tokens", "vtime", "weight")

    def __init__(self, name: str, thresholds: Sequence[float]) -> None:
        self.name = name
        self.weight = 1.0
        self.cap: float | None = None
        self.tokens = 0.0
        self.refilled_at = 0.0
        self.vtime = 0.0
        self.floor = 0.0
        self.active = 0
        self.levels: list[Level[M]] = [Level(number, thresholds) for number in range(len(thresholds))]

    def may_run(self, now: float) -> bool:
        """Whether the cap leaves anything now."""
        if self.cap is None:
            return True
        self.tokens = min(self.cap * CAP_BURST, self.tokens + self.cap * max(0.0, now - self.refilled_at))
        self.refilled_at = max(now, self.refilled_at)
        return self.tokens > 0

    @property
    def may_run_at(self) -> float:
        """When the cap leaves something again."""
        # A little above zero, or rounding could leave the bucket empty at the very time when it should not be.
        return self.refilled_at + (1e-9 - self.tokens) / self.cap * (1 + 1e-9) if self.cap else self.refilled_at

    def first(self) -> M:
        """The share to serve; there is an active one."""
        best: Level[M] | None = None
        for level in self.levels:
            if level.active and (best is None or level.vtime < best.vtime):
                best = level
        assert best is not None  # the group is active
        self.floor = best.vtime
        return best.first()


class Shares(Generic[M]):
    """All groups. ``thresholds``: the CPU seconds at which shares reach the levels; a single 0 turns the feedback
    off. ``throttled_until`` is the time when a group with work may run again that was passed over last."""

    def __init__(self, thresholds: Sequence[float] = LEVEL_THRESHOLDS) -> None:
        self._thresholds = thresholds
        self.groups: dict[str, Group[M]] = {}
        self.floor = 0.0
        # How many shares are active.
        self.active = 0
        self.throttled_until: float | None = None

    def group(self, name: str) -> Group[M]:
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = Group(name, self._thresholds)
        return found

    def set_group(self, name: str, weight: float, cap: float | None, now: float) -> None:
        """Set its weight and cap; what it has used stays."""
        group = self.group(name)
        group.weight, group.cap, group.refilled_at = weight, cap, now
        group.tokens = cap * CAP_BURST if cap else 0.0

    def activate(self, share: M) -> None:
        """Something of the share may run, which was not so before."""
        share.active = True
        group, level = share.group, share.level
        if not group.active:
            group.vtime = max(group.vtime, self.floor)
        if not level.active:
            level.vtime = max(level.vtime, group.floor)
        self.active += 1
        group.active += 1
        level.active += 1
        level.put(share)

    def deactivate(self, share: M) -> None:
        """Nothing of it may run any more."""
        share.active = False
        self.active -= 1
        share.group.active -= 1
        share.level.active -= 1

    def forget(self, share: M) -> None:
        """No share of the share is left, and none may ever come: keep nothing of it."""
        share.level.remove(share)

    def pick(self, now: float) -> M | None:
        """The share to serve next, if any may run."""
        best: Group[M] | None = None
        self.throttled_until = None
        for group in self.groups.values():
            if not group.active:
                continue
            if not group.may_run(now):
                at = group.may_run_at
                self.throttled_until = at if self.throttled_until is None else min(at, self.throttled_until)
            elif best is None or group.vtime < best.vtime:
                best = group
        if best is None:
            return None
        self.floor = best.vtime
        return best.first()

    def charge(self, share: M, cost: float) -> None:
        """Book CPU time of one turn."""
        group, level = share.group, share.level
        share.cpu += cost
        share.vtime += cost / share.weight
        level.vtime += min(cost, CONTRIBUTION_CAP) / level.weight
        group.vtime += cost / group.weight
        if group.cap is not None:
            group.tokens -= cost
        if share.cpu >= level.next_threshold:
            self._sink(share)

    def _sink(self, share: M) -> None:
        active = share.active
        if active:
            self.deactivate(share)
        share.level.remove(share)
        while share.cpu >= share.level.next_threshold:
            share.level = share.group.levels[share.level.number + 1]
        if active:
            self.activate(share)
