"""`exl3ctl plan`: how many people fit at how much context, before anything is loaded, and whether the directory is whole."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from daemon.core.errors import ConfigError
from daemon.core.vram_check import check
from daemon.core.vram_findings import Gravity
from daemon.core.vram_report import PlanReport, report
from daemon.core.vram_values import Layout
from ops.exit_codes import ExitCode
from ops.options import Config, Json, print_json
from ops.plan_inputs import Asked, CannotPlan, Home, cards_from, demand_from, household_from, read, read_home
from ops.plan_view import plan_view


def make_report(directory: Path, asked: Asked, home: Home) -> PlanReport:
    """The plan for a directory. Raises CannotPlan."""
    cards = cards_from(asked, home)
    try:
        model = read(directory, tokenizer=True)
        demand = demand_from(asked, model)
        findings = check(model.files.config, model.shape, model.files.tensors, model.files.around)
        household = household_from(asked, home)
        return report(
            model.name,
            model.shape,
            model.weights,
            cards.cards,
            demand,
            household=household,
            findings=findings,
            notes=cards.notes,
            guarantees=home.guarantees,
        )
    except ConfigError as problem:
        raise CannotPlan(str(problem)) from problem
    except OSError as problem:
        raise CannotPlan(f"{directory} cannot be read: {problem.strerror or problem}") from problem


def plan(
    model: Annotated[Path, typer.Argument(help="The model directory.")],
    *,
    gpus: Annotated[str | None, typer.Option(help="GiB of each card, as 12,12; default: this machine's.")] = None,
    gpu_split: Annotated[str | None, typer.Option(help="GiB of each card to use, as 11,8; default: all.")] = None,
    reserve: Annotated[
        str | None, typer.Option(help="MiB to leave free on all cards, or on each, as 1024,256; default: the configuration's.")
    ] = None,
    host_memory: Annotated[
        float | None, typer.Option(min=0, help="GiB of memory the machine has; default: this machine's, unless --gpus are named.")
    ] = None,
    context: Annotated[int, typer.Option(min=256, help="Tokens a person: prompt and answer.")] = 81920,
    people: Annotated[int, typer.Option(min=1, max=256, help="How many people at once.")] = 6,
    k_bits: Annotated[int | None, typer.Option(help="Bits of a cached key: 2 to 8, or 16; default: 16.")] = None,
    v_bits: Annotated[int | None, typer.Option(help="Bits of a cached value; default: as --k-bits.")] = None,
    layout: Annotated[Layout | None, typer.Option(help="How cards are used together; default: every way.")] = None,
    chunk: Annotated[int, typer.Option(min=256, help="Prompt tokens prefilled in one step.")] = 2048,
    draft_tokens: Annotated[
        int | None, typer.Option(min=0, max=64, help="Tokens drafted ahead (speculation); default: as the drafter says, else 0.")
    ] = None,
    drafter: Annotated[bool, typer.Option(help="Load the model's own drafter (MTP).")] = False,
    draft_model: Annotated[Path | None, typer.Option(help="Directory of a small model that drafts.")] = None,
    lora: Annotated[list[Path] | None, typer.Option(help="Directory of a LoRA adapter; may be given again.")] = None,
    vision: Annotated[bool, typer.Option(help="Load the vision tower.")] = False,
    moe_cpu_layers: Annotated[
        int, typer.Option(min=0, help="Layers, the first that have experts, whose experts stay in host memory.")
    ] = 0,
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
        reserve=reserve,
        host_memory=host_memory,
        context=context,
        people=people,
        k_bits=k_bits,
        v_bits=v_bits,
        layout=layout,
        chunk=chunk,
        draft_tokens=draft_tokens,
        drafter=drafter,
        draft_model=draft_model,
        loras=tuple(lora or ()),
        vision=vision,
        moe_cpu_layers=moe_cpu_layers,
    )
    made = make_report(model, asked, read_home(config, state_dir))
    if json:
        print_json(made)
    else:
        Console().print(plan_view(made), soft_wrap=False)
    if not made.fits or any(finding.gravity is Gravity.FATAL for finding in made.findings):
        raise typer.Exit(ExitCode.FAILED)
