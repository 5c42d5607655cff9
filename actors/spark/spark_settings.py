"""What a Spark session on Ray needs: Spark's settings, the environment, and silence.

Rules:

1. Nothing here imports pyspark or raydp. :func:`settings` gives a fresh dict each time, because RayDP changes it.
2. On Java 17, three kinds of JVM (Spark's driver, its executors, RayDP's master) reflect into the JDK when they
   serialise; without the same list of ``--add-opens`` for all three one of them dies and the next job hangs.
3. Blocks are reproducible: timestamps in UTC, as many partitions as asked for.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import TracebackType

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
    """Environment variables that must stand before Spark's JVM starts."""
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
