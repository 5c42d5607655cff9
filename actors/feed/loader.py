"""``Loader``: a reader as frameworks take it that have a loop of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol


class Stateful(Protocol):
    """What a loader needs of a reader."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Loader:
    """What Lightning and Accelerate take for a data loader: epochs of torch batches, and a state. It has no length, so
    that a framework that looks one batch ahead does so always. Made by ``Reader.loader``."""

    def __init__(self, reader: Stateful, batches: Callable[[], Iterator[Any]]) -> None:
        self.reader = reader
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        """The batches from here to the end of the epoch."""
        return self._batches()

    def state_dict(self) -> dict[str, Any]:
        """The place that the model has come to, the same in every rank."""
        return self.reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the place of a saved model."""
        self.reader.load_state_dict(state)
