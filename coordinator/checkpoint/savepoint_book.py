"""How the savepoints that users asked for turned out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ...engine.core.identity import CheckpointId
from ..model.events import Failure
from ..model.requests import Request, SavepointResult
from .request_decider import RequestDecider

REMEMBERED = 64
"""Results: whoever asked looks them up in the job's status soon."""


class SavepointBook:
    """The newest results, oldest first. A name is answered once."""

    def __init__(self) -> None:
        self._results: deque[SavepointResult] = deque(maxlen=REMEMBERED)

    @property
    def results(self) -> tuple[SavepointResult, ...]:
        return tuple(self._results)

    def asked(self, request: Request, in_flight: Iterable[Request], decider: RequestDecider) -> None:
        """A user asks, perhaps again: a name that has been answered or is about to be is not heard."""
        known = {one.name for one in (*in_flight, *decider.queued)} | {one.request for one in self._results}
        if request.name not in known:
            refusal = decider.request_savepoint(request)
            if refusal is not None:
                self.refused(request, refusal.value)

    def taken(self, request: Request, checkpoint: CheckpointId, location: str) -> None:
        """The savepoint stands."""
        self._note(request, checkpoint, location, None)

    def failed(self, request: Request, checkpoint: CheckpointId, failure: Failure) -> None:
        """It was given up."""
        self._note(request, checkpoint, None, failure)

    def refused(self, request: Request, why: str) -> None:
        """It was never begun."""
        failure = Failure(f"the savepoint was not taken: {why}", retry=True, kind="StorageError")
        self._note(request, None, None, failure)

    def _note(
        self, request: Request, checkpoint: CheckpointId | None, location: str | None, failure: Failure | None
    ) -> None:
        self._results.append(SavepointResult(request.name, request.kind.value, checkpoint, location, failure))
