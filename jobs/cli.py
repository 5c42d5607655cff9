"""The command line: flows and ready-made jobs (``run``, ``explain``, ``jobs``), running ones (``list``, ``status``,
``checkpoints``, ``why``, ``savepoint``, ``stop``, ``cancel``), and what runs have left (``verify-order``, ``replay``,
``shuffle-quality``).

Errors that Penstock raises on purpose are printed as a sentence and a remedy; ``--verbose`` adds the traceback. Exit
codes: 0; 1, it failed, or what was found is not as it should be; 2, what was asked for is wrong; 130, Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from ..actors.process.ending import EXIT_CODE, INTERRUPTED
from ..engine.core.errors import ConfigurationError, PenstockError
from ..engine.core.shown import shown
from .registry import JOBS, ReadyMadeJob, RunOptions, find_job

DEMO_RATE = 17_000.0
"""Rows per second of the demo's flights: 336,776 of them last about 20 seconds."""

app = typer.Typer(
    name="penstock",
    help="Feeds trainers and sinks from Spark on Ray: exactly once, in an order that depends on the data alone.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_JOB = f"A flow (script.py:flow or module:flow, a Flow or a function), or a ready-made job: {', '.join(sorted(JOBS))}."
_Name = Annotated[str, typer.Argument(help=_JOB, metavar="JOB")]
_Given = Annotated[
    list[str] | None,
    typer.Option("--with", help="NAME=VALUE, as often as needed: an argument of the function that makes the flow."),
]
_Paths = Annotated[
    list[str] | None,
    typer.Option("--path", help="NAME=PATH, as often as needed: where a flow's source or sink of that name is."),
]
_Scale = Annotated[int, typer.Option(help="Copies of the data, over shifted years.", min=1)]
_Running = Annotated[str, typer.Argument(help="The name of a running job; `penstock list` shows them.", metavar="JOB")]
_Address = Annotated[
    str | None, typer.Option(help="The Ray cluster; by default RAY_ADDRESS, or the one on this machine.")
]
_Timeout = Annotated[float | None, typer.Option(help="Seconds to wait; by default as long as it takes.", min=0)]
_Aligned = Annotated[
    bool, typer.Option("--aligned", help="With nothing in flight, so for any parallelism; it may take long.")
]
_Parallelism = Annotated[int, typer.Option(help="Subtasks of a stage.", min=1)]


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_tell_version)
    ] = False,
) -> None:
    """Feeds trainers and sinks from Spark on Ray: exactly once, in an order that depends on the data alone."""


