"""Barriers of checkpoints by agreement: which channels wait for which, and when a snapshot is taken. Pure.

A checkpoint goes one of three ways. Its barriers pass at once, and tasks cut where they stand: no driver aligns for
those (``runtime.task_cut``). Or they stand at a place that the sources agree on, and each driver waits for all of them:
:class:`AlignedHandler`. Or they do so for a time, after which the coordinator gives the checkpoint up, and one of the
first kind takes its place: a handler hears of that as of any other that is given up.
"""

from .aligned import AlignedHandler
from .protocol import Aborted, AbortReason, BarrierArrival, Outcome
from .times import AlignmentTimes

__all__ = ["AbortReason", "Aborted", "AlignedHandler", "AlignmentTimes", "BarrierArrival", "Outcome"]
