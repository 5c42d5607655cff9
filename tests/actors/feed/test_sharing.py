"""Ranks of one machine that read the same rows: one fetches them, the others take them from it."""

from __future__ import annotations

import ctypes
import gc
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.actors.feed import sharing
from penstock.actors.feed.board import Offer
from penstock.actors.feed.link import BrokenFeedLinkError
from penstock.actors.feed.neighbours import CAN_SHARE, Fetcher
from penstock.actors.feed.sharing import SharingLink
from penstock.actors.feed.tcp_server import ReplyWriter
from penstock.engine.feed.messages import Ask, NotYet, RankGroup, Refusal, Refused, Reply, Slice
from support.feeds import wait_for

pytestmark = pytest.mark.skipif(not CAN_SHARE, reason="this system has no memory without a name to share")

ROWS = 60_000


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is slow but the machine."""
    monkeypatch.setattr("penstock.actors.feed.neighbours.PATIENCE", 60.0)
    monkeypatch.setattr(sharing, "COMING_SECONDS", 60.0)


@cache
def rows_of(batch: int) -> pa.RecordBatch:
    """Of a slice that is worth sharing; its words have a dictionary."""
    numbers = np.arange(ROWS, dtype=np.int64) + batch * ROWS
    words = pa.DictionaryArray.from_arrays(pa.array(numbers % 3, pa.int32()), [f"{batch}", "b", None])
    return pa.record_batch({"n": numbers, "word": words, "text": pa.array(map(str, numbers))})


class Served:
    """A link to a feed of so many batches, which counts what is fetched with its rows."""

    def __init__(self, batches: int = 100, pieces: int = 1) -> None:
        self.batches, self.pieces = batches, pieces
        self.fetched: list[int] = []
        self.asked: list[Ask] = []
        self.ready = batches
        self.broken = False
        self.closed = self.is_near = False

    def ask(self, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        self.asked.append(ask)
        if self.broken:
            raise BrokenFeedLinkError("broken")
        group = RankGroup(ask.generation, ask.ranks, ask.start, ask.copies)
        answers: list[Any] = []
        for batch in ask.wanted:
            if batch >= self.ready:
                break
            rows = rows_of(batch)
            place = (ask.generation, ask.rank, batch, batch * ROWS)
            if ask.without_rows:
                answers.append(Slice(*place, (), ROWS, left_out=ROWS))
            else:
                self.fetched.append(batch)
                each = ROWS // self.pieces
                parts = tuple(rows.slice(at * each, each) for at in range(self.pieces))
                answers.append(Slice(*place, parts, ROWS))
        return Reply(group, tuple(answers), "" if answers else "rows of the flow")

    def notify(self, ask: Ask) -> None:
        self.asked.append(ask)

    def close(self) -> None:
        self.closed = True


class Machine:
    """Two ranks of a group, both copies of one share."""

    def __init__(self, ranks: int = 2) -> None:
        self.secret = secrets.token_bytes(32)
        self.served = [Served() for _ in range(ranks)]
        self.links = [SharingLink(each, self.secret, "job feed") for each in self.served]
        self.ranks = ranks

    def question(self, rank: int, *wanted: int, taken: int | None = None, generation: int = 7) -> Ask:
        first = wanted[0] if taken is None else taken
        return Ask("s", rank, self.ranks, 0, generation, first, first, wanted, copies=self.ranks)

    def ask(self, rank: int, *wanted: int, **given: Any) -> Reply[pa.RecordBatch]:
        return self.links[rank].ask(self.question(rank, *wanted, **given), 0.0)

    def close(self) -> None:
        for link in self.links:
            link.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


def check(reply: Reply[pa.RecordBatch], *batches: int) -> None:
    """The slices are those of these batches, whole."""
    found = [each for each in reply.answers if isinstance(each, Slice)]
    assert [each.batch for each in found] == list(batches)
    for each in found:
        assert pa.Table.from_batches(each.rows).equals(pa.Table.from_batches([rows_of(each.batch)]))
        assert each.left_out == 0


def both_know_each_other(machine: Machine) -> None:
    """Rank 0 fetches, rank 1 has come and knows how large slices are."""
    check(machine.ask(0, 0), 0)
    check(machine.ask(1, 0), 0)
    assert machine.served[1].fetched == [0], "nobody knew of rank 1 when batch 0 was fetched"
    wait_for(lambda: has_neighbours(machine.links[0]))


def has_neighbours(link: SharingLink) -> bool:
    """Whether it fetches for others, and knows that they are there."""
    return isinstance(link._peer, Fetcher) and link._peer._board.is_wanted


def shared_memory() -> int:
    """How many pieces of such memory this process has mapped."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:penstock-feed")


