"""Sinks that write folders of CSV files, or of lines of JSON, each row exactly once (``folder_sink``).

Their rows are counted by an audit, and not proven: what a text says of a value does not tell its type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ..core.errors import ConfigurationError
from ..core.shown import hides_credentials
from .file_formats import CsvFormat, JsonFormat, TextCompression
from .folder_sink import FolderSink


@hides_credentials
@dataclass(frozen=True, slots=True)
class CsvSink(FolderSink):
    """Writes CSV files. ``header``: the names of the columns stand in the first line of each."""

    delimiter: str = ","
    header: bool = True
    compression: TextCompression = "none"

    def __post_init__(self) -> None:
        FolderSink.__post_init__(self)
        _check_codec(self.compression)
        if len(self.delimiter.encode()) != 1 or self.delimiter in '"\r\n':
            raise ConfigurationError(f"delimiter is {self.delimiter!r}", "give one character of ASCII, and no quote")

    @property
    def format(self) -> CsvFormat:
        return CsvFormat(self.delimiter, self.header, self.compression)


@hides_credentials
@dataclass(frozen=True, slots=True)
class JsonSink(FolderSink):
    """Writes one object of JSON a line."""

    compression: TextCompression = "none"

    def __post_init__(self) -> None:
        FolderSink.__post_init__(self)
        _check_codec(self.compression)

    @property
    def format(self) -> JsonFormat:
        return JsonFormat(self.compression)


def _check_codec(compression: str) -> None:
    if compression not in get_args(TextCompression):
        raise ConfigurationError(
            f"compression is {compression!r}", f"give one of {', '.join(get_args(TextCompression))}"
        )
