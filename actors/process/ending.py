"""How a process ends: a script that does not wait for its job, an interrupt, a notice by SIGTERM. No Ray."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType


class AtExit:
    """Does ``end`` when the interpreter ends, unless it was called off: the end of a script that neither waits for its
    job nor shuts it down, or is interrupted.

    It is done in the reverse order of the starts, before Ray's own end, which was registered when ray was imported. It
    takes ``seconds`` at most: a user's function that never returns does not keep the script alive. Errors are not
    shown: the script is over, and what it has committed stays.
    """

    def __init__(self, end: Callable[[], object], seconds: float) -> None:
        self._end = end
        self._seconds = seconds
        atexit.register(self._run)

    def call_off(self) -> None:
        """The usual end has come."""
        atexit.unregister(self._run)

    def _run(self) -> None:
        beside = threading.Thread(target=self._quietly, name="penstock-exit", daemon=True)
        beside.start()
        beside.join(self._seconds)

    def _quietly(self) -> None:
        with suppress(Exception):
            self._end()


INTERRUPTED = "penstock: interrupted"
EXIT_CODE = 130


def print_interrupts_briefly() -> None:
    """From now on an interrupt (Ctrl-C) that nobody catches prints one line at the script's end, not a traceback.

    The exit code is what a shell shows for any such end; Python alone would end by the signal, but not once Ray has
    been used. Somebody else's hook is left alone. So is an interactive session: there an interrupt ends a call, not the
    job.
    """
    if sys.excepthook is sys.__excepthook__ and not hasattr(sys, "ps1"):
        sys.excepthook = _hook


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(INTERRUPTED, file=sys.stderr)
        raise SystemExit(EXIT_CODE)  # Python takes it from a hook, too
    sys.__excepthook__(kind, error, trace)


def watch_sigterm(on_notice: Callable[[], None]) -> bool:
    """Call ``on_notice`` on a thread, once, when SIGTERM announces that the process is about to be taken away.

    A handler in Python would wait until the main thread runs Python code, which that of a Ray worker may never do. So
    the notice comes through the file descriptor that Python writes to at once. Signals can only be set up on the main
    thread: elsewhere this returns False, and SIGTERM ends the process as before.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_wait_for_sigterm, args=(reading, on_notice), name="penstock-notice", daemon=True).start()
    return True


def _wait_for_sigterm(reading: int, on_notice: Callable[[], None]) -> None:
    while os.read(reading, 1) != bytes([signal.SIGTERM]):
        pass
    on_notice()
