"""Mutation testing of the pure cores: ``python tests/mutate.py --mutants 40 --seed 0``, or ``make mutation``.

Of each room a number of mutants is drawn by the seed. Each lives in a forked process with the tests already collected,
and meets the tests that run its function, the quickest first, until one fails. A mutant that all of them let pass is
printed: a missing test, or no difference. Tests that take more than a second, or start processes, are left out, so the
whole suite sees more. ``--write FILE`` puts the table between the marks of a document; ``--room R`` takes one room.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import resource
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from support.mutants import Function, Mutant, living_functions, mutants_of, put_in
from support.reports import markdown, put_between_marks

ROOT = Path(__file__).parents[1]
ROOMS = {
    "coordinator/checkpoint": ["tests/coordinator", "tests/cases"],
    "coordinator/restore": ["tests/coordinator", "tests/cases"],
    "engine/alignment": ["tests/engine/alignment", "tests/cases", "tests/engine/runtime"],
    "engine/scheduler/core.py": ["tests/engine/scheduler"],
}
LONGEST = 1.0
"""Seconds of a test that takes part: a mutant is to meet many."""
MOST = 60
"""Tests that a mutant meets."""
SPARE = 5
"""Seconds of a processor that the tests of a mutant may take beyond twice what they take without one."""
STUCK = 120
"""Seconds after which a mutant that does not use the processor counts as noticed."""


@dataclass
class Result:
    """What became of the mutants of a room. ``unreached``: no test that takes part runs its function."""

    killed: int = 0
    survived: list[Mutant] = field(default_factory=list)
    unreached: list[Mutant] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.killed + len(self.survived) + len(self.unreached)


class Failures:
    """Notices whether a test has failed."""

    failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed


def passes(item: pytest.Item, failures: Failures) -> bool:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return not failures.failed


def in_child(work: Callable[[], Any], cpu: float | None = None, wall: float | None = None) -> Any:
    """The result of a function in a forked process; None if that did not end well, or took too long."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (1, 2):
            os.dup2(quiet, number)
        if cpu is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 2))
        signal.alarm(int(wall) if wall is not None else 0)
        try:
            with os.fdopen(writer, "wb") as out:
                pickle.dump(work(), out)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        data = answer.read()
    _, status = os.waitpid(pid, 0)
    return pickle.loads(data) if status == 0 else None


@contextmanager
def watched(files: set[str], seen: set[Function]) -> Iterator[None]:
    """Collects the functions of these files that are called, in all threads."""

    def profile(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in files:
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname.partition(".<locals>")[0]))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def who_runs_what(
    items: list[pytest.Item], failures: Failures, files: set[str]
) -> dict[Function, list[tuple[float, int]]]:
    """For each function the tests that run it: seconds of the processor, and their numbers."""
    found: dict[Function, list[tuple[float, int]]] = defaultdict(list)
    for number, item in enumerate(items):
        seen: set[Function] = set()
        began = time.process_time()
        with watched(files, seen):
            good = passes(item, failures)
        failures.failed = False
        taken = time.process_time() - began
        if good and taken < LONGEST:
            for function in seen:
                found[function].append((taken, number))
    return found


class Mutation:
    """Runs mutants instead of the tests that were collected."""

    def __init__(self, files: set[str], mutants: list[Mutant], until: float) -> None:
        self.result = Result()
        self._files, self._mutants, self._until = files, mutants, until
        self._failures = Failures()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.register(self._failures)
        items = session.items
        runs = in_child(lambda: who_runs_what(items, self._failures, self._files))
        living = living_functions(self._files)
        for mutant in self._mutants:
            if time.monotonic() > self._until:
                break
            tests = sorted(runs.get(mutant.function, []))[:MOST]
            if not tests or mutant.function not in living:
                self.result.unreached.append(mutant)
                continue
            self._meet(mutant, living[mutant.function], [(seconds, items[number]) for seconds, number in tests])
        return True

    def _meet(self, mutant: Mutant, living: list[Any], tests: list[tuple[float, pytest.Item]]) -> None:
        def meet() -> str:
            try:
                put_in(mutant, living)
            except ValueError:  # it uses other variables of the functions around it
                return "no mutant"
            return "survived" if all(passes(item, self._failures) for _, item in tests) else "killed"

        outcome = in_child(meet, 2 * sum(seconds for seconds, _ in tests) + SPARE, STUCK) or "killed"
        if outcome == "survived":
            self.result.survived.append(mutant)
        self.result.killed += outcome == "killed"


def judge(room: str, mutants: int, seed: int, seconds: float) -> Result:
    path = ROOT / room
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    drawn = [mutant for file in files for mutant in mutants_of(file)]
    random.Random(f"{seed} {room}").shuffle(drawn)
    plugin = Mutation(set(map(str, files)), drawn[:mutants], time.monotonic() + seconds)
    kept = "not ray and not spark and not slow and not chaos and not large and not sweep"
    asked = ["-p", "no:cacheprovider", "--timeout=0", "--pure", "-q", "-m", kept]
    code = pytest.main([*asked, *(str(ROOT / each) for each in ROOMS[room])], plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"pytest ended with {code!r}")
    return plugin.result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=40, help="of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=900.0, help="for each room")
    parser.add_argument("--room", choices=ROOMS)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    os.chdir(ROOT)
    hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None, max_examples=20)
    hypothesis.settings.load_profile("mutation")
    rows = []
    for room in [options.room] if options.room else ROOMS:
        found = in_child_of_its_own(room, options)
        for what, mutants in (("survived", found.survived), ("unreached", found.unreached)):
            for mutant in mutants:
                print(f"{what}: {str(mutant).removeprefix(f'{ROOT}/')}", flush=True)
        share = f"{100 * found.killed / found.total:.0f} %" if found.total else "–"
        rows.append((f"`{room}`", found.total, found.killed, len(found.survived), len(found.unreached), share))
    table = markdown(("room", "mutants", "noticed", "survived", "in functions that no quick test runs", "score"), rows)
    print(table)
    if options.write:
        put_between_marks(options.write, "mutation", table)


def in_child_of_its_own(room: str, options: argparse.Namespace) -> Result:
    """The result of a room, from a process that has collected only its tests."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        result = judge(room, options.mutants, options.seed, options.seconds)
        os.write(writer, pickle.dumps(result))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        data = answer.read()
    os.waitpid(pid, 0)
    if not data:
        sys.exit(f"nothing came of {room}")
    result: Result = pickle.loads(data)
    return result


if __name__ == "__main__":
    main()
