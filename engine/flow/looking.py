"""The methods of a stream that give its rows here and now, in this process: what one does with it in a notebook.

Rules:

1. Rows come as a job would give them, in its order; no source is paced. The flow stays as it is, and nothing of it runs
   but what the stream needs: no sink above all.
2. They are computed on the caller's thread, as far as they are asked for: who wants the first rows reads little more of
   the sources, unless something between them needs all rows. Whatever was begun has ended when a method returns.
3. What cannot be looked at is refused in words: rows that somebody else still gives.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

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


class Looking:
    """What a stream offers besides. See the module."""

    flow: Graph
    id: str

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        raise NotImplementedError

    @checked()
    def take(self, n: Rows = 20) -> list[dict[str, Any]]:
        """The first ``n`` rows, each a dict; fewer if there are no more."""
        rows: list[dict[str, Any]] = self.head(n).to_pylist()
        return rows

    @checked()
    def head(self, n: Rows = 5) -> pa.Table:
        """The first ``n`` rows as a table; fewer if there are no more."""
        found: list[pa.RecordBatch] = []
        with closing(_batches(self._look())) as batches:
            while n and (batch := next(batches, None)) is not None:
                found.append(batch.slice(0, n))
                n -= found[-1].num_rows
        return pa.Table.from_batches(found, self.schema)

    @checked()
    def show(self, n: Rows = 20) -> None:
        """Print the first ``n`` rows, long values cut."""
        print(table_text(self.head(n)))

    def count(self) -> int:
        """The number of rows. All are computed, of as few columns as that takes."""
        counted: Any = copy(self)
        counted.flow = self.flow.copy()
        [row] = counted.aggregate([], n="count").take(1)
        return int(row["n"])

    def to_arrow(self) -> pa.Table:
        """All rows as a table: they must fit into memory."""
        with closing(_batches(self._look())) as batches:
            return pa.Table.from_batches(batches, self.schema)

    def to_pandas(self) -> Any:
        """All rows as a ``pandas.DataFrame``, as Arrow makes it."""
        _library("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """All rows as a ``polars.DataFrame``, as Polars makes it of Arrow's."""
        polars = _library("polars")
        return polars.from_arrow(self.to_arrow())

    @checked()
    def iter_batches(
        self,
        batch_size: Annotated[int, Within(1)] | None = None,
        *,
        batch_format: Format = "pyarrow",
        nulls: Any = None,
    ) -> Iterator[Any]:
        """All rows, ``batch_size`` at a time (the last batch may have fewer), or as they come: as
        ``pyarrow.RecordBatch``, a dict of NumPy arrays, or a ``pandas.DataFrame``. They are computed as they are asked
        for; whoever stops leaves the rest. ``nulls``: what becomes of nulls in arrays, as for a feed's
        :meth:`~penstock.Reader.iter_batches`."""
        if batch_format == "pandas":
            _library("pandas")
        forms: dict[Format, Callable[[pa.RecordBatch], Any]] = {
            "pyarrow": lambda batch: batch,
            "numpy": Arrays(self.schema, nulls).of,
            "pandas": lambda batch: batch.to_pandas(),
        }
        batches = _batches(self._look())
        return _formed(batches if batch_size is None else _cut(batches, batch_size), forms[batch_format])

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        lines = self.flow.leading_to(self.id).describe().splitlines()
        return "\n  ".join([f"Stream {self.id!r} of flow {self.flow.name!r}", f"columns: {columns}", *lines])

    def _repr_html_(self) -> str:
        """What a notebook shows: the columns, and how they are made. Nothing runs."""
        title = f"Stream {self.id} of flow {self.flow.name}"
        return titled(title, columns_table(self.schema), picture(self.flow.leading_to(self.id)))

    def _look(self) -> LookTask:
        """A task that gives the rows, and has not begun. Raises FlowError if that is not possible."""
        from ..local.plan_task import LookTask

        needed = self.flow.leading_to(self.id)
        if has_deferred(needed):
            message = "rows of Spark and Ray are handed over when a job starts, and cannot be looked at before"
            raise FlowError(message, "look at the frame itself, or run a job that ends in collect('rows')")
        for node in needed.nodes:
            if getattr(node.config, "fed", False):
                message = "its rows are fed, and there are none yet to look at"
                raise FlowError(message, "give them to a ps.PlanTask, or to a job: add_splits", node.id)
        return LookTask(self)


def _batches(task: LookTask) -> Generator[pa.RecordBatch]:
    with task:
        while (batch := task.read()) is not None:
            yield batch


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
