"""What consumers say to producers, through the bytes of a stream and back."""

from __future__ import annotations

import pytest

from penstock.actors.transport.frames import HEAD_BYTES
from penstock.actors.transport.wire import message, note_of, upstream_note, upstream_of
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.exchange.channels import CancelInput, ChannelId, EndOfDataAck, Upstream

CHANNEL = ChannelId("edge", TaskId("up", 0), TaskId("down", 1))
ATTEMPTS = (Attempt(1, 1), Attempt(1, 2))


@pytest.mark.parametrize(
    "said",
    [
        EndOfDataAck(CHANNEL, ATTEMPTS),
        CancelInput(CHANNEL, ATTEMPTS, 3, for_good=False),
        CancelInput(CHANNEL, ATTEMPTS, 4, for_good=True),
    ],
    ids=["all processed", "drop for now", "drop for good"],
)
def test_messages_come_back_as_they_were(said: Upstream) -> None:
    note = note_of(message(upstream_note(7, said))[HEAD_BYTES:])
    assert upstream_of(note, CHANNEL, ATTEMPTS) == said  # type: ignore[arg-type]
