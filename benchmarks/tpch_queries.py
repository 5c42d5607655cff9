"""The 22 queries of TPC-H as flows, as a user writes them; ``tpch.sql`` beside this has their texts.

A query is a function of ``Tables`` that gives the stream of its rows. Where SQL has a sub-query, there is a join: with
what is in it (``left semi``), with what is not (``anti``), with a sum for each key, or with one row for all. Another
engine that has such streams is asked through ``Tables`` of its own, so Penstock is imported where its flows are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import penstock as ps
    from penstock import Stream

NAMES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


@dataclass(frozen=True)
class Tables:
    """The tables of ``folder``, in Parquet, in one flow. ``exchange``: through which its joins and groups go."""

    flow: ps.Flow
    folder: Path
    exchange: str = "gather"

    def down(self, column: str) -> ps.SortKey:
        """Of a sort: the largest first."""
        from penstock import SortKey

        return SortKey(column, descending=True)

    def read(self, name: str) -> Stream:
        return self.flow.read_parquet(self.folder / f"{name}.parquet")

    def join(self, left: Stream, right: Stream, on: str, how: str = "inner", filter: str | None = None) -> Stream:
        """``on``: pairs of columns, ``"a = b and c = d"``, or one name that both have."""
        pairs = [pair.split(" = ") for pair in on.split(" and ")]
        return left.hash_join(
            right,
            [pair[0] for pair in pairs],
            right_on=[pair[-1] for pair in pairs] if " = " in on else None,
            how=how,
            filter=filter,
            exchange=self.exchange,
        )

    def group(self, rows: Stream, by: Sequence[str], **aggregates: str | tuple[str, str]) -> Stream:
        return rows.aggregate(by, exchange=self.exchange, **aggregates)

    def beside(self, rows: Stream, one: Stream) -> Stream:
        """Each row with the columns of the only one of ``one``."""
        return self.join(rows.with_columns(only="1"), one.with_columns(only="1"), "only")


Query: TypeAlias = "Callable[[Tables], Stream]"
REVENUE = "l_extendedprice * (1 - l_discount)"


def q1(t: Tables) -> Stream:
    items = t.read("lineitem").filter("l_shipdate <= date '1998-09-02'")
    items = items.with_columns(disc_price=f"cast({REVENUE} as decimal(20, 4))")
    items = items.with_columns(charge="disc_price * (1 + l_tax)")
    groups = t.group(
        items,
        ["l_returnflag", "l_linestatus"],
        sum_qty=("l_quantity", "sum"),
        sum_base_price=("l_extendedprice", "sum"),
        sum_disc_price=("disc_price", "sum"),
        sum_charge=("charge", "sum"),
        avg_qty=("l_quantity", "mean"),
        avg_price=("l_extendedprice", "mean"),
        avg_disc=("l_discount", "mean"),
        count_order="count",
    )
    return groups.sort("l_returnflag", "l_linestatus")


def q2(t: Tables) -> Stream:
    europe = t.join(t.read("nation"), t.read("region").filter("r_name = 'EUROPE'"), "n_regionkey = r_regionkey")
    suppliers = t.join(t.read("supplier"), europe, "s_nationkey = n_nationkey")
    parts = t.read("part").filter("p_size = 15 and p_type like '%BRASS'").project("p_partkey", "p_mfgr")
    offers = t.join(t.read("partsupp"), parts, "ps_partkey = p_partkey")
    offers = t.join(offers, suppliers, "ps_suppkey = s_suppkey")
    least = t.group(offers, ["ps_partkey"], least=("ps_supplycost", "min"))
    best = t.join(offers, least, "ps_partkey", filter="ps_supplycost = least")
    first = best.top_n(100, t.down("s_acctbal"), "n_name", "s_name", "p_partkey")
    return first.project("s_acctbal", "s_name", "n_name", "p_partkey", "p_mfgr", "s_address", "s_phone", "s_comment")


def q3(t: Tables) -> Stream:
    builders = t.read("customer").filter("c_mktsegment = 'BUILDING'")
    orders = t.read("orders").filter("o_orderdate < date '1995-03-15'")
    orders = t.join(orders, builders, "o_custkey = c_custkey", how="left semi")
    items = t.read("lineitem").filter("l_shipdate > date '1995-03-15'")
    items = t.join(items, orders, "l_orderkey = o_orderkey").with_columns(revenue=REVENUE)
    groups = t.group(items, ["l_orderkey", "o_orderdate", "o_shippriority"], revenue=("revenue", "sum"))
    first = groups.top_n(10, t.down("revenue"), "o_orderdate")
    return first.project("l_orderkey", "revenue", "o_orderdate", "o_shippriority")


def q4(t: Tables) -> Stream:
    orders = t.read("orders").filter("o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-10-01'")
    late = t.read("lineitem").filter("l_commitdate < l_receiptdate").project("l_orderkey")
    orders = t.join(orders, late, "o_orderkey = l_orderkey", how="left semi")
    return t.group(orders, ["o_orderpriority"], order_count="count").sort("o_orderpriority")


def q5(t: Tables) -> Stream:
    asia = t.join(t.read("nation"), t.read("region").filter("r_name = 'ASIA'"), "n_regionkey = r_regionkey")
    suppliers = t.join(t.read("supplier"), asia, "s_nationkey = n_nationkey")
    orders = t.read("orders").filter("o_orderdate >= date '1994-01-01' and o_orderdate < date '1995-01-01'")
    orders = t.join(orders, t.read("customer"), "o_custkey = c_custkey")
    items = t.join(t.read("lineitem"), orders, "l_orderkey = o_orderkey")
    items = t.join(items, suppliers, "l_suppkey = s_suppkey and c_nationkey = s_nationkey")
    items = items.with_columns(revenue=REVENUE)
    return t.group(items, ["n_name"], revenue=("revenue", "sum")).sort(t.down("revenue"))


def q6(t: Tables) -> Stream:
    items = t.read("lineitem").filter(
        "l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01' "
        "and l_discount between 0.05 and 0.07 and l_quantity < 24"
    )
    return items.with_columns(revenue="l_extendedprice * l_discount").aggregate(revenue=("revenue", "sum"))


def q7(t: Tables) -> Stream:
    nations = t.read("nation").filter("n_name in ('FRANCE', 'GERMANY')")
    selling = nations.project("n_nationkey", supp_nation="n_name")
    buying = nations.project("n_nationkey", cust_nation="n_name")
    suppliers = t.join(t.read("supplier"), selling, "s_nationkey = n_nationkey").project("s_suppkey", "supp_nation")
    customers = t.join(t.read("customer"), buying, "c_nationkey = n_nationkey").project("c_custkey", "cust_nation")
    orders = t.join(t.read("orders"), customers, "o_custkey = c_custkey")
    items = t.read("lineitem").filter("l_shipdate between date '1995-01-01' and date '1996-12-31'")
    items = t.join(items, suppliers, "l_suppkey = s_suppkey")
    items = t.join(items, orders, "l_orderkey = o_orderkey", filter="supp_nation <> cust_nation")
    items = items.with_columns(l_year="year(l_shipdate)", volume=REVENUE)
    by = ["supp_nation", "cust_nation", "l_year"]
    return t.group(items, by, revenue=("volume", "sum")).sort(*by)


def q8(t: Tables) -> Stream:
    america = t.join(t.read("nation"), t.read("region").filter("r_name = 'AMERICA'"), "n_regionkey = r_regionkey")
    customers = t.join(t.read("customer"), america, "c_nationkey = n_nationkey", how="left semi")
    orders = t.read("orders").filter("o_orderdate between date '1995-01-01' and date '1996-12-31'")
    orders = t.join(orders, customers, "o_custkey = c_custkey", how="left semi")
    steel = t.read("part").filter("p_type = 'ECONOMY ANODIZED STEEL'")
    items = t.join(t.read("lineitem"), steel, "l_partkey = p_partkey", how="left semi")
    items = t.join(items, orders, "l_orderkey = o_orderkey")
    suppliers = t.join(t.read("supplier"), t.read("nation"), "s_nationkey = n_nationkey")
    items = t.join(items, suppliers.project("s_suppkey", nation="n_name"), "l_suppkey = s_suppkey")
    items = items.with_columns(o_year="year(o_orderdate)", volume=REVENUE)
    items = items.with_columns(brazil="case when nation = 'BRAZIL' then volume else 0 end")
    years = t.group(items, ["o_year"], brazil=("brazil", "sum"), volume=("volume", "sum"))
    return years.project("o_year", mkt_share="brazil::double / volume::double").sort("o_year")


def q9(t: Tables) -> Stream:
    green = t.read("part").filter("p_name like '%green%'").project("p_partkey")
    items = t.join(t.read("lineitem"), green, "l_partkey = p_partkey", how="left semi")
    offers = t.join(t.read("partsupp"), green, "ps_partkey = p_partkey", how="left semi")
    items = t.join(items, offers, "l_partkey = ps_partkey and l_suppkey = ps_suppkey")
    suppliers = t.join(t.read("supplier"), t.read("nation"), "s_nationkey = n_nationkey")
    items = t.join(items, suppliers.project("s_suppkey", nation="n_name"), "l_suppkey = s_suppkey")
    items = t.join(items, t.read("orders"), "l_orderkey = o_orderkey")
    items = items.with_columns(o_year="year(o_orderdate)", amount=f"{REVENUE} - ps_supplycost * l_quantity")
    return t.group(items, ["nation", "o_year"], sum_profit=("amount", "sum")).sort("nation", t.down("o_year"))


def q10(t: Tables) -> Stream:
    orders = t.read("orders").filter("o_orderdate >= date '1993-10-01' and o_orderdate < date '1994-01-01'")
    returned = t.read("lineitem").filter("l_returnflag = 'R'")
    items = t.join(returned, orders.project("o_orderkey", "o_custkey"), "l_orderkey = o_orderkey")
    customers = t.join(t.read("customer"), t.read("nation"), "c_nationkey = n_nationkey")
    items = t.join(items.with_columns(revenue=REVENUE), customers, "o_custkey = c_custkey")
    by = ["c_custkey", "c_name", "c_acctbal", "c_phone", "n_name", "c_address", "c_comment"]
    first = t.group(items, by, revenue=("revenue", "sum")).top_n(20, t.down("revenue"), "c_custkey")
    shown = ("c_custkey", "c_name", "revenue", "c_acctbal", "n_name", "c_address", "c_phone", "c_comment")
    return first.project(*shown)


def q11(t: Tables) -> Stream:
    german = t.read("nation").filter("n_name = 'GERMANY'")
    suppliers = t.join(t.read("supplier"), german, "s_nationkey = n_nationkey", how="left semi")
    offers = t.join(t.read("partsupp"), suppliers, "ps_suppkey = s_suppkey", how="left semi")
    offers = offers.with_columns(value="ps_supplycost * ps_availqty")
    parts = t.group(offers, ["ps_partkey"], value=("value", "sum"))
    parts = t.beside(parts, offers.aggregate(total=("value", "sum")))
    large = "cast(value as decimal(18, 2)) > cast(total as decimal(18, 2)) * cast('0.0001' as decimal(5, 4))"
    return parts.filter(large).project("ps_partkey", "value").sort(t.down("value"), "ps_partkey")


def q12(t: Tables) -> Stream:
    items = t.read("lineitem").filter(
        "l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate and l_shipdate < l_commitdate "
        "and l_receiptdate >= date '1994-01-01' and l_receiptdate < date '1995-01-01'"
    )
    items = t.join(items, t.read("orders"), "l_orderkey = o_orderkey")
    items = items.with_columns(high="case when o_orderpriority in ('1-URGENT', '2-HIGH') then 1 else 0 end")
    modes = t.group(items.with_columns(low="1 - high"), ["l_shipmode"], high=("high", "sum"), low=("low", "sum"))
    return modes.sort("l_shipmode")


def q13(t: Tables) -> Stream:
    orders = t.read("orders").filter("o_comment not like '%special%requests%'").project("o_orderkey", "o_custkey")
    customers = t.join(t.read("customer"), orders, "c_custkey = o_custkey", how="left")
    counts = t.group(customers, ["c_custkey"], c_count=("o_orderkey", "count"))
    return t.group(counts, ["c_count"], custdist="count").sort(t.down("custdist"), t.down("c_count"))


def q14(t: Tables) -> Stream:
    items = t.read("lineitem").filter("l_shipdate >= date '1995-09-01' and l_shipdate < date '1995-10-01'")
    items = t.join(items, t.read("part"), "l_partkey = p_partkey").with_columns(revenue=REVENUE)
    items = items.with_columns(promo="case when p_type like 'PROMO%' then revenue else 0 end")
    sums = items.aggregate(promo=("promo", "sum"), revenue=("revenue", "sum"))
    return sums.project(promo_revenue="100.00 * promo / revenue::double")


def q15(t: Tables) -> Stream:
    items = t.read("lineitem").filter("l_shipdate >= date '1996-01-01' and l_shipdate < date '1996-04-01'")
    revenue = t.group(items.with_columns(revenue=REVENUE), ["l_suppkey"], total_revenue=("revenue", "sum"))
    most = revenue.aggregate(most=("total_revenue", "max"))
    best = t.join(revenue, most, "total_revenue = most", how="left semi")
    best = t.join(t.read("supplier"), best, "s_suppkey = l_suppkey")
    return best.project("s_suppkey", "s_name", "s_address", "s_phone", "total_revenue").sort("s_suppkey")


def q16(t: Tables) -> Stream:
    parts = t.read("part").filter(
        "p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%' and p_size in (49, 14, 23, 45, 19, 3, 36, 9)"
    )
    bad = t.read("supplier").filter("s_comment like '%Customer%Complaints%'")
    offers = t.join(t.read("partsupp"), bad, "ps_suppkey = s_suppkey", how="anti")
    offers = t.join(offers, parts, "ps_partkey = p_partkey")
    by = ["p_brand", "p_type", "p_size"]
    return t.group(offers, by, supplier_cnt=("ps_suppkey", "count_distinct")).sort(t.down("supplier_cnt"), *by)


def q17(t: Tables) -> Stream:
    boxes = t.read("part").filter("p_brand = 'Brand#23' and p_container = 'MED BOX'")
    items = t.join(t.read("lineitem"), boxes, "l_partkey = p_partkey", how="left semi")
    usual = t.group(items, ["l_partkey"], usual=("l_quantity", "mean"))
    small = t.join(items, usual, "l_partkey", filter="l_quantity < 0.2 * usual")
    return small.aggregate(price=("l_extendedprice", "sum")).project(avg_yearly="price::double / 7.0")


def q18(t: Tables) -> Stream:
    large = t.group(t.read("lineitem"), ["l_orderkey"], quantity=("l_quantity", "sum")).filter("quantity > 300")
    orders = t.join(t.read("orders"), large, "o_orderkey = l_orderkey", how="left semi")
    orders = t.join(orders, t.read("customer"), "o_custkey = c_custkey")
    items = t.join(t.read("lineitem"), orders, "l_orderkey = o_orderkey")
    by = ["c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice"]
    groups = t.group(items, by, quantity=("l_quantity", "sum"))
    return groups.top_n(100, t.down("o_totalprice"), "o_orderdate", "o_orderkey")


def q19(t: Tables) -> Stream:
    items = t.read("lineitem").filter("l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON'")
    wanted = """
        (p_brand = 'Brand#12' and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
            and l_quantity >= 1 and l_quantity <= 11 and p_size between 1 and 5)
        or (p_brand = 'Brand#23' and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
            and l_quantity >= 10 and l_quantity <= 20 and p_size between 1 and 10)
        or (p_brand = 'Brand#34' and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
            and l_quantity >= 20 and l_quantity <= 30 and p_size between 1 and 15)
    """
    items = t.join(items, t.read("part"), "l_partkey = p_partkey", filter=wanted)
    return items.with_columns(revenue=REVENUE).aggregate(revenue=("revenue", "sum"))


def q20(t: Tables) -> Stream:
    forest = t.read("part").filter("p_name like 'forest%'").project("p_partkey")
    items = t.read("lineitem").filter("l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'")
    items = t.join(items, forest, "l_partkey = p_partkey", how="left semi")
    sold = t.group(items, ["l_partkey", "l_suppkey"], quantity=("l_quantity", "sum"))
    offers = t.join(t.read("partsupp"), forest, "ps_partkey = p_partkey", how="left semi")
    on = "ps_partkey = l_partkey and ps_suppkey = l_suppkey"
    offers = t.join(offers, sold, on, filter="ps_availqty > 0.5 * quantity")
    canada = t.read("nation").filter("n_name = 'CANADA'")
    suppliers = t.join(t.read("supplier"), canada, "s_nationkey = n_nationkey", how="left semi")
    suppliers = t.join(suppliers, offers, "s_suppkey = ps_suppkey", how="left semi")
    return suppliers.project("s_name", "s_address").sort("s_name")


def q21(t: Tables) -> Stream:
    late = t.read("lineitem").filter("l_receiptdate > l_commitdate")
    saudi = t.read("nation").filter("n_name = 'SAUDI ARABIA'")
    suppliers = t.join(t.read("supplier"), saudi, "s_nationkey = n_nationkey", how="left semi")
    items = t.join(late, suppliers, "l_suppkey = s_suppkey").project("l_orderkey", "l_suppkey", "s_name")
    failed = t.read("orders").filter("o_orderstatus = 'F'")
    items = t.join(items, failed, "l_orderkey = o_orderkey", how="left semi")
    all_items = t.read("lineitem").project("l_orderkey", "l_suppkey")
    others = "l_suppkey <> l_suppkey_right"
    items = t.join(items, all_items, "l_orderkey", how="left semi", filter=others)
    items = t.join(items, late.project("l_orderkey", "l_suppkey"), "l_orderkey", how="anti", filter=others)
    return t.group(items, ["s_name"], numwait="count").top_n(100, t.down("numwait"), "s_name")


def q22(t: Tables) -> Stream:
    codes = "cntrycode in ('13', '31', '23', '29', '30', '18', '17')"
    customers = t.read("customer").with_columns(cntrycode="substring(c_phone, 1, 2)").filter(codes)
    usual = customers.filter("c_acctbal > 0").aggregate(usual=("c_acctbal", "mean"))
    rich = t.beside(customers, usual).filter("c_acctbal > usual")
    rich = t.join(rich, t.read("orders"), "c_custkey = o_custkey", how="anti")
    return t.group(rich, ["cntrycode"], numcust="count", totacctbal=("c_acctbal", "sum")).sort("cntrycode")


QUERIES: tuple[Query, ...] = (
    q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11, q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22
)  # fmt: skip
"""In order; query ``n`` is ``QUERIES[n - 1]``."""


def flow_of(number: int, folder: Path, exchange: str = "gather", out: Path | None = None) -> ps.Flow:
    """The flow of a query, whose rows go to Parquet files in ``out``, or are what ``result("rows")`` has."""
    from penstock import Flow

    flow = Flow(f"tpch-{number}", lanes=8)
    rows = QUERIES[number - 1](Tables(flow, folder, exchange))
    if out is None:
        rows.collect("rows")
    else:
        rows.write_parquet(out)
    return flow
