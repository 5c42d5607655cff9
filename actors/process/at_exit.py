"""The end of a script that neither waits for its job nor shuts it down, or is interrupted. No Ray.

Rules:

1. What is left to end and to remove is ended and removed when the interpreter ends, in the reverse order of the starts;
   before Ray's own end, which was registered when ray was imported.
2. That takes ``seconds`` at most: a user's function that never returns does not keep the script alive.
3. Errors are told nobody: the script is over, and what it has committed stands.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from threading import Thread


class AtExit:
    """Does ``end`` when the interpreter ends, unless it was called off. See the module's rules."""

    def __init__(self, end: Callable[[], object], seconds: float) -> None:
        self._end = end
        self._seconds = seconds
        atexit.register(self._run)

    def call_off(self) -> None:
        """The usual end has come."""
        atexit.unregister(self._run)

    def _run(self) -> None:
        beside = Thread(target=self._quietly, name="penstock-exit", daemon=True)
        beside.start()
        beside.join(self._seconds)

    def _quietly(self) -> None:
        with suppress(Exception):
            self._end()
