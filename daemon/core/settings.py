"""The configuration schema: type, bounds, default and one line of documentation per field, each written once.

`config.yaml` is generated from this file (`exl3ctl config example`) and compared in the tests. Reading files and the
environment is `host/settings_file.py`'s work; everything here is plain values. Unknown keys are refused.
"""

from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every section."""


class Overflow(Enum):
    """What happens to a `max_tokens` larger than the room left in the context."""

    CLAMP = "clamp"
    REFUSE = "refuse"


class BackendKind(Enum):
    """What computes."""

    AUTO = "auto"
    """exllamav3 on the GPU where there is one, else exllamav3's operations on the CPU."""
    CUDA = "cuda"
    CPU = "cpu"
    NULL = "null"
    """The real scheduler over a model that returns scripted logits at no cost: for benches and fault tests."""


class Speculation(Enum):
    """What drafts tokens that the model then checks several at a time."""

    NONE = "none"
    NGRAM = "ngram"
    """What followed the same words earlier in the same conversation."""
    DRAFT = "draft"
    """A small model of the same family."""
    MTP = "mtp"
    """The model's own head for it, where its upload has one."""


class EngineLayout(Enum):
    """How several GPUs are used together."""

    AUTO = "auto"
    """As `SPLIT`, unless more than one replica is asked for."""
    SPLIT = "split"
    """One engine: layers one GPU after the other."""
    TENSOR = "tensor"
    """One engine: a part of every layer on each GPU, all computing at once."""
    REPLICAS = "replicas"
    """An engine a GPU, each with the whole model; requests are shared out."""


class TensorBackend(Enum):
    """How the GPUs of the layout tensor exchange what they have computed."""

    NATIVE = "native"
    """exllamav3's own, through host memory: works with every pair of cards."""
    NCCL = "nccl"
    """NVIDIA's, for cards that reach each other's memory."""


class OnEmptyAnswer(Enum):
    """What happens when a model stops inside its thought, so that nobody would see an answer."""

    CONTINUE = "continue"
    """The engine closes the thought in place of the stop, once, and the model answers."""
    CONVERT = "convert"
    """The thought is given as the answer."""
    RETURN = "return"
    """The answer is empty."""


