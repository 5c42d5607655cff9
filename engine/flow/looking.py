"""The methods of a stream that give its rows here and now: what one does with it in a notebook.

Rules:

1. Rows come as a job would give them, in its order; no source is paced. The flow stays as it is, and nothing of it runs
   but what the stream needs: no sink above all.
2. They are computed on the caller's thread, as far as they are asked for: who wants the first rows reads little more of
   the sources, unless something between them needs all rows. Whatever was begun has ended when a method returns.
3. What cannot be looked at is refused in words: rows that somebody else still gives.
4. With ``run`` (``ps.run``, or ``functools.partial(ps.run, address=…)``) a job of its own computes them, wherever that
   is, and hands them on through a feed: the same rows in the same order. It needs no storage that both see, is no
   further ahead than a feed's room, and has ended when a method returns. Frames of Spark and Ray can be looked at so.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from copy import copy
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias
from uuid import uuid4

import pyarrow as pa

from ..arrow.arrays import Arrays
from ..core.arguments import Within, checked
from ..core.errors import ConfigurationError, FlowError
from ..planner.graph import Graph
from .handoff import has_deferred
from .pictures import columns_table, picture, titled
from .row_text import table_text

if TYPE_CHECKING:
    from ..local.plan_task import LookTask

Rows = Annotated[int, Within(0)]
Format: TypeAlias = Literal["pyarrow", "numpy", "pandas"]

FEED = "look"
"""What gives the rows in a job that is run for them."""
JOBS_BATCH = 4096
"""Rows that a job hands over at a time, if nobody says otherwise."""


class LookedAt(Protocol):
    """A job, as far as looking is concerned (``ps.Job``)."""

    @property
    def feed(self) -> Callable[[str], Any]:
        """The handle of one of its feeds."""

    @property
    def shutdown(self) -> Callable[[], None]:
        """Ends the job."""


Run: TypeAlias = Callable[[Any], LookedAt]
"""What starts a job of a flow: ``ps.run``, ``ps.run_local``."""


class Looking:
    """What a stream offers besides. See the module."""

    flow: Graph
    id: str

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        raise NotImplementedError

    @checked()
    def take(self, n: Rows = 20, *, run: Run | None = None) -> list[dict[str, Any]]:
        """The first ``n`` rows, each a dict; fewer if there are no more. ``run``: what computes them, ``ps.run`` for a
        job on Ray; by default this process."""
        rows: list[dict[str, Any]] = self.head(n, run=run).to_pylist()
        return rows

    @checked()
    def head(self, n: Rows = 5, *, run: Run | None = None) -> pa.Table:
        """The first ``n`` rows as a table; fewer if there are no more. ``run``: see :meth:`take`."""
        found: list[pa.RecordBatch] = []
        with closing(self._beginning(n, run)) as batches:
            while n and (batch := next(batches, None)) is not None:
                found.append(batch.slice(0, n))
                n -= found[-1].num_rows
        return pa.Table.from_batches(found, self.schema)

    @checked()
    def show(self, n: Rows = 20, *, run: Run | None = None) -> None:
        """Print the first ``n`` rows, long values cut. ``run``: see :meth:`take`."""
        print(table_text(self.head(n, run=run)))

    @checked()
    def count(self, *, run: Run | None = None) -> int:
        """The number of rows. All are computed, of as few columns as that takes. ``run``: see :meth:`take`."""
        [row] = self._apart().aggregate([], n="count").take(1, run=run)
        return int(row["n"])

    @checked()
    def to_arrow(self, *, run: Run | None = None) -> pa.Table:
        """All rows as a table: they must fit into memory. ``run``: see :meth:`take`."""
        with closing(self._rows(run)) as batches:
            return pa.Table.from_batches(batches, self.schema)

    @checked()
    def to_pandas(self, *, run: Run | None = None) -> Any:
        """All rows as a ``pandas.DataFrame``, as Arrow makes it. ``run``: see :meth:`take`."""
        _library("pandas")
        return self.to_arrow(run=run).to_pandas()

    @checked()
    def to_polars(self, *, run: Run | None = None) -> Any:
        """All rows as a ``polars.DataFrame``, as Polars makes it of Arrow's. ``run``: see :meth:`take`."""
        polars = _library("polars")
        return polars.from_arrow(self.to_arrow(run=run))

    @checked()
    def iter_batches(
        self,
        batch_size: Annotated[int, Within(1)] | None = None,
        *,
        batch_format: Format = "pyarrow",
        nulls: Any = None,
        run: Run | None = None,
    ) -> Iterator[Any]:
        """All rows, ``batch_size`` at a time (the last batch may have fewer), or as they come: as
        ``pyarrow.RecordBatch``, a dict of NumPy arrays, or a ``pandas.DataFrame``. They are computed as they are asked
        for; whoever stops leaves the rest. ``nulls``: what becomes of nulls in arrays, as for a feed's
        :meth:`~penstock.Reader.iter_batches`. ``run``: see :meth:`take`; its job begins with the first batch that is
        asked for."""
        if batch_format == "pandas":
            _library("pandas")
        forms: dict[Format, Callable[[pa.RecordBatch], Any]] = {
            "pyarrow": lambda batch: batch,
            "numpy": Arrays(self.schema, nulls).of,
            "pandas": lambda batch: batch.to_pandas(),
        }
        batches = self._rows(run, batch_size)
        return _formed(batches if batch_size is None else _cut(batches, batch_size), forms[batch_format])

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        lines = self.flow.leading_to(self.id).describe().splitlines()
        return "\n  ".join([f"Stream {self.id!r} of flow {self.flow.name!r}", f"columns: {columns}", *lines])

    def _repr_html_(self) -> str:
        """What a notebook shows: the columns, and how they are made. Nothing runs."""
        title = f"Stream {self.id} of flow {self.flow.name}"
        return titled(title, columns_table(self.schema), picture(self.flow.leading_to(self.id)))

    def _apart(self) -> Any:
        """This stream of a flow of its own, which has what the stream needs: what is added to that is not seen here."""
        apart = copy(self)
        apart.flow = self.flow.leading_to(self.id)
        return apart

    def _beginning(self, n: int, run: Run | None) -> Generator[pa.RecordBatch]:
        """The first ``n`` rows, and maybe more. A job is told how many, so that it computes no others."""
        if run is None or not n:
            return self._rows(None)
        limited: Looking = self._apart().limit(n)
        return limited._rows(run, min(n, JOBS_BATCH))

    def _rows(self, run: Run | None, size: int | None = None) -> Generator[pa.RecordBatch]:
        """All rows, in order. Nothing has begun. Raises FlowError if that is not possible."""
        needed = self.flow.leading_to(self.id)
        for node in needed.nodes:
            if getattr(node.config, "fed", False):
                message = "its rows are fed, and there are none yet to look at"
                raise FlowError(message, "give them to a ps.PlanTask, or to a job: add_splits", node.id)
        if run is not None:
            return _of_job(self._fed_by_job(size or JOBS_BATCH), run)
        if has_deferred(needed):
            message = "rows of Spark and Ray are handed over when a job starts, and cannot be looked at before"
            raise FlowError(message, "let a job look: take(5, run=ps.run), or look at the frame itself")
        from ..local.plan_task import LookTask

        return _of_task(LookTask(self))

    def _fed_by_job(self, size: int) -> Graph:
        """A flow that gives the rows in a feed, so many at a time. It has a name of its own, because the flow's job may
        run beside it, and no source is paced."""
        apart = self._apart()
        apart.flow = apart.flow.with_nodes([replace(node, rate=0.0) for node in apart.flow.nodes])
        apart.flow.name = f"{self.flow.name[:80]}-look-{uuid4().hex[:8]}"
        apart.feed(size, name=apart.flow.free(FEED))
        flow: Graph = apart.flow
        return flow


