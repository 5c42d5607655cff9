"""Rank assignment: which reader is which rank, what starts a newer group, and what becomes of readers that leave."""

from __future__ import annotations

import random
from dataclasses import dataclass

from msgspec.structs import replace

from penstock.engine.core.identity import Attempt
from penstock.engine.feed.membership import Membership, first_generation
from penstock.engine.feed.messages import Ask, RankGroup, Refusal, Refused


def rank(session: str, number: int, ranks: int, start: int = 0, generation: int = 0) -> Ask:
    return Ask(session, number, ranks, start, generation, start, start)


class Server:
    """Membership, and a clock that stands still: generations follow each other."""

    def __init__(self) -> None:
        self.members = Membership()
        self.waits = ""

    def ask(self, ask: Ask) -> RankGroup | Refused | None:
        """The group that the rank is told of; None: it waits."""
        self.members.validate()
        if self.members.has_left(ask.session):
            return None
        found = self.members.join(ask, 1)
        if isinstance(found, Refused | str):
            self.waits = found if isinstance(found, str) else ""
            return None if isinstance(found, str) else found
        if found is not None:
            self.members.start(found, ask)
        return self.members.group if self.members.is_complete else None

    def leave(self, ask: Ask) -> RankGroup | None:
        return None if self.members.leave(ask) else self.members.group


def test_no_rank_is_told_of_a_group_before_all_have_come() -> None:
    server = Server()
    assert server.ask(rank("a", 0, 2)) is None
    assert server.members.missing == "rank 1 of 2 to join"
    group = server.ask(rank("b", 1, 2))
    assert group == RankGroup(1, 2, 0) == server.ask(rank("a", 0, 2))


def test_rank_of_a_reader_that_left_an_incomplete_group_is_free_for_the_next_one() -> None:
    server = Server()
    lonely = rank("lonely", 1, 3)
    server.ask(lonely)
    assert server.leave(lonely) is None
    assert server.members.missing == "rank 0, 1, 2 of 3 to join"
    groups = [server.ask(rank(f"new-{number}", number, 3)) for number in (0, 2, 1)]
    assert groups[-1] == RankGroup(1, 3, 0), "all are in one group, none has started a newer one"


def test_ranks_that_name_other_copies_are_of_another_group() -> None:
    server = Server()
    server.ask(replace(rank("a", 0, 2), copies=2))
    server.ask(rank("b", 1, 2))
    assert server.members.group == RankGroup(2, 2, 0), "a newer one"
    assert server.ask(replace(rank("a", 0, 2), copies=2)) is None
    assert server.waits == "another group to end: rank 1 of 2, from batch 0 on, has joined"
    server.leave(rank("b", 1, 2))
    server.ask(replace(rank("a", 0, 2), copies=2))
    assert server.ask(replace(rank("c", 1, 2), copies=2)) == RankGroup(3, 2, 0, 2)


def test_question_that_is_heard_after_the_reader_has_left_takes_no_rank() -> None:
    server = Server()
    late = rank("late", 0, 2)
    server.leave(late)
    assert server.ask(late) is None
    assert server.members.missing == "ranks to join"


def test_reader_that_leaves_when_its_group_is_complete_is_told_of_it_and_keeps_its_rank() -> None:
    server = Server()
    server.ask(rank("a", 0, 2))
    server.ask(rank("b", 1, 2))
    assert server.leave(rank("a", 0, 2)) == RankGroup(1, 2, 0)
    assert not server.members.on_disconnect("b")
    assert server.ask(rank("a", 0, 2)) == RankGroup(1, 2, 0)


def test_reader_whose_connection_was_lost_may_come_back_as_itself() -> None:
    server = Server()
    server.ask(rank("a", 0, 2))
    assert server.members.on_disconnect("a")
    assert not server.members.on_disconnect("a")
    server.ask(rank("a", 0, 2))
    assert server.ask(rank("b", 1, 2)) == RankGroup(1, 2, 0)


def test_whoever_comes_to_a_taken_seat_begins_a_newer_group_and_the_others_follow() -> None:
    server = Server()
    server.ask(rank("a", 0, 2))
    server.ask(rank("other a", 0, 2))
    assert server.members.group == RankGroup(2, 2, 0)
    assert server.ask(rank("b", 1, 2)) == RankGroup(2, 2, 0)
    assert server.ask(rank("b", 1, 2, generation=1)) == RankGroup(2, 2, 0), (
        "of an older group: the server refuses it first"
    )
    found = server.ask(rank("c", 1, 2, generation=2))
    assert found == Refused(Refusal.STALE, 2)


def test_nobody_who_comes_anew_sits_down_in_a_group_that_was_complete_before_a_restart() -> None:
    server = Server()
    assert server.ask(rank("a", 0, 2, generation=7)) == RankGroup(7, 2, 0)
    assert server.ask(rank("new b", 1, 2)) is None, "rank 0 may have read a hundred batches"
    assert server.members.group == RankGroup(8, 2, 0)


