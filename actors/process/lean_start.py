"""Processes of actors start with small pages (``engine``) and collect only their own garbage.

What Ray has imported before us stays until the process ends, so Python need not look through it for garbage, which it
would do several times while our modules are imported. That they start without pandas holds for all (``lazy_pandas``).
"""

from __future__ import annotations

import gc
import os
import sys

from ...engine import use_small_pages

_WORKER = "default_worker.py"
"""The script that Ray's worker processes run."""


def is_worker() -> bool:
    """Whether this process is a worker of Ray's: elsewhere, memory and garbage are the user's affair."""
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == _WORKER


def start_lean() -> None:
    """Have pyarrow's memory in small pages, leave what was imported before alone, and let pyarrow have its first look
    at values now (``lazy_pandas``): Ray hands it some. What the user has said stays."""
    use_small_pages()
    gc.freeze()
    from ...engine.arrow.lazy_pandas import look_without_pandas

    look_without_pandas()
