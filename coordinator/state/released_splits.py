"""Which entries of the log of split sets are known, and which of them the tasks may have. Pure.

Rules:

1. Entries are known without gaps, from the newest completed checkpoint on. They are *released* in order; every source
   task gets what is released, and no more.
2. A checkpoint has its boundary between two windows: behind the last task barrier that is released, and before every
   set that is not. So it starts only while no set of an *open* window is released, nothing is released while sources
   are asked for their round, and a barrier of a checkpoint says how much a source must have got (``assigned``).
3. The sets of an open window are therefore released only when every window before it is covered by a completed
   checkpoint, and none is wanted: nobody who waits for a window then waits for what the caller has yet to say.
4. Closed windows pipeline: so many may be released beyond the newest completed checkpoint (``WINDOWS_AHEAD``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..model.split_sets import NoMoreSets, SetAdded, SetPosition, SplitEntry, WindowEnded, following

WINDOWS_AHEAD = 4
"""Windows released beyond the newest completed checkpoint: enough to keep all stages busy; a checkpoint that starts
covers them all, so more would only make the first of them wait."""


class ReleasedSplits:
    """See the module's rules."""

    def __init__(self) -> None:
        #: The log is being read, or has been.
        self.begun = False
        #: The place behind the newest completed checkpoint: nothing before it is needed any more.
        self.covered = SetPosition()
        #: The entries from there on, as far as they are known.
        self._entries: deque[SplitEntry] = deque()
        #: The place behind the last entry that is known, and behind the last barrier that is released.
        self.known = SetPosition()
        self.boundary = SetPosition()
        #: How many entries are released, those before ``covered`` included.
        self.released = 0
        #: How many are in the log, as somebody said: maybe while it was read, and its end had been passed.
        self._said = 0

    def begin(self, covered: SetPosition) -> None:
        """The job goes on from a checkpoint that covers this much."""
        self.begun = True
        self.covered = self.known = self.boundary = covered
        self.released = covered.number

    def note(self, entries: Iterable[SplitEntry]) -> bool:
        """Somebody says that these are in the log. False: some of which that was ever said are not known."""
        for entry in entries:
            self._said = max(self._said, entry.at.number + 1)
            if entry.at.number == self.known.number:
                self._entries.append(entry)
                self.known = following(entry)
        return self._said <= self.known.number

    @property
    def ended(self) -> bool:
        """Whether nothing more will be added."""
        return bool(self._entries) and isinstance(self._entries[-1], NoMoreSets)

    @property
    def is_between_windows(self) -> bool:
        """Whether no set of an open window is released."""
        return all(isinstance(entry, NoMoreSets) for entry in self.since(self.boundary.number))

    def since(self, number: int) -> tuple[SplitEntry, ...]:
        """The released entries from that number on."""
        first = self._first
        return tuple(self._entries[at - first] for at in range(max(number, first), self.released))

    @property
    def _first(self) -> int:
        return self.known.number - len(self._entries)

    def release(self, *, whole_windows: bool) -> tuple[WindowEnded, ...]:
        """Release what may go, the sets of an open window only if not ``whole_windows``; the barriers among it."""
        barriers: list[WindowEnded] = []
        limit = self._limit(whole_windows)
        if limit == self.released and not self.is_between_windows:
            limit = self._limit(False)  # the open window is on its way already
        while self.released < limit:
            entry = self._entries[self.released - self._first]
            self.released += 1
            if isinstance(entry, WindowEnded):
                barriers.append(entry)
                self.boundary = following(entry)
        return tuple(barriers)

    def _limit(self, whole_windows: bool) -> int:
        """Behind the last entry that may be released."""
        limit = self.released
        for at in range(self.released, self.known.number):
            entry = self._entries[at - self._first]
            if entry.at.windows - self.covered.windows >= WINDOWS_AHEAD and not isinstance(entry, NoMoreSets):
                break
            if not (whole_windows and isinstance(entry, SetAdded)):
                limit = at + 1
        return limit

    def cover(self, position: SetPosition) -> range:
        """A completed checkpoint covers this much; the numbers of the entries that nobody needs any more for it."""
        before = self._first
        self.covered = max(position, self.covered, key=lambda each: each.number)
        while self._entries and self._first < min(self.covered.number, self.known.number):
            self._entries.popleft()
        return range(before, self._first)

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        numbers = [entry.at.number for entry in self._entries]
        assert numbers == list(range(self._first, self.known.number)), f"entries with gaps: {numbers}"
        assert self.covered.number <= self.released <= self.known.number, "released before it is known, or covered"
        assert self.covered.number <= self.boundary.number <= self.released, "the boundary is not released"
        assert self.boundary.windows - self.covered.windows <= WINDOWS_AHEAD, "too many windows are released"
