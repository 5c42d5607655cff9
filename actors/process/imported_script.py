"""A script that is imported for its flow starts no job: what it runs when it is the main program has run already, or is
what the command line is asked to run.

While :func:`importing` is in force on a thread, :func:`refuse_while_importing` raises there. It is asked before a job
has touched anything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...engine.core.errors import ConfigurationError


class _Thread(threading.local):
    script = ""


_thread = _Thread()


@contextmanager
def importing(script: str) -> Iterator[None]:
    """This thread imports ``script`` for the flow that it names."""
    before, _thread.script = _thread.script, script
    try:
        yield
    finally:
        _thread.script = before


def refuse_while_importing(flow: str) -> None:
    """Raises ConfigurationError if this thread imports a script."""
    if _thread.script:
        raise ConfigurationError(
            f"{_thread.script} starts a job of flow {flow!r} when it is imported, and nothing of it was begun",
            'put what starts jobs behind `if __name__ == "__main__":`, or in a function that is not called there',
        )
