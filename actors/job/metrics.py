"""Hands a job's figures to Ray's metrics. The only module that knows ``ray.util.metrics``.

Ray collects what the processes of a node record and shows it at the node's Prometheus endpoint (every 10 s, unless
``metrics_report_interval_ms`` says otherwise), with ``ray_`` before the names. What is recorded, and why, is said in
``measures``.

Rules:

1. A thread of its own looks every few seconds. It asks the host's mailbox, so the figures are taken between two turns
   of work, and records them itself: recording takes about 5 µs a value and nobody waits for it.
2. A look that fails is logged once and tried again: metrics never end a job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from ray.util import metrics

from ..hosting.measures import DURATION_BOUNDS, Kind, Meter, Metric, Sample

_log = logging.getLogger(__name__)


class RayInstruments:
    """Ray's gauges, counters and histograms, made when they are first needed (``measures.Instruments``)."""

    def __init__(self) -> None:
        self._made: dict[str, metrics.Metric] = {}

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """See ``Instruments.set``."""
        self._instrument(metric).set(value, tags=dict(tags))

    def add(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """See ``Instruments.add``."""
        self._instrument(metric).inc(value, tags=dict(tags))

    def observe(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """See ``Instruments.observe``."""
        self._instrument(metric).observe(value, tags=dict(tags))

    def _instrument(self, metric: Metric) -> metrics.Metric:
        if metric.name not in self._made:
            described = {"description": f"{metric.meaning} ({metric.unit})", "tag_keys": metric.tags}
            match metric.kind:
                case Kind.GAUGE:
                    self._made[metric.name] = metrics.Gauge(metric.name, **described)
                case Kind.COUNTER:
                    self._made[metric.name] = metrics.Counter(metric.name, **described)
                case Kind.HISTOGRAM:
                    bounds = list(DURATION_BOUNDS)
                    self._made[metric.name] = metrics.Histogram(metric.name, boundaries=bounds, **described)
        return self._made[metric.name]


class Reporter:
    """Looks every ``period`` seconds, on a thread. ``look``: the samples of now; None: they cannot be had now."""

    def __init__(self, look: Callable[[], Iterable[Sample] | None], period: float) -> None:
        self._look, self._period = look, period
        self._meter = Meter(RayInstruments())
        self._over = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="penstock-metrics", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._period):
            self._report()
        self._report()

    def _report(self) -> None:
        try:
            samples = self._look()
            if samples is not None:
                self._meter.report(samples)
        except Exception:
            if not self._failed:
                self._failed = True
                _log.warning("the job's metrics could not be reported", exc_info=True)

    def close(self) -> None:
        """Report the last figures and end; returns without waiting for it."""
        self._over.set()
