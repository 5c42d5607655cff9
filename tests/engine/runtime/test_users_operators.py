"""What a user's operator builds, emits and holds is checked against what its config says, before rows are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import DataError, StorageError, UserCodeError
from penstock.engine.core.traits import Multiplicity

ROWS = pa.table({"n": pa.array(range(40), pa.int64()), "k": pa.array([1] * 40, pa.int64())})


@dataclass(frozen=True)
class Own:
    """An operator whose running half is what ``make`` gives."""

    make: Callable[[], object]
    kind: str = "own"

    def output_schema(self, inputs: Any) -> pa.Schema:
        return inputs[0]

    def build(self, context: object, inputs: object, restored: object) -> Any:
        return self.make()

    def describe(self) -> str:
        return "something"


class Passing(ps.Stateless):
    def __init__(self, change: Callable[[pa.RecordBatch], Any] = lambda records: records) -> None:
        self.change = change

    def process(self, port: int, batch: ps.Batch, out: Any) -> None:
        out.emit(ps.Batch(self.change(batch.records), batch.tag))


class Holding(Passing):
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def snapshot(self) -> Any:
        return self.state


class Refusing(Passing):
    def accepts(self, port: int) -> bool:
        raise ValueError("no idea")


class Bare:
    def process(self, port: int, batch: ps.Batch, out: Any) -> None:
        out.emit(batch)


def refused(make: Callable[[], object], folder: Path, *, filtered: bool = False) -> str:
    flow = ps.Flow("own")
    rows = flow.from_tables([ROWS])
    (rows.filter("n >= 0") if filtered else rows).apply(Own(make), name="mine").write_parquet(folder / "out")
    with pytest.raises(UserCodeError) as caught:
        ps.run_local(flow, checkpoints=str(folder / "state")).wait(60)
    assert caught.value.operator == "mine"
    return str(caught.value)


CHANGES: dict[str, Callable[[pa.RecordBatch], Any]] = {
    "another type of the same width": lambda rows: rows.set_column(0, "n", rows["n"].cast(pa.float64())),
    "a narrower type": lambda rows: rows.set_column(0, "n", rows["n"].cast(pa.int32())),
    "another order": lambda rows: rows.select(["k", "n"]),
    "too few": lambda rows: rows.select(["n"]),
    "too many": lambda rows: rows.append_column("m", rows["n"]),
    "a table": lambda rows: pa.table({"n": rows["n"], "k": rows["k"]}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_emitting_other_columns_than_promised_is_an_error(change: Callable[..., Any], tmp_path: Path) -> None:
    assert "it emitted" in refused(lambda: Passing(change), tmp_path)


LANE = {"__lane": pa.array([0], pa.int32())}
STATES: dict[str, Any] = {
    "a dict": {"at": 5},
    "a batch": pa.record_batch(LANE),
    "without a lane": pa.table({"at": [5]}),
    "a lane in words": pa.table({"__lane": ["0"]}),
    "no lane": pa.table({"__lane": pa.nulls(1, pa.int32())}),
    "a lane that there is not": pa.table({"__lane": pa.array([99_999], pa.int32())}),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_state_that_could_not_be_restored_is_an_error_at_once(state: Any, tmp_path: Path) -> None:
    assert "its snapshot()" in refused(lambda: Holding(state), tmp_path)


@pytest.mark.parametrize("make", [lambda: None, Bare, ps.Stateless], ids=["None", "no base", "no process"])
def test_a_running_half_that_lacks_members_is_refused_when_it_is_built(make: Any, tmp_path: Path) -> None:
    assert "without" in refused(make, tmp_path)


@pytest.mark.parametrize("filtered", [False, True])
def test_an_error_in_accepts_is_the_users(filtered: bool, tmp_path: Path) -> None:
    told = refused(Refusing, tmp_path, filtered=filtered)
    assert "no idea" in told
    assert "in before" not in told


@dataclass(frozen=True)
class OwnSink(Own):
    guarantee: str = "exactly once"
    place: str = ""

    def check(self, job: str, resuming: bool = False) -> None: ...

    def visible_rows(self, job: str) -> None: ...

    def committer(self, job: str) -> Any: ...


class Swallowing(ps.Stateless):
    def process(self, port: int, batch: ps.Batch, out: Any) -> None: ...


class Preparing(Swallowing):
    def __init__(self, made: Any) -> None:
        self.made = made

    def flush(self, checkpoint: Any) -> None: ...

    def prepare(self, checkpoint: Any) -> Any:
        return self.made


def test_a_sink_that_never_prepares_is_refused() -> None:
    flow = ps.Flow("own")
    flow.from_tables([ROWS]).write_to(OwnSink(Swallowing))
    with pytest.raises(UserCodeError, match="without flush, prepare"):
        ps.run_local(flow).wait(60)


@pytest.mark.parametrize("made", [None, {}, [{"rows": 1}], "file"])
def test_a_sink_that_prepares_no_committables_is_refused(made: Any) -> None:
    flow = ps.Flow("own")
    flow.from_tables([ROWS]).write_to(OwnSink(lambda: Preparing(made)))
    with pytest.raises(UserCodeError, match="prepare"):
        ps.run_local(flow).wait(60)


@dataclass(frozen=True)
class Committing(OwnSink):
    how: Any = None

    def committer(self, job: str) -> Any:
        return self.how


class Failing:
    def commit(self, permit: Any) -> None:
        raise ValueError("no connection")


def committed(how: Any, **options: Any) -> None:
    made = ps.Committable("own-1", 40)
    flow = ps.Flow("own")
    flow.from_tables([ROWS]).write_to(Committing(lambda: Preparing([made]), how=how))
    ps.run_local(flow, **options).wait(60)


def test_a_committer_that_is_none_is_refused() -> None:
    with pytest.raises(UserCodeError, match="has no commit"):
        committed(None)


def test_a_commit_that_fails_is_retried_and_not_called_a_bug_of_ours(tmp_path: Path) -> None:
    kept = ps.Checkpoints(tmp_path / "state", max_restarts=1)
    with pytest.raises(StorageError, match="commit of Committing failed: ValueError: no connection"):
        committed(Failing(), checkpoints=kept)


@dataclass(frozen=True)
class Part:
    id: str = "part"
    rows: int = 1

    def open(self, start: int) -> Any:
        return None


@dataclass(frozen=True)
class Source:
    kind: str = "own"
    schema: pa.Schema = ROWS.schema

    def splits(self) -> list[Part]:
        return [Part()]

    def describe(self) -> str:
        return "nothing"


def test_a_split_that_opens_nothing_is_an_error_at_once() -> None:
    flow = ps.Flow("own")
    flow.from_source(Source()).collect("found")
    with pytest.raises(DataError, match="gave a NoneType"):
        ps.run_local(flow).wait(60)


class Losing(Own):
    traits = replace(ps.Traits.row_wise(), rows=Multiplicity.SAME)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_content_audit_notices_rows_that_an_operator_loses_which_says_that_all_come_out(parallelism: int) -> None:
    def audited(make: Callable[[], object]) -> str:
        flow = ps.Flow("own")
        flow.from_tables([ROWS, ROWS]).apply(Losing(make)).collect("found")
        return str(ps.run_local(flow, parallelism=parallelism, audit="content").wait(60).audit())

    assert "makes other rows" not in audited(Passing)
    with pytest.raises(ps.errors.PenstockError, match="altered on their way"):
        audited(lambda: Passing(lambda rows: rows.slice(1)))
