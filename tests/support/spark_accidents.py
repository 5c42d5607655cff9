"""What may happen to a script that hands a Spark frame to a job, and what must be true afterwards.

A seed draws the accident, the frame (its rows come in another order each time, or not), the way (staged or leased) and
the moment. The script (``spark_story``) is a process of its own with a session of its own; where the script outlives
the accident, several seeds share one. It runs again by the same command. The judge reads the outputs: the rows are
exactly those of the frame; a run that failed said that it was Spark, and what to do; whoever says "finished" or "clean"
is right.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import pyarrow.dataset as ds

from support import spark_story
from support.processes import Household, Program
from support.spark_scripts import TESTS
from support.spark_story import PARTITIONS, ROWS, Plan

SLOW = 40.0
"""Rows a second where an accident has to come amid the job: the first checkpoint can stand after a sixth of them, and
the job's end is 40 s further on. The run after it has no such bound."""

PATIENCE = 240.0


def expected() -> list[tuple[int, int]]:
    return [(number, number * 7) for number in range(ROWS)]


def rows_in(folder: Path) -> list[tuple[int, int]]:
    """The rows that a reader of the output finds, in order."""
    if not any((folder / "out").glob("*.parquet")):
        return []
    found = ds.dataset(folder / "out", format="parquet").to_table().to_pylist()
    return sorted((row["id"], row["value"]) for row in found)


def told(folder: Path) -> list[dict[str, Any]]:
    """What each run that came to its end has said."""
    path = folder / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def problems(folder: Path) -> Iterator[str]:
    """What is wrong with the output, and with what was said of it."""
    rows, said = rows_in(folder), told(folder)
    if len(set(rows)) < len(rows) or not set(rows) <= set(expected()):
        yield f"the output has {len(rows)} rows, {len(set(rows))} of them different"
    last = said[-1] if said else {"state": "silent"}
    if last["state"] != "finished":
        yield f"the last run ended as {last}"
    elif rows != expected():
        yield f"it says that it has finished, and {ROWS - len(set(rows))} rows are missing"
    if last.get("clean") is False and rows == expected():
        yield f"all rows are there, and the audit is not clean: {last}"
    for each in said:
        error = each.get("error", "")
        if each["state"] == "failed" and not ("Spark" in error and "remedy: run the same command again" in error):
            yield f"an error that names not Spark, or no way on: {error}"


class Stage:
    """Where one story takes place."""

    def __init__(self, folder: Path, household: Household, chance: Random) -> None:
        self.folder = folder
        self.chance = chance
        self.wrong: list[str] = []
        self._household = household

    def begin(self, plan: Plan) -> Program:
        return begin(self._household, [plan.write(self.folder)])

    def marks(self) -> int:
        return len(list((self.folder / "marks").iterdir()))

    def kill(self, program: Program) -> None:
        """Kill the script alone: what it has started notices that later, and is there when the next one begins."""
        program.popen.kill()
        program.popen.wait()

    def kill_master(self) -> None:
        """RayDP's master: the first of the Java actors below Ray."""
        java = [each for each in self._household.alive() if os.path.basename(each.command.split(" ")[0]) == "java"]
        workers = [each for each in java if "DefaultWorker" in each.command]
        os.kill(min(workers, key=lambda each: each.started).pid, signal.SIGKILL)

    def finish(self, plan: Plan) -> None:
        """The same command again, to its end."""
        end(self.begin(plan), self.wrong)
        self.wrong += problems(self.folder)


def begin(household: Household, folders: Sequence[Path]) -> Program:
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    script = spark_story.__file__
    return household.python(script, *map(str, folders), cwd=folders[0], PYTHONPATH=path, RAY_ADDRESS=None)


def end(program: Program, wrong: list[str]) -> None:
    """Wait for a script that has nothing to fear."""
    done = program.wait(PATIENCE)
    if done.returncode:
        wrong.append(f"the script ended with {done}"[:2000])


def amid(chance: Random) -> int:
    """How many partitions were begun at a moment amid a hand-off."""
    return chance.randint(2, PARTITIONS - 2)


def script_killed_amid_a_stage(stage: Stage) -> None:
    plan = Plan("stage", shuffled=stage.chance.random() < 0.5)
    program, moment = stage.begin(plan), amid(stage.chance)
    program.wait_for(lambda: stage.marks() >= moment, PATIENCE)
    stage.kill(program)
    stage.finish(plan)