class LogFormat(Enum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class LoraSettings(_Section, frozen=True):
    """An adapter that is part of the model for everybody."""

    path: Annotated[str, Meta(description="Directory with PEFT's adapter_config.json and adapter_model.safetensors")]
    scale: Annotated[float, Meta(description="Strength, on top of the adapter's own alpha / rank")] = 1.0


class EngineSettings(_Section, frozen=True):
    """The engine process: memory and pace."""

    backend: Annotated[BackendKind, Meta(description="auto, cuda, cpu or null (benches and fault tests)")] = BackendKind.AUTO
    cache_tokens: Annotated[
        Annotated[int, Meta(ge=512)] | None,
        Meta(
            description="Tokens of KV cache shared by everybody, a multiple of 256; null: one full context (CPU: at most 32768)"
        ),
    ] = None
    k_bits: Annotated[int, Meta(description="Bits of a cached key: 2 to 8, or 16 for fp16", ge=2, le=16)] = 16
    v_bits: Annotated[int, Meta(description="Bits of a cached value: 2 to 8, or 16 for fp16", ge=2, le=16)] = 16
    max_batch: Annotated[int, Meta(description="Streams generated together; recurrent slots on hybrid models", ge=1, le=1024)] = (
        16
    )
    chunk_tokens: Annotated[int, Meta(description="Prompt tokens prefilled in one step, a multiple of 256", ge=256, le=65536)] = (
        2048
    )
    reserve_tokens: Annotated[
        int, Meta(description="Answer tokens for which pages are reserved at a time, a multiple of 256", ge=256)
    ] = 2048
    checkpoint_tokens: Annotated[
        int, Meta(description="On hybrid models: prompt tokens between two recurrent checkpoints while prefilling", ge=256)
    ] = 4096
    checkpoint_memory_mib: Annotated[int, Meta(description="On hybrid models: host memory for recurrent checkpoints", ge=0)] = (
        4096
    )
    ram_cache_mib: Annotated[
        int, Meta(description="On a GPU: pinned host memory that keeps prefixes the GPU has no room for; 0: none", ge=0)
    ] = 0
    disk_cache_gib: Annotated[
        float,
        Meta(
            description="On a GPU, with ram_cache_mib: disk for prefixes, in state_dir/prefixes; they survive a restart; 0: none",
            ge=0,
        ),
    ] = 0.0
    speculation: Annotated[
        Speculation,
        Meta(
            description="Drafts the model checks several at a time: none, ngram (repeats of the conversation), draft (a small"
            " model) or mtp (the model's own head). Faster for few streams, slower for many"
        ),
    ] = Speculation.NONE
    draft_model: Annotated[str | None, Meta(description="For draft: directory of a small model with the same tokens")] = None
    draft_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=16)] | None, Meta(description="Tokens a draft is long; null: as its drafter suggests")
    ] = None
    loras: Annotated[
        list[LoraSettings],
        Meta(
            description="LoRA adapters, as [{path: /models/tuned, scale: 1.0}]: summed, and in force for every request. The fast"
            " decode kernels know none and are off in the layers that have one, so that answers come slower"
        ),
    ] = []
    vision: Annotated[
        bool,
        Meta(
            description="Load the model's vision tower, so that chats may hold pictures: Qwen2.5-VL, Qwen3-VL, Qwen3.5 and"
            " GLM-4V. `exl3ctl plan MODEL --vision` says what it takes"
        ),
    ] = False
    vision_tokens: Annotated[
        int, Meta(description="Most prompt tokens one picture takes; larger ones are shrunk until they do", ge=16, le=16384)
    ] = 2048
    vision_memory_mib: Annotated[
        int, Meta(description="Host memory for what the tower has seen, so that a second turn need not look again", ge=0)
    ] = 1024
    gpu_split: Annotated[
        list[float] | None, Meta(description="GiB of each GPU to use, as [11.0, 11.0]; null: filled in order as needed")
    ] = None
    reserve_gpu_mib: Annotated[
        Annotated[int, Meta(ge=0)] | list[Annotated[int, Meta(ge=0)]],
        Meta(description="Memory left free on each GPU: one number for all, or one for each GPU, as [1024, 256]"),
    ] = 256
    layout: Annotated[
        EngineLayout,
        Meta(
            description="Several GPUs: split (layers one GPU after the other), tensor (a part of every layer on each GPU, all"
            " computing at once) or replicas (an engine a GPU with the whole model: one's death moves its streams to another);"
            " auto: split, unless replicas is above 1"
        ),
    ] = EngineLayout.AUTO
    tensor_backend: Annotated[
        TensorBackend,
        Meta(description="How GPUs of the layout tensor talk: native (through host memory) or nccl (cards reaching each other)"),
    ] = TensorBackend.NATIVE
    moe_cpu_layers: Annotated[
        int,
        Meta(
            description="On a GPU, for models with experts: layers, the first ones that have experts, whose experts stay in host"
            " memory and are computed by the CPU. Room on the GPU for a slower answer",
            ge=0,
        ),
    ] = 0
    replicas: Annotated[
        Annotated[int, Meta(ge=1, le=16)] | None,
        Meta(
            description="Engines with the whole model; null: with layout replicas one a GPU, else one. Cache, streams and threads"
            " are each engine's; host memory and disk for prefixes are divided among them"
        ),
    ] = None
    force: Annotated[bool, Meta(description="Load even what the memory plan says does not fit (exl3d --force)")] = False
    threads: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Threads of a CPU engine; null: half the cores, at least 1")
    ] = None
    null_profile: Annotated[str | None, Meta(description="Null backend: a JSON file of scripted tokens and step times")] = None


class ServerSettings(_Section, frozen=True):
    """The HTTP side."""

    max_body_mib: Annotated[int, Meta(description="Largest request body", ge=1, le=1024)] = 64
    max_queued: Annotated[int, Meta(description="Requests that may wait for their turn; the next one gets 503", ge=1)] = 256
    max_tokens_overflow: Annotated[
        Overflow, Meta(description="A max_tokens beyond the room left is lowered to it (clamp) or answered with 400 (refuse)")
    ] = Overflow.CLAMP
    drain_seconds: Annotated[float, Meta(description="How long running streams may finish after SIGTERM", ge=0)] = 30.0
    keepalive_seconds: Annotated[float, Meta(description="Silence in a stream after which an SSE comment is sent", gt=0)] = 10.0
    resume_timeout: Annotated[
        float, Meta(description="Seconds an interrupted request waits for a new engine before it ends with an error", gt=0)
    ] = 600.0
    stall_buffer: Annotated[
        int, Meta(description="Events kept for a client that does not read before its request is ended", ge=16)
    ] = 8192
    cors_origins: Annotated[list[str], Meta(description="Web origins allowed to call the API from a browser; empty: none")] = []


class CallFormat(Enum):
    """How a model writes tool calls."""

    PLAIN = "plain"
    QWEN3_XML = "qwen3_xml"
    HERMES_JSON = "hermes_json"
    GEMMA = "gemma"
    GLM = "glm"
    MISTRAL = "mistral"
    GPT_OSS = "gpt_oss"
    LLAMA3_JSON = "llama3_json"
    PYTHONIC = "pythonic"
    DEEPSEEK = "deepseek"
    MINIMAX = "minimax"


