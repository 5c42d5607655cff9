"""Spark sessions that can hand partitions over: the settings that one on Ray needs, and the check of a user's own.

Rules:

1. Nothing here imports pyspark or raydp at import time. :func:`settings` gives a fresh dict each time, because RayDP
   changes it.
2. On Java 17, three kinds of JVM (Spark's driver, its executors, RayDP's master) reflect into the JDK when they
   serialise; without the same list of ``--add-opens`` for all three one of them dies and the next job hangs.
3. Blocks are reproducible: timestamps in UTC, as many partitions as asked for.
4. A session that ``ps.spark`` has started can hand over. Of a user's own session on Ray (``raydp.init_spark``) the
   settings are checked when a frame is handed in: without them a JVM or a Python worker dies later, and its error
   names neither. Only what is known to fail is refused; settings that cannot be judged from here count as right.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from ...engine.core.errors import ConfigurationError

_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.math",
    "java.net",
    "java.nio",
    "java.text",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)

JAVA_OPTIONS = " ".join(
    [
        "-XX:+IgnoreUnrecognizedVMOptions",  # Java 8 knows no --add-opens
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "-Djdk.reflect.useDirectMethodHandle=false",
    ]
)

_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for a minute: without the optimising compiler, starting one costs half the processor time."""

_LOGGING = """\
status = off
rootLogger.level = error
rootLogger.appenderRef.stdout.ref = console
logger.python.name = org.apache.spark.api.python.PythonGatewayServer
logger.python.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def settings(verbose: bool, cores: int, brief: bool = False) -> dict[str, str]:
    """Spark's settings for a session with ``cores`` on the Ray cluster that this process is connected to.

    ``brief``: the session has a minute's work, so that quick starts matter more than fast loops.
    """
    import ray

    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    options = f"{JAVA_OPTIONS} {_BRIEF}" if brief else JAVA_OPTIONS
    given = {
        # RayDP's agent in the driver's JVM otherwise writes below Ray's "latest session" link, which may dangle.
        "spark.driver.extraJavaOptions": f"{options} -Dray.logging.dir={logs}",
        "spark.executor.extraJavaOptions": options,
        "spark.ray.raydp_app_master.extraJavaOptions": f"{JAVA_OPTIONS} {_BRIEF}",  # it only keeps books
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # One partition asked for is one partition got.
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        # Spark's own default is 200, of which most would be empty on a few cores.
        "spark.sql.shuffle.partitions": str(max(8, 4 * cores)),
        # Results of a reference query come back through the driver.
        "spark.driver.maxResultSize": "0",
    }
    if not verbose:
        given["spark.log4j.config.file.name"] = str(_logging_file(logs))
    return given


def prepare_environment() -> None:
    """Environment variables that must be set before Spark's JVM starts."""
    import ray

    # Executors would otherwise start the first python3 on their PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", ray.util.get_node_ip_address())


def _logging_file(folder: Path) -> Path:
    """The log4j file, in Ray's log folder of the session: it goes when that goes."""
    path = folder / "penstock-log4j2.properties"
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write(_LOGGING)
    Path(file.name).replace(path)
    return path


class Quiet:
    """Sends what this process and the children started meanwhile write to stdout and stderr into a file.

    Spark's JVM inherits it for good: Ray's part inside it logs to stdout until Spark is up, and prints two lines about
    a missing cluster id to stderr. The file has no name; ``tail`` gives its end for an error message while the
    redirection lasts. ``verbose`` leaves everything as it is.
    """

    def __init__(self, verbose: bool) -> None:
        self._file = None if verbose else tempfile.TemporaryFile()  # noqa: SIM115 closed by __exit__
        # Copies of the real stdout and stderr by their numbers, while they are redirected.
        self._saved: dict[int, int] = {}

    def __enter__(self) -> Quiet:
        if self._file is not None:
            _flush()
            for stream in (1, 2):
                self._saved[stream] = os.dup(stream)
                os.dup2(self._file.fileno(), stream)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _flush()
        while self._saved:
            stream, real = self._saved.popitem()
            os.dup2(real, stream)
            os.close(real)
        if self._file is not None:
            self._file.close()

    def tail(self, length: int = 4000) -> str:
        """The last characters written."""
        _flush()
        if self._file is None:
            return ""
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, end - length))
        return self._file.read().decode(errors="replace")


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


