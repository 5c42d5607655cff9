"""A scheduler as one of its users sees it: whatever is opened here has the same group, share and time limit.

Rules:

1. What a user opens belongs together: its ``weight`` is divided by the number of ``queries`` that it is going to open,
   so that a plan of many tasks gets no more than one of few.
2. Groups and the scheduler's end are not its business: ``set_group`` and ``shutdown`` go to the scheduler itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import ConfigurationError
from .protocol import Handle, Query, Scheduler


@dataclass(frozen=True, slots=True)
class Share:
    """What one user may take. ``timeout``: seconds from the start until it is ended; None: no limit."""

    group: str = "default"
    weight: float = 1.0
    timeout: float | None = None

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ConfigurationError(f"a weight of {self.weight}", "give a number above 0; 1 is everybody's")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigurationError(f"a timeout of {self.timeout} s", "give seconds above 0, or None for no limit")


class SharedScheduler:
    """See the module's rules."""

    def __init__(self, scheduler: Scheduler, share: Share, queries: int) -> None:
        self._scheduler, self._share, self._queries = scheduler, share, queries

    def open(
        self,
        name: str,
        *,
        group: str = "default",
        weight: float = 1.0,
        timeout: float | None = None,
        parallelism: int | None = None,
        on_failure: Callable[[Handle | None, BaseException], None] | None = None,
        on_closed: Callable[[], None] | None = None,
    ) -> Query:
        """A new query with the user's group, part of its weight, and its time limit, whatever is asked for."""
        return self._scheduler.open(
            name,
            group=self._share.group,
            weight=self._share.weight / self._queries,
            timeout=self._share.timeout,
            parallelism=parallelism,
            on_failure=on_failure,
            on_closed=on_closed,
        )

    def set_group(self, name: str, *, weight: float = 1.0, cap: float | None = None) -> None:
        self._scheduler.set_group(name, weight=weight, cap=cap)

    def shutdown(self) -> None:
        self._scheduler.shutdown()
