"""Starts the sides of comparisons, each in its environment, and asks them in turn.

Environments are made at need: ``benchmarks/peers/<name>.txt`` says what is installed into ``build/peers/<name>``, with
the Python that runs this. Ours is the one that runs this.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from house_data import ROOT

HERE = Path(__file__).resolve().parent
PEERS = ROOT / "build" / "peers"
LOGS = ROOT / "build" / "bench" / "logs"
OURS = "penstock"

LOCAL = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "SPARK_LOCAL_IP": "127.0.0.1",
}
"""Everything stays on the loopback interface and reports nothing."""

Answer = dict[str, Any]


class SideError(Exception):
    """A side could not be made, or failed."""


def python_of(environment: str) -> Path:
    """The interpreter of an environment, which is made if it is not there or its list has changed."""
    if environment == OURS:
        return Path(sys.executable)
    wanted = HERE / "peers" / f"{environment}.txt"
    folder = PEERS / environment
    stamp, mark = folder / ".complete", sha256(wanted.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != mark:
        print(f"making build/peers/{environment}: {', '.join(names_in(wanted))}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        command = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "-r", wanted]
        made = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if made.returncode:
            raise SideError(f"{environment}: pip failed\n{made.stderr[-2000:]}")
        stamp.write_text(mark)
    return folder / "bin" / "python"


def names_in(requirements: Path) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in requirements.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line]


def is_made(environment: str) -> bool:
    """Whether the environment is there, so that nothing need be installed."""
    return environment == OURS or (PEERS / environment / ".complete").exists()


@dataclass
class Side:
    """A running side: ``with Side(name, environment, script, settings) as side: side.run()``."""

    name: str
    environment: str
    script: str
    settings: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        LOGS.mkdir(parents=True, exist_ok=True)
        command = [str(python_of(self.environment)), str(HERE / "sides" / self.script), json.dumps(self.settings)]
        path = os.pathsep.join((str(HERE), str(HERE / "sides")))
        environ = {**os.environ, **LOCAL, "PYTHONPATH": path}
        with self._log().open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environ, cwd=ROOT
            )
        try:
            self.versions = self._hear()["ready"]
        except BaseException:
            self._close()
            raise
        return self

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    def run(self) -> Answer:
        """One run; its answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        self.answers.append(self._hear())
        return self.answers[-1]

    def _hear(self) -> Answer:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideError(f"{self.name} ended: {self._log().read_text(encoding='utf-8', errors='replace')[-3000:]}")
        answer = dict(json.loads(line))
        if "error" in answer:
            raise SideError(f"{self.name}: {answer['error']}")
        return answer

    def _log(self) -> Path:
        return LOGS / f"{self.name.replace(' ', '-').replace('/', '-')}-{os.getpid()}.log"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        """Say that nothing more is asked, and wait for the process."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
