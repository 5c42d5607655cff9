"""``penstock verify-order A B``: the first global batch in which two runs of a feed differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..actors.storage.digest_files import DigestFiles, recorded_feeds
from ..engine.core.errors import ConfigurationError
from ..engine.feed.digests import Recorded, compare


@dataclass(frozen=True, slots=True)
class OrderVerdict:
    """What the comparison says: ``lines`` for people; ``same``: no batch that both runs know differs."""

    same: bool
    lines: tuple[str, ...]
    first: int | None = None


def verify_order(one: str | Path, two: str | Path, *, job: str | None = None, feed: str | None = None) -> OrderVerdict:
    """Compare the feeds in two checkpoint folders, batch by batch. ``job``, ``feed``: which, if there are several."""
    mine, other = (_find(folder, job, feed) for folder in (one, two))
    (a, size), (b, other_size) = mine.read(), other.read()
    if size != other_size:
        raise ConfigurationError(
            f"{_batches(size)} cannot be compared with {_batches(other_size)}",
            "run both with one global batch size",
        )
    for folder, recorded in ((one, a), (two, b)):
        if recorded.contradiction is not None:
            return _contradicts(folder, recorded)
    found = compare(a, b)
    alone = [
        f"{count:,} known in {folder} alone" for count, folder in zip(found.only, (one, two), strict=True) if count
    ]
    rest = f" ({'; '.join(alone)})" if alone else ""
    if found.first is not None:
        first = found.first
        rows = f": rows {first * size:,} to {(first + 1) * size - 1:,}" if size else ""
        return OrderVerdict(False, (f"batch {first} is the first one that differs{rows}{rest}",), first)
    if not found.compared:
        return OrderVerdict(False, (f"no batch is known in both{rest}",))
    return OrderVerdict(True, (f"{found.compared:,} {_batches(size)} are equal, in order{rest}",))


def _batches(size: int) -> str:
    return f"batches of {size:,} rows" if size else "batches by cost"


def _contradicts(folder: str | Path, recorded: Recorded) -> OrderVerdict:
    line = f"{folder} contradicts itself: batch {recorded.contradiction} was not the same after a restart"
    return OrderVerdict(False, (line,), recorded.contradiction)


def _find(folder: str | Path, job: str | None, feed: str | None) -> DigestFiles:
    known = recorded_feeds(folder)
    wanted = [(a, b) for a, b in known if job in (None, a) and feed in (None, b)]
    if len(wanted) == 1:
        return DigestFiles(str(folder), *wanted[0])
    names = ", ".join(f"{a}/{b}" for a, b in known) or "none"
    problem = "is not the only one" if wanted else "is not there"
    raise ConfigurationError(
        f"the feed to compare {problem} in {folder}: it has {names}",
        "name a checkpoint folder, and the job and the feed with --job and --feed",
    )
