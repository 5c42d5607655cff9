"""Folders of one job that lie within each other are refused when it is planned."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.files.nesting import check_nesting, check_savepoint
from support.bucket_twin import BucketTwin

TABLE = pa.table({"k": [1, 2]})


@pytest.mark.parametrize(
    ("sinks", "sources", "checkpoints", "told"),
    [
        (["/a", "/a/b"], [], "", "sink-1: writes to /a/b, and sink-0 to /a"),
        (["/a/b", "/a"], [], "", "sink-1: writes to /a, and sink-0 to /a/b"),
        (["/in/out"], ["/in"], "", "sink-0: writes to /in/out, and source-0 reads /in"),
        (["/out"], ["/out"], "", "source-0 reads /out"),
        (["/out"], ["/out/day/a.parquet"], "", "source-0 reads /out/day/a.parquet"),
        (["/state/out"], [], "/state", "within the checkpoint folder /state"),
        (["/state"], [], "/state", "within the checkpoint folder /state"),
        (["/out"], [], "/out/state", "the checkpoint folder /out/state lies among its data, in /out"),
        (["/out"], ["/in"], "/in/state", "source-0: the checkpoint folder /in/state lies among its data"),
        (["/out"], ["/in"], "/in", "source-0: the checkpoint folder /in lies among its data"),
        (["s3://b/a", "s3://b/a/c/"], [], "", "writes to s3://b/a/c, and sink-0 to s3://b/a"),
        (["s3://b/a", "s3://key:secret@b/a/c"], [], "", "writes to s3://b/a/c, and sink-0 to s3://b/a"),
        (["s3://b/in/out"], ["s3://key:secret@b/in?region=x"], "", "and source-0 reads s3://b/in"),
        (["s3://b/%61"], ["s3://b//a/c"], "", "writes to s3://b/a, and source-0 reads s3://b/a/c"),
        (["s3://anonymous@b/state/out"], [], "s3://b/state", "within the checkpoint folder s3://b/state"),
    ],
)
def test_places_within_each_other_are_refused(
    sinks: list[str], sources: list[str], checkpoints: str, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        check_nesting(named("sink", sinks), named("source", sources), checkpoints)


@pytest.mark.parametrize(
    ("sinks", "sources", "checkpoints"),
    [
        (["/a", "/ab", "/a-b"], ["/in"], "/state"),
        (["/out/one", "/out/two"], ["/in"], "/out/state"),
        (["/out"], ["/in"], "/out/_state"),
        (["/append", "/append"], ["/in", "/in"], ""),
        ([""], ["/state/job/staged"], "/state"),
        (["s3://b/a"], ["/b/a"], "/b"),
        (["s3://b/a"], ["gs://b/a", "s3://b/a?endpoint_override=elsewhere:9000"], ""),
    ],
)
def test_places_beside_each_other_are_not(sinks: list[str], sources: list[str], checkpoints: str) -> None:
    check_nesting(named("sink", sinks), named("source", sources), checkpoints)


def test_the_endpoint_of_the_environment_makes_no_other_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    here = "s3://k:s@b/a/c?scheme=http&endpoint_override=store:9000"
    with pytest.raises(ConfigurationError, match="writes to s3://b/a/c, and source-0 reads s3://b/a"):
        check_nesting([("sink-0", here)], [("source-0", "s3://b/a")], "")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("/out", "among the data of out"),
        ("/out/saved", "among the data of out"),
        ("/in/saved", "among the data of rows"),
        ("s3://b/in/saved", "among the data of more"),
        ("/state", "among the checkpoints"),
        ("/state/job", "among the checkpoints"),
        ("/state/job/state", "among the checkpoints"),
    ],
)
def test_a_savepoint_among_other_things_is_refused(place: str, told: str) -> None:
    data = [("out", "/out"), ("rows", "/in"), ("more", "s3://key:secret@b/in")]
    with pytest.raises(ConfigurationError, match=told):
        check_savepoint(place, data, "/state/job")


@pytest.mark.parametrize("place", ["/saved", "/out/_saved", "/state/saved", "/state/job/savepoints/mine", "s3://b/i"])
def test_a_savepoint_beside_them_is_not(place: str) -> None:
    check_savepoint(place, [("out", "/out"), ("more", "s3://b/in"), ("none", "")], "/state/job")


def named(kind: str, places: list[str]) -> list[tuple[str, str]]:
    return [(f"{kind}-{number}", place) for number, place in enumerate(places)]


def test_a_link_does_not_hide_that_a_job_reads_what_it_writes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(TABLE, tmp_path / "in" / "a.parquet")
    (tmp_path / "other").symlink_to(tmp_path / "in")
    flow = ps.Flow("nested")
    flow.read_parquet(tmp_path / "in").write_parquet(tmp_path / "other" / "out", mode="append")
    with pytest.raises(ConfigurationError, match="and parquet-1 reads"):
        ps.run_local(flow, checkpoints=tmp_path / "state")


@pytest.mark.parametrize("way", ["links to files", "a linked folder within", "links, of another format"])
def test_a_link_within_what_is_read_does_not_hide_it_either(way: str, tmp_path: Path) -> None:
    out, given = tmp_path / "out", tmp_path / "given"
    first = ps.Flow("nightly")
    first.from_tables(pa.table({"n": [1, 2]})).write_csv(out)
    ps.run_local(first).wait()
    given.mkdir()
    if way == "a linked folder within":
        (given / "sub").symlink_to(out)
    else:
        for part in out.glob("part-*"):
            (given / part.name).symlink_to(part)
    again = ps.Flow("nightly")
    source = again.read_text(given) if "format" in way else again.read_csv(given)
    source.write_csv(out, mode="overwrite")
    with pytest.raises(ConfigurationError, match=r"writes to .*, and .* reads "):
        ps.run_local(again)
    beside = ps.Flow("nightly")
    beside.read_csv(given).write_csv(tmp_path / "beside")
    ps.run_local(beside).wait()


def test_an_index_that_the_job_would_overwrite_is_refused(tmp_path: Path) -> None:
    former = ps.Flow("former")
    former.from_tables([TABLE]).write_parquet(tmp_path / "people")
    ps.run_local(former).wait(60)
    flow = ps.Flow("nested")
    people = ps.index.parquet(tmp_path / "people", "k")
    flow.from_tables([TABLE]).lookup_join(people, "k", name="known").write_parquet(
        tmp_path / "people", mode="overwrite"
    )
    with pytest.raises(ConfigurationError, match=r"and known reads .*people/part-"):
        ps.run_local(flow, checkpoints=tmp_path / "state")


def test_an_index_in_a_bucket_is_found_by_its_address(buckets: BucketTwin, bucket: str) -> None:
    former = ps.Flow("former")
    former.from_tables([TABLE]).write_parquet(f"s3://{bucket}/people")
    ps.run_local(former).wait(60)
    flow = ps.Flow("nested")
    people = ps.index.parquet(f"s3://{bucket}/people", "k")
    flow.from_tables([TABLE]).lookup_join(people, "k", name="known").write_parquet(
        f"s3://{bucket}/people", mode="overwrite"
    )
    with pytest.raises(ConfigurationError, match=r"and known reads .*people/part-"):
        ps.run_local(flow)


def test_an_output_in_the_checkpoint_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    flow = ps.Flow("nested")
    flow.from_tables([TABLE]).write_parquet(tmp_path / "state" / "out")
    with pytest.raises(ConfigurationError, match="within the checkpoint folder"):
        ps.run_local(flow, checkpoints=tmp_path / "state")
    assert not (tmp_path / "state" / "out").exists()
