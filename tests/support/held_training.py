"""The training of an example, which stands still behind a step as long as its number of ranks is in the file ``hold``.

python held_training.py SCRIPT train --folder out
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace


def main() -> None:
    folder = Path(sys.argv[sys.argv.index("--folder") + 1])

    def pause(seconds: float) -> None:
        time.sleep(seconds)
        while os.environ["WORLD_SIZE"] in (folder / "hold").read_text():
            time.sleep(0.05)

    sys.argv = sys.argv[1:]
    example = runpy.run_path(sys.argv[0])
    example["main"].__globals__["time"] = SimpleNamespace(sleep=pause)
    example["main"]()


if __name__ == "__main__":
    main()
