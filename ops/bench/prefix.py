"""What the next turn of a long conversation costs: time to its first token with the conversation cached, over that without.

A chat with a tiny hybrid model grows to 80,000 tokens, through the daemon and over HTTP, by long messages. After each of them
a short question is asked in three wordings, of which the median counts: that is the warm time at this length. At the end the
same conversation with another beginning is asked once: that is the cold time. Growth is what the least-squares line through
the warm times rises from the first to the last of them, over the cold time.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
import msgspec

from ops.bench import tiny_hybrid
from ops.bench.client import prompt_text
from ops.bench.processes import RunningDaemon, Setup, daemon
from ops.bench.values import Load
from ops.errors import BenchFailed

_OK = 200
_PATIENCE = 600.0
_CACHE = 196_608
"""Tokens: the conversation and its cold twin side by side."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    tokens: int = 80_000
    """Length of the conversation at its end."""
    turns: int = 16
    """Measured turns on the way there."""
    wordings: int = 3
    question_words: int = 60


class Prefix(msgspec.Struct, frozen=True):
    """The figures, as `make bench NAME=prefix` prints them last."""

    cold_s: float
    warm_s: float
    """At the full length."""
    ratio: float
    """Warm over cold."""
    ttft_growth: float
    """Rise of the warm time over the whole conversation, over the cold time."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request. In seconds and tokens."""

    seconds: float
    prompt: int
    cached: int
    text: str


class _Chat:
    """A conversation that grows."""

    def __init__(self, session: aiohttp.ClientSession, served: RunningDaemon) -> None:
        self._session = session
        self._served = served
        self._messages: list[dict[str, str]] = []

    async def tell(self, words: str) -> _Turn:
        """The next message, with its answer; both stay in the conversation."""
        turn = await self.ask(words)
        self._messages += [{"role": "user", "content": words}, {"role": "assistant", "content": turn.text or "Yes."}]
        return turn

    async def ask(self, words: str, beginning: str = "") -> _Turn:
        """Ask without a trace. `beginning` is put before everything else."""
        messages = [*self._messages, {"role": "user", "content": words}]
        messages[0] = {**messages[0], "content": beginning + messages[0]["content"]}
        body = {"model": self._served.model, "messages": messages, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        began = time.perf_counter()
        async with self._session.post(f"{self._served.base_url}/chat/completions", data=msgspec.json.encode(body)) as response:
            data = await response.read()
        seconds = time.perf_counter() - began
        if response.status != _OK:
            raise BenchFailed(f"the daemon answered {response.status}: {data[:300].decode(errors='replace')}")
        answer = msgspec.json.decode(data, type=_Answer)
        details = answer.usage.prompt_tokens_details
        cached = 0 if details is None else details.cached_tokens or 0
        return _Turn(seconds, answer.usage.prompt_tokens, cached, answer.choices[0].message.content or "")


async def measure(size: Size) -> Prefix:
    """Run the bench. Raises BenchFailed."""
    with tempfile.TemporaryDirectory(prefix="exl3d-bench-") as folder:
        model = tiny_hybrid.write(Path(folder, "tiny-hybrid"), _words(5000, 0))
        setup = Setup(model, "cpu", cache_tokens=_CACHE, max_batch=2)
        timeout = aiohttp.ClientTimeout(total=_PATIENCE)
        headers = {"Content-Type": "application/json"}
        async with daemon(setup) as served, aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            return await _converse(_Chat(session, served), size)


async def _converse(chat: _Chat, size: Size) -> Prefix:
    first = await chat.tell(_words(200, 1))
    a_word = first.prompt / 200
    length, warm = first.prompt, list[float]()
    for turn in range(1, size.turns + 1):
        missing = size.tokens * turn / size.turns - length - size.question_words * a_word
        await chat.tell(_words(max(1, int(missing / a_word)), 10 * turn))
        asked = [await chat.ask(_words(size.question_words, 10 * turn + number + 1)) for number in range(size.wordings)]
        length = asked[0].prompt
        warm.append(median(one.seconds for one in asked))
        _tell(asked)
    question = _words(size.question_words, 10 * size.turns + 9)
    cold = await chat.ask(question, beginning="Another beginning. ")
    _tell([cold])
    if cold.cached:
        raise BenchFailed(f"the cold prompt found {cold.cached} tokens cached")
    return Prefix(
        cold_s=round(cold.seconds, 3),
        warm_s=round(warm[-1], 3),
        ratio=round(warm[-1] / cold.seconds, 4),
        ttft_growth=round(slope(warm) * (len(warm) - 1) / cold.seconds, 4),
    )


def slope(values: Sequence[float]) -> float:
    """Rise from one value to the next of the least-squares line through them; 0 for fewer than two."""
    middle, mean = (len(values) - 1) / 2, sum(values) / max(1, len(values))
    spread = sum((at - middle) ** 2 for at in range(len(values)))
    return sum((at - middle) * (value - mean) for at, value in enumerate(values)) / spread if spread else 0.0


def _words(count: int, seed: int) -> str:
    return prompt_text(Load(streams=1, requests=1, tokens=1, prompt_tokens=count, seed=seed), 0)


def _tell(turns: Sequence[_Turn]) -> None:
    times = ", ".join(f"{turn.seconds:.3f}" for turn in turns)
    print(f"{turns[0].prompt:>6} tokens, {turns[0].cached:>6} cached: first token after {times} s", file=sys.stderr)
