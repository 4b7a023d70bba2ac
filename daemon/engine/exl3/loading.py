"""From a model directory to a backend that can generate: configuration, cache, weights, warm-up, generator.

The order is the library's: cache before weights, because loading allocates the cache's tensors beside the layers. Every
failure leaves as EngineFailed with words that say what to change; the process ends after it, so nothing is cleaned up here.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from exllamav3 import Cache, Config, Generator, Model, Tokenizer
from exllamav3.architecture.architectures import get_architectures
from exllamav3.constants import PAGE_SIZE

from daemon.core.drafting import DRAFT_ROWS
from daemon.core.settings import EngineSettings, Speculation
from daemon.core.wire import Configure, DeviceMemory, FatalClass
from daemon.engine.backend import EngineFailed, LoadProgress, LoadStage, PrefillWatch
from daemon.engine.exl3 import lora, vision
from daemon.engine.exl3.backend import Exl3Backend
from daemon.engine.exl3.constraint import GrammarCompiler
from daemon.engine.exl3.entrance import Loaded
from daemon.engine.exl3.faults import FaultKind, classify, describe
from daemon.engine.exl3.held_memory import TorchCuda, device_of_layers, held_memory
from daemon.engine.exl3.json_values import as_list, as_object
from daemon.engine.exl3.leftovers import Leftovers
from daemon.engine.exl3.null_parts import NullParts, load_null
from daemon.engine.exl3.pace import Pace
from daemon.engine.exl3.placing import Placing, check_model, check_offloaded, offload_experts, placing
from daemon.engine.exl3.runtime import Device, DeviceKind
from daemon.engine.exl3.sharded import guarded
from daemon.engine.exl3.speculation import Drafting, build_cache, prepare, require_cpu_operations
from daemon.engine.exl3.ticket import Desk
from daemon.engine.exl3.watched import ForwardModel, WatchedModel

CPU_CACHE_LIMIT = 32768
"""Tokens of cache a CPU engine takes where the configuration names none."""
GRACE_TOKENS = 1
"""The library keeps one token of the cache free."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the generator is made of."""

    model: ForwardModel
    cache: Cache
    tokenizer: Tokenizer
    architecture: str
    backend: str
    vocabulary: int
    eos: list[int]
    memory: list[DeviceMemory] = field(default_factory=list[DeviceMemory])
    drafting: Drafting = field(default_factory=Drafting)
    tower: vision.Tower | None = None


def load(
    configure: Configure, device: Device, watch: PrefillWatch, progress: LoadProgress, wake: Callable[[], None]
) -> Exl3Backend:
    """Load a model and everything around it. Raises EngineFailed."""
    settings = configure.engine
    tokens = cache_tokens(configure, device)
    _check_tiers(settings, device)
    _check_drafts(settings, device)
    _check_adapters(settings, device)
    _check_vision(settings, device)
    cards = torch.cuda.device_count() if device.kind is DeviceKind.CUDA else 0
    place = placing(settings, device.kind, cards)
    desk = Desk()
    try:
        if device.kind is DeviceKind.NULL:
            null = load_null(configure, tokens)
            parts = _null_parts(null)
        else:
            null = None
            parts = _load_parts(configure, device, place, tokens, progress)
        progress(LoadStage.BUILDING, 0, 1)
        generator = _build_generator(parts, desk, configure)
        grammars = GrammarCompiler(parts.tokenizer, wake)
    except EngineFailed:
        raise
    except Exception as problem:
        raise _translated(problem, configure) from problem
    loaded = Loaded(
        generator=generator,
        tokenizer=parts.tokenizer,
        architecture=parts.architecture,
        backend=parts.backend,
        vocabulary=parts.vocabulary,
        eos=parts.eos,
        on_gpu=device.kind is DeviceKind.CUDA,
        memory=parts.memory,
        gallery=None if parts.tower is None else vision.Gallery(parts.tower, settings.vision_memory_mib << 20, wake),
    )
    backend = Exl3Backend(loaded, desk, Pace(generator.max_chunk_size), grammars, settings.reserve_tokens, watch)
    if null is not None:
        null.model.bind(backend.rows)
    return backend


