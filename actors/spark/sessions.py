"""What a session is that a frame belongs to, and whether it can hand partitions over.

Rules:

1. A session that ``ps.spark`` has started can. Of a user's own session on Ray (``raydp.init_spark``) the settings are
   looked at when a frame is handed in: without them a JVM or a Python worker dies later, and the error that comes of it
   names neither.
2. The settings and the reasons for them stand in ``spark_settings``. What is asked for here is less: what is known to
   fail without it. Settings that cannot be judged from this machine are taken for right.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from typing import Any

from ...engine.core.errors import ConfigurationError

_FIRST_CLOSED_JAVA = 16
"""From this version on Java lets nobody reflect into its own packages, unless told so."""

_OPENED = {
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
    closed = closed_packages(version, {name: context.getConf().get(name, "") for name in _OPENED})
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
        for name, packages in _OPENED.items()
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
