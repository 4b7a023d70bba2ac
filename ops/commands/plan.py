"""`exl3ctl plan`: how many people fit at how much context, before anything is loaded, and whether the directory is whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from daemon.core.errors import ConfigError
from daemon.core.safetensors_header import PREFIX, Tensor, header_length, parse_header
from daemon.core.vram_check import Gravity, Surroundings, check
from daemon.core.vram_learned import FILE, Learned
from daemon.core.vram_model import FULL_BITS, Precision, describe
from daemon.core.vram_report import LayoutReport, PlanReport, mib, report
from daemon.core.vram_values import Card, CardPlan, Demand, Item, Layout
from daemon.core.vram_weights import weigh
from ops import config_file
from ops.errors import OpsError
from ops.exit_codes import ExitCode
from ops.machine import ThisMachine, look
from ops.machine_values import Gpu
from ops.options import Config, Json, print_json

_BAR = 64
"""Cells of a full card."""
_LETTERS: Mapping[Item, tuple[str, str]] = {
    Item.WEIGHTS: ("W", "white on blue"),
    Item.KV: ("K", "black on green"),
    Item.RECURRENT: ("R", "black on cyan"),
    Item.DRAFTER: ("D", "white on magenta"),
    Item.VISION: ("V", "white on magenta"),
    Item.PREFILL: ("P", "black on yellow"),
    Item.LOGITS: ("L", "black on yellow"),
    Item.OVERHEAD: ("O", "white on red"),
    Item.MARGIN: ("M", "white on bright_black"),
}


class CannotPlan(OpsError):
    """The directory, the cards or the flags are at fault; the message says which, with the numbers."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a model directory holds, as far as a plan needs it."""

    config: Mapping[str, object]
    tensors: tuple[Tensor, ...]
    around: Surroundings


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str] = {}


