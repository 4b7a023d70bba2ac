"""Values of metrics at one moment, on their way to prometheus-client. Every name is there, also where it has no value."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from daemon.api.metric_names import Kind, Name


class Histogram:
    """Counts of observations in buckets with upper bounds `bounds`, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    @property
    def total(self) -> float:
        """Sum of everything observed."""
        return self._sum

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds as text, and how much lies below each: what prometheus-client wants."""
        bounds = (*(str(float(bound)) for bound in self._bounds), "+Inf")
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))


class Sheet:
    """One moment. Values put under the same name and labels add up, so that people who share a label do too."""

    def __init__(self) -> None:
        self._values: dict[Name, dict[tuple[str, ...], float]] = {name: {} for name in Name}
        self._waits: dict[Name, dict[tuple[str, ...], tuple[int, float]]] = {}
        self._histograms: dict[Name, Histogram] = {}

    def put(self, name: Name, value: float, *labels: str) -> None:
        """A counter's or gauge's value."""
        values = self._values[name]
        values[labels] = values.get(labels, 0) + value

    def put_summary(self, name: Name, count: int, total: float, *labels: str) -> None:
        """How many there were, and their sum."""
        waits = self._waits.setdefault(name, {})
        before = waits.get(labels, (0, 0.0))
        waits[labels] = (before[0] + count, before[1] + total)

    def put_histogram(self, name: Name, histogram: Histogram) -> None:
        """All observations so far."""
        self._histograms[name] = histogram

    def families(self) -> Iterator[Metric]:
        """For prometheus-client, in the order of the list."""
        return map(self._family, Name)

    def _family(self, name: Name) -> Metric:
        known = name.value
        match known.kind:
            case Kind.COUNTER:
                counters = CounterMetricFamily(name.full, known.help, labels=known.labels)
                for labels, value in self._values[name].items():
                    counters.add_metric(labels, value)
                return counters
            case Kind.GAUGE:
                gauges = GaugeMetricFamily(name.full, known.help, labels=known.labels)
                for labels, value in self._values[name].items():
                    gauges.add_metric(labels, value)
                return gauges
            case Kind.SUMMARY:
                summaries = SummaryMetricFamily(name.full, known.help, labels=known.labels)
                for labels, (count, total) in self._waits.get(name, {}).items():
                    summaries.add_metric(labels, count, total)
                return summaries
            case Kind.HISTOGRAM:
                family = HistogramMetricFamily(name.full, known.help, labels=())
                histogram = self._histograms.get(name)
                if histogram is not None:
                    family.add_metric((), histogram.buckets(), histogram.total)
                return family
