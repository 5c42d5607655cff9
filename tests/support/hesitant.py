"""An operator that changes nothing and holds everybody up: what it is given, it may give on only after a pause.

Put between operators, before sinks and behind sources it makes each of them wait and be waited for at places that a
seed chooses. With :func:`tiny_credit` a channel takes one batch at a time, so that every emit is refused once as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch
from penstock.engine.core.operator import Background, OperatorContext, Output, Stateless
from penstock.engine.core.traits import Emission, Traits
from penstock.engine.exchange.channels import OutputChannel
from penstock.engine.runtime import task_builder


@dataclass(frozen=True)
class Hesitant:
    """Passes its rows on, with pauses drawn from ``seed``."""

    seed: int
    kind: str = "hesitant"
    traits: ClassVar[Traits] = Traits(emission=Emission.PER_ROUND)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningHesitant:
        return RunningHesitant(random.Random(self.seed), context.background)

    def describe(self) -> str:
        return f"by seed {self.seed}"


class RunningHesitant(Stateless):
    """Holds at most one batch, while a pause of up to three turns in the background lasts."""

    def __init__(self, chance: random.Random, background: Background) -> None:
        self._chance, self._background = chance, background
        self._held: Batch | None = None
        self._turns = 0
        self._is_over = False

    @property
    def waits_for(self) -> str:
        return "a pause" if self._held is not None else ""

    def accepts(self, port: int) -> bool:
        return self._held is None

    def process(self, port: int, batch: Batch, out: Output) -> None:
        self._turns = self._chance.choice((0, 0, 1, 3))
        if not self._turns:
            out.emit(batch)
            return
        self._held = batch
        self._wait()

    def poll(self, out: Output) -> bool:
        if not self._is_over:
            return False
        self._is_over, self._turns = False, self._turns - 1
        if self._turns:
            self._wait()
        elif self._held is not None:
            held, self._held = self._held, None
            out.emit(held)
        return True

    def unanswered(self, out: Output) -> list[Batch]:
        return [] if self._held is None else [self._held]

    def _wait(self) -> None:
        self._background(lambda: None, self._end)

    def _end(self, answer: Any) -> None:
        self._is_over = True


class TinyChannel(OutputChannel):
    """A channel with credit for one batch at a time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, credit=1)


@contextmanager
def tiny_credit() -> Iterator[None]:
    """Tasks that are built in the block have tiny channels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_builder, "OutputChannel", TinyChannel)
        yield
