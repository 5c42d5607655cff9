"""A transport that carries packets as calls of the receiving actor's ``receive`` method.

Simple, and slow for small batches (a call costs 0.75 ms and more), hence the packets. Order holds because one thread
sends, Ray keeps the calls of one caller in order, and the receiver runs ``receive`` in a concurrency group of one
thread. A call that fails, for whatever reason, breaks its link: it is unknown whether the packet arrived.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from ...engine.edges import Frame, Upstream
from ...engine.identity import Attempt, TaskId
from ..calls import short_reason, when_done
from ..messages import Address
from .links import Link
from .packets import pack
from .protocol import BrokenLink


class RayCallTransport:
    """See the module. ``broken`` is called, from any thread, with each link that breaks."""

    def __init__(self, broken: Callable[[BrokenLink], None]) -> None:
        self._broken = broken
        #: guards everything below; notified when something may have become sendable
        self._changed = threading.Condition()
        self._links: dict[TaskId, Link] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-send", daemon=True)
        self._thread.start()

    def connect(self, peers: Mapping[TaskId, tuple[Attempt, Address]]) -> None:
        """Open a link to every task named, in place of all links before."""
        with self._changed:
            for link in self._links.values():
                link.close()
            self._links = {task: Link(task, attempt, address) for task, (attempt, address) in peers.items()}

    def send(self, frame: Frame) -> None:
        """Carry a frame to the process of its consumer."""
        with self._changed:
            link = self._links.get(frame.channel.consumer)
            if link is not None and link.attempt == frame.attempts[1]:
                link.put_frame(frame)
                self._changed.notify()

    def reply(self, message: Upstream) -> None:
        """Carry a message to the process of its producer."""
        with self._changed:
            link = self._links.get(message.channel.producer)
            if link is not None and link.attempt == message.attempts[0]:
                link.put_upstream(message)
                self._changed.notify()

    def close(self) -> None:
        """Drop what is queued and end."""
        with self._changed:
            self._closed = True
            for link in self._links.values():
                link.close()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next() is not None)
                link = self._next()
                if self._closed or link is None:
                    return
                frames, upstream = link.take()
            self._call(link, frames, upstream)

    def _next(self) -> Link | None:
        return next((link for link in self._links.values() if link.sendable), None)

    def _call(self, link: Link, frames: list[Frame], upstream: list[Upstream]) -> None:
        try:
            ref = link.address.receive.remote(pack(frames, upstream))
        except Exception as error:  # an actor known to be dead, or a full object store: the packet did not leave
            self._ended(link, error)
            return
        when_done(ref, lambda _value, error: self._ended(link, error))

    def _ended(self, link: Link, error: BaseException | None) -> None:
        with self._changed:
            link.under_way -= 1
            breaks = error is not None and not link.closed
            if breaks:
                link.close()
            self._changed.notify()
        if breaks and error is not None:
            self._broken(BrokenLink(link.task, link.attempt, short_reason(error)))
