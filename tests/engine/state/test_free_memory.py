"""What a job has freed does not stay with the process that ran it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap

import pytest

SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
HELD = 24 * 1024 * 1024
BEGIN = """
    import os, threading
    import numpy as np
    from penstock.engine.state.free_memory import give_back, keep_little

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def in_thread(function):
        kept = []
        thread = threading.Thread(target=lambda: kept.append(function()))
        thread.start(), thread.join()
        return kept

    def rows(count):
        return [np.ones(8 * 1024) for _ in range(count // 65536)]
"""
IN_FRONT = """
    def hold_and_free():
        held = rows({held})
        return np.ones(8 * 1024)  # behind the others: what is free in front of it cannot go by itself

    kept = in_thread(hold_and_free)
    before = resident()
    give_back()
    print(before - resident())
"""
AT_THE_END = """
    def hold_and_free():
        for _ in range(2):  # behind the first one the allocator keeps twice as much, if it may
            large = np.ones({held} // 8)
            del large

    keep_little() if {little} else None
    before = resident()
    in_thread(hold_and_free)
    print(resident() - before)
"""


def said(code: str, **given: object) -> int:
    """What a process of its own prints."""
    env = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    code = textwrap.dedent(BEGIN) + textwrap.dedent(code).format(held=HELD, **given)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=env)
    return int(done.stdout)


pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc")


def test_memory_that_a_thread_has_freed_goes_back_to_the_system() -> None:
    assert said(IN_FRONT) > HELD * 0.8


def test_what_a_thread_has_freed_last_does_not_stay() -> None:
    assert said(AT_THE_END, little=True) < HELD * 0.3 < said(AT_THE_END, little=False)