class AnswerSettings(_Section, frozen=True):
    """How answers are read, thoughts that end without an answer, and answers that never end."""

    call_format: Annotated[
        CallFormat | None, Meta(description="How the model writes tool calls; null: as its chat template says")
    ] = None
    on_empty_answer: Annotated[
        OnEmptyAnswer,
        Meta(
            description="A model that stops inside its thought: continue closes the thought and lets it answer, convert gives"
            " the thought as the answer, return gives an empty one"
        ),
    ] = OnEmptyAnswer.CONTINUE
    reasoning_budget: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Thinking tokens after which a thought is closed, where a request says nothing; null: no limit"),
    ] = None
    closing_sentence: Annotated[
        str, Meta(description="What the model finds at the end of a thought that was closed at its budget", max_length=1000)
    ] = "I have thought about this for long enough, so I will answer now with what I have found out."
    detect_repetition: Annotated[
        bool, Meta(description="End answers in which the same tokens follow each other again and again")
    ] = True
    repetition_tokens: Annotated[
        int, Meta(description="Tokens that must repeat before an answer counts as a loop", ge=64, le=8192)
    ] = 512
    repetition_count: Annotated[
        int, Meta(description="Times a passage must stand in a row before an answer counts as a loop", ge=3, le=64)
    ] = 6


class SupervisorSettings(_Section, frozen=True):
    """What happens when an engine dies or hangs."""

    load_stall_seconds: Annotated[float, Meta(description="A load without progress for this long is a hang", gt=0)] = 180.0
    build_stall_seconds: Annotated[
        float, Meta(description="Compiling exllamav3's extension without an end for this long is a hang", gt=0)
    ] = 1800.0
    step_stall_seconds: Annotated[
        float, Meta(description="Answers outstanding and no token for this long, while nothing is prefilled, is a hang", gt=0)
    ] = 60.0
    prefill_stall_seconds: Annotated[
        float, Meta(description="A prefill step of 1024 tokens may take this much longer; more for larger chunks", gt=0)
    ] = 60.0
    term_seconds: Annotated[float, Meta(description="How long an engine may take to end after SIGTERM before SIGKILL", gt=0)] = (
        5.0
    )
    restarts: Annotated[int, Meta(description="Engine restarts allowed within restart_window_minutes", ge=0)] = 5
    restart_window_minutes: Annotated[float, Meta(description="Window of the restart budget", gt=0)] = 30.0
    backoff_seconds: Annotated[float, Meta(description="Wait before the second restart in a row; doubles each time", gt=0)] = 1.0
    backoff_limit_seconds: Annotated[float, Meta(description="Longest wait before a restart", gt=0)] = 60.0
    rebuilds: Annotated[
        int, Meta(description="Times in a window that an engine which found too little memory is built smaller", ge=0)
    ] = 3
    vram_wait_seconds: Annotated[
        float, Meta(description="How long a dead engine's GPU memory may take to come back before the next engine starts", ge=0)
    ] = 30.0
    poison_memory_hours: Annotated[
        float, Meta(description="How long a request that crashed an engine while alone is refused", gt=0)
    ] = 24.0


class WatchdogSettings(_Section, frozen=True):
    """What the daemon looks at besides its engines. Each source is left out where the system does not permit it."""

    kernel_log: Annotated[bool, Meta(description="Follow the kernel's messages about our processes and GPUs")] = True
    nvml: Annotated[bool, Meta(description="Read GPU memory, temperature and errors through NVML")] = True
    nvml_seconds: Annotated[float, Meta(description="Between two readings of NVML", gt=0)] = 5.0
    nvml_deadline_seconds: Annotated[float, Meta(description="A reading that takes longer counts as hung", gt=0)] = 3.0
    probe: Annotated[bool, Meta(description="On suspicion only: try the GPU from a process of its own")] = True
    probe_seconds: Annotated[float, Meta(description="How long that process may take", gt=0)] = 20.0
    degraded_factor: Annotated[
        float, Meta(description="Steps this many times slower than learned, with full GPU memory, are an incident", gt=1)
    ] = 3.0
    incident_days: Annotated[float, Meta(description="How long incidents are kept", gt=0)] = 90.0


class KeySettings(_Section, frozen=True):
    """One API key. `exl3ctl key new NAME` prints a fresh key and the line to put here."""

    name: Annotated[str, Meta(description="Who the key belongs to; appears in logs and metrics", min_length=1, max_length=64)]
    hash: Annotated[str, Meta(description="Salted hash of the key: scrypt$SALT$HASH", min_length=1)]


class Role(Enum):
    """What a person may do."""

    USER = "user"
    ADMIN = "admin"
    """May also ask the admin API over HTTP."""


