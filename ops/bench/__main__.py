"""`make bench NAME=…`: the project's own figures. The last line printed is one JSON document.

Each scenario is a sub-command with options of its own: `python -m ops.bench recovery --help`.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ops import demo_model
from ops.bench import alternate, cpu, fairness, health, interference, overhead, pool, prefix, recovery, soak, streams
from ops.errors import OpsError
from ops.exit_codes import ExitCode
from ops.options import print_json
from ops.progress_bars import bars


@dataclass(frozen=True, slots=True)
class _Given:
    """The command line, parsed."""

    values: argparse.Namespace

    def count(self, name: str, usual: int) -> int:
        """An option that is a number, or its usual value."""
        found = cast("int | None", getattr(self.values, name))
        return usual if found is None else found


@dataclass(frozen=True, slots=True)
class _Scenario:
    """One sub-command."""

    help: str
    options: Sequence[tuple[str, str]]
    """Options, all of them numbers, with their help."""
    run: Callable[[_Given], Awaitable[object]]


async def _demo() -> Path:
    """The demo model, made ready if it is not."""
    state = Path(os.environ.get("EXL3D_TEST_STATE") or Path.home() / ".cache" / "exl3d" / "test-state")

    def make() -> Path:
        with bars() as progress:
            return demo_model.make_ready(state, progress)

    return await asyncio.to_thread(make)


async def _overhead(given: _Given) -> overhead.Overhead:
    usual = overhead.Size()
    size = overhead.Size(
        runs=given.count("runs", usual.runs),
        null_tokens=given.count("tokens", usual.null_tokens),
        demo_tokens=given.count("demo_tokens", usual.demo_tokens),
    )
    return await overhead.measure(await _demo(), size)


async def _health(given: _Given) -> health.Health:
    return await health.measure(await _demo(), health.Size(tokens=given.count("demo_tokens", health.Size().tokens)))


async def _prefix(given: _Given) -> prefix.Prefix:
    return await prefix.measure(prefix.Size(tokens=given.count("conversation_tokens", prefix.Size().tokens)))


async def _recovery(given: _Given) -> recovery.Recovery:
    usual = recovery.Size()
    size = recovery.Size(
        kills=given.count("kills", usual.kills),
        streams=given.count("streams", usual.streams),
        seed=given.count("seed", usual.seed),
    )
    return await recovery.measure(await _demo(), size)


async def _soak(given: _Given) -> soak.Soak:
    usual = soak.Size()
    size = soak.Size(
        minutes=given.count("minutes", int(usual.minutes)),
        rounds=given.count("rounds", usual.rounds),
        clients=given.count("clients", usual.clients),
        kills=cast("int | None", given.values.kills),
        seed=given.count("seed", usual.seed),
    )
    return await soak.measure(size)


async def _streams(given: _Given) -> streams.Streams:
    usual = streams.Size()
    size = streams.Size(
        tokens=given.count("tokens", usual.tokens),
        slots=given.count("slots", usual.slots),
        max_queued=given.count("max_queued", usual.max_queued),
        runs=given.count("runs", usual.runs),
    )
    return await streams.measure(size)


async def _fairness(given: _Given) -> fairness.Fairness:
    usual = fairness.Size()
    size = fairness.Size(
        rounds=given.count("rounds", usual.rounds),
        long_requests=given.count("long_requests", usual.long_requests),
        speed=given.count("speed", int(usual.speed)),
    )
    return await fairness.measure(size)


async def _interference(given: _Given) -> interference.Interference:
    usual = interference.Size()
    size = interference.Size(
        prompt_tokens=given.count("prompt_tokens", usual.prompt_tokens), speed=given.count("speed", int(usual.speed))
    )
    return await interference.measure(size)


async def _pool(given: _Given) -> pool.Pool:
    usual = pool.Size()
    size = pool.Size(tokens=given.count("tokens", usual.tokens), speed=given.count("speed", int(usual.speed)))
    return await pool.measure(size)


async def _alternate(given: _Given) -> alternate.Alternate:
    usual = alternate.Size()
    size = alternate.Size(tokens=given.count("tokens", usual.tokens), turns=given.count("turns", usual.turns))
    return await alternate.measure(size)


async def _cpu(given: _Given) -> cpu.Cpu:
    usual = cpu.Size()
    return await cpu.measure(await _demo(), cpu.Size(given.count("runs", usual.runs), given.count("tokens", usual.tokens)))


_SPEED = ("--speed", "how much faster than the profile the model is; figures are given at the profile's own speed")

_SCENARIOS = {
    "overhead": _Scenario(
        "what the daemon costs for each token, over exllamav3's generator alone",
        (
            ("--runs", "runs of each level; the median counts"),
            ("--tokens", "tokens a run on the null backend"),
            ("--demo-tokens", "tokens a stream on the demo model"),
        ),
        _overhead,
    ),
    "health": _Scenario(
        "how fast /health answers while the engine works", (("--demo-tokens", "tokens a stream on the demo model"),), _health
    ),
    "prefix": _Scenario(
        "what the next turn of a long conversation costs",
        (("--conversation-tokens", "length the conversation grows to"),),
        _prefix,
    ),
    "recovery": _Scenario(
        "what clients notice when engines fail",
        (
            ("--kills", "faults in all"),
            ("--streams", "streams at any time"),
            ("--seed", "of the moments and kinds of faults"),
        ),
        _recovery,
    ),
    "streams": _Scenario(
        "1, 8, 64 and 300 streams over HTTP with a profile's step times",
        (
            ("--tokens", "tokens of each answer"),
            ("--slots", "requests that run together"),
            ("--max-queued", "requests that may wait"),
            ("--runs", "comparisons with the bare generator; the median counts"),
        ),
        _streams,
    ),
    "fairness": _Scenario(
        "whether one person's many long requests make others wait",
        (("--rounds", "repetitions"), ("--long-requests", "of the aggressor"), _SPEED),
        _fairness,
    ),
    "interference": _Scenario(
        "what one long prompt does to running answers", (("--prompt-tokens", "its length"), _SPEED), _interference
    ),
    "pool": _Scenario(
        "six people whose conversations fill the cache, and more than fill it",
        (("--tokens", "of a conversation at its end"), _SPEED),
        _pool,
    ),
    "alternate": _Scenario(
        "whether two people's long conversations both stay warm",
        (("--tokens", "of a conversation"), ("--turns", "warm turns of each")),
        _alternate,
    ),
    "cpu": _Scenario(
        "how fast the CPU path is against transformers, on the demo model",
        (("--runs", "rounds; the median ratio counts"), ("--tokens", "tokens of each answer")),
        _cpu,
    ),
    "soak": _Scenario(
        "whether anything grows while clients come, go and vanish and engines are killed",
        (
            ("--minutes", "how long"),
            ("--rounds", "quiet moments at which the daemon is looked at"),
            ("--clients", "clients at any time"),
            ("--kills", "engines killed in all"),
            ("--seed", "of behaviours and moments"),
        ),
        _soak,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make bench NAME=…", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    for name, scenario in _SCENARIOS.items():
        one = names.add_parser(name, help=scenario.help, description=scenario.help)
        for option, words in scenario.options:
            one.add_argument(option, type=int, help=words)
    given = parser.parse_args(arguments)
    scenario = _SCENARIOS[cast("str", given.name)]

    async def run() -> object:
        return await scenario.run(_Given(given))

    try:
        found = asyncio.run(run())
        print_json(found)
        if isinstance(found, soak.Soak) and (found.grown or found.problems):
            return ExitCode.FAILED
    except OpsError as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return problem.code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
