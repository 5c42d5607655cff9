"""Drawn runs of drawn feeds: shuffles, rules of batches, mixtures, layouts of ranks, deaths, and where a run goes on.

What is compared with is the same feed, read by one rank of a job with one subtask that nothing happens to: the batches,
and the digests that jobs leave of them. A feed of three epochs is told of two until the last run. A seed draws one
case, which can be run again alone.

Weights of mixtures are changed while ranks read, come and die. Whether a change was in time depends on who was faster,
and the log says it; what it has is planned beforehand, as a schedule, in the feed that is compared with.
"""

from __future__ import annotations

import random
import re
import tempfile
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.actors.feed.reader import FeedHandle
from penstock.actors.storage.digest_files import DigestFiles
from penstock.actors.storage.log import read_log_in
from penstock.coordinator.model.events import TaskLost
from penstock.coordinator.model.manifest import reweights_in
from penstock.engine.core.errors import ConfigurationError, TaskLostError
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


STREAMS = ("rows", "others")
FARTHEST = 5_000
"""Rows that no mixture here comes to."""
BEHIND = {"window of tokens": 50, "padded": 40, "buckets": 40, "buckets of tokens": 150}
"""A batch of these rules may have been cut with regard to so many rows behind it."""

Changes: TypeAlias = tuple[tuple[int, tuple[tuple[int, float], ...]], ...]
"""The rows of the mixture that weights are changed from, and the weights of its streams by number."""


@dataclass(frozen=True)
class Shape:
    """A feed, by the names of what it is made of."""

    shuffle: str
    rules: str
    mixture: str
    epochs: int


@dataclass(frozen=True)
class Change:
    """Streams of the mixture get other weights while ranks read: before something dies, or after. ``ahead``: it begins
    so many steps, or rows, behind what they read. ``by_step``: where a step is a number of rows."""

    weights: Mapping[str, float]
    by_step: bool
    ahead: int
    is_late: bool

    @classmethod
    def of(cls, draw: random.Random, idle: str | None) -> Change:
        """``idle``: the stream that may be left without a weight."""
        named = draw.choice((STREAMS[:1], STREAMS[1:], STREAMS))
        choices = {"rows": (1.0, 4.0), "others": (0.5, 2.0)}
        weights = {name: draw.choice((*choices[name], *((0.0, 0.0) if name == idle else ()))) for name in named}
        return cls(weights, draw.random() < 0.5, draw.choice((0, 0, 1, 3, 7, 20)), draw.random() < 0.5)


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
    change: Change | None


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
        shape = Shape(shuffle, rules, mixture, draw.choice((1, 1, 2, 3)))
        accidents = [
            (
                draw.randint(1, 3),
                draw.choice(LAYOUTS),
                draw.random() < 0.5,
                draw.randint(0, 6),
                draw.choice(("job", "task", "ranks")),
                draw.choice((0, 0, 1, 3)),
            )
            for _ in range(draw.randint(1, 3))
        ]
        changes = changes_of(random.Random(f"weights of {seed}"), shape, len(accidents))
        return cls(shape, tuple(Stretch(*each, change) for each, change in zip(accidents, changes, strict=True)))


def changes_of(draw: random.Random, shape: Shape, stretches: int) -> list[Change | None]:
    """One for about every other stretch of a mixture. While streams come again one without a weight may end the
    mixture, whatever it is given later: only a change that is alone takes it away then."""
    if MIXTURES[shape.mixture] is None:
        return [None] * stretches
    drawn = [draw.random() < 0.6 for _ in range(stretches)]
    idle = None if shape.mixture in AT_END and sum(drawn) > 1 else draw.choice(STREAMS)
    return [Change.of(draw, idle) if is_drawn else None for is_drawn in drawn]


@dataclass(frozen=True)
class Planned(ps.Schedule):
    """Weights with their changes, for which sources are read as they are for those without: by ``as_for``."""

    as_for: float = 0.0

    @property
    def mean(self) -> float:
        """What is read in the ratio of."""
        return self.as_for


