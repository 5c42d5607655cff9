"""Objects in a bucket: read under a condition, created if absent, listed, copied. The one module that knows obstore.

Rules:

1. An address is ``s3://bucket/key`` or ``gs://bucket/key``. Who asks, and where, stands in the environment
   (``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``, …) or is what the
   machine may do; an address may say it too, as pyarrow's may (``s3://KEY:SECRET@bucket/key?endpoint_override=…``).
2. What a store refuses is raised as OSError, with its number where there is one.
3. ``create`` is a conditional put (``If-None-Match: *``). A store may do it and lose the reply, and the next try is
   told that the object is there: a nonce in its metadata says whose it is.
4. ``version`` is the object's ETag. Reading with one is conditional (``If-Match``): a byte of another object under the
   same key never comes back, however long the reading takes.
5. An object is visible when it is complete. One that is written in parts becomes visible when it is closed.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from pyarrow import fs

from ..core.errors import ConfigurationError

SCHEMES = ("s3", "gs")
"""Of addresses that lead to object stores."""
OTHER_SCHEMES = {"s3a": "s3", "gcs": "gs"}
"""What other systems write for them."""
COPIED_AT_ONCE = 5 * 1024**3
"""Larger objects cannot be copied within the store by one request; they go through this process."""
PART_BYTES = 16 * 1024 * 1024
"""Of an object that is written in parts; there may be 10,000."""

PARTS_AT_ONCE = 4
"""Of one object that is written; so many may be in memory."""

_NONCE = "penstock-nonce"
_BUCKET_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""What comes into a host's name or a URL as it is; the store knows more rules, and says so."""
_OPTIONS = {"region", "scheme", "endpoint_override"}
_CONFLICTS = 16
"""Times that a put may be refused because of another one, of which nothing is left."""
_RETRIES = {"max_retries": 8}
_ANYBODY = "anonymous"