_FIRST_CLOSED_JAVA = 16
"""From this version on Java lets nobody reflect into its own packages, unless told so."""

_NEEDED_OPEN = {
    "spark.driver.extraJavaOptions": ("java.math",),  # PySpark opens others for this JVM by itself
    "spark.ray.raydp_app_master.extraJavaOptions": (
        "java.lang",
        "java.io",
        "java.math",
        "java.net",
        "java.text",
        "java.util",
        "java.util.concurrent",
    ),
}
"""By setting: the packages that RayDP's serialiser reflects into, in the JVM that the setting is for."""

_PROBE = "import sys, pyarrow, pyspark; print('%d.%d' % sys.version_info[:2])"
_PROBE_SECONDS = 60.0


def is_classic(frame: Any) -> bool:
    """Whether the frame's session has its JVM beside this process, which Spark Connect has not."""
    return hasattr(frame, "_jdf")


def is_on_ray(frame: Any) -> bool:
    """Whether the frame's session is RayDP's."""
    if not is_classic(frame):
        return False
    context = frame.sparkSession.sparkContext
    return context._jsc is None or str(context.master).startswith("ray")


def check_session(frame: Any) -> None:
    """Raise ConfigurationError if the frame's session has ended."""
    if is_classic(frame) and frame.sparkSession.sparkContext._jsc is None:
        raise ConfigurationError("the Spark session of this DataFrame has ended", "start the job before Spark stops")


def check_on_ray(frame: Any) -> None:
    """Raise ConfigurationError if the frame's session is on Ray and lacks a setting that handing over needs."""
    if not is_on_ray(frame) or frame.sparkSession.sparkContext._jsc is None:
        return
    context = frame.sparkSession.sparkContext
    version = str(context._jvm.java.lang.System.getProperty("java.specification.version"))
    closed = closed_packages(version, {name: context.getConf().get(name, "") for name in _NEEDED_OPEN})
    if closed:
        setting, packages = next(iter(closed.items()))
        lines = "".join(f'\n    configs["{name}"] = ps.spark.JAVA_OPTIONS' for name in closed)
        raise ConfigurationError(
            f"the Spark session of this DataFrame runs on Java {version}, and {setting} does not open "
            f"{', '.join(packages)} to RayDP: its processes would die when partitions are handed over",
            "make the session with ps.spark.session(), or stop it (raydp.stop_spark()) and add this to the dict that "
            f"raydp.init_spark(…, configs=configs) gets:{lines}",
        )
    if why := worker_lacks(str(context.pythonExec)):
        raise ConfigurationError(
            f"Spark's executors run Python as {context.pythonExec}, which cannot hand partitions over: {why}",
            "make the session with ps.spark.session(), or stop it (raydp.stop_spark()) and add this line before "
            'raydp.init_spark(…):\n    os.environ["PYSPARK_PYTHON"] = sys.executable',
        )


def closed_packages(java: str, settings: dict[str, str | None]) -> dict[str, list[str]]:
    """By setting, the packages that it should open and does not. ``java``: the version as Java says it, "1.8" or
    "17"."""
    if float(java) < _FIRST_CLOSED_JAVA:
        return {}
    found = {
        name: [package for package in packages if f"java.base/{package}=" not in (settings.get(name) or "")]
        for name, packages in _NEEDED_OPEN.items()
    }
    return {name: packages for name, packages in found.items() if packages}


@functools.cache
def worker_lacks(executable: str) -> str:
    """Why Spark's workers could not hand rows over with this Python; "" if they can, or if it is not on this machine.

    It is asked, once, unless it is the Python of this process.
    """
    found = shutil.which(executable)
    if found is None or os.path.abspath(found) == os.path.abspath(sys.executable):
        return ""
    try:
        done = subprocess.run(
            [found, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode:
        return next(reversed(done.stderr.strip().splitlines()), f"it ended with code {done.returncode}")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    there = done.stdout.strip()
    return "" if there == here else f"it is Python {there}, and this process runs {here}"
