"""Deferred sources: replaced when a job starts, and the flow that the user built stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from penstock.engine.core.errors import ConfigurationError
from penstock.engine.flow.flow import Flow
from penstock.engine.flow.handoff import Destination, hand_over, has_deferred
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.sources.memory import MemorySource, MemorySplit

TABLE = pa.table({"n": [1, 2, 3]})


@dataclass
class Later:
    """A source that notes where it was handed over to."""

    seen: list[tuple[str, Destination]] = field(default_factory=list)
    fails: bool = False
    kind: str = "memory"
    schema: pa.Schema = TABLE.schema

    def splits(self) -> Sequence[MemorySplit]:
        return []

    def describe(self) -> str:
        return MemorySource((TABLE,)).describe()

    def handed_over(self, source: str, to: Destination) -> MemorySource:
        if self.fails:
            raise ConfigurationError("the rows are gone", "find them")
        self.seen.append((source, to))
        return MemorySource((TABLE,))


def test_deferred_source_gets_its_name_and_the_jobs_place_once() -> None:
    flow, later = Flow("f"), Later()
    flow.from_source(later, name="rows").collect("out")
    to = Destination("job", "folder")
    handed = hand_over(flow, to)
    assert later.seen == [("rows", to)]
    assert (has_deferred(flow), has_deferred(handed)) == (True, False)
    assert hand_over(handed, to) is handed
    assert later.seen == [("rows", to)]


def test_flow_has_the_same_fingerprint_before_and_after_and_its_data_the_splits() -> None:
    flow = Flow("f")
    flow.from_source(Later(), name="rows").collect("out")
    handed = hand_over(flow, Destination("job"))
    assert handed.fingerprint() == flow.fingerprint()
    assert [len(plan_job(each, 1).sources["rows"].splits) for each in (flow, handed)] == [0, 1]


def test_hand_over_that_fails_names_the_source() -> None:
    flow = Flow("f")
    flow.from_source(Later(fails=True), name="rows").collect("out")
    with pytest.raises(ConfigurationError, match="rows: the rows are gone"):
        hand_over(flow, Destination("job"))
