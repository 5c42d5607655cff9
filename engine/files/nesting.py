"""Folders of one job that lie within each other: refused when it is planned.

Rules:

1. A sink's folder lies neither within another sink's nor around it: a reader of the outer one would get the rows of
   both, and whoever cleans up one would touch the other.
2. What a sink writes is not what a source or an index of the same flow reads, nor around it, nor within it: the job
   would read its own rows, or find its input changed, or gone where it overwrites. Files that are read through links,
   their own or a folder's, are where the links lead.
3. A sink does not write into the checkpoint folder, nor is that, unless it is hidden (``_state``), among the data that
   a sink writes or a source reads.
4. Nor is a savepoint, which may be asked for at any time, among such data, or among what the job keeps itself.
5. All addresses of one place in a bucket are that place: whoever they say asks there, and however they spell it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ..core.errors import ConfigurationError
from .object_store import bucket_of
from .paths import is_hidden

APART = "give each a folder of its own, beside the others"


def check_nesting(sinks: Iterable[tuple[str, str]], sources: Iterable[tuple[str, str]], checkpoints: str) -> None:
    """``sinks``, ``sources``: ids and their absolute places. Raises ConfigurationError that names the sink."""
    written = [(id, _real(place)) for id, place in sinks if place]
    read = [(id, _real(place)) for id, place in sources if place]
    state = _real(checkpoints) if checkpoints else ""
    for number, (id, place) in enumerate(written):
        for other, theirs in written[:number]:
            if place != theirs and (_within(place, theirs) or _within(theirs, place)):
                raise ConfigurationError(f"writes to {place}, and {other} to {theirs}: one within the other", APART, id)
        for other, theirs in read:
            if _within(place, theirs) or _within(theirs, place):
                raise ConfigurationError(f"writes to {place}, and {other} reads {theirs}", APART, id)
        if state and _within(place, state):
            raise ConfigurationError(f"writes to {place}, within the checkpoint folder {state}", APART, id)
    for id, place in (*written, *read):
        if state and _is_among(state, place):
            raise ConfigurationError(f"the checkpoint folder {state} lies among its data, in {place}", APART, id)


def linked(files: Iterable[str]) -> Iterator[str]:
    """Where local files of a source really are, if not where they are listed."""
    folders: dict[str, str] = {}
    for file in files:
        folder, name = os.path.split(file)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        if os.path.islink(file):
            yield os.path.realpath(file)
        elif folders[folder] != folder:
            yield os.path.join(folders[folder], name)


def check_savepoint(place: str, data: Iterable[tuple[str, str]], job: str) -> None:
    """Rule 4. ``data``: ids and places of sinks and sources; ``job``: the job's folder. Raises ConfigurationError."""
    target, own = _real(place), _real(job)
    for id, at in ((id, _real(at)) for id, at in data if at):
        if _is_among(target, at):
            raise ConfigurationError(f"a savepoint in {target} would lie among the data of {id}, in {at}", APART)
    if target == os.path.dirname(own) or (_within(target, own) and not _within(target, f"{own}/savepoints")):
        raise ConfigurationError(f"a savepoint in {target} would lie among the checkpoints of the job", APART)


def _real(place: str) -> str:
    """The one name of a place (rule 5)."""
    found = bucket_of(place)
    if found is not None:
        return f"{found[0].address}/{found[1]}".rstrip("/")
    return place.rstrip("/") if "://" in place else os.path.realpath(place)


def _is_among(place: str, data: str) -> bool:
    """Whether who reads the data would find it there."""
    return place == data or (_within(place, data) and not is_hidden(os.path.relpath(place, data)))


def _within(inner: str, outer: str) -> bool:
    return f"{inner}/".startswith(f"{outer.rstrip('/')}/")
