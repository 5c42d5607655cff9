"""What is recorded of a source's files when a job begins, and what speaks against a file found later. Pure.

Rules:

1. A file is known by its id (its path relative to what the user named). While a job runs it is the recorded one if it
   has the recorded size, and the recorded time of change or content; when a job goes on, content is compared anyway.
2. Of a large source's files only the ends are digested. Where the time is another one and size and ends are the same,
   nobody knows whether the rest is: the file is refused, and the user is told how to vouch for it.
3. Not noticed: a large file that is replaced by another one of the same size, time, beginning and end; and while a job
   runs any file that is replaced by another one of the same size and time.
4. Where the store tells an ETag of the listed object, that alone decides: another one is another object, even if time
   and size are the same, and the same one is the recorded object, whenever it was written.
5. Files that came later do not belong to the job unless it takes them in; they then stand behind all others.
"""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

NEW_FILES = "a source must not change while a job reads it: write new data to new files"
"""What to do about a file that is another one now."""


class Content(Enum):
    """Which bytes of a file are digested."""

    WHOLE = "whole"
    ENDS = "ends"

    def told(self, digest: str) -> str:
        """The digest as it is recorded."""
        return f"{self.value}:{digest}"


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file as it was recorded. ``modified``: nanoseconds since 1970, 0 if unknown; ``content``: "" if unknown;
    ``added``: it came after the job had begun; ``version``: an object's ETag, or ""."""

    id: str
    size: int
    modified: int = 0
    content: str = ""
    added: bool = False
    version: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a file is not taken for the recorded one. ``vouch``: the time that would settle it, if the user knows."""

    text: str
    vouch: int = 0

    def remedy(self, path: str) -> str:
        """What to do."""
        if not self.vouch:
            return NEW_FILES
        return f"if it is the same, give it its time again: touch -d {told_time(self.vouch)} {shlex.quote(path)}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A listing beside the recorded one: files that are ``gone``, and files that are ``new``."""

    gone: tuple[InputFile, ...]
    new: tuple[str, ...]


def difference(recorded: Sequence[InputFile], found: Iterable[str]) -> Difference:
    """Compare by id; new ones in the order in which they were found."""
    there, known = set(found := list(found)), {file.id for file in recorded}
    return Difference(
        tuple(file for file in recorded if file.id not in there), tuple(id for id in found if id not in known)
    )


def paths_now(recorded: Sequence[InputFile], found: Sequence[InputFile]) -> tuple[int, ...] | None:
    """For each of several paths that the user named before, which one it is now, if they have only another order; else
    None. A path is known again by the names, sizes and times of its files."""
    before, now = _by_path(recorded), _by_path(found)
    places = tuple(next((there for there, files in now.items() if files == mine), -1) for mine in before.values())
    is_another_order = sorted(places) == list(range(len(now))) and list(places) != sorted(places)
    return places if is_another_order else None


def _by_path(files: Sequence[InputFile]) -> dict[int, list[tuple[str, int, int]]]:
    """The files below each path, which their ids begin with if there are several."""
    found: dict[int, list[tuple[str, int, int]]] = {}
    for file in files:
        position, _, name = file.id.partition("/")
        if position.isdigit():
            found.setdefault(int(position), []).append((name, file.size, file.modified))
    return {position: sorted(each) for position, each in sorted(found.items())}


def reason_against(
    recorded: InputFile, found: InputFile, content_now: Callable[[Content], str], *, thorough: bool = False
) -> Reason | None:
    """Why ``found`` may be another file than the recorded one; None: it is that. ``content_now`` reads its digest.
    ``thorough``: read it even if size and time are the same."""
    if found.size != recorded.size:
        return Reason(f"had {recorded.size} bytes when the job was planned and has {found.size} now")
    if recorded.version and found.version:
        if found.version == recorded.version:
            return None
        when = told_time(found.modified)
        return Reason(f"is another object, of {when}: its ETag was {recorded.version} and is {found.version} now")
    same_time = not recorded.modified or not found.modified or found.modified == recorded.modified
    if same_time and not (thorough and recorded.content):
        return None
    when = "with the same size and time" if same_time else f"written again on {told_time(found.modified)}"
    if not recorded.content:
        return Reason(f"is another one, or was only {when}: what it held before is not recorded", recorded.modified)
    kind = Content(recorded.content.partition(":")[0])
    if content_now(kind) != recorded.content:
        return Reason(f"has other content than when the job was planned, {when}")
    if same_time or kind is Content.WHOLE:
        return None
    text = f"was {when}; size, beginning and end are the same, but whether the rest is, nobody knows"
    return Reason(text, recorded.modified)


def told_time(modified: int) -> str:
    """Nanoseconds since 1970 as a time that people and ``touch`` understand, to the nanosecond."""
    seconds, nanoseconds = divmod(modified, 1_000_000_000)
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
