"""The sentences in which a driver says for what and whom it waits. Built once each: a driver may wait often."""

from __future__ import annotations

from collections.abc import Sequence

from .edges import Outlet
from .gate import Feed
from .scheduler.states import Wait, WaitReason

FOR_COMMIT = Wait(WaitReason.COMMIT, "the final checkpoint")
FOR_DISK = Wait(WaitReason.DEPENDENCY, "what it writes to disk")
FOR_CONSUMER = Wait(WaitReason.CONSUMER, "the reader of its output")


class WaitWords:
    """The waits of one driver, by the feeds that have to speak or the outlet that has to be read."""

    def __init__(self, feeds: Sequence[Feed], outlets: Sequence[Outlet]) -> None:
        self._feeds = feeds
        self._channels = [channel for outlet in outlets for channel in outlet.channels]
        self._known: dict[tuple[WaitReason, tuple[int, ...]], Wait] = {}

    def for_output(self) -> Wait:
        """Credit of the first channel that is full."""
        full = next((number for number, channel in enumerate(self._channels) if not channel.ready), 0)
        key = (WaitReason.OUTPUT, (full,))
        if key not in self._known:
            self._known[key] = Wait(WaitReason.OUTPUT, str(self._channels[full].channel))
        return self._known[key]

    def explain(self, busy: str, refused: bool, starved: Sequence[int], *, aligning: bool, ended: bool) -> Wait:
        """Why no element was taken. ``busy``: what is under way elsewhere; ``refused``: there is a batch that nobody
        wants; ``starved``: the feeds that have nothing; ``aligning``: some feeds wait for barriers on others."""
        if busy:
            return Wait(WaitReason.DEPENDENCY, busy)
        if refused and not starved:
            return FOR_CONSUMER
        if aligning:
            return self._for(WaitReason.ALIGNMENT, starved, "its other inputs")
        return FOR_COMMIT if ended else self._for(WaitReason.INPUT, starved, "its other port")

    def _for(self, reason: WaitReason, feeds: Sequence[int], otherwise: str) -> Wait:
        key = (reason, tuple(feeds))
        if key not in self._known:
            named = [self._feeds[feed] for feed in feeds]
            whom = [str(getattr(feed, "channel", None) or getattr(feed, "operator", "a feed")) for feed in named]
            self._known[key] = Wait(reason, ", ".join(whom) or otherwise)
        return self._known[key]
