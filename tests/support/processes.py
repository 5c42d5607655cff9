"""Programs started by a test, with everything that they start in turn, so that a test can tell whether any is left.

Rules:

1. The test's process becomes a *subreaper* (Linux): a program whose parent has died is handed to it instead of to
   process 1. So what a program started, and what that started, is found below this process for ever, whatever session
   it moved to and whatever it wrote over its environment (Ray's workers do both).
2. Ours is what lies below this process, but not below a child that was there before: a fixture's Ray cluster may start
   workers meanwhile.
3. Output goes to files or to one pipe that is read line by line: a program that is left over must not keep a test
   waiting for the end of a pipe.
4. Nothing survives the ``with`` block; a test that wants to know what was left asks before its end.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_PR_SET_CHILD_SUBREAPER = 36
_ZOMBIE = "Z"


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it. ``started`` tells it from a later one with the same id."""

    pid: int
    parent: int
    state: str
    started: int
    command: str


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    def __str__(self) -> str:
        return f"exit code {self.returncode} after {self.seconds:.1f} s\n{self.stdout}\n--- stderr\n{self.stderr}"


class Program:
    """A running program. Its stdout is a pipe, its stderr a file; it leads a session and a process group of its own."""

    def __init__(
        self, command: list[str], folder: Path, environment: Mapping[str, str | None], cwd: Path | None
    ) -> None:
        self._stderr = folder / f"stderr-{time.monotonic_ns()}"
        merged = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        self.started = time.monotonic()
        with self._stderr.open("wb") as stderr:
            self.popen = subprocess.Popen(
                command,
                cwd=cwd,
                env={name: value for name, value in merged.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._lines: list[str] = []

    def wait_line(self, pattern: str) -> str:
        """Read on until a line of stdout matches; fails, with all output, if the program ends before."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._lines.append(line)
            if re.search(pattern, line):
                return line
        message = f"no line matched {pattern!r}: {self.wait()}"
        raise AssertionError(message)

    def wait_for(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        """Wait until something is so that the program does; fails, with all output, if it ends before or takes long."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.popen.poll() is not None or time.monotonic() > deadline:
                message = f"it did not come to be: {self.wait(1.0)}"
                raise AssertionError(message)
            select.select([], [], [], 0.02)

    def interrupt(self) -> None:
        """Ctrl-C: a terminal sends SIGINT to the whole process group in its foreground."""
        os.killpg(self.popen.pid, signal.SIGINT)

    def wait(self, timeout: float = 240.0) -> Done:
        """Wait until it ends by itself."""
        try:
            rest, _ = self.popen.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            so_far = "".join(self._lines) + _text(error.stdout)
            message = f"still running after {timeout:g} s:\n{so_far}\n--- stderr\n{self._stderr.read_text()}"
            raise AssertionError(message) from None
        seconds = time.monotonic() - self.started
        return Done(self.popen.returncode, "".join(self._lines) + rest, self._stderr.read_text(), seconds)


class Household:
    """The programs of one test. A context manager; ``folder`` takes what they write to stderr."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._earlier: frozenset[tuple[int, int]] = frozenset()
        self._programs: list[Program] = []

    def __enter__(self) -> Self:
        _become_subreaper(True)
        me = os.getpid()
        self._earlier = frozenset((each.pid, each.started) for each in _processes() if each.parent == me)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while left := self.alive():
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            self.wait_gone(10.0)
        for program in self._programs:
            program.popen.wait()
            assert program.popen.stdout is not None
            program.popen.stdout.close()
        self._reap()
        _become_subreaper(False)

    def start(self, *command: str, cwd: Path | None = None, **environment: str | None) -> Program:
        """Start a program; a variable of the environment that is None is taken away."""
        program = Program(list(command), self._folder, environment, cwd)
        self._programs.append(program)
        return program

    def python(self, *arguments: str, cwd: Path | None = None, **environment: str | None) -> Program:
        """Start this Python with arguments."""
        return self.start(sys.executable, *arguments, cwd=cwd, **environment)

    def alive(self) -> list[Process]:
        """What runs of all that was started here, directly or not."""
        children: dict[int, list[Process]] = {}
        for process in _processes():
            children.setdefault(process.parent, []).append(process)
        found, below = [], [os.getpid()]
        while below:
            for child in children.get(below.pop(), []):
                if (child.pid, child.started) not in self._earlier:
                    below.append(child.pid)
                    found.append(child)
        return [process for process in found if process.state != _ZOMBIE]

    def wait_gone(self, seconds: float) -> list[Process]:
        """Wait until nothing of it runs any more, for so long at most; what is left then."""
        deadline = time.monotonic() + seconds
        while left := self.alive():
            for process in left:
                if not _wait_end(process.pid, deadline - time.monotonic()):
                    return self.alive()
        return []

    def _reap(self) -> None:
        """Take note of the ends of those that were handed to this process."""
        me, own = os.getpid(), {program.popen.pid for program in self._programs}
        for process in _processes():
            if process.parent == me and process.state == _ZOMBIE and process.pid not in own:
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)


def wait_end(pid: int, seconds: float) -> None:
    """Wait until a process has ended, whoever started it; fails if it does not."""
    assert _wait_end(pid, seconds), f"process {pid} is still there after {seconds:g} s"


def _become_subreaper(on: bool) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _processes() -> Iterator[Process]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # the name of the program stands in parentheses and may hold any character
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            yield Process(int(folder.name), int(fields[1]), fields[0], int(fields[19]), command)


def _wait_end(pid: int, seconds: float) -> bool:
    """Wait until a process has ended; its end wakes us."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([handle], [], [], max(0.0, seconds))
        return bool(readable)
    finally:
        os.close(handle)


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
