"""What the house compares: our sides and the peers', over which data, and what is aimed at.

Each comparison names two sides; both run in turn, on the same files. ``figures`` are the rows that come out of it: what
is read from our answers, what from theirs, and the aim. ``check``: sides that run once more to show that both compute
the same, where what is measured throws its rows away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from house_data import BATCH, DATA, bid_files, operator_files
from house_sides import OURS

from harness import sized


@dataclass(frozen=True)
class Spec:
    """A side that can be started: its environment, its script in ``sides/``, its settings."""

    environment: str
    script: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A row of the result: ``ours`` and ``theirs`` name seconds in the sides' answers."""

    suffix: str = ""
    ours: str = "seconds"
    theirs: str = "seconds"
    aim: float | None = None


WHOLE = Figure()


@dataclass(frozen=True)
class Comparison:
    """One comparison; see the module. ``rows``: read by a run, for the rate. ``aim``: of figures without their own."""

    suite: str
    work: str
    peer: str
    ours: Spec
    theirs: Spec
    rows: int
    aim: float
    figures: tuple[Figure, ...] = (WHOLE,)
    check: tuple[Spec, Spec] | None = None
    digests: bool = True
    """Whether the measured runs themselves tell digests of their outputs."""


OPERATOR_WORKS = ("filter+project", "hash 1 K", "hash 1 M", "streaming", "merge join", "order by", "top-n")
OPERATOR_NAMES = {
    "hash 1 K": "hash aggregation, 1 K groups",
    "hash 1 M": "hash aggregation, 1 M groups",
    "streaming": "streaming aggregation",
}
LEAST_AGAINST_VELOX = 0.5
STARTED = (Figure(", running", "running", "running"), Figure(", start of the job included"))
AGAINST_WARM = (Figure(", running", "running", "seconds"), Figure(", start of the job included"))


def velox(full: bool) -> Iterator[Comparison]:
    """Operators over the same batches in memory, one thread each."""
    rows = sized(2_000_000, 4_000)
    folder = str(operator_files(rows))
    for work in OPERATOR_WORKS:
        asked = {"work": work, "folder": folder}
        yield Comparison(
            "velox",
            f"{OPERATOR_NAMES.get(work, work)}, batches of {BATCH // 1024} Ki in memory, one thread",
            "Velox",
            Spec(OURS, "operators_ours.py", asked),
            Spec("velox", "operators_velox.py", asked),
            2 * rows if work == "merge join" else rows,
            LEAST_AGAINST_VELOX,
        )


PARQUET_KINDS = {"project": "filter → project", "group": "filter → project → group by (300 K groups)"}
AIMS_OF_RAY = {"project": 4.0, "group": 10.0}
AIM_OF_SPARK = 3.0


def _on_ray(full: bool, peer: str, suite: str, environment: str, script: str, aims: dict[str, float]) -> Any:
    rows = sized(10_000_000 if full else 4_000_000, 4_000)
    folder = str(bid_files(rows, "parquet"))
    for kind, what in PARQUET_KINDS.items():
        ours, theirs = ({"kind": kind, "folder": folder, "out": str(DATA / f"out-{side}")} for side in ("a", "b"))
        yield Comparison(
            suite,
            f"Parquet → {what} → Parquet on Ray, 2 CPUs",
            peer,
            Spec(OURS, "ray_ours.py", ours),
            Spec(environment, script, theirs),
            rows,
            aims[kind],
            AGAINST_WARM,
        )


def ray_data(full: bool) -> Iterator[Comparison]:
    """Jobs on Ray against Ray Data."""
    yield from _on_ray(full, "Ray Data", "ray", "ray", "ray_data.py", AIMS_OF_RAY)


def spark_batch(full: bool) -> Iterator[Comparison]:
    """Jobs on Ray against a warm session of Spark."""
    aims = dict.fromkeys(PARQUET_KINDS, AIM_OF_SPARK)
    yield from _on_ray(full, "Spark batch, warm", "spark", "spark", "spark_batch.py", aims)


CSV_KINDS = {"group": "keyed count, min, max, sum", "project": "project"}
CSV_SHORT = {"group": CSV_KINDS["group"]}
"""The short form, where a comparison is not the table's main one."""
AIM_OF_STREAMS = 5.0
AIM_OF_SCAN = 0.8


def _csv(full: bool) -> tuple[int, str]:
    rows = sized(20_000_000 if full else 4_600_000, 4_000)
    return rows, str(bid_files(rows, "csv"))


