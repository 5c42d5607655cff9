"""How long an alignment took: the figures that a task reports with its snapshot. Pure.

Rules:

1. The start delay is the age of the first barrier counted for a checkpoint when it was counted.
2. An alignment lasts from the first channel counted to the last one; with a single channel it takes no time. Bytes
   read in that span, from whichever channel, are the processed bytes.
3. An aborted alignment counts as none: duration and bytes go back to 0, the start delay stays.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AlignmentTimes:
    """The latest alignment, in the unit of its owner's clock."""

    #: age of the first barrier of the latest checkpoint when it came, never negative
    start_delay: float = 0
    #: of the latest alignment that has ended; 0 while one is under way
    duration: float = 0
    #: bytes read during the latest alignment, so far if it is under way
    processed_bytes: int = 0
    #: when the alignment under way began; None: none is
    began: float | None = None

    def begin(self, created: float, now: float) -> None:
        """The first channel was counted."""
        self.reset()
        self.start_delay = max(0, now - created)
        self.began = now

    def end(self, now: float) -> None:
        """The last channel was counted. Without effect when no alignment is under way."""
        if self.began is not None:
            self.duration, self.began = now - self.began, None

    def reset(self) -> None:
        """The alignment was given up."""
        self.duration, self.processed_bytes, self.began = 0, 0, None

    def read(self, size: int) -> None:
        """Bytes were read."""
        if self.began is not None:
            self.processed_bytes += size

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        assert self.start_delay >= 0, "a barrier comes after its creation"
        assert self.duration >= 0, "time does not go back"
        assert self.began is None or self.duration == 0, "an alignment under way has no duration yet"
