"""The audit of a feed reads the inputs again, and finds what is missing, repeated or altered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.actors.audit.audit import last_state
from penstock.actors.feed.audit import audit_feed
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.feed.digests import OrderHash
from penstock.engine.feed.state import read_state, write_state
from support.feeds import ROWS, SPLITS, plain, read_group, tables

FED = SPLITS * ROWS * 2 // 3


def rows_only(flow):
    """What works row by row, on both sides of what changes the order alone."""
    some = plain(flow).with_columns(double="n * 2").partition_by("key").shuffle(100)
    return some.filter("double <> 20").sort("key").project("n", "double")


def lists(flow):
    listed = [table.append_column("each", pa.array([[1] * (n % 3) for n in range(ROWS)])) for table in tables()]
    one, two = flow.from_tables(listed, name="one").unnest("each"), flow.from_tables(listed, name="two").unnest("each")
    return flow.mix({one: 2, two: 1}, at_end="go on").rebalance()


def fed(folder, build, **options) -> ps.Job:
    flow = ps.Flow("audited", lanes=4)
    build(flow).feed(50, **options)
    job = ps.run_local(flow, checkpoints=folder)
    read_group(job.feed(), 2)
    return job.wait(60)


def test_every_input_row_is_found_once_by_count_and_content(tmp_path):
    audit = fed(tmp_path, rows_only).audit_feed()
    assert (audit.rows, audit.expected, audit.gaps, audit.repeats, audit.same) == (FED - 1, FED - 1, 0, 0, True)
    assert [split.rows for split in audit.splits] == [ROWS] * SPLITS
    assert audit.splits[0].fed == sum(1 for n in range(ROWS) if n % 3 and n != 10)
    assert audit.clean
    assert str(audit).endswith("799 expected, gaps 0, repeats 0, the same content")


def test_lists_and_mixtures_are_audited_too(tmp_path):
    audit = fed(tmp_path, lists).audit_feed()
    assert audit.clean
    assert audit.same
    assert audit.rows == 2 * SPLITS * sum(n % 3 for n in range(ROWS))
    assert {split.source for split in audit.splits} == {"one", "two"}


def test_audit_counts_the_rows_of_each_stream_of_a_mixture(tmp_path):
    audit = fed(tmp_path, lists).audit_feed()
    half = audit.rows // 2
    assert [(each.mixture, each.stream, each.sources, each.rows) for each in audit.streams] == [
        ("mix-1", 1, ("one",), half),
        ("mix-1", 2, ("two",), half),
    ]
    assert f"mix-1: {half:,} rows of stream 2 (two), 50.0 %" in str(audit)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda flow: plain(flow).aggregate(["key"], n="count"), "hash-aggregate-2 makes other rows"),
        (lambda flow: plain(flow).map_batches(lambda rows: rows, tables()[0].schema), "map-batches-1 makes other rows"),
        (lambda flow: flow.mix({plain(flow): 1, flow.from_tables(tables()): 1}), "mix-1 makes other rows"),
    ],
)
def test_what_cannot_be_told_from_the_inputs_is_said(build, why, tmp_path):
    audit = fed(tmp_path, build).audit_feed()
    assert why in audit.unknown
    assert (audit.expected, audit.same, audit.clean) == (None, None, True)
    assert "not compared with the inputs" in str(audit)


@pytest.mark.parametrize(
    ("position", "content", "gaps", "repeats", "same"),
    [(-1, 0, 1, 0, True), (2, 0, 0, 2, True), (0, 12345, 0, 0, False)],
)
def test_rows_that_are_missing_repeated_or_altered_are_found(position, content, gaps, repeats, same, tmp_path):
    job = fed(tmp_path, plain)
    tables_of = last_state(job.plan, job.folder)
    schema = job.plan.sinks["feed"][1].output_schema([tables()[0].schema])
    state = read_state(tables_of["feed"], schema)
    order = OrderHash(state.order.value, state.order.rows, (state.order.content + content) % 2**64)
    wrong = replace(state, position=state.position + position, order=order)
    audit = audit_feed(job.plan, {**tables_of, "feed": write_state(wrong, 0, schema)})
    assert (audit.gaps, audit.repeats, audit.same, audit.clean) == (gaps, repeats, same, False)


def test_feed_in_the_middle_has_no_gaps_yet(tmp_path):
    job = fed(tmp_path, plain)
    tables_of = last_state(job.plan, job.folder)
    schema = tables()[0].schema
    middle = replace(read_state(tables_of["feed"], schema), position=200, ended=False)
    audit = audit_feed(job.plan, {**tables_of, "feed": write_state(middle, 0, schema)})
    assert (audit.rows, audit.expected, audit.gaps, audit.same, audit.clean) == (200, FED, 0, None, True)
    assert "200 rows so far" in str(audit)


def test_feed_that_is_not_there_or_in_no_checkpoint_is_refused(tmp_path):
    job = fed(tmp_path, plain)
    with pytest.raises(ConfigurationError, match="no feed 'other'"):
        job.audit_feed("other")
    with pytest.raises(ConfigurationError, match="in no checkpoint yet"):
        audit_feed(job.plan, {})


@pytest.mark.parametrize(
    ("retention", "told", "remedy"),
    [
        (None, "runs without checkpoints=", "checkpoints=ps.Checkpoints"),
        ("never", "is over, and none", "retention=.always"),
    ],
)
def test_a_job_that_has_kept_no_checkpoint_says_so(retention, told, remedy, tmp_path):
    flow = ps.Flow("audited", lanes=4)
    plain(flow).feed(50)
    kept = None if retention is None else ps.Checkpoints(tmp_path, retention=retention)
    job = ps.run_local(flow, checkpoints=kept)
    read_group(job.feed(), 2)
    with pytest.raises(ConfigurationError, match=f"(?s){told}.*{remedy}"):
        job.wait(60).audit_feed()
    assert retention or not Path(job.folder).exists()
