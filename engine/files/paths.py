"""Files: where a path leads, which data files it holds, and how a failing file system is told to the user.

Sources, sinks and the snapshot files share these few functions; what is to survive a power cut:
``engine.files.durable``.

Rules:

1. ``absolute`` turns every address that a user gives, to a function or on the command line, into a place. A path
   without a scheme is local and becomes absolute where the flow is built, because the processes that open it later have
   other working folders. Object stores (``s3://``, ``gs://``, ``az://``) are reached through ``object_files``, anything
   else with ``scheme://`` goes to ``pyarrow.fs`` as it is. Nothing becomes another place silently: what is neither is
   refused.
2. A name that begins with ``_`` or ``.`` is hidden, at any depth: the rule that Spark and ``pyarrow.dataset`` follow.
3. Files are listed in the order of their paths, and a file's id is its path relative to what the user named, so ids
   survive a move of the whole folder. A path that does not exist may be a glob (``globs``).
4. A missing or unreadable place is a ConfigurationError while the job is planned and a StorageError while it runs.
   A file that can be read but not understood is a DataError, and so is one that is gone.
5. A file of a source stays what it was when it was listed (``listing``): every opening compares its size and its time,
   every reading does so once more at its end. Where only the time is another one, the content decides. An object that
   had an ETag when it was listed is read under the condition that it still has it: that is asked by every request, so
   nothing is asked before or after.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from glob import escape, glob
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from ..arrow.plain_types import plain_type
from ..core.errors import ConfigurationError, DataError, FlowError, StorageError
from ..integrity.checksums import digest, digest_of
from .globs import fixed_part, is_glob, means
from .listing import NEW_FILES, Content, InputFile, reason_against
from .object_files import files_of, object_files
from .object_store import OTHER_SCHEMES, SCHEMES, OtherObjectError, StoredObject

ROWS_PER_BATCH = 128 * 1024
"""At most this many rows in a batch that a source gives: large enough for the kernels, small enough for credits."""

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}
_REACH_IT = (
    "check that the store is there, and that storage_options or the environment say rightly who asks and where "
    "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL; GOOGLE_APPLICATION_CREDENTIALS; "
    "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY)"
)
_WRONG_FILE = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowSerializationError)
_LONGEST_NAME = 80
_PATH_BYTES, _NAME_BYTES = 4095, 255
_SCHEME = re.compile(r"(file(?=:)|[A-Za-z][A-Za-z0-9+.-]+(?=:(?:/|$))):(/{0,2})", re.IGNORECASE)
"""What a URL begins with; one letter would be a drive."""

WHOLE_BYTES = 64 * 1024 * 1024
"""A source with no more bytes than this is digested whole when a job begins: some hundredths of a second."""
END_BYTES = 64 * 1024
"""Of a larger source's files, so much is digested at the beginning and at the end."""
_READ_BYTES = 256 * 1024
"""Read at once for a digest: larger pieces would be memory that the kernel clears anew for each, at twice the cost."""
UNREADABLE = "repair the file, or leave it out of the source"
"""What to do about a file that is not what its name says."""
AS_UTF8 = "write the file as UTF-8, or leave it out of the source"
BACK_AGAIN = "put it back and start the job again, which goes on from its checkpoint, or start a new job without it"
"""What to do about a file that is gone. Trying again by ourselves would not bring it back."""


def absolute(path: str | os.PathLike[str]) -> str:
    """The place that a user's address means, as every process will understand it: the one function that decides this.

    ``~`` is the user's folder, a URL of a file its path; other URLs stay, for ``resolve``. Raises ConfigurationError.
    """
    text: object = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"{path!r} is no path", "give a path, or a URL, as text")
    return _rooted(text) if text.startswith("/") else _fitting(_absolute(text))


@lru_cache(maxsize=4096)
def _rooted(text: str) -> str:
    """What is absolute means the same wherever this process works, and is asked for again and again."""
    return _fitting(os.path.abspath(text))


