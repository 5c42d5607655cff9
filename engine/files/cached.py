"""Whether a local file lies in the memory of the system, so that reading it waits for no disk.

Linux is asked for single bytes that it has (``preadv2`` with ``RWF_NOWAIT``): it gives them at once, or says that it
would have to wait. A file system that cannot tell, as most networked ones, is one that may wait. What is found is a
guess: only places of the file are looked at, and the system may drop them at any time. Whoever goes by it waits then.
"""

from __future__ import annotations

import os

LOOKED_AT = 16
"""Places of a file, the first and the last byte among them."""

_NOW = getattr(os, "RWF_NOWAIT", None)


def is_cached(path: str, size: int) -> bool:
    """Whether all places of the file that are looked at are in memory; False where that cannot be told."""
    if _NOW is None:
        return False
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # whoever reads it says why
    try:
        byte = bytearray(1)
        places = {(size - 1) * place // (LOOKED_AT - 1) for place in range(LOOKED_AT)} if size else set()
        return all(os.preadv(file, [byte], place, _NOW) == 1 for place in places)
    except OSError:
        return False
    finally:
        os.close(file)
