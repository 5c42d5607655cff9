"""A real S3 server on loopback, from a wheel: SeaweedFS, which checks signatures and conditions.

Rules:

1. It is started once for all tests that want it, on free ports, and ended by its process. Its folder goes with it.
2. Buckets are made by the first object in them, so each test has one of its own and nothing is tidied.
3. Nothing leaves this machine: its maker's statistics are off.
4. There is room for every bucket, however full the disk: each takes a volume of its own, and by itself the server has
   one for each GiB that is free. When they are used up it answers 500 to whoever writes.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

KEY, SECRET = "tests-key", "tests-secret-that-nobody-prints"
PATIENCE = 60.0
VOLUMES = 10_000
_SERVICES = ("s3", "master", "volume", "filer", "admin")


class ObjectServer:
    """The server. ``endpoint``: its address."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="penstock-weed-")
        first, *ports = free_ports(2 * len(_SERVICES))
        self.endpoint = f"http://127.0.0.1:{first}"
        places = [f"-{service}.port{kind}" for service in _SERVICES for kind in ("", ".grpc")]
        #: they are made where nobody can say, and outlive a server that is killed
        self._left = [f"/tmp/seaweedfs-{of}-grpc-{at}.sock" for of, at in zip(_SERVICES, ports[::2], strict=True)]
        self._words = [
            *(str(Path(sysconfig.get_path("scripts"), "weed")), "-logtostderr", "mini", f"-dir={self._folder}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false", "-admin.ui=false", "-master.telemetry=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-volume.max={VOLUMES}"),
            *(f"-{service}.localSocket={self._folder}/{service}.sock" for service in ("s3", "filer")),
            *(f"{name}={port}" for name, port in zip(places, [first, *ports], strict=True)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with open(f"{self._folder}.log", "wb") as log:
            said = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
            self._process = subprocess.Popen(
                self._words, env=os.environ | said, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder
            )
        until = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                said_last = Path(f"{self._folder}.log").read_text()[-2000:]
                self.__exit__()
                raise RuntimeError(f"the object server did not start: {said_last}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        for each in (f"{self._folder}.log", *self._left):
            Path(each).unlink(missing_ok=True)

    def _answers(self) -> bool:
        """Whether objects can be kept: it refuses who says not who asks, once it is up."""
        try:
            with urlopen(f"{self.endpoint}/", timeout=5):
                return True
        except HTTPError as refused:
            return refused.code == 403
        except (URLError, OSError):
            return False

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """What leads a process to it, or to whatever stands before it."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
