"""The seats of a feed's world: who sits where, who begins a newer world, and what becomes of those who leave."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from penstock.engine.core.identity import Attempt
from penstock.engine.feed.messages import Ask, Refusal, Refused, World
from penstock.engine.feed.seats import Seats, first_generation


def rank(session: str, number: int, ranks: int, start: int = 0, generation: int = 0) -> Ask:
    return Ask(session, number, ranks, start, generation, start, start)


class Desk:
    """Seats, and a clock that stands still: generations follow each other."""

    def __init__(self) -> None:
        self.seats = Seats()
        self.waits = ""

    def ask(self, ask: Ask) -> World | Refused | None:
        """The world that the rank is told of; None: it waits."""
        if self.seats.has_left(ask.session):
            return None
        found = self.seats.claim(ask, 1)
        if isinstance(found, Refused | str):
            self.waits = found if isinstance(found, str) else ""
            return None if isinstance(found, str) else found
        if found is not None:
            self.seats.begin(found, ask)
        return self.seats.world if self.seats.is_complete else None

    def leave(self, ask: Ask) -> World | None:
        return None if self.seats.leave(ask) else self.seats.world


def test_no_rank_is_told_of_a_world_before_all_have_come() -> None:
    desk = Desk()
    assert desk.ask(rank("a", 0, 2)) is None
    assert desk.seats.missing == "rank 1 of 2 to join"
    world = desk.ask(rank("b", 1, 2))
    assert world == World(1, 2, 0) == desk.ask(rank("a", 0, 2))


def test_seat_of_a_reader_that_left_an_incomplete_world_is_free_for_the_next_one() -> None:
    desk = Desk()
    lonely = rank("lonely", 1, 3)
    desk.ask(lonely)
    assert desk.leave(lonely) is None
    assert desk.seats.missing == "rank 0, 1, 2 of 3 to join"
    worlds = [desk.ask(rank(f"new-{number}", number, 3)) for number in (0, 2, 1)]
    assert worlds[-1] == World(1, 3, 0), "all sit in one world, none has begun a newer one"


def test_question_that_is_heard_after_the_goodbye_takes_no_seat() -> None:
    desk = Desk()
    late = rank("late", 0, 2)
    desk.leave(late)
    assert desk.ask(late) is None
    assert desk.seats.missing == "ranks to join"


def test_reader_that_leaves_when_its_world_is_complete_is_told_of_it_and_keeps_its_seat() -> None:
    desk = Desk()
    desk.ask(rank("a", 0, 2))
    desk.ask(rank("b", 1, 2))
    assert desk.leave(rank("a", 0, 2)) == World(1, 2, 0)
    assert not desk.seats.lose("b")
    assert desk.ask(rank("a", 0, 2)) == World(1, 2, 0)


def test_reader_whose_connection_was_lost_may_come_back_as_itself() -> None:
    desk = Desk()
    desk.ask(rank("a", 0, 2))
    assert desk.seats.lose("a")
    assert not desk.seats.lose("a")
    desk.ask(rank("a", 0, 2))
    assert desk.ask(rank("b", 1, 2)) == World(1, 2, 0)


def test_whoever_comes_to_a_taken_seat_begins_a_newer_world_and_the_others_follow() -> None:
    desk = Desk()
    desk.ask(rank("a", 0, 2))
    desk.ask(rank("other a", 0, 2))
    assert desk.seats.world == World(2, 2, 0)
    assert desk.ask(rank("b", 1, 2)) == World(2, 2, 0)
    assert desk.ask(rank("b", 1, 2, generation=1)) == World(2, 2, 0), "of an older world: the desk refuses it first"
    found = desk.ask(rank("c", 1, 2, generation=2))
    assert found == Refused(Refusal.STALE, 2)


def test_nobody_who_comes_anew_sits_down_in_a_world_that_was_complete_before_a_restart() -> None:
    desk = Desk()
    assert desk.ask(rank("a", 0, 2, generation=7)) == World(7, 2, 0)
    assert desk.ask(rank("new b", 1, 2)) is None, "rank 0 may have read a hundred batches"
    assert desk.seats.world == World(8, 2, 0)


def test_ranks_that_disagree_do_not_throw_each_other_out_and_are_told_who_says_what() -> None:
    desk = Desk()
    two, three = rank("two", 0, 2), rank("three", 1, 3)
    desk.ask(two)
    desk.ask(three)
    assert desk.seats.world == World(2, 3, 0)
    for _ in range(5):
        assert desk.ask(two) is None
        assert desk.ask(three) is None
    assert desk.seats.world == World(2, 3, 0), "nobody begins a newer world again and again"
    assert desk.waits == "another world to end: rank 1 of 3, from batch 0 on, has come"
    assert desk.seats.missing == ("rank 0, 2 of 3 to join; for another world rank 0 of 2, from batch 0 on, waits")
    desk.leave(three)
    desk.ask(two)
    assert desk.seats.world == World(3, 2, 0), "nobody sits in the other world any more"


def test_last_rank_of_a_kind_brings_all_of_it_together_whoever_else_waits() -> None:
    desk = Desk()
    ranks = [rank(f"a{number}", number, 3) for number in range(3)]
    other = rank("other", 0, 2)
    for each in (ranks[0], ranks[1], other, ranks[0], ranks[1], ranks[2], other, ranks[1], ranks[0]):
        desk.ask(each)
    assert desk.seats.is_complete
    assert desk.seats.world == World(3, 3, 0)
    assert desk.ask(other) is None, "one that disagrees ends no world that has begun to read"
    assert desk.seats.world == World(3, 3, 0)


def test_rank_of_a_complete_world_that_was_replaced_is_told_to_end_though_it_never_heard_of_its_world() -> None:
    desk = Desk()
    desk.ask(rank("old", 0, 1))
    desk.ask(rank("new", 0, 1))
    assert desk.ask(rank("old", 0, 1)) == Refused(Refusal.STALE, 2)


def test_generations_grow_with_every_attempt_whatever_a_clock_says() -> None:
    attempts = [Attempt(1, 1), Attempt(1, 2), Attempt(1, 999), Attempt(2, 1), Attempt(10, 1)]
    firsts = [first_generation(each) for each in attempts]
    assert firsts == sorted(set(firsts))
    assert all(0 < first < 2**63 for first in firsts)
    old, new = Seats(), Seats()
    for seats, attempt, session in ((old, Attempt(1, 1), "old"), (new, Attempt(1, 2), "new")):
        begun = seats.claim(rank(session, 0, 1), first_generation(attempt))
        assert isinstance(begun, World)
        seats.begin(begun, rank(session, 0, 1))
    assert old.world is not None
    assert new.world is not None
    assert old.world.generation < new.world.generation


def test_generation_of_this_attempt_that_it_has_not_given_is_refused() -> None:
    desk = Desk()
    desk.ask(rank("new", 0, 1))
    assert desk.ask(rank("old", 0, 1, generation=5)) == Refused(Refusal.STALE, 1)
    desk.seats.opened()
    assert desk.ask(rank("old", 0, 1, generation=5)) == World(5, 1, 0), "another process may have given it meanwhile"


@dataclass
class Reader:
    ask: Ask
    world: World | None = None


def test_ranks_that_come_and_stay_have_one_world_whoever_came_and_left_before() -> None:
    for seed in range(300):
        chance, desk, sessions = random.Random(seed), Desk(), iter(range(10_000))
        late: list[Ask] = []
        readers: list[Reader] = []
        for _ in range(chance.randrange(30)):
            action = chance.randrange(4)
            if action == 0 or not readers:
                ranks = chance.randint(1, 3)
                readers.append(Reader(rank(str(next(sessions)), chance.randrange(ranks), ranks)))
            reader = chance.choice(readers)
            if action == 1:
                reader.world = hear(desk, reader) or reader.world
            elif action == 2:
                if desk.leave(reader.ask) is None:
                    late.append(reader.ask)
                readers.remove(reader)
            elif action == 3 and late:
                desk.ask(chance.choice(late))
        for reader in readers:
            desk.leave(reader.ask)
        complete = desk.seats.is_complete
        ranks = chance.randint(1, 3)
        come = [Reader(rank(f"last {number}", number, ranks)) for number in range(ranks)]
        for reader in chance.sample(come, ranks):
            hear(desk, reader)
            for ask in late:
                desk.ask(ask)
        for reader in come:
            reader.world = hear(desk, reader)
        assert len({reader.world for reader in come}) == 1, f"seed {seed}: {come}"
        assert come[0].world is not None
        assert come[0].world.ranks == ranks
        assert complete or desk.seats.is_complete


def hear(desk: Desk, reader: Reader) -> World | None:
    generation = 0 if reader.world is None else reader.world.generation
    found = desk.ask(replace(reader.ask, generation=generation))
    return found if isinstance(found, World) else None
