"""Engines of a single process over the bids in Parquet: ours (embedded), DuckDB and DataFusion with two threads, and
Bytewax with one worker, whose rows are Python objects."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from side import Answer, digest, read_folder, serve, settings

SQL = {
    "project": "SELECT auction, price * CAST(0.01 AS DOUBLE) AS euros FROM {bids} WHERE price > 1000",
    "group": "SELECT auction, count(*) AS n, min(euros) AS least, max(euros) AS most, sum(euros) AS total FROM "
    "(SELECT auction, price * CAST(0.01 AS DOUBLE) AS euros FROM {bids} WHERE price > 1000) AS narrow GROUP BY auction",
}
Work = Callable[[], None]


def penstock(folder: Path, kind: str, out: Path) -> Work:
    from bid_flows import over_parquet

    import penstock as ps

    return lambda: ps.run_local(over_parquet(str(folder), kind, str(out)), parallelism=2).wait() and None


def duckdb(folder: Path, kind: str, out: Path) -> Work:
    import duckdb as engine

    connection = engine.connect(config={"threads": 2})
    query = SQL[kind].format(bids=f"'{folder}/*.parquet'")

    def run() -> None:
        out.mkdir(parents=True)
        connection.execute(f"COPY ({query}) TO '{out}/out.parquet' (FORMAT PARQUET)")

    return run


def datafusion(folder: Path, kind: str, out: Path) -> Work:
    from datafusion import SessionConfig, SessionContext

    context = SessionContext(SessionConfig().with_target_partitions(2))
    context.register_parquet("bids", str(folder))
    return lambda: context.sql(SQL[kind].format(bids="bids")).write_parquet(str(out))


def bytewax(folder: Path, kind: str, out: Path) -> Work:
    import pyarrow as pa
    from bytewax import operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main
    from pyarrow import parquet

    numbers = count()

    def fold(state: tuple[int, float, float, float], value: float) -> tuple[int, float, float, float]:
        n, least, most, total = state
        return n + 1, min(least, value), max(most, value), total + value

    def rows() -> list[tuple[int, int]]:
        table = parquet.read_table(folder, columns=["auction", "price"])
        return list(zip(table["auction"].to_pylist(), table["price"].to_pylist(), strict=True))

    def run() -> None:
        found: list[tuple[str, tuple[int, float, float, float]]] = []
        flow = Dataflow(f"bench_{next(numbers)}")
        bids = op.filter("dear", op.input("bids", flow, TestingSource(rows(), batch_size=1024)), lambda b: b[1] > 1000)
        keyed = op.map("keyed", bids, lambda bid: (str(bid[0]), bid[1] * 0.01))
        grouped = op.fold_final("fold", keyed, lambda: (0, float("inf"), float("-inf"), 0.0), fold)
        op.output("out", grouped, TestingSink(found))
        run_main(flow)
        out.mkdir(parents=True)
        columns = [pa.array([int(key) for key, _ in found]), *map(pa.array, zip(*(v for _, v in found), strict=True))]
        table = pa.Table.from_arrays(columns, ["auction", "n", "least", "most", "total"])
        parquet.write_table(table, out / "out.parquet")

    return run


ENGINES = {"penstock": penstock, "duckdb": duckdb, "datafusion": datafusion, "bytewax": bytewax}


def main() -> None:
    asked = settings()
    out = Path(asked["out"])
    make = ENGINES[asked["engine"]]

    def run() -> Answer:
        shutil.rmtree(out, ignore_errors=True)
        work = make(Path(asked["folder"]), asked["kind"], out)
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        rows = digest(read_folder(out))
        return {"seconds": seconds, "digest": rows, "rows": int(rows.split("-")[0])}

    serve(run, asked["engine"], "pyarrow")


if __name__ == "__main__":
    main()