def csv_asked(folder: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "folder": folder, "state": str(DATA / "state"), "runner": "ray", "every": 1.0, **more}


def _over_csv(
    full: bool, suite: str, peer: str, environment: str, script: str, kinds: Mapping[str, str] = CSV_KINDS
) -> Iterator[Comparison]:
    rows, folder = _csv(full)
    for kind, what in kinds.items():
        # Flink hands a row at a time to Python
        small = str(bid_files(sized(20_000 if kind == "project" else 200_000, 4_000), "csv"))
        check = csv_asked(small, kind, runner="check")
        theirs = csv_asked(folder, kind, state=str(DATA / "state-theirs"))
        yield Comparison(
            suite,
            f"CSV → {what} → blackhole, exactly once, a checkpoint every second, 2 subtasks",
            peer,
            Spec(OURS, "csv_ours.py", csv_asked(folder, kind)),
            Spec(environment, script, theirs),
            rows,
            AIM_OF_STREAMS,
            STARTED,
            (Spec(OURS, "csv_ours.py", check), Spec(environment, script, check)),
            digests=False,
        )


def flink(full: bool) -> Iterator[Comparison]:
    """A streaming job over CSV against PyFlink's SQL."""
    yield from _over_csv(full, "flink", "PyFlink SQL", "flink", "csv_flink.py")


def spark_stream(full: bool) -> Iterator[Comparison]:
    """The same against Spark's structured streaming."""
    yield from _over_csv(
        full, "spark-stream", "Spark structured streaming", "spark", "csv_spark.py", CSV_KINDS if full else CSV_SHORT
    )


def scan(full: bool) -> Iterator[Comparison]:
    """The same against two threads that only parse."""
    rows, folder = _csv(full)
    for kind, what in (CSV_KINDS if full else CSV_SHORT).items():
        yield Comparison(
            "scan",
            f"CSV → {what} → blackhole, exactly once, a checkpoint every second, 2 subtasks",
            "bare pyarrow scan, 2 threads",
            Spec(OURS, "csv_ours.py", csv_asked(folder, kind)),
            Spec(OURS, "csv_arrow.py", {"folder": folder}),
            rows,
            AIM_OF_SCAN,
            AGAINST_WARM,
            digests=False,
        )


AIM_OF_CHECKPOINTS = 0.97


def checkpoints(full: bool) -> Iterator[Comparison]:
    """What checkpoints cost."""
    rows, folder = _csv(full)
    asked = csv_asked(folder, "group")
    yield Comparison(
        "checkpoints",
        "CSV → keyed count, min, max, sum: a checkpoint every second",
        "no checkpoint before the end",
        Spec(OURS, "csv_ours.py", asked),
        Spec(OURS, "csv_ours.py", {**asked, "every": None, "state": str(DATA / "state-theirs")}),
        rows,
        AIM_OF_CHECKPOINTS,
        (Figure(", running", "running", "running"),),
        digests=False,
    )


REFERENCES = ("duckdb", "datafusion", "bytewax")


def references(full: bool) -> Iterator[Comparison]:
    """Engines of a single process, beside our embedded runner."""
    rows = sized(4_000_000, 4_000)
    folder = str(bid_files(rows, "parquet"))
    for kind, what in PARQUET_KINDS.items():
        for engine in REFERENCES:
            if engine == "bytewax" and kind == "project":
                continue
            few = str(bid_files(sized(200_000, 4_000), "parquet")) if engine == "bytewax" else folder
            count = sized(200_000, 4_000) if engine == "bytewax" else rows
            asked = {"kind": kind, "folder": few, "engine": engine}
            yield Comparison(
                "references",
                f"Parquet → {what} → Parquet in one process, {count / 1e6:g} M rows",
                f"{engine}, for reference",
                Spec(OURS, "reference.py", {**asked, "engine": "penstock", "out": str(DATA / "out-a")}),
                Spec("bytewax" if engine == "bytewax" else "engines", "reference.py",
                     {**asked, "out": str(DATA / "out-b")}),
                count,
                0.0,
            )  # fmt: skip


SUITES: dict[str, Callable[[bool], Iterator[Comparison]]] = {
    "velox": velox,
    "ray": ray_data,
    "spark": spark_batch,
    "flink": flink,
    "scan": scan,
    "spark-stream": spark_stream,
    "checkpoints": checkpoints,
    "references": references,
}
ONLY_FULL = frozenset({"checkpoints", "references"})
