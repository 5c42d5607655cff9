"""The streams between a feed's process and its ranks, without a cluster: the operator's side is played by the test."""

from __future__ import annotations

import os
import pickle
import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.actors.feed import prefetch, sharing, tcp_link
from penstock.actors.feed import tcp_server as server_module
from penstock.actors.feed.board import Offer
from penstock.actors.feed.discovery import FeedDiscovery, how_it_ended, run_of, shut_down
from penstock.actors.feed.job_feeds import feed_handle
from penstock.actors.feed.neighbours import CAN_SHARE, Fetcher
from penstock.actors.feed.reader import FeedHandle, Reader
from penstock.actors.feed.tcp_link import TcpRoute
from penstock.actors.feed.tcp_server import TcpFeedServer
from penstock.actors.transport.dialling import Secrets
from penstock.actors.transport.listener import Listener
from penstock.actors.transport.tls import make_certificate
from penstock.coordinator.model.events import Event, Failure
from penstock.coordinator.model.statistics import JobStatus
from penstock.engine.core.errors import ConfigurationError, InternalError, SetupError, TaskLostError, UserCodeError
from penstock.engine.core.identity import CheckpointId, TaskId
from penstock.engine.feed.messages import Ask, Commit
from penstock.engine.feed.sequencer import Sequencer
from penstock.engine.planner.pipelines import plan_job
from support.feeds import read_group, take, wait_for

TASK = TaskId("gather-1", 0)
FIRST, LAST = CheckpointId(1, 1), CheckpointId(1, 2)


class Host:
    """The process of the feed's task, in this one. A restart begins with another server and a restored sequencer."""

    def __init__(self, folder: Path, secret: Secrets) -> None:
        flow = ps.Flow("streams", lanes=2)
        flow.from_tables([pa.table({"n": [0], "word": ["a"]})]).feed(10, room=1000)
        self.plan = plan_job(flow, 1)
        self.settings = self.plan.sinks["feed"][1].settings  # type: ignore[attr-defined]
        self.discovery = FeedDiscovery(str(folder), "streams", run_of(secret.token))
        self.handle: FeedHandle = feed_handle(
            self.plan, "feed", lambda job, feed: TcpRoute(str(folder), job, feed, secret)
        )
        self.asked = threading.Event()
        self._secret = secret
        self._number = 0
        self.sequencer: Sequencer[pa.RecordBatch] = Sequencer(self.settings)
        self.tcp = self._serve()

    def _serve(self) -> TcpFeedServer:
        self._number += 1
        server = TcpFeedServer(
            self.plan,
            TASK,
            self.discovery,
            self._secret.token,
            f"process-{self._number}",
            "127.0.0.1",
            self._report,
            self._secret.certificate,
        )
        self.server = server.servers["feed"]
        self.server.open(self.sequencer, lambda: None)
        return server

    def _report(self, event: Event) -> None:
        self.asked.set()

    def rows(self, start: int, stop: int) -> None:
        words = pa.array([str(n) for n in range(start, stop)])
        self.server.accept(pa.record_batch({"n": pa.array(range(start, stop), pa.int64()), "word": words}))

    def checkpoint(self, checkpoint: CheckpointId) -> Any:
        found = self.server.state()
        assert found is not None
        self.server.on_snapshot(checkpoint, found[1], found[0].first)
        self.server.committed(checkpoint)
        return found[0]

    def restart(self, state: Any) -> None:
        self.tcp.close()
        self.sequencer = Sequencer.restored(state, self.settings)
        self.tcp = self._serve()


