"""What a core asks its shell to do, because it calls out of the scheduler: after the change, outside all locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .entries import Entry, QueryEntry


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
