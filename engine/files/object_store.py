"""Objects in a bucket: read under a condition, created if absent, listed, copied. The one module that knows obstore.

Rules:

1. An address is ``s3://bucket/key``, ``gs://bucket/key`` or ``az://container/key``. Who asks, and where, stands in the
   environment (``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``,
   ``AZURE_STORAGE_ACCOUNT_NAME``, …) or is what the machine may do; an address may say it too, as pyarrow's may
   (``s3://KEY:SECRET@bucket/key?endpoint_override=…``), or options of the bucket (``store_options``).
2. What a store refuses is raised as OSError, with its number where there is one.
3. ``create`` is a conditional put (``If-None-Match: *``). A store may do it and lose the reply, and the next try is
   told that the object is there: a nonce in its metadata says whose it is.
4. ``version`` is the object's ETag. Reading with one is conditional (``If-Match``): a byte of another object under the
   same key never comes back, however long the reading takes.
5. An object is visible when it is complete. One that is written in parts becomes visible when it is closed; one that
   is not finished (``Bucket.writer``) leaves no parts behind, as far as the store can be reached.
6. A store that has answered this process before, and does not now (no connection, no answer in time, 429 or 5xx), is
   waited for: ``PATIENCE`` for each request. One that never has is an error soon: its address may be wrong. Who waits,
   and for how long, can be asked (``store_waits``).
7. No text has what may be a secret: of the address that a request went to, everything behind ``?`` is left out.
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from threading import Thread, get_ident
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from pyarrow import fs

from ..core.errors import ConfigurationError
from ..core.shown import shown
from .store_options import Settings, StorageOptions, StoreAccess, check_endpoint, checked_settings, client_part, given

SCHEMES = ("s3", "gs", "az")
"""Of addresses that lead to object stores."""
OTHER_SCHEMES = {"s3a": "s3", "gcs": "gs"}
"""What other systems write for them."""
COPIED_AT_ONCE = 5 * 1024**3
"""Larger objects cannot be copied within the store by one request; they go through this process."""
PART_BYTES = 16 * 1024 * 1024
"""Of an object that is written in parts; there may be 10,000."""

PARTS_AT_ONCE = 4
"""Of one object that is written; so many may be in memory."""

RANGES_AT_ONCE = 8
"""Of one object that is read."""

_NONCE = "penstocknonce"
"""Azure takes names of letters alone."""
_BUCKET_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""What comes into a host's name or a URL as it is; the store knows more rules, and says so."""
_OPTIONS = {"s3": {"region", "scheme", "endpoint_override"}, "gs": set[str](), "az": {"scheme", "endpoint_override"}}
_CONFLICTS = 16
"""Times that a put may be refused because of another one, of which nothing is left."""
PATIENCE = 30.0
"""Seconds that a request waits for a store which has answered before."""
CLIENT: dict[str, Any] = {"timeout": "30s", "connect_timeout": "5s"}
"""Of each try."""
SLOW_SECONDS = 2.0
"""A request that has taken longer than this is worth saying."""
_BACKOFF = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2)}
_RETRIES: dict[str, Any] = {"max_retries": 8, "backoff": _BACKOFF}
_PATIENT: dict[str, Any] = {"max_retries": 1000, "backoff": _BACKOFF, "retry_timeout": timedelta(seconds=PATIENCE)}
_PASSING = re.compile(r"HTTP error|status code: (?:408|429|5\d\d)")
"""How the library tells of what may be over the next time."""
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Variables that say where a store is, if not where its scheme says."""
_QUERY = re.compile(r"\?[^\s<]*")
"""What a request's address says beyond a place; who asks may stand there."""
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
        nonce, since, conflicts = uuid.uuid4().hex, time.monotonic(), 0
        with self.asked(key):
            while conflicts < _CONFLICTS:
                try:
                    _obstore().put(self._client, key, data, mode="create", attributes={_NONCE: nonce})
                except (_errors().AlreadyExistsError, _errors().PreconditionError):
                    if (found := self._nonce(key)) is not None:
                        return found == nonce
                    conflicts += 1
                except _errors().GenericError as error:
                    # the library does not repeat a conditional put that was not answered in time: it has no nonce
                    if not self._waits_for(error, since):
                        raise
                else:
                    return True
        raise OSError(errno.EBUSY, "others create and delete it again and again", key)

    def keeps_first(self, folder: str) -> bool:
        """Whether the store does what ``create`` asks: makes an object of one name once. Tried in the folder."""
        key = f"{folder}/_probe-{uuid.uuid4().hex}".lstrip("/")
        self.create(key, b"first")
        try:
            return not self.create(key, b"second")
        finally:
            self.delete(key)

    def _waits_for(self, error: Exception, since: float) -> bool:
        """Whether what was refused is tried again (rule 6)."""
        return self in _ANSWERED and bool(_PASSING.search(str(error))) and time.monotonic() - since < PATIENCE

    def _nonce(self, key: str) -> str | None:
        """That of the object which is there; None: there is none, so a put was refused for another one in progress."""
        try:
            found = _obstore().get(self._client, key, options={"head": True})
        except (_errors().NotFoundError, FileNotFoundError):
            return None
        return str(found.attributes.get(_NONCE, ""))

    def put(self, key: str, data: bytes) -> None:
        """Write the object, in place of the one that may be there."""
        with self.asked(key):
            _obstore().put(self._client, key, data)

    def get(self, key: str, start: int, end: int, version: str = "") -> Any:
        """The bytes from ``start`` to ``end``, as a buffer. OtherObjectError: the object has another version now."""
        options: dict[str, Any] = {"range": (start, end)}
        if version:
            options["if_match"] = version
        with self.asked(key):
            return _obstore().get(self._client, key, options=options).bytes()

    def get_together(self, key: str, ranges: Sequence[tuple[int, int]], version: str = "") -> list[Any]:
        """The bytes of several ranges, as by ``get``, some at once."""
        found: list[Any] = [None] * len(ranges)
        wanted = iter(range(len(ranges)))

        def work() -> None:
            for place in wanted:  # of which each thread takes the next one
                try:
                    found[place] = self.get(key, *ranges[place], version)
                except BaseException as error:
                    found[place] = error

        others = [Thread(target=work, name="ranges", daemon=True) for _ in ranges[1:RANGES_AT_ONCE]]
        for other in others:
            other.start()
        work()
        for other in others:
            other.join()
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return found

    def read(self, key: str) -> bytes:
        """All bytes of the object."""
        with self.asked(key):
            return bytes(_obstore().get(self._client, key).bytes())

    def head(self, key: str) -> StoredObject | None:
        """What there is under the key; None: nothing."""
        try:
            with self.asked(key):
                return _stored(_obstore().head(self._client, key))
        except FileNotFoundError:
            return None

    def below(self, folder: str) -> Iterator[StoredObject]:
        """All objects below the folder, at any depth, in any order. "": all."""
        pages = iter(_obstore().list(self._client, prefix=folder or None, chunk_size=1000))
        while True:
            with self.asked(folder):
                page = next(pages, None)
            if page is None:
                return
            yield from map(_stored, page)

    def within(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        """The objects in the folder itself, and the folders in it."""
        with self.asked(folder):
            found = _obstore().list_with_delimiter(self._client, prefix=folder or None)
        return [_stored(each) for each in found["objects"]], list(found["common_prefixes"])

    def holds(self, folder: str) -> bool:
        """Whether there is any object below the folder."""
        with self.asked(folder):
            return any(len(page) for page in _obstore().list(self._client, prefix=folder or None, chunk_size=1))

    def delete(self, *keys: str) -> None:
        """Delete objects, also such that are not there."""
        try:
            with self.asked(keys[0] if keys else ""):
                _obstore().delete(self._client, list(keys))
        except FileNotFoundError:
            pass

    def copy(self, source: str, target: str) -> None:
        """Copy an object, over the one that may be there."""
        found = self.head(source)
        if found is None or found.size < COPIED_AT_ONCE:
            with self.asked(source):
                _obstore().copy(self._client, source, target)
            return
        writer = self.writer(target)
        for start in range(0, found.size, PART_BYTES):
            data = self.get(source, start, min(found.size, start + PART_BYTES), found.version)
            with self.asked(target):
                writer.write(data)
        with self.asked(target):
            writer.close()

    def writer(self, key: str) -> Any:
        """A file to write the object into; it becomes visible when that is closed."""
        return _obstore().open_writer(self._client, key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

    @property
    def address(self) -> str:
        """Which bucket it is, however an address says it: without who asks, and with the endpoint if it is not the one
        of the environment."""
        return _address(self.scheme, self.name, self._said)

    @contextmanager
    def asked(self, key: str, *, answers: bool = True) -> Iterator[None]:
        """Rules 2 and 6, for what is asked of ``key``. ``answers``: what is done has an answer of the store."""
        me = get_ident()
        before = _ASKING.get(me)
        _ASKING[me] = (self.address, key, time.monotonic())
        try:
            with _told(key):
                yield
            if answers:
                _ANSWERED.add(self)
        except (FileNotFoundError, OtherObjectError):
            _ANSWERED.add(self)
            raise
        finally:
            if before is None:
                del _ASKING[me]
            else:
                _ASKING[me] = before

    @property
    def _client(self) -> Any:
        return _client(self.scheme, self.name, self._said, self in _ANSWERED)

    @property
    def _said(self) -> Settings:
        """What the address says, or else the user's options of the bucket do; nothing: the environment is asked."""
        return self.settings or given(self.scheme, self.name)


_ANSWERED: set[Bucket] = set()
"""Of which something was had in this process."""
_ASKING: dict[int, tuple[str, str, float]] = {}
"""What each thread asks for now: of which bucket, which key, and since when."""


def store_waits() -> list[str]:
    """One sentence for each store that has not answered this process for a while."""
    now, since = time.monotonic(), dict[str, tuple[float, str]]()
    for address, key, at in tuple(_ASKING.values()):
        since[address] = min(since.get(address, (now, key)), (at, key))
    return [
        f"waits for {address}, which has not answered for {now - at:.0f} s ({key})"
        for address, (at, key) in sorted(since.items())
        if now - at >= SLOW_SECONDS
    ]


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
    known = _OPTIONS[scheme]
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
    settings = tuple(sorted(_settings(scheme, asked, who).items()))
    path = unquote(key).strip("/")
    if wrong := sorted({"", ".", ".."} & set(path.split("/"))) if path else []:
        raise ConfigurationError(
            f"{scheme}://{name}/{path} has a part {wrong[0]!r} between slashes, and in a bucket that is a name",
            "write the key as it is, without //, . and ..; objects with such keys must be renamed",
        )
    return Bucket(scheme, name, settings), path


def storage_options(addresses: Sequence[str], options: Mapping[str, str] | None) -> StorageOptions | None:
    """A user's options of the buckets that absolute addresses lead to, which hold from now on. Raises
    ConfigurationError."""
    if options is None:
        return None
    settings: dict[tuple[str, str], Settings] = {}
    for address in addresses:
        found = bucket_of(address)
        if found is None:
            remedy = "leave them out: they are options of buckets (s3://, gs://, az://)"
            raise ConfigurationError(f"storage_options say nothing of {address}, which is in no bucket", remedy)
        bucket = found[0]
        if bucket.settings:
            remedy = f"give {bucket.scheme}://{bucket.name}/… alone, and all of it in the options"
            raise ConfigurationError(f"{address} says what storage_options say too", remedy)
        settings[bucket.scheme, bucket.name] = checked_settings(bucket.scheme, options)
        _check_stays(bucket, settings[bucket.scheme, bucket.name])
    access = StoreAccess(settings)
    access.use()
    return StorageOptions(options, access)


def _check_stays(bucket: Bucket, settings: Settings) -> None:
    """Jobs of this process may be at work in the bucket: it does not become another one of the same name."""
    if bucket in _ANSWERED and bucket.address != _address(bucket.scheme, bucket.name, settings):
        raise ConfigurationError(
            f"{bucket.scheme}://{bucket.name} has another endpoint in storage_options than it was found at",
            "give the same endpoint, or use the other store from another process",
        )


def _address(scheme: str, name: str, said: Settings) -> str:
    asked = dict(said).get("endpoint", "").rstrip("/")
    elsewhere = asked and asked != _endpoint_of_environment(scheme).rstrip("/")
    return f"{scheme}://{asked.partition('://')[2]}/{name}" if elsewhere else f"{scheme}://{name}"


def escaped(address: str) -> str:
    """The address as those take it who know URLs: letters of a key that mean something else in one are escaped. What
    leads to no bucket stays as it is."""
    found = bucket_of(address)
    return address if found is None else f"{found[0].scheme}://{found[0].name}/{quote(found[1])}"


def _settings(scheme: str, asked: dict[str, str], who: str) -> dict[str, str]:
    settings = {"region": asked["region"]} if "region" in asked else {}
    if "endpoint_override" in asked:
        endpoint = asked["endpoint_override"]
        settings["endpoint"] = endpoint if "://" in endpoint else f"{asked.get('scheme', 'https')}://{endpoint}"
    user, _, secret = who.partition(":")
    if user == _ANYBODY:
        settings["skip_signature"] = "true"
    elif user:
        names = ("account_name", "account_key") if scheme == "az" else ("access_key_id", "secret_access_key")
        settings |= dict(zip(names, (unquote(user), unquote(secret)), strict=True))
    return settings


def writing_bytes() -> int:
    """Held of an object that is being written, at most: a part that is not full, and those under way."""
    return PART_BYTES * (1 + PARTS_AT_ONCE)


@contextmanager
def _told(key: str) -> Iterator[None]:
    """Rules 2 and 7."""
    try:
        yield
    except (FileNotFoundError, _errors().NotFoundError) as error:
        if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
            raise OSError(f"{key}: the store has no such bucket") from None
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key) from None
    except _errors().PreconditionError:
        raise OtherObjectError(f"{key} is another object now") from None
    except (_errors().PermissionDeniedError, _errors().UnauthenticatedError):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), key) from None
    except (_errors().BaseError, OSError) as error:  # what a writer of the library's says is an OSError
        raise _refusal(key, str(error)) from None


