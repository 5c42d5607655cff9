"""Where ranks and operator of a feed meet: when the sources are held back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock.engine.core.identity import Attempt, CheckpointId
from penstock.engine.core.operator import do_nothing
from penstock.engine.feed.membership import first_generation
from penstock.engine.feed.messages import Ask, RankGroup
from penstock.engine.feed.progress import GroupProgress, Untaken
from penstock.engine.feed.sequencer import FeedSettings, Sequencer
from penstock.engine.feed.server import REPLY_BYTES, FeedServer
from penstock.engine.feed.sink import FeedSink
from penstock.engine.feed.state import read_state, write_state
from penstock.engine.feed.status import FeedStatus, RankPace


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(count))})


@pytest.mark.parametrize("room", [10, 15, 40])
def test_feed_never_holds_the_sources_while_no_whole_batch_is_there_for_the_slowest_rank(room):
    server: FeedServer = FeedServer("feed")
    server.open(Sequencer(FeedSettings(10, most_rows=room, ahead=room, certain=True)), do_nothing)
    generation = 0
    for taken in range(50):
        server.notify(Ask("one", 0, 1, 0, generation, taken, 0))
        while not server.is_full:
            server.accept(rows(7))
        reply = server.serve(Ask("one", 0, 1, 0, generation, taken, 0, (taken,)), 0.0)
        assert [answer.batch for answer in reply.answers] == [taken]
        generation = reply.group.generation


def test_full_feed_goes_on_when_half_of_its_room_is_free():
    server: FeedServer = FeedServer("feed")
    server.open(Sequencer(FeedSettings(10, most_rows=80, ahead=80, certain=True)), do_nothing)
    server.accept(rows(80))
    found = []
    generation = 0
    for taken in range(6):
        reply = server.serve(Ask("one", 0, 1, 0, generation, taken, 0, (taken,)), 0.0)
        generation = reply.group.generation
        found.append(server.is_full)
    assert found == [True, True, True, True, False, False]


def ask(session: str, rank: int, ranks: int, start: int = 0, generation: int = 0) -> Ask:
    return Ask(session, rank, ranks, start, generation, start, start)


def test_group_that_is_never_complete_takes_no_batch_from_others():
    server: FeedServer = FeedServer("feed")
    sequencer = Sequencer(FeedSettings(10, most_rows=500, ahead=500, certain=True))
    server.open(sequencer, do_nothing)
    server.accept(rows(200))
    wrong = ask("wrong", 1, 2, start=15)
    server.serve(wrong, 0.0)
    server.notify(replace(wrong, quits=True))
    assert sequencer.oldest == 0
    reply = server.serve(ask("right", 0, 1), 0.0)
    reply = server.serve(replace(ask("right", 0, 1, generation=reply.group.generation), wanted=(0,)), 0.0)
    assert [answer.batch for answer in reply.answers] == [0]


def test_restored_feed_forgets_nothing_before_each_rank_has_said_where_it_is():
    sequencer = Sequencer(FeedSettings(10, most_rows=500, ahead=500, certain=True))
    sequencer.accept(rows(200))
    sequencer.join(RankGroup(3, 2, 10), 10)
    sequencer.acknowledge(3, 0, 12, 12)
    assert sequencer.oldest == 0
    sequencer.acknowledge(3, 1, 11, 10)
    assert sequencer.oldest == 10


def test_groups_of_another_attempt_are_newer():
    server: FeedServer = FeedServer("feed")
    found = []
    for number in (1, 2):
        server.open(Sequencer(FeedSettings(10)), do_nothing, Attempt(1, number))
        found.append(server.serve(ask(f"reader {number}", 0, 1), 0.0).group.generation)
    assert found == [first_generation(Attempt(1, 1)), first_generation(Attempt(1, 2))]


def two_ranks(server: FeedServer, batches: int) -> int:
    """A group of two, and so many batches that are there; its generation."""
    server.accept(rows(10 * batches))
    for number in (0, 1, 0):
        group = server.serve(ask(str(number), number, 2), 0.0).group
    return group.generation


def given(server: FeedServer, asked: Ask) -> list[int]:
    return [answer.batch for answer in server.serve(asked, 0.0).answers]


def test_room_is_kept_though_far_more_rows_have_come_at_once():
    server: FeedServer = FeedServer("feed")
    server.open(Sequencer(FeedSettings(10, most_rows=40, ahead=30, certain=True, max_drift=3)), do_nothing)
    generation = two_ranks(server, 100)
    quick = Ask("0", 0, 2, 0, generation, 0, 0, tuple(range(8)))
    assert given(server, quick) == [0, 1, 2]
    reply = server.serve(replace(quick, taken=3, wanted=(3,)), 0.0)
    assert (reply.answers, reply.reason) == ((), "rank 1 of 2, which is at batch 0")
    server.notify(Ask("1", 1, 2, 0, generation, 2, 0))
    assert given(server, replace(quick, taken=3, wanted=tuple(range(3, 9)))) == [3, 4]


def test_rank_that_wants_to_be_no_farther_ahead_waits_for_the_slowest():
    server: FeedServer = FeedServer("feed")
    server.open(Sequencer(FeedSettings(10, most_rows=500, ahead=500, certain=True)), do_nothing)
    generation = two_ranks(server, 20)
    quick = Ask("0", 0, 2, 0, generation, 0, 0, tuple(range(8)), max_ahead=1)
    assert given(server, quick) == [0, 1]
    assert given(server, replace(quick, max_ahead=0)) == [0]
    assert given(server, Ask("1", 1, 2, 0, generation, 0, 0, tuple(range(8)))) == list(range(8)), "it sets no bound"


def test_ranks_that_say_nothing_after_a_restart_hold_up_nobody():
    server: FeedServer = FeedServer("feed")
    settings = FeedSettings(10, most_rows=60, ahead=30, certain=True, max_drift=3)
    server.open(Sequencer(settings), do_nothing)
    generation = two_ranks(server, 6)
    for number in (0, 1):
        server.notify(Ask(str(number), number, 2, 0, generation, 2, 0))
    server.open(Sequencer(settings), do_nothing)
    server.accept(rows(60))
    assert given(server, Ask("0", 0, 2, 0, generation, 4, 0, (4,))) == [4], "rank 1 is known to have taken two"


def test_batches_that_a_rank_was_never_given_because_a_newer_group_began_behind_them_are_noted():
    server: FeedServer = FeedServer("feed")
    server.open(Sequencer(FeedSettings(10, most_rows=500, ahead=500, certain=True)), do_nothing)
    generation = two_ranks(server, 20)
    assert given(server, Ask("0", 0, 2, 0, generation, 0, 0, tuple(range(8)))) == list(range(8))
    assert given(server, Ask("1", 1, 2, 0, generation, 0, 0, (0, 1))) == [0, 1]
    server.notify(Ask("1", 1, 2, 0, generation, 1, 0))
    server.serve(ask("anew", 0, 1, start=8), 0.0)
    state, _ = server.state()
    assert state.untaken == (Untaken(1, 2, 2, 8),)
    assert [(each.rank, each.ranks, each.start, each.taken) for each in state.progress] == [(0, 1, 8, 8)]
    schema = pa.schema([("n", pa.int64())])
    found = read_state(write_state(state, 0, schema), schema)
    assert (found.progress, found.untaken) == (state.progress, state.untaken)
    book = GroupProgress.restored(found.progress, found.untaken)
    again = RankGroup(state.progress[0].generation, 1, 8)
    book.on_taken(again, 0, 12)
    book.on_taken(RankGroup(10**9, 2, 30), 1, 30)
    assert book.untaken == state.untaken, "ranks may have gone on since the checkpoint"
    book.on_taken(RankGroup(10**9 + 1, 1, 40), 0, 40)
    assert book.untaken[1:] == (Untaken(0, 2, 30, 40), Untaken(1, 2, 30, 40))


@pytest.mark.parametrize("rows_a_piece", [1, 10, 70])
def test_large_rows_fill_the_room_by_their_bytes_and_the_next_batch_always_comes(rows_a_piece):
    settings = FeedSettings(10, most_rows=10_000, ahead=10_000, certain=True, ahead_bytes=25 * 100)
    sequencer = Sequencer(settings, sizing=lambda piece: 100 * piece.num_rows)
    server: FeedServer = FeedServer("feed")
    server.open(sequencer, do_nothing)
    generation = server.serve(ask("one", 0, 1), 0.0).group.generation
    for taken in range(20):
        server.notify(Ask("one", 0, 1, 0, generation, taken, 0))
        while not server.is_full:
            server.accept(rows(rows_a_piece))
        assert sequencer.ahead <= 25 + rows_a_piece
        reply = server.serve(Ask("one", 0, 1, 0, generation, taken, 0, (taken,)), 0.0)
        assert [answer.batch for answer in reply.answers] == [taken]


@pytest.mark.parametrize("rows_a_piece", [1, 4, 10])
def test_rows_that_all_have_taken_leave_a_room_of_bytes_but_for_those_that_stay(rows_a_piece):
    config = FeedSink.of("feed", 10, drop_last=False, room="3KB", keep=5)
    sequencer = Sequencer(config.settings, sizing=lambda piece: 100 * piece.num_rows)
    server: FeedServer = FeedServer("feed")
    server.open(sequencer, do_nothing)
    generation = server.serve(ask("one", 0, 1), 0.0).group.generation
    for taken in range(100):
        server.notify(Ask("one", 0, 1, 0, generation, taken, 0))
        while not server.is_full:
            server.accept(rows(rows_a_piece))
        sequencer.validate()
        wanted, stay = 10 + rows_a_piece, config.kept + 10
        assert sequencer.position - sequencer._starts[0] <= 30 + wanted + stay
        assert sequencer.grid.first_row(sequencer.oldest) <= max(0, 10 * taken - config.kept)


def test_rank_runs_no_further_ahead_than_a_room_of_bytes_says_though_a_barrier_brings_more():
    config = FeedSink.of("feed", 10, drop_last=False, room="3KB", keep=0)
    sequencer = Sequencer(config.settings, sizing=lambda piece: 100 * piece.num_rows)
    server: FeedServer = FeedServer("feed")
    server.open(sequencer, do_nothing)
    for rank in range(2):
        server.serve(ask(f"of {rank}", rank, 2), 0.0)
    generation = server.serve(ask("of 0", 0, 2), 0.0).group.generation
    server.expect(CheckpointId(1, 1))
    for _ in range(20):
        server.accept(rows(10))
    reply = server.serve(Ask("of 0", 0, 2, 0, generation, 0, 0, tuple(range(20))), 0.0)
    assert [answer.batch for answer in reply.answers] == [0, 1, 2]
    server.notify(Ask("of 1", 1, 2, 0, generation, 2, 0))
    reply = server.serve(Ask("of 0", 0, 2, 0, generation, 3, 0, tuple(range(3, 20))), 0.0)
    assert [answer.batch for answer in reply.answers] == [3, 4]


def test_checkpoint_that_was_aborted_lets_no_more_bytes_pass_than_there_is_room_for():
    sequencer = Sequencer(FeedSink.of("feed", 10, drop_last=False, room="3KB", keep=0).settings, sizing=lambda _: 1000)
    server: FeedServer = FeedServer("feed")
    server.open(sequencer, do_nothing)
    while server.accepts_rows:
        server.accept(rows(10))
    come = sequencer.position
    server.expect(CheckpointId(1, 1))
    server.give_up(CheckpointId(1, 1))
    while server.accepts_rows:
        server.accept(rows(10))
    assert sequencer.position == come + 30
    server.on_snapshot(CheckpointId(1, 2), sequencer.snapshot_position, 0)
    assert not server.accepts_rows


def test_reply_ends_with_the_slice_that_makes_it_large():
    settings = FeedSettings(10, most_rows=10_000, ahead=10_000, certain=True)
    sequencer = Sequencer(settings, sizing=lambda piece: piece.num_rows * REPLY_BYTES // 15)
    server: FeedServer = FeedServer("feed")
    server.open(sequencer, do_nothing)
    generation = server.serve(ask("one", 0, 1), 0.0).group.generation
    for _ in range(8):
        server.accept(rows(10))
    reply = server.serve(Ask("one", 0, 1, 0, generation, 0, 0, tuple(range(8))), 0.0)
    assert [answer.batch for answer in reply.answers] == [0, 1]


def test_reply_ends_with_the_first_batch_that_is_not_there():
    sequencer: Sequencer = Sequencer(FeedSettings(10, most_rows=100, ahead=100, certain=True))
    server: FeedServer = FeedServer("feed")
    server.open(sequencer, do_nothing)
    generation = server.serve(ask("one", 0, 1), 0.0).group.generation
    server.accept(rows(35))
    reply = server.serve(Ask("one", 0, 1, 0, generation, 0, 0, tuple(range(8))), 0.0)
    assert [answer.batch for answer in reply.answers] == [0, 1, 2]
    assert reply.reason == "rows of the flow: 5 are missing"
    server.end()
    reply = server.serve(Ask("one", 0, 1, 0, generation, 3, 0, tuple(range(3, 8))), 0.0)
    assert [answer.batch for answer in reply.answers] == [3, 4, 5, 6, 7]


def test_status_says_who_waits_for_whom():
    server: FeedServer = FeedServer("feed")
    assert server.status() == FeedStatus("feed")
    sequencer = Sequencer(
        FeedSettings(10, most_rows=40, ahead=40, certain=True), sizing=lambda piece: 8 * piece.num_rows
    )
    server.open(sequencer, do_nothing)
    server.serve(ask("of 0", 0, 2), 0.0)
    assert server.status().sentences == ["feed feed: ranks wait for rank 1 of 2 to join"]
    server.serve(ask("of 1", 1, 2), 0.0)
    generation = server.serve(ask("of 0", 0, 2), 0.0).group.generation
    server.serve(Ask("of 0", 0, 2, 0, generation, 0, 0, (0, 1), waited=2.5), 0.0)
    found = server.status()
    assert found.sentences == ["feed feed: rank 0 waits for data: rows of the flow: 10 are missing"]
    assert [(each.rank, each.waited, each.ahead) for each in found.ranks] == [(0, 2.5, 0), (1, 0.0, 0)]
    server.accept(rows(40))
    server.serve(Ask("of 0", 0, 2, 0, generation, 0, 0, (0, 1, 2, 3), waited=2.5), 0.0)
    server.notify(Ask("of 0", 0, 2, 0, generation, 1, 0, waited=3.0))
    found = server.status()
    assert found.sentences == ["feed feed: data wait for rank 1 of 2, which is at batch 0"]
    assert (found.rows, found.waiting_rows, found.kept_bytes, found.batches) == (40, 40, 320, None)
    first = found.ranks[0]
    assert (first.taken, first.given, first.ahead, first.bytes_ahead, first.waited) == (1, 4, 3, 120, 3.0)
    assert "rank 0: at batch 1" in str(found)
    assert "data wait for rank 1 of 2" in str(found)


def test_status_says_when_an_attempt_has_what_ranks_may_have_from_one_before():
    settings = FeedSettings(10, most_rows=500, ahead=500, certain=True)
    server: FeedServer = FeedServer("feed")
    server.open(Sequencer(settings), do_nothing, Attempt(1, 1))
    assert server.status().caught_up, "nobody has anything"
    generation = two_ranks(server, 4)
    asked = [Ask(str(rank), rank, 2, 0, generation, 0, 0, (0, 1, 2, 3, 4, 5)) for rank in (0, 1)]
    assert given(server, asked[0]) == [0, 1, 2, 3]
    assert given(server, asked[1]) == [0, 1, 2, 3]
    assert server.status().caught_up, "all is from this attempt, whatever they ask for"
    elsewhere: FeedServer = FeedServer("feed")
    for each, first in ((server, 4), (elsewhere, 5)):
        each.open(Sequencer(settings), do_nothing, Attempt(1, 2))
        for rank in (0, 1):
            each.serve(replace(asked[rank], taken=2, wanted=(2, 3, 4, 5)), 0.0)
        seen = []
        for _ in range(6):
            seen.append(each.status().caught_up)
            each.accept(rows(10))
        assert seen == [number >= first for number in range(6)]


def test_status_forgets_the_pace_of_a_group_that_was_replaced():
    server: FeedServer = FeedServer("feed")
    server.open(Sequencer(FeedSettings(10, most_rows=40, ahead=40, certain=True)), do_nothing)
    generation = server.serve(ask("one", 0, 1), 0.0).group.generation
    server.serve(Ask("one", 0, 1, 0, generation, 0, 0, (0,), waited=9.0), 0.0)
    assert [each.waits_for for each in server.status().ranks] == ["rows of the flow: 10 are missing"]
    server.serve(ask("anew", 0, 1), 0.0)
    assert [(each.waited, each.waits_for) for each in server.status().ranks] == [(0.0, "")]


def test_rate_is_that_of_the_last_seconds():
    pace = RankPace()
    assert pace.rate(0.0) == 0.0
    for tick in range(1001):
        pace.note(tick * 0.1, tick, 0.0)
    assert pace.rate(100.0) == pytest.approx(10.0)
    for tick in range(300):
        pace.note(100 + tick * 0.1, 1000, 0.0)
    assert pace.rate(130.0) == 0.0
