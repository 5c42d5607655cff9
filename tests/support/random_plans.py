"""Random flows over split sets: the lines that build them, what they are fed, and what comes of it where it runs.

Rules:

1. A flow is a list of lines of Python, drawn by seed one after the other; a line that the flow refuses is left out. So
   a failure prints the flow as it would be written. Every stream has the columns ``k`` and ``v`` of integers.
2. Windows are lists of splits for each source: none, or up to three, of up to 40 rows, clustered and sorted by ``k``.
3. Input that an operator refuses (a merge join of what is not sorted) must be refused wherever the flow runs; but a
   merge join checks rows as they come, and reads no more of a side than it needs, so how much it sees may differ.
4. A relation in SQL is kept beside each stream, as long as its rows, in whatever order, are a function of the window.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

import penstock as ps
from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.flow.flow import Stream
from penstock.engine.local.plan_inputs import plan_stream
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.sinks.output import OutputSink
from support import own_operators as own
from support.oracle import query

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NAMES = pa.table({"k": pa.array(range(0, 6, 2), pa.int64()), "w": pa.array([7, 8, 9], pa.int64())})
WAIT = 30.0

Rows = list[tuple[int | None, ...]]
Windows = Sequence[Mapping[str, Sequence[pa.Table]]]
REFUSED: Rows = [()]


def plus_one(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What a user's function makes of a batch."""
    return pa.record_batch(
        [batch.column("k"), pa.array([None if v is None else v + 1 for v in batch["v"].to_pylist()], pa.int64())],
        schema=SCHEMA,
    )


SCOPE = {"ps": ps, "pa": pa, "own": own, "plus_one": plus_one, "SCHEMA": SCHEMA, "NAMES": NAMES}

ROW_WISE = {
    ".filter('v % {n} <> 0')": "select * from {s} where v % {n} <> 0",
    ".filter('k < {n}')": "select * from {s} where k < {n}",
    ".with_columns(v='v * 2 - k')": "select k, v * 2 - k as v from {s}",
    ".project('k', v='v + {n}')": "select k, v + {n} as v from {s}",
    ".map_batches(plus_one, SCHEMA)": "select k, v + 1 as v from {s}",
    ".apply(own.Above('v', {n}))": "select * from {s} where v > {n}",
    ".lookup_join(ps.index.memory(NAMES, 'k'), on=['k']).project('k', v='v + w')": (
        "select k, v + w as v from {s} join names using (k)"
    ),
    ".lookup_join(ps.index.memory(NAMES, 'k'), on=['k'], how='left').project('k', v='coalesce(w, v)')": (
        "select k, coalesce(w, v) as v from {s} left join names using (k)"
    ),
}
EXCHANGES = (
    ".gather()",
    ".partition_by('k')",
    ".rebalance()",
    ".forward()",
    ".partition_by_range('v', [10, 30])",
)
HOLDING = {
    ".aggregate(['k'], v=('v', '{f}'){x}{h})": "select k, {f}(v) :: bigint as v from {s} group by k",
    ".aggregate(['k'], v=('v', 'collect_list'){x}{h}).unnest('v')": "select * from {s}",
    ".aggregate([], k=('k', 'max'), v=('v', 'sum'){h})": "select max(k) as k, sum(v) :: bigint as v from {s}",
    ".distinct({x0}{h})": "select distinct * from {s}",
    ".distinct('k'{x}{h})": "",
    ".mark_distinct('k', 'v', marker='m'{x}{h}).filter('m').project('k', 'v')": "select distinct * from {s}",
    ".sort('k', 'v'{h})": "select * from {s}",
    ".sort('v'{h})": "select * from {s}",
    ".top_n({n}, 'v', 'k'{h})": "select * from {s} order by v nulls last, k nulls last limit {n}",
    ".limit({n}{h})": "",
    ".sample(0.7, seed={n})": "",
    ".limit({n}, offset=2, per='window')": "",
    ".limit({n}, per='window'{h})": "",
    ".window(['k'], ['v'], n='row_number'{x}{h}).project('k', v='n')": (
        "select k, row_number() over (partition by k order by v) as v from {s}"
    ),
    ".window(['k'], ['v'], n=('v', 'sum'){h}).project('k', v='n')": "",
    ".stream_aggregate(['k'], v=('v', '{f}'){h})": "",
    ".shuffle({n}, seed=1{h})": "select * from {s}",
    ".filter('v is not null').aggregate(['k'], tokens=('v', 'collect_list')).pack({n}{h})"
    ".unnest('tokens').project(k='tokens', v='tokens')": "",
    ".apply(own.Counted('k')).project('k', v='rows')": "select k, count(*) as v from {s} group by k",
}
JOINS = {
    ".union({t})": "select * from {s} union all select * from {t}",
    ".merge_join({t}, on=['k'], how='{j}', suffix='_t').project('k', v='{e}')": "",
    ".sort('k').merge_join({t}.sort('k'), on=['k'], how='{j}', suffix='_t').project('k', v='{e}')": "{join}",
    ".partition_by('k').merge_join({t}.partition_by('k'), on=['k'], how='{j}', suffix='_t').project('k', v='{e}')": "",
    ".gather().merge_join({t}.gather(), on=['k'], how='{j}', suffix='_t').project('k', v='{e}')": "",
    ".hash_join({t}, on=['k'], how='{j}', suffix='_t'{x}{h}).project('k', v='{e}')": "{join}",
    ".hash_join({t}.broadcast(), on=['k'], how='inner', suffix='_t').project('k', v='v + v_t')": (
        "select k, {s}.v + {t}.v as v from {s} join {t} using (k)"
    ),
    "mix": "",
}
JOINED = {
    "inner": ("v + v_t", "select k, {s}.v + {t}.v as v from {s} join {t} using (k)"),
    "left": ("coalesce(v_t, v)", "select k, coalesce({t}.v, {s}.v) as v from {s} left join {t} using (k)"),
    "right": ("coalesce(v, v_t)", "select k, coalesce({s}.v, {t}.v) as v from {s} right join {t} using (k)"),
    "full": ("coalesce(v_t, v)", "select k, coalesce({t}.v, {s}.v) as v from {s} full join {t} using (k)"),
    "left semi": ("v", "select {s}.* from {s} semi join {t} using (k)"),
    "anti": ("v", "select {s}.* from {s} anti join {t} using (k)"),
}


