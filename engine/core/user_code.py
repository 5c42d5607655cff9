"""What a user's code raises: an error of the job at once, whatever it is, with the user's own frames.

Rules:

1. What a function raises for the same rows it raises again. So every exception ends the job with the function, what it
   was given and the remedy, and is not retried: also SystemExit, KeyboardInterrupt, RecursionError and MemoryError, and
   those that are no Exception at all, which would end the thread that ran the function without a word.
2. But an interrupt (Ctrl-C) on the main thread, or on one whose owner waits for the result (``on_callers_thread``: a
   ``PlanTask`` that has no thread of its own), is that owner's, a PenstockError says itself whose fault it is, and an
   OSError that comes from a source or an index (a network, a disk) may pass: it restarts the job. No user's code meets
   a bug of ours: an INTERNAL error that it raises is its own.
3. User code is told from the engine's by the frames of the traceback: one of a module that is neither the engine's nor
   a library's under it.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from .errors import Domain, PenstockError, UserCodeError

_OWN = __name__.removesuffix("engine.core.user_code")
"""The package, with its dot: the engine's and everybody's who runs it."""
_UNDER = {"pyarrow", "numpy", "ray", "sqlglot", "msgspec", *sys.stdlib_module_names}


class _Thread(threading.local):
    is_callers = False


_thread = _Thread()


def is_to_be_told(error: BaseException) -> bool:
    """Whether the error is the job's, not its owner's or the engine's (rule 2)."""
    if isinstance(error, PenstockError):
        return is_users_own(error)
    on_owners = _thread.is_callers or threading.current_thread() is threading.main_thread()
    return not (isinstance(error, KeyboardInterrupt) and on_owners)


@contextmanager
def on_callers_thread() -> Iterator[None]:
    """This thread is that of whoever wants the result, and interrupts on it are meant for him."""
    before, _thread.is_callers = _thread.is_callers, True
    try:
        yield
    finally:
        _thread.is_callers = before


def is_users_object(value: object) -> bool:
    """Whether an object is of a user's class (rule 3)."""
    return _is_users(type(value).__module__)


def is_users_own(error: PenstockError) -> bool:
    """Whether a user's code has raised it itself, and it would be taken for a bug of ours."""
    if error.domain is not Domain.INTERNAL or isinstance(error, UserCodeError):
        return False
    frames, module = error.__traceback__, _OWN
    while frames is not None:
        module = str(frames.tb_frame.f_globals.get("__name__", ""))
        frames = frames.tb_next
    return _is_users(module)


def user_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame of a user's code on (rule 3); None if there is none."""
    frames = error.__traceback__
    while frames is not None and not _is_users(str(frames.tb_frame.f_globals.get("__name__", ""))):
        frames = frames.tb_next
    return frames


def _is_users(module: str) -> bool:
    return (not module.startswith(_OWN) and module.partition(".")[0] not in _UNDER) or module == "__main__"


def raised(what: str, error: BaseException, remedy: str, where: str = "") -> UserCodeError:
    """The error of a user's code: ``what`` raised it, ``where``: in which rows."""
    message = f"{what} raised {type(error).__name__}: {text_of(error)}{f' in {where}' if where else ''}"
    return UserCodeError(message, remedy, "", story_of(error))


def text_of(error: BaseException) -> str:
    """What the error says, even if it cannot say it."""
    try:
        return str(error)
    except Exception:
        return "(it cannot be printed)"


def story_of(error: BaseException) -> str:
    """Its traceback, from the first frame of a user's code on (rule 3)."""
    frames = user_frames(error) or error.__traceback__
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except Exception:
        return f"{type(error).__name__}: its traceback cannot be printed"
