"""The tables of TPC-H: those of the specification, made by ``tpchgen-cli`` at a scale, and small look-alikes.

``tpchgen-cli`` (in an environment of its own, ``peers/tpchgen.txt``) writes text as string_view and decimals as INT64.
Most files have strings, so tables with these are what is measured; with ``views`` its files are taken as they are.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from house_data import made
from house_sides import python_of
from pyarrow import parquet
from tpch_queries import NAMES


def generated(scale: float, views: bool = False) -> Path:
    """The folder of the tables at that scale, of which 1 is 1 GB as text."""
    if views:
        return made(f"tpch-views-{scale:g}", partial(_generate, scale))
    return made(f"tpch-{scale:g}", partial(_with_strings, generated(scale, views=True)))


def _generate(scale: float, folder: Path) -> None:
    command = [str(python_of("tpchgen").with_name("tpchgen-cli")), "parquet", "-s", f"{scale:g}"]
    subprocess.run([*command, f"--output-dir={folder}"], check=True, stdout=subprocess.DEVNULL)


def _with_strings(views: Path, folder: Path) -> None:
    """The same rows in the same row groups."""
    for name in NAMES:
        file = parquet.ParquetFile(views / f"{name}.parquet")
        schema = _with_type(file.schema_arrow, pa.string_view(), pa.string())
        with parquet.ParquetWriter(folder / f"{name}.parquet", schema) as writer:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group).cast(schema)
                writer.write_table(table, row_group_size=max(1, table.num_rows))


def _with_type(schema: pa.Schema, old: pa.DataType, new: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(each.name, new if each.type == old else each.type) for each in schema])


# ---------------------------------------------------------------------- the look-alike

ROW_GROUP = 1_000
MONEY = pa.decimal128(15, 2)
SUPPLIERS, CUSTOMERS, PARTS, OFFERS, MOST_ITEMS = 100, 300, 400, 4, 7
REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
NATIONS = (
    "ALGERIA 0", "ARGENTINA 1", "BRAZIL 1", "CANADA 1", "EGYPT 4", "ETHIOPIA 0", "FRANCE 3", "GERMANY 3", "INDIA 2",
    "INDONESIA 2", "IRAN 4", "IRAQ 4", "JAPAN 2", "JORDAN 4", "KENYA 0", "MOROCCO 0", "MOZAMBIQUE 0", "PERU 1",
    "CHINA 2", "ROMANIA 3", "SAUDI ARABIA 4", "VIETNAM 2", "RUSSIA 3", "UNITED KINGDOM 3", "UNITED STATES 1",
)  # fmt: skip
"""Each with the number of its region."""
ASKED_FOR = (2, 3, 6, 7, 18, 20)
"""Those of them that queries ask for: half of all suppliers and customers are of these."""
FIRST_DAY, DAYS = (date(1992, 1, 1) - date(1970, 1, 1)).days, 2_400


def look_alike() -> Path:
    """The folder of such tables."""
    return made("tpch-look-alike", write_look_alike)


def write_look_alike(folder: Path, orders: int = 1_500, views: bool = False) -> None:
    """Tables of the same columns, of so few rows that every query gives some, in row groups of a thousand.

    ``views``: texts as string_view and decimals as INT64, as ``tpchgen-cli`` writes them.
    """
    draw = _Draw(orders)
    tables = {**_places(), **_suppliers(draw), **_customers(draw), **_parts(draw), **_orders(draw, orders)}
    for name, table in tables.items():
        schema = _with_type(table.schema, pa.string(), pa.string_view() if views else pa.string())
        path = folder / f"{name}.parquet"
        parquet.write_table(table.cast(schema), path, row_group_size=ROW_GROUP, store_decimal_as_integer=views)


class _Draw:
    """Columns drawn by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)

    def whole(self, rows: int, low: int, high: int) -> Any:
        return self.chance.integers(low, high, rows)

    def of(self, rows: int, *values: str) -> pa.Array:
        return pa.array(values).take(pa.array(self.whole(rows, 0, len(values))))

    def text(self, rows: int, *words: Sequence[str]) -> pa.Array:
        """A word of each, with spaces between."""
        return pc.binary_join_element_wise(*(self.of(rows, *each) for each in words), " ")

    def money(self, rows: int, low: int, high: int) -> pa.Array:
        """So many cents."""
        return money(self.whole(rows, low, high))

    def nations(self, rows: int) -> Any:
        asked = self.chance.choice(ASKED_FOR, rows)
        return np.where(self.chance.random(rows) < 0.5, asked, self.whole(rows, 0, len(NATIONS)))


