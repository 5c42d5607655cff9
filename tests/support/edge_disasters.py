"""What may happen around a job: to its checkpoint folder, its outputs, its inputs, and by others of its kind.

A disaster is a story with one job, or two. Whoever ends without an error must have left exactly its rows: that is
judged by reading the outputs, and not by what the job or its audit think. An error must be one of ours. The audit of a
run that ended well must not say more than is true: "proven" is of rows that a reader gets, each of them; "counted" is
of their number. Whether the content is audited too is drawn by the seed.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.engine.core.errors import PenstockError
from penstock.engine.plan.plan import Audited
from support.damage import flipped
from support.forgetful_disk import ForgetfulDisk

TESTS = Path(__file__).parent.parent
FILES, ROWS = 160, 12  # a checkpoint may stand behind every eighth file
PATIENCE = 60.0


@dataclass
class World:
    """The folders of one disaster; ``said``: how its runs ended."""

    root: Path
    chance: Random
    mode: str = "new"
    audit: Audited = "counts"
    said: list[str] = field(default_factory=list)
    #: the multiset of ids that the outputs must hold, if any run has ended well
    expected: Counter[int] = field(default_factory=Counter)
    audits: list[Any] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def output(self) -> Path:
        return self.root / "out"

    def inputs(self, name: str = "in", start: int = 0) -> Path:
        folder = self.root / name
        if not folder.exists():
            folder.mkdir(parents=True)
            for number in range(FILES):
                begin = start + number * ROWS
                pq.write_table(pa.table({"id": range(begin, begin + ROWS)}), folder / f"{number:03d}.parquet")
        return folder

    def flow(self, rate: float = 0.0, inputs: str = "in", start: int = 0) -> ps.Flow:
        made = ps.Flow("edges")
        made.read_parquet(self.inputs(inputs, start), rate=rate).write_parquet(self.output, mode=self.mode)  # type: ignore[arg-type]
        return made

    def start(self, state: Path | None = None, rate: float = 1500.0, **options: Any) -> ps.Job:
        inputs, first = options.pop("inputs", "in"), options.pop("start", 0)
        every = options.pop("every", "40ms")
        checkpoints = ps.Checkpoints(state or self.state, every=every, max_restarts=1)
        return ps.run_local(self.flow(rate, inputs, first), checkpoints=checkpoints, audit=self.audit, **options)

    def interrupt(self, completed: int | None = None, **options: Any) -> None:
        """A run that has come some way and is broken off."""
        with self.start(**options) as job:
            wanted = completed or self.chance.randint(1, 8)
            job.wait_until(lambda status: status.is_over or status.checkpoints_completed >= wanted, PATIENCE)

    def finish(self, state: Path | None = None, rate: float = 0.0, **options: Any) -> bool:
        """A run to the end; whether it ended well."""
        first = options.get("start", 0)
        try:
            job = self.start(state, rate, **options)
            self.end(job, first)
        except PenstockError as error:
            self.said.append(f"{type(error).__name__}: {error.message[:120]}")
            return False
        return True

    def end(self, job: ps.Job, first: int = 0) -> None:
        """Wait for a job, and expect its rows if it ends well."""
        job.wait(PATIENCE)
        self.said.append("finished")
        self.audits.append(job.audit())
        rows = Counter(range(first, first + FILES * ROWS))
        # a job that is run again from a copy has the same rows, not others
        self.expected = self.expected + rows if self.mode == "append" else self.expected | rows

    def parts(self) -> list[Path]:
        return sorted(self.output.glob("part-*"))

    def found(self) -> Counter[int]:
        """The ids that a reader of the output finds."""
        found: Counter[int] = Counter()
        for path in sorted(self.output.glob("[!_.]*")):
            found.update(pq.read_table(path, page_checksum_verification=True)["id"].to_pylist())
        return found

    def any_file(self, folder: Path) -> Path:
        return self.chance.choice(sorted(path for path in folder.rglob("*") if path.is_file()))

    def judge(self) -> str:
        """What is wrong; "" if nothing is."""
        if "finished" not in self.said:
            return ""  # refused; nothing was promised
        try:
            found = self.found()
        except (OSError, pa.ArrowInvalid) as error:  # a reader is told: pages carry checksums
            untrue = ["proven"] if self._has_its_number_of_rows() else ["proven", "counted"]
            boasts = [grade for grade in self.grades() if grade in untrue]
            return f"no reader gets on ({str(error)[:80]}), and an audit says {boasts[0]}" if boasts else ""
        if found == self.expected:
            return ""
        missing, more = self.expected - found, found - self.expected
        said = self.grades()
        return f"{missing.total()} rows are missing, {more.total()} are too many; the audits of their sinks say {said}"

    def grades(self) -> list[str]:
        """What the audits of the runs that ended well say of their sinks."""
        return [sink.grade for audit in self.audits for sink in audit.sinks]

    def _has_its_number_of_rows(self) -> bool:
        """Whether the footers of the output say so: all that "counted" is about."""
        try:
            rows = sum(pq.read_metadata(path).num_rows for path in self.output.glob("[!_.]*"))
        except (OSError, pa.ArrowInvalid):
            return False
        return rows == self.expected.total()


def cloned(world: World) -> None:
    """A copy of the checkpoint folder goes on after the job did, beside it, or instead of it."""
    world.interrupt()
    copy = world.root / "copy"
    shutil.copytree(world.state, copy)
    order = [world.state, copy]
    world.chance.shuffle(order)
    for state in order:
        world.finish(state, take_over=world.chance.random() < 0.3)


def cloned_while_running(world: World) -> None:
    """The copy is made of a running job, and started beside it."""
    with world.start(rate=2000.0) as job:
        wanted = world.chance.randint(1, 4)
        job.wait_until(lambda status: status.checkpoints_completed >= wanted, PATIENCE)
        copy = world.root / "copy"
        try:
            shutil.copytree(world.state, copy)
        except shutil.Error:
            return  # files went while it was copied
        world.finish(copy, take_over=world.chance.random() < 0.5)
        try:
            world.end(job)
        except PenstockError as error:
            world.said.append(error.message)


def sleeper(world: World) -> None:
    """A running job's process is stopped, another run takes its output over and finishes; then the first wakes up."""
    heir = world.chance.choice(["copy", "same log", "savepoint"])
    wanted, saved = world.chance.randint(1, 4), world.root / "saved"
    world.inputs()
    told = world.root / "told.pickle"
    command = [sys.executable, "-m", "support.edge_sleeper", world.root, world.audit, str(wanted), told]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen([*command, saved] if heir == "savepoint" else command, env=environment)
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise AssertionError(f"the sleeper has ended with {status} before it slept")
        if heir == "copy":
            shutil.copytree(world.state, world.root / "copy")
        state = world.state if heir == "same log" else world.root / "copy"
        world.finish(state, take_over=True, from_snapshot=saved if heir == "savepoint" else None)
        os.kill(process.pid, signal.SIGCONT)
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
    said, expected, audits = pickle.loads(told.read_bytes())
    world.said += said
    world.expected |= expected
    world.audits += audits


