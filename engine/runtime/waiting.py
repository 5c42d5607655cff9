"""The sentences in which a driver says for what and whom it waits. Built once each: a driver may wait often."""

from __future__ import annotations

from collections.abc import Sequence

from ..exchange.edges import InputChannel, Outlet
from ..exchange.gate import Feed
from ..scheduler.states import Wait, WaitReason
from .pacing import PacedOperator

FOR_COMMIT = Wait(WaitReason.COMMIT, "the final checkpoint")
FOR_DISK = Wait(WaitReason.DEPENDENCY, "what it writes to disk")
FOR_CONSUMER = Wait(WaitReason.CONSUMER, "the reader of its output")


class WaitWords:
    """The waits of one driver, by the feeds that have to speak or the outlet that has to be read."""

    def __init__(self, feeds: Sequence[Feed], outlets: Sequence[Outlet], paced: PacedOperator | None = None) -> None:
        self._feeds = feeds
        self._paced = paced
        self._channels = [channel for outlet in outlets for channel in outlet.channels]
        self._known: dict[tuple[WaitReason, tuple[int, ...]], Wait] = {}

    def for_output(self) -> Wait:
        """Credit of the first channel that is full."""
        return self._of_channel(next((number for number, each in enumerate(self._channels) if not each.ready), 0))

    def _of_channel(self, number: int) -> Wait:
        key = (WaitReason.OUTPUT, (number,))
        if key not in self._known:
            channel = self._channels[number].channel
            self._known[key] = Wait(WaitReason.OUTPUT, str(channel), (channel.consumer,))
        return self._known[key]

    def for_consumer(self) -> Wait:
        """Whoever reads what leaves the driver; of a feed, the ranks."""
        whom = "" if self._paced is None else self._paced.waits_for_whom
        return Wait(WaitReason.CONSUMER, whom) if whom else FOR_CONSUMER

    def explain(self, busy: str, refused: bool, starved: Sequence[int], *, aligning: bool, ended: bool) -> Wait:
        """Why no element was taken. ``busy``: what is under way elsewhere; ``refused``: there is a batch that nobody
        wants; ``starved``: the feeds that have nothing; ``aligning``: some feeds wait for barriers on others."""
        if busy:
            return Wait(WaitReason.DEPENDENCY, busy)
        if refused and not starved:
            return self.for_consumer()
        if aligning:
            return self._for(WaitReason.ALIGNMENT, starved, "its other inputs")
        if self._paced is not None and self._paced.waits_for_whom:
            return self.for_consumer()
        held = next((number for number, channel in enumerate(self._channels) if channel.held), None)
        if held is not None:
            return self._of_channel(held)
        return FOR_COMMIT if ended else self._for(WaitReason.INPUT, starved, "its other port")

    def _for(self, reason: WaitReason, feeds: Sequence[int], otherwise: str) -> Wait:
        named = [self._feeds[feed] for feed in feeds]
        if reason is WaitReason.INPUT and named and all(_paced(feed) for feed in named):
            reason = WaitReason.TIMER
        key = (reason, tuple(feeds))
        if key not in self._known:
            whom = [str(getattr(feed, "channel", None) or getattr(feed, "operator", "a feed")) for feed in named]
            tasks = tuple(dict.fromkeys(feed.channel.producer for feed in named if isinstance(feed, InputChannel)))
            pace = "the pace of " if reason is WaitReason.TIMER else ""
            self._known[key] = Wait(reason, pace + (", ".join(whom) or otherwise), tasks)
        return self._known[key]


def _paced(feed: Feed) -> bool:
    """Whether it is a source that keeps to its rate."""
    return bool(getattr(feed, "due", 0.0) > getattr(feed, "now", 0.0))
