"""Why runnables do not run, in sentences; and the chain of waiting of a query that hangs."""

from __future__ import annotations

from collections.abc import Iterable

from .entries import Entry, QueryEntry
from .states import DriverState


def why(query: QueryEntry) -> list[str]:
    """One sentence for each runnable that cannot run now."""
    sentences = (why_not(entry) for entry in query.entries)
    return [sentence for sentence in sentences if sentence]


def why_not(entry: Entry) -> str:
    """Why the runnable cannot run now; "" if it can, does, or never will again."""
    query, state = entry.query, entry.state
    whom = " and ".join(str(wait) for wait in entry.waits)
    if state is DriverState.CREATED:
        return f"{entry.name} has not begun: {whom or 'its query has not been started'}"
    if state is DriverState.WAITING:
        return f"{entry.name} {whom}"
    if state is DriverState.PAUSED:
        return f"{entry.name} is paused with its query" + (f"; it {whom}" if whom else "")
    if state is DriverState.READY and not query.active and query.limit is not None:
        return f"{entry.name} is ready, but {query.limit} of its query run already"
    if state is DriverState.FINISHING and not entry.closing:
        return f"{entry.name} is done; its end {whom or 'waits for ' + holder(entry)}"
    return ""


def holder(entry: Entry) -> str:
    """Who keeps a finished runnable from being closed."""
    if entry.query.paused:
        return "its query to be resumed"
    if entry.inhibitions:
        return f"neighbour: {next(other.name for other in entry.neighbours if other.busy)}"
    return "a free worker"


def story(queries: Iterable[QueryEntry]) -> str:
    """All queries with the states of their runnables: what to read when something hangs."""
    lines = []
    for query in queries:
        lines.append(f"query {query.name}: " + (f"ends with {query.error!r}" if query.ending else "runs"))
        lines += [f"  {entry.name} [{entry.state.value}] {why_not(entry)}".rstrip() for entry in query.entries]
    return "\n".join(lines)
