"""What people and logs see of URLs and secrets: never a credential, whatever shows it."""

from __future__ import annotations

import importlib
import json
import logging
import pickle
import pkgutil
import traceback
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.actors.feed.tcp_link import TcpRoute
from penstock.actors.hosting.logs import JsonLines
from penstock.actors.job.options import DriverOptions
from penstock.actors.transport.dialling import Secrets
from penstock.actors.transport.tls import Certificate, make_certificate
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.core.shown import shown
from penstock.engine.files.paths import resolve
from penstock.engine.sinks.parquet import ParquetSink
from penstock.engine.sources.csv import CsvSource

URL = "s3://AKIAKEY:hid%2Fden@bucket/data?region=eu-west-1&secret_key=hidden2"
SHOWN = "s3://bucket/data?region=eu-west-1&secret_key=…"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("/data/a@b?c=d", "/data/a@b?c=d"),
        ("s3://bucket/user@domain/x", "s3://bucket/user@domain/x"),
        (URL, SHOWN),
        ("s3://KEY:sec/ret@bucket/x", "s3://bucket/x"),
        ("s3://KEY:se/cr/et@bucket", "s3://bucket"),
        ("hdfs://user@name:8020/x", "hdfs://name:8020/x"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("s3://b/x?endpoint_override=http%3A%2F%2Fu%3Apw%40h&scheme=http", "s3://b/x?endpoint_override=…&scheme=http"),
        (f"cannot read '{URL}': gone, nor {URL}", f"cannot read '{SHOWN}': gone, nor {SHOWN}"),
        ("https://store/x?X-Amz-Signature=abc#part", "https://store/x?X-Amz-Signature=…"),
        ("postgresql+psycopg://me:pw@db:5432/x", "postgresql+psycopg://db:5432/x"),
    ],
)
def test_credentials_are_taken_out_of_urls_and_nothing_else(text: str, seen: str) -> None:
    assert shown(text) == seen
    assert shown(seen) == seen


def test_traceback_of_an_address_that_leads_nowhere_holds_no_credentials() -> None:
    with pytest.raises(ConfigurationError, match="Unrecognized filesystem type in URI: ftp://bucket/data") as raised:
        resolve(URL.replace("s3://", "ftp://").partition("?")[0])
    assert "hid%2Fden" not in "".join(traceback.format_exception(raised.value))


SECRET = some.text("abcXYZ019+=%:._-~/", min_size=8, max_size=30)


@given(
    SECRET.map(lambda text: f"Q{text}Q"),
    some.sampled_from(["s3://key:{}@bucket/x", "s3://key:{}:x@b/y", "s3://b?token={}"]),
)
def test_secret_is_not_in_what_is_shown_of_a_url(secret: str, form: str) -> None:
    text = shown(f"before {form.format(secret)} behind")
    assert secret not in text
    assert text.startswith("before s3://b")
    assert text.endswith(" behind")


def test_errors_logs_and_reprs_show_no_credentials() -> None:
    error = ConfigurationError(f"{URL} is gone", f"look at {URL}", "source", f"Traceback of {URL}")
    line = logging.LogRecord("penstock", logging.INFO, "", 0, "reads %s", (URL,), None)
    line.reason = f"{URL} is gone"
    certificate = make_certificate("job")
    secrets = Secrets(b"tokenhidden", certificate)
    texts = [
        str(error),
        repr(error),
        str(pickle.loads(pickle.dumps(error))),
        str(error.at("other")),
        JsonLines(job="j").format(line),
        *map(repr, (ParquetSink(URL), CsvSource([URL]), TcpRoute(URL, "job", "feed", secrets))),
        repr(DriverOptions("slot", URL, None, b"tokenhidden", certificate=certificate)),  # type: ignore[arg-type]
        repr(secrets),
        repr(certificate),
    ]
    for text in texts:
        assert "hid" not in text
        assert "PRIVATE" not in text
        assert "AKIA" not in text
    assert json.loads(texts[4])["reason"] == f"{SHOWN} is gone"


def test_place_that_cannot_be_reached_is_named_without_its_credentials() -> None:
    with pytest.raises(ConfigurationError) as raised:
        resolve("bogus://key:hidden@bucket/x")
    assert "bogus://bucket/x cannot be reached" in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_whatever_has_a_secret_for_a_field_keeps_it_out_of_its_repr() -> None:
    """Of every data class of the package: a field of such a name is not shown."""
    names, found = {"token", "secret", "secrets", "certificate", "password"}, 0
    for module in modules("penstock.actors"):
        for kind in vars(module).values():
            if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__:
                for each in fields(kind):
                    if each.name in names and (kind, each.name) != (Certificate, "certificate"):
                        found += 1
                        assert not each.repr, f"{kind.__qualname__}.{each.name}"
    assert found >= 6


def modules(package: str) -> list[Any]:
    root = importlib.import_module(package)
    names = [each.name for each in pkgutil.walk_packages(root.__path__, package + ".")]
    return [importlib.import_module(name) for name in names if ".spark" not in name]
