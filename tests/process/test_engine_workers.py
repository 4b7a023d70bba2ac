"""Processes that an engine starts, as exllamav3 does for several cards and for experts: known as ours, gone with it."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from daemon.host.engine_process import EngineProcess, process_state
from daemon.host.kin import relatives
from tests.process.front import DEADLINE

ENGINE = """
import multiprocessing, signal, sys, time

def work(ready):
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    ready.send("working")
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=work, args=(theirs,))
    worker.start()
    ours.recv()
    print("worker", worker.pid, flush=True)
    time.sleep(600)
"""
"""Starts its worker as the library does: another interpreter, deaf to what ends a terminal's programs."""


def until(holds: Callable[[], bool]) -> None:
    """Wait, in a thread; a test that waits in vain fails."""
    limit = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


async def test_worker_of_an_engine_is_its_kin_and_dies_with_it(tmp_path: Path) -> None:
    """The engine alone is killed, as the kernel does it when memory is short; its worker hears of nothing."""
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    ended = asyncio.Event()
    engine = await EngineProcess.start(
        (sys.executable, str(script)),
        on_reports=lambda _reports: None,
        on_lost=lambda _why: None,
        on_exit=lambda _code: ended.set(),
    )
    try:
        await asyncio.to_thread(until, lambda: "worker" in engine.last_words())
        worker = int(engine.last_words().split()[-1])
        assert worker in await asyncio.to_thread(relatives, engine.pid)
        assert await asyncio.to_thread(process_state, worker) in {"S", "R"}
    finally:
        os.kill(engine.pid, signal.SIGKILL)
        await ended.wait()
    await asyncio.to_thread(until, lambda: process_state(worker) in {"?", "Z", "X"})
