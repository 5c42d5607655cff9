"""Barrier handling: which channels wait for which, and when a snapshot is taken. Pure state machines, a mode each.

``AlignedHandler``, ``UnalignedHandler`` and ``AlternatingHandler`` (aligned with timeout) keep exactly once and share
the rules in ``single``; ``BarrierTracker`` is at least once. All have the methods of ``BarrierHandler``, whose module
says what the owner of a handler has to do. A driver uses ``AlternatingHandler`` where barriers may overtake (also if
at once), and ``AlignedHandler`` elsewhere.
"""

from .aligned import AlignedHandler
from .alternating import AlternatingHandler
from .protocol import Aborted, AbortReason, BarrierArrival, BarrierHandler, Outcome, SnapshotMode, Triggered
from .times import AlignmentTimes
from .tracker import BarrierTracker
from .unaligned import UnalignedHandler

__all__ = [
    "AbortReason",
    "Aborted",
    "AlignedHandler",
    "AlignmentTimes",
    "AlternatingHandler",
    "BarrierArrival",
    "BarrierHandler",
    "BarrierTracker",
    "Outcome",
    "SnapshotMode",
    "Triggered",
    "UnalignedHandler",
]
