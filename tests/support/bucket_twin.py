"""An object store in this process, over HTTP on loopback: what S3 and Google's store answer, conditions included.

Rules:

1. A put with ``If-None-Match: *`` (Google: ``x-goog-if-generation-match: 0``) makes an object if there is none, and one
   with ``If-Match`` replaces only the object with that ETag: else 412. All other puts replace.
2. A get or a head with ``If-Match`` gives the object with that ETag, else 412; one that is not there is 404.
3. An upload in parts is visible when it is completed, and then whole. A listing has all that was completed before.
4. Nobody's signature is checked: who may do what is not what is tested.
5. ``faults`` decide of each request, before and after it was carried out, whether the answer is lost, or is a refusal
   with the status that they give.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

Faults = Callable[[str, str, bool], bool | int]


def NO_FAULT(method: str, key: str, done: bool) -> bool | int:  # noqa: N802 a constant
    """Every answer arrives."""
    return False


@dataclass
class Entry:
    """One object, as it was put last."""

    data: bytes
    tag: str
    generation: int
    modified: float
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass
class Upload:
    """An object that comes in parts."""

    key: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class BucketTwin:
    """The server. ``objects``: by ``bucket/key``; ``requests``: (method, key, status) of all answers, in order."""

    def __init__(self) -> None:
        self.objects: dict[str, Entry] = {}
        self.uploads: dict[str, Upload] = {}
        self.requests: list[tuple[str, str, int]] = []
        self.faults: Faults = NO_FAULT
        #: when every object is dated, in seconds since 1970: no test is told two apart by their times
        self.now = 1_700_000_000.0
        self.page = 1000
        #: whether a put under a condition is one
        self.conditions = True
        self.lock = threading.RLock()
        self._count = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"twin": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def calm(self) -> None:
        """Forget what was asked for a test."""
        self.faults, self.page, self.conditions = NO_FAULT, 1000, True
        self.requests.clear()

    def put(self, key: str, data: bytes, metadata: dict[str, str] | None = None) -> Entry:
        """Put an object, as somebody else may."""
        with self.lock:
            self._count += 1
            tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
            self.objects[key] = Entry(data, f'"{tag}"', self._count, self.now, metadata or {})
            return self.objects[key]

    def below(self, prefix: str) -> list[str]:
        """The keys that begin with ``bucket/prefix``, sorted."""
        with self.lock:
            return sorted(key for key in self.objects if key.startswith(prefix))


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    twin: BucketTwin

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def _answer(self, work: Callable[[], tuple[int, dict[str, str], bytes]]) -> None:
        parts = urlsplit(self.path)
        self.key = unquote(parts.path).lstrip("/")
        self.query = parse_qs(parts.query, keep_blank_values=True)
        self.body = self._read_body()
        fault = self.twin.faults(self.command, self.key, False)
        if fault is True:
            return self._lose()
        try:
            if fault:
                raise _Refused(fault, "ConditionalRequestConflict")
            with self.twin.lock:
                status, headers, data = work()
        except _Refused as refused:
            status, headers = refused.status, {}
            data = f"<Error><Code>{refused.code}</Code><Message>{refused.code}</Message></Error>".encode()
        self.twin.requests.append((self.command, self.key, status))
        if self.twin.faults(self.command, self.key, True):
            return self._lose()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")  # no thread stays: other tests count them
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        return None

    def _lose(self) -> None:
        """The connection breaks without an answer."""
        self.close_connection = True

    def _read_body(self) -> bytes:
        body = self.rfile
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            data = body.read(int(self.headers.get("Content-Length") or 0))
        else:
            data = _unchunked(body)
            body.readline()
        # AWS's own library sends pieces with their sizes, and a checksum behind them
        return _unchunked(io.BytesIO(data)) if self.headers.get("x-amz-decoded-content-length") else data

    def _entry(self) -> Entry:
        entry = self.twin.objects.get(self.key)
        if entry is None:
            raise _Refused(404, "NoSuchKey")
        if (wanted := self.headers.get("If-Match")) not in (None, "*", entry.tag):
            assert wanted
            raise _Refused(412, "PreconditionFailed")
        return entry

    def _get(self) -> tuple[int, dict[str, str], bytes]:
        if "/" not in self.key.rstrip("/") and self.command == "GET":
            return 200, {"Content-Type": "application/xml"}, self._listing()
        entry = self._entry()
        headers = {
            "ETag": entry.tag,
            "Last-Modified": formatdate(entry.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "x-goog-generation": str(entry.generation),
            **{f"x-{whose}-meta-{name}": value for name, value in entry.metadata.items() for whose in ("amz", "goog")},
        }
        if self.command == "HEAD":
            return 200, headers | {"Content-Length": str(len(entry.data))}, b""
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if found is None:
            return 200, headers, entry.data
        start = int(found[1]) if found[1] else max(0, len(entry.data) - int(found[2]))
        end = min(len(entry.data), int(found[2]) + 1 if found[1] and found[2] else len(entry.data))
        if start >= len(entry.data):
            raise _Refused(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(entry.data)}"
        return 206, headers, entry.data[start:end]

    def _listing(self) -> bytes:
        bucket = self.key.rstrip("/")
        prefix, delimiter = self._asked("prefix"), self._asked("delimiter")
        after = self._asked("continuation-token") or self._asked("start-after")
        contents, folders, token, last = "", list[str](), "", ""
        count = 0
        for name in self.twin.below(f"{bucket}/{prefix}"):
            key = name.removeprefix(f"{bucket}/")
            if key <= after:
                continue
            if count >= self.twin.page:
                token = last
                break
            last, rest = key, key[len(prefix) :]
            if delimiter and delimiter in rest:
                folder = prefix + rest.partition(delimiter)[0] + delimiter
                if folder not in folders:
                    folders.append(folder)
                    count += 1
                last = f"{folder}\uffff"  # a page never begins inside a folder
                continue
            count += 1
            contents += self._listed(key, self.twin.objects[name])
        common = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders)
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        cut = str(bool(token)).lower()
        return (
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>{cut}</IsTruncated>{more}{contents}{common}"
            "</ListBucketResult>"
        ).encode()

    def _listed(self, key: str, entry: Entry) -> str:
        seconds, rest = divmod(entry.modified, 1)
        when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>{when:%Y-%m-%dT%H:%M:%S}.{int(rest * 1000):03d}Z"
            f"</LastModified><ETag>{escape(entry.tag)}</ETag><Size>{len(entry.data)}</Size></Contents>"
        )

    def _asked(self, name: str) -> str:
        return self.query.get(name, [""])[0]

    def _put(self) -> tuple[int, dict[str, str], bytes]:
        if "uploadId" in self.query:
            upload = self._upload()
            upload.parts[int(self._asked("partNumber"))] = self.body
            return 200, {"ETag": f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}"'}, b""
        if source := self.headers.get("x-amz-copy-source") or self.headers.get("x-goog-copy-source"):
            found = self.twin.objects.get(unquote(source).lstrip("/"))
            if found is None:
                raise _Refused(404, "NoSuchKey")
            entry = self.twin.put(self.key, found.data, found.metadata)
            return 200, {}, f"<CopyObjectResult><ETag>{escape(entry.tag)}</ETag></CopyObjectResult>".encode()
        self._check_put()
        entry = self.twin.put(self.key, self.body, self._metadata())
        return 200, {"ETag": entry.tag, "x-goog-generation": str(entry.generation)}, b""

    def _check_put(self) -> None:
        if not self.twin.conditions:
            return
        there = self.twin.objects.get(self.key)
        absent = self.headers.get("If-None-Match") == "*" or self.headers.get("x-goog-if-generation-match") == "0"
        wanted = self.headers.get("If-Match")
        if (absent and there is not None) or (wanted and (there is None or there.tag != wanted)):
            raise _Refused(412, "PreconditionFailed")

    def _metadata(self) -> dict[str, str]:
        named = {name.lower(): value for name, value in self.headers.items()}
        return {name[11:]: value for name, value in named.items() if name.startswith("x-amz-meta-")} | {
            name[12:]: value for name, value in named.items() if name.startswith("x-goog-meta-")
        }

    def _upload(self) -> Upload:
        upload = self.twin.uploads.get(self._asked("uploadId"))
        if upload is None or upload.key != self.key:
            raise _Refused(404, "NoSuchUpload")
        return upload

    def _post(self) -> tuple[int, dict[str, str], bytes]:
        if "delete" in self.query:
            bucket = self.key.rstrip("/")
            keys = [unescaped(each) for each in re.findall(r"<Key>(.*?)</Key>", self.body.decode())]
            for key in keys:
                self.twin.objects.pop(f"{bucket}/{key}", None)
            told = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return 200, {}, f"<DeleteResult>{told}</DeleteResult>".encode()
        if "uploads" in self.query:
            name = uuid.uuid4().hex
            self.twin.uploads[name] = Upload(self.key, self._metadata())
            told = f"<UploadId>{name}</UploadId><Bucket>b</Bucket><Key>{escape(quote(self.key))}</Key>"
            return 200, {}, f"<InitiateMultipartUploadResult>{told}</InitiateMultipartUploadResult>".encode()
        upload = self._upload()
        self._check_put()
        data = b"".join(upload.parts[number] for number in sorted(upload.parts))
        entry = self.twin.put(self.key, data, upload.metadata)
        del self.twin.uploads[self._asked("uploadId")]
        told = f"<ETag>{escape(entry.tag)}</ETag>"
        return 200, {}, f"<CompleteMultipartUploadResult>{told}</CompleteMultipartUploadResult>".encode()

    def _delete(self) -> tuple[int, dict[str, str], bytes]:
        if "uploadId" in self.query:
            self.twin.uploads.pop(self._asked("uploadId"), None)
        else:
            self.twin.objects.pop(self.key, None)
        return 204, {}, b""


def _unchunked(body: IO[bytes]) -> bytes:
    """What stands in pieces, each behind its size, up to an empty one."""
    found = b""
    while size := int(body.readline().split(b";")[0], 16):
        found += body.read(size)
        body.readline()
    return found


def unescaped(text: str) -> str:
    """A text of XML."""
    for name, sign in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"), ("&amp;", "&")):
        text = text.replace(name, sign)
    return text


def upload(folder: Path, twin: BucketTwin, place: str) -> None:
    """Put all files of a local folder below ``bucket/prefix``."""
    for path in folder.rglob("*"):
        if path.is_file():
            twin.put(f"{place}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def environment(twin: BucketTwin) -> dict[str, str]:
    """What leads a process to the twin."""
    google = (
        f'{{"gcs_base_url": "{twin.endpoint}", "disable_oauth": true, "client_email": "", "private_key": "", '
        '"private_key_id": ""}'
    )
    return {
        "AWS_ENDPOINT_URL": twin.endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "GOOGLE_SERVICE_ACCOUNT_KEY": google,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
