"""Text for people and logs without what must stay secret: credentials in URLs.

Rules:

1. A URL is shown without the user and the password before its host, and of its query only what is known to be harmless
   keeps its value. What cannot be told from a credential is taken for one.
2. All text that leaves passes here once, at few places: every :class:`~.errors.PenstockError`, the lines of the log,
   what the command line prints, and the ``repr`` of what holds a path (:func:`hides_credentials`). Whatever else prints
   a path calls :func:`shown`.
3. What is shown twice stays as it is.
4. Words that this process was told to hide (:func:`hide`) are in no text, in a URL or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import unquote

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*")
_HARMLESS = {"region", "scheme", "endpoint_override", "mode"}
"""Parameters of a query that are shown, unless they look like more."""

_LEAST_HIDDEN = 6
"""Letters of a word that is hidden: shorter ones are no secrets, and parts of others."""
_HIDDEN: set[str] = set()
"""Words that are secret in this process."""

T = TypeVar("T")


def hide(words: Iterable[str]) -> None:
    """From now on no text of this process has these words."""
    _HIDDEN.update(word for word in words if len(word) >= _LEAST_HIDDEN)


def shown(text: str) -> str:
    """The text, with every URL in it as it may be seen."""
    for word in tuple(_HIDDEN):
        text = text.replace(word, "…")
    return _URL.sub(lambda found: _url(found[0]), text) if "://" in text else text


def _url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    place, question, query = rest.partition("?")
    host, slash, path = place.partition("/")
    if "@" in host:
        host = host.rpartition("@")[2]
    elif "@" in path and ":" in host and not host.partition(":")[2].isdigit():  # a slash in a secret
        host, slash, path = path.rpartition("@")[2].partition("/")
    return f"{scheme}://{host}{slash}{path}{question}{'&'.join(_parameter(each) for each in query.split('&'))}"


def _parameter(text: str) -> str:
    name, equals, value = text.partition("=")
    if not equals:
        return text
    return text if name in _HARMLESS and "@" not in unquote(value) else f"{name}=…"


def hides_credentials(cls: type[T]) -> type[T]:
    """A class, above all a data class, whose ``repr`` shows URLs as they may be seen."""
    plain = cls.__repr__
    setattr(cls, "__repr__", lambda self: shown(plain(self)))  # noqa: B010 a method cannot be assigned
    return cls