def test_one_rank_fetches_and_the_other_takes_the_rows_from_it(machine: Machine) -> None:
    both_know_each_other(machine)
    for batch in range(1, 20, 3):
        check(machine.ask(0, batch, batch + 1, batch + 2), batch, batch + 1, batch + 2)
        check(machine.ask(1, batch, batch + 1, batch + 2), batch, batch + 1, batch + 2)
    assert machine.served[1].fetched == [0]
    assert machine.served[0].fetched == list(range(22))
    assert shared_memory() == 0, "the rows have gone with who had them"


def test_slices_in_several_pieces_and_small_ones(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.served[0].pieces = 4
    both_know_each_other(machine)
    check(machine.ask(0, 1), 1)
    check(machine.ask(1, 1), 1)
    assert machine.served[1].fetched == [0]
    monkeypatch.setattr(sharing, "SHARED_BYTES", 1 << 30)
    check(machine.ask(0, 2), 2)
    check(machine.ask(1, 2), 2)
    assert machine.served[1].fetched == [0, 2]


def test_who_gets_the_rows_may_write_into_them_and_nobody_else_sees_it(machine: Machine) -> None:
    both_know_each_other(machine)
    mine, other = machine.ask(0, 1), machine.ask(1, 1)
    numbers = other.answers[0].rows[0].column("n").buffers()[1]  # type: ignore[union-attr]
    ctypes.memset(numbers.address, 255, 8)
    assert other.answers[0].rows[0].column("n")[0].as_py() == -1
    check(mine, 1)


def test_a_rank_waits_for_what_is_on_its_way_to_the_other(machine: Machine) -> None:
    both_know_each_other(machine)
    hold, came = threading.Event(), machine.served[0].ask

    def slow(ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        assert hold.wait(60)
        return came(ask, timeout)

    machine.served[0].ask = slow  # type: ignore[method-assign]
    fetching = threading.Thread(target=machine.ask, args=(0, 1))
    fetching.start()
    fetcher = machine.links[0]._peer
    assert isinstance(fetcher, Fetcher)
    wait_for(lambda: fetcher._board.find(1) is Offer.COMING)
    answered: list[Reply[pa.RecordBatch]] = []
    waiting = threading.Thread(target=lambda: answered.append(machine.ask(1, 1)))
    waiting.start()
    wait_for(lambda: machine.served[1].asked[-1].without_rows)
    hold.set()
    for thread in (fetching, waiting):
        thread.join(60)
    check(answered[0], 1)
    assert machine.served[1].fetched == [0]


def test_what_the_other_has_not_asked_for_is_fetched_if_it_is_urgent_and_else_asked_for_again(
    machine: Machine,
) -> None:
    both_know_each_other(machine)
    assert machine.ask(1, 2, taken=1).answers == (), "its loop has batch 1"
    check(machine.ask(1, 1), 1)
    assert machine.served[1].fetched == [0, 1]
    check(machine.ask(0, 1, 2), 1, 2)
    check(machine.ask(1, 2), 2)
    assert machine.served[1].fetched == [0, 1]


def test_what_is_not_kept_any_more_is_fetched_with_all_that_follows(machine: Machine) -> None:
    both_know_each_other(machine)
    check(machine.ask(0, *range(1, 8)), *range(1, 8))
    machine.ask(0, 8, taken=7)
    check(machine.ask(1, 1, 2, 3), 1, 2, 3)
    assert machine.served[1].fetched == [0, 1, 2, 3]
    assert machine.served[1].asked[-1].commits == ()
    check(machine.ask(1, 4, 5), 4, 5)
    assert machine.served[1].fetched == [0, 1, 2, 3]


def test_when_who_fetches_has_gone_another_one_does(machine: Machine) -> None:
    both_know_each_other(machine)
    check(machine.ask(0, 1), 1)
    check(machine.ask(1, 1), 1)
    machine.links[0].close()
    check(machine.ask(1, 2), 2)
    check(machine.ask(1, 3), 3)
    assert machine.served[1].fetched == [0, 2, 3]
    assert isinstance(machine.links[1]._peer, Fetcher)
    assert machine.served[0].closed


def test_ranks_of_another_part_generation_or_job_have_nothing_to_do_with_each_other(machine: Machine) -> None:
    both_know_each_other(machine)
    fetcher = machine.links[0]._peer
    ask = Ask("s", 2, 4, 0, 7, 1, 1, (1,), copies=2)
    others = [
        (SharingLink(Served(), machine.secret, "job feed"), ask),
        (SharingLink(Served(), b"another", "job feed"), machine.question(0, 1)),
        (SharingLink(Served(), machine.secret, "job other"), machine.question(0, 1)),
        (SharingLink(Served(), machine.secret, "job feed"), machine.question(0, 1, generation=8)),
    ]
    for link, question in others:
        check(link.ask(question, 0.0), 1)
        assert isinstance(link._peer, Fetcher)
        assert link._peer is not fetcher
        link.close()
    machine.ask(0, 1, generation=8)
    assert machine.links[0]._peer is not fetcher, "its place is another one now"


def test_ranks_without_copies_share_nothing() -> None:
    link = SharingLink(served := Served(), b"secret", "job feed")
    check(link.ask(Ask("s", 0, 2, 0, 7, 0, 0, (0,)), 0.0), 0)
    assert link._peer is None
    assert served.fetched == [0]
    link.close()


def test_rows_of_a_server_on_the_same_machine_are_fetched_by_each(machine: Machine) -> None:
    both_know_each_other(machine)
    for served in machine.served:
        served.is_near = True
    for rank in range(2):
        check(machine.ask(rank, 1), 1)
    assert machine.served[1].fetched == [0, 1]


@pytest.mark.parametrize("answer", ["nothing", "garbage", "other rows", "no memory"])
def test_a_neighbour_that_does_not_answer_or_makes_no_sense_is_done_without(
    machine: Machine, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "COMING_SECONDS", 0.0)
    monkeypatch.setattr("penstock.actors.feed.neighbours.PATIENCE", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as odd:
        odd.bind(machine.links[0]._name(7, 0))
        odd.listen()
        check(machine.ask(1, 0), 0)
        if answer != "nothing":
            said = {"garbage": b"\xc1", "other rows": ["", [8], 3, 8], "no memory": ["", [8], ROWS, ROWS]}[answer]
            connection, _ = odd.accept()
            connection.send(said if isinstance(said, bytes) else msgspec.msgpack.encode(said))
        check(machine.ask(1, 1), 1)
        assert machine.served[1].fetched == [0, 1]
        check(machine.ask(1, 2), 2)
        assert not machine.served[1].asked[-1].without_rows, "it is not asked again at once"


def test_a_link_that_breaks_is_the_ranks_own(machine: Machine) -> None:
    both_know_each_other(machine)
    for served in machine.served:
        served.broken = True
    for rank in range(2):
        with pytest.raises(BrokenFeedLinkError):
            machine.ask(rank, 1)
    for served in machine.served:
        served.broken = False
    check(machine.ask(0, 1), 1)
    check(machine.ask(1, 1), 1)
    assert machine.served[1].fetched == [0]


def test_a_refusal_and_a_batch_that_is_not_there_come_through(machine: Machine) -> None:
    both_know_each_other(machine)
    machine.served[1].ready = 1
    assert machine.ask(1, 1) == Reply(RankGroup(7, 2, 0, 2), (), "rows of the flow")
    refused = Reply[pa.RecordBatch](None, (Refused(Refusal.STALE, 8), NotYet(7, 1, "x")))
    machine.served[1].ask = lambda ask, timeout: refused  # type: ignore[method-assign]
    assert machine.ask(1, 1) == refused


def test_a_reply_without_rows_has_none_on_the_wire() -> None:
    rows = rows_of(0)
    reply = Reply(RankGroup(1, 2, 0, 2), (Slice(1, 0, 0, 0, (rows,), ROWS),))
    whole, bare = (ReplyWriter().parts(reply, without) for without in (False, True))
    size = [sum(memoryview(part).nbytes for part in parts) for parts in (whole, bare)]
    assert size[0] > rows.nbytes
    assert size[1] < 500


PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[3])
from test_sharing import Machine
machine = Machine(3)
machine.secret = bytes.fromhex(sys.argv[1])
link = machine.links[0]
link._secret = machine.secret
taken = 0
print("ready" if link.ask(machine.question(0, 0), 0.0).answers else "", flush=True)
for line in sys.stdin:
    link.ask(machine.question(0, int(line)), 0.0)
    print("fetched", flush=True)
"""


def test_who_fetches_is_killed_and_the_others_go_on_with_all_rows_and_no_memory_left() -> None:
    machine = Machine(3)
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", PROGRAM, machine.secret.hex(), "", here]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(here).parent.parent), *sys.path])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for rank in (1, 2):
            check(machine.ask(rank, 0), 0)
        for batch in (1, 2, 3):
            process.stdin.write(f"{batch}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "fetched\n"
            if batch < 3:
                for rank in (1, 2):
                    check(machine.ask(rank, batch), batch)
        held = machine.ask(1, 3)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    check(held, 3), "what one has is its own"
    for batch in (3, 4, 5):
        for rank in (2, 1):
            check(machine.ask(rank, batch), batch)
        if batch == 4:
            wait_for(lambda: has_neighbours(machine.links[2]))
    fetched = [sorted(set(served.fetched)) for served in machine.served[1:]]
    assert fetched[0].count(5) + fetched[1].count(5) == 1, "one of them fetches for both"
    del held
    machine.close()
    assert shared_memory() == 0
