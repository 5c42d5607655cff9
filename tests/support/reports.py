"""Tables of seeded disasters, and where they stand in a document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(map(str, line))} |" for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def put_between_marks(document: Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    whole = document.read_text(encoding="utf-8")
    new = re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{text}\n{end}", whole, flags=re.DOTALL)
    document.write_text(new, encoding="utf-8")
