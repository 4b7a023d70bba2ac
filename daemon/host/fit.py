"""Refuses what cannot be loaded before an engine touches a GPU, and prepares the comparison of plan and truth."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from daemon.core.drafting import draft_length
from daemon.core.errors import ConfigError
from daemon.core.layout import UNDIVIDED, layout_of, places
from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.vram_adapters import read_adapter, weigh_adapters
from daemon.core.vram_directory import read_model
from daemon.core.vram_fit import (
    ALONE,
    Beside,
    Planned,
    demand_of,
    draft_of,
    experts_refusal,
    limited,
    refusal,
)
from daemon.core.vram_host import HostMemory, HostPlan, Kept, host_plan, parse_meminfo
from daemon.core.vram_learned import Label, Learned, cards_of
from daemon.core.vram_model import ModelShape, Precision, describe
from daemon.core.vram_report import host_problem
from daemon.core.vram_tensor import indivisible
from daemon.core.vram_values import Demand, Layout
from daemon.core.vram_weights import Weights, weigh
from daemon.disk.model_folder import ModelFolder
from daemon.host.gpu_census import Census, take_census

_log = logging.getLogger("exl3d.memory")
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Weighed:
    """A model as memory sees it."""

    name: str
    shape: ModelShape
    weights: Weights
    beside: Beside = ALONE
    """engine.draft_model and engine.loras, where they are configured."""

    def demand(self, engine: EngineSettings, context: int) -> Demand:
        """What an engine with these settings allocates for requests of up to `context` tokens."""
        return demand_of(engine, context, self.beside)


def weigh_model(path: Path, name: str, engine: EngineSettings) -> Weighed:
    """Read config.json and the headers of the weight files, those of a drafter and of adapters too. Raises ConfigError where the
    plan does not understand them.
    """
    weighed = _weigh(path, name)
    folders = [(each.path, ModelFolder(Path(each.path).expanduser())) for each in engine.loras]
    adapters = weigh_adapters([(where, read_adapter(folder)) for where, folder in folders], len(weighed.shape.layers))
    beside = Beside(adapters=adapters, head_drafts=weighed.shape.head_drafts)
    if engine.draft_model is not None:
        drafter = _weigh(Path(engine.draft_model).expanduser(), "the drafter")
        length = draft_length(engine, weighed.shape.head_drafts, drafter.shape.drafts)
        draft = draft_of(drafter.shape, drafter.weights, Precision(engine.k_bits, engine.v_bits), length)
        beside = replace(beside, draft=draft, drafts=drafter.shape.drafts)
    return replace(weighed, beside=beside)


def _weigh(path: Path, name: str) -> Weighed:
    try:
        files = read_model(ModelFolder(path))
    except OSError as problem:
        raise ConfigError(f"cannot be read: {problem.strerror or problem}", str(path)) from problem
    shape = describe(files.config, str(path / "config.json"))
    return Weighed(name, shape, weigh(files.tensors, len(shape.layers), tied=shape.tied))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known about memory before any engine exists."""

    model: Weighed | None = None
    """None where there is no GPU, or the plan does not understand the model."""
    census: Census = field(default_factory=Census)
    layout: Layout = Layout.SPLIT
    """How an engine's cards are used together."""

    @property
    def others(self) -> Mapping[str, int]:
        """What other programs hold, by uuid."""
        return {gpu.uuid: gpu.used for gpu in self.census.gpus if gpu.used is not None}


def forecast(
    path: Path, name: str, engine: EngineSettings, context: int, learned: Learned, environment: Mapping[str, str]
) -> Forecast:
    """Look at model and cards, and refuse what cannot be loaded. Raises ConfigError; touches no GPU.

    A model whose memory the plan does not know is loaded without one: exllamav3 knows more architectures than the plan.
    """
    if not wants_gpu(engine.backend):
        return Forecast()
    layout = layout_of(engine)
    census = take_census(environment)
    if not census.gpus:
        return Forecast(census=census, layout=layout)
    try:
        model = weigh_model(path, name, engine)
    except ConfigError as problem:
        _log.warning("loading without a memory plan: %s", problem)
        return Forecast(census=census, layout=layout)
    check_possible(model, engine, layout)
    check_fit(model, engine, context, census, learned)
    check_host(model, engine, layout, len(census.gpus), host_memory())
    return Forecast(model, census, layout)


