"""`exl3ctl plan`: how many people fit at how much context, before anything is loaded, and whether the directory is whole."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from daemon.core.errors import ConfigError
from daemon.core.people import StoredPerson, merge
from daemon.core.settings import EngineSettings, Settings
from daemon.core.vram_check import check
from daemon.core.vram_directory import ModelFiles, read_model, read_tokenizer
from daemon.core.vram_findings import Gravity
from daemon.core.vram_fit import DRAFT_TOKENS, draft_of
from daemon.core.vram_learned import FILE, Label, Learned, cards_of
from daemon.core.vram_model import FULL_BITS, PAGE, ModelShape, Precision, describe
from daemon.core.vram_report import Guarantee, PlanReport, report
from daemon.core.vram_values import MARGIN, Card, Demand, Layout
from daemon.core.vram_weights import Weights, weigh
from ops import config_file
from ops.errors import OpsError, UserFailed
from ops.exit_codes import ExitCode
from ops.machine import ThisMachine, look
from ops.machine_values import Machine
from ops.model_folder import ModelFolder
from ops.options import Config, Json, print_json
from ops.people_file import PeopleFile
from ops.plan_view import plan_view

_GIB = 1 << 30
_LARGEST = 4096
"""GiB; more than any card has."""


class CannotPlan(OpsError):
    """The directory, the cards or the flags are at fault; the message says which, with the numbers."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line, beside the model."""

    gpus: str | None = None
    gpu_split: str | None = None
    context: int = 81920
    people: int = 6
    k_bits: int | None = None
    v_bits: int | None = None
    layout: Layout | None = None
    chunk: int = 2048
    draft_tokens: int | None = None
    drafter: bool = False
    draft_model: Path | None = None
    vision: bool = False
    experts_on_cpu: int = 0


