"""The compiled decoder of Parquet pages (``pages.c``), which is in one library with the other kernels (``native.py``).

Its functions are called by their names, with numbers and addresses. Each array that a call is given the address of is
held by a name until it has come back; the interpreter's lock is free meanwhile, unless the call is brief.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from .native import PATH, functions_of, kernels

_VERSION = 5
"""That of ``pages.c``: a library that is left from another one is not used."""

_FUNCTIONS = {
    **dict.fromkeys(["snappy", "lz4"], "pipi"),
    "column_bytes": "",
    "column_next": "p",
    "column_read": "pipi",
    "column_open": "ppipipi",
    "levels_fit": "piiiiii",
    "words_as": "piiiiip",
    "footer_fits": "piip",
    "index_places": "piiip",
    "words_texts": "piipp",
}


class PageLibrary:
    """The functions of the library at ``path``. Raises OSError if it has none, or those of another version."""

    def __init__(self, path: Path) -> None:
        self._functions = functions_of(path, "pages", _VERSION, _FUNCTIONS)
        self._brief = functions_of(path, "pages", _VERSION, _FUNCTIONS, brief=True)

    def call(self, name: str, *arguments: int, brief: bool = False) -> Any:
        """What the function gives. ``brief``: it takes some microseconds, as ``native.BRIEF`` says."""
        return (self._brief if brief else self._functions)[name](*arguments)


def address(array: Any) -> int:
    """Where an array lies; a fifth of what numpy's own way costs."""
    found: int = pa.py_buffer(array).address
    return found


def _load() -> PageLibrary | None:
    if kernels() is None:
        return None
    try:
        return PageLibrary(PATH)
    except OSError:
        return None


_library = _load()


def page_library() -> PageLibrary | None:
    """The compiled decoder; None: pyarrow reads everything."""
    return _library
