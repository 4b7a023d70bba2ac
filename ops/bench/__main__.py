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
from ops.bench import health, overhead, prefix, recovery, soak
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
