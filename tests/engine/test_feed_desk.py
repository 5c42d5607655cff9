"""Where ranks and operator of a feed meet: when the sources are held back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.feed_desk import FeedDesk
from penstock.engine.feed_messages import Ask
from penstock.engine.operators.protocol import do_nothing
from penstock.engine.sequencer import FeedSettings, Sequencer


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(count))})


@pytest.mark.parametrize("room", [10, 15, 40])
def test_feed_never_holds_the_sources_while_no_whole_batch_is_there_for_the_slowest_rank(room):
    desk: FeedDesk = FeedDesk("feed")
    desk.open(Sequencer(FeedSettings(10, most_rows=room, ahead=room, certain=True)), do_nothing)
    generation = 0
    for taken in range(50):
        desk.hear(Ask("one", 0, 1, 0, generation, taken, 0))
        while not desk.is_full:
            desk.accept(rows(7))
        reply = desk.serve(Ask("one", 0, 1, 0, generation, taken, 0, (taken,)), 0.0)
        assert [answer.batch for answer in reply.answers] == [taken]
        generation = reply.world.generation


def test_full_feed_goes_on_when_half_of_its_room_is_free():
    desk: FeedDesk = FeedDesk("feed")
    desk.open(Sequencer(FeedSettings(10, most_rows=80, ahead=80, certain=True)), do_nothing)
    desk.accept(rows(80))
    found = []
    generation = 0
    for taken in range(6):
        reply = desk.serve(Ask("one", 0, 1, 0, generation, taken, 0, (taken,)), 0.0)
        generation = reply.world.generation
        found.append(desk.is_full)
    assert found == [True, True, True, True, False, False]