def test_ranks_that_disagree_do_not_throw_each_other_out_and_are_told_who_says_what() -> None:
    server = Server()
    two, three = rank("two", 0, 2), rank("three", 1, 3)
    server.ask(two)
    server.ask(three)
    assert server.members.group == RankGroup(2, 3, 0)
    for _ in range(5):
        assert server.ask(two) is None
        assert server.ask(three) is None
    assert server.members.group == RankGroup(2, 3, 0), "no reader starts a newer group again and again"
    assert server.waits == "another group to end: rank 1 of 3, from batch 0 on, has joined"
    assert server.members.missing == ("rank 0, 2 of 3 to join; for another group rank 0 of 2, from batch 0 on, waits")
    server.leave(three)
    server.ask(two)
    assert server.members.group == RankGroup(3, 2, 0), "no reader is assigned in the other group any more"


def test_last_rank_of_a_kind_brings_all_of_it_together_whoever_else_waits() -> None:
    server = Server()
    ranks = [rank(f"a{number}", number, 3) for number in range(3)]
    other = rank("other", 0, 2)
    for each in (ranks[0], ranks[1], other, ranks[0], ranks[1], ranks[2], other, ranks[1], ranks[0]):
        server.ask(each)
    assert server.members.is_complete
    assert server.members.group == RankGroup(3, 3, 0)
    assert server.ask(other) is None, "one that disagrees ends no group that has begun to read"
    assert server.members.group == RankGroup(3, 3, 0)


def test_rank_of_a_complete_group_that_was_replaced_is_told_to_end_though_it_never_heard_of_its_group() -> None:
    server = Server()
    server.ask(rank("old", 0, 1))
    server.ask(rank("new", 0, 1))
    assert server.ask(rank("old", 0, 1)) == Refused(Refusal.STALE, 2)


def test_generations_grow_with_every_attempt_whatever_a_clock_says() -> None:
    attempts = [Attempt(1, 1), Attempt(1, 2), Attempt(1, 999), Attempt(2, 1), Attempt(10, 1)]
    firsts = [first_generation(each) for each in attempts]
    assert firsts == sorted(set(firsts))
    assert all(0 < first < 2**63 for first in firsts)
    old, new = Membership(), Membership()
    for members, attempt, session in ((old, Attempt(1, 1), "old"), (new, Attempt(1, 2), "new")):
        begun = members.join(rank(session, 0, 1), first_generation(attempt))
        assert isinstance(begun, RankGroup)
        members.start(begun, rank(session, 0, 1))
    assert old.group is not None
    assert new.group is not None
    assert old.group.generation < new.group.generation


def test_generation_of_this_attempt_that_it_has_not_given_is_refused() -> None:
    server = Server()
    server.ask(rank("new", 0, 1))
    assert server.ask(rank("old", 0, 1, generation=5)) == Refused(Refusal.STALE, 1)
    server.members.on_new_attempt()
    assert server.ask(rank("old", 0, 1, generation=5)) == RankGroup(5, 1, 0), (
        "another process may have given it meanwhile"
    )


@dataclass
class Reader:
    ask: Ask
    group: RankGroup | None = None


def test_ranks_that_come_and_stay_have_one_group_whoever_came_and_left_before() -> None:
    for seed in range(300):
        chance, server, sessions = random.Random(seed), Server(), iter(range(10_000))
        late: list[Ask] = []
        readers: list[Reader] = []
        for _ in range(chance.randrange(30)):
            action = chance.randrange(4)
            if action == 0 or not readers:
                ranks = chance.randint(1, 3)
                readers.append(Reader(rank(str(next(sessions)), chance.randrange(ranks), ranks)))
            reader = chance.choice(readers)
            if action == 1:
                reader.group = hear(server, reader) or reader.group
            elif action == 2:
                if server.leave(reader.ask) is None:
                    late.append(reader.ask)
                readers.remove(reader)
            elif action == 3 and late:
                server.ask(chance.choice(late))
        for reader in readers:
            server.leave(reader.ask)
        complete = server.members.is_complete
        ranks = chance.randint(1, 3)
        come = [Reader(rank(f"last {number}", number, ranks)) for number in range(ranks)]
        for reader in chance.sample(come, ranks):
            hear(server, reader)
            for ask in late:
                server.ask(ask)
        for reader in come:
            reader.group = hear(server, reader)
        assert len({reader.group for reader in come}) == 1, f"seed {seed}: {come}"
        assert come[0].group is not None
        assert come[0].group.ranks == ranks
        assert complete or server.members.is_complete


def hear(server: Server, reader: Reader) -> RankGroup | None:
    generation = 0 if reader.group is None else reader.group.generation
    found = server.ask(replace(reader.ask, generation=generation))
    return found if isinstance(found, RankGroup) else None
