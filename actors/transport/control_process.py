"""The end of a process in what it and the coordinator of its job say to each other (``conversation`` has the rules).

1. Coordinators dial; their connections come in by the ``listener``, which this end owns. Of several the newest of the
   highest generation counts. One that comes too late is told so.
2. While there is no connection, what is said goes by ``by_calls``, to ``called`` of the other end; its calls come to
   :meth:`called` here.
3. That a connection has ended is told to ``lost``, no more: who is dead, Ray knows.
4. ``order``, ``alive`` and ``by_calls`` are called under a lock that ``put`` takes: they wait for nothing but locks
   under which nobody calls this end.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

from ..protocol.messages import Order
from .control_loop import ControlConnection, ControlLoop, Incoming
from .control_wire import COORDINATOR, Alive, Beat, Begin, Content, Refused, Seen, encode_note, encode_packet
from .conversation import Generations, Packet
from .dialling import Endpoint
from .greeting import Caller
from .listener import Listener
from .sockets import shut

ByCalls = Callable[[int, Sequence[Packet[Content]]], None]
"""Has packets carried by calls, of the conversation with that generation. Must not block, nor raise."""


class ProcessEnd:
    """See the module's rules. ``job``: its UUID. ``order`` gets each order once, in their order; ``alive`` is given
    what is to be called by whoever is to prove that this process is alive; ``lost``: the connection has ended."""

    def __init__(
        self,
        job: str,
        incarnation: str,
        listener: Listener,
        by_calls: ByCalls,
        order: Callable[[Order], None],
        alive: Callable[[Callable[[], None]], None],
        lost: Callable[[], None],
    ) -> None:
        self._job = job
        self._incarnation = incarnation
        self._listener = listener
        self._by_calls = by_calls
        self._order = order
        self._alive = alive
        self._lost = lost
        #: guards what follows; held while something is sent or given on, so that both stay in order. A call
        #: may come back while it is being made
        self._lock = threading.RLock()
        self._generations: Generations[Content] = Generations()
        self._connection: ControlConnection | None = None
        self._loop = ControlLoop()
        listener.open(self._greeted)

    @property
    def endpoint(self) -> Endpoint:
        """Where coordinators dial."""
        return self._listener.endpoint

    def put(self, content: Content) -> None:
        """Tell the coordinator."""
        with self._lock:
            packet = self._generations.conversation.put(content)
            if self._connection is not None:
                self._connection.send(encode_packet(packet))
            else:
                self._by_calls(self._generations.generation, [packet])

    def hear(self, generation: int) -> None:
        """A coordinator of this generation has called."""
        with self._lock:
            self._heard(generation)

    def called(self, generation: int, packets: Sequence[Packet[Content]]) -> int | None:
        """A coordinator says this, by a call. What has been taken of it; None: it is not listened to any more."""
        with self._lock:
            if not self._heard(generation):
                return None
            for packet in packets:
                self._take(packet)
            return self._generations.conversation.tell_seen()

    def acknowledged(self, generation: int, seen: int) -> None:
        """A call to the coordinator has come back with that."""
        with self._lock:
            if generation == self._generations.generation:
                self._generations.conversation.acknowledged(seen)

    def cut(self) -> None:
        """Lose the connection, as if the network had failed."""
        with self._lock:
            if self._connection is not None:
                self._connection.cut()

    def close(self) -> None:
        """Close the connection and take no other one."""
        self._listener.close()
        self._loop.close()

    # ------------------------------------------------------------------ the lock is held

    def _heard(self, generation: int) -> bool:
        """Whether a coordinator of that generation is listened to; a new one gets what nobody has taken yet."""
        is_new = generation > self._generations.generation
        listened = self._generations.hear(generation)
        if is_new:
            self._drop_connection()
            if kept := self._generations.conversation.kept():
                self._by_calls(generation, kept)
        return listened

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _take(self, packet: Packet[Content]) -> None:
        conversation = self._generations.conversation
        for content in conversation.take(packet):
            if isinstance(content, Order):
                self._order(content)
        if self._connection is not None and conversation.owes_word():
            self._connection.send(encode_note(Seen(conversation.tell_seen())))

    # ------------------------------------------------------------------ connections

    def _greeted(self, caller: Caller, connection: socket.socket) -> None:
        """On the thread that has greeted."""
        if caller.task != COORDINATOR:
            shut(connection)
            connection.close()
            return
        self._loop.add(connection, self._taken, self._ended)

    def _taken(self, connection: ControlConnection, incoming: Incoming) -> None:
        with self._lock:
            if isinstance(incoming, Begin):
                self._began(connection, incoming)
            elif connection is self._connection:
                self._heard_on(connection, incoming)

    def _began(self, connection: ControlConnection, begin: Begin) -> None:
        ours = begin.job == self._job and begin.incarnation == self._incarnation
        if not ours or not self._heard(begin.attempt.generation):
            connection.send(encode_note(Refused(self._generations.generation)))
            return
        self._drop_connection()
        self._connection = connection
        conversation = self._generations.conversation
        seen = conversation.tell_seen()
        connection.send(encode_note(Begin(self._job, begin.attempt, self._incarnation, seen)))
        conversation.acknowledged(begin.seen)
        for packet in conversation.kept():
            connection.send(encode_packet(packet))

    def _heard_on(self, connection: ControlConnection, incoming: Incoming) -> None:
        match incoming:
            case Packet():
                self._take(incoming)
            case Seen(seen):
                self._generations.conversation.acknowledged(seen)
            case Beat(seen):
                self._generations.conversation.acknowledged(seen)
                self._alive(lambda: self._answer(connection))
            case _:
                pass

    def _answer(self, connection: ControlConnection) -> None:
        """From any thread, the loop's with the lock held included."""
        connection.send(encode_note(Alive(self._generations.conversation.tell_seen())))

    def _ended(self, connection: ControlConnection, _reason: str) -> None:
        with self._lock:
            if connection is not self._connection:
                return
            self._connection = None
            if kept := self._generations.conversation.kept():
                self._by_calls(self._generations.generation, kept)
        self._lost()
