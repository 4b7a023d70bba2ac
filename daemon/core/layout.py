"""Which engines there are, and on which GPUs: from the configuration and the cards that can be used. Pure.

1. One engine over all cards, unless replicas are asked for (engine.layout, engine.replicas). It has its layers one card after
   the other (split), or a part of every layer on each card (tensor).
2. Replicas: an engine a card, in the driver's order, each told by its environment to see no other. Two engines never share a
   card: more engines than cards are refused, and so are replicas where nobody can say which cards there are.
3. Engines that compute on a CPU share its cores.
4. Settings that contradict each other are refused here, one sentence each: before anything is loaded.

What a person gives for one engine (cache, streams) each gets; what is the machine's (host memory, disk) is divided.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from daemon.core.errors import ConfigError
from daemon.core.settings import EngineLayout, EngineSettings
from daemon.core.vram_values import Layout

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that tells CUDA which cards a process has."""
_LEAST_CARDS = 2
"""Cards that the layout tensor needs."""


UNDIVIDED = frozenset(
    {
        "AfmoeForCausalLM", "Glm4MoeLiteForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm2VlForConditionalGeneration",
        "MuseGlimmerForConditionalGeneration", "Olmo3ForCausalLM", "OlmoHybridForCausalLM", "Qwen3NextForCausalLM",
    }
)  # fmt: skip
"""Architectures whose layers exllamav3 1.6.5 cannot divide among GPUs."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one engine runs: its number, its part of the settings, and what distinguishes it from the others."""

    number: int
    settings: EngineSettings
    gpus: tuple[str, ...] | None = None
    """Cards it may use, by uuid; None: all that the daemon may use."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What its process finds in its environment besides the daemon's own."""
        return {} if self.gpus is None else {VISIBLE: ",".join(self.gpus)}

    @property
    def folder(self) -> str:
        """Where in the state directory it keeps prefixes: two processes must not write one store. Empty: the directory itself."""
        return f"engine-{self.number}" if self.number else ""


def layout_of(engine: EngineSettings) -> Layout:
    """What the settings ask for. Raises ConfigError where they contradict each other."""
    layout = _asked(engine)
    for problem in _contradictions(engine, layout):
        raise problem
    return layout


def _asked(engine: EngineSettings) -> Layout:
    match engine.layout:
        case EngineLayout.REPLICAS:
            return Layout.REPLICAS
        case EngineLayout.AUTO:
            return Layout.REPLICAS if (engine.replicas or 1) > 1 else Layout.SPLIT
        case EngineLayout.SPLIT:
            return Layout.SPLIT
        case EngineLayout.TENSOR:
            return Layout.TENSOR


def _contradictions(engine: EngineSettings, layout: Layout) -> Iterator[ConfigError]:
    if layout is not Layout.REPLICAS and (engine.replicas or 1) > 1:
        words = f"engine.layout is {layout.value}, one engine for all GPUs, and engine.replicas asks for {engine.replicas}"
        yield ConfigError(words, "engine.replicas")
    if layout is not Layout.TENSOR:
        return
    if engine.moe_cpu_layers:
        words = f"engine.layout is tensor, and engine.moe_cpu_layers keeps the experts of {engine.moe_cpu_layers} layers in"
        yield ConfigError(f"{words} host memory: exllamav3 1.6.5 does one or the other", "engine.moe_cpu_layers")
    if engine.loras:
        words = f"engine.layout is tensor, and engine.loras names {len(engine.loras)}: adapters are not divided among GPUs"
        yield ConfigError(f"{words}. Use split, replicas, or a model with the adapter merged into it", "engine.loras")
    used = None if engine.gpu_split is None else sum(size > 0 for size in engine.gpu_split)
    if used is not None and used < _LEAST_CARDS:
        words = f"engine.layout is tensor, which needs two GPUs or more, and engine.gpu_split uses {used}"
        yield ConfigError(words, "engine.gpu_split")


