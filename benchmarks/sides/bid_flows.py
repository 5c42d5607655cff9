"""Our flow over bids in Parquet, as several sides run it."""

from __future__ import annotations

from itertools import count

import penstock as ps

NUMBERS = count()


def over_parquet(folder: str, kind: str, out: str) -> ps.Flow:
    flow = ps.Flow(f"bench-{kind}-{next(NUMBERS)}")
    bids = flow.read_parquet(folder, columns=["auction", "price"]).filter(ps.field("price") > 1000)
    bids = bids.project("auction", euros=ps.field("price") * 0.01)
    if kind == "group":
        bids = bids.aggregate(
            ["auction"],
            exchange="key",
            n="count",
            least=("euros", "min"),
            most=("euros", "max"),
            total=("euros", "sum"),
        )
    bids.write_parquet(out, compression="snappy")  # as the peers do by default
    return flow
