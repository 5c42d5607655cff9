"""A notebook in a real kernel: pictures of flows, streams and jobs, a line of progress, cells that are run again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

PATIENCE = 240

FLOW = """
    import pyarrow as pa
    import penstock as ps

    flow = ps.Flow("squares")
    numbers = flow.from_tables(pa.table({"n": range(2_000)}), name="numbers", rate=1_000.0)
    stream = numbers.with_columns(square="n * n")
"""
SINK = "stream.write_parquet('out', name='write', mode='overwrite')"


class Notebook:
    """Runs cells, one after the other."""

    def __init__(self, folder: Path) -> None:
        notebook = nbformat.v4.new_notebook()
        self._client = NotebookClient(
            notebook, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )

    def run(self, source: str) -> list[nbformat.NotebookNode]:
        """What is below the cell then."""
        cells = self._client.nb.cells
        lines = [line.removeprefix("    ") for line in source.strip("\n").split("\n")]
        cells.append(nbformat.v4.new_code_cell("\n".join(lines)))
        self._client.execute_cell(cells[-1], len(cells) - 1)
        outputs: list[nbformat.NotebookNode] = cells[-1].outputs
        return outputs

    def kernel(self) -> Iterator[Notebook]:
        """This one, while its kernel runs."""
        with self._client.setup_kernel():
            yield self


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    yield from Notebook(tmp_path).kernel()


def test_notebook(notebook: Notebook, tmp_path: Path) -> None:
    assert notebook.run(FLOW) == []
    for name, told in (("flow", "numbers"), ("stream", "square")):
        (shown,) = notebook.run(name)
        assert told in shown.data["text/plain"]
        assert "<svg" in shown.data["text/html"]
        assert told in shown.data["text/html"]

    notebook.run(SINK)
    notebook.run(SINK)  # replaces the former one
    # the line of progress is one output, changed in place, and nothing else is said
    (progress,) = notebook.run("job = ps.run_local(flow, checkpoints='state')\njob.wait();")
    assert "2,000 rows" in progress.data["text/plain"]
    assert "finished" in progress.data["text/plain"]
    (shown,) = notebook.run("job")
    assert "squares" in shown.data["text/plain"]
    assert "finished" in shown.data["text/html"]

    with pytest.raises(CellExecutionError, match="restart"):
        notebook.run("ps.run_local(flow, checkpoints='state').wait();")
    notebook.run("ps.run_local(flow, checkpoints='state', resume='restart').wait();")
    (counted,) = notebook.run("ps.Flow('look').read_parquet('out').count()")
    assert counted.data["text/plain"] == "2000"
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["out", "state"]