def cache_tokens(configure: Configure, device: Device) -> int:
    """Tokens of KV cache: as configured, else one full context; a multiple of the page size."""
    wanted = configure.engine.cache_tokens
    if wanted is not None:
        if wanted % PAGE_SIZE:
            raise EngineFailed(FatalClass.CONFIG, f"engine.cache_tokens is {wanted}; it must be a multiple of {PAGE_SIZE}")
        return wanted
    whole = -(-(configure.context + GRACE_TOKENS) // PAGE_SIZE) * PAGE_SIZE
    return whole if device.kind is DeviceKind.CUDA else min(whole, CPU_CACHE_LIMIT)


def _null_parts(null: NullParts) -> Parts:
    return Parts(
        model=null.model,
        cache=null.cache,
        tokenizer=null.tokenizer,
        architecture=null.architecture,
        backend="null-arithmetic",
        vocabulary=null.vocabulary,
        eos=null.eos,
    )


def _load_parts(configure: Configure, device: Device, place: Placing, tokens: int, progress: LoadProgress) -> Parts:
    config = _read_config(configure.model)
    model = Model.from_config(config)
    check_model(model, config, place)
    if device.kind is DeviceKind.CPU:
        require_cpu_operations(model)
    tokenizer = Tokenizer.from_config(config)
    settings = configure.engine
    adapters = [lora.read(adapter) for adapter in settings.loras]
    eyes = vision.prepare(settings, config, on_cpu=device.kind is DeviceKind.CPU)
    drafting = prepare(settings, config, tokens, _read_config, on_cpu=device.kind is DeviceKind.CPU)
    cache = build_cache(model, settings, tokens, drafting.tokens)

    shares = place.tensor or settings.moe_cpu_layers > 0
    leftovers = Leftovers(Path(configure.state_dir))
    leftovers.sweep()

    def loading(done: int, total: int) -> None:
        if shares and done == 0:
            leftovers.note()
        progress(LoadStage.LOADING, done, total)

    def warming(done: int, total: int) -> None:
        progress(LoadStage.WARMING_UP, done, total)

    with torch.inference_mode():
        drafting.load(settings, None if device.kind is DeviceKind.CUDA else device.torch_device, place, loading)
        if eyes is not None:
            eyes.load(device=place.first(device), max_chunk_size=settings.chunk_tokens)
        if device.kind is DeviceKind.CUDA:
            offload_experts(config, settings)
            model.load(
                max_chunk_size=settings.chunk_tokens,
                max_output_size=settings.max_batch,
                max_batch_size=settings.max_batch,
                use_per_device=place.use_per_device,
                reserve_per_device=place.reserve_per_device,
                tensor_p=place.tensor,
                tp_backend=place.exchange.value,
                callback=loading,
                draft_model=drafting.model,
            )
            check_offloaded(config, settings)
            if shares:
                leftovers.note()
        else:
            _tell_modules(model, loading)
            model.load(device=device.torch_device, max_chunk_size=settings.chunk_tokens)
        lora.apply(model, adapters)
        _warm_up(model, cache, settings, device, warming)
        tower = None if eyes is None else vision.Tower(eyes, tokenizer)
        if tower is not None:
            tower.warm_up(whole=device.kind is DeviceKind.CUDA)
    return Parts(
        model=guarded(model, place, settings.moe_cpu_layers),
        cache=cache,
        tokenizer=tokenizer,
        architecture=config.architecture,
        backend=f"exl3 on {device.kind.value}",
        vocabulary=config.vocab_size,
        eos=list(config.eos_token_id_list),
        drafting=drafting,
        tower=tower,
        memory=held_memory(TorchCuda(), device_of_layers(model.modules)) if device.kind is DeviceKind.CUDA else [],
    )


def _tell_modules(model: Model, progress: Callable[[int, int], None]) -> None:
    """Loading to one device reports nothing by itself: let each module say when it is done."""
    total = len(model.modules)

    def told(load_module: Callable[..., None], number: int) -> Callable[..., None]:
        def load_and_tell(*arguments: object, **options: object) -> None:
            load_module(*arguments, **options)
            progress(number, total)

        return load_and_tell

    for number, module in enumerate(model.modules, start=1):
        module.load = told(module.load, number)


def _warm_up(model: Model, cache: Cache, settings: EngineSettings, device: Device, progress: Callable[[int, int], None]) -> None:
    """Pay first-use costs before anybody waits. On a CPU there is nothing to compile: one token proves that it computes."""
    if device.kind is DeviceKind.CUDA:
        failed = model.warmup(cache, settings.chunk_tokens, min(settings.max_batch, 8), callback=progress)
        if failed:
            raise EngineFailed(FatalClass.INTERNAL, f"warm-up failed in: {', '.join(failed)}. The log has the exceptions.")
        return
    progress(0, 1)
    failed = model.warmup(cache, 16, 1, callback=progress)
    if failed:
        raise EngineFailed(
            FatalClass.INTERNAL, f"the model cannot compute on this machine: warm-up failed in {', '.join(failed)}"
        )


def _check_tiers(settings: EngineSettings, device: Device) -> None:
    """The tiers behind the GPU's cache need one: exllamav3 copies their pages with CUDA (cache/cpu_cache.py)."""
    if device.kind is not DeviceKind.CUDA and (settings.ram_cache_mib or settings.disk_cache_gib):
        raise EngineFailed(
            FatalClass.CONFIG, "engine.ram_cache_mib and engine.disk_cache_gib need a GPU; set both to 0 on this machine"
        )
    if settings.disk_cache_gib and not settings.ram_cache_mib:
        raise EngineFailed(
            FatalClass.CONFIG, "engine.disk_cache_gib is written through engine.ram_cache_mib, which is 0; set it to 2048 or more"
        )


def _check_drafts(settings: EngineSettings, device: Device) -> None:
    if device.kind is DeviceKind.NULL and settings.speculation is not Speculation.NONE:
        raise EngineFailed(FatalClass.CONFIG, "the null backend drafts nothing: set engine.speculation to none")


def _check_adapters(settings: EngineSettings, device: Device) -> None:
    if device.kind is DeviceKind.NULL and settings.loras:
        raise EngineFailed(FatalClass.CONFIG, "the null backend has no layers: leave engine.loras empty")


def _check_vision(settings: EngineSettings, device: Device) -> None:
    if device.kind is DeviceKind.NULL and settings.vision:
        raise EngineFailed(FatalClass.CONFIG, "the null backend sees nothing: set engine.vision to false")


def prefix_directory(configure: Configure) -> Path:
    """Where prefixes outlive the process: the library tells models apart there, but not the adapters on them.

    Raises EngineFailed where an adapter cannot be read.
    """
    shared = Path(configure.state_dir, "prefixes")
    return shared if not configure.engine.loras else shared / f"lora-{lora.digest(configure.engine.loras)}"


def _build_generator(parts: Parts, desk: Desk, configure: Configure) -> Generator:
    settings = configure.engine
    disk = prefix_directory(configure) if settings.disk_cache_gib else None
    if disk is not None:
        disk.mkdir(parents=True, exist_ok=True)
    return Generator(
        WatchedModel(parts.model, desk),
        parts.cache,
        parts.tokenizer,
        max_batch_size=settings.max_batch,
        max_chunk_size=settings.chunk_tokens,
        # Every prefilling job is called every step: order, pauses and sizes are ours.
        shared_chunk_size=settings.chunk_tokens,
        prefill_cooldown=0,
        recurrent_cache_size=settings.checkpoint_memory_mib << 20,
        recurrent_checkpoint_interval_pp=settings.checkpoint_tokens,
        cpu_cache_size=settings.ram_cache_mib << 20,
        disk_cache_dir=None if disk is None else str(disk),
        disk_cache_size=int(settings.disk_cache_gib * 2**30),
        draft_model=parts.drafting.model,
        draft_cache=parts.drafting.cache,
        num_draft_tokens=parts.drafting.tokens or None,
        ngram_match_min=parts.drafting.ngram_match,
        draft_max_rows=DRAFT_ROWS,
    )


def _read_config(directory: str) -> Config:
    path = Path(directory, "config.json")
    try:
        described: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as problem:
        raise EngineFailed(FatalClass.CONFIG, f"{path} is missing: {directory} is not a model directory") from problem
    except (OSError, ValueError) as problem:
        raise EngineFailed(FatalClass.CONFIG, f"{path} cannot be read: {problem}") from problem
    names = as_list(as_object(described).get("architectures"))
    known = get_architectures()
    if len(names) != 1 or names[0] not in known:
        raise EngineFailed(
            FatalClass.CONFIG,
            f"{path} names the architecture {', '.join(map(str, names)) or 'none'}, which exllamav3"
            f" does not know. It knows: {', '.join(sorted(known))}.",
        )
    if not any(Path(directory).glob("*.safetensors")):
        raise EngineFailed(FatalClass.CONFIG, f"{directory} holds no .safetensors file: the weights are missing")
    return Config.from_directory(directory)


def _translated(problem: Exception, configure: Configure) -> EngineFailed:
    """A failure of loading in words that say what to change."""
    text = describe(problem)
    match classify(problem):
        case FaultKind.DEVICE:
            return EngineFailed(FatalClass.DEVICE, f"the device failed while loading: {text}")
        case FaultKind.MEMORY:
            return EngineFailed(FatalClass.MEMORY, f"{text}. {_room(configure.engine)}")
        case FaultKind.OTHER:
            pass
    if "Insufficient VRAM" in text:
        return EngineFailed(FatalClass.MEMORY, f"the model does not fit the GPUs ({_devices()}). {_room(configure.engine)}")
    if isinstance(problem, OSError | ValueError | TypeError | KeyError | AssertionError) or "not found" in text:
        return EngineFailed(FatalClass.CONFIG, f"{configure.model} cannot be loaded. {text}")
    return EngineFailed(FatalClass.INTERNAL, f"loading {configure.model} failed. {text}")


def _room(settings: EngineSettings) -> str:
    return (
        f"Lower engine.cache_tokens, engine.k_bits and engine.v_bits (now {settings.k_bits} and {settings.v_bits}),"
        f" engine.max_batch ({settings.max_batch}) or engine.chunk_tokens ({settings.chunk_tokens}), or choose a smaller model."
    )


def _devices() -> str:
    if not torch.cuda.is_available():
        return "none"
    described: list[str] = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        described.append(f"GPU {index}: {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
    return "; ".join(described)