def script_killed_when_it_has_staged(stage: Stage) -> None:
    """At once, before the job's log speaks of the stage, or amid the job: then Spark is not asked again."""
    slow = Plan("stage", shuffled=stage.chance.random() < 0.5, rate=SLOW)
    program, amid_the_job = stage.begin(slow), stage.chance.random() < 0.5
    if amid_the_job:
        program.wait_for(lambda: any((stage.folder / "out").glob("*.parquet")), PATIENCE)
    else:
        program.wait_for(lambda: any((stage.folder / "state").glob("*/spark/rows/*.json")), PATIENCE)
    stage.kill(program)
    if told(stage.folder):
        stage.wrong.append("the job was over before its script was killed")
    before = stage.marks()
    stage.finish(replace(slow, rate=0.0))
    if amid_the_job and stage.marks() > before:
        stage.wrong.append("Spark computed the rows again, though the job had begun")
    stages = list((stage.folder / "state").glob("*/spark/rows/*.json"))
    if len(stages) != 1:
        stage.wrong.append(f"{len(stages)} stages are there")


def script_killed_in_a_lease(stage: Stage) -> None:
    """While Spark computes, with rows that were read or not; with checkpoints that nothing keeps, or without. If one
    stands, its rows ended with the script: the same command is refused, and says to start over with empty folders."""
    slow = stage.chance.random() < 0.5
    plan = Plan("lease", stage.chance.random() < 0.5, stage.chance.random() < 0.5, rate=SLOW if slow else 0.0)
    program, moment = stage.begin(plan), stage.chance.randint(2, PARTITIONS) if slow else amid(stage.chance)
    program.wait_for(lambda: stage.marks() >= moment, PATIENCE)
    stage.kill(program)
    if len(list((stage.folder / "state").glob("*/log/*.json"))) > 1:
        for each in ("out", "state"):
            rmtree(stage.folder / each, ignore_errors=True)
    stage.finish(replace(plan, rate=0.0))


def master_killed(stage: Stage) -> None:
    """RayDP's master dies; the script says so within a minute, and the same command goes on, or begins anew over an
    empty output if the frame was leased."""
    plan = Plan(stage.chance.choice(["stage", "lease"]), shuffled=stage.chance.random() < 0.5)  # type: ignore[arg-type]
    program, moment = stage.begin(plan), amid(stage.chance)
    program.wait_for(lambda: stage.marks() >= moment, PATIENCE)
    stage.kill_master()
    end(program, stage.wrong)
    if plan.way == "lease":
        for each in ("out", "state"):
            rmtree(stage.folder / each, ignore_errors=True)
    stage.finish(plan)
    if (state := told(stage.folder)[0]["state"]) != "failed":
        stage.wrong.append(f"the master was killed, and the first run ended as {state}")


ALONE: dict[str, Callable[[Stage], None]] = {
    "script killed amid a stage": script_killed_amid_a_stage,
    "script killed when it has staged": script_killed_when_it_has_staged,
    "script killed in a lease": script_killed_in_a_lease,
    "RayDP's master killed": master_killed,
}
"""Those that need a session of their own."""

TOGETHER = {"executor killed amid a stage": "stage", "executor killed amid a lease": "lease"}
"""Those whose script outlives them: many share a session."""

KINDS = (*ALONE, *TOGETHER)


def kind_of(seed: int) -> str:
    return KINDS[seed % len(KINDS)]


def undergo(seed: int, folder: Path) -> list[str]:
    """Let the seed's accident happen, one of those that need a session of their own; what is wrong afterwards."""
    folder.mkdir(parents=True)
    with Household(folder) as household:
        stage = Stage(folder, household, Random(seed))
        ALONE[kind_of(seed)](stage)
        return stage.wrong


def undergo_together(seeds: Sequence[int], folder: Path) -> dict[int, list[str]]:
    """The same for those that share a session, by seed."""
    for seed in seeds:
        chance = Random(seed)
        plan = Plan(
            TOGETHER[kind_of(seed)],  # type: ignore[arg-type]
            shuffled=chance.random() < 0.5,
            checkpoints=kind_of(seed).endswith("stage") or chance.random() < 0.5,
            executor_dies_at=amid(chance),
        )
        plan.write(folder / str(seed))
    folders = {seed: folder / str(seed) for seed in seeds}
    wrong: list[str] = []
    with Household(folder) as household:
        done = begin(household, list(folders.values())).wait(PATIENCE + 60.0 * len(seeds))
    if done.returncode:
        wrong.append(f"the script ended with {done}"[:2000])
    return {seed: [*wrong, *problems(each)] for seed, each in folders.items()}