@dataclass(frozen=True, slots=True)
class Home:
    """What this machine and its configuration say."""

    learned: Learned
    machine: Machine
    engine: EngineSettings
    guarantees: tuple[Guarantee, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read."""


@dataclass(frozen=True, slots=True)
class Model:
    """A directory, read and weighed."""

    name: str
    files: ModelFiles
    shape: ModelShape
    weights: Weights


def _read(directory: Path, *, tokenizer: bool) -> Model:
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
    return Home(_learned(state / FILE, notes), look(ThisMachine()), settings.engine, promised, tuple(notes))


def _stored(state: Path, notes: list[str]) -> tuple[StoredPerson, ...]:
    try:
        return PeopleFile(state).read()
    except UserFailed as problem:
        notes.append(f"Guarantees of people kept there are left out: {problem}.")
        return ()


def _learned(file: Path, notes: list[str]) -> Learned:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Learned)
    except FileNotFoundError:
        return Learned()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        notes.append(f"{file} cannot be read, so nothing measured is used: {problem}.")
        return Learned()


def _sizes(flag: str, text: str, *, least: float) -> tuple[float, ...]:
    try:
        sizes = tuple(float(part) for part in text.split(","))
    except ValueError as problem:
        raise CannotPlan(f"{flag} is {text!r}: write GiB with commas between, as 12,12") from problem
    if not all(least <= size <= _LARGEST for size in sizes) or not any(sizes):
        raise CannotPlan(f"{flag} is {text!r}: each size must be {'above' if least else 'at least'} 0 GiB, and one above it")
    return sizes


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards to plan for in each layout, and what should be said about them."""

    cards: Mapping[Layout, tuple[Card, ...]]
    notes: tuple[str, ...]


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
    reserve = MARGIN + (0 if asked.gpu_split else home.engine.reserve_gpu_mib << 20)
    limits = _limits(asked, [size for _, size in sizes])
    planned = {
        layout: tuple(
            replace(card, reserve=reserve, limit=limit)
            for card, limit in zip(cards_of(home.learned, labels, driver, layout), limits, strict=True)
        )
        for layout in _layouts(asked, len(sizes))
    }
    return Cards(planned, notes)


def _limits(asked: Asked, sizes: list[int]) -> tuple[int | None, ...]:
    if asked.gpu_split is None:
        return (None,) * len(sizes)
    split = _sizes("--gpu-split", asked.gpu_split, least=0)
    if len(split) > len(sizes):
        raise CannotPlan(f"--gpu-split names {len(split)} cards, and there {'is' if len(sizes) == 1 else 'are'} {len(sizes)}")
    limits = tuple(int(size * _GIB) for size in split) + (0,) * (len(sizes) - len(split))
    for gpu, (limit, size) in enumerate(zip(limits, sizes, strict=True)):
        if limit > size:
            raise CannotPlan(f"--gpu-split takes {limit / _GIB:g} GiB of GPU {gpu}, which has {size / _GIB:g}")
    return limits


def _layouts(asked: Asked, cards: int) -> tuple[Layout, ...]:
    layout = asked.layout
    if layout is None:
        every = tuple(Layout) if cards > 1 else (Layout.SPLIT,)
        if asked.experts_on_cpu:
            every = tuple(each for each in every if each is not Layout.TENSOR)
        return tuple(each for each in every if each is not Layout.REPLICAS) if asked.gpu_split else every
    if layout is not Layout.SPLIT and cards == 1:
        raise CannotPlan(f"the layout {layout.value} needs two cards or more, and 1 is named")
    if layout is Layout.REPLICAS and asked.gpu_split:
        raise CannotPlan(f"--layout replicas puts a whole engine on each of the {cards} cards, and --gpu-split divides one")
    if layout is Layout.TENSOR and asked.experts_on_cpu:
        raise CannotPlan(f"--layout tensor and --experts-on-cpu {asked.experts_on_cpu} exclude each other in exllamav3 1.6.5")
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
    _check_experts(asked, model)
    history = _draft_tokens(asked, shape)
    draft = None
    if asked.draft_model is not None:
        drafter = _read(asked.draft_model, tokenizer=False)
        if drafter.shape.vocabulary != shape.vocabulary:
            has = f"has {drafter.shape.vocabulary:,} tokens, and the model {shape.vocabulary:,}"
            raise CannotPlan(f"--draft-model {drafter.name} {has}: a drafter needs the same")
        draft = draft_of(drafter.shape, drafter.weights, precision, history)
    return Demand(
        context=asked.context,
        people=asked.people,
        precision=precision,
        chunk=asked.chunk,
        history=history,
        drafter=asked.drafter,
        draft=draft,
        vision=asked.vision,
        experts_on_cpu=asked.experts_on_cpu,
    )


def _draft_tokens(asked: Asked, shape: ModelShape) -> int:
    if asked.drafter and asked.draft_model is not None:
        raise CannotPlan(f"--drafter and --draft-model {asked.draft_model} are two drafters, and a model has one at a time")
    if asked.drafter and not shape.drafter_layers:
        raise CannotPlan("--drafter asks for the model's own drafter, and config.json has none (mtp_num_hidden_layers is 0)")
    drafts = asked.drafter or asked.draft_model is not None
    if asked.draft_tokens is not None:
        if drafts and asked.draft_tokens == 0:
            raise CannotPlan("--draft-tokens is 0, and a drafter that drafts 0 tokens is none")
        return asked.draft_tokens
    return DRAFT_TOKENS if drafts else 0


def _check_experts(asked: Asked, model: Model) -> None:
    count, layers = asked.experts_on_cpu, len(model.shape.layers)
    if not count:
        return
    if model.shape.experts is None:
        raise CannotPlan(f"--experts-on-cpu is {count}, and the model has no experts in any of its {layers} layers")
    if count > layers:
        raise CannotPlan(f"--experts-on-cpu is {count}, and the model has {layers} layers")
    if not any(layer.experts for layer in model.weights.layers):
        raise CannotPlan(f"--experts-on-cpu is {count}, and exllamav3 moves only experts of the codebook mul1: here are none")


def make_report(directory: Path, asked: Asked, home: Home) -> PlanReport:
    """The plan for a directory. Raises CannotPlan."""
    cards = cards_from(asked, home)
    try:
        model = _read(directory, tokenizer=True)
        demand = demand_from(asked, model)
        findings = check(model.files.config, model.shape, model.files.tensors, model.files.around)
        return report(model.name, model.shape, model.weights, cards.cards, demand, findings, cards.notes, home.guarantees)
    except ConfigError as problem:
        raise CannotPlan(str(problem)) from problem
    except OSError as problem:
        raise CannotPlan(f"{directory} cannot be read: {problem.strerror or problem}") from problem


def plan(
    model: Annotated[Path, typer.Argument(help="The model directory.")],
    *,
    gpus: Annotated[str | None, typer.Option(help="GiB of each card, as 12,12; default: this machine's.")] = None,
    gpu_split: Annotated[str | None, typer.Option(help="GiB of each card to use, as 11,8; default: all.")] = None,
    context: Annotated[int, typer.Option(min=256, help="Tokens a person: prompt and answer.")] = 81920,
    people: Annotated[int, typer.Option(min=1, max=256, help="How many people at once.")] = 6,
    k_bits: Annotated[int | None, typer.Option(help="Bits of a cached key: 2 to 8, or 16; default: 16.")] = None,
    v_bits: Annotated[int | None, typer.Option(help="Bits of a cached value; default: as --k-bits.")] = None,
    layout: Annotated[Layout | None, typer.Option(help="How cards are used together; default: every way.")] = None,
    chunk: Annotated[int, typer.Option(min=256, help="Prompt tokens prefilled in one step.")] = 2048,
    draft_tokens: Annotated[
        int | None, typer.Option(min=0, max=64, help="Tokens drafted ahead (speculation); default: 4 with a drafter, else 0.")
    ] = None,
    drafter: Annotated[bool, typer.Option(help="Load the model's own drafter (MTP).")] = False,
    draft_model: Annotated[Path | None, typer.Option(help="Directory of a small model that drafts.")] = None,
    vision: Annotated[bool, typer.Option(help="Load the vision tower.")] = False,
    experts_on_cpu: Annotated[int, typer.Option(min=0, help="Layers, the first ones, whose experts stay in host memory.")] = 0,
    config: Config = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where measured overheads lie; default: the configuration's.")] = None,
    json: Json = False,
) -> None:
    """Say how many people fit at how much context, and what to change if they do not. Loads nothing.

    Also checks the directory as an upload. Exit code 1 where the people asked for fit in no layout or the directory is not whole.
    """
    asked = Asked(
        gpus=gpus,
        gpu_split=gpu_split,
        context=context,
        people=people,
        k_bits=k_bits,
        v_bits=v_bits,
        layout=layout,
        chunk=chunk,
        draft_tokens=draft_tokens,
        drafter=drafter,
        draft_model=draft_model,
        vision=vision,
        experts_on_cpu=experts_on_cpu,
    )
    made = make_report(model, asked, read_home(config, state_dir))
    if json:
        print_json(made)
    else:
        Console().print(plan_view(made), soft_wrap=False)
    if not made.fits or any(finding.gravity is Gravity.FATAL for finding in made.findings):
        raise typer.Exit(ExitCode.FAILED)
