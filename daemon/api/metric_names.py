"""Every metric of `/metrics` in one closed list: name, kind, labels, meaning. docs/METRICS.md is made from it.

A name that vLLM or SGLang has too means here what it means there; `peer` is that name where ours differs from it by more than
the prefix, or where only one of them has it. Names stand without `exl3d_` in front, and without the `_total` that Prometheus
puts behind counters.
"""

from dataclasses import dataclass
from enum import Enum, unique

PREFIX = "exl3d_"


class Kind(Enum):
    """How Prometheus treats a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Described:
    """What is known of a metric before it has a value."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    peer: str = ""


def _counter(name: str, help_text: str, *labels: str, peer: str = "") -> Described:
    return Described(Kind.COUNTER, name, help_text, labels, peer)


def _gauge(name: str, help_text: str, *labels: str, peer: str = "") -> Described:
    return Described(Kind.GAUGE, name, help_text, labels, peer)


def _histogram(name: str, help_text: str, peer: str = "") -> Described:
    return Described(Kind.HISTOGRAM, name, help_text, (), peer)


@unique
class Name(Enum):
    """The list, in the order of `/metrics`."""

    # --- the daemon
    INFO = _gauge("info", "What is served; always 1", "version", "model")
    READY = _gauge("ready", "1 while requests are accepted and an engine makes progress")
    UPTIME = _gauge("uptime_seconds", "Seconds since the daemon started")

    # --- requests
    RUNNING = _gauge("num_requests_running", "Requests inside engines", peer="vllm:num_requests_running")
    WAITING = _gauge("num_requests_waiting", "Requests that wait for their turn", peer="vllm:num_requests_waiting")
    WAITING_BY_REASON = _gauge(
        "num_requests_waiting_by_reason",
        "The same by what they wait for",
        "reason",
        peer="vllm:num_requests_waiting_by_reason",
    )
    OPEN_STREAMS = _gauge("open_streams", "Answers that are being sent or composed, n choices of a request counted n times")
    REQUESTS = _counter(
        "requests",
        "Requests answered; the outcome is stop, length, tool_calls, cancelled, or the code of an error",
        "endpoint",
        "person",
        "outcome",
        peer="vllm:request_success",
    )
    REJECTIONS = _counter("rejections", "Requests refused before they were served, by why", "reason", "person")
    CLAMPED = _counter("max_tokens_clamped", "Requests whose max_tokens was lowered to what fits")

    # --- times
    FIRST_TOKEN = _histogram(
        "time_to_first_token_seconds", "From the request to its first token", "vllm:time_to_first_token_seconds"
    )
    BETWEEN = _histogram("inter_token_latency_seconds", "Between two tokens of a stream", "vllm:inter_token_latency_seconds")
    QUEUE = _histogram("request_queue_time_seconds", "From acceptance until prefill begins", "vllm:request_queue_time_seconds")
    PREFILL = _histogram("request_prefill_time_seconds", "From there to the first token", "vllm:request_prefill_time_seconds")
    DECODE = _histogram("request_decode_time_seconds", "From the first to the last token", "vllm:request_decode_time_seconds")
    WHOLE = _histogram(
        "e2e_request_latency_seconds", "From the request to the end of its answer", "vllm:e2e_request_latency_seconds"
    )

    # --- tokens
    PROMPT = _counter("prompt_tokens", "Tokens of prompts that were begun", peer="vllm:prompt_tokens")
    PROMPT_CACHED = _counter("prompt_tokens_cached", "Those found in the cache", peer="vllm:prompt_tokens_cached")
    GENERATED = _counter("generation_tokens", "Generated tokens", peer="vllm:generation_tokens")
    PROMPT_LENGTHS = _histogram("request_prompt_tokens", "Prompt tokens of a request", "vllm:request_prompt_tokens")
    ANSWER_LENGTHS = _histogram("request_generation_tokens", "Generated tokens of a stream", "vllm:request_generation_tokens")
    ACCEPTED_DRAFTS = _counter(
        "spec_decode_num_accepted_tokens",
        "Draft tokens that the model accepted, of answers whose end an engine told",
        peer="vllm:spec_decode_num_accepted_tokens",
    )
    REJECTED_DRAFTS = _counter(
        "spec_decode_num_rejected_tokens",
        "Draft tokens that the model rejected, of the same answers; the sum of both was drafted",
        peer="vllm:spec_decode_num_draft_tokens minus accepted",
    )
    THOUGHTS_CLOSED = _counter("thoughts_closed", "Thoughts closed in place of the model", "cause")
    REPETITIONS = _counter("repetitions", "Answers ended for running in circles")

    # --- the prefix cache
    PREFIX_QUERIES = _counter(
        "prefix_cache_queries", "Prompt tokens looked up in the prefix cache", peer="vllm:prefix_cache_queries"
    )
    PREFIX_HITS = _counter("prefix_cache_hits", "Prompt tokens found there", peer="vllm:prefix_cache_hits")
    SILENT_MISSES = _counter(
        "prefix_silent_misses", "Requests that went on with an earlier one and found little or nothing of it", "cause"
    )

    # --- room
    KV_PAGES = _gauge("kv_cache_pages", "Pages of the KV cache", "engine")
    KV_PAGES_USED = _gauge(
        "kv_cache_pages_used", "Pages that running requests hold; the rest is free or keeps prefixes", "engine"
    )
    KV_PAGE_TOKENS = _gauge("kv_cache_page_tokens", "Tokens a page", "engine")
    KV_USAGE = _gauge(
        "kv_cache_usage_perc", "Part of the pages that running requests hold, 0 to 1", "engine", peer="vllm:kv_cache_usage_perc"
    )
    RECURRENT_SLOTS = _gauge("recurrent_slots", "Slots for recurrent states; none on models without them", "engine")
    RECURRENT_SLOTS_USED = _gauge("recurrent_slots_used", "Those that running requests hold", "engine")
    RECURRENT_USAGE = _gauge("recurrent_usage", "Part of them that is held, 0 to 1", "engine", peer="sglang:mamba_usage")
    BATCH_SLOTS = _gauge("batch_slots", "Requests that may run together", "engine")
    BATCH_SLOTS_USED = _gauge("batch_slots_used", "Requests that run together", "engine")
    PENDING = _gauge("engine_requests_pending", "Requests that wait inside the engine for room", "engine")

    # --- sharing
    SUSPENSIONS = _counter("suspensions", "Times a request was set aside for others", peer="vllm:num_preemptions")
    RESUMES = _counter("resumes", "Times such a request went on")
    PERSON_RUNNING = _gauge("person_requests_running", "Requests of a person inside engines", "person")
    PERSON_WAITING = _gauge("person_requests_waiting", "Requests of a person that wait", "person")
    PERSON_PAGES = _gauge("person_kv_cache_pages", "Pages that a person's running requests hold", "person")
    PERSON_WARM = _gauge("person_warm_tokens", "Tokens of a person's earlier conversations that stand in the cache", "person")
    PERSON_GUARANTEED = _gauge("person_guaranteed_tokens", "Tokens of cache that are always a person's", "person")
    PERSON_WEIGHT = _gauge("person_weight", "A person's share while others want the engine too", "person")
    PERSON_PROMPT = _counter("person_prompt_tokens", "Tokens of a person's prompts that were begun", "person")
    PERSON_CACHED = _counter("person_prompt_tokens_cached", "Those found in the cache", "person")
    PERSON_GENERATED = _counter("person_generation_tokens", "Tokens generated for a person", "person")
    PERSON_WAITS = Described(
        Kind.SUMMARY, "person_queue_time_seconds", "What a person's requests waited for their first turn", ("person",)
    )

    # --- engines and what befell them
    ENGINE_STATE = _gauge("engine_state", "1 for the state that an engine is in, 0 for the others", "engine", "state")
    ENGINE_UPTIME = _gauge("engine_uptime_seconds", "Seconds in that state while starting or ready", "engine")
    ENGINE_LOADING = _gauge("engine_loading", "Part of the load that is done, 0 to 1; only while loading", "engine")
    ENGINE_MEMORY = _gauge("engine_resident_memory_bytes", "Resident memory of an engine's process", "engine")
    RESTARTS = _counter("engine_restarts", "Restarts since the daemon started", "engine")
    RECOVERING = _gauge(
        "engine_recovering_requests",
        "Requests that the last death in an engine's place interrupted and that still wait",
        "engine",
    )
    RECOVERY_SECONDS = _gauge("engine_recovery_seconds", "Longest wait after that death, of those that went on", "engine")
    INTERRUPTIONS = _counter("interruptions", "Times a request lost its engine to a death")
    PAUSES = _counter("pauses", "Times a stream had to wait for an engine")
    REPREFILLED = _counter("reprefilled_tokens", "Tokens prefilled a second time, after a death or a suspension")
    CONVICTIONS = _counter("convictions", "Requests refused for having killed an engine while alone")
    INCIDENTS = _counter("incidents", "Incidents by what was seen", "label")
    SENSE = _gauge("sense_working", "1 while a source of the watchdog's evidence works", "sense")

    # --- GPUs
    GPU_MEMORY_USED = _gauge("gpu_memory_used_bytes", "Memory of a GPU that is used, by anybody", "gpu", "name")
    GPU_MEMORY = _gauge("gpu_memory_total_bytes", "Memory of a GPU", "gpu", "name")
    GPU_TEMPERATURE = _gauge("gpu_temperature_celsius", "Temperature of a GPU", "gpu", "name")
    GPU_UTILISATION = _gauge("gpu_utilisation", "Part of the last moments in which a GPU computed, 0 to 1", "gpu", "name")
    GPU_POWER = _gauge("gpu_power_watts", "Power that a GPU draws", "gpu", "name")

    # --- the front process
    TASKS = _gauge("asyncio_tasks", "Tasks of the front's event loop")

    @property
    def full(self) -> str:
        """As prometheus-client wants it: with the prefix, without `_total`."""
        return PREFIX + self.value.name

    @property
    def shown(self) -> str:
        """As `/metrics` writes it, but for the endings of histograms and summaries."""
        return f"{self.full}_total" if self.value.kind is Kind.COUNTER else self.full

    @property
    def samples(self) -> tuple[str, ...]:
        """Every name under which `/metrics` has values of it."""
        match self.value.kind:
            case Kind.COUNTER | Kind.GAUGE:
                return (self.shown,)
            case Kind.HISTOGRAM:
                return (f"{self.full}_bucket", f"{self.full}_sum", f"{self.full}_count")
            case Kind.SUMMARY:
                return (f"{self.full}_sum", f"{self.full}_count")
