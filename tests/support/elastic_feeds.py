"""Drawn runs of drawn feeds: shuffles, rules of batches, mixtures, layouts of ranks, deaths, and where a run goes on.

What is compared with is the same feed, read by one rank of a job with one subtask that nothing happens to: the batches,
and the digests that jobs leave of them. A feed of three epochs is told of two until the last run. A seed draws one
case, which can be run again alone.
"""

from __future__ import annotations

import random
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import pyarrow as pa

import penstock as ps
from penstock.actors.feed.reader import FeedHandle
from penstock.actors.storage.digest_files import DigestFiles
from penstock.coordinator.model.events import TaskLost
from support.feeds import read_ranks

ROWS, SPLITS, OTHERS = 240, 8, 60
SCHEMA = pa.schema([("n", pa.int64()), ("tokens", pa.list_(pa.int64()))])

SHUFFLES: dict[str, Any] = {
    "none": None,
    "window": 30,
    "splits": True,
    "splits and window": ps.Shuffle(window=25, interleave=3),
    "full": "full",
}
RULES: dict[str, dict[str, Any]] = {
    "rows": {"batch_size": 13},
    "rows, short ones dropped": {"batch_size": 16, "drop_last": True},
    "tokens": {"tokens": 64, "length": "tokens"},
    "window of tokens": {"tokens": 64, "length": "tokens", "window": 50},
    "padded": {"tokens": 90, "length": "tokens", "padded": True, "window": 40},
    "cost": {"tokens": 400, "cost": "n % 17 + 3"},
    "buckets": {"bucket_by": "cardinality(tokens)", "boundaries": [4, 9], "batch_sizes": [20, 9, 5]},
    "buckets of tokens": {"tokens": 64, "length": "tokens", "bucket_by": "cardinality(tokens)", "boundaries": [4, 9]},
    "balanced": {"batch_size": 24, "balance": "cardinality(tokens) * cardinality(tokens)"},
}
MIXTURES: dict[str, Any] = {
    "no": None,
    "constant": 2.0,
    "steps": ps.Schedule.steps({0: 3.0, 100: 0.5}),
    "linear": ps.Schedule.linear({0: 4.0, 200: 0.2}),
    "by epoch": ps.Schedule.by_epoch([3.0, 1.0]),
    "begins again": 3.0,
    "begins again, and changes": ps.Schedule.linear({0: 4.0, 200: 0.5}),
}
AT_END: dict[str, Any] = dict.fromkeys(("begins again", "begins again, and changes"), "begin again")
"""Of both streams; "go on" for the others."""
LAYOUTS: tuple[dict[str, int], ...] = (
    {"dp": 1},
    {"dp": 2},
    {"dp": 3},
    {"dp": 5},
    {"dp": 2, "tp": 2},
    {"tp": 3, "dp": 1},
    {"pp": 2, "dp": 2},
    {"dp": 1, "cp": 2},
    {"cp": 2, "dp": 2},
    {"tp": 2, "dp": 1, "cp": 2},
)


@dataclass(frozen=True)
class Shape:
    """A feed, by the names of what it is made of."""

    shuffle: str
    rules: str
    mixture: str
    epochs: int


@dataclass(frozen=True)
class Stretch:
    """So many batches are read by ranks that are laid out so; then something dies, and others go on ``back`` batches
    before, but not before the start of those (a start counts as saved)."""

    parallelism: int
    layout: Mapping[str, int]
    zigzag: bool
    batches: int
    dies: str
    back: int


