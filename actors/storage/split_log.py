"""The log of split sets of a job in a store: entry ``n`` is the key ``<job>/splits/<n>.json``; rows that are too many
for an entry lie beside it in ``<job>/splits/data/``, one Arrow IPC file a split.

Rules:

1. Whoever feeds the job writes the files of a set first, then its entry, both durably: a set whose entry stands is
   whole. A file whose entry was never written is nobody's; it goes with the folder.
2. The number of an entry decides: of two callers that feed a job at the same moment one is refused, and takes the next.
3. An entry is sealed, and says the digest of every file that it names here; whoever reads the rows compares it.
4. The coordinator deletes entries that no restart goes back to, with their files, but never the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from ...coordinator.model.split_sets import SetAdded, SplitEntry, decode_splits, encode_splits
from ...coordinator.model.store import Store
from ...engine.core.errors import StorageError
from ...engine.files.paths import safe_name
from .damage import FROM_A_COPY, unreadable

_DIGITS = 12


class SplitLog:
    """See the module's rules. OSError of the store passes through."""

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._folder = f"{safe_name(job)}/splits/"

    def key_of(self, number: int) -> str:
        """The key of an entry."""
        return f"{self._folder}{number:0{_DIGITS}d}.json"

    def data_key(self, name: str) -> str:
        """The key of a split's rows, which is its path below the checkpoint folder."""
        return f"{self._folder}data/{name}.arrow"

    def read(self, start: int) -> tuple[list[SplitEntry], int]:
        """The entries from number ``start`` on, and the number of the oldest that there is (if none, ``start``).
        Raises StorageError if one cannot be read."""
        numbers = self._numbers()
        found = [self._entry(number) for number in numbers if number >= start]
        return [entry for entry in found if entry is not None], min(numbers, default=start)

    def last(self) -> SplitEntry | None:
        """The newest entry."""
        numbers = self._numbers()
        return self._entry(numbers[-1]) if numbers else None

    def create(self, entry: SplitEntry) -> bool:
        """Write the entry unless its number is taken."""
        key, data = self.key_of(entry.at.number), encode_splits(entry)
        return self._store.create(key, data) or self._store.read(key) == data

    def create_data(self, name: str, data: bytes) -> str:
        """Write a split's rows; where they are."""
        key = self.data_key(name)
        if not self._store.create(key, data):
            raise StorageError(f"{key} is there already", "keep other programs out of the checkpoint folder")
        return key

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete entries and their files, oldest first."""
        for number in sorted(numbers):
            with suppress(StorageError):
                entry = self._entry(number)
                for refs in entry.splits.values() if isinstance(entry, SetAdded) else ():
                    for ref in refs:
                        if ref.path.startswith(self._folder):
                            self._store.delete(ref.path)
            self._store.delete(self.key_of(number))

    def _numbers(self) -> list[int]:
        names = (key.removeprefix(self._folder) for key in self._store.list(self._folder))
        return sorted(int(name[:_DIGITS]) for name in names if "/" not in name and name[:_DIGITS].isdigit())

    def _entry(self, number: int) -> SplitEntry | None:
        data = self._store.read(self.key_of(number))
        try:
            return None if data is None else decode_splits(data)
        except msgspec.MsgspecError as error:
            raise unreadable(f"{self.key_of(number)} in the checkpoint folder", error, FROM_A_COPY) from error
