"""The picture of the packages and the two walks in ``docs/design/README.md`` name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
PAGE = (CHECKOUT / "docs/design/README.md").read_text(encoding="utf-8")
MOST_STATIONS = 12
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
