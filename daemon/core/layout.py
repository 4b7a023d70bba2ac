"""Which engines there are, and on which GPUs: from the configuration and the cards that can be used. Pure.

1. One engine over all cards, unless replicas are asked for (engine.layout, engine.replicas).
2. Replicas: an engine a card, in the driver's order, each told by its environment to see no other. Two engines never share a
   card: more engines than cards are refused, and so are replicas where nobody can say which cards there are.
3. Engines that compute on a CPU share its cores.

What a person gives for one engine (cache, streams) each gets; what is the machine's (host memory, disk) is divided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from daemon.core.errors import ConfigError
from daemon.core.settings import EngineLayout, EngineSettings
from daemon.core.vram_values import Layout

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that tells CUDA which cards a process has."""


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
    several = (engine.replicas or 1) > 1
    match engine.layout:
        case EngineLayout.REPLICAS:
            return Layout.REPLICAS
        case EngineLayout.AUTO:
            return Layout.REPLICAS if several else Layout.SPLIT
        case EngineLayout.SPLIT:
            if several:
                words = f"engine.layout is split, one engine for all GPUs, and engine.replicas asks for {engine.replicas} engines"
                raise ConfigError(words, "engine.replicas")
            return Layout.SPLIT


def places(engine: EngineSettings, gpus: Sequence[str] | None, cores: int) -> tuple[Place, ...]:
    """The engines of a daemon. `gpus`: uuids of the cards that can be used; None: engines compute on a CPU, of `cores` cores.

    Raises ConfigError where the configuration cannot be laid out so.
    """
    if layout_of(engine) is not Layout.REPLICAS:
        return (Place(0, engine),)
    if gpus is None:
        return _on_cores(engine, cores)
    return _on_cards(engine, tuple(dict.fromkeys(gpus)))


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
    return tuple(
        Place(number, replace(_part(engine, count), gpu_split=limit), (card,))
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
