"""What names a split of a source, and what is said of one that is not read any more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SplitName:
    """A split of a source."""

    source: str
    split: str

    def __str__(self) -> str:
        return f"split {self.split} of {self.source}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A split that is not read any more, and why."""

    name: SplitName
    reason: str

    def __str__(self) -> str:
        return f"{self.name} was skipped: {self.reason}"
