"""`exl3ctl bench`: put load on an OpenAI-compatible server and say how it bears it.

Four scenarios: the ladder (each stream sends one request after the other), and three of the project's own benches against a
server that somebody else has started, with whatever model it serves.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

import typer
from msgspec import Struct, structs
from rich.console import Console

from ops.bench.summary import Level, summarise
from ops.bench.values import Endpoint, Load, Target
from ops.exit_codes import ExitCode
from ops.options import Json, print_json


class Scenario(Enum):
    """What is measured."""

    LADDER = "ladder"
    STREAMS = "streams"
    FAIRNESS = "fairness"
    INTERFERENCE = "interference"


def bench(
    *,
    scenario: Annotated[
        Scenario,
        typer.Option(
            help="ladder: rising concurrency; streams: that many requests at once, once; fairness: --requests long ones of --key"
            " beside five chats of --other-key; interference: running answers while one long prompt is read."
        ),
    ] = Scenario.LADDER,
    base_url: Annotated[str, typer.Option(help="The server, up to and including /v1.")] = "http://127.0.0.1:8321/v1",
    model: Annotated[str | None, typer.Option(help="Model name; default: the first that the server lists.")] = None,
    key: Annotated[
        str | None, typer.Option(help="API key.", envvar=["EXL3D_API_KEY", "OPENAI_API_KEY"], show_envvar=True)
    ] = None,
    other_key: Annotated[
        str | None, typer.Option(help="Key of the other person (fairness).", envvar="EXL3D_OTHER_KEY", show_envvar=True)
    ] = None,
    endpoint: Annotated[Endpoint, typer.Option(help="Which endpoint to ask.")] = Endpoint.CHAT,
    streams: Annotated[
        str | None,
        typer.Option(help="How many requests at once, level after level; default 1,2,4,8 (streams: 1,8,64; interference: 4)."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help="Requests a level; default: twice its streams, at least 4 (fairness: long requests, 20).", min=1),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens to generate in each request; default 128 (interference: 2048).", min=1)
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="About how long each prompt is; default 256 (the long ones: 4000).", min=1)
    ] = None,
    stop_early: Annotated[bool, typer.Option("--stop-early", help="Let the model end its answers (no ignore_eos).")] = False,
    shared_prompt: Annotated[
        bool, typer.Option("--shared-prompt", help="Send the same prompt always: shows the prefix cache.")
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; default: the server's.", min=0)] = None,
    seed: Annotated[int, typer.Option(help="Prompts differ from seed to seed.")] = 0,
    json: Json = False,
) -> None:
    """Measure a server: time to first token, inter-token latency and tokens a second at rising concurrency.

    Exit code 1 where a request failed.
    """
    from ops.bench import client  # noqa: PLC0415  # aiohttp takes a third of a second to import; only this command needs it

    base_url = base_url.rstrip("/")
    target = Target(base_url, model or asyncio.run(client.first_model(base_url, key)), key, endpoint)
    wishes = _Wishes(streams, requests, tokens, prompt_tokens)
    match scenario:
        case Scenario.LADDER:
            usual = Load(1, 1, 1, 1, not stop_early, shared_prompt, temperature, seed)
            _show_levels(target, _climb(target, wishes, usual), json=json)
        case Scenario.STREAMS:
            _show_levels(target, _streams(target, wishes), json=json)
        case Scenario.FAIRNESS:
            _show(_fairness(target, wishes, other_key), json=json)
        case Scenario.INTERFERENCE:
            _show(_interference(target, wishes), json=json)


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What the person said about the size; None: nothing."""

    streams: str | None
    requests: int | None
    tokens: int | None
    prompt_tokens: int | None


def _climb(target: Target, wishes: _Wishes, usual: Load) -> list[Level]:
    """The ladder; `usual` has everything that is the same on each level."""
    from ops.bench import client  # noqa: PLC0415  # as above

    levels: list[Level] = []
    for step, width in enumerate(_ladder(wishes.streams or "1,2,4,8")):
        load = replace(
            usual,
            streams=width,
            requests=wishes.requests or max(4, 2 * width),
            tokens=wishes.tokens or 128,
            prompt_tokens=wishes.prompt_tokens or 256,
            seed=usual.seed + step,
        )
        print(f"{width} at once: {load.requests} requests …", file=sys.stderr)
        levels.append(summarise(load, asyncio.run(client.run(target, load))))
    return levels


def _streams(target: Target, wishes: _Wishes) -> list[Level]:
    from ops.bench import against  # noqa: PLC0415  # imports aiohttp, as `client`

    widths = _ladder(wishes.streams or "1,8,64")
    return asyncio.run(against.streams(target, widths, wishes.tokens or 128, wishes.prompt_tokens or 256))


def _fairness(target: Target, wishes: _Wishes, other_key: str | None) -> Struct:
    from ops.bench import against  # noqa: PLC0415  # as above

    if other_key is None:
        raise typer.BadParameter("fairness needs the key of a second person", param_hint="--other-key")
    size = against.crowd(wishes.requests or 20, wishes.prompt_tokens or 4000, wishes.tokens or 128)
    return asyncio.run(against.fairness(target, other_key, size))


def _interference(target: Target, wishes: _Wishes) -> Struct:
    from ops.bench import against  # noqa: PLC0415  # as above

    width = _ladder(wishes.streams or "4")[0]
    return asyncio.run(against.interference(target, width, wishes.prompt_tokens or 4000, wishes.tokens or 2048))


def _show(found: Struct, *, json: bool) -> None:
    """Figures under their names."""
    if json:
        print_json(found)
        return
    for name, value in structs.asdict(found).items():
        print(f"{name.replace('_', ' '):>24}  {value}")


def _show_levels(target: Target, levels: Sequence[Level], *, json: bool) -> None:
    from ops.bench.table import ladder_table  # noqa: PLC0415  # only people need it

    if json:
        print_json({"base_url": target.base_url, "model": target.model, "levels": levels})
    else:
        Console().print(ladder_table(f"{target.model} at {target.base_url}", levels))
    for level in levels:
        for problem, count in level.problems.items():
            print(f"{level.streams} at once, {count} failed: {problem}", file=sys.stderr)
    if any(level.failed for level in levels):
        raise typer.Exit(ExitCode.FAILED)


def _ladder(text: str) -> list[int]:
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError as problem:
        raise typer.BadParameter("numbers with commas between them, as in 1,2,4,8", param_hint="--streams") from problem
    if any(level < 1 for level in levels):
        raise typer.BadParameter("at least one stream a level", param_hint="--streams")
    return levels