@pytest.fixture(params=["plain", "tls"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    certificate = make_certificate("streams") if request.param == "tls" else None
    if certificate is not None:  # unix sockets are not encrypted
        monkeypatch.setattr("penstock.actors.transport.listener.this_machine", lambda: "")
    made = Host(tmp_path, Secrets(secrets.token_bytes(32), certificate))
    yield made
    made.tcp.close()


def all_want(readers: list[Reader], batch: int) -> bool:
    """Whether those that fetch for others know that these are there, and have asked for the batch."""
    links: list[Any] = [None if reader._prefetcher is None else reader._prefetcher._link for reader in readers]
    peers = [None if link is None else link._peer for link in links]
    boards = [peer._board for peer in peers if isinstance(peer, Fetcher)]
    return None not in peers and all(board.is_wanted and board.find(batch) is Offer.COMING for board in boards)


def numbers(batches: list[list[Any]]) -> list[list[int]]:
    return [[row["n"] for row in batch] for batch in batches]


def end(host: Host) -> threading.Thread:
    """Takes the checkpoint that lets the ranks go, once it is asked for."""

    def work() -> None:
        assert host.asked.wait(60)
        host.checkpoint(LAST)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_ranks_read_their_slices_and_leave_when_a_checkpoint_covers_the_end(host: Host) -> None:
    host.rows(0, 7)
    host.rows(7, 55)
    host.server.end()
    ending = end(host)
    found = read_group(pickle.loads(pickle.dumps(host.handle)), 3)
    ending.join()
    assert numbers(found) == [list(range(at, min(at + 10, 55))) for at in range(0, 60, 10)]
    assert [row["word"] for row in found[0]] == [str(n) for n in range(10)]


@pytest.mark.skipif(not CAN_SHARE, reason="this system has no memory without a name to share")
def test_rows_go_once_to_a_machine_whose_ranks_read_the_same(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "SHARED_BYTES", 1)
    monkeypatch.setattr(tcp_link.TcpLink, "is_near", False)
    monkeypatch.setattr("penstock.actors.feed.neighbours.PATIENCE", 60.0)
    monkeypatch.setattr(sharing, "COMING_SECONDS", 60.0)
    answered: list[Ask] = []
    reply = TcpFeedServer._reply

    def note(tcp: TcpFeedServer, server: Any, writer: Any, request: Any) -> Any:
        found = reply(tcp, server, writer, request)
        if len(found[0]) > 2:  # head and note alone have no rows
            answered.append(request.ask)
        return found

    monkeypatch.setattr(TcpFeedServer, "_reply", note)
    mesh: dict[str, Any] = {"mesh": {"dp": 2, "tp": 2}, "replicate": "tp"}
    readers = [host.handle.reader(rank, 4, **mesh, prefetch_batches=0, timeout=60) for rank in range(4)]
    threads = [threading.Thread(target=reader._join) for reader in readers]
    for thread in threads:
        thread.start()
    for batch in range(6):
        wait_for(partial(all_want, readers, batch))
        host.rows(batch * 10, batch * 10 + 10)
        found = [numbers(take(reader, 1))[0] for reader in readers]
        assert found == [list(range(at, at + 5)) for at in (batch * 10,) * 2 + (batch * 10 + 5,) * 2]
    with_rows = [ask for ask in answered if ask.wanted[0] > 0]
    assert sorted((ask.rank // 2, ask.wanted) for ask in with_rows) == [
        (part, (batch,)) for part in range(2) for batch in range(1, 6)
    ]
    for reader in readers:
        reader.close(0)


def test_who_waits_is_told_to_who_asks_and_that_is_no_rank(host: Host) -> None:
    host.rows(0, 25)
    reader = pickle.loads(pickle.dumps(host.handle)).reader(timeout=60, prefetch_batches=0)
    slices = reader.iter_batches()
    for _ in range(2):
        next(slices)
    wait_for(lambda: [each.taken for each in host.handle.status().ranks] == [2])
    found = host.handle.status()
    assert (found.feed, found.rows, found.waiting_rows) == (host.handle.name, 25, 5)
    reader.timeout = 0.3
    with pytest.raises(TimeoutError):
        next(slices)
    words = f"feed {host.handle.name}: rank 0 waits for data: rows of the flow: 5 are missing"
    wait_for(lambda: host.handle.status().sentences == [words])
    wait_for(lambda: host.handle.status().ranks[0].waited >= 0.3)
    host.rows(25, 30)
    reader.timeout = 60
    assert len(next(reader.iter_batches())) == 10
    reader.close(0.0)


def test_process_that_takes_the_place_of_another_is_found_and_nothing_comes_twice(host: Host) -> None:
    host.rows(0, 40)
    readers = [host.handle.reader(rank, 2, timeout=60, prefetch_batches=0) for rank in range(2)]
    slices = [reader.iter_batches() for reader in readers]

    def step() -> list[int]:
        return [n for each in slices for n in next(each).column("n").to_pylist()]

    assert [step(), step()] == [list(range(10)), list(range(10, 20))]
    state = host.checkpoint(FIRST)
    host.rows(40, 60)
    assert step() == list(range(20, 30))
    host.restart(state)
    host.rows(40, 60)
    assert [step(), step()] == [list(range(30, 40)), list(range(40, 50))]
    host.server.end()
    ending = end(host)
    assert step() == list(range(50, 60))
    assert [next(each, None) for each in slices] == [None, None]
    for reader in readers:
        reader.close()
    ending.join()


def test_child_that_inherits_a_rank_gets_nothing_and_ends_without_harm(host: Host) -> None:
    host.rows(0, 60)
    reader = host.handle.reader(timeout=60, prefetch_batches=0)
    slices = reader.iter_batches()
    assert next(slices).column("n").to_pylist() == list(range(10))
    child = os.fork()
    if child == 0:
        try:
            with reader:
                next(slices)
        except ConfigurationError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [next(slices).column("n")[0].as_py() for _ in range(4)] == [10, 20, 30, 40]
    reader.close()


def test_rank_says_what_it_waits_for(host: Host) -> None:
    host.rows(0, 15)
    reader = host.handle.reader(timeout=2)
    with reader, pytest.raises(TimeoutError, match=r"rank 0 of 1 has waited .* batch 1 .* rows of the flow: 5 are"):
        take(reader, 2)


def test_rank_whose_process_is_gone_before_all_have_come_is_not_kept(host: Host) -> None:
    host.rows(0, 40)
    gone = host.handle.route.open()
    assert gone.ask(Ask("gone", 1, 2, 0, 0, 0, 0), 0.0).reason == "rank 0 of 2 to join"
    gone.close()
    wait_for(lambda: host.server._members.missing == "rank 0, 1 of 2 to join")
    readers = [host.handle.reader(rank, 2, timeout=60) for rank in (1, 0)]
    slices = [reader.iter_batches() for reader in readers]
    first = threading.Thread(target=next, args=(slices[0],))
    first.start()
    assert next(slices[1]).num_rows == 5
    first.join()
    for reader in readers:
        reader.close()


def test_rank_is_told_that_the_job_is_over_and_why(host: Host) -> None:
    host.rows(0, 15)
    reader = host.handle.reader(timeout=60)
    take(reader, 1)
    failure = Failure("cannot go on", retry=False, kind="UserCodeError")
    status = JobStatus("streams", "failed", 1, 0, 0, 0, None, None, {}, failure, None, "")
    host.discovery.publish_end(how_it_ended(status, host.discovery.run))
    host.tcp.close()
    with pytest.raises(UserCodeError, match="cannot go on"):
        take(reader, 1)
    reader.close()


def test_rank_that_needs_nothing_more_hears_of_the_end_when_the_process_is_gone(host: Host) -> None:
    host.rows(0, 30)
    host.server.end()
    ending = end(host)
    read_group(host.handle, 2)
    ending.join()
    host.server.close(host.sequencer)
    status = JobStatus("streams", "finished", 1, 0, 0, 0, None, None, {}, None, None, "")
    host.discovery.publish_end(how_it_ended(status, host.discovery.run))
    host.tcp.close()
    with replace(host.handle, rows=None).reader(0, 2, timeout=60) as late:
        late.load_state_dict({**late.state_dict(), "step": 3})
        assert list(late) == []
    with host.handle.reader(timeout=60) as early, pytest.raises(ConfigurationError, match="is over: finished"):
        take(early, 1)


def test_rank_that_is_busy_says_where_it_is_to_a_process_that_begins_anew(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "IDLE_SECONDS", 0.05)
    host.rows(0, 1200)
    readers = [host.handle.reader(rank, 2, timeout=60, prefetch_batches=8) for rank in range(2)]
    slices = [reader.iter_batches() for reader in readers]
    threads = [threading.Thread(target=next, args=(each,)) for each in slices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = host.checkpoint(FIRST)
    for _ in range(3):
        assert [next(each).num_rows for each in slices] == [5, 5]
    host.restart(replace(state, progress=()))
    wait_for(lambda: [each.taken for each in host.server._progress.each_rank] == [4, 4])
    for reader in readers:
        reader.close(0.0)


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("finished", "read to the end: to read it again, run it in another checkpoint folder"),
        ("stopped", "go on from its savepoint"),
        ("superseded", "take a handle of that one's feed"),
        ("cancelled", "run it again with the same checkpoint folder"),
    ],
)
def test_rank_that_comes_when_the_job_is_over_is_told_what_can_be_done(host: Host, state: str, remedy: str) -> None:
    status = JobStatus("streams", state, 1, 0, 0, 0, None, None, {}, None, None, "")
    host.discovery.publish_end(how_it_ended(status, host.discovery.run))
    host.discovery.publish_end(shut_down("streams", host.discovery.run))  # says less, and changes nothing
    host.tcp.close()
    with host.handle.reader(timeout=60) as reader, pytest.raises(ConfigurationError) as raised:
        take(reader, 1)
    assert raised.value.message == f"job 'streams' is over: {state}"
    assert remedy in raised.value.remedy


def test_notices_of_another_run_mean_nothing(host: Host, tmp_path: Path) -> None:
    host.rows(0, 15)
    FeedDiscovery(str(tmp_path), "streams", "another").publish_end(shut_down("streams", "another"))
    with host.handle.reader(timeout=60) as reader:
        assert len(take(reader, 1)) == 1


def test_process_that_does_not_know_the_token_is_not_let_in(host: Host, tmp_path: Path) -> None:
    stranger = TcpRoute(str(tmp_path), "streams", "feed", Secrets(b"x" * 32, host._secret.certificate))
    notices = FeedDiscovery(str(tmp_path), "streams", run_of(stranger.secrets.token))
    notices.publish("feed", host.tcp._listener.endpoint)
    link = stranger.open()
    feed = FeedHandle("streams", "feed", 10, host.handle.schema, stranger)
    with feed.reader(timeout=60) as reader, pytest.raises(SetupError, match="token of this job"):
        take(reader, 1)
    link.close()
    assert "xxxx" not in repr(stranger)


def test_folder_that_is_gone_means_that_the_job_is_over(tmp_path: Path) -> None:
    route = TcpRoute(str(tmp_path / "gone"), "streams", "feed", Secrets(b"x" * 32))
    feed = FeedHandle("streams", "feed", 10, pa.schema([("n", pa.int64())]), route)
    with feed.reader(timeout=60) as reader, pytest.raises(ConfigurationError, match=r"its temporary folder .* gone"):
        take(reader, 1)


# ---------------------------------------------------------------------- what goes wrong on the way


@pytest.mark.parametrize("fails", ["serve", "encode"])
def test_rank_is_told_what_went_wrong_with_its_answer_and_others_read_on(
    host: Host, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    host.rows(0, 40)

    def fail(*_: Any) -> Any:
        raise MemoryError("malloc of size 1073741824 failed")

    where = (host.server, "serve") if fails == "serve" else (server_module.ReplyWriter, "parts")
    monkeypatch.setattr(*where, fail)
    with host.handle.reader(timeout=15) as reader, pytest.raises(InternalError, match="malloc of size"):
        take(reader, 1)
    monkeypatch.undo()
    with host.handle.reader(timeout=60) as other:
        assert numbers(take(other, 1)) == [list(range(10))]


def test_question_that_makes_no_sense_ends_its_connection_alone_and_says_why(host: Host) -> None:
    host.rows(0, 40)
    link = host.handle.route.open()
    with pytest.raises(
        tcp_link.BrokenFeedLinkError, match=r"cannot read our request: its request has a time limit of 1e\+20"
    ):
        link.ask(Ask("odd", 0, 1, 0, 0, 0, 0), 1e20)
    with host.handle.reader(timeout=60) as reader:
        assert numbers(take(reader, 1)) == [list(range(10))]
    link.close()


def flipping(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Flips a bit of the last part of so many replies, which are counted."""
    sent, flipped = server_module.send_parts, [0]

    def send(connection: Any, parts: list[Any], given_up: Any) -> bool:
        if len(parts) > 2 and flipped[0] < times:
            flipped[0] += 1
            damaged = bytearray(b"".join(bytes(part) for part in parts))
            damaged[-17] ^= 4
            parts = [bytes(damaged)]
        return sent(connection, parts, given_up)

    monkeypatch.setattr(server_module, "send_parts", send)
    return flipped


def test_rows_that_were_damaged_on_their_way_are_asked_for_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.rows(0, 40)
    flipped = flipping(monkeypatch, 3)
    with host.handle.reader(timeout=60, prefetch_batches=0) as reader:
        assert numbers(take(reader, 4)) == [list(range(at, at + 10)) for at in range(0, 40, 10)]
    assert flipped == [3]


def test_rows_that_are_always_damaged_are_an_error_and_no_endless_loop(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.rows(0, 40)
    flipped = flipping(monkeypatch, 1000)
    reader = host.handle.reader(timeout=60)
    with pytest.raises(TaskLostError, match=r"5 messages between rank 0 and the process of feed 'feed' at .* damaged"):
        take(reader, 1)
    assert flipped == [5]
    reader.close()


def test_rank_learns_that_a_process_which_says_nothing_is_stopped_or_was_replaced_or_its_job_is_over(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_link, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(tcp_link, "LOST_SECONDS", 0.5)
    monkeypatch.setattr(prefetch, "WARN_SECONDS", 0.5)
    silent, kept = Listener(host._secret.token, "silent", "127.0.0.1", certificate=host._secret.certificate), []
    silent.open(lambda caller, connection: kept.append(connection))
    host.discovery.publish("feed", silent.endpoint)
    host.rows(0, 40)
    reader = host.handle.reader(timeout=2)
    with pytest.raises(TimeoutError, match=r"it waits for its process, .* no message for \d s; it may be stopped"):
        take(reader, 1)
    assert len(kept) > 1, "it has tried again"
    told = "rank 0 of 1 of feed 'feed' has waited 0.5 s for its process, which cannot be reached: no message"
    assert told in caplog.text
    host.discovery.publish("feed", host.tcp._listener.endpoint)
    reader.timeout = 60
    assert numbers(take(reader, 1)) == [list(range(10))]
    host.discovery.publish("feed", silent.endpoint)
    host.tcp.close()
    host.discovery.publish_end(shut_down("streams", host.discovery.run))
    with pytest.raises(ConfigurationError, match="was shut down"):
        take(reader, 4)
    reader.close()
    silent.close()
    for connection in kept:
        connection.close()


def test_question_that_is_too_large_is_an_error_with_a_remedy(host: Host) -> None:
    link = host.handle.route.open()
    skipped = tuple((number, number + 1) for number in range(0, 6_000_000, 2))
    with pytest.raises(ConfigurationError, match="1 models to bind, with 3000000 ranges of batches") as raised:
        link.ask(Ask("many", 0, 1, 0, 0, 0, 0, commits=(Commit("model", 1, skipped),)), 0.0)
    assert "flush" in raised.value.remedy
    link.close()


def test_error_that_is_too_long_for_an_answer_arrives_cut(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise UserCodeError("words " * (4 << 20))

    monkeypatch.setattr(host.server, "serve", fail)
    with host.handle.reader(timeout=15) as reader, pytest.raises(UserCodeError, match=r"words words") as raised:
        take(reader, 1)
    assert len(raised.value.message) < 100_000


def test_rank_of_a_feed_that_is_served_elsewhere_is_told_so(host: Host) -> None:
    other = replace(host.handle.route, feed="other")
    host.discovery.publish("other", host.tcp._listener.endpoint)
    link = other.open()
    reply = link.ask(Ask("one", 0, 1, 0, 0, 0, 0), 0.0)
    assert reply.reason == "the process of feed 'other', which is another one than it has dialled"
    link.close()
