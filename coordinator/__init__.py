"""Decisions about a job: checkpoints, recovery, failover. Pure: no clock, no thread, no file, no Ray.

Rooms, each importing only rooms named before it: ``model`` (facts, orders, records), ``log`` and ``restore``, ``state``
(what the coordinator knows), ``checkpoint``, ``job``. On top is ``machine``: events in, commands out.
"""
