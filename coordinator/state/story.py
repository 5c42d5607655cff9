"""The last events and what was ordered because of them: the text that goes with an error of ours."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..model.commands import Command
from ..model.events import Event, LogRead

LENGTH = 40
"""Pairs kept: a checkpoint of a small job, from its trigger on."""


class Story:
    """The last ``LENGTH`` events with their commands."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[Event, tuple[Command, ...]]] = deque(maxlen=LENGTH)

    def add(self, event: Event, commands: Sequence[Command]) -> None:
        self._pairs.append((event, tuple(commands)))

    def tell(self, word: str = "") -> str:
        """One line per event and per command; only pairs that mention ``word``."""
        lines: list[str] = []
        for event, commands in self._pairs:
            said = [_shorten(event), *(f"    → {_shorten(command)}" for command in commands)]
            if any(word in line for line in said):
                lines += said
        return "\n".join(lines)


def _shorten(message: Event | Command) -> str:
    text = f"LogRead({len(message.entries)} entries)" if isinstance(message, LogRead) else str(message)
    return text if len(text) <= 300 else f"{text[:300]}…"
