"""From a command line, this machine and a model directory to the values a memory plan is made of; each mistake in a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.core.errors import ConfigError
from daemon.core.layout import reserves
from daemon.core.people import StoredPerson, merge
from daemon.core.settings import EngineSettings, Settings
from daemon.core.vram_adapters import read_adapter, weigh_adapters
from daemon.core.vram_directory import ModelFiles, read_model, read_tokenizer
from daemon.core.vram_fit import draft_of, experts_refusal
from daemon.core.vram_host import Kept, parse_meminfo
from daemon.core.vram_learned import Label, Learned, cards_of
from daemon.core.vram_model import FULL_BITS, PAGE, ModelShape, Precision, describe
from daemon.core.vram_report import Guarantee, Household
from daemon.core.vram_values import MARGIN, Adapters, Card, Demand, Layout
from daemon.core.vram_weights import Weights, weigh
from daemon.disk.learned import read_learned
from daemon.disk.model_folder import ModelFolder
from ops import config_file
from ops.errors import OpsError, UserFailed
from ops.machine import ThisMachine, look
from ops.machine_values import Machine
from ops.people_file import PeopleFile

_GIB, _MIB = 1 << 30, 1 << 20
_LARGEST = 4096
"""GiB; more than any card has."""
_MEMINFO = "/proc/meminfo"


class CannotPlan(OpsError):
    """The directory, the cards or the flags are at fault; the message says which, with the numbers."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line, beside the model."""

    gpus: str | None = None
    gpu_split: str | None = None
    reserve: str | None = None
    host_memory: float | None = None
    context: int = 81920
    people: int = 6
    k_bits: int | None = None
    v_bits: int | None = None
    layout: Layout | None = None
    chunk: int = 2048
    draft_tokens: int | None = None
    drafter: bool = False
    draft_model: Path | None = None
    loras: tuple[Path, ...] = ()
    vision: bool = False
    moe_cpu_layers: int = 0


