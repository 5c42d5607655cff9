"""Ctrl-C in a script that runs a job: one line at its end instead of a traceback. No Ray.

Rules:

1. Only an interrupt that nobody catches is told so. The exit code is what a shell shows for any such end; Python alone
   would end by the signal, but not once Ray has been used.
2. Somebody else's hook is left alone. So is an interactive session: there an interrupt ends a call, not the job.
"""

from __future__ import annotations

import sys
from types import TracebackType

INTERRUPTED = "penstock: interrupted"
EXIT_CODE = 130


def tell_interrupts_briefly() -> None:
    """From now on the script's end by an interrupt is told in one line."""
    if sys.excepthook is sys.__excepthook__ and not hasattr(sys, "ps1"):
        sys.excepthook = _hook


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(INTERRUPTED, file=sys.stderr)
        raise SystemExit(EXIT_CODE)  # Python takes it from a hook, too
    sys.__excepthook__(kind, error, trace)
