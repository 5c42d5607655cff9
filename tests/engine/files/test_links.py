"""Links in an input folder: followed, or refused by name where they lead round."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.engine.core.errors import ConfigurationError
from penstock.engine.files.paths import list_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "a.csv").write_text("k\n1\n")
    return tmp_path / "in"


def ids(folder: Path) -> list[str]:
    return [file.id for file in list_files([str(folder)])]


def test_a_link_to_another_folder_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.csv").write_text("k\n2\n")
    (folder / "one").symlink_to(tmp_path / "other")
    (folder / "sub" / "two").symlink_to(tmp_path / "other")
    assert ids(folder) == ["a.csv", "one/b.csv", "sub/two/b.csv"]


@pytest.mark.parametrize("target", ["../..", "..", "."])
def test_a_link_that_leads_back_is_refused_by_name(folder: Path, target: str) -> None:
    (folder / "sub" / "up").symlink_to(target)
    with pytest.raises(ConfigurationError, match="up leads back to"):
        ids(folder)


def test_two_links_that_lead_to_each_other_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "back").symlink_to(folder)
    (folder / "there").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="there/back leads back to"):
        ids(folder)


def test_a_link_to_itself_is_refused_by_name(folder: Path) -> None:
    (folder / "self.csv").symlink_to("self.csv")
    with pytest.raises(ConfigurationError, match=r"self\.csv leads to itself"):
        ids(folder)


def test_a_hidden_link_and_one_to_nowhere_do_not_count(folder: Path) -> None:
    (folder / "_up").symlink_to("..")
    (folder / "gone.csv").symlink_to("nowhere")
    assert ids(folder) == ["a.csv"]