def _read_json(path: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except FileNotFoundError as problem:
        raise CannotPlan(f"{path} is missing: {path.parent} is not a model directory") from problem
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise CannotPlan(f"{path} cannot be read: {problem}") from problem


def _read_tensors(path: Path) -> tuple[Tensor, ...]:
    try:
        with path.open("rb") as file:
            length = header_length(file.read(PREFIX), str(path))
            return parse_header(file.read(length), path.stat().st_size - PREFIX - length, str(path))
    except OSError as problem:
        raise CannotPlan(f"{path} cannot be read: {problem}") from problem


def _has_template(directory: Path) -> bool:
    if any((directory / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    settings = directory / "tokenizer_config.json"
    return settings.is_file() and bool(_read_json(settings).get("chat_template"))


def read_model(directory: Path) -> ModelFiles:
    """Read a directory's config.json and the headers of its safetensors files. Raises CannotPlan or ConfigError."""
    config = _read_json(directory / "config.json")
    shards = sorted(directory.glob("*.safetensors"))
    index = directory / "model.safetensors.index.json"
    named: Mapping[str, str] = {}
    if index.is_file():
        try:
            named = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
        except (OSError, msgspec.MsgspecError) as problem:
            raise CannotPlan(f"{index} cannot be read: {problem}") from problem
    around = Surroundings(
        has_tokenizer=(directory / "tokenizer.json").is_file(),
        has_template=_has_template(directory),
        has_preprocessor=(directory / "preprocessor_config.json").is_file(),
        shards_named=frozenset(named.values()),
        shards_present=frozenset(path.name for path in shards),
        tensors_named=frozenset(named),
    )
    return ModelFiles(config, tuple(tensor for path in shards for tensor in _read_tensors(path)), around)


def _learned(config: Path | None, state_dir: Path | None) -> Learned:
    file = config_file.state_dir(config, state_dir) / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Learned)
    except FileNotFoundError:
        return Learned()
    except (OSError, msgspec.MsgspecError) as problem:
        raise CannotPlan(f"{file} cannot be read: {problem}") from problem


def _named_sizes(gpus: str) -> tuple[float, ...]:
    try:
        sizes = tuple(float(part) for part in gpus.split(","))
    except ValueError as problem:
        raise CannotPlan(f"--gpus is {gpus!r}: write GiB with commas between, as 12,12") from problem
    if not all(0 < size <= 4096 for size in sizes):  # noqa: PLR2004 - more than any card has; also refuses nan
        raise CannotPlan(f"--gpus is {gpus!r}: each size must be above 0 GiB")
    return sizes


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards to plan for, and what should be said about them."""

    cards: tuple[Card, ...]
    notes: tuple[str, ...]


def cards_from(gpus: str | None, learned: Learned, found: tuple[Gpu, ...]) -> Cards:
    """The cards named, or else those found on this machine. Raises CannotPlan where there are none."""
    notes: tuple[str, ...] = ()
    if gpus is None:
        if not found:
            raise CannotPlan("no NVIDIA GPU answers on this machine: name the cards to plan for, as --gpus 12,12")
        sizes = tuple((gpu.name, gpu.memory_mib << 20) for gpu in found)
    else:
        named = _named_sizes(gpus)
        names = [found[n].name if n < len(found) else "" for n in range(len(named))]
        sizes = tuple((name, int(size * (1 << 30))) for name, size in zip(names, named, strict=True))
        if found and len(named) > len(found):
            notes = (f"--gpus names {len(named)} cards; this machine has {len(found)}.",)
    known = [(f"GPU {n}" + (f" ({name})" if name else ""), size, learned.of(name)) for n, (name, size) in enumerate(sizes)]
    return Cards(tuple(Card(name, size, rests.overhead, rests.confirmed) for name, size, rests in known), notes)


def _layouts(layout: Layout | None, cards: tuple[Card, ...]) -> tuple[Layout, ...]:
    if layout is None:
        return tuple(Layout) if len(cards) > 1 else (Layout.SPLIT,)
    if layout is not Layout.SPLIT and len(cards) == 1:
        raise CannotPlan(f"the layout {layout.value} needs two cards or more, and 1 is named")
    return (layout,)


def make_report(directory: Path, named: Cards, demand: Demand, layout: Layout | None) -> PlanReport:
    """The plan for a directory. Raises CannotPlan."""
    layouts = _layouts(layout, named.cards)
    try:
        files = read_model(directory)
        model = describe(files.config, str(directory / "config.json"))
        if not files.tensors:
            raise CannotPlan(f"{directory} has no tensor in any .safetensors file: there is nothing to plan for")
        if model.context and demand.context > model.context:
            raise CannotPlan(f"--context is {demand.context:,}, and the model knows at most {model.context:,} tokens")
        weights = weigh(files.tensors, len(model.layers), tied=model.tied)
        findings = check(files.config, model, files.tensors, files.around)
        return report(directory.resolve().name, model, weights, named.cards, demand, layouts, findings, named.notes)
    except ConfigError as problem:
        raise CannotPlan(str(problem)) from problem


def _bar(plan: CardPlan) -> Text:
    """One card as a line of letters: as many as its share of the card."""
    bar, cells, used = Text(), 0, 0
    for row in plan.rows:
        used += row.size
        upto = min(_BAR, round(used / plan.card.size * _BAR))
        letter, style = _LETTERS[row.item]
        bar.append(letter * (upto - cells), style)
        cells = max(cells, upto)
    return bar.append("·" * (_BAR - cells), "dim")


def _card_table(layout: LayoutReport) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for plan in layout.cards:
        table.add_column(plan.card.name, justify="right")
    table.add_column("")
    for item in Item:
        rows = [next((row for row in plan.rows if row.item is item), None) for plan in layout.cards]
        known = next((row for row in rows if row is not None), None)
        if known is not None:
            confirmed = max(plan.card.confirmed for plan in layout.cards)
            told = f" in {confirmed} loads" if item is Item.OVERHEAD and confirmed else ""
            letter, style = _LETTERS[item]
            sizes = [mib(row.size) if row else "" for row in rows]
            table.add_row(Text(letter, style) + Text(f" {item.value}"), *sizes, known.certainty.value + told)
    table.add_row("  free", *(mib(plan.free) for plan in layout.cards), "")
    held = [f"{plan.layers[0]} to {plan.layers[1]}" if plan.layers else "none" for plan in layout.cards]
    table.add_row("  layers", *held, "")
    return table


def _layout_view(layout: LayoutReport, demand: Demand) -> Group:
    people = "person" if layout.most_people == 1 else "people"
    head = Text(f"\n{layout.layout.value}: ", "bold")
    head.append(f"{layout.most_people} {people} at {demand.context:,} tokens", "bold green" if layout.fits else "bold red")
    if layout.longest_context:
        head.append(f"; {demand.people} at {layout.longest_context:,}")
    parts: list[Text | Table] = [head]
    if layout.problem:
        parts.append(Text(f"{demand.people} do not fit: {layout.problem}."))
    parts.extend(Text(f"  would fit: {change.words}") for change in layout.changes)
    if layout.cards:
        each = [str(plan.people) for plan in layout.cards]
        parts.append(
            Text(f"with {' and '.join(each)} people:" if layout.layout is Layout.REPLICAS else f"with {each[0]} people:")
        )
        parts.extend((_card_table(layout), *(_bar(plan) for plan in layout.cards)))
    return Group(*parts)


def view(plan: PlanReport) -> Group:
    """The report for people."""
    bits = f", {plan.weight_bits:.2f} bits a weight" if plan.weight_bits is not None else ""
    precision = plan.demand.precision
    head = Text(f"{plan.model} ({plan.architecture}): {mib(plan.weight_bytes)} of weights{bits}. ", "bold")
    head.append(f"Cache: {precision.k_bits}-bit keys, {precision.v_bits}-bit values. Chunks of {plan.demand.chunk} tokens.")
    marks = {Gravity.FATAL: Text("wrong: ", "bold red"), Gravity.WARNING: Text("note: ", "yellow")}
    findings = [marks[finding.gravity] + Text(finding.words + ".") for finding in plan.findings]
    return Group(
        head, *findings, *(_layout_view(layout, plan.demand) for layout in plan.layouts), Text(""), *map(Text, plan.notes)
    )


def plan(
    model: Annotated[Path, typer.Argument(help="The model directory.")],
    *,
    gpus: Annotated[str | None, typer.Option(help="GiB of each card, as 12,12; default: this machine's.")] = None,
    context: Annotated[int, typer.Option(min=256, help="Tokens a person: prompt and answer.")] = 81920,
    people: Annotated[int, typer.Option(min=1, max=256, help="How many people at once.")] = 6,
    k_bits: Annotated[int | None, typer.Option(help="Bits of a cached key: 2 to 8, or 16; default: 16.")] = None,
    v_bits: Annotated[int | None, typer.Option(help="Bits of a cached value; default: as --k-bits.")] = None,
    layout: Annotated[Layout | None, typer.Option(help="How cards are used together; default: every way.")] = None,
    chunk: Annotated[int, typer.Option(min=256, help="Prompt tokens prefilled in one step.")] = 2048,
    draft_tokens: Annotated[int, typer.Option(min=0, max=64, help="Tokens drafted ahead (speculation).")] = 0,
    drafter: Annotated[bool, typer.Option(help="Load the model's own drafter (MTP).")] = False,
    vision: Annotated[bool, typer.Option(help="Load the vision tower.")] = False,
    config: Config = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where measured overheads lie; default: the configuration's.")] = None,
    json: Json = False,
) -> None:
    """Say how many people fit at how much context, and what to change if they do not. Loads nothing.

    Also checks the directory as an upload. Exit code 1 where the people asked for fit in no layout or the directory is not whole.
    """
    keys = k_bits if k_bits is not None else v_bits if v_bits is not None else FULL_BITS
    demand = Demand(
        context=context,
        people=people,
        precision=Precision(keys, v_bits if v_bits is not None else keys),
        chunk=chunk,
        history=draft_tokens,
        drafter=drafter,
        vision=vision,
    )
    made = make_report(model, cards_from(gpus, _learned(config, state_dir), look(ThisMachine()).gpus), demand, layout)
    if json:
        print_json(made)
    else:
        Console().print(view(made), soft_wrap=False)
    if not made.fits or any(finding.gravity is Gravity.FATAL for finding in made.findings):
        raise typer.Exit(ExitCode.FAILED)
