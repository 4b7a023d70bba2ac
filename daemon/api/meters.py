"""Counts and timings of requests, and `GET /metrics` made from them.

Pieces arrive thousands of times a second, so the counting itself is plain additions; prometheus-client is given the sums only
when somebody asks. Names and meanings are those of docs/API.md.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from daemon.core.events import ThoughtClosing
from daemon.core.gpu import GpuReading
from daemon.core.ports import Status, Watching
from daemon.core.prefix_watch import MissCause, PrefixFigures

_LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_BETWEEN = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_LENGTHS = (1, 16, 64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144)

_MIB = 2**20


class Histogram:
    """Counts of observations in buckets with upper bounds `bounds`, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, name: str, help_text: str) -> HistogramMetricFamily:
        """As prometheus-client wants it."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*(str(float(bound)) for bound in self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=self._sum)


@dataclass(slots=True)
class Meters:
    """Everything that is counted. One a daemon."""

    requests: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    """Answers by endpoint, owner and outcome: stop, length, tool_calls, cancelled, or the code of an error."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    open_streams: int = 0
    paused: int = 0
    clamped: int = 0
    closed_thoughts: Counter[ThoughtClosing] = field(default_factory=Counter[ThoughtClosing])
    """Thoughts that the model did not close itself."""
    repetitions: int = 0
    """Answers that were ended for running in circles."""
    queue: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    first_token: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    between: Histogram = field(default_factory=lambda: Histogram(_BETWEEN))
    whole: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    prompt_lengths: Histogram = field(default_factory=lambda: Histogram(_LENGTHS))
    answer_lengths: Histogram = field(default_factory=lambda: Histogram(_LENGTHS))


class MetersCollector(Collector):
    """Gives prometheus-client the meters and what `watching` knows, each time it asks."""

    def __init__(self, meters: Meters, watching: Watching) -> None:
        self._meters = meters
        self._watching = watching

    def collect(self) -> Iterator[Metric]:
        """All families of `/metrics`."""
        yield from self._counters()
        meters = self._meters
        yield meters.queue.family("exl3d_request_queue_seconds", "Time from acceptance until prefill begins")
        yield meters.first_token.family("exl3d_time_to_first_token_seconds", "Time from the request to its first token")
        yield meters.between.family("exl3d_inter_token_latency_seconds", "Time between two tokens of a stream")
        yield meters.whole.family("exl3d_e2e_request_latency_seconds", "Time from the request to the end of its answer")
        yield meters.prompt_lengths.family("exl3d_request_prompt_tokens", "Prompt tokens of a request")
        yield meters.answer_lengths.family("exl3d_request_generation_tokens", "Generated tokens of a stream")
        yield from _state(self._watching.status())

    def _counters(self) -> Iterator[Metric]:
        meters = self._meters
        answers = CounterMetricFamily("exl3d_requests", "Requests answered", labels=("endpoint", "owner", "outcome"))
        for labels, count in meters.requests.items():
            answers.add_metric(labels, count)
        yield answers
        yield CounterMetricFamily("exl3d_prompt_tokens", "Prompt tokens", value=meters.prompt_tokens)
        yield CounterMetricFamily("exl3d_cached_prompt_tokens", "Prompt tokens found in the cache", value=meters.cached_tokens)
        yield CounterMetricFamily("exl3d_generation_tokens", "Generated tokens", value=meters.generated_tokens)
        yield CounterMetricFamily("exl3d_pauses", "Times a stream had to wait for an engine", value=meters.paused)
        yield CounterMetricFamily("exl3d_max_tokens_clamped", "Requests whose max_tokens was lowered", value=meters.clamped)
        closed = CounterMetricFamily("exl3d_thoughts_closed", "Thoughts closed in place of the model", labels=("cause",))
        for cause in ThoughtClosing:
            closed.add_metric((cause.value,), meters.closed_thoughts[cause])
        yield closed
        yield CounterMetricFamily("exl3d_repetitions", "Answers ended for running in circles", value=meters.repetitions)
        yield GaugeMetricFamily("exl3d_open_streams", "Streams being answered now", value=meters.open_streams)


def registry(meters: Meters, watching: Watching) -> CollectorRegistry:
    """The registry behind `/metrics`."""
    made = CollectorRegistry(auto_describe=False)
    made.register(MetersCollector(meters, watching))
    return made


