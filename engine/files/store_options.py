"""What a user says of object stores beside their addresses (``storage_options=``): who asks, and how to get there.

Rules:

1. Options hold for a bucket, in all of a process, and what was given last is what holds: a job that goes on may have
   new credentials. Buckets of which nothing is given are reached as the environment says.
2. They travel with a job's plan, and with the handles of its feeds: whatever process a ``StoreAccess`` arrives in knows
   them. They are written down nowhere, belong to no fingerprint and no ``repr``, and all text that leaves is without
   what may be a secret among them (``core.shown``).
3. The parts of a job (checkpoints, sources, sinks) that name options for the same bucket name the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, TypeAlias

from ..core.errors import ConfigurationError
from ..core.shown import hide

Settings: TypeAlias = tuple[tuple[str, str], ...]
"""Sorted by name."""

_CLIENT = ("allow_http", "allow_invalid_certificates", "proxy_url")
_NAMES = {
    "s3": (
        *("access_key_id", "secret_access_key", "session_token", "skip_signature", "region", "endpoint"),
        *("virtual_hosted_style_request", "role_arn", "role_session_name", "web_identity_token_file"),
        *("server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled", "request_payer", "unsigned_payload"),
    ),
    "gs": ("service_account", "service_account_key", "application_credentials", "bearer_token", "skip_signature"),
    "az": (
        *("account_name", "account_key", "sas_key", "bearer_token", "client_id", "client_secret", "tenant_id"),
        *("authority_host", "federated_token_file", "use_azure_cli", "skip_signature", "endpoint"),
    ),
}
"""By scheme: names of obstore's."""
_PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_"}
"""The environment's names are taken, too: AWS_ACCESS_KEY_ID is access_key_id."""
_SECRET = {
    *("access_key_id", "secret_access_key", "session_token", "sse_kms_key_id", "service_account_key", "bearer_token"),
    *("account_key", "sas_key", "client_secret", "proxy_url"),
}
"""Names whose values no text has."""

_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.%]+\]|[\w.-]+)(:\d+)?(/[^\s?#]*)?")

_GIVEN: dict[tuple[str, str], Settings] = {}
"""By scheme and bucket: what holds in this process."""


def given(scheme: str, bucket: str) -> Settings:
    """What the user has said of a bucket; nothing: the environment does."""
    return _GIVEN.get((scheme, bucket), ())


def client_part(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What the store's library takes of settings as the store's, and as those of the connection."""
    client = {name: value for name, value in settings.items() if name in _CLIENT}
    return {name: value for name, value in settings.items() if name not in client}, client


def checked_settings(scheme: str, options: Mapping[str, str]) -> Settings:
    """The options of a scheme's store by their own names. Raises ConfigurationError, which tells no values."""
    known, found = (*_NAMES[scheme], *_CLIENT), dict[str, str]()
    for said, value in options.items():
        name = said.lower().removeprefix(_PREFIXES[scheme])
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(
                f"storage_options: {scheme}:// knows no {said!r}{hint}", f"give some of {', '.join(known)}"
            )
        if name in found or not value:
            what = "is given twice" if name in found else "is empty"
            raise ConfigurationError(f"storage_options: {said!r} {what}", "give each option once, with its value")
        found[name] = value
    if scheme == "s3" and (("access_key_id" in found) != ("secret_access_key" in found)):
        lacks = "secret_access_key" if "access_key_id" in found else "access_key_id"
        raise ConfigurationError(f"storage_options: there is no {lacks!r}", "give both parts of the key")
    if "session_token" in found and "access_key_id" not in found:
        raise ConfigurationError("storage_options: 'session_token' has no key", "give the key that it belongs to")
    if "endpoint" in found:
        check_endpoint(scheme, found["endpoint"])
    return tuple(sorted(found.items()))


def check_endpoint(scheme: str, endpoint: str) -> None:
    """Raises ConfigurationError, which does not tell it, for one that is no URL: the library would panic."""
    if not _URL.fullmatch(endpoint):
        raise ConfigurationError(
            f"{scheme}://: the endpoint is no URL",
            "write http://host:port or https://host:port, in the environment, too",
        )


class StorageOptions(Mapping[str, str]):
    """Options as a config holds them, and of which buckets they are."""

    def __init__(self, options: Mapping[str, str], access: StoreAccess) -> None:
        self._options = dict(options)
        self.access = access

    def __getitem__(self, name: str) -> str:
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __repr__(self) -> str:
        return "StorageOptions(…)"


class StoreAccess:
    """Options by bucket. Where it arrives, they hold (rule 2)."""

    def __init__(self, settings: Mapping[tuple[str, str], Settings] = MappingProxyType({})) -> None:
        self._settings = dict(settings)

    def __repr__(self) -> str:
        return "StoreAccess(…)" if self._settings else "StoreAccess()"

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self._settings,)

    def use(self) -> None:
        """From now on they hold in this process."""
        for settings in self._settings.values():
            hide(value for name, value in settings if name in _SECRET)
        _GIVEN.update(self._settings)

    def with_those_of(self, parts: Iterable[object]) -> StoreAccess:
        """These and the ones of other parts of the job, which are used from now on. Raises ConfigurationError (rule 3),
        which names the bucket."""
        found = dict(self._settings)
        for options in (getattr(part, "storage_options", None) for part in parts):
            if not isinstance(options, StorageOptions):
                continue
            for bucket, settings in options.access._settings.items():
                if found.setdefault(bucket, settings) != settings:
                    scheme, name = bucket
                    raise ConfigurationError(
                        f"storage_options of {scheme}://{name} differ between parts of the job",
                        "give the same ones with everything in a bucket, or give them once: they hold for the bucket",
                    )
        made = StoreAccess(found)
        made.use()
        return made


def _arrived(settings: Mapping[tuple[str, str], Settings]) -> StoreAccess:
    access = StoreAccess(settings)
    access.use()
    return access