@dataclass(frozen=True)
class Case:
    """What a seed draws."""

    shape: Shape
    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, seed: int) -> Case:
        """Kinds come in turn, so that few seeds have them all."""
        draw = random.Random(seed)
        kinds = [list(each) for each in (SHUFFLES, RULES, MIXTURES)]
        shuffle, rules, mixture = (
            each[seed % len(each)] if draw.random() < 0.7 else draw.choice(each) for each in kinds
        )
        return cls(
            Shape(shuffle, rules, mixture, draw.choice((1, 1, 2, 3))),
            tuple(
                Stretch(
                    draw.randint(1, 3),
                    draw.choice(LAYOUTS),
                    draw.random() < 0.5,
                    draw.randint(0, 6),
                    draw.choice(("job", "task", "ranks")),
                    draw.choice((0, 0, 1, 3)),
                )
                for _ in range(draw.randint(1, 3))
            ),
        )


def flow_of(shape: Shape, epochs: int | None = None) -> ps.Flow:
    """The flow, with lists whose lengths four ranks can divide. ``epochs``: in place of the shape's."""
    chance = random.Random(5)
    lengths = [4 * min(8, int(chance.lognormvariate(0.5, 1))) for _ in range(ROWS + OTHERS)]
    whole = pa.Table.from_pylist([{"n": n, "tokens": [n] * length} for n, length in enumerate(lengths)], SCHEMA)
    flow = ps.Flow("elastic", lanes=4)
    size = ROWS // SPLITS
    stream = flow.from_tables([whole.slice(at, size) for at in range(0, ROWS, size)], name="rows")
    options: dict[str, Any] = {"epochs": epochs or shape.epochs, "room": 60, "keep": 10_000, **RULES[shape.rules]}
    shuffle, weight = SHUFFLES[shape.shuffle], MIXTURES[shape.mixture]
    if weight is not None:
        other = flow.from_tables([whole.slice(ROWS, OTHERS // 2), whole.slice(ROWS + OTHERS // 2)], name="others")
        if shuffle is not None:
            stream, other = stream.shuffle(shuffle, seed=7), other.shuffle(shuffle, seed=8)
        stream = flow.mix({stream: weight, other: 1.0}, seed=9, at_end=AT_END.get(shape.mixture, "go on"))
    elif shuffle is not None:
        options |= {"shuffle": shuffle, "seed": 7}
    stream.feed(options.pop("batch_size", None), **options)
    return flow


@dataclass(frozen=True)
class Expected:
    """Batches, the epoch of each, and their digests."""

    batches: list[list[Any]]
    epochs: list[int]
    digests: list[int]

    def left(self, at: int, epochs: int) -> int:
        """How many batches there are from one on, in so many epochs."""
        return bisect_left(self.epochs, epochs) - at


@lru_cache(maxsize=64)
def undisturbed(shape: Shape) -> Expected:
    """What comes if nothing happens."""
    batches: list[list[Any]] = []
    epochs: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        with ps.run_local(flow_of(shape), parallelism=1, checkpoints=folder) as job:
            with job.feed().reader(0, 1, timeout=60) as reader:
                for epoch in range(shape.epochs):
                    for records in reader:
                        batches.append(records.to_pylist())
                        epochs.append(epoch)
            job.wait(120)
        return Expected(batches, epochs, digests_in(folder))


def digests_in(folder: str) -> list[int]:
    """Of all batches that a job has handed out. Raises AssertionError if one has none."""
    found = DigestFiles(folder, "elastic", "feed").read()[0]
    assert found.contradiction is None
    assert found.batches.tolist() == list(range(len(found.batches)))
    digests: list[int] = found.digests.tolist()
    return digests


def run_case(case: Case) -> None:
    """Raises AssertionError if a batch is another one, whoever reads it, or is missing."""
    expected = undisturbed(case.shape)
    rows = Counter(row["n"] for batch in expected.batches for row in batch)
    if not RULES[case.shape.rules].get("drop_last"):
        count = ROWS + (OTHERS if MIXTURES[case.shape.mixture] is not None else 0)
        if case.shape.mixture in AT_END:  # one of the two comes once, and the other more often
            first, second = ({rows[n] for n in numbers} for numbers in (range(ROWS), range(ROWS, count)))
            assert {case.shape.epochs} in (first, second)
            assert min(first | second) == case.shape.epochs < max(first | second)
        else:
            assert rows == dict.fromkeys(range(count), case.shape.epochs)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(case.shape, expected)
        for stretch in case.stretches:
            flow = flow_of(case.shape, min(2, case.shape.epochs))
            with ps.run_local(flow, parallelism=stretch.parallelism, checkpoints=folder) as job:
                run.read(job.feed(), stretch, stretch.batches)
                job.checkpoint(60)
                if stretch.dies == "task":
                    for task, counts in list(job.statistics().items())[-1:]:
                        job._request(TaskLost(task, counts.attempt, "the test says so", 0.0))
                if stretch.dies != "job":
                    run.go_back(stretch.back)
                    run.read(job.feed(), stretch, 2)
                    job.checkpoint(60)
                job.shutdown()
            run.go_back(stretch.back)
        with ps.run_local(flow_of(case.shape), parallelism=2, checkpoints=folder) as job:
            run.read(job.feed(), case.stretches[0], None)
            assert job.wait(120).audit().clean
        assert digests_in(folder) == expected.digests


@dataclass
class Run:
    """How far the batches of a feed have been read, and compared."""

    shape: Shape
    expected: Expected
    at: int = 0
    start: int = 0
    """Of the last group."""

    def go_back(self, batches: int) -> None:
        """The next group begins so many batches before."""
        self.at = max(self.start, self.at - batches)

    def read(self, feed: FeedHandle, stretch: Stretch, most: int | None) -> None:
        """Let a group read so many batches; None: all that are left. The last batch is left to that one, so that no
        job ends before its time."""
        expected = self.expected
        left = expected.left(self.at, self.shape.epochs if most is None else min(2, self.shape.epochs))
        if most is not None and (most := min(most, left - 1)) <= 0:
            return
        layout = stretch.layout
        zigzag = stretch.zigzag and "cp" in layout
        place = {
            "mesh": dict(layout),
            "replicate": [name for name in layout if name in ("tp", "pp")],
            "sequence": "cp" if "cp" in layout else None,
            "zigzag": zigzag,
        }
        epoch = expected.epochs[self.at]
        found = read_ranks(feed, prod(layout.values()), self.at, most, close=most is None, epoch=epoch, **place)
        batches = [_whole(slices, layout, zigzag) for slices in zip(*found, strict=True)]
        wanted = expected.batches[self.at :][:most]
        if "balance" in RULES[self.shape.rules]:  # the ranks' shares are not pieces of it
            batches, wanted = ([sorted(batch, key=_number) for batch in each] for each in (batches, wanted))
        assert batches == wanted
        self.start, self.at = self.at, self.at + len(batches)


def _number(row: Any) -> int:
    found: int = row["n"]
    return found


def _whole(slices: Sequence[list[Any]], layout: Mapping[str, int], zigzag: bool) -> list[Any]:
    """A global batch of what ranks were given, of whom some must have been given the same."""
    places: dict[tuple[int, int], list[list[Any]]] = {}
    for rank, rows in enumerate(slices):
        left, at = rank, {}
        for name in reversed(layout):
            left, at[name] = divmod(left, layout[name])
        places.setdefault((at["dp"], at.get("cp", 0)), []).append(rows)
    assert all(each == given[0] for given in places.values() for each in given)
    batch: list[Any] = []
    for share in range(layout["dp"]):
        parts = [places[share, part][0] for part in range(layout.get("cp", 1))]
        batch += [_joined(of_row, zigzag) for of_row in zip(*parts, strict=True)]
    return batch


def _joined(parts: Sequence[Any], zigzag: bool) -> Any:
    """One row of its parts."""
    lists = [part["tokens"] for part in parts]
    if zigzag:
        fronts, backs = ([each[: len(each) // 2] for each in lists], [each[len(each) // 2 :] for each in lists])
        lists = [*fronts, *reversed(backs)]
    assert len({part["n"] for part in parts}) == 1
    return {"n": parts[0]["n"], "tokens": [value for each in lists for value in each]}
