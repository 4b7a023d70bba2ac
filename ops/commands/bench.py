"""`exl3ctl bench`: put load on an OpenAI-compatible server and say how it bears it."""

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console

from ops.bench.values import Endpoint, Load, Target
from ops.exit_codes import ExitCode
from ops.options import Json, print_json


def bench(
    *,
    base_url: Annotated[str, typer.Option(help="The server, up to and including /v1.")] = "http://127.0.0.1:8321/v1",
    model: Annotated[str | None, typer.Option(help="Model name; default: the first that the server lists.")] = None,
    key: Annotated[
        str | None, typer.Option(help="API key.", envvar=["EXL3D_API_KEY", "OPENAI_API_KEY"], show_envvar=True)
    ] = None,
    endpoint: Annotated[Endpoint, typer.Option(help="Which endpoint to ask.")] = Endpoint.CHAT,
    streams: Annotated[str, typer.Option(help="Ladder: how many requests at once, level after level.")] = "1,2,4,8",
    requests: Annotated[int | None, typer.Option(help="Requests a level; default: twice its streams, at least 4.", min=1)] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to generate in each request.", min=1)] = 128,
    prompt_tokens: Annotated[int, typer.Option(help="About how long each prompt is.", min=1)] = 256,
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
    from ops.bench.summary import Level, summarise  # noqa: PLC0415  # as above
    from ops.bench.table import ladder_table  # noqa: PLC0415  # as above

    ladder = _ladder(streams)
    base_url = base_url.rstrip("/")
    target = Target(base_url, model or asyncio.run(client.first_model(base_url, key)), key, endpoint)
    levels: list[Level] = []
    for step, width in enumerate(ladder):
        load = Load(
            streams=width,
            requests=requests or max(4, 2 * width),
            tokens=tokens,
            prompt_tokens=prompt_tokens,
            ignore_eos=not stop_early,
            shared_prompt=shared_prompt,
            temperature=temperature,
            seed=seed + step,
        )
        print(f"{width} at once: {load.requests} requests …", file=sys.stderr)
        levels.append(summarise(load, asyncio.run(client.run(target, load))))
    if json:
        print_json({"base_url": base_url, "model": target.model, "levels": levels})
    else:
        Console().print(ladder_table(f"{target.model} at {base_url}", levels))
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
