"""The methods of a stream that make training sequences of it. All of them work on the stream as it is consumed:
gathered into one subtask, in the order of its tags. So what they do is a function of positions in that stream, whatever
the parallelism; and on one that is gathered already they cost no exchange."""

from __future__ import annotations

from typing import Self

from ..core.arguments import checked
from ..operators import Pack, Shuffle
from ..operators.sequence.pack import Remainder
from .relations import FLUSH, AtBarrier, Relation


class Sequences(Relation):
    """The methods; what they are built on is the stream's."""

    @checked()
    def shuffle(
        self, window: int, *, seed: int = 0, epoch: int = 0, at_barrier: AtBarrier = FLUSH, name: str | None = None
    ) -> Self:
        """The rows of every ``window`` consecutive rows in a random order, which depends on ``seed``, ``epoch`` and the
        position in the stream alone. The open window is part of a checkpoint: a job that goes on gives the same order.

        A window must fit into memory. For a shuffle of everything sort by a hash, or let Spark do it.
        """
        return self._gathered()._then(Shuffle(window, seed, epoch), name, at_barrier)

    @checked()
    def pack(
        self,
        length: int,
        *,
        tokens: str = "tokens",
        separator: int | None = None,
        pad: int = 0,
        remainder: Remainder = "pad",
        segments: str | None = "segment_ids",
        positions: str | None = "position_ids",
        documents: str | None = None,
        at_barrier: AtBarrier = FLUSH,
        name: str | None = None,
    ) -> Self:
        """The sequences of the list column ``tokens``, in order, as rows of ``length`` tokens: lists of one size, which
        become a tensor as they are. A sequence that does not fit goes on in the next row; ``separator`` is put behind
        each one. What is left at the end is padded with ``pad``, or dropped (``remainder="drop"``).

        ``segments``, ``positions``, ``documents``: names of the columns that tell the sequences of a row apart (from 1;
        0 is padding), where each token stands in its part of a sequence (from 0), and which sequence of the stream it
        is of (from 0; −1 is padding). None leaves a column out. Other columns of the stream are left out.
        """
        config = Pack(length, tokens, separator, pad, remainder, segments, positions, documents)
        return self._gathered()._then(config, name, at_barrier)
