"""The cluster's pool: what it lends to whom, also when scripts die, come too late, or start jobs without end."""

from __future__ import annotations

import random

import pytest

from penstock.actors.process.shared_pool import HELD, LEASE, SharedPool
from penstock.actors.process.warm_pool import PATIENCE, QUIET


def names(*numbers: int) -> frozenset[str]:
    return frozenset(f"w{number}" for number in numbers)


def filled(processes: int) -> SharedPool:
    pool = SharedPool(processes)
    pool.want(processes)
    pool.to_start(0.0)
    pool.looked(names(*range(processes)))
    return pool


def test_process_is_lent_to_one_script_only() -> None:
    pool = filled(3)
    assert [pool.lend(script, 2, 1.0) for script in "abc"] == [2, 1, 0]
    assert (pool.ready, pool.lent) == (0, 3)


def test_what_was_used_does_not_come_back_when_the_script_dies() -> None:
    pool = filled(3)
    pool.lend("a", 3, 0.0)
    pool.looked(names(2))  # two have begun work; then the script dies
    assert (pool.lent, pool.to_start(LEASE - 1)) == (1, 3)
    assert (pool.to_start(LEASE), pool.ready, pool.lent) == (0, 1, 0)


def test_what_a_dead_script_has_not_used_is_lent_to_the_next_when_its_lease_is_over() -> None:
    pool = filled(2)
    pool.lend("dead", 2, 0.0)
    assert pool.lend("b", 1, LEASE - 1) == 0
    assert pool.lend("b", 1, LEASE) == 1


def test_pool_looks_when_a_lease_is_over_though_nothing_is_missing() -> None:
    pool = filled(2)
    pool.lend("dead", 1, 0.0)
    pool.want(1)
    assert pool.next_look(LEASE - 1) == 1.0
    assert pool.to_end(LEASE) == 1


def test_script_whose_job_was_refused_gives_back_its_own_and_nobody_elses() -> None:
    pool = filled(4)
    pool.lend("a", 2, 0.0)
    pool.lend("b", 1, 0.0)
    pool.settled("a")
    pool.settled("nobody")
    assert (pool.ready, pool.lent) == (3, 1)


def test_refilling_waits_for_a_job_that_starts_and_not_when_it_has_started() -> None:
    pool = filled(2)
    pool.lend("a", 1, 10.0)
    pool.looked(names(1))
    assert pool.to_start(10.0) == 0
    pool.looked(names(1))
    assert pool.to_start(10.0 + QUIET) == 1
    other = filled(2)
    other.lend("a", 2, 10.0)
    other.looked(names(1))
    other.settled("a")
    assert other.to_start(10.0) == 1


def test_jobs_that_start_without_end_do_not_hold_up_refilling_for_ever() -> None:
    pool = filled(40)
    started, now = 0, 0.0
    for job in range(20):
        now = float(job)
        pool.lend(f"script {job}", 1, now)
        pool.looked(names(*range(job + 1, 40)))
        started = pool.to_start(now)
        if started:
            break
    assert (started, now) == (HELD + 1, HELD)


def test_nothing_is_ended_while_a_lease_stands() -> None:
    pool = filled(3)
    pool.lend("a", 1, 0.0)
    pool.want(0)
    assert pool.to_end(QUIET + 1) == 0
    pool.settled("a")
    assert pool.to_end(QUIET + 1) == 3


class Scripts:
    """A cluster by chance: processes start late or never; scripts that were lent some use all, a part or none, and say
    so or die."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now = 0.0
        self.count = 0
        self.starting: list[float] = []
        self.entered: set[str] = set()
        self.used: set[str] = set()

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

    def take(self, processes: int) -> None:
        """They begin work, or die, or are ended: all one to the register."""
        for name in self.draw.sample(sorted(self.entered), min(processes, len(self.entered))):
            assert name not in self.used
            self.used.add(name)
            self.entered.discard(name)


@pytest.mark.parametrize("base", range(10))
def test_pool_is_full_again_after_whatever_scripts_do(base: int) -> None:
    for seed in range(base * 50, base * 50 + 50):
        cluster, pool, wanted = Scripts(seed), SharedPool(3), 0
        draw = cluster.draw
        for _ in range(80):
            cluster.pass_time()
            pool.looked(frozenset(cluster.entered))
            match draw.randrange(8):
                case 0:
                    wanted = draw.randrange(6)
                    pool.want(wanted)
                case 1 | 2:
                    given = pool.lend(draw.choice("abc"), draw.randrange(5), cluster.now)
                    assert given + pool.ready <= len(cluster.entered), f"seed {seed}"
                    cluster.take(draw.randrange(given + 1))
                case 3:
                    pool.settled(draw.choice("abc"))
                case 4:
                    cluster.take(1)
            cluster.take(pool.to_end(cluster.now))
            missing = pool.to_start(cluster.now)
            assert missing <= max(0, wanted - pool.ready), f"seed {seed}"
            cluster.start(missing)
            pool.validate()
        pool.want(wanted)  # whoever borrows now is dead: nobody settles
        for _ in range(400):
            cluster.pass_time()
            pool.looked(frozenset(cluster.entered))
            cluster.take(pool.to_end(cluster.now))
            cluster.start(pool.to_start(cluster.now))
        assert len(cluster.entered) == wanted, f"seed {seed}"
        assert (pool.lent, pool.next_look(cluster.now)) == (0, None), f"seed {seed}"
