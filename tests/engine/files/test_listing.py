"""What speaks against a file that was found later: names, sizes, times, and the content where they do not decide."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.engine.core.errors import DataError
from penstock.engine.files import paths as files
from penstock.engine.files.listing import Content, InputFile, difference, paths_now, reason_against, told_time
from penstock.engine.files.paths import list_files, with_content
from penstock.engine.sources.csv import CsvSource
from penstock.engine.sources.memory import MemorySource

WHOLE, ENDS = Content.WHOLE.told("a"), Content.ENDS.told("a")
THEN, NOW = 1_000_000_000, 2_000_000_000
RECORDED = InputFile("1.csv", 10, THEN, WHOLE)


def reason(recorded: InputFile, found: InputFile, content: str = "none") -> str:
    """Why the file is refused; empty if it is not. ``content``: what reading it would give."""
    why = reason_against(recorded, found, lambda kind: kind.told(content))
    return "" if why is None else why.text


def test_files_that_are_gone_and_new_ones_are_told_by_their_names() -> None:
    recorded = [InputFile("a", 1), InputFile("b", 1), InputFile("c", 1)]
    found = difference(recorded, ["new", "c", "a", "also new"])
    assert (found.gone, found.new) == ((recorded[1],), ("new", "also new"))


def test_file_of_the_same_size_and_time_is_not_read_again() -> None:
    def read(kind: Content) -> str:
        raise AssertionError(kind)

    assert reason_against(RECORDED, InputFile("1.csv", 10, THEN), read) is None
    assert reason_against(InputFile("1.csv", 10), InputFile("1.csv", 10, NOW), read) is None
    assert reason_against(RECORDED, InputFile("1.csv", 10), read) is None


def test_job_that_goes_on_reads_also_files_of_the_same_size_and_time() -> None:
    """Small files that are written one after the other may have the same time, and be exchanged."""
    found = InputFile("1.csv", 10, THEN)
    why = reason_against(RECORDED, found, lambda kind: kind.told("b"), thorough=True)
    assert why is not None
    assert why.text == "has other content than when the job was planned, with the same size and time"
    assert reason_against(RECORDED, found, lambda kind: kind.told("a"), thorough=True) is None
    ends = dataclasses.replace(RECORDED, content=ENDS)
    assert reason_against(ends, found, lambda kind: kind.told("a"), thorough=True) is None


def test_file_of_another_size_is_refused() -> None:
    assert reason(RECORDED, InputFile("1.csv", 11, THEN), "a") == (
        "had 10 bytes when the job was planned and has 11 now"
    )


def test_touched_file_is_the_same_if_all_of_its_content_is() -> None:
    found = InputFile("1.csv", 10, NOW)
    assert reason(RECORDED, found, "a") == ""
    assert reason(RECORDED, found, "b") == (
        "has other content than when the job was planned, written again on 1970-01-01T00:00:02.000000000Z"
    )


def test_touched_file_of_which_only_the_ends_are_known_is_refused_until_the_user_vouches_for_it() -> None:
    recorded = dataclasses.replace(RECORDED, content=ENDS)
    why = reason_against(recorded, InputFile("1.csv", 10, NOW), lambda kind: kind.told("a"))
    assert why is not None
    assert "whether the rest is, nobody knows" in why.text
    assert "touch -d 1970-01-01T00:00:01.000000000Z '/a b'" in why.remedy("/a b")
    assert "other content" in reason(recorded, InputFile("1.csv", 10, NOW), "b")


def test_touched_file_of_which_nothing_is_known_is_refused() -> None:
    assert "is not recorded" in reason(InputFile("1.csv", 10, THEN), InputFile("1.csv", 10, NOW))


def test_time_in_the_remedy_is_exact(tmp_path: Path) -> None:
    path, exact = tmp_path / "file", 1_700_000_000_123_456_789
    subprocess.run(["touch", "-d", told_time(exact), path], check=True)
    assert path.stat().st_mtime_ns == exact


def test_paths_in_another_order_are_told_from_paths_with_other_files() -> None:
    def below(position: int, *names: str, time: int = THEN) -> list[InputFile]:
        return [InputFile(f"{position}/{name}", 10, time) for name in names]

    before = [*below(0, "a", "b"), *below(1, "c"), *below(2, "a")]
    assert paths_now(before, [*below(0, "c"), *below(1, "a"), *below(2, "a", "b")]) == (2, 0, 1)
    assert paths_now(before, before) is None
    assert paths_now(before, [*below(0, "c"), *below(1, "a"), *below(2, "a", "b", time=THEN + 1)]) is None
    assert paths_now(before, [*below(0, "c"), *below(1, "a"), *below(2, "a", "b"), *below(3, "d")]) is None
    assert paths_now([RECORDED], [RECORDED]) is None


# --- files ------------------------------------------------------------------------------------------------------


def rewrite(path: Path, text: str, *, keep_time: bool = False) -> None:
    times = path.stat()
    path.write_text(text)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + (0 if keep_time else 1)))


def test_of_large_sources_only_the_ends_of_large_files_are_digested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "END_BYTES", 4)
    for name, text in {"large": "0123456789", "small": "01234567"}.items():
        (tmp_path / name).write_text(text)
    few = with_content(list_files([str(tmp_path)]))
    assert [file.content.partition(":")[0] for file in few] == ["whole", "whole"]
    monkeypatch.setattr(files, "WHOLE_BYTES", 17)
    many = with_content(list_files([str(tmp_path)]))
    assert [file.content.partition(":")[0] for file in many] == ["ends", "whole"]
    rewrite(tmp_path / "large", "0123xx6789")
    with pytest.raises(DataError, match="nobody knows"):
        many[0].open()
    with pytest.raises(DataError, match="other content"):
        few[0].open()


def test_nothing_but_the_ends_is_digested_for_a_job_that_nothing_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "END_BYTES", 4)
    (tmp_path / "large").write_text("0123456789")
    (found,) = with_content(list_files([str(tmp_path)]), kept=False)
    assert found.content.startswith("ends:")


def test_file_that_is_written_again_with_the_same_size_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "1.csv"
    path.write_text("x\n1\n2\n")
    source = CsvSource(path)
    (split,) = source.over(with_content(source.listed())).splits()
    assert [batch["x"].to_pylist() for batch in split.open(0)] == [[1, 2]]
    rewrite(path, "x\n1\n2\n")  # touched
    assert [batch["x"].to_pylist() for batch in split.open(0)] == [[1, 2]]
    rewrite(path, "x\n1\n3\n")
    with pytest.raises(DataError, match=r"1\.csv has other content .*, written again on"):
        list(split.open(0))


def test_file_that_is_written_again_while_it_is_read_is_refused_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "1.csv"
    path.write_text("x\n1\n2\n")
    source = CsvSource(path)
    (split,) = source.over(with_content(source.listed())).splits()
    batches = split.open(0)
    next(batches)
    rewrite(path, "x\n1\n3\n")
    with pytest.raises(DataError, match="other content"):
        list(batches)


# --- tables in memory -------------------------------------------------------------------------------------------


def test_content_of_tables_is_that_of_their_rows_however_they_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"n": range(9000), "s": [str(n) if n % 3 else None for n in range(9000)]})
    cut = pa.concat_tables([rows.slice(0, 5), rows.slice(5)])
    others = [rows.slice(1), rows.slice(0, 8999), pa.concat_tables([rows.slice(1), rows.slice(0, 1)])]
    for whole in (1 << 30, 0):
        monkeypatch.setattr("penstock.engine.sources.memory.WHOLE_BYTES", whole)
        contents = [MemorySource([table]).content() for table in (rows, cut, *others)]
        assert contents[0] == contents[1]
        assert len(set(contents)) == 4
    assert MemorySource([rows, rows.slice(0, 0)]).content() != MemorySource([rows.slice(0, 0), rows]).content()