class PersonSettings(_Section, frozen=True):
    """One person: the owner of all keys with this name. A limit that is null is that of `sharing`, as for who has no entry."""

    name: Annotated[str, Meta(description="As in keys", min_length=1, max_length=64)]
    role: Annotated[Role, Meta(description="user or admin")] = Role.USER
    weight: Annotated[float, Meta(description="Share of the engine while others want it too", gt=0, le=1000)] = 1.0
    guaranteed_context: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Tokens of cache that are always theirs: running, and warm between turns"),
    ] = None
    max_context: Annotated[Annotated[int, Meta(ge=256)] | None, Meta(description="Longest context of one request")] = None
    max_concurrent: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Requests that may run at once")] = None
    max_queued: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Requests that may wait; the next gets 429")] = None
    tokens_per_day: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Prompt and answer tokens from midnight to midnight, UTC")
    ] = None


class BackgroundRule(_Section, frozen=True):
    """Chats that a program sends on its own beside those of a person. All that is given must hold."""

    starts_with: Annotated[str, Meta(description="How the first message of the user begins", min_length=1)]
    single_message: Annotated[bool, Meta(description="Only chats of one message, instructions aside")] = True
    streamed: Annotated[bool | None, Meta(description="Only streamed chats, or only others; null: both")] = False


class SharingOrder(Enum):
    """In which order waiting requests are served."""

    FAIR = "fair"
    """Whoever has had the least for their weight goes first; guarantees hold."""
    FIFO = "fifo"
    """In order of arrival, whoever asks; without guarantees. For comparison."""


class SharingSettings(_Section, frozen=True):
    """How people share the engine, and what holds for people where they say nothing."""

    order: Annotated[
        SharingOrder, Meta(description="fair: who has had the least for their weight goes first; fifo: in order of arrival")
    ] = SharingOrder.FAIR
    itl_target_ms: Annotated[
        float, Meta(description="Time between two tokens that running answers keep while prompts are prefilled", gt=0)
    ] = 250.0
    prefill_price: Annotated[float, Meta(description="What a prefilled prompt token costs its person's share", ge=0)] = 1.0
    cached_price: Annotated[float, Meta(description="What a prompt token found in the prefix cache costs", ge=0)] = 0.02
    decode_price: Annotated[float, Meta(description="What a generated token costs", gt=0)] = 4.0
    max_concurrent: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="As in people, where they say nothing")] = None
    max_queued: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="As in people, where they say nothing")] = None
    tokens_per_day: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="As in people, where they say nothing")] = None
    guaranteed_context: Annotated[int, Meta(description="As in people, where they say nothing and have a key", ge=0)] = 0
    default_timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="Deadline of requests that name none; null: none")
    ] = None
    background: Annotated[
        list[BackgroundRule], Meta(description="Chats that give way to those of people; by default those of Open WebUI")
    ] = msgspec.field(default_factory=lambda: [BackgroundRule(starts_with="### Task:")])


class LogSettings(_Section, frozen=True):
    """What is written to stderr (the journal, under systemd). Prompts are never logged."""

    level: Annotated[str, Meta(description="debug, info, warning or error", pattern="^(debug|info|warning|error)$")] = "info"
    format: Annotated[LogFormat, Meta(description="text for people, json for machines")] = LogFormat.TEXT


class Settings(_Section, frozen=True):
    """The whole of config.yaml. Three lines are enough: model, host, port."""

    model: Annotated[
        str | None,
        Meta(description="Model directory (EXL3 or fp16 safetensors); null: the small demo model, where there is no GPU"),
    ] = None
    host: Annotated[str, Meta(description="Address to listen on; any but a loopback address needs keys")] = "127.0.0.1"
    port: Annotated[int, Meta(description="TCP port; 0 lets the system choose and the log say which", ge=0, le=65535)] = 8321
    model_name: Annotated[str | None, Meta(description="Name clients see; null: the directory's name")] = None
    aliases: Annotated[list[str], Meta(description="Other names that mean the same model")] = []
    context: Annotated[
        Annotated[int, Meta(ge=256)] | None,
        Meta(description="Longest context of one request in tokens; null: what model and cache allow"),
    ] = None
    state_dir: Annotated[
        str | None, Meta(description="Where exl3d keeps what it makes; null: $STATE_DIRECTORY, else ~/.local/state/exl3d")
    ] = None
    keys: Annotated[list[KeySettings], Meta(description="API keys; with none, anybody on this machine may ask")] = []
    people: Annotated[list[PersonSettings], Meta(description="Shares and limits; `exl3ctl user` keeps others in state_dir")] = []
    sharing: SharingSettings = SharingSettings()
    engine: EngineSettings = EngineSettings()
    server: ServerSettings = ServerSettings()
    answers: AnswerSettings = AnswerSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    watchdog: WatchdogSettings = WatchdogSettings()
    log: LogSettings = LogSettings()
