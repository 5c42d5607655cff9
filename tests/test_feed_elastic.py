"""Feeds of every kind, read by ranks that come, go and die: a batch is a function of inputs, flow and seed alone."""

from __future__ import annotations

import pytest

from support.elastic_feeds import AT_END, LAYOUTS, MIXTURES, RULES, SHUFFLES, STREAMS, Case, is_counted, run_case
from support.feeds import shorten_channels
from support.sweeps import seeds

CASES = 60
"""That every run of the tests has; the others are a sweep."""


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 11)


@pytest.fixture(autouse=True)
def short_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a mixture is at its end before ranks come, and no weights can be changed."""
    shorten_channels(monkeypatch, 32768)


@pytest.mark.parametrize("seed", seeds(CASES, of=2060))
def test_whoever_reads_and_whatever_dies_the_batches_are_those_of_an_undisturbed_run(seed: int) -> None:
    run_case(Case.of(seed))


def test_the_first_cases_have_every_kind() -> None:
    cases = [Case.of(seed) for seed in range(CASES)]
    assert {case.shape.shuffle for case in cases} == set(SHUFFLES)
    assert {case.shape.rules for case in cases} == set(RULES)
    assert {case.shape.mixture for case in cases} == set(MIXTURES)
    assert {case.shape.epochs for case in cases} == {1, 2, 3}
    stretches = [stretch for case in cases for stretch in case.stretches]
    assert {tuple(stretch.layout) for stretch in stretches} == {tuple(layout) for layout in LAYOUTS}
    assert {stretch.dies for stretch in stretches} == {"job", "task", "ranks"}
    changes = [(case, change) for case in cases for stretch in case.stretches if (change := stretch.change)]
    assert {change.by_step and is_counted(case.shape) for case, change in changes} == {True, False}
    assert {tuple(change.weights) for _, change in changes} == {STREAMS[:1], STREAMS[1:], STREAMS}
    assert any(case.shape.mixture in AT_END and 0.0 in change.weights.values() for case, change in changes)
