"""A job on Ray whose processes know of its bucket by ``storage_options`` alone (``support/ray_with_options.py``)."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.engine.files.object_store import Bucket
from support.object_server import KEY, SECRET, ObjectServer

pytestmark = pytest.mark.ray

SCRIPT = Path(__file__).parents[2] / "support" / "ray_with_options.py"
ROWS = 600


@pytest.mark.timeout(300)
def test_every_process_knows_the_options_and_none_tells_them(object_server: ObjectServer, real_bucket: str) -> None:
    bucket = Bucket("s3", real_bucket)
    for part in range(6):
        file = io.BytesIO()
        parquet.write_table(pa.table({"n": pa.array(range(part * 100, part * 100 + 100), pa.int64())}), file)
        bucket.put(f"in/{part}.parquet", file.getvalue())
    options = {"access_key_id": KEY, "secret_access_key": SECRET, "endpoint": object_server.endpoint}
    tests = os.pathsep.join(filter(None, [str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH")]))
    nothing_said = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:  # a short path, for Ray's sockets
        done = subprocess.run(
            [sys.executable, str(SCRIPT), real_bucket],
            input=json.dumps(options | {"region": "us-east-1"}),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            env=nothing_said | {"PYTHONPATH": tests, "TMPDIR": folder},
        )
        logs = [path for path in Path(folder).rglob("*") if path.is_file()]
        assert any("penstock" in path.read_text(errors="replace") for path in logs), "Ray's logs are among them"
        telling = [path for path in logs if {SECRET, KEY} & _words(path.read_bytes())]
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (found["state"], found["clean"], found["restarts"]) == ("finished", True, 1)
    assert found["rows"] == list(range(ROWS))
    assert not telling
    assert not _words((done.stdout + done.stderr).encode())
    assert not [each.key for each in bucket.below("") if _words(bucket.read(each.key))]


def _words(data: bytes) -> set[str]:
    """Those of the words that must not be told which are in the data."""
    return {word for word in (KEY, SECRET) if word.encode() in data}
