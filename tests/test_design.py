"""The pages of ``docs`` name files that are there; so do the picture and the two walks of ``docs/design/README.md``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
PAGE = (CHECKOUT / "docs/design/README.md").read_text(encoding="utf-8")
MOST_STATIONS = 12
ROOMS = ("engine", "coordinator", "actors", "jobs", "tests", "benchmarks", "examples")
CHECKOUT_FILES = {file.name for room in ROOMS for file in (CHECKOUT / room).rglob("*.py")}
WALKS = ("A batch from source to sink", "A checkpoint from trigger to commit")


def section(title: str) -> str:
    """The text below a heading, up to the next one of any level, or to the end."""
    return re.split(r"^#+ ", PAGE.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("walk", WALKS)
def test_walk_names_at_most_twelve_files_that_exist(walk: str) -> None:
    text = section(walk)
    stations = re.findall(r"^(\d+)\. `([^`]+)`: ", text, flags=re.MULTILINE)
    files = [file for _, file in stations]
    assert [int(number) for number, _ in stations] == list(range(1, len(stations) + 1))
    assert 0 < len(stations) <= MOST_STATIONS
    assert set(re.findall(r"[\w/]+\.py", text)) == set(files), "a file is named that is no station"
    assert [file for file in files if not (CHECKOUT / file).is_file()] == []


def test_picture_shows_every_room() -> None:
    shown = set(re.findall(r"\w+", section("The packages")))
    rooms = {
        init.parent.name
        for folder in ("engine", "coordinator", "actors")
        for init in CHECKOUT.glob(f"{folder}/*/__init__.py")
    }
    assert rooms - shown == set()


@pytest.mark.parametrize("page", sorted((CHECKOUT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_page_names_files_that_exist(page: Path) -> None:
    """By their path in the checkout, or by name alone where the page says in which room they stand."""
    named = set(re.findall(r"`([\w./-]+\.py)`", page.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if Path(name).name not in CHECKOUT_FILES] == []
    paths = [name for name in named if name.split("/")[0] in ROOMS and "/" in name]
    assert [path for path in sorted(paths) if not (CHECKOUT / path).exists()] == []


def test_table_of_mutations_names_rooms_that_exist() -> None:
    page = (CHECKOUT / "docs/design/testing.md").read_text(encoding="utf-8")
    table = page.split("<!-- mutation: begin -->")[1].split("<!-- mutation: end -->")[0]
    rooms = re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE)
    assert rooms
    assert [room for room in rooms if not (CHECKOUT / room).exists()] == []
