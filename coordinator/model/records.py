"""How a record (an entry of a log, a note) is stored: as one JSON object, sealed, and of a numbered form.

Rules:

1. The last member, ``seal``, is the length and the digest of what comes before it (``engine.integrity.checksums``). A
   record of which any byte is another than the one that was written is refused; so is one that is cut short.
2. A reader takes its own ``format``, and older ones of which its own is an extension (``oldest``). It refuses others,
   and fields that it does not know: what is not understood cannot be left out safely. So there is no way back to
   an older version, and none forward without a reader for it.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ...engine.integrity.checksums import SEAL, sealed, unsealed


class FormatError(msgspec.ValidationError):
    """The record is whole, or was once, and of another version's form."""


T = TypeVar("T")


class _Form(msgspec.Struct):
    format: int = 0


_FORMS = msgspec.json.Decoder(_Form)


def encode_record(record: msgspec.Struct) -> bytes:
    """The record as sealed JSON."""
    return sealed(msgspec.json.encode(record))


def decode_record(data: bytes, decoder: msgspec.json.Decoder[T], format: int, oldest: int | None = None) -> T:
    """The record read back, as the ``decoder`` has it: in this ``format``, or one from ``oldest`` on. Raises
    FormatError if it is another version's, and otherwise msgspec.MsgspecError."""
    oldest = format if oldest is None else oldest
    try:
        record = unsealed(data)
    except ValueError as error:
        if SEAL not in data:
            _check_format(data, oldest, format)  # older versions did not seal
        raise msgspec.ValidationError(f"it is damaged: {error}") from None
    _check_format(record, oldest, format)
    return decoder.decode(record)


def _check_format(record: bytes, oldest: int, format: int) -> None:
    try:
        found = _FORMS.decode(record).format
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    if not oldest <= found <= format:
        known = f"{format} and no other" if oldest == format else f"{oldest} to {format}"
        raise FormatError(f"it has format {found}, and this version knows {known}")