def weights_of(shape: Shape, changes: Changes) -> list[Any]:
    """Of the mixture's streams, with the changes in the plan."""
    plain, found = [MIXTURES[shape.mixture], 1.0], []
    for number, weight in enumerate(plain):
        if all(number not in dict(each) for _, each in changes):
            found.append(weight)
            continue
        values = np.full(FARTHEST, weight) if isinstance(weight, float) else _planned(weight)
        for position, each in sorted(changes, key=lambda change: change[0]):
            if number in dict(each):
                values[position:] = dict(each)[number]
        points = tuple((place, float(values[place])) for place in (0, *(np.flatnonzero(np.diff(values)) + 1).tolist()))
        found.append(Planned("steps", points, weight if isinstance(weight, float) else weight.mean))
    return found


def _planned(schedule: ps.Schedule) -> Any:
    """Its weights at each row: an epoch of a mixture that has one has all rows once."""
    positions, size = np.arange(FARTHEST), ROWS + OTHERS
    return np.concatenate(
        [schedule.at(positions[at : at + size], epoch) for epoch, at in enumerate(range(0, FARTHEST, size))]
    )


def flow_of(shape: Shape, epochs: int | None = None, changes: Changes = ()) -> ps.Flow:
    """The flow, with lists whose lengths four ranks can divide. ``epochs``: in place of the shape's. ``changes``: of
    its weights, planned beforehand."""
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
        mixed = dict(zip((stream, other), weights_of(shape, changes), strict=True))
        stream = flow.mix(mixed, seed=9, at_end=AT_END.get(shape.mixture, "go on"))
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

    def rows_before(self, batch: int) -> int:
        """How many rows of the mixture its batches before this one have, if none is left out."""
        return sum(map(len, self.batches[:batch]))


@lru_cache(maxsize=64)
def undisturbed(shape: Shape, changes: Changes = ()) -> Expected:
    """What comes if nothing happens, and the weights change as planned."""
    batches: list[list[Any]] = []
    epochs: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        with ps.run_local(flow_of(shape, None, changes), parallelism=1, checkpoints=folder) as job:
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


