"""The invariants that the scheduler owns, checked on a core between two steps.

The numbers are those of the engine's list (docs/design/scheduler.md). I4, I8, I9 and I12 to I14 belong to drivers,
operators and memory; the rest is here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..core.errors import InternalError
from .core import Core
from .entries import Entry, QueryEntry, ShareEntry
from .protocol import DriverState

GONE = frozenset({DriverState.CLOSED, DriverState.RELEASED})
AFTER_THE_END = frozenset({DriverState.RUNNING, DriverState.FINISHING}) | GONE
WITHOUT_WAITS = frozenset({DriverState.READY, DriverState.RUNNING}) | GONE


def validate(core: Core) -> None:
    """Raise InternalError with everything that does not hold."""
    broken = [*check_running(core), *check_shares(core)]
    for query in core.queries.values():
        broken += check_query(core, query)
        for entry in query.entries:
            broken += [f"{query.name}/{entry.name} [{entry.state.value}]: {text}" for text in check_entry(core, entry)]
    if broken:
        raise InternalError("invariants of the scheduler do not hold", detail="\n".join(broken))


def check_running(core: Core) -> Iterator[str]:
    """I1: the list of running ones is what it says."""
    running = core.moves.running
    if len(set(running)) != len(running) or any(entry.state is not DriverState.RUNNING for entry in running):
        yield f"I1: the list of running ones is {[f'{entry.name} {entry.state.value}' for entry in running]}"
    if len(running) > core.moves.workers:
        yield f"I1: {len(running)} run on {core.moves.workers} workers"


def check_share(share: ShareEntry, queries: list[QueryEntry]) -> Iterator[str]:
    """I1 and I3: who is ready stands in the queue once, nobody else does; and no more run than may."""
    names = [query.name for query in queries]
    entries = [entry for query in queries for entry in query.entries]
    items = share.ready.items()
    valid = Counter(entry for entry, generation in items if is_valid(entry, generation))
    ready = Counter(entry for entry in entries if entry.state is DriverState.READY)
    if valid != ready:
        queued = [f"{entry.name} ×{count}" for entry, count in valid.items()]
        yield f"I1: queued in the share of {names}: {queued}; ready: {[entry.name for entry in ready]}"
    running = sum(entry.state is DriverState.RUNNING and not entry.displaced for entry in entries)
    counted, there = (share.ready.count, share.running, share.queries), (len(ready), running, len(queries))
    if counted != there:
        yield f"I1: the share of {names} counts {counted} ready ones, running ones and queries; there are {there}"
    if share.limit is not None and running > share.limit:
        yield f"{running} run in the share of {names}, at most {share.limit} may"
    below = share.limit is None or share.running < share.limit
    if share.active != (share.ready.count > 0 and below):
        yield f"the share of {names} is {'' if share.active else 'not '}active with {share.ready.count} ready ones"
    if share.active and not (share.listed and share.vtime >= share.level.floor):
        yield f"I15: the share of {names} is behind its level, {share.vtime} < {share.level.floor}, or not listed"


def is_valid(entry: Entry, generation: int) -> bool:
    """Whether a place in the queue still counts."""
    return entry.generation == generation and entry.state is DriverState.READY


def check_entry(core: Core, entry: Entry) -> Iterator[str]:
    """One runnable: its state against its marks."""
    state, query = entry.state, entry.query
    if (state is DriverState.RUNNING) != (entry in core.moves.running):
        yield "I1: not in the list of running ones, or wrongly so"
    if entry.displaced != (state is DriverState.RUNNING and query.ending):
        yield "I1: it has a place although its query has ended, or has none"
    if state is DriverState.WAITING and (not entry.waits or entry.notified):
        yield "I2: it waits although it was woken, or for nobody"
    if state in WITHOUT_WAITS and entry.waits:
        yield f"I2: it does not wait, and yet for {entry.waits}"
    if entry.closing and (state is not DriverState.FINISHING or entry.outstanding):
        yield "I5: it is being closed while its work is not over"
    if query.ending and state not in AFTER_THE_END:
        yield "I3: its query has ended, it could still run"
    if query.paused and state in {DriverState.READY, DriverState.WAITING}:
        yield "I5: its query is paused, it could run"
    if entry in core.timers and state not in {DriverState.WAITING, DriverState.PAUSED}:
        yield "I2: it has a timer, and does not wait"
    if core.endings._closable(entry) and entry not in core.endings.eager:
        yield "I11: it could be closed, and is not in the eager lane"


def check_query(core: Core, query: QueryEntry) -> Iterator[str]:
    """One query: its counts, its error, its end."""
    states = [entry.state for entry in query.entries]
    inside = sum(entry.busy for entry in query.entries)
    open_count = sum(state not in GONE for state in states)
    if (query.inside, query.open_count) != (inside, open_count):
        counted = f"{query.inside} inside, {query.open_count} open"
        yield f"{query.name}: counted {counted}; there are {inside}, {open_count}"
    if query.error is not None and not query.ending:
        yield f"I10: {query.name} has an error and goes on"
    released = all(state is DriverState.RELEASED for state in states)
    if query.over != (released and query.ending and not query.reporting):
        yield f"I11: {query.name} is {'' if query.over else 'not '}over"
    if query.over and query in core.timers:
        yield f"I11: {query.name} is over and has a time limit"


def check_shares(core: Core) -> Iterator[str]:
    """I15: nobody who may run is behind what was served last; who is active is so by the counts."""
    shares = core.shares
    queries: dict[ShareEntry, list[QueryEntry]] = {}
    for query in core.queries.values():
        queries.setdefault(query.share, []).append(query)
    for share, found in queries.items():
        yield from check_share(share, found)
    for group in shares.groups.values():
        active = [share for share in queries if share.active and share.group is group]
        if group.active != len(active):
            yield f"group {group.name} counts {group.active} active shares, there are {len(active)}"
        if active and group.cap is None and group.vtime < shares.floor:
            yield f"I15: group {group.name} is behind, {group.vtime} < {shares.floor}"
        for level in group.levels:
            here = sum(share.level is level for share in active)
            if level.active != here or (here and level.vtime < group.floor):
                yield f"I15: level {level.number} of {group.name}: {level.active} active, there are {here}"
