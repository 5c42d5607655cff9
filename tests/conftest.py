"""What every test needs, whatever it tests: the environment of child processes, and ``--pure``.

How tests are imported. The root of the checkout is a package (it *is* ``penstock``), and its folder may be called
anything, ``penstock-main`` for instance. So pytest runs with ``--import-mode=importlib``, which puts no folder on
``sys.path``, and:

1. The package under test is the installed one: ``import penstock…``, never ``import engine…``.
2. Helpers that several test files share live in ``tests/support`` and are imported as ``from support.… import …``;
   ``pythonpath`` in ``pyproject.toml`` adds ``tests`` for that, and ``benchmarks`` for its harness.
3. Test folders have no ``__init__.py``. Two test files may have the same name in different folders.
4. What a test sends to another process by reference (a class for a Ray actor) lives in ``tests/support`` too: a test
   file cannot be imported by its name elsewhere.

Marks: ``ray``, ``spark``, ``slow``, ``chaos``, ``large`` (``pyproject.toml`` says what each means). A test that needs
Ray or Spark without a mark fails under ``make test-fast``, which runs with ``--pure``. A test that hangs is failed
after ``timeout`` seconds with the stacks of all threads. A test of whole jobs
(``WHOLE_JOBS``) that leaves one running fails.

With ``--second-try`` (``make test``) a failed test is run once more if ``tests/second_try.txt`` names it or its file,
with the reason. The summary shows the failure of the first try, and its last line but one counts them. All other tests
have one try.

``--record FILE`` writes the names of the tests that pass, ``--leave-out FILE`` leaves these out: continuous integration
measures the branches of the pure tests (``make coverage``) and then runs the others, so that none runs twice.

``make test`` has two workers (pytest-xdist). Tests with real processes mostly wait, so the first worker begins with
them, and the second one with the pure tests; who is done early takes files from what is left to the other.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.bucket_twin import BucketTwin, environment
from support.left_threads import left_since
from support.object_server import ObjectServer
from support.store_proxy import StoreProxy

# No property rests on how fast the machine is: an example that is slow beside other work is not a failure.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

FORBIDDEN_WHEN_PURE = frozenset({"ray", "raydp", "pyspark"})

ON_PROCESSES = ("ray", "spark", "chaos")
"""The marks of tests that run real processes."""

WHOLE_JOBS = ("test_local_", "test_feed_", "test_replay", "test_audit")
"""How the files in this folder begin whose tests run whole jobs in this process, and end them."""

SECOND_TRY = Path(__file__).parent / "second_try.txt"

TESTS = str(Path(__file__).parent)

ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray and Spark bind to 127.0.0.1 instead of the outer address
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # no token file is left in the home folder; the tests' clusters are loopback only
    "PYTHONFAULTHANDLER": "1",  # child processes, too, print their stacks when they crash
}


class RefuseImports:
    """A finder that comes first and fails for some top-level modules, as if they were not installed."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(
                f"{name} is refused under --pure; mark the test ray or spark, or keep the module free of it", name=name
            )
        return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pure", action="store_true", help="refuse to import ray, raydp and pyspark in this process")
    parser.addoption("--second-try", action="store_true", help="run what second_try.txt names once more if it fails")
    parser.addoption("--record", type=Path, help="write the names of the tests that pass into this file")
    parser.addoption("--leave-out", type=Path, help="leave out the tests that this file names")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a shell without job control starts so what is to run beside it, and no program below would see a Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it every worker process of Ray compiles all modules anew
    if hasattr(config, "workerinput"):
        os.environ.pop("COVERAGE_PROCESS_START", None)  # make coverage measures the workers, not what tests start
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if (file := config.getoption("--record")) is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record(file))
    if config.getoption("--pure"):
        sys.meta_path.insert(0, RefuseImports(FORBIDDEN_WHEN_PURE))