def run_case(case: Case) -> Run:
    """Raises AssertionError if a batch is another one, whoever reads it, or is missing."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(case.shape, folder)
        check_rows(case.shape, run.expected)
        for stretch in case.stretches:
            flow = flow_of(case.shape, min(2, case.shape.epochs))
            with ps.run_local(flow, parallelism=stretch.parallelism, checkpoints=folder) as job:
                run_stretch(job, run, stretch)
            run.go_back(stretch.back)
        with ps.run_local(flow_of(case.shape), parallelism=2, checkpoints=folder) as job:
            run.read(job.feed(), case.stretches[0], None)
            assert job.wait(120).audit().clean
        assert digests_in(folder) == run.expected.digests
        run.check_replay()
    return run


def run_stretch(job: ps.Job, run: Run, stretch: Stretch) -> None:
    """One job of a case, which ends with a shutdown."""
    asking = [run.start_change(job.feed(), stretch, is_late=False)]
    run.read(job.feed(), stretch, stretch.batches)
    job.checkpoint(60)
    if stretch.dies == "task":
        for task, counts in list(job.statistics().items())[-1:]:
            job._request(TaskLost(task, counts.attempt, "the test says so", 0.0))
    if stretch.dies != "job":
        run.go_back(stretch.back)
        asking.append(run.start_change(job.feed(), stretch, is_late=True))
        run.read(job.feed(), stretch, 2)
        job.checkpoint(60)
    for asked in asking:
        asked.join(1)  # what waits longer waits for ranks that do not come any more
    job.shutdown()
    for asked in asking:
        asked.join(120)
        assert not asked.is_alive()
    assert not run.errors, run.errors


def check_rows(shape: Shape, expected: Expected) -> None:
    """That of all rows none is left out, and only those come more often which are to begin again."""
    if RULES[shape.rules].get("drop_last"):
        return
    rows = Counter(row["n"] for batch in expected.batches for row in batch)
    count = ROWS + (OTHERS if MIXTURES[shape.mixture] is not None else 0)
    if shape.mixture in AT_END:  # one of the two comes once, and the other more often
        first, second = ({rows[n] for n in numbers} for numbers in (range(ROWS), range(ROWS, count)))
        assert {shape.epochs} in (first, second)
        assert min(first | second) == shape.epochs < max(first | second)
    else:
        assert rows == dict.fromkeys(range(count), shape.epochs)


class Run:
    """How far the batches of a feed have been read, and compared."""

    def __init__(self, shape: Shape, folder: str) -> None:
        self.shape, self.folder = shape, folder
        self.at = 0
        #: of the last group
        self.start = 0
        #: of changes of weights: those that the log has, why others were refused, and what should not have happened
        self.taken: list[Change] = []
        self.refused: list[str] = []
        self.errors: list[BaseException] = []

    @property
    def changes(self) -> Changes:
        """Those that the log has by now."""
        found = reweights_in(read_log_in(self.folder, "elastic"))
        return tuple((each.position, each.weights) for each in found)

    @property
    def expected(self) -> Expected:
        """The batches by what the log has."""
        return undisturbed(self.shape, self.changes)

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
        wanted = self.expected.batches[self.at :][:most]
        if "balance" in RULES[self.shape.rules]:  # the ranks' shares are not pieces of it
            batches, wanted = ([sorted(batch, key=_number) for batch in each] for each in (batches, wanted))
        assert batches == wanted
        self.start, self.at = self.at, self.at + len(batches)

    # --- changes of weights ------------------------------------------------------------------------------------------

    def start_change(self, feed: FeedHandle, stretch: Stretch, *, is_late: bool) -> threading.Thread:
        """A thread that asks for the change of weights that a stretch has before something dies in it, or after."""
        change = stretch.change
        if change is not None and is_late != (change.is_late and stretch.dies != "job"):
            change = None
        batch = self.at + (2 if is_late else stretch.batches) + (0 if change is None else change.ahead)
        row = self.expected.rows_before(batch) + BEHIND.get(self.shape.rules, 0)
        thread = threading.Thread(target=self._change, args=(feed, change, batch, row))
        thread.start()
        return thread

    def _change(self, feed: FeedHandle, change: Change | None, step: int, row: int) -> None:
        """Ask for it there, and then where it is still possible, unless the mixture or the job ends first."""
        try:
            while change is not None:
                where = {"from_step": step} if change.by_step and is_counted(self.shape) else {"from_row": row}
                try:
                    feed.reweight(change.weights, **where, timeout=120)
                except ConfigurationError as error:
                    self.refused.append(f"{error}: {error.remedy}")
                    possible = re.search(r" that is possible now is (\d+)$", str(error.remedy))
                    if possible is None:
                        return
                    step = row = int(possible[1]) + change.ahead
                else:
                    self._check_taken(change, row if "from_row" in where else row_of(self.shape, step))
                    return
        except TaskLostError as error:
            self.refused.append(str(error))
        except BaseException as error:
            self.errors.append(error)

    def _check_taken(self, change: Change, row: int) -> None:
        weights = tuple(sorted((STREAMS.index(name), weight) for name, weight in change.weights.items()))
        assert (row, weights) in self.changes
        self.taken.append(change)

    def check_replay(self) -> None:
        """The first batch that is another one by the changes, rebuilt."""
        before, expected = undisturbed(self.shape).batches, self.expected.batches
        step = next((at for at, (old, new) in enumerate(zip(before, expected, strict=False)) if old != new), None)
        if step is not None:
            again = ps.replay(flow_of(self.shape), checkpoints=self.folder, step=step)
            assert sorted(again.rows.to_pylist(), key=_number) == sorted(expected[step], key=_number)
            assert again.verified is not False


def is_counted(shape: Shape) -> bool:
    """Whether it is known beforehand which rows of the mixture a step has."""
    is_known = min(2, shape.epochs) == 1 or shape.mixture not in AT_END
    return "batch_size" in RULES[shape.rules] and is_known


def row_of(shape: Shape, step: int) -> int:
    """Where a step begins in the mixture, if its steps are counted."""
    size: int = RULES[shape.rules]["batch_size"]
    if shape.epochs == 1:
        return step * size
    rows, rest = divmod(ROWS + OTHERS, size)
    epoch, batch = divmod(step, rows + (rest > 0 and not RULES[shape.rules].get("drop_last")))
    return epoch * (ROWS + OTHERS) + batch * size


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