class OtherObjectError(OSError):
    """Under this key there is another object than the one that was asked for."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object, as it is listed. ``modified``: nanoseconds since 1970; ``version``: "" if the store has none."""

    key: str
    size: int
    modified: int
    version: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """The objects of one bucket. Small: it may be sent to other processes, which connect by themselves."""

    scheme: str
    name: str
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """What the address says of how to get there, credentials among it."""

    def create(self, key: str, data: bytes) -> bool:
        """Create the object unless it exists (rule 3). True: by this call."""
        nonce = uuid.uuid4().hex
        with _told(key):
            for _ in range(_CONFLICTS):
                try:
                    _obstore().put(self._client, key, data, mode="create", attributes={_NONCE: nonce})
                except (_errors().AlreadyExistsError, _errors().PreconditionError):
                    if (found := self._nonce(key)) is not None:
                        return found == nonce
                else:
                    return True
        raise OSError(errno.EBUSY, "others create and delete it again and again", key)

    def _nonce(self, key: str) -> str | None:
        """That of the object which is there; None: there is none, so a put was refused for another one in progress."""
        try:
            found = _obstore().get(self._client, key, options={"head": True})
        except (_errors().NotFoundError, FileNotFoundError):
            return None
        return str(found.attributes.get(_NONCE, ""))

    def put(self, key: str, data: bytes) -> None:
        """Write the object, in place of the one that may be there."""
        with _told(key):
            _obstore().put(self._client, key, data)

    def get(self, key: str, start: int, end: int, version: str = "") -> Any:
        """The bytes from ``start`` to ``end``, as a buffer. OtherObjectError: the object has another version now."""
        options: dict[str, Any] = {"range": (start, end)}
        if version:
            options["if_match"] = version
        with _told(key):
            return _obstore().get(self._client, key, options=options).bytes()

    def read(self, key: str) -> bytes:
        """All bytes of the object."""
        with _told(key):
            return bytes(_obstore().get(self._client, key).bytes())

    def head(self, key: str) -> StoredObject | None:
        """What there is under the key; None: nothing."""
        try:
            with _told(key):
                return _stored(_obstore().head(self._client, key))
        except FileNotFoundError:
            return None

    def below(self, folder: str) -> Iterator[StoredObject]:
        """All objects below the folder, at any depth, in any order. "": all."""
        with _told(folder):
            for page in _obstore().list(self._client, prefix=folder or None, chunk_size=1000):
                yield from map(_stored, page)

    def within(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        """The objects in the folder itself, and the folders in it."""
        with _told(folder):
            found = _obstore().list_with_delimiter(self._client, prefix=folder or None)
        return [_stored(each) for each in found["objects"]], list(found["common_prefixes"])

    def holds(self, folder: str) -> bool:
        """Whether there is any object below the folder."""
        with _told(folder):
            return any(len(page) for page in _obstore().list(self._client, prefix=folder or None, chunk_size=1))

    def delete(self, *keys: str) -> None:
        """Delete objects, also such that are not there."""
        try:
            with _told(keys[0] if keys else ""):
                _obstore().delete(self._client, list(keys))
        except FileNotFoundError:
            pass

    def copy(self, source: str, target: str) -> None:
        """Copy an object, over the one that may be there."""
        found = self.head(source)
        if found is None or found.size < COPIED_AT_ONCE:
            with _told(source):
                _obstore().copy(self._client, source, target)
            return
        writer = self.writer(target)
        for start in range(0, found.size, PART_BYTES):
            data = self.get(source, start, min(found.size, start + PART_BYTES), found.version)
            with _told(target):
                writer.write(data)
        with _told(target):
            writer.close()

    def writer(self, key: str) -> Any:
        """A file to write the object into; it becomes visible when that is closed."""
        return _obstore().open_writer(self._client, key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

    @property
    def address(self) -> str:
        """Which bucket it is, however an address says it: without who asks, and with the endpoint if it is not the one
        of the environment."""
        asked = dict(self.settings).get("endpoint", "").rstrip("/")
        elsewhere = asked and asked != _endpoint_of_environment().rstrip("/")
        return (
            f"{self.scheme}://{asked.partition('://')[2]}/{self.name}" if elsewhere else f"{self.scheme}://{self.name}"
        )

    @property
    def _client(self) -> Any:
        return _client(self)


def bucket_of(address: str) -> tuple[Bucket, str] | None:
    """The bucket that an address leads to, and the key in it; None if it does not lead to an object store. Raises
    ConfigurationError."""
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in SCHEMES:
        return None
    place, _, query = rest.partition("?")
    host, _, key = place.partition("/")
    who, _, name = host.rpartition("@")
    asked = dict(parse_qsl(query, keep_blank_values=True))
    known = _OPTIONS if scheme == "s3" else set[str]()
    if not name or (unknown := sorted(set(asked) - known)):
        what = "names no bucket" if not name else f"has parameters that are unknown: {', '.join(unknown)}"
        more = f"; known parameters are {', '.join(sorted(known))}" if known else ""
        raise ConfigurationError(f"{address} {what}", f"write {scheme}://bucket/folder{more}")
    if scheme == "gs" and who not in ("", _ANYBODY):
        remedy = "say who asks in the environment: GOOGLE_APPLICATION_CREDENTIALS"
        raise ConfigurationError(f"{address} holds credentials, which Google's store has no such form of", remedy)
    if not _BUCKET_NAME.fullmatch(name):
        remedy = "names of buckets are made of letters, digits, dots, hyphens and underscores"
        raise ConfigurationError(f"{name!r} is no bucket's name", remedy)
    settings = tuple(sorted(_settings(asked, who).items()))
    path = unquote(key).strip("/")
    if wrong := sorted({"", ".", ".."} & set(path.split("/"))) if path else []:
        raise ConfigurationError(
            f"{scheme}://{name}/{path} has a part {wrong[0]!r} between slashes, and in a bucket that is a name",
            "write the key as it is, without //, . and ..; objects with such keys must be renamed",
        )
    return Bucket(scheme, name, settings), path


def escaped(address: str) -> str:
    """The address as those take it who know URLs: letters of a key that mean something else in one are escaped. What
    leads to no bucket stays as it is."""
    found = bucket_of(address)
    return address if found is None else f"{found[0].scheme}://{found[0].name}/{quote(found[1])}"


def _settings(asked: dict[str, str], who: str) -> dict[str, str]:
    settings = {"region": asked["region"]} if "region" in asked else {}
    if "endpoint_override" in asked:
        endpoint = asked["endpoint_override"]
        settings["endpoint"] = endpoint if "://" in endpoint else f"{asked.get('scheme', 'https')}://{endpoint}"
    user, _, secret = who.partition(":")
    if user == _ANYBODY:
        settings["skip_signature"] = "true"
    elif user:
        settings |= {"access_key_id": unquote(user), "secret_access_key": unquote(secret)}
    return settings


def writing_bytes() -> int:
    """Held of an object that is being written, at most: a part that is not full, and those under way."""
    return PART_BYTES * (1 + PARTS_AT_ONCE)


@contextmanager
def _told(key: str) -> Iterator[None]:
    """Rule 2."""
    try:
        yield
    except (FileNotFoundError, _errors().NotFoundError) as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key) from error
    except _errors().PreconditionError as error:
        raise OtherObjectError(f"{key} is another object now") from error
    except (_errors().PermissionDeniedError, _errors().UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), key) from error
    except _errors().BaseError as error:
        raise OSError(f"{key}: {_first_line(error)}") from error


