"""``storage_options``: they reach a bucket of which the environment says nothing, and are told to nobody."""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, dataset, parquet
from pyspark import cloudpickle

import penstock as ps
from penstock.actors.feed.tcp_link import TcpRoute
from penstock.actors.spark.stage import find_stage, stage_with
from penstock.actors.spark.staged_splits import StagedPartition
from penstock.actors.spark.store_arguments import store_arguments
from penstock.actors.spark.writing import make_writer
from penstock.actors.transport.dialling import Secrets
from penstock.engine.core import shown as shown_texts
from penstock.engine.core.errors import PenstockError
from penstock.engine.core.shown import shown
from penstock.engine.files import object_store, store_options
from penstock.engine.files.object_store import Bucket
from penstock.engine.files.paths import resolve
from penstock.engine.planner.pipelines import plan_job
from support.object_server import KEY, SECRET, ObjectServer

PATIENCE = 60.0
ROWS = 300


@pytest.fixture(autouse=True)
def forgets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is given in one test holds in no other one."""
    monkeypatch.setattr(store_options, "_GIVEN", {})
    monkeypatch.setattr(shown_texts, "_HIDDEN", set())
    yield
    object_store._client.cache_clear()


@pytest.fixture
def options(object_server: ObjectServer, real_bucket: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """How to get to the bucket, of which the environment says nothing any more."""
    for name in object_server.environment():
        monkeypatch.delenv(name)
    object_store._client.cache_clear()
    object_store._ANSWERED.clear()
    said = {"access_key_id": KEY, "secret_access_key": SECRET, "endpoint": object_server.endpoint}
    return said | {"region": "us-east-1", "allow_http": "true"}


def fill(bucket: str) -> None:
    table = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    for part in range(3):
        file = io.BytesIO()
        parquet.write_table(table.slice(part * ROWS // 3, ROWS // 3), file)
        Bucket("s3", bucket).put(f"in/{part}.parquet", file.getvalue())
    file = io.BytesIO()
    csv.write_csv(table, file)
    Bucket("s3", bucket).put("csv/rows.csv", file.getvalue())


def read(address: str) -> list[int]:
    filesystem, folder = resolve(address)
    return sorted(dataset.dataset(folder, format="parquet", filesystem=filesystem).to_table()["n"].to_pylist())


def flow_of(bucket: str, options: dict[str, str] | None, rate: float = 0.0) -> ps.Flow:
    flow = ps.Flow("daily", lanes=4)
    rows = flow.read_parquet(f"s3://{bucket}/in", name="rows", rate=rate, storage_options=options)
    rows.write_parquet(f"s3://{bucket}/out", name="out", storage_options=options)
    return flow


def objects(bucket: str) -> Iterator[tuple[str, bytes]]:
    for each in Bucket("s3", bucket).below(""):
        yield each.key, Bucket("s3", bucket).read(each.key)


def test_job_goes_on_with_renewed_options_that_are_told_and_written_nowhere(
    options: dict[str, str], real_bucket: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(PenstockError):  # nobody has said who asks
        flow_of(real_bucket, None)
    told: list[str] = []
    first = ps.Checkpoints(f"s3://{real_bucket}/state", every="30ms", storage_options=options)
    fill(real_bucket)
    flow = flow_of(real_bucket, options, 200.0)
    with ps.run_local(flow, checkpoints=first, audit="content") as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
        told += [*job.why(), repr(job), repr(job.status()), job.savepoint(timeout=PATIENCE).path]
    told += [repr(first), repr(flow), flow.explain(), str(plan_job(flow, 1)), *(repr(node) for node in flow.nodes)]
    renewed = options | {"virtual_hosted_style_request": "false"}
    again = ps.Checkpoints(f"s3://{real_bucket}/state", every="30ms", storage_options=renewed)
    job = ps.run_local(flow_of(real_bucket, renewed), checkpoints=again, audit="content", resume="must").wait(PATIENCE)
    told += [repr(job.status()), str(job.audit())]
    assert job.audit().clean
    assert read(f"s3://{real_bucket}/out") == list(range(ROWS))
    printed = capfd.readouterr()
    texts = "\n".join([*told, caplog.text, printed.out, printed.err])
    assert SECRET not in texts
    assert KEY not in texts
    stored = list(objects(real_bucket))
    assert any("state/daily/log" in key for key, _ in stored)
    assert not [key for key, data in stored if SECRET.encode() in data or KEY.encode() in data]


def test_each_source_and_the_sink_take_them(options: dict[str, str], real_bucket: str, tmp_path: Path) -> None:
    ps.Checkpoints(f"s3://{real_bucket}/state", storage_options=options)
    fill(real_bucket)
    store_options._GIVEN.clear()
    object_store._ANSWERED.clear()
    flow = ps.Flow("both")
    rows = flow.read_csv(f"s3://{real_bucket}/csv", storage_options=options)
    rows.write_parquet(f"s3://{real_bucket}/of-csv", storage_options=options)
    ps.run_local(flow, checkpoints=tmp_path).wait(PATIENCE)
    assert read(f"s3://{real_bucket}/of-csv") == list(range(ROWS))


def test_fingerprint_is_that_of_the_same_flow_without_them(options: dict[str, str], real_bucket: str) -> None:
    ps.Checkpoints(f"s3://{real_bucket}/state", storage_options=options)
    fill(real_bucket)
    with_them, without = flow_of(real_bucket, options), flow_of(real_bucket, None)
    assert plan_job(with_them, 1).fingerprint == plan_job(without, 1).fingerprint
    assert [node.config for node in with_them.nodes] == [node.config for node in without.nodes]


def test_plan_brings_them_into_another_process(options: dict[str, str], real_bucket: str) -> None:
    ps.Checkpoints(f"s3://{real_bucket}/state", storage_options=options)
    fill(real_bucket)
    code = "import pickle, sys; plan = pickle.load(sys.stdin.buffer); from penstock.engine.files.object_store import *"
    code += "; print(len(list(Bucket('s3', sys.argv[1]).below('in'))), plan, plan.access)"
    words = [sys.executable, "-c", code, real_bucket]
    for plan, answer in ((plan_job(flow_of(real_bucket, options), 1), "3 "), (plan_job(local_flow(), 1), "")):
        done = subprocess.run(words, input=pickle.dumps(plan), capture_output=True, check=False, timeout=PATIENCE)
        assert done.stdout.decode().startswith(answer), done.stderr.decode()
        assert bool(done.returncode) == (not answer)
        assert SECRET.encode() not in done.stdout + done.stderr


def local_flow() -> ps.Flow:
    flow = ps.Flow("local")
    flow.from_tables([pa.table({"n": [1]})]).collect("rows")
    return flow


def test_parts_of_a_job_that_say_different_things_of_a_bucket_are_refused(
    options: dict[str, str], real_bucket: str
) -> None:
    ps.Checkpoints(f"s3://{real_bucket}/state", storage_options=options)
    fill(real_bucket)
    flow = flow_of(real_bucket, options)
    other = ps.Checkpoints(f"s3://{real_bucket}/state", storage_options=options | {"region": "eu-west-1"})
    with pytest.raises(PenstockError, match=f"storage_options of s3://{real_bucket} differ") as caught:
        ps.run_local(flow, checkpoints=other)
    assert SECRET not in str(caught.value)
    assert not [key for key, _ in objects(real_bucket) if key.startswith(("state/daily/log", "out"))]


def test_bucket_that_is_in_use_does_not_become_another_one(options: dict[str, str], real_bucket: str) -> None:
    ps.Checkpoints(f"s3://{real_bucket}/state", storage_options=options)
    fill(real_bucket)
    with pytest.raises(PenstockError, match="another endpoint"):
        ps.Checkpoints(f"s3://{real_bucket}/state", storage_options=options | {"endpoint": "http://127.0.0.1:9"})


def test_wrong_key_is_an_error_that_tells_none(options: dict[str, str], real_bucket: str) -> None:
    wrong = options | {"secret_access_key": "another-secret-of-nobody"}
    with pytest.raises(PenstockError) as caught:
        ps.run_local(local_flow(), checkpoints=ps.Checkpoints(f"s3://{real_bucket}/state", storage_options=wrong))
    assert not any(word in f"{caught.value!r} {caught.value}" for word in (SECRET, KEY, wrong["secret_access_key"]))


HIDDEN = "hidden-secret-word"


@pytest.mark.parametrize(
    ("folder", "options", "says"),
    [
        ("s3://some/where", {"acess_key_id": HIDDEN}, "did you mean 'access_key_id'"),
        ("gs://some/where", {"secret_access_key": HIDDEN}, "gs:// knows no 'secret_access_key'"),
        ("az://some/where", {"acount_key": HIDDEN}, "did you mean 'account_key'"),
        ("s3://some/where", {"access_key_id": HIDDEN}, "there is no 'secret_access_key'"),
        ("s3://some/where", {"session_token": HIDDEN}, "has no key"),
        ("s3://some/where", {"region": ""}, "'region' is empty"),
        ("s3://some/where", {"endpoint": "localhost:9000"}, "the endpoint is no URL"),
        ("s3://some/where", {"endpoint": f"http://me:{HIDDEN}@host"}, "the endpoint is no URL"),
        ("s3://some/where", {"region": "a", "AWS_REGION": "b"}, "given twice"),
        ("s3://some/where", {"access_key_id": HIDDEN, "secret_access_key": 5}, "storage_options=… does not fit"),
        ("s3://some/where", HIDDEN, "storage_options=… does not fit"),
        ("/some/where", {"region": "a"}, "is in no bucket"),
    ],
)
def test_wrong_options_are_refused_at_once(folder: str, options: Any, says: str) -> None:
    for make in (ps.Checkpoints, ParquetSink, ps.Flow("some").read_parquet):
        with pytest.raises(PenstockError, match=says) as caught:
            make(folder, storage_options=options)
        assert HIDDEN not in str(caught.value)


def test_endpoint_of_the_environment_that_is_no_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(PenstockError, match=r"the endpoint is no URL(.|\n)*http://host:port"):
        ps.run_local(local_flow(), checkpoints="s3://some-of-localhost/where")


def ParquetSink(path: str, storage_options: Any) -> None:  # noqa: N802 as the others
    ps.Flow("some").from_tables([pa.table({"n": [1]})]).write_parquet(path, storage_options=storage_options)


def test_address_that_says_so_too_is_refused() -> None:
    with pytest.raises(PenstockError, match="says what storage_options say too") as caught:
        ps.Flow("some").read_csv(f"s3://me:{HIDDEN}@some/where", storage_options={"region": "a"})
    assert HIDDEN not in str(caught.value)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_library_knows_every_name(scheme: str) -> None:
    """A name that it does not know would be refused where a job runs, not where it was written."""
    from obstore.exceptions import BaseError, UnknownConfigurationKeyError

    kinds: dict[str, Callable[..., Any]] = {
        "s3": object_store._stores().S3Store,
        "gs": object_store._stores().GCSStore,
        "az": object_store._stores().AzureStore,
    }
    for name in store_options._NAMES[scheme]:
        try:
            kinds[scheme]("some", config={name: "x"})
        except UnknownConfigurationKeyError:
            pytest.fail(f"{name} is unknown")
        except BaseError:
            pass  # a value of it is no such thing
    connection = {"allow_http": "true", "allow_invalid_certificates": "true", "proxy_url": "http://127.0.0.1:9"}
    assert set(connection) == set(store_options._CLIENT)
    needed = {"account_name": "some"} if scheme == "az" else {}
    assert kinds[scheme]("some", config=needed, client_options=connection) is not None


def test_hidden_words_are_in_no_text() -> None:
    shown_texts.hide([HIDDEN, "abc"])
    assert shown(f"the {HIDDEN} of abc") == "the … of abc"
    assert HIDDEN not in str(PenstockError(f"no {HIDDEN}", HIDDEN, detail=HIDDEN))


def test_given_key_goes_without_the_session_of_the_environment(
    options: dict[str, str], real_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "AWS_SESSION_TOKEN", "of-somebody-else")
    monkeypatch.setitem(os.environ, "AWS_ACCESS_KEY_ID", "somebody-else")
    ps.Checkpoints(f"s3://{real_bucket}/state", storage_options=options)
    client = object_store._client("s3", real_bucket, store_options.given("s3", real_bucket), False)
    asked = client.credential_provider()
    assert (asked["access_key_id"], asked["token"]) == (KEY, None)
    fill(real_bucket)


def test_handle_of_a_feed_brings_them_to_its_readers() -> None:
    options = object_store.storage_options(["s3://some/where"], {"region": "eu-west-1"})
    assert options is not None
    route = TcpRoute("s3://some/where", "job", "feed", Secrets(b"t" * 32), options.access)
    sent = pickle.dumps(route)
    store_options._GIVEN.clear()
    assert pickle.loads(sent) == route
    assert store_options.given("s3", "some") == (("region", "eu-west-1"),)


def test_writers_of_staged_rows_bring_them_and_leave_them_nowhere(options: dict[str, str], real_bucket: str) -> None:
    """As Spark's Python workers, which know of the bucket what was pickled."""
    table = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    folder = f"s3://{real_bucket}/state of [1]"
    ps.Checkpoints(folder, storage_options=options)

    def write(place: str) -> tuple[StagedPartition, ...]:
        writer = make_writer(place, bytes(table.schema.serialize()), 64, (0, "7"), store=store_arguments(place))
        assert SECRET not in place
        sent = base64.b64encode(cloudpickle.dumps((writer, table.to_batches()))).decode()
        script = "import base64, pickle, sys; write, rows = pickle.loads(base64.b64decode(sys.stdin.read()))\n"
        script += "(answer,) = write(iter(rows)); import json; print(json.dumps(answer.to_pylist()[0]))"
        done = subprocess.run(
            [sys.executable, "-I", "-c", script], input=sent, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout)
        return (StagedPartition(row["file"], row["rows"], row["bytes"], row["digest"]),)

    staged = stage_with(write, table.schema, folder, "job", "rows")
    found = find_stage(folder, "job", "rows", staged.fingerprint)
    assert found is not None
    for each in (staged, found):
        assert pa.Table.from_batches(each.splits()[0].open(0), table.schema) == table
    for key, data in objects(real_bucket):
        assert SECRET.encode() not in data, key
    assert SECRET not in repr(staged)


