"""What has happened, from the text of a Spark error. Pure.

Rules:

1. What the user's Python function raised comes before all else: the last line of the traceback of the Python worker.
2. Then the cause that Spark names last, and else its first line, without the name of the call from Python.
"""

from __future__ import annotations

_TRACEBACK = "Traceback (most recent call last):"
_CAUSES = ("Caused by:", "pyarrow.", "OSError", "ModuleNotFoundError")
_CALL = "An error occurred while calling "
LONGEST, LONGEST_DETAIL = 300, 4000


def cause_of(error: BaseException) -> str:
    """The line of a Spark error that says what has happened."""
    text = str(error)
    return (_raised(text) or _named(text) or type(error).__name__)[:LONGEST]


def detail_of(error: BaseException) -> str:
    """As much of the text as an error of ours carries."""
    return str(error)[:LONGEST_DETAIL]


def _raised(text: str) -> str:
    """What the Python worker's traceback ends in."""
    _, found, rest = text.partition(_TRACEBACK)
    said = ""
    for line in rest.splitlines() if found else ():
        if line.startswith(("\tat ", "Caused by:", "Driver stacktrace:", "\t...")):
            break
        if (
            line.strip()
            and not line.startswith(" ")
            and not line.startswith((_TRACEBACK, "During handling", "The above"))
        ):
            said = said if said and not _is_raised(line) else line.strip()
    return said


def _is_raised(line: str) -> bool:
    """Whether the line begins as what a traceback ends in: ``module.Error: words``."""
    name = line.partition(":")[0]
    return name.replace(".", "").replace("_", "").isalnum() and name[:1].isalpha()


def _named(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(_CAUSES)]
    if causes:
        return causes[-1]
    told = [line.removeprefix(": ") for line in lines if not line.startswith(_CALL)]
    return next(iter(told), "")