def told_as_os_errors(key: str) -> Any:
    """A context in which what the store says of ``key`` is raised as OSError."""
    return _told(key)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _stored(meta: Any) -> StoredObject:
    tag = meta.get("e_tag") or ""
    # weak ones cannot be asked for
    version = "" if tag.startswith("W/") else tag
    modified = int(meta["last_modified"].timestamp() * 1_000) * 1_000_000
    return StoredObject(meta["path"], meta["size"], modified, version)


def _obstore() -> Any:
    try:
        import obstore
    except ImportError as error:
        raise ConfigurationError(
            "object stores are reached through obstore, which is not installed", 'pip install "penstock[stores]"'
        ) from error
    return obstore


def _errors() -> Any:
    _obstore()
    from obstore import exceptions

    return exceptions


@lru_cache(maxsize=64)
def _client(bucket: Bucket) -> Any:
    """The connection to a bucket; one for each process."""
    stores = _stores()
    settings: dict[str, Any] = dict(bucket.settings)
    try:
        if bucket.scheme == "gs":
            return stores.GCSStore(bucket.name, config=settings or None, retry_config=_RETRIES)
        endpoint = settings.get("endpoint") or _endpoint_of_environment()
        if endpoint:
            settings["endpoint"] = endpoint
        elif "region" not in settings and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & set(os.environ):
            settings |= _found_region(bucket.name)
        options = {"allow_http": True} if endpoint.startswith("http://") else None
        return stores.S3Store(bucket.name, config=settings, client_options=options, retry_config=_RETRIES)
    except _errors().BaseError as error:
        raise ConfigurationError(
            f"{bucket.scheme}://{bucket.name} cannot be reached: {_first_line(error)}",
            "check the address, and what the environment says of the store",
        ) from error


def _stores() -> Any:
    _obstore()
    from obstore import store

    return store


def _endpoint_of_environment() -> str:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next(filter(None, map(os.environ.get, names)), "")


def _found_region(bucket: str) -> dict[str, str]:
    """Where a bucket of AWS is, as AWS says; nothing if it does not."""
    try:
        return {"region": fs.resolve_s3_region(bucket)}
    except (OSError, ValueError, AttributeError):
        return {}
