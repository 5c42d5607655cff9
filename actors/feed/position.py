"""Positions in a feed, as they are saved with a model: what they are of, and which of them can be resumed.

Rules:

1. A position names what it is of: the feed, its flow, its data, the grid of its batches, and how a batch is divided
   among ranks (``layout``). It is refused where one of them differs: it would be another position, or none. The number
   of ``ranks`` is written down too, and may be another one. Of ``epochs`` it says whether they are several, not how
   many: there may be more.
2. Step and epoch belong together. Where the number of batches is known before they are read, a step after the end and
   an epoch that is not that of the step are refused at once; else when the first batch comes, or the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...engine.core.errors import ConfigurationError

VERSION = 2
"""Of the form. 2: flow, data, grid and layout."""
_REMEDY = "load the state that was saved with this feed, over the same data, or begin without one"


@dataclass(frozen=True, slots=True)
class FeedIdentity:
    """A feed as a whole. ``fingerprint``: of flow and data; ``batches``: of an epoch, if known."""

    feed: str
    fingerprint: str
    batch_size: int
    drop_last: bool
    epochs: int
    batches: int | None
    layout: str

    def identity(self) -> dict[str, Any]:
        """The part of a position that names what it is of."""
        flow, _, data = self.fingerprint.partition("-")
        return {
            "version": VERSION,
            "feed": self.feed,
            "flow": flow,
            "data": data,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "epochs": "several" if self.epochs > 1 else "one",
            "layout": self.layout,
        }

    def check_identity(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigurationError if the state is that of something else."""
        version = state.get("version")
        if version != VERSION:
            raise ConfigurationError(
                f"the state is of version {version!r}, not {VERSION}",
                "load a state that this release's state_dict() gave",
            )
        if (state.get("feed"), state.get("batch_size")) != (self.feed, self.batch_size):
            raise ConfigurationError(
                f"the state is that of feed {state.get('feed')!r} with batches of {state.get('batch_size')}, not of "
                f"{self.feed!r} with batches of {self.batch_size}",
                "load the state that was saved with this feed; what a global batch may have must not change",
            )
        own = self.identity()
        differ = [name for name in own if state.get(name) != own[name]]
        if differ == ["data"]:
            raise ConfigurationError(f"the state was saved with feed {self.feed!r} over other data", _REMEDY)
        if differ:
            raise ConfigurationError(
                f"the state was saved with another flow that ends in a feed {self.feed!r}: other {', '.join(differ)}",
                _REMEDY,
            )

    def check_position(self, step: int, epoch: int) -> None:
        """Raise ConfigurationError if there is no such position, as far as is known."""
        each = self.batches
        if each is not None and step > each * self.epochs:
            raise ConfigurationError(
                f"the state names step {step}, but feed {self.feed!r} ends at step {each * self.epochs}", _REMEDY
            )
        if self.epochs == 1 or step == 0:
            expected: int | None = 0
        else:
            expected = step // each if each else None
        if (expected is not None and epoch != expected) or epoch > self.epochs:
            raise self.other_epoch(step, epoch, expected)

    def check_epoch(self, step: int, epoch: int, found: int) -> None:
        """Raise ConfigurationError if the batch at this step is in another epoch."""
        if epoch != found:
            raise self.other_epoch(step, epoch, found)

    def check_end(self, step: int, epoch: int) -> None:
        """Raise ConfigurationError if the feed, which ends at this step, does so in another epoch."""
        self.check_epoch(step, epoch, self.epochs if step and self.epochs > 1 else 0)

    def other_epoch(self, step: int, epoch: int, expected: int | None) -> ConfigurationError:
        """The error for an epoch that does not fit its step."""
        true = f"which is in epoch {expected}" if expected is not None else f"of a feed of {self.epochs} epochs"
        return ConfigurationError(f"the state names epoch {epoch} and step {step}, {true}", _REMEDY)
