"""The twin of a disk that forgets, in a power cut, what was not synced.

Files and folders below ``root`` are real; the twin watches every ``os.fsync`` of the process and remembers what each
one made durable: the bytes of a file, the names in a folder. Before and after each it keeps a :class:`Moment`, at which
the power may be cut. What a moment leaves is laid out in another folder, where a job can be run again.

Rules (POSIX, and no more than POSIX promises):

1. A file's bytes survive as they were at its last sync; without one, nothing or a part of them may.
2. A name survives if its folder was synced since it came. Otherwise chance decides, for each file or folder by itself:
   it has the names that it had at the last sync, or those that it has now (so a rename is one step).
3. What was removed and not synced may come back.
4. The root itself survives, as what was there before anybody wrote.

``Moment.survivors(chance=None)``: only what is sure. With a random generator: some of what is not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import RLock

Node = tuple[int, int]
Names = dict[str, Node]


@dataclass(frozen=True)
class Moment:
    """What is sure to be on the disk, and what is there for whoever looks."""

    label: str
    root: Node
    sure_names: dict[Node, Names]
    names: dict[Node, Names]
    sure_bytes: dict[Node, bytes]
    bytes: dict[Node, bytes]

    def survivors(self, into: Path, chance: Random | None = None) -> Path:
        """Lay out what the power cut leaves."""
        keeps_old = {node: chance is None or chance.random() < 0.5 for node in self._nodes()}
        self._lay_out(self.root, into, keeps_old, chance)
        return into

    def _nodes(self) -> list[Node]:
        found = {node for names in (*self.sure_names.values(), *self.names.values()) for node in names.values()}
        return sorted(found)

    def _lay_out(self, folder: Node, into: Path, keeps_old: dict[Node, bool], chance: Random | None) -> None:
        into.mkdir()
        sure, now = self.sure_names.get(folder, {}), self.names.get(folder, {})
        # a name that is another file's now is never nobody's in between
        taken = {name: node for name, node in sure.items() if name in now}
        old = {name: node for name, node in sure.items() if keeps_old[node]}
        new = {name: node for name, node in now.items() if not keeps_old[node]}
        for name, node in (taken | old | new).items():
            if node in self.names or node in self.sure_names:
                self._lay_out(node, into / name, keeps_old, chance)
            else:
                (into / name).write_bytes(self._content(node, chance))

    def _content(self, node: Node, chance: Random | None) -> bytes:
        if node in self.sure_bytes or chance is None:
            return self.sure_bytes.get(node, b"")
        data = self.bytes.get(node, b"")
        return data[: chance.randint(0, len(data))]


class ForgetfulDisk:
    """See the module's rules. ``moments``: one before and one after every sync."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.moments: list[Moment] = []
        self._lock = RLock()
        self._sure_names: dict[Node, Names] = {}
        self._sure_bytes: dict[Node, bytes] = {}
        #: descriptors of all that was synced, so that no number is given to another file
        self._held: dict[Node, int] = {}
        self._really_sync = os.fsync

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the process's syncs. What stands below the root is durable before."""
        for folder, _, files in os.walk(self.root):
            self._learn(folder)
            for name in files:
                self._learn(os.path.join(folder, name))
        os.fsync = self._sync
        try:
            yield
        finally:
            os.fsync = self._really_sync
            for descriptor in self._held.values():
                os.close(descriptor)

    def _sync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        with self._lock:
            if not f"{path}/".startswith(f"{self.root}/"):
                return
            self._remember(f"before {path} is synced")
            self._learn(path)
            self._remember(f"after {path} was synced")

    def _learn(self, path: str) -> None:
        node = _node(path)
        if node not in self._held:
            self._held[node] = os.open(path, os.O_RDONLY)
        if os.path.isdir(path):
            self._sure_names[node] = _names(path)
        else:
            self._sure_bytes[node] = Path(path).read_bytes()

    def _remember(self, label: str) -> None:
        names: dict[Node, Names] = {}
        data: dict[Node, bytes] = {}
        for folder, _, files in os.walk(self.root):
            names[_node(folder)] = _names(folder)
            for name in files:
                path = Path(folder, name)
                try:
                    if _node(path) not in self._sure_bytes:
                        data[_node(path)] = path.read_bytes()
                except FileNotFoundError:
                    continue
        sure_names = {node: dict(each) for node, each in self._sure_names.items()}
        moment = Moment(label, _node(self.root), sure_names, names, dict(self._sure_bytes), data)
        self.moments.append(moment)


def _node(path: str | Path) -> Node:
    found = os.stat(path)
    assert stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return found.st_dev, found.st_ino


def _names(folder: str) -> Names:
    names: Names = {}
    for name in os.listdir(folder):
        try:
            names[name] = _node(os.path.join(folder, name))
        except FileNotFoundError:
            continue
    return names
