"""Runs the flights job, embedded or on Ray with Spark, and checks what came out.

On Ray: Spark prepares the data and hands them over, the job runs on actors (and, if asked, loses one of them on the
way), Spark SQL computes the same from the files, and the two are compared row for row.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from rich.console import Console

from ..actors.audit.audit import Audit
from ..actors.claims.deferred import hand_over
from ..actors.claims.place import check_resume, place_in
from ..actors.client.progress import console_on, watch
from ..actors.protocol.settings import Checkpoints
from ..actors.storage.stores import plain_address
from ..coordinator.model.statistics import JobStatus
from ..engine.core.errors import ConfigurationError, PenstockError
from ..engine.core.identity import TaskId
from ..engine.files.durable import make_folder, put_file
from ..engine.files.paths import absolute, resolve
from ..engine.flow.flow import Flow
from ..engine.planner.explain import explain as explain_plan
from ..engine.planner.pipelines import plan_job
from ..engine.runtime.statistics import TaskStatistics
from . import flights_local
from .flights import DAILY_KEY, FEATURES_KEY, FlightsConfig, build
from .flights_data import FLIGHTS, PLANES, WEATHER
from .local_run import run_local
from .registry import RunOptions

if TYPE_CHECKING:
    from ..actors.client.job import Job

CHECKPOINTS_BEFORE_KILL = 2

BRIEF_SCALE = 4
"""Up to so many copies of the data Spark has a minute's work, of which starting it is the largest part."""

CANCEL_SECONDS = 0.2
"""Between two orders to cancel Spark's jobs: one that comes between two jobs finds nothing to cancel."""


def explain(options: RunOptions) -> str:
    """The plan of the job, with the data as the embedded runner reads them."""
    config = _config(options)
    flights, weather, planes = flights_local.tables(config.scale, config.split_count)
    output = _output(options) or "out"
    return explain_plan(plan_job(build(flights, weather, planes, output, config), options.parallelism))


def run(options: RunOptions) -> int:
    """Run the job; 0 if it finished, the audit is clean and, if asked, the outputs equal the reference."""
    console = console_on(sys.stdout)
    output = _output(options) or absolute(_new_folder())
    checkpoints = Checkpoints(options.checkpoints or f"{output}/checkpoints", every=options.every)
    report = _Report(console, output)
    _check(options, output, checkpoints)
    try:
        (_run_embedded if options.local else _run_on_ray)(options, output, checkpoints, report)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what is committed stays, and --output {output} goes on from there") from None
    return report.conclude()


def _check(options: RunOptions, output: str, checkpoints: Checkpoints) -> None:
    """Refuse what cannot be planned, and folders that cannot be written or hold another run's data, before anything is
    read or started."""
    nothing = (FLIGHTS.empty_table(), WEATHER.empty_table(), PLANES.empty_table())
    flow = build([nothing[0]], [nothing[1]], nothing[2], output, _config(options))
    plan = plan_job(flow, options.parallelism)
    folder = place_in(checkpoints).folder
    plan.check(check_resume(folder, plan.name, "auto"), folder)


def _config(options: RunOptions) -> FlightsConfig:
    if options.scale < 1:
        raise ConfigurationError(f"--scale {options.scale} is no number of copies", "give 1 or more")
    return FlightsConfig(scale=options.scale, rate=options.rate or 0.0)


def _output(options: RunOptions) -> str | None:
    """The folder for the outputs and the report, if one was named: a local one, or in a bucket."""
    return None if options.output is None else plain_address(options.output, "the folder of --output").rstrip("/")


def _new_folder() -> Path:
    return Path("penstock-runs") / time.strftime("flights-%Y%m%d-%H%M%S")


# ---------------------------------------------------------------------- what is reported


@dataclass
class _Report:
    """Collects what went wrong, so that everything is shown before the exit code says so."""

    console: Console
    output: str
    faults: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.say(f"{what} ({time.monotonic() - started:.1f} s)")

    def audited(self, audit: Audit) -> None:
        self.say(str(audit))
        filesystem, folder = resolve(self.output)
        make_folder(filesystem, folder)
        put_file(filesystem, f"{folder}/audit.json", audit.to_json().encode())
        if not audit.clean:
            self.faults.append(f"the audit found {audit.gaps} gaps and {audit.repeats} repeats")

    def conclude(self) -> int:
        self.say(f"outputs and audit.json are in {self.output}")
        for fault in self.faults:
            self.say(f"FAILED: {fault}")
        return 1 if self.faults else 0


# ---------------------------------------------------------------------- embedded


def _run_embedded(options: RunOptions, output: str, checkpoints: Checkpoints, report: _Report) -> None:
    if options.kill:
        raise ConfigurationError("an embedded job has no processes to end", "leave out --local or --kill")
    config = _config(options)
    with report.step("pyarrow has read and prepared the data"):
        flights, weather, planes = flights_local.tables(config.scale, config.split_count)
    flow = build(flights, weather, planes, output, config)
    with run_local(flow, parallelism=options.parallelism, checkpoints=checkpoints) as job:
        watch(job, report.console)
        job.wait()
        report.audited(job.audit())


# ---------------------------------------------------------------------- on Ray, with Spark


