"""Memory that is free goes back to the system, in time and when a job has ended.

numpy's arrays come from the C library's allocator. Each thread has an arena of its own there, which keeps what was
freed in it: up to 64 MiB at its end once an array of 32 MiB was there, and all that lies before what is still used.
Threads of other jobs get other arenas. So after four aggregations of 1.5 M groups, one after the other, a process had
760 MiB, and 230 after the first one.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's numbers of these settings (``malloc.h``)."""

KEPT_BYTES = 16 * 1024 * 1024
"""What an arena keeps at its end: less costs processor time, as pages that come back are cleared."""

OWN_BYTES = 32 * 1024 * 1024
"""An array that is as large has pages of its own: what glibc comes to by itself, and without which it would be 128 KiB
where the other setting is made."""

_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


@cache
def keep_little() -> None:
    """Let arenas keep little that is free, from now on; not where the user has said what they do, or elsewhere than in
    glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and os.environ.keys().isdisjoint(_USERS):
        mallopt(_MMAP_THRESHOLD, OWN_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def give_back() -> None:
    """Give back what arenas keep, if the C library can. Takes 0.1 ms, and 8 ms for 300 MiB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
