"""Refuses what cannot be loaded before an engine touches a GPU, and prepares the comparison of plan and truth."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from daemon.core.errors import ConfigError
from daemon.core.layout import layout_of, places
from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.vram_directory import read_model
from daemon.core.vram_fit import DRAFT_TOKENS, Planned, demand_of, draft_of, limited, refusal
from daemon.core.vram_learned import Label, Learned, cards_of
from daemon.core.vram_model import ModelShape, Precision, describe
from daemon.core.vram_values import Draft, Layout
from daemon.core.vram_weights import Weights, weigh
from daemon.host.gpu_census import Census, take_census
from daemon.host.model_folder import DiskFolder

_log = logging.getLogger("exl3d.memory")


@dataclass(frozen=True, slots=True)
class Weighed:
    """A model as memory sees it."""

    name: str
    shape: ModelShape
    weights: Weights
    draft: Draft | None = None
    """engine.draft_model, where one is configured."""


def weigh_model(path: Path, name: str, engine: EngineSettings) -> Weighed:
    """Read config.json and the headers of the weight files, those of a drafter too. Raises ConfigError where the plan does not
    understand them.
    """
    weighed = _weigh(path, name)
    if engine.draft_model is None:
        return weighed
    drafter = _weigh(Path(engine.draft_model).expanduser(), "the drafter")
    history = engine.draft_tokens or DRAFT_TOKENS
    return replace(weighed, draft=draft_of(drafter.shape, drafter.weights, Precision(engine.k_bits, engine.v_bits), history))


def _weigh(path: Path, name: str) -> Weighed:
    try:
        files = read_model(DiskFolder(path))
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
    census = take_census(environment)
    layout = layout_of(engine)
    if not census.gpus:
        return Forecast(census=census, layout=layout)
    try:
        model = weigh_model(path, name, engine)
    except ConfigError as problem:
        _log.warning("loading without a memory plan: %s", problem)
        return Forecast(census=census, layout=layout)
    check_fit(model, engine, context, census, learned)
    return Forecast(model, census, layout)


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
        demand = demand_of(place.settings, context, model.draft)
        _check(Planned(model.name, model.shape, model.weights, limited(own, place.settings), demand, alone, context), engine)


def _check(now: Planned, engine: EngineSettings) -> None:
    ever = replace(now, cards=tuple(replace(card, others=0) for card in now.cards))
    words = refusal(ever)
    if words is not None and not engine.force:
        raise ConfigError(words)
    words = words or refusal(now)
    if words is not None:
        _log.warning("this may end for want of memory: %s", words)
