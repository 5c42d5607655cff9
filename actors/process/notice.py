"""SIGTERM as a notice that a process is about to be taken away. No Ray.

Rules:

1. A handler in Python would wait until the main thread runs Python code, which that of a Ray worker may never do. So
   the notice comes through the file descriptor that Python writes to at once, and is told on a thread of its own.
2. Signals can only be set up on the main thread; elsewhere there is no notice, and SIGTERM ends the process as before.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable


def tell_notice(told: Callable[[], None]) -> bool:
    """Call ``told`` on a thread, once, when SIGTERM comes. False: it is not possible here."""
    if threading.current_thread() is not threading.main_thread():
        return False
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(reading, told), name="penstock-notice", daemon=True).start()
    return True


def _wait(reading: int, told: Callable[[], None]) -> None:
    while os.read(reading, 1) != bytes([signal.SIGTERM]):
        pass
    told()
