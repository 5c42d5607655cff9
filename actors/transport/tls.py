"""TLS between the machines of a job: one certificate that the job makes for itself, and that both sides must have.

Rules:

1. The certificate and its key are drawn with the job, like its token, and travel with the options of its actors; they
   are never on disk. Each side trusts that certificate alone, so neither an outsider nor another job gets in, and host
   names do not matter.
2. A connection is read by one thread while another writes. ``ssl.SSLSocket`` does not allow that; here the TLS state is
   apart from the socket, behind a lock that is never held while the socket waits.
3. Unix sockets are not encrypted: nothing leaves the machine.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ...engine.core.errors import ConfigurationError
from .sockets import hurry

RECEIVE_BYTES = 256 * 1024
VALID = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    def context(self, *, server: bool) -> ssl.SSLContext:
        """What one side of a connection needs: it shows this certificate, and wants to see it."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.check_hostname = False
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_verify_locations(cadata=self.certificate.decode())
        handle = os.memfd_create("penstock-certificate")  # the module takes files only; this one is in memory
        try:
            os.write(handle, self.key + self.certificate)
            made.load_cert_chain(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)
        return made


def make_certificate(job: str) -> Certificate:
    """A new certificate for a job. Raises ConfigurationError if there is nothing to make it with."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigurationError(
            "tls=True needs the package cryptography, which is not installed", "pip install cryptography"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"penstock {job}"[:64])])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + VALID)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return Certificate(
        builder.sign(key, hashes.SHA256()).public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    )


class SecureSocket(socket.socket):
    """A connected socket, encrypted. It takes over ``connection``, and must :meth:`greet` first. A timeout counts for
    the whole of a call."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        timeout = connection.gettimeout()
        super().__init__(connection.family, connection.type, connection.proto, fileno=connection.detach())
        self.settimeout(timeout)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        #: guards the TLS state, not the socket
        self._lock = threading.Lock()
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        #: what is encrypted and not sent yet, and for how many bytes of the caller's it stands
        self._unsent = memoryview(b"")
        self._owed = 0

    def greet(self, until: float) -> None:
        """Make sure of the other side, by ``until``. Raises OSError."""
        while True:
            hurry(self, until)
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                super().sendall(self._outgoing.read())
                hurry(self, until)
                if not self._feed(0):
                    raise ConnectionResetError("the connection closed during the TLS handshake") from None
            except ssl.SSLError:
                with suppress(OSError):
                    super().sendall(self._outgoing.read())  # why, to the other side
                raise
            else:
                super().sendall(self._outgoing.read())
                return

    def send(self, data: Any, flags: int = 0) -> int:
        """Encrypt and send. A call that could not send everything in time is to be repeated with the same data."""
        if not self._owed:
            with self._lock:
                self._owed = self._tls.write(data)
                self._unsent = memoryview(self._outgoing.read())
        while self._unsent:
            self._unsent = self._unsent[super().send(self._unsent, flags) :]
        sent, self._owed = self._owed, 0
        return sent

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Encrypt and send everything."""
        view = memoryview(data)
        while view:
            view = view[self.send(view, flags) :]

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive and decrypt."""
        data = bytearray(size)
        return bytes(data[: self.recv_into(data, 0, flags)])

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive and decrypt. ``MSG_WAITALL`` and ``MSG_DONTWAIT`` mean what they do for any socket."""
        view = memoryview(buffer)[: nbytes or None]
        timeout = self.gettimeout()
        until = None if timeout is None else time.monotonic() + timeout
        there = 0
        while there < view.nbytes:
            try:
                with self._lock:
                    there += int(self._tls.read(view.nbytes - there, view[there:]))
            except ssl.SSLWantReadError:
                if there and not flags & socket.MSG_WAITALL:
                    break
                if until is not None:
                    hurry(self, until)
                try:
                    if not self._feed(flags & socket.MSG_DONTWAIT):
                        break
                except BlockingIOError:  # what has come already is not lost
                    if there:
                        break
                    raise
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                break
        return there

    def _feed(self, flags: int) -> int:
        """Receive encrypted bytes; 0 at the end of the stream."""
        count = super().recv_into(self._received, 0, flags)
        with self._lock:
            if count:
                self._incoming.write(self._received[:count])
            else:
                self._incoming.write_eof()
        return count