def old_log_put_back(world: World) -> None:
    """The checkpoint folder is one of some time ago."""
    world.interrupt(1)
    shutil.copytree(world.state, world.root / "backup")
    world.interrupt(world.chance.randint(1, 3)) if world.chance.random() < 0.7 else world.finish()
    shutil.rmtree(world.state)
    shutil.copytree(world.root / "backup", world.state)
    world.finish(take_over=world.chance.random() < 0.3)


def old_output_put_back(world: World) -> None:
    """The output is one of some time ago."""
    world.interrupt(1)
    shutil.copytree(world.output, world.root / "backup")
    world.interrupt(world.chance.randint(1, 3))
    shutil.rmtree(world.output)
    shutil.copytree(world.root / "backup", world.output)
    world.finish()


def entry_lost(world: World) -> None:
    """An entry of the log, or all of it, is gone."""
    world.interrupt()
    entries = sorted(world.state.glob("edges/log/*"))
    if world.chance.random() < 0.2:
        shutil.rmtree(world.state / "edges" / "log")
    else:
        world.chance.choice(entries[-3:]).unlink()
    world.finish()


def bit_flipped(world: World) -> None:
    """One bit of one stored byte, in the checkpoint folder or the output."""
    world.interrupt()
    path = world.any_file(world.chance.choice([world.state, world.state, world.output]))
    data = path.read_bytes()
    if data:
        path.write_bytes(flipped(data, world.chance.randrange(8 * len(data))))
    world.finish()


