"""A metrics system in memory: what ``RayInstruments`` is to Ray, for tests of what is told."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.actors.hosting.measures import Kind, Metric

Key = tuple[str, tuple[tuple[str, str], ...]]


class InstrumentsInMemory:
    """Keeps what a scrape would show: gauges, sums of counters, values of histograms. As strict as Ray is."""

    def __init__(self) -> None:
        self.gauges: dict[Key, float] = {}
        self.counters: dict[Key, float] = {}
        self.histograms: dict[Key, list[float]] = {}

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        self.gauges[self._key(metric, tags, Kind.GAUGE)] = value

    def add(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        assert value > 0, "Ray refuses a counter that does not grow"
        key = self._key(metric, tags, Kind.COUNTER)
        self.counters[key] = self.counters.get(key, 0.0) + value

    def observe(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        self.histograms.setdefault(self._key(metric, tags, Kind.HISTOGRAM), []).append(value)

    def counted(self, metric: Metric, **tags: str) -> float:
        """The sum of a counter over all samples with these tags."""
        wanted = set(tags.items())
        return sum(
            value for (name, found), value in self.counters.items() if name == metric.name and wanted <= {*found}
        )

    def shown(self, metric: Metric, **tags: str) -> list[float]:
        """The gauges with these tags."""
        wanted = set(tags.items())
        return [value for (name, found), value in self.gauges.items() if name == metric.name and wanted <= {*found}]

    def _key(self, metric: Metric, tags: Mapping[str, str], kind: Kind) -> Key:
        assert metric.kind is kind
        assert tuple(tags) == metric.tags, "Ray refuses a sample that lacks a tag"
        assert all(isinstance(value, str) for value in tags.values())
        return metric.name, tuple(tags.items())
