"""What may happen to the ranks of a feed: they are killed, interrupted or stopped, and others come in their place.

A disaster is a training run on Ray whose ranks are processes of their own. One of them has an accident at a step that
the seed draws; its launcher then kills the others, as launchers do, and starts a world of another size from the newest
model that is bound, or from an older one. The judge reads the journals of all ranks: each was handed its part of the
right batch at every step, the last world came to the end, and whatever had been said to be bound could be resumed.

One kind happens to the job alone, on a cluster of several nodes: the ranks stay, and read on.
"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import penstock as ps
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.core.identity import TaskId
from support.feeds import read_group, tables, wait_for
from support.nodes import NOT_THE_HEAD, Nodes
from support.trainer import Plan

EPOCHS, BATCH, EVERY = 2, 25, 5
FEED = TaskId("gather-1", 0)
PATIENCE = 120.0


def flow(**asked: float) -> ps.Flow:
    """A shuffled feed of two epochs that keeps all rows of both, so that any model may be gone on from. ``asked``: what
    the feed's process asks the cluster for."""
    made = ps.Flow("ranks", lanes=4)
    rows = made.from_tables(tables(12, 50), name="rows").gather().resources(resources=asked)
    rows.feed(BATCH, room=100, keep=5000, shuffle=90, seed=2, epochs=EPOCHS)
    return made


def undisturbed() -> list[list[int]]:
    """The global batches, by step."""
    with ps.run_local(flow()) as job:
        return [[row["n"] for row in batch] for batch in read_group(job.feed(), 1)]


@dataclass
class World:
    """The ranks of one world, which go on from a step."""

    start: int
    plans: list[Plan]
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def begin(self, feed: ps.FeedHandle) -> None:
        handle = pickle.dumps(feed)
        for plan in self.plans:
            errors = Path(plan.journal).with_suffix(".err").open("ab")
            rank = subprocess.Popen(plan.command(), stdin=subprocess.PIPE, stdout=errors, stderr=errors)
            errors.close()
            self.ranks.append(rank)
            assert rank.stdin is not None
            rank.stdin.write(handle)
            rank.stdin.close()

    def kill(self) -> None:
        """End those that are left."""
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
        for rank in self.ranks:
            rank.wait()

    def journals(self) -> list[list[tuple[int, list[int]]]]:
        """What each rank was handed: steps and rows."""
        found = []
        for plan in self.plans:
            path = Path(plan.journal)
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            found.append([tuple(json.loads(line)) for line in lines])
        return found

    def said(self) -> str:
        return "; ".join(Path(plan.journal).with_suffix(".err").read_text()[-400:] for plan in self.plans)