def host_memory(file: Path = _MEMINFO) -> HostMemory | None:
    """This machine's memory; None where the system does not say."""
    try:
        return parse_meminfo(file.read_text(encoding="ascii", errors="replace"))
    except OSError as problem:
        _log.warning("%s cannot be read, so host memory is not planned: %s", file, problem)
        return None


def check_possible(model: Weighed, engine: EngineSettings, layout: Layout) -> None:
    """Raise ConfigError where the model is none for what is configured, however much memory there is."""
    if layout is Layout.TENSOR and model.shape.architecture in UNDIVIDED:
        words = f"engine.layout is tensor, and exllamav3 1.6.5 cannot divide the layers of {model.shape.architecture} among GPUs"
        raise ConfigError(f"{words}: use split or replicas", "engine.layout")
    heads = indivisible(model.shape) if layout is Layout.TENSOR else None
    if heads is not None:
        words = f"engine.layout is tensor, and exllamav3 cannot divide {model.name} among GPUs: its {heads}"
        raise ConfigError(f"{words}. Use split or replicas", "engine.layout")
    problem = experts_refusal("engine.moe_cpu_layers", engine.moe_cpu_layers, model.shape, model.weights)
    if problem is not None:
        raise ConfigError(problem, "engine.moe_cpu_layers")


def check_host(model: Weighed, engine: EngineSettings, layout: Layout, cards: int, memory: HostMemory | None) -> None:
    """Raise ConfigError where the machine's own memory can never hold what engines keep there; say it in the log with
    engine.force, and where only what runs now is in the way.
    """
    if memory is None:
        return
    demand = model.demand(engine, 1)
    kept = Kept(engine.ram_cache_mib << 20, engine.checkpoint_memory_mib << 20)
    engines = min(engine.replicas or cards, cards) if layout is Layout.REPLICAS else cards
    ever = host_plan(model.shape, model.weights, demand, layout, engines, kept, memory.total)
    words = host_problem(ever)
    if words is not None and not engine.force:
        raise ConfigError(f"{model.name} does not fit as configured: {words}")
    words = words or host_problem(HostPlan(ever.rows, memory.available))
    if words is not None:
        _log.warning("this may end for want of memory: %s", words)


def wants_gpu(backend: BackendKind) -> bool:
    """Whether an engine would load onto GPUs where there are any. A torch that was built for the CPU never does."""
    match backend:
        case BackendKind.CUDA:
            return True
        case BackendKind.AUTO:
            return not metadata.version("torch").endswith("+cpu")
        case BackendKind.CPU | BackendKind.NULL:
            return False


def check_fit(model: Weighed, engine: EngineSettings, context: int, census: Census, learned: Learned) -> None:
    """Raise ConfigError, with the plan, where what is configured can never be loaded onto the cards of `census`.

    With engine.force it is said in the log instead. So is what does not fit only because of other programs on the GPU: they may
    end, and an engine that finds too little memory is built smaller. Of replicas each card must hold a whole one.
    """
    layout = layout_of(engine)
    labels = [Label(gpu.name, gpu.total, f"GPU {n} ({gpu.name})", gpu.used) for n, gpu in enumerate(census.gpus)]
    if not labels:
        return
    cards = cards_of(learned, labels, census.driver, layout)
    by_uuid = {gpu.uuid: card for gpu, card in zip(census.gpus, cards, strict=True)}
    for place in places(engine, tuple(by_uuid), 1):
        own = cards if place.gpus is None else tuple(by_uuid[uuid] for uuid in place.gpus)
        alone = Layout.SPLIT if len(own) == 1 else layout
        demand = model.demand(place.settings, context)
        _check(Planned(model.name, model.shape, model.weights, limited(own, place.settings), demand, alone, context), engine)


def _check(now: Planned, engine: EngineSettings) -> None:
    ever = replace(now, cards=tuple(replace(card, others=0) for card in now.cards))
    words = refusal(ever)
    if words is not None and not engine.force:
        raise ConfigError(words)
    words = words or refusal(now)
    if words is not None:
        _log.warning("this may end for want of memory: %s", words)
