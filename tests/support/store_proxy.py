"""Stands between a client and an object server on loopback, and is what networks and stores are on a bad day.

Rules:

1. What it does to each request is decided by ``fault``, which may be exchanged at any time.
2. A request is forwarded as it came, so its signature stays right: that covers the host's name, which the client took
   from the proxy's address.
3. What comes *late* is kept, and carried out when the test says so (``land``): the client has long been told nothing.
4. While lists *lag* (``lagging``), a listing is answered with what it was when that began.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self
from urllib.parse import unquote, urlsplit

Fault = Literal["", "lost request", "lost answer", "late", "silent"] | int
"""What becomes of a request: nothing in particular, or it is not answered, or refused with this status."""

_ANSWERED_BY_US = {"connection", "transfer-encoding", "content-length", "date", "server"}


@dataclass(frozen=True)
class Asked:
    """One request. ``key``: ``bucket/key``; ``is_list``: for the keys below a prefix."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/")

    @property
    def is_list(self) -> bool:
        return self.method == "GET" and "list-type=" in urlsplit(self.path).query


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class StoreProxy:
    """The proxy. ``requests``: (method, key, status) of what was carried out, in order."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream).netloc
        self.fault: Callable[[Asked], Fault] = lambda asked: ""
        self.requests: list[tuple[str, str, int]] = []
        self.faults = 0
        self._late: list[Asked] = []
        self._lists: dict[str, Answer] = {}
        self._lagging = False
        self._calm = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.calm()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def calm(self) -> None:
        """Be no more than a wire; who waits for an answer is left alone."""
        self.fault, self._lagging = lambda asked: "", False
        self._calm.set()
        self._calm = threading.Event()

    def lag(self) -> None:
        """From now on a listing that was asked for before is answered with what it was."""
        self._lagging = True

    def land(self) -> list[int]:
        """Carry out what came late; what the server says of each."""
        late, self._late = self._late, []
        return [self._forward(each).status for each in late]

    def answer(self, asked: Asked) -> Answer | None:
        """What to answer; None: nothing, and the connection breaks."""
        fault = self.fault(asked)
        self.faults += fault != ""
        if isinstance(fault, int):
            said = b"<Error><Code>SlowDown</Code><Message>a test refused it</Message></Error>"
            return Answer(fault, [("Content-Type", "application/xml")], said)
        if fault == "late":
            self._late.append(asked)
        if fault == "silent":
            self._calm.wait()
        if fault in ("late", "silent", "lost request"):
            return None
        found = self._lists.get(asked.path) if self._lagging and asked.is_list else None
        found = found or self._forward(asked)
        return None if fault == "lost answer" else found

    def _forward(self, asked: Asked) -> Answer:
        connection = HTTPConnection(self._upstream, timeout=30)
        try:
            connection.putrequest(asked.method, asked.path, skip_host=True, skip_accept_encoding=True)
            for name, value in asked.headers.items():
                connection.putheader(name, value)
            connection.endheaders(asked.body)
            said = connection.getresponse()
            found = Answer(said.status, said.getheaders(), said.read())
        finally:
            connection.close()
        self.requests.append((asked.method, asked.key, found.status))
        if asked.is_list:
            self._lists[asked.path] = found
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    proxy: StoreProxy

    def log_message(self, format: str, *args: object) -> None: ...

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = self.proxy.answer(Asked(self.command, self.path, dict(self.headers.items()), body))
        self.close_connection = True
        if found is None:
            return
        self.send_response_only(found.status)
        for name, value in found.headers:
            if name.lower() not in _ANSWERED_BY_US:
                self.send_header(name, value)
        size = dict(found.headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(found.body))
        self.send_header("Content-Length", size)
        self.send_header("Connection", "close")  # no thread stays: other tests count them
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815 names that http.server wants
