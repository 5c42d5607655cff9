"""``penstock replay``: finds the flow, replays the batch, prints it and writes what was asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc, parquet

from ..engine.core.errors import ConfigurationError
from ..engine.files.paths import local_path, storage_error
from .flow_finder import find_flow
from .replay import replay


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What the command line says; see ``replay``. ``flow``: where it is found; ``output``, ``lineage``: files."""

    flow: str
    step: int
    rank: int | None = None
    world_size: int | None = None
    checkpoints: str | None = None
    feed: str | None = None
    name: str | None = None
    output: str | None = None
    lineage: str | None = None
    trace: bool = True
    check: bool = True
    parallelism: int = 1
    timeout: float | None = None


def replay_command(options: ReplayOptions, show: Callable[[str], None]) -> int:
    """Replay a batch; 0, or 1 if it is not what was delivered and that is accepted. Raises what ``replay`` raises."""
    output, lineage = _file(options.output), _file(options.lineage)
    found = replay(
        find_flow(options.flow),
        step=options.step,
        checkpoints=options.checkpoints,
        rank=options.rank,
        world_size=options.world_size,
        feed=options.feed,
        name=options.name,
        trace=options.trace or options.lineage is not None,
        check=options.check,
        parallelism=options.parallelism,
        timeout=options.timeout,
    )
    for line in found.lines():
        show(line)
    for what, path, table in (("batch", output, found.rows), ("lineage", lineage, found.lineage)):
        if path is not None and table is not None:
            _write(table, path)
            show(f"the {what} is in {path}")
    sys.stdout.flush()
    return 1 if found.verified is False else 0


def _file(given: str | None) -> Path | None:
    if given is None:
        return None
    path = Path(local_path(given, "the file"))
    if path.suffix not in _WRITERS:
        raise ConfigurationError(f"{given} has no known form", f"name it {' or '.join(_WRITERS)}")
    return path


def _write(table: pa.Table, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _WRITERS[path.suffix](table, path)
    except OSError as error:
        raise storage_error("write", str(path), error) from error


def _write_arrow(table: pa.Table, path: Path) -> None:
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table.unify_dictionaries())


def _write_parquet(table: pa.Table, path: Path) -> None:
    parquet.write_table(table, path)


_WRITERS = {".arrow": _write_arrow, ".parquet": _write_parquet}
