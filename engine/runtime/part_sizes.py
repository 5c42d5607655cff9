"""How many rows a user's sink is given in a call, by what its calls have taken. Pure.

A checkpoint waits for the call that a task is at, so a call should not take long; and a call has a price of its own (a
request, a transaction), so it should have many rows. Rules:

1. A part has as many rows as take ``PART_SECONDS``, without the price of the call: of a sink that takes the same time
   for any number of rows batches are never divided for long.
2. The time for a row and the price of a call are the line through what parts of several sizes took; newer ones count
   more. While all have the same size, the price is what it was.
3. The first part is small, and the next one at most ``STEP`` times as large or small: nothing is known yet, or it was
   something else that took so long. The first call (which connects, say) counts for the second part alone. A batch
   without rows says nothing.
"""

from __future__ import annotations

PART_SECONDS = 0.1
"""Above what a call of most services costs; a checkpoint that waits for it is still soon."""
FIRST_ROWS = 1_024
STEP = 4
MOST_ROWS = 1 << 30
"""More than any batch has."""
KEPT = 0.8
"""What a call counts for once another one is known."""
ALIKE = 0.05
"""Sizes that differ by less than this part of their mean say nothing of the price of a call."""


class PartSizes:
    """``rows``: of the next part. See the module's rules."""

    def __init__(self) -> None:
        self.rows = FIRST_ROWS
        #: seconds of a call beside what its rows take
        self._price = 0.0
        self._is_first = True
        #: of the calls so far, each by its weight: that, rows, seconds, rows², rows × seconds
        self._sums: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0)

    def took(self, rows: int, seconds: float) -> None:
        """A call with so many rows has taken so long."""
        if not rows:
            return
        for_a_row = seconds / rows
        if not self._is_first:
            new = (1.0, rows, seconds, rows * rows, rows * seconds)
            self._sums = tuple(KEPT * old + each for old, each in zip(self._sums, new, strict=True))
            for_a_row = self._for_a_row()
        self._is_first = False
        wanted = PART_SECONDS / for_a_row if for_a_row > PART_SECONDS / MOST_ROWS else MOST_ROWS
        self.rows = int(min(max(wanted, self.rows / STEP, 1), self.rows * STEP, MOST_ROWS))

    def _for_a_row(self) -> float:
        weight, rows, seconds, squares, products = self._sums
        mean, took = rows / weight, seconds / weight
        spread = squares / weight - mean * mean
        if spread > (ALIKE * mean) ** 2:
            slope = max((products / weight - mean * took) / spread, 0.0)
            self._price = max(took - slope * mean, 0.0)
        self._price = min(self._price, took)
        return (took - self._price) / mean
