"""The pool of warm processes: what it asks for and gives away, also when processes die and orders get lost."""

from __future__ import annotations

import random

import pytest

from penstock.actors.process.warm_pool import LOOK_SECONDS, PATIENCE, QUIET, TRIES, WarmPool


def names(*numbers: int) -> frozenset[str]:
    return frozenset(f"w{number}" for number in numbers)


def filled(processes: int) -> WarmPool:
    pool = WarmPool(processes)
    pool.want(processes)
    pool.to_start(0.0)
    pool.looked(names(*range(processes)))
    return pool


def test_pool_asks_for_what_is_missing_once_and_rests_when_it_is_full() -> None:
    pool = WarmPool(4)
    pool.want(3)
    assert [pool.to_start(0.0), pool.to_start(1.0)] == [3, 0]
    pool.looked(names(1, 2))
    assert (pool.ready, pool.to_start(2.0)) == (2, 0)
    pool.looked(names(1, 2, 3))
    assert (pool.ready, pool.to_start(3.0), pool.next_look(3.0)) == (3, 0, None)


def test_pool_asks_for_so_many_at_once_as_ray_starts() -> None:
    pool = WarmPool(2)
    pool.want(5)
    assert [pool.to_start(0.0), pool.to_start(1.0)] == [2, 0]
    pool.looked(names(1))
    assert pool.to_start(2.0) == 1


def test_job_gets_what_is_ready_and_the_next_one_gets_none_of_it_twice() -> None:
    pool = filled(3)
    assert [pool.take(2, 10.0), pool.take(2, 10.0), pool.take(2, 10.0)] == [2, 1, 0]
    pool.looked(names(2))  # two of the three have begun their work
    assert pool.ready == 0
    pool.looked(names())
    pool.settled()
    pool.looked(names(7))
    assert pool.ready == 1


def test_nobody_is_started_beside_a_job_that_starts() -> None:
    pool = filled(2)
    pool.take(2, 10.0)
    pool.looked(names())
    assert (pool.to_start(10.0), pool.next_look(10.0)) == (0, QUIET)
    assert pool.to_start(10.0 + QUIET) == 2


def test_pool_is_filled_at_once_when_the_job_has_settled() -> None:
    pool = filled(2)
    pool.take(2, 10.0)
    pool.looked(names())
    pool.settled()
    assert pool.to_start(10.0) == 2


def test_job_that_never_began_gives_back_what_it_had_been_given() -> None:
    pool = filled(2)
    assert (pool.take(2, 0.0), pool.ready) == (2, 0)
    pool.settled()
    assert (pool.ready, pool.to_start(0.0)) == (2, 0)


def test_process_that_dies_while_it_waits_is_replaced() -> None:
    pool = filled(2)
    pool.looked(names(0))
    assert (pool.ready, pool.to_start(1.0)) == (1, 1)


def test_order_that_came_to_nothing_is_given_again_but_not_for_ever() -> None:
    pool = WarmPool(4)
    pool.want(2)
    asked = [pool.to_start(turn * PATIENCE) for turn in range(TRIES + 3)]
    assert asked == [2] * TRIES + [0] * 3
    assert (pool.has_given_up, pool.next_look(1e6)) == (True, None)
    pool.want(2)
    assert pool.to_start(1e6) == 2


def test_pool_that_is_turned_off_ends_what_waits_and_asks_for_nothing() -> None:
    pool = filled(2)
    pool.want(0)
    assert (pool.to_end(0.0), pool.to_start(0.0)) == (2, 0)
    pool.looked(names())
    assert (pool.to_end(1.0), pool.to_start(1.0), pool.next_look(1.0)) == (0, 0, None)


def test_process_that_comes_when_nobody_wants_it_any_more_is_ended() -> None:
    pool = WarmPool(2)
    pool.want(2)
    pool.to_start(0.0)
    pool.want(0)
    assert pool.next_look(1.0) is not None
    pool.looked(names(1))
    assert (pool.to_end(2.0), pool.to_start(2.0)) == (1, 0)


def test_process_that_works_for_somebody_unknown_is_not_ended_again_and_again() -> None:
    pool = filled(1)
    pool.want(0)
    ended = [pool.to_end(float(turn)) for turn in range(TRIES + 3)]
    assert ended == [1] * TRIES + [0] * 3
    assert pool.next_look(1e6) is None
    pool.looked(names())
    pool.looked(names(1))
    assert (pool.to_end(2e6), pool.next_look(2e6)) == (1, LOOK_SECONDS)


