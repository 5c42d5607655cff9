"""One run of our embedded runner over bids in Parquet, with the peak of its memory."""

from __future__ import annotations

import resource
import shutil
import time
from pathlib import Path

from bid_flows import over_parquet
from side import Answer, serve, settings

import penstock as ps


def main() -> None:
    asked = settings()
    out = Path(asked["out"])

    def run() -> Answer:
        shutil.rmtree(out, ignore_errors=True)
        started = time.perf_counter()
        ps.run_local(over_parquet(asked["folder"], "group", str(out)), parallelism=asked["subtasks"]).wait()
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    serve(run, "penstock")


if __name__ == "__main__":
    main()
