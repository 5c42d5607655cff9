"""The guides in docs: pages whose blocks of Python make one program."""

from __future__ import annotations

import re
from pathlib import Path

GUIDES = sorted((Path(__file__).parents[2] / "docs" / "guides").glob("*.md"))


def blocks(guide: Path) -> list[str]:
    """Its program, block by block."""
    return re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)


def tells(printed: str, wanted: list[str]) -> bool:
    """Whether a program has printed these lines (regular expressions), and no others."""
    lines = printed.splitlines()
    return len(lines) == len(wanted) and all(map(re.fullmatch, wanted, lines))