def _fitting(place: str) -> str:
    """The place, which can be one. Raises ConfigurationError."""
    if not _is_utf8(place):
        raise ConfigurationError(f"the path {_bytes_of(place)} is not UTF-8", "rename it, or link to it by another")
    if "://" not in place and _is_too_long(os.fsencode(place)):
        remedy = f"a path has at most {_PATH_BYTES:,} bytes, each name in it {_NAME_BYTES}"
        raise ConfigurationError(f"the path {place[:_LONGEST_NAME]}… is longer than a path can be", remedy)
    return place


def _is_too_long(path: bytes) -> bool:
    """Whether no file system has such a file."""
    return len(path) > _PATH_BYTES or any(len(name) > _NAME_BYTES for name in path.split(b"/"))


def _is_utf8(text: str) -> bool:
    """Whether it has no byte that Python could only carry along."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes_of(place: str) -> str:
    """How a place is written that is no text; half a character is no bytes either."""
    try:
        return repr(os.fsencode(place))
    except UnicodeEncodeError:
        return ascii(place)


def _absolute(text: str) -> str:
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _local(text)
    if scheme[1].lower() == "file":
        return _of_file_url(text)
    if scheme[2] != "//":
        raise ConfigurationError(
            f"{text} is no URL, and hardly a path: pathlib.Path makes one slash of two",
            f"give URLs as text ({scheme[1]}://…), and a local path of this name as ./{text}",
        )
    known = OTHER_SCHEMES.get(scheme[1].lower(), scheme[1].lower())
    return known + text[len(scheme[1]) :] if known in SCHEMES else text


def local_path(path: str | os.PathLike[str], what: str, why: str = "give a local path, or file:///…") -> str:
    """As ``absolute``, where it must be a local path; ``what`` it is for."""
    place = absolute(path)
    if "://" in place:
        raise ConfigurationError(f"{what} {place} is on a file system on which it cannot be", why)
    return place


def _local(text: str) -> str:
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise ConfigurationError(f"{text} begins with a user that is not known here", f"write ./{text} for a folder")
    return os.path.abspath(expanded)


def _of_file_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise ConfigurationError(f"{text} names the host {parts.netloc!r}", "write file:///folder for a local path")
    if parts.query or parts.fragment or not parts.path.startswith("/"):
        raise ConfigurationError(
            f"{text} does not name a file", "write file:///folder, with %3F and %23 for ? and #; or the path itself"
        )
    return os.path.abspath(unquote(parts.path))


def absolute_paths(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """One path or several, made absolute."""
    several = (path,) if isinstance(path, (str, os.PathLike)) else tuple(path)
    if not several:
        raise ConfigurationError("the list of paths is empty", "name at least one file or folder")
    return tuple(absolute(each) for each in several)


def resolve(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of an absolute path or URL, and the path within it."""
    if "://" not in path:
        return fs.LocalFileSystem(), path
    found = object_files(path)
    if found is not None:
        return found
    try:
        filesystem, inner = fs.FileSystem.from_uri(path)
    except (*_WRONG_FILE, OSError, ImportError) as error:
        raise ConfigurationError(
            f"{path} cannot be reached: {error}",
            "use a local path, s3://…, gs://…, az://…, or a URL that pyarrow.fs knows",
        ) from None  # Arrow's own words have the whole address, credentials included
    return filesystem, inner


def is_local(filesystem: fs.FileSystem) -> bool:
    """Whether the file system is this machine's own."""
    return isinstance(filesystem, fs.LocalFileSystem)


def is_hidden(relative: str) -> bool:
    """Whether readers of data folders pass over the path: some part of it begins with ``_`` or ``.``."""
    return any(part.startswith(("_", ".")) for part in relative.split("/"))