def second_tries() -> dict[str, str]:
    """The files and tests that have a second try under ``--second-try``, each with the reason."""
    lines = (line.strip() for line in SECOND_TRY.read_text().splitlines())
    entries = (line.partition(" | ") for line in lines if line and not line.startswith("#"))
    return {name.strip(): reason.strip() for name, _, reason in entries}


class Record:
    """Writes the names of the tests that pass, each on a line of its own, where all reports come together."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text("".join(f"{name}\n" for name in self._passed))


def leave_out(config: pytest.Config, items: list[pytest.Item], names: frozenset[str]) -> None:
    """Deselect the tests of these names."""
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in names])
    items[:] = [item for item in items if item.nodeid not in names]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (file := config.getoption("--leave-out")) is not None:
        leave_out(config, items, frozenset(file.read_text().splitlines()))
    if config.getoption("--second-try"):
        named = second_tries()
        for item in items:
            test = item.nodeid.partition("[")[0]
            if test in named or test.partition("::")[0] in named:
                item.add_marker(pytest.mark.flaky(reruns=1))
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if any(item.get_closest_marker(mark) for mark in ON_PROCESSES)}
        items.sort(key=lambda item: item.path not in slow)  # stable: the tests of a file stay as they are


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take whole files: the first one from the front of the line, the others from its end."""
    from xdist.scheduler import LoadFileScheduling

    class FromBothEnds(LoadFileScheduling):
        def _assign_work_unit(self, node: Any) -> None:
            if node.gateway.id != "gw0":
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return FromBothEnds(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    reruns = terminalreporter.getreports("rerun")
    for report in reruns:
        terminalreporter.section(f"first try of {report.nodeid}", "_")
        terminalreporter.line(report.longreprtext)
    yield
    if config.getoption("--second-try"):
        names = ", ".join(report.nodeid for report in reruns) or "none"
        terminalreporter.line(f"second tries needed: {len(reruns)} ({names}); tests/second_try.txt names who may")


@pytest.fixture(autouse=True)
def jobs_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of whole jobs in this process ends them: their threads would go on beside the tests that come after it.
    Those of a fixture with a wider scope are older than this one, and stay."""
    before = time.monotonic()
    yield
    path: Path = request.node.path
    if path.parent == Path(TESTS) and path.name.startswith(WHOLE_JOBS) and (left := left_since(before)):
        pytest.fail(f"a job was left running (end it: with ps.run_local(...) as job); its threads: {', '.join(left)}")


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[BucketTwin]:
    """An object store on loopback, which ``s3://`` and ``gs://`` lead to: the same one for all tests that want it."""
    with BucketTwin() as twin, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(twin).items():
            patch.setenv(name, value)
        yield twin


@pytest.fixture
def buckets(bucket_server: BucketTwin) -> Iterator[BucketTwin]:
    """That object store; nothing is known of what was asked before."""
    bucket_server.calm()
    yield bucket_server
    bucket_server.calm()


@pytest.fixture
def bucket(buckets: BucketTwin) -> str:
    """A bucket of its own."""
    return f"bucket-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """A real S3 server, started by the first test that wants it."""
    with ObjectServer() as server:
        yield server


@pytest.fixture
def wire(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """What stands between this test and that server, and may lose, delay and refuse. ``s3://`` leads there."""
    with StoreProxy(object_server.endpoint) as proxy:
        for name, value in object_server.environment(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def real_bucket(wire: StoreProxy) -> str:
    """A bucket of its own in the real server."""
    from penstock.engine.files.object_store import Bucket

    bucket = Bucket("s3", f"real-{uuid.uuid4().hex[:12]}")
    bucket.put("first", b"")  # which makes it
    bucket.delete("first")
    return bucket.name


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a local Ray cluster with 4 CPUs, the same one for all tests that ask for it."""
    import ray

    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TESTS, before]))  # workers find the actors in support/
    context = ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        namespace="penstock",
    )
    yield str(context.address_info["address"])
    ray.shutdown()
    os.environ["PYTHONPATH"] = before
