"""What the rank that fetches for its machine has for its neighbours."""

from __future__ import annotations

import random

from penstock.actors.feed.board import KEPT, Board, Offer


def test_a_batch_is_later_then_coming_then_here_and_gone_when_all_neighbours_have_it() -> None:
    board: Board[str] = Board()
    for neighbour in (1, 2):
        board.come(neighbour)
    assert board.find(0) is Offer.LATER
    board.ask([0, 1], 0)
    assert (board.find(0), board.find(1), board.find(2)) == (Offer.COMING, Offer.COMING, Offer.LATER)
    board.arrive([0], {0: "zero"})
    assert (board.find(0), board.find(1)) == ("zero", Offer.LATER), "the rest is asked for again when it is needed"
    assert board.give(1, 0) == []
    assert board.give(2, 0) == ["zero"]
    assert board.find(0) is Offer.GONE


def test_what_was_not_shared_is_gone_and_an_answer_without_batches_leaves_all_coming() -> None:
    board: Board[str] = Board()
    board.ask([0], 0)
    board.arrive([], {})
    assert board.find(0) is Offer.COMING
    board.arrive([0], {})
    assert board.find(0) is Offer.GONE


def test_a_neighbour_that_lags_behind_is_not_waited_for_and_one_that_goes_lets_go() -> None:
    board: Board[int] = Board()
    board.come(1)
    board.arrive(range(10), {batch: batch for batch in range(10)})
    assert board.ask([], KEPT + 3) == [0, 1, 2]
    assert board.leave(1) == list(range(3, 10))
    assert not board.is_wanted


def test_all_that_was_kept_is_given_back_once_whatever_happens() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        board: Board[int] = Board()
        put: list[int] = []
        back: list[int] = []
        end = taken = 0
        for _ in range(60):
            kind, neighbour = draw.randrange(5), draw.randrange(3)
            if kind == 0:
                board.come(neighbour)
            elif kind == 1:
                back += board.leave(neighbour)
            elif kind == 2:
                taken = draw.randint(taken, end)
                back += board.ask(range(end, end + 3), taken)
            elif kind == 3:
                board.arrive([end], {end: end} if board.is_wanted else {})
                put += [end] if board.is_wanted else []
                end += 1
            elif isinstance(found := board.find(draw.randint(0, end)), int):
                back += board.give(neighbour, found)
            assert all(batch >= taken - KEPT for batch in set(put) - set(back)) or kind != 2, seed
        back += board.clear()
        assert sorted(back) == put, seed