def money(cents: Any) -> pa.Array:
    return pc.multiply(pa.array(cents, pa.int64()).cast(pa.decimal128(19, 0)), Decimal("0.01")).cast(MONEY)


def numbered(name: str, rows: int) -> pa.Array:
    return pa.array([f"{name}#{number:09}" for number in range(1, rows + 1)])


def phones(nations: Any) -> pa.Array:
    return pa.array([f"{10 + nation}-{number % 900 + 100}-555-{number:04}" for number, nation in enumerate(nations)])


def _places() -> dict[str, pa.Table]:
    names, regions = zip(*(each.rsplit(" ", 1) for each in NATIONS), strict=True)
    nation = {
        "n_nationkey": pa.array(range(len(NATIONS))),
        "n_name": names,
        "n_regionkey": pa.array([int(each) for each in regions]),
        "n_comment": names,
    }
    region = {"r_regionkey": pa.array(range(len(REGIONS))), "r_name": REGIONS, "r_comment": REGIONS}
    return {"nation": pa.table(nation), "region": pa.table(region)}


def _suppliers(draw: _Draw) -> dict[str, pa.Table]:
    rows, nations = SUPPLIERS, draw.nations(SUPPLIERS)
    columns = {
        "s_suppkey": np.arange(1, rows + 1),
        "s_name": numbered("Supplier", rows),
        "s_address": numbered("street", rows),
        "s_nationkey": nations,
        "s_phone": phones(nations),
        "s_acctbal": draw.money(rows, -99_999, 999_999),
        "s_comment": draw.text(rows, ("quick", "Customer"), ("to", "for"), ("Complaints", "requests", "deposits")),
    }
    return {"supplier": pa.table(columns)}


def _customers(draw: _Draw) -> dict[str, pa.Table]:
    rows, nations = CUSTOMERS, draw.nations(CUSTOMERS)
    columns = {
        "c_custkey": np.arange(1, rows + 1),
        "c_name": numbered("Customer", rows),
        "c_address": numbered("road", rows),
        "c_nationkey": nations,
        "c_phone": phones(nations),
        "c_acctbal": draw.money(rows, -99_999, 999_999),
        "c_mktsegment": draw.of(rows, "BUILDING", "AUTOMOBILE", "MACHINERY"),
        "c_comment": draw.text(rows, ("blithely", "", "é"), ("final", "bold"), ("accounts", "")),
    }
    return {"customer": pa.table(columns)}


def _parts(draw: _Draw) -> dict[str, pa.Table]:
    rows, offers = PARTS, PARTS * OFFERS
    part = {
        "p_partkey": np.arange(1, rows + 1),
        "p_name": draw.text(rows, ("forest", "green", "blush", "olive"), ("green", "navy", "pink"), ("lace", "tan")),
        "p_mfgr": draw.of(rows, "Manufacturer#1", "Manufacturer#2"),
        "p_brand": draw.of(rows, "Brand#12", "Brand#23", "Brand#34", "Brand#45"),
        "p_type": draw.text(rows, ("ECONOMY", "PROMO", "MEDIUM"), ("ANODIZED", "POLISHED"), ("STEEL", "BRASS")),
        "p_size": pa.array(draw.chance.choice((1, 3, 5, 9, 14, 15, 19, 23, 45, 49), rows), pa.int32()),
        "p_container": draw.text(rows, ("SM", "MED", "LG"), ("BOX", "BAG", "CASE")),
        "p_retailprice": draw.money(rows, 90_000, 200_000),
        "p_comment": draw.text(rows, ("ironic", "even"), ("ideas", "deposits")),
    }
    partsupp = {
        "ps_partkey": np.repeat(np.arange(1, rows + 1), OFFERS),
        "ps_suppkey": _supplier_of(np.repeat(np.arange(1, rows + 1), OFFERS), np.tile(np.arange(OFFERS), rows)),
        "ps_availqty": pa.array(draw.whole(offers, 1, 10_000), pa.int32()),
        "ps_supplycost": draw.money(offers, 100, 100_000),
        "ps_comment": draw.text(offers, ("slyly", "even"), ("packages", "pinto beans")),
    }
    return {"part": pa.table(part), "partsupp": pa.table(partsupp)}