@dataclass
class Story:
    """A training run under way."""

    folder: Path
    chance: Random
    job: ps.Job
    batches: list[list[int]]
    nodes: Nodes | None = None
    worlds: list[World] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def world(self, model: str = "", size: int = 0, **accident: Any) -> World:
        """Ranks that begin now; the one with the accident is drawn, but for one amid a commit, which is rank 0."""
        feed = self.job.feed().resume(model) if model else self.job.feed()
        size = size or self.chance.randint(1, 3)
        victim = 0 if accident.get("amid_commit") else self.chance.randrange(size)
        number = len(self.worlds)
        plans = [
            Plan(
                rank=rank,
                ranks=size,
                journal=str(self.folder / f"world-{number}-rank-{rank}.txt"),
                models=f"w{number}-",
                every=EVERY,
                **(accident if rank == victim else {}),
            )
            for rank in range(size)
        ]
        self.worlds.append(World(feed.start, plans))
        self.worlds[-1].begin(feed)
        return self.worlds[-1]

    def until_accident(self, world: World) -> subprocess.Popen[bytes]:
        """Wait until the rank of the accident is gone or stopped."""
        [victim] = [rank for plan, rank in zip(world.plans, world.ranks, strict=True) if plan.step]
        wait_for(lambda: victim.poll() is not None or is_stopped(victim.pid), PATIENCE)
        return victim

    def bound(self) -> list[str]:
        """The models that somebody was told are bound, newest last."""
        paths = [Path(world.plans[0].journal).with_suffix(".bound") for world in self.worlds]
        return [line for path in paths if path.exists() for line in path.read_text().splitlines()]

    def newest(self) -> str:
        """The model to go on from: one amid whose commit its rank was killed, if that is bound, or the newest one that
        is said to be."""
        amid = [plan for plan in self.worlds[-1].plans if plan.amid_commit]
        for plan in amid:
            try:
                self.job.feed().resume(model := f"{plan.models}{plan.step}")
            except ConfigurationError:
                continue
            return model
        return next(reversed(self.bound()), "")

    def finish(self, model: str) -> None:
        """The last world, to the end of the feed, and of the job."""
        self.end(self.world(model))

    def end(self, world: World) -> None:
        """Wait for the end of the last world, and of the job."""
        for rank in world.ranks:
            if rank.wait(PATIENCE):
                self.wrong.append(f"a rank of the last world ended with {rank.returncode}: {world.said()}")
                world.kill()
                return
        audit = self.job.wait(PATIENCE).audit()
        self.judge(audit.clean, self.job.audit_feed().clean)

    def judge(self, *clean: bool) -> None:
        for number, world in enumerate(self.worlds):
            self.wrong += [f"world {number}: {problem}" for problem in problems(world, self.batches)]
        if any(len(lines) != len(self.batches) - self.worlds[-1].start for lines in self.worlds[-1].journals()):
            self.wrong.append("the last world has not read to the end")
        if not all(clean):
            self.wrong.append(f"audits clean: {clean}")