@dataclass
class RandomPlan:
    """A flow and what it is fed. ``sql``: the relations of its streams, where there is one."""

    seed: int
    lines: list[str]
    sources: list[str]
    windows: Windows
    sql: dict[str, str] = field(default_factory=dict)

    def stream(self) -> Stream:
        """A new flow of these lines; the stream at its end."""
        names = dict(SCOPE)
        exec("\n".join(self.lines), names)
        found = names["end"]
        assert isinstance(found, Stream)
        return found

    def may_read_less(self) -> bool:
        """Whether it has an operator that looks at part of its input, or at more, as it comes."""
        return any(".merge_join(" in line for line in self.lines)

    def told(self) -> str:
        """The flow as code, and its windows."""
        fed = [
            {name: [table.to_pydict() for table in tables] for name, tables in window.items()}
            for window in self.windows
        ]
        return "\n".join((f"# seed {self.seed}", *self.lines, f"# windows: {fed}"))


class _Draft:
    """A flow while it is drawn."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.names = dict(SCOPE)
        self.streams: list[str] = []
        self.sql: dict[str, str] = {}
        self.holds = draw.random() < 0.3
        self.add(f"flow = ps.Flow('random', lanes={draw.choice((3, 4, 8))})")

    def add(self, line: str) -> bool:
        """Write a line; not if the flow refuses it."""
        try:
            exec(line, self.names)
        except FlowError:
            return False
        self.lines.append(line)
        return True

    def source(self, name: str) -> None:
        self.add(f"{name} = flow.from_split_sets(SCHEMA, name='{name}')")
        self.streams.append(name)
        self.sql[name] = f"select * from in_{name}"

    def step(self) -> None:
        """One more stream, if one of some lines is taken."""
        before = len(self.streams)
        for _ in range(5):
            if len(self.streams) == before:
                self._try_step()

    def _try_step(self) -> None:
        """One more stream, of the newest one mostly."""
        draw = self.draw
        of = self.streams[-1] if draw.random() < 0.7 else draw.choice(self.streams)
        kind = draw.choices(("row-wise", "exchange", "holding", "join"), (4, 4, 6, 3))[0]
        made = f"s{len(self.lines)}"
        if kind == "exchange":
            text, sql = draw.choice(EXCHANGES), "select * from {s}"
        else:
            table = {"row-wise": ROW_WISE, "holding": HOLDING, "join": JOINS}[kind]
            text = draw.choice(list(table))
            sql = table[text]
        other = draw.choice(self.streams)
        text, sql = self._filled(text, sql, of, other)
        line = f"{made} = {of}{text}"
        if text == "mix":
            line = f"{made} = flow.mix({{{of}: 1, {other}: 2}}, seed=1, at_end='go on')"
        if other == of and kind == "join" and text != "mix":
            return
        if self.add(line) and self.names[made].schema.names == ["k", "v"]:  # type: ignore[attr-defined]
            self.streams.append(made)
            if sql and all(each in self.sql for each in (of, other) if f"rel_{each} " in f"{sql} "):
                self.sql[made] = sql

    def _filled(self, text: str, sql: str, of: str, other: str) -> tuple[str, str]:
        draw = self.draw
        how = draw.choice(list(JOINED))
        values = {
            "n": str(draw.choice((1, 2, 3, 5, 20))),
            "f": draw.choice(("sum", "min", "max", "count")),
            "x": ", exchange='key'" if draw.random() < 0.5 else "",
            "x0": "exchange='gather'" if draw.random() < 0.5 else "exchange='key'",
            "h": ", at_barrier='hold'" if self.holds and draw.random() < 0.5 else "",
            "j": how,
            "e": JOINED[how][0],
            "t": other,
        }
        related = {**values, "s": f"rel_{of}", "t": f"rel_{other}"}
        if values["h"] and "{h}" in text:
            sql = ""
        return text.format(**values), sql.format(join=JOINED[how][1].format(**related), **related)


def draw_plan(seed: int) -> RandomPlan:
    """A flow that can be planned, and its windows."""
    draw = random.Random(seed)
    while True:
        draft = _Draft(draw)
        for number in range(draw.choice((1, 2, 2, 3))):
            draft.source(f"r{number}")
        for _ in range(draw.randrange(1, 8)):
            draft.step()
        draft.add(f"end = {draft.streams[-1]}")
        plan = RandomPlan(seed, draft.lines, [], [], draft.sql)
        try:
            planned = plan_stream(plan.stream(), OutputSink(lambda _: None, lambda: True), 3)
        except FlowError:
            continue
        plan.sources = sorted(planned.sources)
        plan.windows = [
            {source: [_table(draw) for _ in range(draw.randrange(4))] for source in plan.sources}
            for _ in range(draw.randrange(1, 5))
        ]
        return plan


def _table(draw: random.Random) -> pa.Table:
    rows = draw.choice((0, 1, 3, 10, 40))
    keys = sorted(draw.randrange(7) for _ in range(rows))
    return pa.table([keys, [draw.randrange(50) for _ in keys]], schema=SCHEMA)


def by_duckdb(plan: RandomPlan) -> list[Rows] | None:
    """The rows of each window in any order, as SQL has them; None if the flow is not in SQL."""
    end = plan.lines[-1].removeprefix("end = ")
    if end not in plan.sql:
        return None
    relations = ", ".join(f"rel_{name} as ({sql})" for name, sql in plan.sql.items())
    found = []
    for window in plan.windows:
        fed = {f"in_{source}": pa.concat_tables([SCHEMA.empty_table(), *tables]) for source, tables in window.items()}
        unread = {f"in_r{number}": SCHEMA.empty_table() for number in range(3)}
        found.append(query(f"with {relations} select * from rel_{end}", **{**unread, **fed}, names=NAMES))
    return found


# ---------------------------------------------------------------------- running


def in_a_plan(plan: RandomPlan, degree: int, parallelism: int, *, ahead: bool, open_end: bool) -> list[Rows]:
    """The rows of each window and, last, of the end; ``REFUSED`` alone if the rows are. ``ahead``: all windows are
    queued before one is read; ``open_end``: no barrier closes the last window, so what it gives comes with the end."""
    task = PlanTask(plan.stream(), degree=degree, parallelism=parallelism)
    try:
        found, closed = [], len(plan.windows) - open_end
        for number, window in enumerate(plan.windows):
            for source, tables in window.items():
                for table in tables:
                    task.add_split(source, table)
            if number < closed:
                task.request_barrier()
                if not ahead:
                    found.append(_read(task))
        if not ahead:
            _end(task, plan)
        found += [_read(task) for _ in range(closed - len(found))]
        if ahead:
            _end(task, plan)
        found.append(_read(task))
        return found
    except DataError:
        return [REFUSED]
    finally:
        task.cancel()


def _end(task: PlanTask, plan: RandomPlan) -> None:
    for source in plan.sources:
        task.no_more_splits(source)


def _read(task: PlanTask) -> Rows:
    rows: Rows = []
    while (batch := task.read(WAIT)) is not None:
        rows += [tuple(row.values()) for row in batch.to_pylist()]
    return rows


def in_a_job(plan: RandomPlan, parallelism: int, threads: int) -> Rows:
    """All rows that a job in this process gives that is fed the same."""
    stream = plan.stream()
    stream.collect("rows")
    with ps.run_local(stream.flow, parallelism=parallelism, threads=threads) as job:
        for window in plan.windows:
            longest = max(map(len, window.values()))
            for number in range(longest):
                job.add_splits(
                    {
                        source: tables[number] if number < len(tables) else SCHEMA.empty_table()
                        for source, tables in window.items()
                    }
                )
            job.request_barrier()
        job.no_more_splits()
        try:
            job.wait(WAIT)
        except DataError:
            return REFUSED
        return [tuple(row.values()) for row in job.result("rows").to_pylist()]