def reserves(engine: EngineSettings, cards: int) -> tuple[int, ...]:
    """MiB to leave free on each of `cards` GPUs. Raises ConfigError where a list of them is not as long."""
    match engine.reserve_gpu_mib:
        case int() as each:
            return (each,) * cards
        case list() as given:
            if len(given) != cards:
                words = f"engine.reserve_gpu_mib has {len(given)} number{'' if len(given) == 1 else 's'}, and {cards} GPU"
                words += f"{'' if cards == 1 else 's'} can be used: one for each, or a single number for all"
                raise ConfigError(words, "engine.reserve_gpu_mib")
            return tuple(given)


def places(engine: EngineSettings, gpus: Sequence[str] | None, cores: int) -> tuple[Place, ...]:
    """The engines of a daemon. `gpus`: uuids of the cards that can be used, empty where nobody could count them; None: engines
    compute on a CPU, of `cores` cores.

    Raises ConfigError where the configuration cannot be laid out so.
    """
    layout = layout_of(engine)
    cards = None if gpus is None else tuple(dict.fromkeys(gpus))
    if cards is None:
        _refuse_without_gpu(engine, layout)
    match layout:
        case Layout.SPLIT:
            return (Place(0, engine),)
        case Layout.TENSOR:
            if cards is not None and 0 < len(cards) < _LEAST_CARDS:
                words = f"engine.layout is tensor, which needs two GPUs or more, and {len(cards)} can be used"
                raise ConfigError(words, "engine.layout")
            return (Place(0, engine),)
        case Layout.REPLICAS:
            return _on_cores(engine, cores) if cards is None else _on_cards(engine, cards)


def _refuse_without_gpu(engine: EngineSettings, layout: Layout) -> None:
    """What only means something with GPUs. Raises ConfigError."""
    if layout is Layout.TENSOR:
        words = "engine.layout is tensor, which divides layers among GPUs, and engines compute on a CPU"
        raise ConfigError(words, "engine.layout")
    if engine.moe_cpu_layers:
        words = f"engine.moe_cpu_layers is {engine.moe_cpu_layers}, which takes experts off a GPU, and engines compute on a CPU"
        raise ConfigError(f"{words}: they lie in host memory anyway", "engine.moe_cpu_layers")


def _on_cores(engine: EngineSettings, cores: int) -> tuple[Place, ...]:
    if engine.replicas is None:
        words = "engine.layout is replicas, and engines on a CPU have no cards to count: engine.replicas says how many"
        raise ConfigError(words, "engine.replicas")
    count = engine.replicas
    threads = engine.threads or max(1, cores // 2 // count)
    return tuple(Place(number, _part(engine, count, threads=threads)) for number in range(count))


def _on_cards(engine: EngineSettings, cards: tuple[str, ...]) -> tuple[Place, ...]:
    if not cards:
        words = "replicas are asked for (engine.layout, engine.replicas), and nvidia-smi names no GPU that could be given to each"
        raise ConfigError(f"{words}. For engines on the CPU set engine.backend to cpu", "engine.replicas")
    count = engine.replicas or len(cards)
    if count > len(cards):
        words = f"engine.replicas is {count}, and {len(cards)} GPU{'s' if len(cards) > 1 else ''} can be used"
        raise ConfigError(f"{words}: two engines never share one", "engine.replicas")
    split = engine.gpu_split
    if split is not None and len(split) != count:
        words = f"engine.gpu_split names {len(split)} GPUs, and there are {count} replicas: one size in GiB for each"
        raise ConfigError(words, "engine.gpu_split")
    limits = [None] * count if split is None else [[size] for size in split]
    free = reserves(engine, count)
    return tuple(
        Place(number, replace(_part(engine, count), gpu_split=limit, reserve_gpu_mib=free[number]), (card,))
        for number, (card, limit) in enumerate(zip(cards[:count], limits, strict=True))
    )


def _part(engine: EngineSettings, count: int, *, threads: int | None = None) -> EngineSettings:
    """The settings of one of `count` engines."""
    return replace(
        engine,
        threads=threads or engine.threads,
        checkpoint_memory_mib=_divided(engine.checkpoint_memory_mib, count),
        ram_cache_mib=_divided(engine.ram_cache_mib, count),
        disk_cache_gib=engine.disk_cache_gib / count,
    )


def _divided(whole: int, count: int) -> int:
    """An equal part, and something of what is there at all."""
    return max(whole // count, min(whole, 1))
