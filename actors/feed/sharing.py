"""A link that fetches rows once for all ranks of a machine that read the same ones, those of a mesh.

Rules:

1. Each rank asks the feed server for itself: it alone says what a rank reads and who may, and knows how far each has
   come. What is saved are the rows, on the way and in memory.
2. Of the ranks of a machine that read the same part in one group one *fetches*: who has bound the socket
   (``neighbours``). The others ask for answers without rows, and take these from it. When it ends, however, one of
   them is next.
3. What cannot be had there, for whatever reason, the rank fetches from the feed server. It waits for a neighbour only
   for what is on its way to that one, and a moment for what that one has not asked for yet; not even that where its
   loop has no batch left and has waited so in vain before.
4. Slices of less than ``SHARED_BYTES``, and those of a feed server on the same machine, cost as much to share as to
   fetch: they are not shared. The size of the last slice tells.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from contextlib import suppress

import pyarrow as pa
from msgspec.structs import replace

from ...engine.feed.messages import Answer, Ask, Reply, Slice
from .board import Offer
from .link import RemoteLink
from .neighbours import CAN_SHARE, Fetcher, Neighbour, slice_bytes

SHARED_BYTES = 1 << 20
COMING_SECONDS = 1.0
"""So long a rank waits for what is on its way to its neighbour."""
LATER_SECONDS = 0.1
"""So long, where its own loop has batches left, for what its neighbour has not asked for."""
SOON_SECONDS = 0.05
"""So long where its loop has none left: a neighbour that trains in step asks in a moment."""
AGAIN_SECONDS = 30.0
"""After so long a rank whose neighbour does not answer, or cannot share, tries again."""

_log = logging.getLogger(__name__)


class SharingLink:
    """See the module's rules. ``link``: to the feed server. ``secret``: the job's token; ``feed``: with its job."""

    def __init__(self, link: RemoteLink, secret: bytes, feed: str) -> None:
        self._link = link
        self._secret, self._feed = secret, feed
        #: held while ``_peer`` is replaced; readers are closed on another thread than they ask
        self._lock = threading.Lock()
        self._peer: Fetcher | Neighbour | None = None
        #: the generation and the part that ``_peer`` is of
        self._place = (0, 0)
        #: the neighbour does not train in step: it was waited for, in vain
        self._is_behind = False
        #: bytes of the last slice
        self._width = 0
        self._not_before = 0.0
        self._closed = False

    def ask(self, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        if ask.copies == 1 or not ask.wanted or not CAN_SHARE or self._link.is_near:
            return self._link.ask(ask, timeout)
        peer = self._find(ask)
        if isinstance(peer, Fetcher):
            return self._fetch(peer, ask, timeout)
        if isinstance(peer, Neighbour) and self._width >= SHARED_BYTES:
            return self._take(peer, ask, timeout)
        return self._noted(self._link.ask(ask, timeout))

    def notify(self, ask: Ask) -> None:
        self._link.notify(ask)

    def close(self) -> None:
        self._link.close()
        self._part(0.0, ends=True)

    def _find(self, ask: Ask) -> Fetcher | Neighbour | None:
        """Its place among the ranks of the machine."""
        place = (ask.generation, ask.rank // ask.copies)
        if place != self._place:
            self._part(0.0)
            self._place = place
        with self._lock:
            if self._peer is None and time.monotonic() >= self._not_before and not self._closed:
                self._peer = self._peer_of(self._name(*place), ask.rank)
            return self._peer

    def _peer_of(self, name: str, rank: int) -> Fetcher | Neighbour | None:
        with suppress(OSError):  # another rank has the name
            return Fetcher(name)
        try:
            return Neighbour(name)
        except OSError as error:
            _log.info("rank %d shares no rows with others of its machine: %s", rank, error)
            self._not_before = time.monotonic() + AGAIN_SECONDS
            return None

    def _name(self, generation: int, part: int) -> str:
        key = hashlib.sha256(self._secret).digest()
        place = f"{self._feed} {generation} {part}".encode()
        return f"\0penstock-share-{hashlib.blake2b(place, key=key, digest_size=16).hexdigest()}"

    def _part(self, seconds: float, *, ends: bool = False) -> None:
        """Have nothing to do with the others, for so long or for ever."""
        with self._lock:
            peer, self._peer = self._peer, None
            self._not_before = time.monotonic() + seconds
            self._closed = self._closed or ends
        if peer is not None:
            peer.close()

    def _noted(self, reply: Reply[pa.RecordBatch]) -> Reply[pa.RecordBatch]:
        for answer in reply.answers:
            if isinstance(answer, Slice):
                self._width = slice_bytes(answer)
        return reply

    def _fetch(self, fetcher: Fetcher, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        fetcher.ask(ask.wanted, ask.taken)
        reply = self._noted(self._link.ask(ask, timeout))
        rows = fetcher.arrive([each for each in reply.answers if isinstance(each, Slice)], SHARED_BYTES)
        if not rows:
            return reply
        answers = (
            replace(each, rows=rows[each.batch]) if isinstance(each, Slice) and each.batch in rows else each
            for each in reply.answers
        )
        return replace(reply, answers=tuple(answers))

    def _take(self, neighbour: Neighbour, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        reply = self._link.ask(replace(ask, without_rows=True), timeout)
        answers: list[Answer[pa.RecordBatch]] = []
        for at, answer in enumerate(reply.answers):
            if not isinstance(answer, Slice) or not answer.left_out:
                answers.append(answer)
                continue
            is_urgent = answer.batch == ask.taken
            rows = self._rows(neighbour, answer, is_urgent)
            if not isinstance(rows, Offer):
                whole = replace(answer, rows=rows, left_out=0)
                answers.append(whole)
                self._width = slice_bytes(whole)
                continue
            if is_urgent or rows is Offer.GONE:
                rest = tuple(each.batch for each in reply.answers[at:] if isinstance(each, Slice))
                # what the reply says of models is not asked for twice
                answers += self._noted(self._link.ask(replace(ask, wanted=rest, commits=()), timeout)).answers
            break
        return replace(reply, answers=tuple(answers))

    def _rows(
        self, neighbour: Neighbour, wanted: Slice[pa.RecordBatch], is_urgent: bool
    ) -> tuple[pa.RecordBatch, ...] | Offer:
        soon = 0.0 if self._is_behind else SOON_SECONDS
        waits = (COMING_SECONDS, soon) if is_urgent else (LATER_SECONDS, LATER_SECONDS)
        try:
            found = neighbour.take(wanted, *waits)
            self._is_behind = found is Offer.LATER and is_urgent
            return found
        except OSError as error:
            _log.info("the rank that fetches for others of its machine has gone: %s", error)
            answers = neighbour.has_given and not isinstance(error, TimeoutError)
            self._part(0.0 if answers else AGAIN_SECONDS)
            return Offer.GONE
