"""Runs a script that has a Spark session of its own, in a process of its own: RayDP allows one session a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = str(Path(__file__).parent.parent)


def facts_of(script: ModuleType, folder: Path, seconds: float = 540.0) -> dict[str, Any]:
    """What the script, which is given ``folder``, writes to ``facts.json`` there, within so long at most."""
    assert script.__file__ is not None
    done = subprocess.run(
        [sys.executable, script.__file__, str(folder)],
        env={**os.environ, "PYTHONPATH": TESTS},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return found
