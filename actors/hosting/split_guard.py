"""Between a task and the splits that it reads: notifies which one is next, and keeps poison out. No Ray.

Rules:

1. A guarded split is the split, but for three things: ``notify``, if set, is called before each opening; an error
   that its reading raises is noted in ``raised``; and one that is to be skipped has no rows. Where the rows come from
   somebody who still makes them (``may_be_poison = False``), neither an error nor a death is a fault of the split's,
   nor of another one that was opened before: no name is given, and no error noted.
2. What holds comes with each deployment (``begin``), before the attempt's task is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from ...coordinator.model.split_sets import SplitName
from ...engine.core.source import Split
from ...engine.plan.plan import JobPlan
from ...engine.sources.repeated import again


class SplitGuard:
    """See the module's rules."""

    def __init__(self) -> None:
        self._notify: Callable[[SplitName | None], None] | None = None
        self._skipped: frozenset[SplitName] = frozenset()
        #: the split whose reading has raised in this attempt
        self.raised: SplitName | None = None

    def begin(self, notify: Callable[[SplitName | None], None] | None, skipped: frozenset[SplitName]) -> None:
        """Another attempt follows."""
        self._notify, self._skipped, self.raised = notify, skipped, None

    def is_skipped(self, name: SplitName) -> bool:
        """Whether the split is to have no rows."""
        return name in self._skipped

    def opened(self, name: SplitName | None) -> None:
        """The split is about to be read; None: one that is never to blame."""
        if self._notify is not None:
            self._notify(name)

    def guarded(self, plan: JobPlan) -> JobPlan:
        """The plan with all its splits behind this guard."""
        sources = {
            id: replace(
                source, splits=tuple(GuardedSplit(split, SplitName(id, split.id), self) for split in source.splits)
            )
            for id, source in plan.sources.items()
        }
        return replace(plan, sources=sources)


class GuardedSplit:
    """A split behind a guard."""

    def __init__(self, split: Split, name: SplitName, guard: SplitGuard) -> None:
        self._split = split
        self._name = name
        self._guard = guard
        self.id = split.id
        self.blocking = bool(getattr(split, "blocking", False))

    @property
    def rows(self) -> int | None:
        """The split's own; not known of one that is skipped, which may have been read in part."""
        return None if self._guard.is_skipped(self._name) else self._split.rows

    def again(self, epoch: int) -> GuardedSplit:
        """The split as it is read in a later epoch: it may be poison there alone."""
        found = again(self._split, epoch)
        return GuardedSplit(found, SplitName(self._name.source, found.id), self._guard)

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        """The rows, unless the split is skipped."""
        if self._guard.is_skipped(self._name):
            return
        may_be_poison = bool(getattr(self._split, "may_be_poison", True))
        self._guard.opened(self._name if may_be_poison else None)
        try:
            yield from self._split.open(start)
        except Exception:
            if may_be_poison:
                self._guard.raised = self._name
            raise
