"""What has happened, and what to do about it, from the text of a Spark error. Pure.

Rules:

1. What the user's Python function raised comes before all else: the last line of the traceback of the Python worker.
2. Then the cause that Spark names last, and else its first line, without the name of the call from Python.
3. A traceback that leads into code which is neither Spark's nor ours has been raised by a function of the frame: then
   the remedy speaks of that function, and of nothing else. One that leads through our writer is about disks and stores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TRACEBACK = "Traceback (most recent call last):"
_CAUSES = ("Caused by:", "pyarrow.", "OSError", "ModuleNotFoundError")
_WRITER = "/actors/spark/writing.py"
_FRAME = re.compile(r'^  File "([^"]+)", line \d', re.MULTILINE)
_NOT_THEIRS = re.compile(r"(^|/)(pyspark|pyspark\.zip|pyarrow|pandas|numpy)/|^<frozen ")
"""Files that a traceback goes through before it comes to a function of the frame, or without coming to one."""

_FUNCTION = (
    "a function of the frame raised this in Spark's Python worker: repair the function, or leave out the rows that it "
    "cannot take, and run the same command again"
)
_CALL = "An error occurred while calling "
LONGEST, LONGEST_DETAIL = 300, 4000


def cause_of(error: BaseException) -> str:
    """The line of a Spark error that says what has happened."""
    text = str(error)
    return (_raised(text) or _named(text) or type(error).__name__)[:LONGEST]


def detail_of(error: BaseException) -> str:
    """As much of the text as an error of ours carries."""
    return str(error)[:LONGEST_DETAIL]


def remedy_of(error: BaseException, otherwise: str) -> str:
    """What to do about it. ``otherwise``: where no function of the frame has raised it."""
    return _FUNCTION if _is_of_a_function(str(error)) else otherwise


def _is_of_a_function(text: str) -> bool:
    """Rule 3."""
    files = _FRAME.findall("\n".join(_traceback(text)))
    if any(file.endswith(_WRITER) for file in files):
        return False
    return any(not _NOT_THEIRS.search(file) for file in files)


def _traceback(text: str) -> Iterator[str]:
    """The lines of the Python worker's traceback, and of those that it is chained with."""
    _, found, rest = text.partition(_TRACEBACK)
    for line in rest.splitlines() if found else ():
        if line.startswith(("\tat ", "Caused by:", "Driver stacktrace:", "\t...")):
            return
        yield line


def _raised(text: str) -> str:
    """What the Python worker's traceback ends in."""
    said = ""
    for line in _traceback(text):
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
