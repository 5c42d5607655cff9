"""What writers outside this package are told of a bucket: Spark's Python workers have nothing but pyarrow.

Rules:

1. Options that a user gave of a bucket (``storage_options=``) go into the writer itself, in pyarrow's words. They are
   in no address, log or manifest.
2. What pyarrow has no words for is refused, by the option's name and without its value, before Spark is asked.
3. Of what no options say anything, the environment of the executors does.
"""

from __future__ import annotations

from typing import Any

from ...engine.core.errors import ConfigurationError
from ...engine.files.object_store import bucket_of
from ...engine.files.store_options import given

_SAME = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "region": "region",
    "proxy_url": "proxy_options",
}
_SWITCHES = {"skip_signature": "anonymous", "virtual_hosted_style_request": "force_virtual_addressing"}
_TRUE = ("true", "1", "yes", "y", "on")
StoreArguments = dict[str, Any]


def store_arguments(address: str) -> StoreArguments | None:
    """The arguments of ``pyarrow.fs.S3FileSystem`` for an address; None: no options say anything of it. Raises
    ConfigurationError (rule 2)."""
    found = bucket_of(address)
    settings = {} if found is None else dict(given(found[0].scheme, found[0].name))
    if found is None or not settings:
        return None
    if found[0].scheme != "s3":
        raise _refused(found[0].address, "what storage_options say", "of it")
    made: StoreArguments = {}
    for name, value in settings.items():
        if name in _SAME:
            made[_SAME[name]] = value
        elif name in _SWITCHES:
            made[_SWITCHES[name]] = value.lower() in _TRUE
        elif name == "endpoint":
            made["scheme"], _, made["endpoint_override"] = value.rstrip("/").partition("://")
        elif name != "allow_http":  # of an endpoint, whose address says it
            raise _refused(found[0].address, name, "of storage_options")
    return made


def _refused(place: str, name: str, where: str) -> ConfigurationError:
    return ConfigurationError(
        f"rows cannot be staged in {place}: Spark's executors cannot be told {name} {where}",
        "say it in the environment, also of the executors, or choose another checkpoint folder",
    )