def test_nobody_is_ended_whom_a_job_that_starts_may_get() -> None:
    pool = filled(2)
    pool.take(1, 10.0)
    pool.want(0)
    assert (pool.to_end(10.0), pool.to_end(10.0 + QUIET)) == (0, 1)


class Cluster:
    """Ray and the register, by chance: processes start late or never, die at any time, and strike themselves out
    a while after a job has got them."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now = 0.0
        self.count = 0
        self.starting: list[float] = []
        #: in the register; those that a job has got stay for a while
        self.entered: set[str] = set()
        self.leaving: dict[str, float] = {}

    def start(self, processes: int) -> None:
        for _ in range(processes):
            if self.draw.random() < 0.8:
                self.starting.append(self.now + self.draw.uniform(0.1, PATIENCE * 0.9))

    def pass_time(self) -> None:
        self.now += self.draw.expovariate(1.0)
        for _ in [at for at in self.starting if at <= self.now]:
            self.count += 1
            self.entered.add(f"w{self.count}")
        self.starting = [at for at in self.starting if at > self.now]
        gone = {name for name, at in self.leaving.items() if at <= self.now}
        self.entered -= gone
        self.leaving = {name: at for name, at in self.leaving.items() if name not in gone}

    def idle(self) -> set[str]:
        return self.entered - self.leaving.keys()

    def begin_job(self, processes: int) -> None:
        """Its actors get idle processes, whichever, as many as there still are."""
        for name in self.draw.sample(sorted(self.idle()), min(processes, len(self.idle()))):
            self.leaving[name] = self.now + self.draw.uniform(0.0, 2.0)

    def end(self, processes: int) -> None:
        """Actors that do nothing take whichever wait."""
        for name in self.draw.sample(sorted(self.idle()), min(processes, len(self.idle()))):
            self.entered.discard(name)

    def kill_one(self) -> None:
        if self.entered:
            killed = self.draw.choice(sorted(self.entered))
            self.entered.discard(killed)
            self.leaving.pop(killed, None)


@pytest.mark.parametrize("base", range(10))
def test_pool_is_full_again_after_whatever_happens_and_never_starts_too_many(base: int) -> None:
    for seed in range(base * 50, base * 50 + 50):
        cluster, pool, wanted = Cluster(seed), WarmPool(3), 0
        for _ in range(60):
            cluster.pass_time()
            pool.looked(frozenset(cluster.entered))
            match cluster.draw.randrange(8):
                case 0:
                    wanted = cluster.draw.randrange(6)
                    pool.want(wanted)
                case 1:
                    given = pool.take(cluster.draw.randrange(5), cluster.now)
                    if cluster.draw.random() < 0.8:
                        cluster.begin_job(given)
                    else:
                        pool.settled()  # it was refused
                case 2:
                    cluster.kill_one()
                case 3:
                    pool.settled()
            cluster.end(pool.to_end(cluster.now))
            missing = pool.to_start(cluster.now)
            assert missing <= max(0, wanted - pool.ready), f"seed {seed}"
            cluster.start(missing)
            pool.validate()
        pool.settled()
        pool.want(wanted)
        for _ in range(400):
            cluster.pass_time()
            pool.looked(frozenset(cluster.entered))
            cluster.end(pool.to_end(cluster.now))
            cluster.start(pool.to_start(cluster.now))
        assert len(cluster.entered) == wanted, f"seed {seed}"
        assert pool.next_look(cluster.now) is None, f"seed {seed}"


def test_pool_of_a_script_that_ends_while_it_refills_starts_nothing_more() -> None:
    for seed in range(200):
        cluster, pool = Cluster(seed), WarmPool(2)
        pool.want(4)
        for _ in range(cluster.draw.randrange(8)):
            cluster.start(pool.to_start(cluster.now))
            cluster.pass_time()
            pool.looked(frozenset(cluster.entered))
        pool.want(0)
        for _ in range(50):
            cluster.pass_time()
            pool.looked(frozenset(cluster.entered))
            cluster.end(pool.to_end(cluster.now))
            assert pool.to_start(cluster.now) == 0, f"seed {seed}"
        assert not cluster.entered, f"seed {seed}"
        assert pool.next_look(cluster.now) is None, f"seed {seed}"