def safe_name(text: str) -> str:
    """The text as part of a file name. Different texts give different names."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", text)[:_LONGEST_NAME]
    if name == text and not name.startswith((".", "_")) and name:
        return name
    return f"{name.lstrip('._') or 'x'}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def storage_error(action: str, place: str, error: OSError) -> StorageError:
    """The error of a file system: what was tried, where, the system's reason, and what to do about it."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _NO_SPACE:
        remedy = "free space there or choose another folder, then start the job again: it goes on from its checkpoint"
    elif "://" in place and error.errno != errno.ENOENT:
        remedy = f"{_REACH_IT}, then start the job again"
    elif error.errno in _NO_RIGHT:
        remedy = "make the folder writable for this user, or choose another one"
    elif error.errno == errno.ENOENT:
        remedy = "something else removed it; keep other programs out of the folder"
    else:
        remedy = "check that the storage is there and healthy, then start the job again"
    return StorageError(f"cannot {action} {place}: {reason}", remedy)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a source, as it was when it was listed."""

    filesystem: fs.FileSystem
    path: str
    size: int
    id: str
    """Relative to what the user named, hence unique within the source."""
    modified: int = 0
    """When it was changed last, in nanoseconds since 1970; 0: unknown."""
    content: str = ""
    """What is known of its bytes (``content_of``)."""
    version: str = ""
    """The ETag of an object; "" for a file, and where the store gives none."""

    def open(self) -> pa.NativeFile:
        """Open for random access. A file that is no longer the listed one is a DataError."""
        file = self.peek()
        try:
            self.check()
        except BaseException:
            file.close()
            raise
        return file

    def peek(self) -> pa.NativeFile:
        """Open a file that was listed a moment ago: of what may have changed only the size is compared. An object is
        opened under its version."""
        file = self.reached.open_input_file(self.path)
        if file.size() != self.size:
            file.close()
            raise self._other(f"had {self.size} bytes when the job was planned and has {file_size(self)} now")
        return file

    def parts(self, opened: pa.NativeFile, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        """Parts of the open file, from a byte to another one: of an object some at once."""
        objects = files_of(self.filesystem)
        if objects is not None:
            return objects.bucket.get_together(objects.key(self.path), ranges, self.version)
        return [opened.read_at(end - begin, begin) for begin, end in ranges]

    @property
    def place(self) -> str:
        """Its path, or the address of an object."""
        objects = files_of(self.filesystem)
        return self.path if objects is None else f"{objects.bucket.address}/{objects.key(self.path)}"

    @property
    def reached(self) -> fs.FileSystem:
        """The file system by which the file is read: where it has a version, only under that."""
        objects = files_of(self.filesystem) if self.version else None
        return self.filesystem if objects is None else objects.pin(self.path, self.version, self.size)

    def check(self) -> None:
        """Raise DataError if the file is another one now, or may be; not if whoever reads it would be told. OSError
        passes through."""
        if self.version:
            return
        info = self.filesystem.get_file_info(self.path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        found = InputFile(self.id, info.size, info.mtime_ns or 0)
        reason = reason_against(self.recorded, found, lambda kind: content_of(self, kind))
        if reason is not None:
            raise self._other(reason.text, reason.remedy(self.path))

    @property
    def recorded(self) -> InputFile:
        """What is recorded of it."""
        return InputFile(self.id, self.size, self.modified, self.content, version=self.version)

    def _other(self, reason: str, remedy: str = NEW_FILES) -> DataError:
        return DataError(f"{self.path} {reason}", remedy)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Names the file in whatever goes wrong inside, and finds out at the end whether it has changed meanwhile."""
        with self.named():
            yield
            self.check()

    @contextmanager
    def named(self) -> Iterator[None]:
        """Names the file in whatever goes wrong inside."""
        try:
            yield
        except _WRONG_FILE as error:
            raise self._unreadable(error) from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path} cannot be read: a name in it is no text: {error}", AS_UTF8) from error
        except OtherObjectError as error:
            told = f"is another object than when the job was planned (then its ETag was {self.version})"
            raise self._other(told) from error
        except FileNotFoundError as error:
            raise self._other("was there when the job was planned and is gone", BACK_AGAIN) from error
        except OSError as error:
            # pyarrow gives broken pages and footers as an OSError without a number
            if error.errno is None and is_local(self.filesystem):
                raise self._unreadable(error) from error
            raise storage_error("read", self.path, error) from error

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"{self.path} cannot be read: {error}", UNREADABLE)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """As ``reading``, for errors met before the job starts."""
        try:
            with self.named():
                yield
        except (DataError, StorageError) as error:
            raise ConfigurationError(error.message, error.remedy) from error


def with_names(schema: pa.Schema) -> pa.Schema:
    """A schema whose names are text. Raises UnicodeDecodeError: pyarrow finds out when it is asked for them."""
    _ = schema.names
    return schema


