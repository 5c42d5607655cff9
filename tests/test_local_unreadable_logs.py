"""Scripts whose job's log cannot be read: they are told which log, why, and what to do, and never get an OSError."""

from __future__ import annotations

import ast
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import StorageError
from penstock.engine.files import object_store
from support.bucket_twin import NO_FAULT, BucketTwin

PATIENCE = 60.0
CHECKOUT = Path(__file__).parent.parent
READERS = {"actors/claims/restart.py", "actors/hosting/coordinator_host.py"}
"""Who may read a log by the function that lets OSError pass: within ``naming_log``, which gives them words."""


def flow(rate: float = 0.0) -> ps.Flow:
    made = ps.Flow("daily")
    made.from_tables([pa.table({"n": [number]}) for number in range(50)], rate=rate).collect("rows")
    return made


def start(state: str, rate: float = 0.0) -> ps.Job:
    return ps.run_local(flow(rate), checkpoints=ps.Checkpoints(state, every=None))


def loop(state: Path) -> Path:
    """Let the first entry of the log be a link that leads to itself; where it was moved to."""
    folder = state / "daily" / "log"
    folder.mkdir(parents=True, exist_ok=True)
    entry = min(folder.iterdir(), default=folder / "000000000000.json")
    aside = state / "aside"
    if entry.exists():
        entry.rename(aside)
    entry.symlink_to(entry.name)
    return aside


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Lets nobody answer where object stores are looked for, from now on: a port that is ours, and on which nobody
    listens."""
    for name in ("_RETRIES", "_PATIENT"):
        monkeypatch.setattr(object_store, name, {"max_retries": 0})
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"

        def leave() -> None:
            for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("AWS_REGION", "us-east-1")
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            object_store._client.cache_clear()

        yield leave
        object_store._client.cache_clear()


@contextmanager
def told(place: str, reason: str, remedy: str) -> Iterator[None]:
    with pytest.raises(StorageError) as caught:
        yield
    assert caught.value.message.startswith(f"cannot read the log of job 'daily' in {place}: ")
    assert reason in caught.value.message
    assert remedy in caught.value.remedy


def nobody_answers(bucket: str) -> tuple[str, str, str]:
    return f"s3://{bucket}/state", "HTTP error", "AWS_ENDPOINT_URL"


def leads_to_itself(state: Path) -> tuple[str, str, str]:
    return (
        f"{state}/daily/log/000000000000.json",
        "Too many levels of symbolic links",
        "check that the storage is there",
    )


def test_run_in_a_store_that_nobody_reaches_is_refused_in_words(unreachable: Callable[[], None]) -> None:
    unreachable()
    with told(*nobody_answers("nobody-run")):
        start("s3://nobody-run/state")


def test_run_over_a_log_that_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    loop(tmp_path)
    with told(*leads_to_itself(tmp_path)):
        start(str(tmp_path))


def test_audit_of_a_job_whose_store_is_out_of_reach_is_refused_in_words(
    unreachable: Callable[[], None], bucket: str
) -> None:
    with start(f"s3://{bucket}/state", rate=1) as job:
        job.wait_until(lambda status: status.state == "running", PATIENCE)
        unreachable()
        with told(*nobody_answers(bucket)):
            job.audit()


def test_end_of_a_job_waits_once_for_a_store_that_is_out_of_reach(
    buckets: BucketTwin, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_RETRIES", "_PATIENT"):
        monkeypatch.setattr(object_store, name, {"max_retries": 0})
    object_store._client.cache_clear()
    job = start(f"s3://{bucket}/state", rate=1)
    job.wait_until(lambda status: status.state == "running", PATIENCE)
    before = len(buckets.requests)
    buckets.faults = lambda method, key, done: False if done else 503
    job.shutdown()
    buckets.faults = NO_FAULT
    object_store._client.cache_clear()
    assert [status for _, _, status in buckets.requests[before:]] == [503]


def test_audit_over_a_log_that_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    with start(str(tmp_path), rate=1) as job:
        job.wait_until(lambda status: status.state == "running", PATIENCE)
        aside = loop(tmp_path)
        with told(*leads_to_itself(tmp_path)):
            job.audit()
        aside.replace(tmp_path / "daily" / "log" / "000000000000.json")


def test_retiring_by_a_store_that_nobody_reaches_is_refused_in_words(
    unreachable: Callable[[], None], tmp_path: Path
) -> None:
    unreachable()
    with told(*nobody_answers("nobody-retire")):
        ps.retire_output("s3://nobody-retire/state/daily", tmp_path)


def test_retiring_by_a_log_that_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    loop(tmp_path)
    with told(*leads_to_itself(tmp_path)):
        ps.retire_output(tmp_path / "daily", tmp_path / "out")


def test_who_is_not_let_in_learns_where_that_is_said_and_the_store_is_asked_once(
    buckets: BucketTwin, bucket: str, tmp_path: Path
) -> None:
    buckets.faults = lambda method, key, done: False if done else 403
    with told(f"s3://{bucket}/state", "Permission denied", "AWS_ACCESS_KEY_ID"):
        ps.retire_output(f"s3://{bucket}/state/daily", tmp_path)
    assert len(buckets.requests) == 1


def test_restart_of_a_job_whose_store_is_out_of_reach_is_refused_in_words(unreachable: Callable[[], None]) -> None:
    unreachable()
    with told(*nobody_answers("nobody-restart")):
        ps.run_local(flow(), checkpoints="s3://nobody-restart/state", resume="restart")


def test_restart_over_a_log_that_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    loop(tmp_path)
    with told(*leads_to_itself(tmp_path)):
        ps.run_local(flow(), checkpoints=tmp_path, resume="restart")


def test_start_from_a_snapshot_that_is_out_of_reach_is_refused_in_words(
    unreachable: Callable[[], None], tmp_path: Path
) -> None:
    unreachable()
    with pytest.raises(StorageError, match="cannot look for a savepoint in s3://nobody-saved/here: "):
        ps.run_local(flow(), checkpoints=tmp_path, from_snapshot="s3://nobody-saved/here")


def test_only_these_modules_read_logs_with_os_errors_that_pass() -> None:
    found = {
        str(path.relative_to(CHECKOUT))
        for folder in ("engine", "coordinator", "actors", "jobs")
        for path in (CHECKOUT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and {each.name for each in node.names} & {"read_log", "read_entries"}
    }
    assert found == READERS
