"""What ``stream.feed`` is asked for about its batches, and the operators that this becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.errors import FlowError
from ..feed.measures import Given
from ..operators import Batches, TooLong

TOKENS = "tokens"


@dataclass(frozen=True)
class Buckets:
    """Rows of one bucket are in a batch: those below the first boundary, and so on. ``sizes``: rows of a batch of
    each."""

    by: Given | None
    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class BatchRules:
    """The arguments of ``Stream.feed``."""

    batch_size: int | None
    tokens: int | None
    length: tuple[str, ...]
    cost: Given | None
    too_long: Literal["raise", "truncate", "drop", "split"]
    window: int | None
    padded: bool
    buckets: Buckets
    balance: Given | None
    seed: int

    def check(self, name: str) -> int:
        """What a batch may have. Raises FlowError unless that is said once, and nothing that needs another argument."""
        asked = [each for each in (self.batch_size, self.tokens, self.buckets.sizes or None) if each is not None]
        if len(asked) != 1:
            raise FlowError(
                "a feed without the size of its batches" if not asked else "a feed with several sizes of its batches",
                "give one of batch_size=, tokens= and batch_sizes=",
                name,
            )
        needs_tokens = {"length": self.length, "cost": self.cost, "padded": self.padded, "window": self.window}
        needs_tokens["too_long"] = self.too_long != "raise"
        wrong = [key for key, value in needs_tokens.items() if value not in (None, False, ())]
        if self.tokens is None and wrong:
            raise FlowError(f"{', '.join(wrong)} in a feed of batches of rows", "say what a batch has: tokens=", name)
        if self.length and self.cost is not None:
            raise FlowError("length and cost of rows", "give one of them", name)
        if self.batch_size is not None and self.buckets.by is not None:
            raise FlowError("buckets of one batch_size", "give batch_sizes=, one for each bucket, or tokens=", name)
        if self.window is not None and self.window < 1:
            raise FlowError(f"a window of {self.window} rows", "give a number from 1 on", name)
        return max(self.buckets.sizes, default=0) or self.batch_size or self.tokens or 0

    @property
    def are_plain(self) -> bool:
        """Whether batches are so many rows, and ranks get equally many."""
        return self.batch_size is not None and self.balance is None and not self.buckets.boundaries

    @property
    def _cost(self) -> Given | None:
        if self.tokens is None:
            return None
        return self.cost if self.cost is not None else self.length[0] if self.length else TOKENS

    def fitting(self) -> TooLong | None:
        """What makes rows fit, if they are to be made."""
        cost = self._cost
        if self.too_long == "raise" or self.tokens is None or cost is None:
            return None
        return TooLong(self.tokens, self.too_long, cost, self.length or (() if self.cost is not None else (TOKENS,)))

    def cutting(self) -> Batches:
        """What cuts batches."""
        budgets = self.buckets.sizes or (self.tokens or self.batch_size or 0,) * (len(self.buckets.boundaries) + 1)
        own = budgets, self._cost, self.padded, self.window or 0, self.seed
        return Batches(*own, self.buckets.by, self.buckets.boundaries)