def file_size(file: DataFile) -> int | None:
    """The size of the file now."""
    size: int | None = file.filesystem.get_file_info(file.path).size
    return size


def content_of(file: DataFile, kind: Content) -> str:
    """A digest of the file's bytes: of all of them, or of its first and last ones. OSError passes through."""
    with file.filesystem.open_input_file(file.path) as opened:
        if kind is Content.WHOLE:
            return kind.told(digest_of(iter(lambda: opened.read(_READ_BYTES), b"")))
        begin = opened.read(END_BYTES)
        opened.seek(max(0, opened.size() - END_BYTES))
        return kind.told(digest(begin, opened.read(END_BYTES)))


def with_content(files: Sequence[DataFile], *, kept: bool = True) -> tuple[DataFile, ...]:
    """The files with what can be known cheaply of their content: of few bytes all, else the ends of each file; nothing
    on other file systems. Not ``kept``: no job will go on by it, so the ends are enough. Raises ConfigurationError."""
    few = kept and sum(file.size for file in files) <= WHOLE_BYTES
    return tuple(_with_content(file, few) if is_local(file.filesystem) else file for file in files)


def _with_content(file: DataFile, whole: bool) -> DataFile:
    with file.planning():
        kind = Content.WHOLE if whole or file.size <= 2 * END_BYTES else Content.ENDS
        return replace(file, content=content_of(file, kind))


def list_files(paths: Sequence[str]) -> list[DataFile]:
    """The data files that the paths name, in order: the paths as given, each folder's files sorted by path."""
    files: list[DataFile] = []
    for position, path in enumerate(paths):
        prefix = f"{position}/" if len(paths) > 1 else ""
        try:
            files += _files_below(path, prefix)
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"{path} holds a name that is not UTF-8: {_undecodable(path)!r}", "rename it, or name the files"
            ) from error
        except OSError as error:
            told = storage_error("list", path, error)
            raise ConfigurationError(told.message, told.remedy) from error
        except pa.ArrowException as error:
            reason = str(error).partition("\n")[0]
            raise ConfigurationError(f"{path} cannot be reached: {reason}", "check the address, and who asks") from None
    return files


def _undecodable(folder: str) -> bytes:
    """The first path below the folder that is not UTF-8."""
    below = (os.path.join(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files))
    return os.fsencode(next((path for path in below if not _is_utf8(path)), folder))


def _files_below(path: str, prefix: str) -> list[DataFile]:
    filesystem, inner = resolve(path)
    objects = files_of(filesystem)
    info = filesystem.get_file_info(inner)
    if info.type == fs.FileType.NotFound and is_glob(path):
        if not (matching := _matching(path)):
            raise ConfigurationError(f"{path} matches no data files", "names that begin with _ or . do not count")
        return [replace(file, id=prefix + file.id) for file in matching]
    if info.type == fs.FileType.NotFound:
        raise ConfigurationError(f"{path} does not exist", "check the path; relative ones start at the working folder")
    if info.type == fs.FileType.File:
        named = None if objects is None else objects.found(inner)
        id = prefix + info.base_name
        return [_listed(filesystem, info, id) if named is None else _listed_object(filesystem, named, id)]
    files = _found_below(filesystem, inner, prefix)
    if not files:
        raise ConfigurationError(f"{path} holds no data files", "names that begin with _ or . do not count")
    return files


def _found_below(filesystem: fs.FileSystem, inner: str, prefix: str) -> list[DataFile]:
    """The files below a folder, in order; maybe none."""
    objects = files_of(filesystem)
    if is_local(filesystem):
        _refuse_loops(inner, (os.path.realpath(inner),))
    root = inner.rstrip("/") + "/"
    if objects is not None:
        stored = [(each.key.removeprefix(root), each) for each in objects.listed(inner)]
        return [_listed_object(filesystem, each, prefix + name) for name, each in stored if not is_hidden(name)]
    below = filesystem.get_file_info(fs.FileSelector(inner, recursive=True))
    found = sorted((each.path.removeprefix(root), each) for each in below if each.type == fs.FileType.File)
    return [_listed(filesystem, each, prefix + name) for name, each in found if not is_hidden(name)]


