"""Databases as an index uses them: how to connect, what a statement's errors mean, how many connections there are.

Rules:

1. A connection is used by one thread at a time, but by several in turn; no more are opened than lookups run at once.
   One whose statement failed is closed, not used again.
2. A database is a file of SQLite (opened for reading only), or a function without arguments that gives a DB-API
   connection which any thread may use; the function travels with the flow, connections never do.
3. Errors follow PEP 249: operational ones and those of the interface are the outside world's, all others the flow's.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias
from urllib.parse import quote

from ..core.errors import ConfigurationError, FlowError, PenstockError, StorageError
from ..files.paths import local_path

Connect: TypeAlias = Callable[[], Any]

_OUTSIDE = frozenset({"OperationalError", "InterfaceError", "InternalError"})
_OWN = ("no such", "syntax error")
"""SQLite gives mistakes in a statement as operational errors, too."""


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """Connects to a file of SQLite, for reading only; what is not there is not made."""

    path: str

    def __call__(self) -> sqlite3.Connection:
        uri = f"file:{quote(self.path)}?mode=ro"
        return sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)


def as_connect(database: str | os.PathLike[str] | sqlite3.Connection | Connect) -> Connect:
    """What connects to a database; see the module's rules. Of a connection to a file, the file is used."""
    if isinstance(database, sqlite3.Connection):
        place = next((row[2] for row in database.execute("pragma database_list") if row[1] == "main"), "")
        if not place:
            raise FlowError(
                "SQL index: the connection is to a database in memory, which no other thread or process can see",
                "write the table to a file, or use ps.index.memory",
            )
        return SqliteFile(local_path(place, "the database"))
    if callable(database):
        return database
    text = os.fspath(database)
    if "://" in text and not text.startswith("sqlite:///"):
        raise FlowError(
            f"SQL index: {text.split('://')[0]!r} is no database that can be named by a URI here",
            "give the path of an SQLite file, sqlite:///path, or a function that opens a DB-API connection",
        )
    path = local_path(text.removeprefix("sqlite:///"), "the database")
    if not os.path.isfile(path):
        raise ConfigurationError(f"SQL index: there is no file {path}", "check the path of the SQLite database")
    return SqliteFile(path)


def is_sqlite(connection: Any) -> bool:
    """Whether SQLite is behind the connection, directly or through ADBC."""
    if hasattr(connection, "adbc_get_info"):
        return str(connection.adbc_get_info().get("vendor_name")) == "SQLite"
    return isinstance(connection, sqlite3.Connection)


class Connections:
    """The connections of one open index."""

    def __init__(self, connect: Connect, name: str) -> None:
        self._connect = connect
        self._name = name
        self._lock = Lock()
        #: all and only those that nobody uses now
        self._idle: list[Any] = []
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Any]:
        """A connection, for the caller alone."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        try:
            if connection is None:
                connection = self._connect()
            yield connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, Exception):
                raise told(error, self._name) from error
            raise
        with self._lock:
            is_kept = not self._closed
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()

    def close(self) -> None:
        """Close those that nobody uses; the others close when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def told(error: Exception, name: str) -> PenstockError:
    """What a database's error means for the job."""
    if isinstance(error, PenstockError):
        return error
    message = f"{name} could not be asked: {type(error).__name__}: {error}"
    kinds = {kind.__name__ for kind in type(error).__mro__}
    is_outside = isinstance(error, OSError) or bool(kinds & _OUTSIDE)
    if is_outside and not any(word in str(error) for word in _OWN):
        return StorageError(message, "check that the database is there and answers; the job then goes on")
    return ConfigurationError(message, "correct the table or query, the key and the schema of the index")
