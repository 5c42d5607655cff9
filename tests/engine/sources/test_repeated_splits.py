"""Sources that are read in every epoch: which rows come in which round, also after a restore."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.actors.hosting.split_guard import SplitGuard
from penstock.coordinator.model.split_sets import SplitName
from penstock.engine.core.elements import Barrier, Batch, EndOfData, EndOfRound
from penstock.engine.core.epochs import Epochs, ends_epoch, epoch_of
from penstock.engine.core.identity import BarrierKind, CheckpointId
from penstock.engine.flow.flow import Flow
from penstock.engine.plan.plan import SourcePlan
from penstock.engine.planner.epoch_planning import plan_epochs
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.planner.stages import LiveGraph
from penstock.engine.sources.memory import MemorySource
from penstock.engine.sources.reader import SplitReader
from penstock.engine.sources.repeated import again

SCHEMA = pa.schema([("n", pa.int64())])
LANES = 3


def source(sizes: list[int]) -> MemorySource:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return MemorySource(
        tuple(
            pa.table({"n": pa.array(range(start, start + size), pa.int64())})
            for start, size in zip(starts, sizes, strict=True)
        )
    )


def reader(
    sizes: list[int], epochs: Epochs, lanes: range, quota: int | None, restored: pa.Table | None = None
) -> SplitReader:
    splits = source(sizes).splits()
    return SplitReader("rows", SCHEMA, splits, lanes, LANES, quota=quota, restored=restored, epochs=epochs)


def read(reader: SplitReader, rounds: int | None = None) -> list[tuple[int, int, list[int]]]:
    """What comes until the data end, or a round: (round, lane, values); lane -1: the round ends."""
    found = []
    while not isinstance(element := reader.peek(), EndOfData):
        assert element is not None
        reader.pop()
        if isinstance(element, Batch):
            found.append((element.tag.round, element.tag.lane, element.records.column(0).to_pylist()))
        elif isinstance(element, EndOfRound):
            found.append((element.round, -1, []))
            if element.round + 1 == rounds:
                break
    return found


def test_an_epoch_is_the_same_in_every_turn_and_ends_with_its_rounds() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        sizes = [chance.randint(0, 9) for _ in range(chance.randint(1, 7))]
        quota = chance.choice([None, 3, 5])
        needed = max(
            [
                1,
                *(
                    sum(1 if quota is None else size // quota + 1 for size in sizes[lane::LANES])
                    for lane in range(LANES)
                ),
            ]
        )
        epochs = Epochs(3, needed + chance.randint(0, 2))
        whole = read(reader(sizes, epochs, range(LANES), quota))
        ends = [round for round, lane, _ in whole if lane < 0]
        assert ends == list(range(epochs.end)), "every round ends, also those without rows"
        turns = [
            [(round % epochs.rounds, lane, rows) for round, lane, rows in whole if epochs.of(round) == epoch]
            for epoch in range(3)
        ]
        assert turns[0] == turns[1] == turns[2]
        assert sorted(n for _, _, rows in turns[0] for n in rows) == list(range(sum(sizes)))
        cut = chance.randint(1, epochs.end - 1)
        parts = []
        for lanes in (range(2), range(2, 3)):
            first = reader(sizes, epochs, lanes, quota)
            before = read(first, cut)
            first.trigger(Barrier(CheckpointId(1, 1), BarrierKind.CHECKPOINT, 0.0), None)
            assert isinstance(first.pop(), Barrier)
            parts.append(before + read(reader(sizes, epochs, lanes, quota, first.snapshot())))
        assert [each for each in parts[0] if each[1] >= 0] == [each for each in whole if each[1] in (0, 1)]
        assert [each for each in parts[1] if each[1] >= 0] == [each for each in whole if each[1] == 2]


def test_epoch_follows_from_the_round() -> None:
    epochs = Epochs(2, 3)
    assert [epochs.of(round) for round in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [round for round in range(6) if ends_epoch(epochs, round)] == [2, 5]
    assert (epoch_of(None, 5), ends_epoch(None, 5)) == (0, False)


def test_splits_of_later_epochs_have_names_of_their_own_also_behind_a_guard() -> None:
    flow = Flow("named", lanes=2)
    flow.from_tables([pa.table({"n": [1, 2]})], name="rows").feed(10, epochs=2)
    guard = SplitGuard()
    (split,) = guard.guarded(plan_job(flow, 1)).sources["rows"].splits
    later = again(split, 1)
    assert (again(split, 0), later.id, later.rows) == (split, f"{split.id} (epoch 1)", 2)
    guard.begin(None, frozenset({SplitName("rows", later.id)}))
    assert list(later.open(0)) == []
    assert [batch.num_rows for batch in again(split, 2).open(0)] == [2]


@pytest.mark.parametrize(("rounds", "quota"), [(4, 10), (2, None)])
def test_rounds_of_an_epoch_are_those_of_the_longest_lane(rounds: int, quota: int | None) -> None:
    splits = source([25, 3, 0, 4]).splits()
    plan = SourcePlan("rows", source([25]), SCHEMA, tuple(splits), quota, 0.0)
    flow = Flow("rounds", lanes=2)
    flow.from_tables([pa.table({"n": [1]})], name="rows").feed(10, epochs=5)
    epochs, planned = plan_epochs(LiveGraph(flow, 1, 2), {"rows": plan}, 2, ordered=True)
    assert epochs == Epochs(5, rounds)
    assert planned["rows"].repeats
