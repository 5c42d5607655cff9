"""The site of the docs is made, and its pages on operators and for those who come from elsewhere run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from support.guides import blocks

DOCS = Path(__file__).parent.parent / "docs"
LOOKS = {"head", "take", "show", "count", "iter_batches", "to_arrow", "to_pandas", "to_polars", "schema"}
OF_A_STREAM = {name for name in dir(ps.Stream) if not name.startswith("_")}
SAID_ELSEWHERE = {"apply", "resources", "placement", "is_gathered", "partitioned_by"}
TOLD = {
    "operators": [
        "American",
        "United",
        r"\[.*61.*\]",
        r"\[\[1, 3, 2\], \[2, 1\]\]\n\[\[1, 1, 2, 3\], \[1, 2\]\]\n\[\[1\], \[1\]\]\n\[\[1, 1, 3\], \[\]\]",
    ],
    "coming-from/ray-data": [r"\[\{'n': 8, 'square': 64\}, \{'n': 9, 'square': 81\}\]", r"\[4, 4, 2\]"],
    "coming-from/pyspark": ["late", "fine"],
    "coming-from/flink": [r"\[260, 260, 280\]"],
    "coming-from/mosaicml-streaming": ["26 True"],
}
"""What is among what each prints."""


@pytest.mark.parametrize("page", TOLD)
def test_program_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(DOCS / f"{page}.md"):
        exec(compile(block, page, "exec", dont_inherit=True), names)
    printed = capsys.readouterr().out
    assert [told for told in TOLD[page] if not re.search(told, printed)] == [], printed


def test_page_of_operators_names_every_method_of_a_stream() -> None:
    text = re.sub(r"```.*?```", "", (DOCS / "operators.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    spans = re.findall(r"`[^`]+`", text)
    named = {word for span in spans for word in re.findall(r"\w+", span)}
    assert OF_A_STREAM - LOOKS - SAID_ELSEWHERE - named == set()


def test_every_operator_has_a_picture_of_a_cut() -> None:
    """The first one of each row of a table stands in a picture of the same part."""
    text = (DOCS / "operators.md").read_text(encoding="utf-8")
    parts = [part for part in text.split("\n## ") if "at a cut" in part]
    assert len(parts) == 6
    for part in parts:
        pictures = "".join(re.findall(r"```\n(.*?)```", part, re.DOTALL))
        named = re.findall(r"^\| `(?:flow\.)?(\w+)", part, re.MULTILINE)
        assert [name for name in named if not re.search(rf"──► {name}\b", pictures)] == []


MADE: dict[str, Callable[[ps.Stream], ps.Stream]] = {
    "filter": lambda numbers: numbers.filter("n > 0"),
    "map_batches": lambda numbers: numbers.map_batches(lambda batch: batch, schema=numbers.schema),
    "union": lambda numbers: numbers.union(numbers.filter("n > 9")),
    "distinct": lambda numbers: numbers.distinct("n"),
    "aggregate": lambda numbers: numbers.aggregate(["n"], count="count").select("count"),
    "window": lambda numbers: numbers.window(["n"], ["n"], place="row_number").select("place"),
    "sort": lambda numbers: numbers.sort("n"),
    "top_n": lambda numbers: numbers.top_n(1, "n"),
    "limit": lambda numbers: numbers.gather().limit(3),
}


@pytest.mark.parametrize("operator", MADE)
def test_picture_of_a_task_barrier_is_what_comes(operator: str) -> None:
    text = (DOCS / "operators.md").read_text(encoding="utf-8")
    [line] = [each for each in text.splitlines() if re.match(rf" (?:\S+, )?{operator}\b.*║", each)]
    found = re.search(r"  ([\d–][\d ]*?)\s+║\s+([\d–][\d ]*?)(?:  |$)", line)
    assert found
    wanted = [[int(each) for each in re.findall(r"\d", part)] for part in found.groups()]
    flow = ps.Flow("pictured")
    task = ps.PlanTask(MADE[operator](flow.from_split_sets(pa.schema({"n": pa.int64()}), name="numbers")))
    sets = [pa.table({"n": numbers}) for numbers in ([1, 1, 3, 2], [2, 1])]
    given = [[row for batch in task.run({"numbers": each}) for row in batch.column(0).to_pylist()] for each in sets]
    assert given == wanted


def test_site_is_made_without_a_warning(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert "Ten lines" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_reference_has_every_way_to_read() -> None:
    text = (DOCS / "api" / "flows.md").read_text(encoding="utf-8")
    ways = {name for name in dir(ps.Flow) if name.startswith(("read_", "from_"))}
    assert {name for name in ways if not re.search(rf"\b{name}\b", text)} == set()


def test_reference_has_every_public_name() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").glob("*.md")))
    named = set(re.findall(r"penstock\.(\w+)", text))
    modules = {"errors": "penstock.engine.core.errors", "index": "penstock.engine.flow.index", "spark": "spark_bridge"}
    missing = {name for name in ps.__all__ if name not in named and modules.get(name, "?") not in text}
    assert missing == set()
