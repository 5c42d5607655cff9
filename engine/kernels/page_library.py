"""The compiled decoder of Parquet pages (``pages.c``), which is in one library with the other kernels (``native.py``).

Its functions are called by their names, with numbers and addresses. Each array that a call is given the address of is
held by a name until it has come back; the interpreter's lock is free meanwhile.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pyarrow as pa

from .native import PATH, kernels

_VERSION = 2
"""That of ``pages.c``: a library that is left from another one is not used."""

_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64}
_FUNCTIONS = {
    "page_header": "pip",
    **dict.fromkeys(["snappy", "lz4"], "pipi"),
    "page_bytes": "",
    "page_open": "ppipiiipi",
    "page_begin": "pppiiiip",
    "page_rows": "pipipiip",
    "page_levels": "pip",
    "page_places": "ppiipp",
    "page_numbers": "pipiiipiip",
    "page_texts": "pipiippippii",
    "page_same_size": "pii",
    "page_decimals": "ppip",
    **dict.fromkeys(["page_spread", "page_spread_ends"], "pipii"),
}


class PageLibrary:
    """The functions of the library at ``path``. Raises OSError if it has none, or those of another version."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        version = getattr(library, "penstock_pages", None)
        if version is None or version() != _VERSION:
            raise OSError(f"{path} has no decoder of pages, or that of another version")
        self._functions = {name: getattr(library, f"penstock_{name}") for name in _FUNCTIONS}
        for name, function in self._functions.items():
            function.argtypes = [_TYPES[each] for each in _FUNCTIONS[name]]
            function.restype = None if "spread" in name else ctypes.c_int64

    def call(self, name: str, *arguments: int) -> Any:
        """What the function gives."""
        return self._functions[name](*arguments)


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