def _refusal(key: str, told: str) -> OSError:
    """What the store says, in few words: the library's have several lines, and the address of the request."""
    if "NoSuchBucket" in told or "ContainerNotFound" in told:
        return OSError(f"{key}: the store has no such bucket")
    if "403 Forbidden" in told:  # what a listing is refused with
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), key)
    line = next((line for line in told.splitlines() if line.strip()), "no reason was given")
    words = [re.sub(r"<[^>]*>", " ", _QUERY.sub("", line)).strip()]
    words += [found[1] for name in ("Code", "Message") if (found := re.search(f"<{name}>([^<]*)</{name}>", told))]
    return OSError(shown(f"{key}: {': '.join(dict.fromkeys(words))}"))


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
def _client(scheme: str, name: str, said: Settings, answered: bool) -> Any:
    """The connections to a bucket, for each process. ``answered``: rule 6."""
    stores = _stores()
    settings, connection = client_part(dict(said))
    options = CLIENT | connection
    more: dict[str, Any] = {"retry_config": _PATIENT if answered else _RETRIES}
    try:
        if scheme == "gs":
            # the address of a server is in the credentials, if at all: who wrote http there means it
            options |= {"allow_http": True}
            return stores.GCSStore(name, config=settings or None, client_options=options, **more)
        endpoint = settings.get("endpoint") or _endpoint_of_environment(scheme)
        if endpoint:
            check_endpoint(scheme, endpoint)
            settings["endpoint"] = endpoint
        elif scheme == "s3" and "region" not in settings and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & set(os.environ):
            settings |= _found_region(name)
        if endpoint.startswith("http://"):
            options |= {"allow_http": True}
        if "access_key_id" in settings:
            more["credential_provider"] = _provider(settings)
        kind = stores.S3Store if scheme == "s3" else stores.AzureStore
        return kind(name, config=settings or None, client_options=options, **more)
    except _errors().BaseError as error:
        raise ConfigurationError(
            f"{scheme}://{name} cannot be reached: {_refusal(name, str(error))}",
            "check the address, storage_options, and what the environment says of the store",
        ) from None


def _provider(settings: dict[str, Any]) -> Any:
    """Says who asks, whole: with a key that was given goes no session of the environment. Takes it out of settings."""
    names = {"access_key_id": "access_key_id", "secret_access_key": "secret_access_key", "token": "session_token"}
    credential = {of: settings.pop(name, None) for of, name in names.items()} | {"expires_at": None}
    return lambda: credential


def _stores() -> Any:
    _obstore()
    from obstore import store

    return store


def _endpoint_of_environment(scheme: str) -> str:
    return next(filter(None, map(os.environ.get, _ENDPOINTS.get(scheme, ()))), "")


@lru_cache(maxsize=64)
def _found_region(bucket: str) -> dict[str, str]:
    """Where a bucket of AWS is, as AWS says; nothing if it does not."""
    try:
        return {"region": fs.resolve_s3_region(bucket)}
    except (OSError, ValueError, AttributeError):
        return {}
