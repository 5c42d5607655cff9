"""What the coordinator of a thousand tasks spends on checkpoints: its process alone, with one connection to each task.

Run it as ``python benchmarks/coordinator_control.py``; the result goes to
``benchmarks/results/coordinator_control.json``. The coordinator is the real one, in its host, with the supervisor, the
connections for orders and a log on the disk; the tasks are a second process that answers every order at once, on as
many connections. Counted is the processor time of the first process from its tenth second on, heartbeats included: a
share of one core.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from harness import Row, make_row, report, results_folder, sized
from penstock.actors.hosting.coordinator_host import CoordinatorHost
from penstock.actors.hosting.supervisor import MISSES, Supervisor
from penstock.actors.protocol.messages import UNKNOWN_TIME, AttemptAccepted, Identity, ProcessAppeared, WorkerSlot
from penstock.actors.storage.log import create_entry
from penstock.actors.storage.stores import open_store
from penstock.actors.transport.control_coordinator import CoordinatorEnd
from penstock.actors.transport.control_loop import ControlConnection, ControlLoop, Incoming
from penstock.actors.transport.control_wire import Alive, Beat, Begin, Seen, encode_note, encode_packet
from penstock.actors.transport.conversation import Conversation, Packet
from penstock.actors.transport.dialling import Endpoint, Secrets
from penstock.actors.transport.greeting import Caller
from penstock.actors.transport.listener import Listener
from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model import commands, events
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.settings import Settings
from penstock.engine.core.identity import StateHandle, TaskId
from penstock.engine.scheduler.threads import Threads

TASKS = sized(1000, 20)
EVERY = sized(10.0, 1.0)
"""Seconds between checkpoints."""
AIM = 1.0
"""Percent of a core."""
WARM, SECONDS = sized(10.0, 1.0), sized(60.0, 3.0)
HEARTBEAT = 20.0
TOKEN = bytes(range(32))
INCARNATION = "all of them"


# ---------------------------------------------------------------------- the tasks


class Tasks:
    """Answers every order on every connection, at once. A sink has its barriers from the source of its number."""

    def __init__(self) -> None:
        self._loop = ControlLoop()
        self._conversations: dict[ControlConnection, Conversation[Any]] = {}
        self._listener = Listener(TOKEN, INCARNATION, "127.0.0.1")
        self._connections: dict[WorkerSlot, ControlConnection] = {}
        self._listener.open(self._greeted)
        self.endpoint = self._listener.endpoint

    def _greeted(self, caller: Caller, connection: socket.socket) -> None:
        self._connections[caller.peer] = self._loop.add(connection, self._taken, lambda *_: None)

    def _taken(self, connection: ControlConnection, incoming: Incoming) -> None:
        conversation = self._conversations.setdefault(connection, Conversation())
        match incoming:
            case Begin():
                connection.send(encode_note(incoming))
            case Beat():
                connection.send(encode_note(Alive(conversation.tell_seen())))
            case Seen(seen):
                conversation.acknowledged(seen)
            case Packet():
                for order in conversation.take(incoming):
                    self._answer(order)

    def _answer(self, order: Any) -> None:
        match order:
            case commands.TriggerCheckpoint(task, attempt, checkpoint):
                for each in (task, TaskId("sink", task.subtask)):
                    state = (StateHandle("operator", f"{each}/{checkpoint}", 100, 1),)
                    self._say(each, events.TaskAcked(each, attempt, checkpoint, state, (), False, UNKNOWN_TIME))
            case commands.CommitCheckpoint(task, attempt, permit):
                self._say(task, events.TaskCommitted(task, attempt, permit.checkpoint, UNKNOWN_TIME))

    def _say(self, task: TaskId, answer: Any) -> None:
        connection = self._connections[task]
        connection.send(encode_packet(self._conversations[connection].put(answer)))


def serve() -> None:
    """Be the tasks, until the coordinator goes."""
    tasks = Tasks()
    print(msgspec.json.encode(tasks.endpoint).decode(), flush=True)
    sys.stdin.read()


# ---------------------------------------------------------------------- the coordinator


class Files:
    """The log on the disk; all else is done at once."""

    def __init__(self, folder: Path, notify: Callable[[Any], None]) -> None:
        self._store, self._notify = open_store(folder), notify
        self._thread = Threads(1, "log")

    def perform(self, command: Any) -> None:
        match command:
            case commands.ReadLog():
                self._notify(events.LogRead((), UNKNOWN_TIME))
            case commands.TakeOutputs():
                self._notify(events.OutputsTaken(UNKNOWN_TIME))
            case commands.StoreEntry(entry):
                self._thread.submit(partial(self._write, entry))

    def _write(self, entry: Any) -> None:
        create_entry(self._store, "job", entry)
        self._notify(events.EntryStored(entry.number, UNKNOWN_TIME))

    def end_presence(self) -> None:
        pass

    def close(self, last: object = ()) -> None:
        self._thread.close(drop=True)


class Calls:
    """What Ray would do, done at once; orders go over the connections."""

    def __init__(self, endpoint: Endpoint, post: Callable[[Any], None]) -> None:
        self._endpoint, self._post = endpoint, post
        self.end = CoordinatorEnd("uuid", Secrets(TOKEN), lambda *_: None, post)
        self.sign = self.end.sign

    def ready(self, slot: WorkerSlot) -> None:
        self._post(ProcessAppeared(_identity(slot)))

    def watch(self, slot: WorkerSlot, incarnation: str) -> None:
        pass

    def ask(self, slot: WorkerSlot) -> None:
        self.end.ask(slot)

    def deploy(self, command: commands.DeployTask, cautious: bool) -> None:
        self.end.accepted(_identity(command.task), self._endpoint, command.attempt)
        self._post(AttemptAccepted(command.attempt, _identity(command.task)))
        self._post(events.TaskDeployed(command.task, command.attempt, UNKNOWN_TIME))

    def order(self, command: Any) -> None:
        self.end.put(command.task, command)

    replace = move = clear = ready


def _identity(slot: WorkerSlot) -> Identity:
    return Identity(slot, INCARNATION, 1, "127.0.0.1")


def spend(every: float) -> tuple[float, int]:
    """Processor seconds of a coordinator's process per second, and the checkpoints that it completed."""
    command = [sys.executable, __file__, "--coordinate", str(every)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(found[-2]), int(found[-1])


def coordinate(every: float) -> None:
    """Be the coordinator, and print what that took."""
    command = [sys.executable, __file__, "--tasks"]
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tasks,
    ):
        assert tasks.stdout is not None
        endpoint = msgspec.json.decode(tasks.stdout.readline(), type=Endpoint)
        half = TASKS // 2
        graph = ExecutionGraph(
            (Vertex("source", half), Vertex("sink", TASKS - half)),
            (JobEdge("source", "sink", Pattern.ALL_TO_ALL),),
        )
        core = Coordinator("job", "print", "a flow", graph, Settings(interval=every, timeout=600.0))
        calls: list[Calls] = []

        def drivers(post: Callable[[Any], None]) -> Any:
            calls.append(Calls(endpoint, post))
            return Supervisor(graph.tasks, calls[0], heartbeat=HEARTBEAT / MISSES)

        host: Any = CoordinatorHost(core, partial(Files, Path(folder)), drivers, heartbeat=HEARTBEAT / MISSES)  # type: ignore[arg-type]
        host.start()
        rest = threading.Event()
        rest.wait(WARM)
        began = time.process_time(), host.wait_status(None, 0).status.checkpoints_completed
        rest.wait(SECONDS)
        share = (time.process_time() - began[0]) / SECONDS
        done = host.wait_status(None, 0).status.checkpoints_completed - began[1]
        host.close()
        calls[0].end.close()
        tasks.communicate("")
    print(share, done, flush=True)


def share_row(rounds: int) -> Row:
    """The share of a core at one checkpoint in ten seconds."""
    shares = [100 * spend(EVERY)[0] for _ in range(rounds)]
    work = f"coordinator of {TASKS:,} tasks, a checkpoint every {EVERY:g} s"
    return make_row(work, "the aim, of one core", (shares, [AIM] * rounds), "%", 1.0, False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--coordinate", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tasks:
        serve()
    elif given.coordinate:
        coordinate(given.coordinate)
    else:
        report([share_row(3)], results_folder() / "coordinator_control.json")
