"""The whole daemon from outside: OpenAI's client, signals, systemd, exit codes."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import openai
import pytest

from tests.process.front import DEADLINE, Front, command, environment, free_port, front, wait_until
from tests.process.house import until

SLOW = {"decode": [{"at": 1, "seconds": 0.01}]}


@asynccontextmanager
async def client_of(running: Front) -> AsyncGenerator[openai.AsyncOpenAI]:
    """OpenAI's client on a daemon; it never tries again by itself."""
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none", max_retries=0) as client:
        yield client


async def chat(client: openai.AsyncOpenAI, model: str, words: str, count: int) -> tuple[str, str | None]:
    """One streamed chat: its text and how it ended."""
    text, reason = "", None
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": words}],
        max_tokens=count,
        stream=True,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


async def test_daemon_serves_survives_its_engine_and_drains(model: Path, tmp_path: Path) -> None:
    """One daemon's life: ready, four streams, `kill -9` of the engine under four more, SIGTERM under the last one."""
    with front(model, tmp_path, "server.drain_seconds=60", profile=SLOW) as running:
        name = model.name
        prompts = ["one", "two", "three", "four"]
        async with client_of(running) as client:
            undisturbed = await asyncio.gather(*(chat(client, name, words, 150) for words in prompts))
            assert [reason for _, reason in undisturbed] == ["length"] * 4
            engine = running.engine_pid()
            reading = asyncio.gather(*(chat(client, name, words, 150) for words in prompts))
            await until(lambda: running.status().running == 4, "four running")
            os.kill(engine, signal.SIGKILL)
            assert await reading == undisturbed
            assert running.engine_pid() != engine
            assert running.status().engines[0].restarts == 1

            last = asyncio.ensure_future(chat(client, name, "five", 100))
            await until(lambda: running.status().running == 1, "one running")
            running.process.send_signal(signal.SIGTERM)
            await until(lambda: "stopping" in running.text(), "the signal taken")
            with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
                await chat(client, name, "six", 1)
            assert (await last)[1] == "length"
        assert await asyncio.to_thread(running.process.wait, DEADLINE) == 0
        heard = running.heard
        assert [datagram for datagram in heard if datagram in {b"READY=1", b"STOPPING=1"}] == [b"READY=1", b"STOPPING=1"]
        assert heard.index(b"WATCHDOG=1") >= 0
        assert b"EXTEND_TIMEOUT_USEC=185000000" in heard  # longer than the silence that makes the supervisor act
        assert b"STATUS=ready: requests are served" in heard
        assert not (tmp_path / "state" / "run" / "exl3d.sock").exists()
        lines = [line for line in running.text().splitlines() if " of local: " in line]
        assert len(lines) == 9
        assert "four" not in running.text()


async def test_streams_that_outlast_the_drain_end_with_an_error_event(model: Path, tmp_path: Path) -> None:
    with front(model, tmp_path, "server.drain_seconds=0.2", profile=SLOW) as running:
        async with client_of(running) as client:
            reading = asyncio.ensure_future(chat(client, model.name, "hello", 4000))
            await until(lambda: running.status().running == 1, "one running")
            running.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match="shutting down"):
                await reading
        assert await asyncio.to_thread(running.process.wait, DEADLINE) == 0


def test_interrupt_before_anything_is_served_ends_quietly(model: Path, tmp_path: Path) -> None:
    """Held up where it reads its configuration: a pipe with nothing in it."""
    config = tmp_path / "config.yaml"
    os.mkfifo(config)
    argv = [*command(model, tmp_path / "state", 0, ()), "--config", str(config)]
    started = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment(HOME=str(tmp_path)))
    with ExitStack() as held, started as process:
        wait_until(lambda: _opened(config, held), "the configuration is being read")
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=DEADLINE)
    assert (process.returncode, words) == (130, "")


def _opened(pipe: Path, held: ExitStack) -> bool:
    """Hold the writing end open, once somebody reads."""
    try:
        held.callback(os.close, os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def refused(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """A daemon that ends by itself."""
    return subprocess.run(
        arguments,
        cwd=directory,
        env=environment(HOME=str(directory)),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def test_busy_port_is_an_error_and_no_engine_is_started(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        ended = refused(command(model, tmp_path / "state", port, ()), tmp_path)
    assert ended.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in ended.stderr
    assert "engine" not in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list((tmp_path / "state" / "run").iterdir()) == [], "whoever asks for a daemon learns at once that there is none"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "prot=1"], "did you mean `port`"),
        (["--host", "10.0.0.5"], "exl3ctl user add"),
        (["--model", "/no/such/model"], "/no/such/model"),
        ([], "exl3ctl model demo"),
    ],
)
def test_configuration_error_ends_with_78_and_words(tmp_path: Path, arguments: list[str], words: str) -> None:
    ended = refused([*command(tmp_path, tmp_path / "state", 0, ())[:4], *arguments], tmp_path)
    assert ended.returncode == 78
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_engine_that_cannot_load_ends_the_daemon_with_78(model: Path, tmp_path: Path) -> None:
    """What only the engine can find out reaches the person the same way."""
    settings = (f"engine.null_profile={tmp_path / 'absent.json'}",)
    ended = refused(command(model, tmp_path / "state", free_port(), settings), tmp_path)
    assert ended.returncode == 78, ended.stderr
    assert "absent.json" in ended.stderr


def test_second_signal_ends_at_once(model: Path, tmp_path: Path) -> None:
    with front(model, tmp_path, "server.drain_seconds=600", profile=SLOW) as running:
        engine = running.engine_pid()
        with socket.create_connection(("127.0.0.1", running.port)) as client:
            body = b'{"prompt": "x", "max_tokens": 4000, "stream": true, "ignore_eos": true}'
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            client.sendall(f"{head}\r\n\r\n".encode() + body)
            wait_until(lambda: running.status().running == 1, "one running")
            running.process.send_signal(signal.SIGINT)
            wait_until(lambda: "stopping" in running.text(), "the first signal taken")
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(DEADLINE) == 1
        wait_until(lambda: not Path(f"/proc/{engine}").exists(), "the engine's end")
