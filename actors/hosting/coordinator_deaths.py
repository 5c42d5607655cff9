"""How often the coordinators of a job have died of an error of their own, so that a bug is not restarted for ever.

Rules:

1. A coordinator that dies of an error in its core leaves a note beside the log: the error, and the newest checkpoint
   that it knew. The next one reads the notes before it does anything.
2. Notes count while no checkpoint has completed between them. After ``MOST`` in a row the job fails with the error.
3. Whoever starts the job anew (Ray has not restarted the process) begins without notes: it may be another version.
"""

from __future__ import annotations

import json

from ...coordinator.model.events import Failure
from ...coordinator.model.store import Store
from ...engine.files.paths import safe_name

MOST = 3
"""Deaths in a row: an error that depends on what happens at the same time is not met three times."""


class Deaths:
    """See the module's rules."""

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._folder = f"{safe_name(job)}/deaths/"

    def note(self, failure: Failure, completed: str) -> None:
        """Remember one. Raises OSError."""
        text = {"message": failure.message, "detail": failure.detail, "completed": completed}
        number = len(self._store.list(self._folder))
        while not self._store.create(f"{self._folder}{number:06d}.json", json.dumps(text).encode()):
            number += 1

    def forget(self) -> None:
        """Begin without notes."""
        for key in self._store.list(self._folder):
            self._store.delete(key)

    def refusal(self) -> Failure | None:
        """Why another coordinator would die as well; None if it may try."""
        notes = [json.loads(self._store.read(key) or b"{}") for key in self._store.list(self._folder)]
        last = notes[-MOST:]
        if len(last) < MOST or any(note.get("completed") != last[-1].get("completed") for note in last):
            return None
        return Failure(
            message=f"{MOST} coordinators of the job died one after the other of an error of their own; the last: "
            f"{last[-1].get('message')}",
            retry=False,
            remedy="report it; another version may go on from the job's last checkpoint",
            detail=str(last[-1].get("detail")),
            kind="InternalError",
        )
