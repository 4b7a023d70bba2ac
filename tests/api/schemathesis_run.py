"""Asks the application what `/openapi.json` allows and what it forbids, with schemathesis, and looks at the answers.

`python -m tests.api.schemathesis_run` tries everything, for some minutes; the tests take a part of it. No 500, declared statuses
and types only, wrong data refused. What cannot be asked is that everything which fits a schema is accepted: schemas cannot say
that fields exclude each other, or that a text must be a valid grammar.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.api.conftest import on_a_port
from tests.api.fakes import FakePrompts, FakeServing, application
from tests.api.test_chat_parsing import ADDED, TEMPLATE

_TOOL = Path(sys.executable).with_name("schemathesis")
_OPTIONS = ("--seed", "1", "--exclude-checks", "positive_data_acceptance", "--no-color")


def served() -> AbstractAsyncContextManager[str]:
    """The URL of an application whose model thinks and calls tools."""
    return on_a_port(application(FakeServing(), prompts=FakePrompts(tool_source=TEMPLATE), added=ADDED))


async def ask(url: str, folder: Path, *options: str) -> tuple[int, str]:
    """Exit status and output of one run."""
    process = await asyncio.create_subprocess_exec(
        str(_TOOL),
        "run",
        f"{url}/openapi.json",
        *_OPTIONS,
        *options,
        cwd=folder,
        env=dict(os.environ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def _main(options: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        async with served() as url:
            status, text = await ask(url, Path(folder), "--phases", "coverage,fuzzing", *options)
    print(text)  # noqa: T201  # what the command is for
    return status


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(sys.argv[1:])))