def _run_on_ray(options: RunOptions, output: str, checkpoints: Checkpoints, report: _Report) -> None:
    from ..actors.cluster.environment import connect, disconnect

    with report.step("Ray is up"):
        cluster = connect(options.address, options.verbose, spark=True)
    try:
        java = f", Java: {cluster.java.describe()}" if cluster.java is not None else ""
        report.say(f"using {cluster.describe()}{java}")
        # where Spark reads the files: several machines need a folder that all of them see, as the outputs' folder is
        shared = output if cluster.machines > 1 and "://" not in output else None
        with tempfile.TemporaryDirectory(prefix="penstock-flights-", dir=shared) as workspace:
            _run_with_spark(options, output, checkpoints, report, Path(workspace))
    finally:
        disconnect(cluster)


def _run_with_spark(
    options: RunOptions, output: str, checkpoints: Checkpoints, report: _Report, workspace: Path
) -> None:
    from ..actors import spark_bridge
    from . import flights_reference

    config = _config(options)
    try:
        with report.step("Spark is up"):
            brief = config.scale <= BRIEF_SCALE
            spark = spark_bridge.start("flights", cores=1, verbose=options.verbose, brief=brief)
        with _thread_beside(spark) as submit:
            with report.step("Spark has prepared the data and handed them over"):
                flow = submit(_handed_over, spark, output, config, checkpoints, workspace).result()
            # the job needs Spark no more, so Spark may compute the reference meanwhile
            compute = flights_reference.compute
            reference = submit(compute, spark, config.scale, workspace) if options.verify else None
            _run_job(flow, options, checkpoints, report)
            if reference is not None:
                with report.step("waited for Spark SQL, which computes the same from the files"):
                    features, daily = reference.result()
                _compare(report, f"{output}/features", features, FEATURES_KEY)
                _compare(report, f"{output}/daily", daily, DAILY_KEY)
    finally:
        spark_bridge.stop()


@contextmanager
def _thread_beside(spark: Any) -> Iterator[Callable[..., Future[Any]]]:
    """Starts work with Spark in a thread of its own: a call to Spark that Ctrl-C breaks off would leave a traceback and
    a connection in disorder. What an error in the block leaves undone is cancelled."""
    asked: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as beside:

        def submit(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
            asked.append(beside.submit(work, *arguments))
            return asked[-1]

        try:
            yield submit
        except BaseException:
            while wait(asked, CANCEL_SECONDS).not_done:
                spark.sparkContext.cancelAllJobs()
            raise


def _handed_over(spark: Any, output: str, config: FlightsConfig, checkpoints: Checkpoints, workspace: Path) -> Flow:
    """The flow, with the frames' partitions handed over already, so that the time it takes shows where it belongs."""
    from .flights_etl import frames

    return hand_over(
        build(*frames(spark, config.scale, config.split_count, workspace), output, config), place_in(checkpoints)
    )


def _run_job(flow: Flow, options: RunOptions, checkpoints: Checkpoints, report: _Report) -> None:
    from ..actors.job.launch import run as run_on_ray

    job = run_on_ray(flow, parallelism=options.parallelism, checkpoints=checkpoints, verbose=options.verbose)
    with job:
        disaster = Disaster(job) if options.kill else None
        watch(job, report.console, disaster)
        job.wait()
        report.audited(job.audit())
        if disaster is not None and disaster.killed is None:
            report.faults.append("the job was over before a process could be ended: lower --rate")


class Disaster:
    """Ends one driver actor's process with SIGKILL after the second checkpoint, while splits are outstanding."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.killed: TaskId | None = None

    def __call__(self, status: JobStatus, statistics: Mapping[TaskId, TaskStatistics]) -> str | None:
        if self.killed is not None or status.checkpoints_completed < CHECKPOINTS_BEFORE_KILL:
            return None
        outstanding = self._outstanding(statistics)
        victim = max(outstanding, default=None)
        if victim is None or status.state != "running":
            return None
        self.killed = victim
        pid = self._job.kill_task(victim)
        return (
            f"         SIGKILL to the process of driver actor {victim} (pid {pid}) after checkpoint "
            f"{status.latest_completed}, with {sum(outstanding.values()):,} rows outstanding"
        )

    def _outstanding(self, statistics: Mapping[TaskId, TaskStatistics]) -> dict[TaskId, int]:
        """Tasks with rows left to read, and how many of the whole job are left."""
        total = sum(source.rows or 0 for source in self._job.plan.sources.values())
        read = {
            task: sum(source.rows for source in found.sources) for task, found in statistics.items() if found.sources
        }
        left = total - sum(read.values())
        return {task: left // len(read) for task in read} if left > 0 else {}


def _compare(report: _Report, folder: str, expected: pa.Table, key: tuple[str, ...]) -> None:
    from .flights_reference import compare

    filesystem, path = resolve(folder)
    name = path.rpartition("/")[2]
    try:
        actual = ds.dataset(path, filesystem=filesystem, format="parquet").to_table()
    except (OSError, pa.ArrowException, PenstockError) as error:
        report.faults.append(f"{name} cannot be read: {error}")
        return
    comparison = compare(actual, expected, key)
    report.say(f"  {name}: {comparison.describe()}")
    if not comparison.is_equal:
        report.faults.append(f"{name} differs from what Spark SQL computes")
