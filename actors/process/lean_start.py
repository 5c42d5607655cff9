"""Processes of actors start without pandas, with small pages (``engine``), and collect only their own garbage.

Without pandas, because importing it takes a third of the time that it takes to start one.

pyarrow imports pandas, where it is installed, as soon as it is given a Python value, to see whether that is a Series.
As long as nobody has imported pandas it cannot be one. So pyarrow's first look for pandas finds none, and as soon as
somebody does import it, pyarrow is told to look again; from then on it is as if it had found it at first. What needs
pandas (``to_pandas``) imports it as ever.

What Ray has imported before us stays until the process ends, so Python need not look through it for garbage, which it
would do several times while our modules are imported.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ...engine import use_small_pages

_WORKER = "default_worker.py"
"""The script that Ray's worker processes run."""


def is_worker() -> bool:
    """Whether this process is a worker of Ray's: elsewhere, imports are the user's affair."""
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == _WORKER


def start_lean() -> None:
    """Have pyarrow's memory in small pages, and let it have its first look at Python values now, without pandas.
    Changes nothing where the user has said otherwise, or pyarrow is at work already."""
    use_small_pages()
    gc.freeze()
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    known = getattr(pa.lib, "_pandas_api", None)
    if known is None or not hasattr(type(known), "pd"):
        return  # another pyarrow than the one that this was written for
    finder = _Finder(known)
    sys.meta_path.insert(0, finder)
    pa.array([0])
    finder.hides = False


class _Finder(MetaPathFinder):
    """Hides pandas while ``hides``; then sees it being imported, and goes."""

    def __init__(self, known: Any) -> None:
        self.hides = True
        self._known = known

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "pandas":
            return None
        if self.hides:
            raise ModuleNotFoundError("pandas is not looked for yet", name=fullname)
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self._known)
        return spec


class _Telling(Loader):
    """Loads pandas as its own loader does, and tells pyarrow."""

    def __init__(self, loader: Loader, known: Any) -> None:
        self._loader = loader
        self._known = known

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._known.pd  # noqa: B018  (looks for pandas again)
