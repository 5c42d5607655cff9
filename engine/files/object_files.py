"""The objects of a bucket as a file system of pyarrow, so that all who read and write files need not know of them.

Rules:

1. Paths are ``bucket/key``, as pyarrow's own. A folder is there if there is an object below it; nothing makes one.
2. A file that is *pinned* to a version is read under the condition that it still has it: every request asks for that
   (``object_store``, rule 4).
3. Reading forward fetches ahead; reading here and there fetches little more than is asked for. A small object is
   fetched at once, and so is the end of a large one, where footers are.
4. An empty object that ends in ``/``, or has the name of a folder, stands for the folder, as tools make them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs

from .object_store import Bucket, StoredObject, bucket_of

AHEAD_BYTES = 4 * 1024 * 1024
"""Fetched at once where bytes are read one after the other."""
_LEAST_BYTES = 128 * 1024


def object_files(address: str) -> tuple[fs.FileSystem, str] | None:
    """The file system that an address leads to, and the path in it; None if that is no object store."""
    found = bucket_of(address)
    if found is None:
        return None
    bucket, key = found
    return fs.PyFileSystem(ObjectFiles(bucket)), f"{bucket.name}/{key}".rstrip("/")


def files_of(filesystem: fs.FileSystem) -> ObjectFiles | None:
    """What is behind a file system, if that is an object store."""
    handler = getattr(filesystem, "handler", None)
    return handler if isinstance(handler, ObjectFiles) else None


class ObjectFiles(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """What pyarrow asks of a file system. ``pinned``: a path, and the version under which alone it is read; its size is
    known."""

    def __init__(self, bucket: Bucket, pinned: tuple[str, str, int] | None = None) -> None:
        self.bucket = bucket
        self.pinned = pinned

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectFiles) and (self.bucket, self.pinned) == (other.bucket, other.pinned)

    def __hash__(self) -> int:
        return hash((self.bucket, self.pinned))

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectFiles, (self.bucket, self.pinned)

    def pin(self, path: str, version: str, size: int) -> fs.FileSystem:
        """A file system on which the file is read only if it has this version."""
        return fs.PyFileSystem(ObjectFiles(self.bucket, (path, version, size)))

    def key(self, path: str) -> str:
        """The key of a path."""
        bucket, _, key = path.partition("/")
        if bucket != self.bucket.name:
            raise OSError(errno.EINVAL, f"{path} is not in the bucket {self.bucket.name}")
        return key.rstrip("/")

    def listed(self, folder: str) -> list[StoredObject]:
        """All objects below the folder, with paths for keys, sorted."""
        return sorted(self._objects(folder, True)[0], key=lambda found: found.key)

    def found(self, path: str) -> StoredObject | None:
        """The object of this path, with it for its key."""
        key = self.key(path)
        found = self.bucket.head(key) if key else None
        return None if found is None else self._named(found)

    # ------------------------------------------------------------ what pyarrow asks

    def get_type_name(self) -> str:
        return self.bucket.scheme

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        root = selector.base_dir.rstrip("/")
        objects, folders = self._objects(root, selector.recursive)
        if not (objects or folders or selector.allow_not_found) and self._info(root).type != fs.FileType.Directory:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root)
        infos = [fs.FileInfo(folder, fs.FileType.Directory) for folder in folders]
        return infos + [_file_info(each) for each in objects]

    def open_input_file(self, path: str) -> pa.NativeFile:
        version, size = "", None
        if self.pinned is not None and self.pinned[0] == path:
            version, size = self.pinned[1:]
        if not size:  # of an empty object no byte is ever asked for, so it is looked at now
            found = self.found(path)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            version, size = version or found.version, found.size
        return pa.PythonFile(_Reader(self.bucket, self.key(path), size, version), mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        return pa.PythonFile(_Writer(self.bucket, self.key(path)), mode="w")

    def open_append_stream(self, path: str, metadata: object) -> pa.NativeFile:
        raise OSError(errno.ENOTSUP, "objects cannot be appended to", path)

    def copy_file(self, src: str, dest: str) -> None:
        self.bucket.copy(self.key(src), self.key(dest))

    def move(self, src: str, dest: str) -> None:
        self.copy_file(src, dest)
        self.bucket.delete(self.key(src))

    def delete_file(self, path: str) -> None:
        self.bucket.delete(self.key(path))

    def create_dir(self, path: str, recursive: bool) -> None:
        """Rule 1."""

    def delete_dir(self, path: str) -> None:
        self.delete_dir_contents(path, True)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        if not self.key(path):
            self.delete_root_dir_contents()
        keys = [each.key for each in self.bucket.below(self.key(path))]
        if keys:
            self.bucket.delete(*keys)
        elif not missing_dir_ok:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def delete_root_dir_contents(self) -> None:
        raise OSError(errno.EPERM, "a whole bucket is never emptied", self.bucket.name)

    # ------------------------------------------------------------

    def _info(self, path: str) -> fs.FileInfo:
        found, key = self.found(path), self.key(path)
        if found is not None and found.size:
            return _file_info(found)
        if not key or self.bucket.holds(key):
            return fs.FileInfo(path, fs.FileType.Directory)
        return fs.FileInfo(path, fs.FileType.NotFound) if found is None else _file_info(found)

    def _objects(self, folder: str, recursive: bool) -> tuple[list[StoredObject], list[str]]:
        """The objects below a folder, and the folders in it, all with paths."""
        key = self.key(folder)
        if recursive:
            below, folders = list(self.bucket.below(key)), list[str]()
        else:
            below, folders = self.bucket.within(key)
        above = {key, *folders}
        for each in below:
            parent = each.key.rpartition("/")[0]
            while parent and parent not in above:
                above.add(parent)
                parent = parent.rpartition("/")[0]
        files = [self._named(each) for each in below if each.size or each.key not in above]
        inside = {path for path in above if path != key and path.startswith(f"{key}/" if key else "")}
        return files, sorted(f"{self.bucket.name}/{path}" for path in inside)

    def _named(self, found: StoredObject) -> StoredObject:
        return StoredObject(f"{self.bucket.name}/{found.key}", found.size, found.modified, found.version)


def _file_info(found: StoredObject) -> fs.FileInfo:
    return fs.FileInfo(found.key, fs.FileType.File, size=found.size, mtime_ns=found.modified)


class _Reader:
    """An object as a file of Python's, which pyarrow asks from one thread at a time."""

    def __init__(self, bucket: Bucket, key: str, size: int, version: str) -> None:
        self._bucket, self._key, self._size, self._version = bucket, key, size, version
        self._position = 0
        #: bytes that were fetched, and where they begin
        self._fetched = memoryview(b"")
        self._start = 0
        self.closed = False

    def read(self, count: int | None = -1) -> bytes:
        end = self._size if count is None or count < 0 else min(self._size, self._position + count)
        if end <= self._position:
            return b""
        if not (self._start <= self._position and end <= self._start + len(self._fetched)):
            self._fetch(end)
        begin = self._position - self._start
        self._position = end
        return bytes(self._fetched[begin : end - self._start])

    def _fetch(self, end: int) -> None:
        goes_on = self._position == self._start + len(self._fetched)
        least = AHEAD_BYTES if goes_on else _LEAST_BYTES
        # all of a small object, and all of the end
        start = min(self._position, max(0, self._size - _LEAST_BYTES))
        last = min(self._size, max(end, self._position + least))
        self._fetched = memoryview(self._bucket.get(self._key, start, last, self._version))
        self._start = start
        if len(self._fetched) != last - start:
            raise OSError(f"{self._key}: {len(self._fetched)} bytes came instead of {last - start}")

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + position
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None: ...

    def close(self) -> None:
        self._fetched, self.closed = memoryview(b""), True


class _Writer:
    """An object that is being written."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._file = bucket.writer(key)
        self.closed = False

    def write(self, data: Any) -> int:
        with self._bucket.asked(self._key, answers=False):
            self._file.write(memoryview(data).cast("B"))
        return len(data)

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is visible before the end."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._bucket.asked(self._key):
                self._file.close()
