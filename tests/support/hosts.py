"""Two hosts on one machine: network namespaces with a cable between them, which a test can cut and heal.

Each has a loopback interface and an address of its own, and sees nothing of the machine's network. What is made here is
removed at the end, whatever has happened. Needs the right to make namespaces and `ip` (iproute2).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Host:
    """``name``: of the namespace; ``address``: on the cable."""

    name: str
    address: str

    def command(self, *command: str) -> tuple[str, ...]:
        """The command, to be run on this host."""
        return ("ip", "netns", "exec", self.name, *command)

    def plug(self, up: bool) -> None:
        """Plug the cable in, or out."""
        _ip("-n", self.name, "link", "set", "cable", "up" if up else "down")


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Both hosts, connected. Skips the test where namespaces are not permitted."""
    # 198.18.0.0/15 is reserved for tests of networks
    number = os.getpid() % 2**14
    network = f"198.18.{number // 2**6 % 256}.{number % 2**6 * 4}".rsplit(".", 1)
    hosts = [Host(f"penstock-{os.getpid()}-{at}", f"{network[0]}.{int(network[1]) + at}") for at in (1, 2)]
    made: list[Host] = []
    try:
        for host in hosts:
            _make(host)
            made.append(host)
        first, second = hosts
        _ip("-n", first.name, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second.name)
        for host in hosts:
            _ip("-n", host.name, "address", "add", f"{host.address}/30", "dev", "cable")
            _ip("-n", host.name, "link", "set", "lo", "up")
            host.plug(True)
        yield first, second
    finally:
        for host in made:  # the cable goes with the first
            _ip("netns", "delete", host.name)


def _make(host: Host) -> None:
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` here (Debian: apt install iproute2) to make network namespaces with")
    try:
        _ip("netns", "add", host.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