def _state(status: Status) -> Iterator[Metric]:
    yield GaugeMetricFamily("exl3d_ready", "1 while requests are accepted and the engine makes progress", value=status.ready)
    yield GaugeMetricFamily("exl3d_uptime_seconds", "Seconds since the daemon started", value=status.uptime)
    yield GaugeMetricFamily("exl3d_requests_running", "Requests that generate now", value=status.running)
    yield GaugeMetricFamily("exl3d_requests_waiting", "Requests that wait for their turn", value=status.queued)
    info = GaugeMetricFamily("exl3d_info", "What is served", labels=("version", "model"))
    info.add_metric((status.version, status.model), 1)
    yield info
    yield from _prefix(status.prefix)
    label = ("engine",)
    state = GaugeMetricFamily("exl3d_engine_state", "1 for the state an engine is in", labels=("engine", "state"))
    restarts = CounterMetricFamily("exl3d_engine_restarts", "Restarts since the daemon started", labels=label)
    pages = GaugeMetricFamily("exl3d_pool_pages", "Pages of the KV cache", labels=label)
    used = GaugeMetricFamily("exl3d_pool_pages_referenced", "Pages that running requests hold", labels=label)
    size = GaugeMetricFamily("exl3d_pool_page_tokens", "Tokens a page", labels=label)
    slots = GaugeMetricFamily("exl3d_pool_slots", "Requests that may run together", labels=label)
    pending = GaugeMetricFamily("exl3d_pool_pending", "Requests that wait inside the engine for room", labels=label)
    for number, engine in enumerate(status.engines):
        name = (str(number),)
        state.add_metric((*name, engine.state), 1)
        restarts.add_metric(name, engine.restarts)
        size.add_metric(name, engine.page)
        if engine.pool is not None:
            pages.add_metric(name, engine.pool.pages)
            used.add_metric(name, engine.pool.referenced)
            slots.add_metric(name, engine.pool.slots)
            pending.add_metric(name, engine.pool.pending)
    yield from (state, restarts, pages, used, size, slots, pending)
    yield from _trouble(status)
    yield from _gpus(status.gpus)


def _trouble(status: Status) -> Iterator[Metric]:
    incidents = CounterMetricFamily("exl3d_incidents", "Incidents by what was seen", labels=("label",))
    for label, count in status.incidents.items():
        incidents.add_metric((label,), count)
    yield incidents
    yield CounterMetricFamily("exl3d_interruptions", "Times a request lost its engine to a death", value=status.interruptions)
    yield CounterMetricFamily("exl3d_suspensions", "Times a request was set aside for others", value=status.suspensions)
    yield CounterMetricFamily(
        "exl3d_reprefilled_tokens", "Tokens prefilled a second time after either", value=status.reprefilled_tokens
    )
    yield CounterMetricFamily(
        "exl3d_convictions", "Requests refused for having killed an engine while alone", value=status.convictions
    )


def _gpus(gpus: Sequence[GpuReading]) -> Iterator[Metric]:
    label = ("gpu", "name")
    used = GaugeMetricFamily("exl3d_gpu_memory_used_bytes", "Memory of the GPU that is used, by anybody", labels=label)
    total = GaugeMetricFamily("exl3d_gpu_memory_bytes", "Memory of the GPU", labels=label)
    heat = GaugeMetricFamily("exl3d_gpu_temperature_celsius", "Temperature of the GPU", labels=label)
    busy = GaugeMetricFamily("exl3d_gpu_utilisation", "Share of the last moments in which the GPU computed", labels=label)
    power = GaugeMetricFamily("exl3d_gpu_power_watts", "Power the GPU draws", labels=label)
    for number, gpu in enumerate(gpus):
        for family, value, scale in (
            (used, gpu.used_mib, _MIB),
            (total, gpu.total_mib, _MIB),
            (heat, gpu.temperature, 1),
            (busy, gpu.utilisation, 1),
            (power, gpu.power_watts, 1),
        ):
            if value is not None:
                family.add_metric((str(number), gpu.name), value * scale)
    yield from (used, total, heat, busy, power)


def _prefix(figures: PrefixFigures) -> Iterator[Metric]:
    yield CounterMetricFamily("exl3d_prefix_cache_queries", "Prompt tokens looked up in the prefix cache", value=figures.queries)
    yield CounterMetricFamily("exl3d_prefix_cache_hits", "Prompt tokens found in the prefix cache", value=figures.hits)
    misses = CounterMetricFamily(
        "exl3d_prefix_silent_misses", "Requests that went on with an earlier one and found little or nothing", labels=("cause",)
    )
    for cause in MissCause:
        misses.add_metric((cause.value,), figures.count(cause))
    yield misses
