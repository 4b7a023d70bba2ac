"""Two engines in one daemon: the death of one moves its streams to the other, poison stops one at a time, prefixes are found."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import openai
import pytest

from daemon.core.ports import EngineStatus, Status
from ops.__main__ import main
from ops.admin_socket import command_restart, socket_path
from tests.process.front import Front, front, wait_until
from tests.process.house import until
from tests.process.test_daemon import SLOW, chat, client_of

TWO = "engine.replicas=2"
WORDS = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine", "poplar", "rowan")


def both_ready(running: Front) -> bool:
    """Whether each engine serves."""
    return all(engine.state == "ready" for engine in running.status().engines)


def inside(engine: EngineStatus) -> int:
    """Requests that an engine computes."""
    return 0 if engine.pool is None else engine.pool.running


class Diary:
    """Statuses of a daemon, taken all the time."""

    def __init__(self, running: Front) -> None:
        self.seen: list[Status] = []
        self._running = running
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while True:
            self.seen.append(await asyncio.to_thread(self._running.status))
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """No more."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def test_sixteen_streams_outlive_one_engine_and_go_on_before_it_is_back(model: Path, tmp_path: Path) -> None:
    """Real arithmetic in both engines: each stream says every word that it says when nobody dies, once."""
    prompts = [f"stream {number} of {WORDS[number % 12]}" for number in range(16)]
    with front(model, tmp_path, TWO, "engine.backend=cpu") as running:
        await until(lambda: both_ready(running), "both ready")
        async with client_of(running) as client:
            undisturbed = await asyncio.gather(*(chat(client, model.name, words, 60) for words in prompts))
            assert [reason for _, reason in undisturbed] == ["length"] * 16
            reading = asyncio.gather(*(chat(client, model.name, words, 60) for words in prompts))
            await until(lambda: [inside(engine) for engine in running.status().engines] == [8, 8], "eight in each")
            victim, survivor = running.status().engines
            assert victim.pid is not None
            diary = Diary(running)
            os.kill(victim.pid, signal.SIGKILL)
            disturbed = await reading
            await diary.close()
            assert disturbed == undisturbed
        away = [status.engines for status in diary.seen if status.engines[0].state not in {"ready", "draining"}]
        assert any(inside(other) == 16 for _, other in away), "the other never had all of them while the first was away"
        assert any(lost.recovering == 0 for lost, _ in away), "somebody waited for the first to come back"
        assert running.status().engines[1].pid == survivor.pid
        assert running.status().interruptions == 8


POISON = {"kind": "exit", "place": "decode", "marker": "hemlock", "token": 20}


async def test_two_engines_find_prefixes_contain_poison_and_are_replaced_one_by_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (TWO, "engine.cache_tokens=65536")
    with front(model, tmp_path, *settings, profile={**SLOW, "faults": [POISON]}) as running:
        await until(lambda: both_ready(running), "both ready")
        async with client_of(running) as client:
            await _check_prefixes(running, client, model.name)
            await _check_poison(running, client, model.name)
        await until(lambda: both_ready(running), "both ready again")
        await asyncio.to_thread(_check_restart, running)
        monkeypatch.setattr(sys, "argv", ["exl3ctl", "status", "--state-dir", str(running.state)])
        with pytest.raises(SystemExit):
            await asyncio.to_thread(main)
        shown = capsys.readouterr().out
        assert "engine 0" in shown
        assert "engine 1" in shown


async def _check_prefixes(running: Front, client: openai.AsyncOpenAI, model: str) -> None:
    """Conversations that were shared out go on where their beginning is cached, though either engine has room for all."""

    async def turn(prompt: str, count: int) -> tuple[str, int]:
        answer = await client.completions.create(model=model, prompt=prompt, max_tokens=count, extra_body={"ignore_eos": True})
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        return prompt + answer.choices[0].text, 0 if details is None else details.cached_tokens or 0

    first = asyncio.gather(*(turn(f"{word} " * 150, 60) for word in WORDS[:6]))
    await until(lambda: min(inside(engine) for engine in running.status().engines) >= 2, "shared out")
    for said, _ in await first:
        _, cached = await turn(f"{said} And then?", 2)
        assert cached >= 256


async def _check_poison(running: Front, client: openai.AsyncOpenAI, model: str) -> None:
    """It kills with others, kills alone and is refused; innocents beside it go on in the other engine, and lose no word."""
    innocent = WORDS[:7]
    beginnings = [(await chat(client, model, word, 40))[0] for word in innocent]
    over = asyncio.Event()

    async def read(word: str) -> str:
        text = ""
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": word}],
            max_tokens=7000,
            stream=True,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            if over.is_set() and len(text) > 200:
                break
        await stream.close()
        return text

    reading = asyncio.gather(*(read(word) for word in innocent))
    await until(lambda: sum(inside(engine) for engine in running.status().engines) == len(innocent), "innocents running")
    diary = Diary(running)
    with pytest.raises(openai.APIError, match="engine"):
        await chat(client, model, "hemlock", 100)
    over.set()
    texts = await reading
    await diary.close()
    assert all(text.startswith(beginning) for text, beginning in zip(texts, beginnings, strict=True))
    engines = [status.engines for status in diary.seen]
    assert any(max(map(inside, both)) == len(innocent) for both in engines), "innocents did not go on in the other engine"
    assert all(any(engine.state == "ready" for engine in both) for both in engines), "both engines were away"
    now = running.status()
    assert now.convictions == 1
    assert sorted(engine.restarts for engine in now.engines) == [0, 2], "it killed the engine of the innocents too"


def _check_restart(running: Front) -> None:
    before = running.status().engines
    path = socket_path(running.state)
    assert not command_restart(path, 2).done
    assert command_restart(path, 1).done
    wait_until(lambda: running.status().engines[1].pid not in {before[1].pid, None}, "the engine replaced")
    assert running.status().engines[0].pid == before[0].pid
