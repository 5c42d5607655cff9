"""The end of a coordinator in what it and the processes of its job say to each other (``conversation`` has the rules).

1. A process that has taken an order to deploy is dialled. Until there is a connection, and whenever there is none, what
   is said goes by ``by_calls``; a connection that is lost is dialled again, after a pause that grows and differs from
   process to process. One that refuses us has heard a later coordinator: it is not dialled any more.
2. That a connection has ended says nothing about its process.
3. A process that is there again under another incarnation is another one: nothing is kept for it.
4. What comes is handed to ``give`` in its order, on the thread of the connections, or of the call. That thread reads
   all connections on which something is, and then gives everything at once: who takes it is woken once for many.
5. Signs of life are kept until somebody looks (``sign``), and nobody is told.
6. ``by_calls`` is called under a lock that ``put`` and ``ask`` take, ``give`` under one of its own: both wait for
   nothing but locks under which nobody calls this end.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ...coordinator.model.events import TaskCommitted
from ...engine.core.identity import Attempt
from ...engine.scheduler.threads import Threads
from ..protocol.messages import Identity, Order, Sign, WorkerSlot
from .control_loop import ControlConnection, ControlLoop, Incoming
from .control_wire import (
    COORDINATOR,
    Alive,
    Beat,
    Begin,
    Content,
    Refused,
    Report,
    Seen,
    encode_note,
    encode_packet,
)
from .conversation import Conversation, Packet, pause_before
from .dialling import Endpoint, Secrets, Stop, connect
from .greeting import Caller, GreetingError

DIALLERS = 8
"""Threads that dial."""

_log = logging.getLogger(__name__)

ByCalls = Callable[[WorkerSlot, str, int, Sequence[Packet[Content]]], None]
"""Has packets carried to that incarnation on a slot by calls, from a coordinator of that generation."""


class _Process:
    """What is known of one process, and said to it."""

    def __init__(self, slot: WorkerSlot, incarnation: str, generation: int) -> None:
        self.slot, self.incarnation, self.generation = slot, incarnation, generation
        #: where it listens; None: it has been heard, and has not taken an order yet
        self.endpoint: Endpoint | None = None
        #: the newest attempt that it has taken
        self.attempt = Attempt(generation, 0)
        #: guards what follows; held while something is sent or given on, so that both stay in order. A call
        #: may come back while it is being made
        self.lock = threading.RLock()
        self.conversation: Conversation[Content] = Conversation()
        self.connection: ControlConnection | None = None
        #: it is being dialled, or is going to be
        self.dialling = False
        #: in a row that have failed
        self.tries = 0
        #: it is not dialled any more: it has gone, or refuses us
        self.over = False
        #: since somebody looked
        self.sign = Sign.NONE


class CoordinatorEnd:
    """See the module's rules. ``job``: its UUID."""

    def __init__(
        self,
        job: str,
        secrets: Secrets,
        by_calls: ByCalls,
        give: Callable[[Report], None],
    ) -> None:
        self._job = job
        self._secrets = secrets
        self._by_calls = by_calls
        self._give = give
        #: what has come and is to be given; held while it is
        self._come: deque[Report] = deque()
        self._giving = threading.Lock()
        #: guards the table of processes
        self._lock = threading.Lock()
        self._processes: dict[tuple[WorkerSlot, str, int], _Process] = {}
        #: the process that is on a slot
        self._current: dict[WorkerSlot, _Process] = {}
        self._loop = ControlLoop(self._give_all)
        self._diallers = Threads(DIALLERS, "penstock-dial")
        self._stop = Stop()

    # ------------------------------------------------------------------ from any thread

    def accepted(self, identity: Identity, endpoint: Endpoint, attempt: Attempt) -> None:
        """A process has taken an order to deploy."""
        process = self._process(identity.task, identity.incarnation, attempt.generation)
        with self._lock:
            before = self._current.get(identity.task)
            self._current[identity.task] = process
        if before is not None and before is not process:
            self._forget(before)
        with process.lock:
            process.endpoint = endpoint
            process.attempt = max(process.attempt, attempt)
            self._see_to_connection(process)

    def put(self, slot: WorkerSlot, order: Order) -> bool:
        """Give an order to the process on a slot. False: it has taken nothing, so nothing can be said yet."""
        process = self._current.get(slot)
        if process is None:
            return False
        with process.lock:
            packet = process.conversation.put(order)
            if process.connection is not None:
                process.connection.send(encode_packet(packet))
            else:
                self._by_calls(slot, process.incarnation, process.generation, [packet])
        return True

    def ask(self, slot: WorkerSlot) -> bool:
        """Ask for a sign of life. False: there is no connection to ask on."""
        process = self._current.get(slot)
        if process is None:
            return False
        with process.lock:
            if process.connection is None:
                return False
            process.connection.send(encode_note(Beat(process.conversation.tell_seen())))
        return True

    def sign(self, slot: WorkerSlot) -> Sign:
        """The strongest sign of life since this was last asked."""
        process = self._current.get(slot)
        if process is None:
            return Sign.NONE
        with process.lock:
            found, process.sign = process.sign, Sign.NONE
        return found

    def called(self, slot: WorkerSlot, incarnation: str, generation: int, packets: Sequence[Packet[Content]]) -> int:
        """A process says this, by a call: what has been taken of it."""
        process = self._process(slot, incarnation, generation)
        with process.lock:
            for packet in packets:
                self._take(process, packet)
            seen = process.conversation.tell_seen()
        self._give_all()
        return seen

    def acknowledged(self, slot: WorkerSlot, incarnation: str, generation: int, seen: int) -> None:
        """A call to a process has come back with that."""
        process = self._process(slot, incarnation, generation)
        with process.lock:
            process.conversation.acknowledged(seen)

    def close(self) -> None:
        """End all connections, and dial no more."""
        self._stop.set()
        self._diallers.close(wait=False, drop=True)
        self._loop.close()

    def _process(self, slot: WorkerSlot, incarnation: str, generation: int) -> _Process:
        key = (slot, incarnation, generation)
        with self._lock:
            found = self._processes.get(key)
            if found is None:
                found = self._processes[key] = _Process(*key)
        return found

    def _forget(self, process: _Process) -> None:
        """Another process has taken its place."""
        with process.lock:
            process.over = True
            connection, process.connection = process.connection, None
        if connection is not None:
            connection.close()
        with self._lock:
            self._processes.pop((process.slot, process.incarnation, process.generation), None)

    def _give_all(self) -> None:
        """Rule 4."""
        if self._come:
            with self._giving:
                while self._come:
                    self._give(self._come.popleft())

    # ------------------------------------------------------------------ the process's lock is held

    def _take(self, process: _Process, packet: Packet[Content]) -> None:
        for content in process.conversation.take(packet):
            if isinstance(content, Report):
                self._come.append(content)
            if isinstance(content, TaskCommitted):
                process.sign = Sign.ANSWER
        if process.connection is not None and process.conversation.owes_word():
            process.connection.send(encode_note(Seen(process.conversation.tell_seen())))

    def _see_to_connection(self, process: _Process) -> None:
        if process.connection is not None or process.dialling or process.over:
            return
        process.dialling = True
        if process.tries:
            pause = pause_before(process.tries - 1, random.random())
            self._loop.later(pause, partial(self._diallers.submit, partial(self._dial, process)))
        else:
            self._diallers.submit(partial(self._dial, process))

    # ------------------------------------------------------------------ a thread that dials

    def _dial(self, process: _Process) -> None:
        endpoint, attempt = process.endpoint, process.attempt
        if endpoint is None or self._stop.is_set or process.over:
            return
        caller = Caller(COORDINATOR, attempt, process.slot, attempt)
        try:
            # each has a stop of its own, which the end of all does not wake: a greeting has its deadline
            connection = connect(endpoint, caller, self._secrets, Stop())
        except (OSError, GreetingError) as error:
            self._failed(process, str(error), again=not isinstance(error, GreetingError) or error.retry)
            return
        with process.lock:
            begin = Begin(self._job, attempt, process.incarnation, process.conversation.tell_seen())
            made = self._loop.add(connection, partial(self._taken, process), partial(self._ended, process))
            made.send(encode_note(begin))

    def _failed(self, process: _Process, reason: str, *, again: bool) -> None:
        if not process.tries:
            _log.info("no control connection to %s, calls do: %s", process.slot, reason)
        with process.lock:
            process.dialling = False
            process.tries += 1
            process.over = process.over or not again
            self._see_to_connection(process)

    # ------------------------------------------------------------------ the thread of the connections

    def _taken(self, process: _Process, connection: ControlConnection, incoming: Incoming) -> None:
        with process.lock:
            match incoming:
                case Begin(seen=seen):
                    self._began(process, connection, seen)
                case Refused(generation):
                    _log.warning("%s has heard a coordinator of generation %d", process.slot, generation)
                    process.over = True
                    connection.close()
                case Packet():
                    self._take(process, incoming)
                case Seen(seen):
                    process.conversation.acknowledged(seen)
                case Alive(seen):
                    process.conversation.acknowledged(seen)
                    process.sign = process.sign or Sign.ALIVE
                case Beat():
                    pass

    def _began(self, process: _Process, connection: ControlConnection, seen: int) -> None:
        if process.over:
            connection.close()
            return
        process.connection, process.dialling, process.tries = connection, False, 0
        process.conversation.acknowledged(seen)
        for packet in process.conversation.kept():
            connection.send(encode_packet(packet))

    def _ended(self, process: _Process, connection: ControlConnection, reason: str) -> None:
        with process.lock:
            if process.connection is connection:
                _log.info("the control connection to %s has ended: %s", process.slot, reason)
                process.connection = None
                if kept := process.conversation.kept():
                    self._by_calls(process.slot, process.incarnation, process.generation, kept)
            process.dialling = False
            process.tries += 1
            self._see_to_connection(process)
