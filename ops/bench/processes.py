"""The processes that benches start: a daemon with a configuration of its own, and the bare generator. Both end with the bench."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

from daemon.core.bare_run import BareReady, BareResult, BareRun
from daemon.core.settings import BackendKind, LogFormat, LogSettings, Settings
from ops.admin_socket import fetch_status, socket_path
from ops.errors import BenchFailed, OpsError

_START = 300.0
"""Seconds a process may take until it is ready."""
_STOP = 15.0
_POLL = 0.05
_LINE = 2000
"""Characters of a log line that are shown."""
_OK = 200


@dataclass(frozen=True, slots=True)
class Setup:
    """What both sides of a comparison are given."""

    model: Path
    backend: str
    cache_tokens: int
    max_batch: int
    threads: int = 1
    base: Settings = field(default_factory=Settings)
    """What else the daemon is configured with. Model, address, state directory, log and the fields above go over it."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables for the daemon, over ours."""
    log_level: str = "warning"


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """A daemon that is ready."""

    base_url: str
    """Up to and including `/v1`."""
    health_url: str
    model: str
    front: int
    """Process id of the front."""
    engine: int
    """Process id of the engine when the daemon became ready."""
    state: Path
    """Its state directory."""
    log: Path
    """What it writes to stderr: a JSON document a line."""


@contextlib.asynccontextmanager
async def daemon(setup: Setup) -> AsyncGenerator[RunningDaemon]:
    """Start a daemon, wait until it is ready, and stop it afterwards. Raises BenchFailed."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="exl3d-bench-") as folder:
        state, log = Path(folder, "state"), Path(folder, "log")
        file = _write_config(Path(folder, "config.yaml"), setup, port, state)
        async with _child(["-m", "daemon", "--config", str(file)], log, setup.environment) as process:
            await _until_ready(process, f"{url}/health", log)
            status = fetch_status(socket_path(state))
            engine = next((engine.pid for engine in status.engines if engine.pid is not None), None)
            if engine is None:
                raise BenchFailed("the daemon is ready but names no engine process")
            try:
                yield RunningDaemon(f"{url}/v1", f"{url}/health", status.model, process.pid, engine, state, log)
            except BenchFailed:
                state_now = "still runs" if process.returncode is None else f"had ended with code {process.returncode}"
                kept = Path(tempfile.mkdtemp(prefix="exl3d-bench-failed-"), "log")
                shutil.copy(log, kept)
                print(f"the daemon {state_now}; its log is kept in {kept} and ends so:\n{end_of(log)}", file=sys.stderr)
                raise


def _write_config(file: Path, setup: Setup, port: int, state: Path) -> Path:
    """A configuration of its own keeps whatever lies in the working directory out. JSON is YAML."""
    engine = msgspec.structs.replace(
        setup.base.engine,
        backend=BackendKind(setup.backend),
        cache_tokens=setup.cache_tokens,
        max_batch=setup.max_batch,
        threads=setup.threads,
    )
    log = LogSettings(level=setup.log_level, format=LogFormat.JSON)
    config = msgspec.structs.replace(setup.base, model=str(setup.model), port=port, state_dir=str(state), engine=engine, log=log)
    file.write_bytes(msgspec.json.encode(config))
    return file


class Bare:
    """The bare generator in its process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def run(self, wanted: BareRun) -> BareResult:
        """Generate, and say how long it took."""
        if self._process.stdin is None:
            raise BenchFailed("the bare generator has no standard input")
        self._process.stdin.write(msgspec.json.encode(wanted) + b"\n")
        await self._process.stdin.drain()
        return msgspec.json.decode(await self.line(), type=BareResult)

    async def line(self) -> bytes:
        """The next line it says. Raises BenchFailed where it says nothing more."""
        line = await self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise BenchFailed(f"the bare generator ended: {end_of(self._log)}")
        return line


@contextlib.asynccontextmanager
async def bare(setup: Setup) -> AsyncGenerator[Bare]:
    """Start the bare generator and wait until it is ready."""
    arguments = ["-m", "daemon.engine.bare", "--model", str(setup.model), "--backend", setup.backend]
    arguments += ["--cache-tokens", str(setup.cache_tokens), "--max-batch", str(setup.max_batch), "--threads", str(setup.threads)]
    if setup.base.engine.null_profile is not None:
        arguments += ["--null-profile", setup.base.engine.null_profile]
    async with speaker(arguments) as generator:
        yield generator


@contextlib.asynccontextmanager
async def speaker(arguments: Sequence[str]) -> AsyncGenerator[Bare]:
    """Start a Python process that answers as the bare generator does, and wait until it is ready."""
    with tempfile.TemporaryDirectory(prefix="exl3d-bench-") as folder:
        log = Path(folder, "log")
        async with _child(arguments, log) as process:
            generator = Bare(process, log)
            msgspec.json.decode(await asyncio.wait_for(generator.line(), _START), type=BareReady)
            yield generator


def cpu_seconds(process: int) -> float:
    """CPU time of a process so far, all its threads together, from the scheduler's own count in nanoseconds."""
    total = 0
    for schedstat in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may end while we look
            total += int(schedstat.read_text(encoding="ascii").split()[0])
    return total / 1e9


@contextlib.asynccontextmanager
async def _child(
    arguments: Sequence[str], log: Path, more: Mapping[str, str] | None = None
) -> AsyncGenerator[asyncio.subprocess.Process]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **(more or {})}
    with log.open("wb") as words:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=words,
            env=environment,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _until_ready(process: asyncio.subprocess.Process, url: str, log: Path) -> None:
    deadline = time.monotonic() + _START
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            if process.returncode is not None:
                raise BenchFailed(f"the daemon ended with code {process.returncode}: {end_of(log)}")
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url) as answer:
                    if answer.status == _OK:
                        return
            await asyncio.sleep(_POLL)
    raise BenchFailed(f"the daemon was not ready after {_START:g} s: {end_of(log)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if not isinstance(port, int):
        raise OpsError("the system gave no port")
    return port


def end_of(log: Path) -> str:
    """The last lines of a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(line[:_LINE] for line in lines[-12:]) or "it said nothing"
