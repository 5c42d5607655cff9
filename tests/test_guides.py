"""The guides run as they stand there, from top to bottom, in a folder of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.guides import GUIDES, blocks, tells

TOLD = {
    "decimals": [r"0\.05 85\.5000 0\.000555555555555556", r"0\.06 84\.6000 .*", r"0\.07 83\.7000 .*",
                 r"decimal128\(32, 4\) decimal128\(33, 18\)"],
    "lost-rows": [r"\d+ rows lost, \d+ rows seen twice, no error", "900 rows handed out once, 0 gaps, 0 repeats",
                  "29 batches of 32 rows are equal, in order"],
    "mesh": [r"rank 0 rows \[26, 2, 29, 10\] first tokens \[26, 27, 28, 29, 38, 39, 40, 41\]",
             r"rank 1 rows \[26, 2, 29, 10\] first tokens \[30, 31, 32, 33, 34, 35, 36, 37\]",
             r"rank 2 rows \[5, 31, 7, 8\] .*", r"rank 4 rows \[26, 2, 29, 10\] .*",
             r"\{'data': 2, 'copies': 4, 'sequence': 2, 'order': 'zigzag'\} at step 3",
             r"\{'data': 4, 'copies': 1, .*\} and 5 batches more, the first of \[2, 2, 2, 2\]"],
    "your-own": [rf'\{{"n": {n}, "name": "{name}"\}}' for n, name in
                 ((10, "one"), (11, "two"), (7, "one"), (8, "two"), (9, "zero"))],
    "changing-mixture": [r"first 1,000 rows: \{'web': 0\.9, 'code': 0\.1, 'chat': 0\.0\}",
                         r"rows 6,000 to 8,000: \{'web': 0\.5, 'code': 0\.4, 'chat': 0\.1\}",
                         r"mix-1: 6,000 rows of stream 1 \(web\), 46\.2 %",
                         r"mix-1: 6,000 rows of stream 2 \(code\), 46\.2 %",
                         r"mix-1: 1,000 rows of stream 3 \(chat\), 7\.7 %"],
    "text-to-batches": ["padded to the longest of 32: 21% of a batch is text",
                        r"\(16, 1024\): (99\.\d|100\.0)% of a batch is text, in \d+ sequences",
                        r"(99\.\d|100\.0)% of the tokens that fit; work of 4 ranks within [0-4]\.\d%",
                        r"3 ranks went on from batch 5 of \d+, with the same batches"],
    "images": [r"26 batches of \(3, 32, 32\) torch\.bfloat16",
               r"collate_fn failed with row \d+ of the \d+ of batch \d+ at rank 0 of 1",
               "image 257", r"\[\(3, 1, 2\), \(1, 2, 2\)\]"],
    "sessions": ["user_id  sessions  spent   typical", "int64 .*", "-+ .*", r"0        19        1119\.0  2\.0",
                 "1 .*", "2 .*", r"\(3 rows\)", "8000 clicks in sessions, 100 users"],
    "messy-csv": ["order_id  day .*", r"int64     date32\[day\] .*", "-+ .*",
                  r"0         2026-01-01   0\.0     null     \?", "1         2026-02-02   null    Name 7   DE", "2 .*",
                  r"\(3 rows\)", "200 orders, 34 of nobody known, 6 without amount"],
    "top-per-key": ["user_id  place  price   title", "int64 .*", "-+ .*", r"0        1      997\.0   Page 78", "0 .*",
                    "0 .*", r"1        1      998\.0   null", r"\(4 rows\)",
                    "60 clicks, 31 of pages without a title"],
    "slowly-changing": ["customer  since        plan    until", "int64 .*", "-+ .*",
                        "0         2026-01-07   team    2026-01-16", "0 .*", "0         2026-01-20   team    null",
                        r"\(3 rows\)", "1000 orders", "plan    orders", "string  int64", "-+ .*", "firm    287",
                        "free    238", "team    367", "null    108", r"\(4 rows\)"],
    "decoded-images": [r"19 batches, the last one \(24, 3, 32, 32\) torch\.float32 torch\.int64",
                       "stage forward-1: .* each asks for 1 GPU"],
    "pretraining": ["10 batches of 2 ranks, then True more of 3 ranks, as one rank reads them"],
    "world-size": ["29 batches, the same for 1, 2, 3, 5 ranks", "going on from step 12 with 3 ranks",
                   "nothing is left behind step 29"],
}  # fmt: skip
"""What each guide prints, line by line."""
WITH_SPARK = {"spark-to-trainer", "spark-to-delta"}
"""Those that tests/spark/test_guide.py and test_plain_spark.py run."""


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if guide.stem in TOLD], ids=lambda guide: guide.stem)
def test_guide_runs_and_tells_what_it_says(
    guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks(guide):
        exec(compile(block, str(guide), "exec", dont_inherit=True), names)
    printed = capsys.readouterr().out
    assert tells(printed, TOLD[guide.stem]), printed


def test_every_guide_that_stands_here_is_run() -> None:
    assert {guide.stem for guide in GUIDES} == TOLD.keys() | WITH_SPARK