def _of_task(task: LookTask) -> Generator[pa.RecordBatch]:
    with task:
        while (batch := task.read()) is not None:
            yield batch


def _of_job(flow: Graph, run: Run) -> Generator[pa.RecordBatch]:
    """The rows of the feed in which the flow ends, of a job that has ended when they have, or are not wanted."""
    job = run(flow)
    try:
        with job.feed(flow.nodes[-1].id).reader(0, 1) as reader:
            yield from reader.iter_batches()
    finally:
        job.shutdown()


def _cut(batches: Generator[pa.RecordBatch], size: int) -> Generator[pa.RecordBatch]:
    """The rows in batches of this size."""
    held: list[pa.RecordBatch] = []
    room = size
    with closing(batches):
        for batch in batches:
            start = 0
            while start < batch.num_rows:
                held.append(batch.slice(start, room))
                start, room = start + held[-1].num_rows, room - held[-1].num_rows
                if not room:
                    yield pa.concat_batches(held)
                    held, room = [], size
    if held:
        yield pa.concat_batches(held)


def _formed(batches: Generator[pa.RecordBatch], form: Callable[[pa.RecordBatch], Any]) -> Generator[Any]:
    with closing(batches):
        yield from map(form, batches)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{name} is not installed", f"pip install {name}, or use to_arrow()") from error