def _supplier_of(part: Any, offer: Any) -> Any:
    """Who offers a part: four for each."""
    return (part + offer * (SUPPLIERS // OFFERS)) % SUPPLIERS + 1


def _orders(draw: _Draw, rows: int) -> dict[str, pa.Table]:
    """Every fiftieth is of seven items of fifty pieces; a third of the customers orders nothing."""
    keys, days = np.arange(1, rows + 1) * 4, np.sort(draw.whole(rows, 0, DAYS))
    count = draw.whole(rows, 1, MOST_ITEMS + 1)
    count[::50] = MOST_ITEMS
    order = {
        "o_orderkey": keys,
        "o_custkey": draw.whole(rows, 0, CUSTOMERS // 3) * 3 + draw.whole(rows, 1, 3),
        "o_orderstatus": draw.of(rows, "F", "O", "P"),
        "o_totalprice": draw.money(rows, 100_000, 50_000_000),
        "o_orderdate": pa.array((days + FIRST_DAY).astype(np.int32)).cast(pa.date32()),
        "o_orderpriority": draw.of(rows, "1-URGENT", "2-HIGH", "3-MEDIUM", "5-LOW"),
        "o_clerk": draw.of(rows, "Clerk#1", "Clerk#2"),
        "o_shippriority": pa.array(np.zeros(rows), pa.int32()),
        "o_comment": draw.text(rows, ("special", "regular"), ("pending", "final"), ("requests", "accounts")),
    }
    large = np.arange(rows) % 50 == 0
    return {
        "orders": pa.table(order),
        "lineitem": _items(draw, *(np.repeat(each, count) for each in (keys, days, large))),
    }


def _items(draw: _Draw, orders: Any, days: Any, large: Any) -> pa.Table:
    rows, starts = len(orders), np.flatnonzero(np.diff(orders, prepend=0))
    parts = draw.whole(rows, 1, PARTS + 1)
    shipped = days + draw.whole(rows, 1, 122)

    def day(days: Any) -> pa.Array:
        return pa.array((days + FIRST_DAY).astype(np.int32)).cast(pa.date32())

    columns = {
        "l_orderkey": orders,
        "l_partkey": parts,
        "l_suppkey": _supplier_of(parts, draw.whole(rows, 0, OFFERS)),
        "l_linenumber": pa.array(np.arange(rows) - np.repeat(starts, np.diff(starts, append=rows)) + 1, pa.int32()),
        "l_quantity": money(np.where(large, 50, draw.whole(rows, 1, 51)) * 100),
        "l_extendedprice": draw.money(rows, 90_000, 10_000_000),
        "l_discount": draw.money(rows, 0, 11),
        "l_tax": draw.money(rows, 0, 9),
        "l_returnflag": draw.of(rows, "A", "N", "R"),
        "l_linestatus": draw.of(rows, "F", "O"),
        "l_shipdate": day(shipped),
        "l_commitdate": day(days + draw.whole(rows, 30, 91)),
        "l_receiptdate": day(shipped + draw.whole(rows, 1, 31)),
        "l_shipinstruct": draw.of(rows, "DELIVER IN PERSON", "NONE"),
        "l_shipmode": draw.of(rows, "AIR", "MAIL", "SHIP"),
        "l_comment": draw.text(rows, ("carefully", "furiously"), ("final", "é"), ("deposits", "")),
    }
    return pa.table(columns)