@dataclass(frozen=True, slots=True)
class Home:
    """What this machine and its configuration say."""

    learned: Learned
    machine: Machine
    engine: EngineSettings
    guarantees: tuple[Guarantee, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read."""
    memory: int | None = None
    """Bytes of memory that this machine has."""


@dataclass(frozen=True, slots=True)
class Model:
    """A directory, read and weighed."""

    name: str
    files: ModelFiles
    shape: ModelShape
    weights: Weights


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards to plan for in each layout, and what should be said about them."""

    cards: Mapping[Layout, tuple[Card, ...]]
    notes: tuple[str, ...]


def read(directory: Path, *, tokenizer: bool) -> Model:
    """Read and weigh a model directory. Raises ConfigError, OSError."""
    folder = ModelFolder(directory)
    files = read_model(folder)
    shape = describe(files.config, str(directory / "config.json"))
    if tokenizer:
        files = replace(files, around=read_tokenizer(folder, files.around))
    return Model(directory.resolve().name, files, shape, weigh(files.tensors, len(shape.layers), tied=shape.tied))


def read_home(config: Path | None, state_dir: Path | None) -> Home:
    """What was learned, the cards, people and their guarantees. Raises BadConfig."""
    if state_dir is not None and config is None:
        settings, state = Settings(), state_dir.expanduser().absolute()
    else:
        found = config_file.load(config)
        settings, state = found.settings, config_file.state_dir(config, state_dir) if state_dir else Path(found.state_dir)
    notes: list[str] = []
    people = merge(settings.keys, settings.people, settings.sharing, _stored(state, notes))
    promised = tuple(Guarantee(name, tokens) for name, tokens in people.guarantees.items())
    memory = parse_meminfo(ThisMachine().read(_MEMINFO) or "")
    total = None if memory is None else memory.total
    return Home(_learned(state, notes), look(ThisMachine()), settings.engine, promised, tuple(notes), total)


def _stored(state: Path, notes: list[str]) -> tuple[StoredPerson, ...]:
    try:
        return PeopleFile(state).read()
    except UserFailed as problem:
        notes.append(f"Guarantees of people kept there are left out: {problem}.")
        return ()


def _learned(state: Path, notes: list[str]) -> Learned:
    try:
        return read_learned(state)
    except ConfigError as problem:
        notes.append(f"{problem}, so nothing measured is used.")
        return Learned()


def _sizes(flag: str, text: str, *, least: float) -> tuple[float, ...]:
    try:
        sizes = tuple(float(part) for part in text.split(","))
    except ValueError as problem:
        raise CannotPlan(f"{flag} is {text!r}: write GiB with commas between, as 12,12") from problem
    if not all(least <= size <= _LARGEST for size in sizes) or not any(sizes):
        raise CannotPlan(f"{flag} is {text!r}: each size must be {'above' if least else 'at least'} 0 GiB, and one above it")
    return sizes


def cards_from(asked: Asked, home: Home) -> Cards:
    """The cards named, or else those found on this machine. Raises CannotPlan for none, and for flags that exclude each other."""
    found = home.machine.gpus
    notes = home.notes
    if asked.gpus is None:
        if not found:
            raise CannotPlan("no NVIDIA GPU answers on this machine: name the cards to plan for, as --gpus 12,12")
        sizes = tuple((gpu.name, gpu.memory_mib << 20) for gpu in found)
    else:
        named = _sizes("--gpus", asked.gpus, least=1 / 1024)
        names = [found[n].name if n < len(found) else "" for n in range(len(named))]
        sizes = tuple((name, int(size * _GIB)) for name, size in zip(names, named, strict=True))
        if found and len(named) > len(found):
            notes = (
                *notes,
                f"--gpus names {len(named)} cards, and this machine has {len(found)}: this is a plan for another machine.",
            )
    labels = [Label(name, size, f"GPU {n}" + (f" ({name})" if name else "")) for n, (name, size) in enumerate(sizes)]
    driver = ".".join(map(str, home.machine.driver or ()))
    free, limits = _reserves(asked, home, len(sizes)), _limits(asked, [size for _, size in sizes])
    planned = {
        layout: tuple(
            replace(card, reserve=MARGIN + reserve, limit=limit)
            for card, reserve, limit in zip(cards_of(home.learned, labels, driver, layout), free, limits, strict=True)
        )
        for layout in _layouts(asked, len(sizes), limits)
    }
    return Cards(planned, notes)


def _reserves(asked: Asked, home: Home, cards: int) -> tuple[int, ...]:
    """Bytes to leave free on each card."""
    if asked.gpu_split is not None:
        if asked.reserve is not None:
            raise CannotPlan(f"--gpu-split {asked.gpu_split} says what is used of each card, --reserve {asked.reserve} what not")
        return (0,) * cards
    try:
        if asked.reserve is None:
            return tuple(mib * _MIB for mib in reserves(home.engine, cards))
        given = [int(part) for part in asked.reserve.split(",")]
    except ConfigError as problem:
        raise CannotPlan(f"{problem.message}; --reserve says another") from problem
    except ValueError as problem:
        raise CannotPlan(f"--reserve is {asked.reserve!r}: write MiB, one number or one a card, as 1024,256") from problem
    if len(given) not in {1, cards} or min(given) < 0:
        raise CannotPlan(f"--reserve is {asked.reserve!r}, and there {_are(cards)}: one number of MiB, or one for each card")
    return tuple(mib * _MIB for mib in (given * cards if len(given) == 1 else given))


def _are(cards: int) -> str:
    return f"{'is' if cards == 1 else 'are'} {cards}"


def _limits(asked: Asked, sizes: list[int]) -> tuple[int | None, ...]:
    if asked.gpu_split is None:
        return (None,) * len(sizes)
    split = _sizes("--gpu-split", asked.gpu_split, least=0)
    if len(split) > len(sizes):
        raise CannotPlan(f"--gpu-split names {len(split)} cards, and there {_are(len(sizes))}")
    limits = tuple(int(size * _GIB) for size in split) + (0,) * (len(sizes) - len(split))
    for gpu, (limit, size) in enumerate(zip(limits, sizes, strict=True)):
        if limit > size:
            raise CannotPlan(f"--gpu-split takes {limit / _GIB:g} GiB of GPU {gpu}, which has {size / _GIB:g}")
    return limits


def _layouts(asked: Asked, cards: int, limits: tuple[int | None, ...]) -> tuple[Layout, ...]:
    layout, used = asked.layout, sum(limit != 0 for limit in limits)
    undivided = asked.moe_cpu_layers or asked.loras or used == 1
    if layout is None:
        every = tuple(Layout) if cards > 1 else (Layout.SPLIT,)
        if undivided:
            every = tuple(each for each in every if each is not Layout.TENSOR)
        return tuple(each for each in every if each is not Layout.REPLICAS) if asked.gpu_split else every
    if layout is not Layout.SPLIT and cards == 1:
        raise CannotPlan(f"the layout {layout.value} needs two cards or more, and 1 is named")
    if layout is Layout.REPLICAS and asked.gpu_split:
        raise CannotPlan(f"--layout replicas puts a whole engine on each of the {cards} cards, and --gpu-split divides one")
    if layout is Layout.TENSOR and asked.moe_cpu_layers:
        raise CannotPlan(f"--layout tensor and --moe-cpu-layers {asked.moe_cpu_layers} exclude each other in exllamav3 1.6.5")
    if layout is Layout.TENSOR and asked.loras:
        raise CannotPlan(f"--layout tensor divides layers among the {cards} cards, and the {len(asked.loras)} of --lora are not")
    if layout is Layout.TENSOR and used == 1:
        raise CannotPlan(f"--layout tensor needs two cards or more, and --gpu-split {asked.gpu_split} uses 1")
    return (layout,)


def demand_from(asked: Asked, model: Model) -> Demand:
    """What is asked for of this model. Raises CannotPlan for flags that exclude each other or that it does not have."""
    shape = model.shape
    if shape.context and asked.context > shape.context:
        raise CannotPlan(f"--context is {asked.context:,}, and the model knows at most {shape.context:,} tokens")
    if asked.chunk % PAGE:
        raise CannotPlan(f"--chunk is {asked.chunk}, and a chunk is a multiple of {PAGE} tokens")
    if asked.vision and not shape.vision:
        raise CannotPlan("--vision asks for a vision tower, and config.json has none (vision_config)")
    keys = next((bits for bits in (asked.k_bits, asked.v_bits) if bits is not None), FULL_BITS)
    precision = Precision(keys, asked.v_bits if asked.v_bits is not None else keys)
    precision.check()
    problem = experts_refusal("--moe-cpu-layers", asked.moe_cpu_layers, shape, model.weights)
    if problem is not None:
        raise CannotPlan(problem)
    if asked.drafter and asked.draft_model is not None:
        raise CannotPlan(f"--drafter and --draft-model {asked.draft_model} are two drafters, and a model has one at a time")
    drafter = None
    if asked.draft_model is not None:
        drafter = read(asked.draft_model, tokenizer=False)
        if drafter.shape.vocabulary != shape.vocabulary:
            has = f"has {drafter.shape.vocabulary:,} tokens, and the model {shape.vocabulary:,}"
            raise CannotPlan(f"--draft-model {drafter.name} {has}: a drafter needs the same")
    history = _draft_tokens(asked, shape, shape.head_drafts if drafter is None else drafter.shape.drafts)
    return Demand(
        context=asked.context,
        people=asked.people,
        precision=precision,
        chunk=asked.chunk,
        history=history,
        drafter=asked.drafter,
        draft=None if drafter is None else draft_of(drafter.shape, drafter.weights, precision, history),
        vision=asked.vision,
        experts_on_cpu=asked.moe_cpu_layers,
        adapters=_adapters(asked, model),
    )


def _adapters(asked: Asked, model: Model) -> Adapters | None:
    return weigh_adapters([(str(path), read_adapter(ModelFolder(path))) for path in asked.loras], len(model.shape.layers))


def _draft_tokens(asked: Asked, shape: ModelShape, suggested: int) -> int:
    if asked.drafter and not shape.drafter_layers:
        raise CannotPlan("--drafter asks for the model's own drafter, and config.json has none (mtp_num_hidden_layers is 0)")
    drafts = asked.drafter or asked.draft_model is not None
    if asked.draft_tokens is not None:
        if drafts and asked.draft_tokens == 0:
            raise CannotPlan("--draft-tokens is 0, and a drafter that drafts 0 tokens is none")
        return asked.draft_tokens
    return suggested if drafts else 0


def household_from(asked: Asked, home: Home) -> Household:
    """The machine around the cards. One that was not looked at is not judged: a plan may be for another."""
    here = asked.gpus is None
    total = int(asked.host_memory * _GIB) if asked.host_memory is not None else (home.memory if here else None)
    kept = Kept(home.engine.ram_cache_mib << 20, home.engine.checkpoint_memory_mib << 20)
    return Household(kept, total)