def is_stopped(pid: int) -> bool:
    """Whether a process got SIGSTOP and stands still (Linux)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def problems(world: World, batches: list[list[int]]) -> Iterator[str]:
    """What is wrong with what the ranks of a world were handed."""
    journals = world.journals()
    for rank, lines in enumerate(journals):
        steps = [step for step, _ in lines]
        if steps != list(range(world.start, world.start + len(lines))):
            yield f"rank {rank} began at {world.start} and had steps {steps}"
    for at in range(max(map(len, journals))):
        parts = [lines[at][1] if at < len(lines) else None for lines in journals]
        rows, expected = [row for part in parts for row in part or ()], batches[world.start + at]
        if rows != expected if None not in parts else not set(rows) <= set(expected):
            yield f"step {world.start + at} gave {rows}, not {expected}"


def step_within(chance: Random, batches: int) -> int:
    """A step amid an epoch, behind the first models."""
    return chance.randrange(EVERY + 2, batches - EVERY)


def killed(story: Story) -> None:
    world = story.world(step=step_within(story.chance, len(story.batches)), signal=signal.SIGKILL)
    story.until_accident(world)
    world.kill()
    story.finish(story.newest())


def killed_at_the_border(story: Story) -> None:
    border = len(story.batches) // EPOCHS
    world = story.world(step=border + story.chance.randint(-1, 1), signal=signal.SIGKILL)
    story.until_accident(world)
    world.kill()
    story.finish(story.newest())


def killed_amid_a_commit(story: Story) -> None:
    step = step_within(story.chance, len(story.batches)) // EVERY * EVERY
    world = story.world(step=step, signal=signal.SIGKILL, amid_commit=True)
    story.until_accident(world)
    world.kill()
    story.finish(story.newest())


def interrupted(story: Story) -> None:
    world = story.world(step=step_within(story.chance, len(story.batches)), signal=signal.SIGINT)
    victim = story.until_accident(world)
    if victim.returncode in (0, -signal.SIGKILL):
        story.wrong.append(f"a rank that was interrupted ended with {victim.returncode}")
    world.kill()
    story.finish(story.newest())


def stopped_and_wakes(story: Story) -> None:
    """One rank stands still; its launcher believes it dead, and it wakes up beside the next world."""
    world = story.world(step=step_within(story.chance, len(story.batches)), signal=signal.SIGSTOP, size=2)
    sleeper = story.until_accident(world)
    for rank in world.ranks:
        if rank is not sleeper:
            rank.kill()
            rank.wait()
    other = story.world(story.newest(), step=len(story.batches) - 2, signal=signal.SIGKILL)
    wait_for(lambda: all(other.journals()), PATIENCE)
    sleeper.send_signal(signal.SIGCONT)
    if sleeper.wait(PATIENCE) == 0:
        story.wrong.append("a rank that was replaced came to the end, and says so")
    story.until_accident(other)
    other.kill()
    story.finish(story.newest())


def rewound(story: Story) -> None:
    """Two accidents, and then a model that is not the newest one: the job itself goes back to its checkpoint."""
    for _ in range(2):
        model = story.newest() if story.worlds else ""
        begin = story.job.feed().resume(model).start if model else 0
        step = story.chance.randrange(max(begin, EVERY) + 1, len(story.batches) - 1)
        story.until_accident(world := story.world(model, step=step, signal=signal.SIGKILL))
        world.kill()
    if models := story.bound():
        story.job.shutdown()
        story.job = start(story.folder, resume_model=(model := story.chance.choice(models)))
        story.finish(model)
    else:
        story.finish("")


def killed_with_the_feed(story: Story) -> None:
    """The rank dies, and the process of the feed or the coordinator with it."""
    world = story.world(step=step_within(story.chance, len(story.batches)), signal=signal.SIGKILL)
    story.until_accident(world)
    if story.chance.random() < 0.5:
        story.job.kill_task(FEED)
    else:
        story.job.kill_coordinator()
    world.kill()
    story.finish(story.newest())


def node_of_the_feed_killed(story: Story) -> None:
    """All ranks are amid an epoch, and one stands still until the node is gone; all read on by themselves."""
    assert story.nodes is not None
    step = step_within(story.chance, len(story.batches) - 2 * EVERY)  # more are left than anybody has fetched ahead
    world = story.world(step=step, signal=signal.SIGSTOP)
    sleeper = story.until_accident(world)
    [victim] = story.nodes.below(story.job.identities()[FEED].pid)
    told = story.nodes.kill(victim, story.job)
    sleeper.send_signal(signal.SIGCONT)
    story.end(world)
    status = story.job.status()
    if status.restarts == 0 and status.generation == 1:
        story.wrong.append(f"nobody has noticed: {told}")


KINDS: dict[str, Callable[[Story], None]] = {
    "rank killed": killed,
    "rank killed at the border of an epoch": killed_at_the_border,
    "rank killed between commit and flush": killed_amid_a_commit,
    "rank interrupted": interrupted,
    "rank stopped, replaced, and it wakes": stopped_and_wakes,
    "ranks killed twice, and an older model": rewound,
    "rank and feed or coordinator killed": killed_with_the_feed,
}
NODE_KILLED = "node of the feed killed"
ALL_KINDS = {**KINDS, NODE_KILLED: node_of_the_feed_killed}
"""Also what needs several nodes."""


def kind_of(seed: int) -> str:
    return list(ALL_KINDS)[seed % len(ALL_KINDS)]


def start(folder: Path, nodes: bool = False, **options: Any) -> ps.Job:
    checkpoints = ps.Checkpoints(folder / "state", every="200ms", restart_delay=0.05)
    asked = {NOT_THE_HEAD: 1} if nodes else {}
    runtime = ps.Runtime(spread=nodes)
    return ps.run(flow(**asked), parallelism=2, checkpoints=checkpoints, runtime=runtime, **options)


@contextmanager
def telling(seed: int, folder: Path, batches: list[list[int]], nodes: Nodes | None) -> Iterator[Story]:
    """A story that has begun; its processes end with it."""
    folder.mkdir(parents=True)
    story = Story(folder, Random(seed), start(folder, nodes is not None), batches, nodes)
    try:
        yield story
    finally:
        story.job.shutdown()
        for world in story.worlds:
            world.kill()


def undergo(seed: int, folder: Path, batches: list[list[int]], nodes: Nodes | None = None) -> list[str]:
    """Let the seed's disaster happen; what is wrong afterwards. ``nodes``: for the kind that kills one."""
    with telling(seed, folder, batches, nodes) as story:
        ALL_KINDS[kind_of(seed)](story)
        return story.wrong