def _matching(path: str) -> list[DataFile]:
    """The files that a glob means, also below its folders. Their ids are relative to its fixed beginning."""
    root, pattern = fixed_part(path)
    if "://" in path:
        filesystem, inner = resolve(root)
        return [file for file in _found_below(filesystem, inner, "") if means(pattern, file.id)]
    files: dict[str, DataFile] = {}
    for place in glob(f"{escape(root)}/{pattern}", recursive=True):
        filesystem, inner = resolve(place.rstrip("/"))
        id = inner[len(root.rstrip("/")) + 1 :]
        if is_hidden(id):
            continue
        if os.path.isdir(inner):
            files |= {file.path: file for file in _found_below(filesystem, inner, f"{id}/" if id else "")}
        elif os.path.isfile(inner):
            files[inner] = _listed(filesystem, filesystem.get_file_info(inner), id)
    return [files[place] for place in sorted(files)]


def _listed(filesystem: fs.FileSystem, info: fs.FileInfo, id: str) -> DataFile:
    return DataFile(filesystem, info.path, info.size, id, info.mtime_ns or 0)


def _listed_object(filesystem: fs.FileSystem, found: StoredObject, id: str) -> DataFile:
    return DataFile(filesystem, found.key, found.size, id, found.modified, version=found.version)


def _refuse_loops(folder: str, above: tuple[str, ...]) -> None:
    """Follow the links below a folder as the listing does. One that leads back to a folder above it would be listed
    again and again, and one that leads to itself not at all: both are refused, by name. ``above``: real paths."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            try:
                is_folder = entry.is_dir()
                if entry.is_symlink():
                    entry.stat()
            except FileNotFoundError:
                continue  # leads nowhere: no file
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise ConfigurationError(f"the link {entry.path} leads to itself", "remove it") from error
            if not is_folder:
                continue
            real = os.path.realpath(entry.path) if entry.is_symlink() else f"{above[-1]}/{entry.name}"
            if any(f"{each}/".startswith(f"{real.rstrip('/')}/") for each in above):
                raise ConfigurationError(f"the link {entry.path} leads back to {real}, which it is in", "remove it")
            _refuse_loops(entry.path, (*above, real))


def check_columns(columns: Sequence[str], schema: pa.Schema, place: str) -> None:
    """Raise FlowError, naming what exists, unless the schema has every column once."""
    counts = Counter(schema.names)
    for name in columns:
        count = counts[name]
        if count > 1:
            raise FlowError(f"{place} has {count} columns named {name!r}", "give every column its own name")
        if not count:
            near = get_close_matches(name, schema.names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise FlowError(f"{place} has no column {name!r}", f"it has: {', '.join(schema.names)}{hint}")


def check_same(expected: pa.Schema, found: pa.Schema, file: DataFile, first: DataFile, *, all_wanted: bool) -> None:
    """Raise FlowError unless the file has the expected columns, with the types of the source's first file.

    ``all_wanted``: the source reads all columns, so one that only this file has would be lost silently.
    """
    check_columns(expected.names, found, file.path)
    wanted = set(expected.names)
    if all_wanted and (extra := [name for name in found.names if name not in wanted]):
        raise FlowError(
            f"{file.path} has columns that {first.path} has not: {', '.join(extra)}",
            "say which columns the source should read: columns=[…]",
        )
    for field in expected:
        kind = found.field(field.name).type
        if kind != field.type and plain_type(kind) != plain_type(field.type):
            raise FlowError(
                f"column {field.name!r} is {kind} in {file.path} and {field.type} in {first.path}",
                "all files of one source need the same types: rewrite the file, or read it as another source",
            )


def in_batches(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of at most ``ROWS_PER_BATCH``; nothing if there are none."""
    for begin in range(0, records.num_rows, ROWS_PER_BATCH):
        yield records.slice(begin, ROWS_PER_BATCH)


def from_row(batches: Iterator[pa.RecordBatch], start: int) -> Iterator[pa.RecordBatch]:
    """What is left of the batches after ``start`` rows, in pieces of the right size."""
    for records in batches:
        if start < records.num_rows:
            yield from in_batches(records.slice(start))
        start = max(0, start - records.num_rows)
