"""pyarrow does not import pandas for our sake: that takes longer than to import all of ours, and often nobody wants it.

pyarrow imports pandas, where it is installed, as soon as it is given a Python value, to see whether that is a Series.
As long as nobody has imported pandas it cannot be one. So pyarrow's first look for pandas finds none, and as soon as
somebody does import it, pyarrow is told to look again; from then on it is as if it had found it at first. What needs
pandas (``to_pandas``) imports it as ever. Who only asks whether pandas is there does not import it: many libraries do.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import get_ident
from types import ModuleType
from typing import Any

import pyarrow as pa


def look_without_pandas() -> None:
    """Let pyarrow have its first look at Python values now. Changes nothing where that was before, or where pandas is
    there already."""
    if "pandas" in sys.modules:
        return
    known = getattr(pa.lib, "_pandas_api", None)
    if known is None or not hasattr(type(known), "pd"):
        return  # another pyarrow than the one that this was written for
    finder = _Finder(known)
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        finder.hides_from = None


class _Finder(MetaPathFinder):
    """Hides pandas from the thread that makes it, while ``hides_from``; then sees it being imported. It goes when that
    is done."""

    def __init__(self, known: Any) -> None:
        self.hides_from: int | None = get_ident()
        self._known = known
        #: threads that this finder asks the others for
        self._asks: set[int] = set()

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "pandas" or get_ident() in self._asks:
            return None
        if self.hides_from == get_ident():
            raise ModuleNotFoundError("pandas is not looked for yet", name=fullname)
        self._asks.add(get_ident())
        try:
            spec = find_spec(fullname)
        finally:
            self._asks.discard(get_ident())
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self)
        return spec

    def pandas_came(self) -> None:
        """Pandas is there."""
        with suppress(ValueError):  # it was loaded twice
            sys.meta_path.remove(self)
        self._known.pd  # noqa: B018  (looks for pandas again)


class _Telling(Loader):
    """Loads pandas as its own loader does, and says so."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.pandas_came()
