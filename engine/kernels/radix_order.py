"""The order of rows by numbers: a radix sort over the bits that the numbers really have.

Rules:

1. The sort is stable. Parts are numbers with the bits that they need; the first part counts most.
2. The leading ``LEAD_BITS`` of all parts together are sorted first, ``DIGIT_BITS`` at a time from the last digit on: of
   numbers of 16 bits numpy makes a radix sort, which costs a tenth of a sort of 64 bits by comparison.
3. Only rows whose leading bits are equal are looked at again, run by run, by the bits that remain. Each time the number
   of a row's run takes the place of the bits that are done with, and needs fewer of them; so it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from .native import kernels_for
from .pieces import Positions

Words: TypeAlias = npt.NDArray[np.uint64]

LEAD_BITS = 48
DIGIT_BITS = 16
_DIGIT = np.uint64(2**DIGIT_BITS - 1)
_MOST_ROWS = 2**31
"""More are not sorted by the compiled kernel."""


@dataclass(frozen=True, slots=True)
class Part:
    """Numbers below ``2 ** bits``, one for each row."""

    values: Words
    bits: int

    @classmethod
    def of(cls, numbers: npt.NDArray[Any], *, descending: bool = False) -> Self:
        """Any integers, or booleans, counted from the smallest one; or from the largest one downwards."""
        codes = numbers.astype(np.int64, copy=False)
        if not len(codes):
            return cls(codes.view(np.uint64), 0)
        low, high = int(codes.min()), int(codes.max())
        values = codes.view(np.uint64)
        # modulo 2 ** 64, so that the widest range fits as well
        distance = np.uint64(high % 2**64) - values if descending else values - np.uint64(low % 2**64)
        return cls(distance, (high - low).bit_length())

    @property
    def ascends(self) -> bool:
        """Whether each number is larger than the one before."""
        return bool((self.values[1:] > self.values[:-1]).all())

    def first(self, bits: int) -> Words:
        """The leading bits."""
        return self.values if bits == self.bits else self.values >> np.uint64(self.bits - bits)

    def behind(self, bits: int) -> Part:
        """What follows the leading bits."""
        left = self.bits - bits
        return Part(self.values & np.uint64(2**left - 1), left) if bits else self

    def take(self, rows: Positions) -> Part:
        """Some of the rows."""
        return Part(self.values[rows], self.bits)


def radix_order(parts: Sequence[Part], rows: int) -> Positions:
    """The rows in the order of the parts."""
    lead, rest = _split([part for part in parts if part.bits], rows)
    order, leading = _sorted(lead)
    if not rest:
        return order
    is_tied = leading[1:] == leading[:-1]
    places = np.flatnonzero(np.append(is_tied, False) | np.append(False, is_tied))
    if len(places):
        tied, leading = order[places], leading[places]
        runs = Part.of(np.append(0, np.cumsum(leading[1:] != leading[:-1])))
        order[places] = tied[radix_order([runs, *(part.take(tied) for part in rest)], len(tied))]
    return order


def _split(parts: Sequence[Part], rows: int) -> tuple[Part, list[Part]]:
    """The leading bits of all parts as one, and what follows them."""
    lead, rest = Part(np.zeros(rows, dtype=np.uint64), 0), []
    for part in parts:
        bits = min(LEAD_BITS - lead.bits, part.bits)
        if bits:
            values = part.first(bits)
            lead = Part((lead.values << np.uint64(bits)) | values if lead.bits else values, lead.bits + bits)
        if bits < part.bits:
            rest.append(part.behind(bits))
    return lead, rest


def _sorted(part: Part) -> tuple[Positions, Words]:
    """The rows in the order of one part, digit by digit, and the numbers in this order."""
    if bool((part.values[1:] >= part.values[:-1]).all()):
        return np.arange(len(part.values)), part.values
    kernels = kernels_for(len(part.values))
    if kernels is not None and len(part.values) < _MOST_ROWS:
        return kernels.radix_order(np.ascontiguousarray(part.values), part.bits)
    order = np.argsort((part.values & _DIGIT).astype(np.uint16), kind="stable")
    for shift in range(DIGIT_BITS, part.bits, DIGIT_BITS):
        digits = (part.values >> np.uint64(shift)).astype(np.uint16)[order]
        order = order[np.argsort(digits, kind="stable")]
    return order, part.values[order]
