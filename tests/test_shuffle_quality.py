"""``penstock shuffle-quality``: figures that are known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.lineage.origins import origins_of
from penstock.jobs.cli import app
from penstock.jobs.shuffle_quality import quality_of, shuffle_quality
from support.feeds import plain, tables


def flow_of(shuffle=None, epochs=1):
    flow = ps.Flow("quality")
    flow.from_tables(tables(), name="rows").feed(40, shuffle=shuffle, epochs=epochs)
    return flow


def test_rows_as_they_lie_and_rows_that_are_mixed():
    lie, mixed, full = (shuffle_quality(flow_of(shuffle), parallelism=2) for shuffle in (None, True, "full"))
    assert (lie.rows, lie.splits, lie.batches) == (1200, 12, 30)
    assert lie.correlation > 0.8  # lanes take turns
    assert (lie.common, lie.fewest_splits) == (1.0, 1)
    for each in (mixed, full):
        assert abs(each.correlation) < 0.1
        assert each.fewest_splits >= 8
        assert each.common <= 0.2


def test_epochs_that_a_flow_has_are_the_ones_compared():
    assert shuffle_quality(flow_of(True, epochs=3)) == shuffle_quality(flow_of(True))


def test_figures_of_origins():
    one = [origins_of(0, np.arange(10)), origins_of(1, np.arange(10)), origins_of(1, np.arange(10, 15))]
    found = quality_of([one, [np.concatenate(one)[::-1]]])
    assert (found.correlation, found.splits_a_batch, found.fewest_splits, found.common) == (pytest.approx(1), 1, 1, 0)


def test_a_flow_that_cannot_be_read_twice_is_compared_with_nothing():
    flow = ps.Flow("once")
    plain(flow).sort("n").feed(50)
    found = shuffle_quality(flow)
    assert found.common is None
    assert "not compared" in "\n".join(found.lines())


def test_rows_that_are_from_nowhere_are_refused():
    flow = ps.Flow("sums")
    plain(flow).aggregate(["key"], n=("n", "sum")).feed(50)
    with pytest.raises(ConfigurationError, match="not known where the rows"):
        shuffle_quality(flow)


def test_the_command_prints_them(tmp_path):
    script = tmp_path / "flow_to_measure.py"
    script.write_text(
        "import penstock as ps, pyarrow as pa\n"
        "flow = ps.Flow('measured')\n"
        "tables = [pa.table({'n': list(range(s, s + 50))}) for s in range(0, 500, 50)]\n"
        "flow.from_tables(tables).feed(20, shuffle=True)\n"
    )
    found = CliRunner().invoke(app, ["shuffle-quality", f"{script}:flow"])
    assert found.exit_code == 0, found.output
    assert "500 rows of 10 splits in 25 batches" in found.output