@pytest.mark.parametrize(
    ("address", "said", "named"),
    [
        ("s3://some", {"request_payer": "true"}, "request_payer of storage_options"),
        ("s3://some", {"allow_invalid_certificates": "true"}, "allow_invalid_certificates"),
        ("gs://some", {"bearer_token": "a-secret-token"}, "what storage_options say"),
    ],
)
def test_rows_are_not_staged_where_executors_cannot_be_told_the_way(
    address: str, said: dict[str, str], named: str
) -> None:
    object_store.storage_options([address], said)
    with pytest.raises(PenstockError, match=f"rows cannot be staged in {address}: .* {named}") as refused:
        store_arguments(f"{address}/state")
    assert "a-secret-token" not in str(refused.value)


def test_options_are_told_in_the_words_of_pyarrow() -> None:
    said = {"access_key_id": "mine", "secret_access_key": "of-mine", "session_token": "for-now", "region": "eu-west-1"}
    said |= {"endpoint": "http://host:9000/", "allow_http": "true", "proxy_url": "http://proxy:1"}
    object_store.storage_options(["s3://some"], said)
    assert store_arguments("s3://some/where else") == {
        **{"access_key": "mine", "secret_key": "of-mine", "session_token": "for-now", "region": "eu-west-1"},
        **{"scheme": "http", "endpoint_override": "host:9000", "proxy_options": "http://proxy:1"},
    }
    object_store.storage_options(["s3://open"], {"skip_signature": "true", "virtual_hosted_style_request": "false"})
    assert store_arguments("s3://open") == {"anonymous": True, "force_virtual_addressing": False}
    assert store_arguments("s3://other") is None
    assert store_arguments("/state") is None
