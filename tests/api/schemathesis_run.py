"""Asks the application what `/openapi.json` allows and what it forbids, with schemathesis, and looks at the answers.

`python -m tests.api.schemathesis_run` tries everything, for some minutes; the tests take a part of it. No 500, declared statuses
and types only, wrong data refused. What cannot be asked is that everything which fits a schema is accepted: schemas cannot say
that fields exclude each other, or that a text must be a valid grammar.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from daemon.api.application import runner
from tests.api.fakes import FakePrompts, FakeServing, application
from tests.api.test_chat_parsing import ADDED, TEMPLATE

_TOOL = Path(sys.executable).with_name("schemathesis")
_OPTIONS = ("--seed", "1", "--exclude-checks", "positive_data_acceptance", "--no-color")


@asynccontextmanager
async def served() -> AsyncGenerator[str]:
    """The URL of an application whose model thinks and calls tools."""
    app = runner(application(FakeServing(), prompts=FakePrompts(tool_source=TEMPLATE), added=ADDED))
    await app.setup()
    try:
        await web.TCPSite(app, "127.0.0.1", 0).start()
        host, port = app.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await app.cleanup()


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
