"""Globs: paths with ``*`` and ``?`` (within a name), ``[ab]``, and ``**`` (any number of folders). Pure.

A ``?`` in a URL is no wildcard: it begins a query there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

_WILD = re.compile(r"[*?\[]")
_WILD_URL = re.compile(r"[*\[]")


def is_glob(path: str) -> bool:
    """Whether a path has wildcards."""
    return _first(path) is not None


def fixed_part(glob: str) -> tuple[str, str]:
    """The folder that it begins with, and the rest."""
    first = _first(glob)
    assert first is not None, "it has wildcards"
    at = glob.rfind("/", 0, first.start())
    return glob[: max(at, 0)] or "/", glob[at + 1 :]


def means(glob: str, path: str) -> bool:
    """Whether a glob means a path, or a folder above it; both are relative to the same folder."""
    return _means(glob.strip("/").split("/"), path.split("/"))


def _means(parts: Sequence[str], names: Sequence[str]) -> bool:
    if not parts:
        return True
    if parts[0] == "**":
        return any(_means(parts[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _means(parts[1:], names[1:])


def _first(path: str) -> re.Match[str] | None:
    return (_WILD_URL if "://" in path else _WILD).search(path)
