"""A sink on its own, without the driver that calls it."""

from __future__ import annotations

from penstock.engine.core.identity import CheckpointId, Committable
from penstock.engine.core.operator import RunningSink


def prepared_by(sink: RunningSink, checkpoint: CheckpointId) -> list[Committable]:
    """What the sink prepares for a checkpoint whose barrier comes now. Its context writes at once."""
    sink.flush(checkpoint)
    return sink.prepare(checkpoint)
