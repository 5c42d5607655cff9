"""Barrier handling: which channels wait for which, and when a snapshot is taken. Pure state machines, a mode each.

``AlignedHandler``, ``UnalignedHandler`` and ``AlternatingHandler`` (aligned with timeout) keep exactly once and share
the rules in ``single``; ``BarrierTracker`` is at least once. All have the methods of ``BarrierHandler``, whose module
says what the owner of a handler has to do. ``BarrierAligner`` is the aligned mode as the driver uses it today.
"""

from .aligned import NOTHING, AlignedHandler, Alignment, BarrierAligner
from .alternating import AlternatingHandler
from .protocol import Aborted, AbortReason, BarrierArrival, BarrierHandler, Outcome, SnapshotMode, Triggered
from .times import AlignmentTimes
from .tracker import BarrierTracker
from .unaligned import UnalignedHandler

__all__ = [
    "NOTHING",
    "AbortReason",
    "Aborted",
    "AlignedHandler",
    "Alignment",
    "AlignmentTimes",
    "AlternatingHandler",
    "BarrierAligner",
    "BarrierArrival",
    "BarrierHandler",
    "BarrierTracker",
    "Outcome",
    "SnapshotMode",
    "Triggered",
    "UnalignedHandler",
]
