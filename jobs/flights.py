"""The flights job: features for a model that predicts delays, and daily statistics, from New York's flights of 2013.

One row for each flight and phase (1 departure, 2 arrival) with the weather at its scheduled hour and the aircraft that
flew it, and one row for each airport and local day. Cancelled flights and phases without a known delay are left out.

The data are prepared outside, by Spark (``flights_etl``) or pyarrow (``flights_local``): flights and weather come in
the same number of splits, equal (origin, day) in splits of equal position, sorted by (origin, time_hour). A group of
the daily statistics therefore lies within one split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..engine.flow import index
from ..engine.flow.flow import Flow, Stream
from .flights_data import SPLITS

NAME = "flights"
LANES = 4
"""Order lanes. A round reads one split a lane, and checkpoints stand between rounds: 32 rounds for each copy of the
data are enough for one checkpoint a second at the demo's pace."""

LATE_MINUTES = 15
FEATURES_KEY = ("flight_id", "phase")
DAILY_KEY = ("origin", "day")


@dataclass(frozen=True, slots=True)
class FlightsConfig:
    """``scale``: copies of the data. ``rate``: flights a second, 0 unlimited. ``splits``: 0 for the usual number."""

    scale: int = 1
    rate: float = 0.0
    splits: int = 0
    lanes: int = LANES

    @property
    def split_count(self) -> int:
        return self.splits or SPLITS * self.scale


def build(
    flights: Any, weather: Any, planes: pa.Table, output: str | Path, config: FlightsConfig | None = None
) -> Flow:
    """The flow. ``flights`` and ``weather``: Spark DataFrames, sources, or one table for each split."""
    config = config or FlightsConfig()
    flow = Flow(NAME, lanes=config.lanes)
    features = _features(_read(flow, flights, "flights", config.rate), _read(flow, weather, "weather", 0.0), planes)
    features.write_parquet(_below(output, "features"), name="features")
    _daily(features).write_parquet(_below(output, "daily"), name="daily")
    return flow


def _features(flights: Stream, weather: Stream, planes: pa.Table) -> Stream:
    delay, wind, visibility = pc.field("delays"), pc.field("wind_speed"), pc.field("visib")
    return (
        flights.merge_join(weather, on=["origin", "time_hour"], how="left", name="join-weather")
        .lookup_join(index.memory(planes, key="tailnum"), on="tailnum", how="left", name="join-planes")
        .filter(pc.field("departure").is_valid(), name="departed")
        .with_columns(
            plane_age=pc.year(pc.field("day")) - pc.field("built"),
            windy=wind >= 20.0,
            low_visibility=visibility < 3.0,
            name="derive",
        )
        .unnest("delays", ordinality="phase", name="phases")
        .filter(delay.is_valid(), name="known-delay")
        .project(
            *("flight_id", "phase", "origin", "day", "time_hour", "scheduled_departure", "departure", "hour"),
            *("carrier", "dest", "tailnum", "distance", "manufacturer", "engines", "seats", "plane_age"),
            *("temp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib", "windy", "low_visibility"),
            delay=delay,
            late=(delay > LATE_MINUTES).cast(pa.int64()),
            name="select",
        )
    )


def _daily(features: Stream) -> Stream:
    return features.stream_aggregate(
        by=list(DAILY_KEY),
        phases=("delay", "count"),
        late=("late", "sum"),
        total_delay=("delay", "sum"),
        worst=("delay", "max"),
        best=("delay", "min"),
        longest=("distance", "max"),
        with_weather=("temp", "count"),
        name="by-day",
    ).gather(name="one-file")


def _read(flow: Flow, data: Any, name: str, rate: float) -> Stream:
    if isinstance(data, Sequence):
        return flow.from_tables(data, name=name, rate=rate)
    if hasattr(data, "splits"):
        return flow.from_source(data, name=name, rate=rate)
    return flow.from_spark(data, name=name, rate=rate)


def _below(output: str | Path, name: str) -> str:
    return f"{str(output).rstrip('/')}/{name}"