@app.command()
def run(
    job: _Name,
    given: _Given = None,
    path: _Paths = None,
    scale: _Scale = 1,
    rate: Annotated[
        float | None, typer.Option(help="Rows per second of the main source; 0: as fast as possible.", min=0)
    ] = None,
    parallelism: _Parallelism = 2,
    local: Annotated[bool, typer.Option("--local", help="In this process, without Ray and without Spark.")] = False,
    address: Annotated[
        str | None, typer.Option(help="A running Ray cluster; by default a small one is started here.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Folder for the outputs; by default a new one.")] = None,
    checkpoints: Annotated[
        str | None, typer.Option(help="Folder for the checkpoints; by default below the outputs.")
    ] = None,
    every: Annotated[str, typer.Option(help="Time between checkpoints: 500ms, 1s, 1m.")] = "1s",
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin a job anew that is over, in its checkpoint folder.")
    ] = False,
    kill: Annotated[
        bool, typer.Option("--kill", help="End one driver actor with SIGKILL after the second checkpoint.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help=f"As make demo does: --kill --rate {DEMO_RATE:g}, unless given.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Compare the outputs with Spark SQL's (on Ray).")] = True,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the logs of Ray and Spark, and tracebacks.")] = False,
) -> None:
    """Run a flow, or a ready-made job, and audit it."""
    options = RunOptions(
        scale=scale,
        rate=DEMO_RATE if demo and rate is None else rate,
        parallelism=parallelism,
        local=local,
        address=address,
        output=output,
        checkpoints=checkpoints,
        every=every,
        restart=restart,
        kill=kill or (demo and not local),
        verify=verify,
        verbose=verbose,
    )
    raise typer.Exit(_guarded(lambda: _job(job, given, path, restart).run(options), verbose=verbose))


def _job(name: str, given: Sequence[str] | None, paths: Sequence[str] | None, restart: bool = False) -> ReadyMadeJob:
    """The flow of that name, or the ready-made job."""
    arguments, places = _pairs("--with", "VALUE", given), _pairs("--path", "PATH", paths)
    if ":" not in name and not arguments and not places:
        if restart:
            raise ConfigurationError(f"--restart is of flows, and {name} is a ready-made job", "give another --output")
        return find_job(name)
    from .flow_run import FlowJob

    return FlowJob(name, arguments, places)


def _pairs(option: str, what: str, given: Sequence[str] | None) -> dict[str, str]:
    pairs = [each.partition("=") for each in given or ()]
    for name, sign, value in pairs:
        if not (name and sign):
            raise ConfigurationError(
                f"{option} {name}{sign}{value} names no {what.lower()}", f"write {option} NAME={what}"
            )
    return {name: value for name, _, value in pairs}


@app.command()
def explain(
    job: _Name, given: _Given = None, path: _Paths = None, scale: _Scale = 1, parallelism: _Parallelism = 2
) -> None:
    """Print a job's stages, pipelines, edges, lanes, and each sink's guarantee."""

    def show() -> int:
        typer.echo(_job(job, given, path).explain(RunOptions(scale=scale, parallelism=parallelism)))
        return 0

    raise typer.Exit(_guarded(show, verbose=False))


@app.command()
def jobs() -> None:
    """List the ready-made jobs."""
    for name, entry in sorted(JOBS.items()):
        typer.echo(f"{name}: {entry.summary}")


@app.command(name="list")
def list_running(
    address: _Address = None,
    workers: Annotated[bool, typer.Option("--workers", help="The processes that wait for a job instead.")] = False,
) -> None:
    """List the jobs that run on a cluster."""
    from . import running

    if workers:
        _print(running.show_workers(address), nothing="no process waits for a job on this cluster")
    else:
        _print(running.show_list(address), nothing="no job runs on this cluster")


@app.command()
def status(job: _Running, address: _Address = None) -> None:
    """Show the state of a running job: tasks, checkpoints, pins, what its sources have left out."""
    from . import running

    _print(running.show_status(job, address))


@app.command()
def checkpoints(job: _Running, address: _Address = None) -> None:
    """Show the newest checkpoints of a running job: where the time of each went, its bytes, why it failed."""
    from . import running

    _print(running.show_checkpoints(job, address))


@app.command()
def why(job: _Running, address: _Address = None) -> None:
    """Say what a running job and its tasks wait for."""
    from . import running

    _print(running.show_why(job, address))


@app.command()
def savepoint(
    job: _Running,
    to: Annotated[str | None, typer.Option(help="A new folder; by default below the job's checkpoints.")] = None,
    aligned: _Aligned = False,
    address: _Address = None,
    timeout: _Timeout = None,
) -> None:
    """Take a savepoint of a running job, which goes on."""
    from . import running

    _print(running.take_savepoint(job, address, to, timeout, aligned))


@app.command()
def stop(
    job: _Running,
    to: Annotated[str | None, typer.Option(help="A new folder; by default below the job's checkpoints.")] = None,
    drain: Annotated[bool, typer.Option("--drain", help="For good: open groups and windows are emitted.")] = False,
    aligned: _Aligned = False,
    address: _Address = None,
    timeout: _Timeout = None,
) -> None:
    """Stop a running job with a savepoint."""
    from . import running

    _print(running.stop_job(job, address, to, drain, timeout, aligned))


@app.command()
def cancel(job: _Running, address: _Address = None, timeout: _Timeout = None) -> None:
    """End a running job; what is committed stays."""
    from . import running

    _print(running.cancel_job(job, address, timeout))


@app.command(name="verify-order")
def verify_order_of(
    one: Annotated[str, typer.Argument(help="A checkpoint folder.", metavar="A")],
    two: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
    job: Annotated[str | None, typer.Option(help="The job, if a folder has several.")] = None,
    feed: Annotated[str | None, typer.Option(help="The feed, if a job has several.")] = None,
) -> None:
    """Name the first global batch in which two runs of a feed differ."""
    from .verify_order import verify_order

    def compare() -> int:
        verdict = verify_order(one, two, job=job, feed=feed)
        for line in verdict.lines:
            typer.echo(line)
        return 0 if verdict.same else 1

    raise typer.Exit(_guarded(compare, verbose=False))


@app.command()
def replay(
    flow: Annotated[
        str,
        typer.Argument(help="The job's flow: script.py:flow or module:flow, a Flow or a function.", metavar="JOB"),
    ],
    step: Annotated[int, typer.Option(help="The global batch, counted from 0.")],
    rank: Annotated[
        int | None, typer.Option(help="One rank's slice; in a mesh, of its place along data. None: all.")
    ] = None,
    world_size: Annotated[int | None, typer.Option(help="The number of ranks.")] = None,
    checkpoints: Annotated[str | None, typer.Option(help="The job's checkpoint folder; it is only read.")] = None,
    feed: Annotated[str | None, typer.Option(help="The feed, if the flow has several.")] = None,
    name: Annotated[str | None, typer.Option(help="The job's name, if it is not the flow's.")] = None,
    output: Annotated[str | None, typer.Option(help="Write the batch: .arrow or .parquet.")] = None,
    lineage: Annotated[str | None, typer.Option(help="Write where each row comes from: .arrow or .parquet.")] = None,
    trace: Annotated[bool, typer.Option(help="Find out where the rows come from.")] = True,
    check: Annotated[bool, typer.Option(help="Refuse a batch that is not what was delivered.")] = True,
    parallelism: _Parallelism = 1,
    timeout: _Timeout = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show tracebacks.")] = False,
) -> None:
    """Rebuild one batch of a feed, and say which files and rows it comes from."""
    from .replay_command import ReplayOptions, replay_command

    options = ReplayOptions(
        flow=flow,
        step=step,
        rank=rank,
        world_size=world_size,
        checkpoints=checkpoints,
        feed=feed,
        name=name,
        output=output,
        lineage=lineage,
        trace=trace,
        check=check,
        parallelism=parallelism,
        timeout=timeout,
    )
    raise typer.Exit(_guarded(lambda: replay_command(options, typer.echo), verbose=verbose))


@app.command(name="shuffle-quality")
def shuffle_quality(
    flow: Annotated[
        str,
        typer.Argument(help="The flow: script.py:flow or module:flow, a Flow or a function.", metavar="FLOW"),
    ],
    feed: Annotated[str | None, typer.Option(help="The feed, if the flow has several.")] = None,
    parallelism: _Parallelism = 1,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show tracebacks.")] = False,
) -> None:
    """Read two epochs of a feed, and say how well its rows are mixed."""
    from .shuffle_quality import shuffle_quality_command

    raise typer.Exit(_guarded(lambda: shuffle_quality_command(flow, feed, parallelism, typer.echo), verbose=verbose))


def _print(lines: Iterator[str], nothing: str = "") -> None:
    """Print lines as they come; ``nothing`` if none does."""

    def work() -> int:
        printed = False
        for line in lines:
            typer.echo(shown(line))
            printed = True
        if nothing and not printed:
            typer.echo(nothing)
        return 0

    raise typer.Exit(_guarded(work, verbose=False))


def _guarded(work: Callable[[], int], *, verbose: bool) -> int:
    """The exit code of ``work``; an error on purpose is printed without a stack trace."""
    try:
        return work()
    except PenstockError as error:
        if verbose:
            traceback.print_exc()
        typer.echo(f"penstock: {type(error).__name__}: {error}", err=True)
        return 2 if error.domain.value == "user" else 1
    except TimeoutError as error:
        typer.echo(f"penstock: {error}", err=True)
        return 1
    except KeyboardInterrupt as interrupt:
        typer.echo(f"{INTERRUPTED}{f'; {interrupt}' if str(interrupt) else ''}", err=True)
        return EXIT_CODE


def main() -> None:
    """The console script."""
    try:
        app(prog_name="penstock")
    finally:
        _leave_nothing_unwritten()
    sys.exit(0)


def _leave_nothing_unwritten() -> None:
    """If who reads the output has left, let the interpreter not fail over the rest when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
