"""Jobs in company: many at once, with odd names, in odd locales, over folders that vanish, read by worker processes."""

from __future__ import annotations

import os
import pickle
import secrets
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.core.errors import PenstockError
from support.feeds import batches_of, tables
from support.ray_jobs import expected, gather_flow, written

PATIENCE = 120.0


@pytest.mark.ray
def test_ten_jobs_at_once_have_their_own_rows(cluster: str, tmp_path: Path) -> None:
    jobs = [
        ps.run(
            gather_flow(tmp_path / f"out-{number}"),  # all flows have one name
            name=f"company-{number}",
            parallelism=1,
            checkpoints=ps.Checkpoints(tmp_path / f"state-{number}", every="300ms"),
        )
        for number in range(10)
    ]
    try:
        assert all(job.wait(PATIENCE).audit().clean for job in jobs)
    finally:
        for job in jobs:
            job.shutdown()
    for number in range(10):
        assert written(tmp_path / f"out-{number}").equals(expected().combine_chunks())


ODD = ["with space", "ünï-🚰", "a.b", "star*[1]?", "quote'\"", "-dash", "%20", "x" * 100]


@pytest.mark.parametrize("name", ODD)
def test_names_of_folders_and_columns_may_be_odd(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    pq.write_table(pa.table({name: range(100)}), folder / f"{name}.parquet")
    for decoy in ("star1", "a", "x"):  # what a pattern would match
        (tmp_path / decoy).mkdir()
        pq.write_table(pa.table({name: range(100, 200)}), tmp_path / decoy / "part.parquet")
    flow = ps.Flow("odd")
    flow.read_parquet(folder).write_parquet(tmp_path / f"{name} out")
    job = ps.run_local(flow, checkpoints=tmp_path / f"{name} state")
    assert job.wait(PATIENCE).audit().clean
    found = ds.dataset(sorted(map(str, (tmp_path / f"{name} out").glob("part-*")))).to_table()
    assert sorted(found.column(name).to_pylist()) == list(range(100))


SCRIPT = """
import sys, penstock as ps, pyarrow as pa
flow = ps.Flow("rivers")
table = pa.table({"straße": ["ä", "\\U0001f6b0", "z"] * 50, "n": range(150)})
flow.from_tables([table]).filter("n < 100").write_parquet(sys.argv[1] + "/out")
job = ps.run_local(flow, checkpoints=sys.argv[1] + "/state")
print(ascii(str(job.wait(60).audit())), ascii(job.why()))
"""

LOCALES: list[dict[str, str]] = [
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "POSIX", "TZ": "Pacific/Chatham"},
    {"LANG": "tr_TR.UTF-8", "PYTHONUTF8": "1", "PYTHONHASHSEED": "7", "PYTHONOPTIMIZE": "2"},
]


@pytest.mark.parametrize("locale", LOCALES, ids=lambda each: next(iter(each.values())))
def test_rows_do_not_depend_on_the_locale(tmp_path: Path, locale: dict[str, str]) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG"))}
    (script := tmp_path / "rivers.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, env=environment | locale, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    found = ds.dataset(tmp_path / "out", format="parquet").to_table()
    assert Counter(found.column("straße").to_pylist()) == Counter((["ä", "\U0001f6b0", "z"] * 50)[:100])


@pytest.mark.parametrize("what", ["state", "out"])
@pytest.mark.parametrize("large", [False, True], ids=["state in the log", "state in files"])
def test_folder_that_vanishes_ends_the_job_and_is_named(tmp_path: Path, what: str, large: bool) -> None:
    flow = ps.Flow("vanishing")
    given = tables(100, 10)
    if large:
        given = [table.append_column("name", [[secrets.token_hex(1000) for _ in range(10)]]) for table in given]
    rows = flow.from_tables(given, rate=500)
    rows.write_parquet(tmp_path / "out")
    if large:
        rows.aggregate(["name"], n="count").write_parquet(tmp_path / "counts")
    checkpoints = ps.Checkpoints(
        tmp_path / "state",
        every="50ms",
        alignment="unaligned" if large else "aligned",  # what is in flight is not little
        max_restarts=1,
        restart_delay=0.05,
    )
    with ps.run_local(flow, checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed > 1, PATIENCE)
        assert any((tmp_path / "state").glob("*/state/**/*.arrow")) is large
        (tmp_path / what).rename(tmp_path / "elsewhere")  # at once, unlike removing what is being written to
        with pytest.raises(PenstockError, match=what):
            job.wait(PATIENCE)


LOADER = """
import json, pickle, sys
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

class Slices(IterableDataset):
    def __init__(self, feed):
        self.feed = feed
    def __iter__(self):
        worker = get_worker_info()
        with self.feed.reader(worker.id, worker.num_workers, timeout=60) as reader:
            for records in reader:
                yield worker.id, records.column("n").to_pylist()

if __name__ == "__main__":
    feed = pickle.loads(bytes.fromhex(sys.stdin.read()))
    loader = DataLoader(Slices(feed), batch_size=None, num_workers=2, multiprocessing_context="spawn")
    print(json.dumps(list(loader)))
"""


@pytest.mark.ray
def test_workers_of_a_data_loader_are_ranks(cluster: str, tmp_path: Path) -> None:
    import json

    def flow() -> ps.Flow:
        made = ps.Flow("loader", lanes=4)
        made.from_tables(tables(), name="rows").feed(50)
        return made

    (script := tmp_path / "load.py").write_text(LOADER)
    whole = batches_of(flow())
    checkpoints = ps.Checkpoints(tmp_path / "state", every="200ms")
    with ps.run(flow(), checkpoints=checkpoints) as job:
        handle = pickle.dumps(job.feed()).hex()
        done = subprocess.run(
            [sys.executable, str(script)], input=handle, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        found: list[Any] = json.loads(done.stdout)
        assert job.wait(PATIENCE).audit().clean
    slices = [[rows for worker, rows in found if worker == rank] for rank in range(2)]
    assert [one + two for one, two in zip(*slices, strict=True)] == [[row["n"] for row in batch] for batch in whole]