def file_cut(world: World) -> None:
    """A stored file lost its end, or is empty, or is gone."""
    world.interrupt()
    path = world.any_file(world.chance.choice([world.state, world.output]))
    data = path.read_bytes()
    keep = world.chance.choice([None, 0, len(data) // 2, max(0, len(data) - 1)])
    if keep is None:
        path.unlink()
    else:
        path.write_bytes(data[:keep])
    world.finish()


def files_swapped(world: World) -> None:
    """Two stored files have changed places."""
    world.interrupt(4)
    folder = world.chance.choice([world.state, world.output])
    one, other = world.any_file(folder), world.any_file(folder)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    world.finish()


def output_meddled_with(world: World) -> None:
    """A committed file was removed, renamed, copied; or somebody's file has come."""
    world.interrupt(world.chance.randint(2, 5))
    part = world.chance.choice(world.parts() or [world.output])
    how = world.chance.randrange(4)
    if how == 0 and part.is_file():
        part.unlink()
    elif how == 1 and part.is_file():
        part.rename(part.with_name("mine.parquet"))
    elif how == 2 and part.is_file():
        shutil.copy(part, part.with_name(part.name.replace("part-", "part-again-")))
    else:
        pq.write_table(pa.table({"id": [-1]}), world.output / "other.parquet")
    world.finish()


def two_writers(world: World) -> None:
    """Two jobs of one name with other inputs, into one output, at once."""
    world.mode = world.chance.choice(["new", "append"])
    threads = [
        threading.Thread(
            target=world.finish,
            args=(world.root / f"state{number}",),
            kwargs={"rate": 4000.0, "inputs": f"in{number}", "start": number * 100_000},
        )
        for number in range(2)
    ]
    for number in range(2):
        world.inputs(f"in{number}", number * 100_000)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one_after_the_other(world: World) -> None:
    """The same, the second when the first has ended or was broken off."""
    world.mode = world.chance.choice(["new", "append"])
    whole = world.chance.random() < 0.5
    first = world.root / "state0"
    world.finish(first) if whole else world.interrupt(state=first)
    world.finish(world.root / "state1", inputs="in1", start=100_000)
    if not whole:
        world.finish(first)


def two_heirs(world: World) -> None:
    """Two jobs start from one savepoint."""
    with world.start() as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
        saved = job.stop(savepoint=world.root / "saved", timeout=PATIENCE)
    for name in ("a", "b"):
        world.finish(world.root / name, from_snapshot=saved.path)


def inputs_changed(world: World) -> None:
    """The inputs of the second run are others."""
    world.interrupt()
    files = sorted(world.inputs().iterdir())
    path = world.chance.choice(files)
    how = world.chance.randrange(6)
    if how == 0:  # exported again, in another order
        for number, each in enumerate(reversed(files)):
            pq.write_table(pa.table({"id": range(number * ROWS, number * ROWS + ROWS)}), each)
    elif how == 1:
        path.unlink()
    elif how == 2:
        pq.write_table(pa.table({"id": range(ROWS // 2)}), path)
    elif how == 3:
        os.utime(path)
    elif how == 4:
        shutil.copy(path, path.with_name("zz.parquet"))
    else:
        path.write_bytes(path.read_bytes()[:-5])
    world.finish()


def power_cut(world: World) -> None:
    """What was not synced is gone, and the same script runs again."""
    disk = ForgetfulDisk(world.root / "disk")
    inner = World(disk.root / "data", world.chance, audit=world.audit)
    inner.inputs()
    with disk.watched():
        inner.interrupt(world.chance.randint(1, 3))
    moment = world.chance.choice(disk.moments)
    moment.survivors(world.root / "left", world.chance)
    shutil.rmtree(disk.root)
    shutil.move(world.root / "left", disk.root)
    inner.inputs()
    inner.finish()
    world.said, world.expected, world.audits = inner.said, inner.expected, inner.audits
    shutil.copytree(inner.output, world.output, dirs_exist_ok=True) if inner.output.exists() else None


KINDS: dict[str, Callable[[World], None]] = {
    story.__name__.replace("_", " "): story
    for story in (
        cloned,
        cloned_while_running,
        sleeper,
        old_log_put_back,
        old_output_put_back,
        entry_lost,
        bit_flipped,
        file_cut,
        files_swapped,
        output_meddled_with,
        two_writers,
        one_after_the_other,
        two_heirs,
        inputs_changed,
        power_cut,
    )
}


def kind_of(seed: int) -> str:
    """Which disaster a seed stands for."""
    return list(KINDS)[seed % len(KINDS)]


def undergo(seed: int, root: Path) -> World:
    """Let the disaster of this seed happen below ``root``."""
    world = World(root, Random(seed))
    world.audit = world.chance.choice(get_args(Audited))
    world.root.mkdir(parents=True, exist_ok=True)
    KINDS[kind_of(seed)](world)
    return world
