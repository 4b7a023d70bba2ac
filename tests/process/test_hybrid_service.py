"""A tiny Qwen3.5 hybrid in EXL3, keys cached in 4 bits and values in 2: the model the daemon exists for, served for real."""

import asyncio
import random
import sys
from pathlib import Path

import openai
import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageParam

from daemon.core.events import Ended
from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.wire import Configure, Sampler, Started, Suspended
from daemon.host.detokenizer import Vocabulary
from daemon.host.model_directory import read_model_directory
from daemon.host.tokenizer_pool import TokenizerPool
from tests.engine.checkpoints import Architecture
from tests.engine.written import Checkpoint
from tests.process.front import Front, front
from tests.process.house import Heard, ask, hear, house, until

REAL = (sys.executable, "-P", "-m", "daemon.engine")
STREAMS = 4
PAGE = 256
NEAR_TIE = 0.3
"""Nats between the two best candidates below which another batch shape may choose the other; as measured on this model."""


@pytest.fixture(scope="module")
def model(exl3_checkpoint: Checkpoint) -> Path:
    """The checkpoint."""
    return exl3_checkpoint(Architecture.QWEN3_5)


@pytest.fixture(scope="module")
def vocabulary(model: Path) -> Vocabulary:
    """Its tokens as text; read here, since reading blocks."""
    reading = read_model_directory(model)
    pool = TokenizerPool(reading.model, reading.tokenizer)
    pool.close()
    return pool.vocabulary


def text(length: int, seed: int) -> list[int]:
    """Ordinary ids, the same for the same seed."""
    numbers = random.Random(seed)  # noqa: S311 - test data
    return [numbers.randrange(10, 500) for _ in range(length)]


async def say(client: openai.AsyncOpenAI, model: str, messages: list[ChatCompletionMessageParam]) -> tuple[str, CompletionUsage]:
    """One streamed answer and its usage."""
    said: list[str] = []
    usage: CompletionUsage | None = None
    stream = await client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        said += [choice.delta.content or "" for choice in chunk.choices]
        usage = chunk.usage or usage
    assert usage is not None
    return "".join(said), usage


async def two_turns(client: openai.AsyncOpenAI, model: str, number: int) -> list[CompletionUsage]:
    """A conversation of two turns; the usage of each."""
    letter = f"Letter {number} from the lighthouse keeper: the tides are high and the daemon keeps serving. "
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": letter * 12}]
    answer, first = await say(client, model, messages)
    messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": "And then?"})
    return [first, (await say(client, model, messages))[1]]


def cached(usage: CompletionUsage) -> int:
    """Prompt tokens found in the cache."""
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details.cached_tokens or 0


async def _serve(running: Front, model: str) -> list[list[CompletionUsage]]:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none", max_retries=0) as client:
        return await asyncio.gather(*(two_turns(client, model, number) for number in range(STREAMS)))


def test_four_streams_find_their_first_turn_cached_in_the_second(model: Path, tmp_path: Path) -> None:
    """Through HTTP, as a person would: all pages of the first prompt but the one its last token stands in."""
    settings = ("engine.backend=cpu", "engine.cache_tokens=8192", "engine.k_bits=4", "engine.v_bits=2", "engine.threads=1")
    with front(model, tmp_path, *settings) as running:
        conversations = asyncio.run(_serve(running, model.name))
        for first, second in conversations:
            assert first.completion_tokens == 24
            assert second.completion_tokens == 24
            assert first.prompt_tokens > PAGE
            assert cached(first) == 0
            assert cached(second) == (first.prompt_tokens - 1) // PAGE * PAGE
        status = running.status()
        assert status.engines[0].backend == "exl3 on cpu"
        assert status.prefix.queries == sum(usage.prompt_tokens for turns in conversations for usage in turns)
        assert status.prefix.hits == sum(cached(usage) for turns in conversations for usage in turns)
        assert (status.prefix.evicted, status.prefix.no_checkpoint, status.prefix.template_changed) == (0, 0, 0)
        assert running.end() == 0


def check_same(undisturbed: Heard, disturbed: Heard) -> None:
    """Equal, or different first at a near-tie."""
    pairs = enumerate(zip(undisturbed.ids, disturbed.ids, strict=True))
    first = next((at for at, (one, other) in pairs if one != other), None)
    if first is None:
        assert undisturbed.text == disturbed.text
        return
    best, second = undisturbed.logprobs[first].top[:2]
    assert best[1] - second[1] < NEAR_TIE


async def test_each_of_four_streams_survives_being_suspended(model: Path, vocabulary: Vocabulary) -> None:
    """Each is set aside while it runs and goes on from its last full page, to the length it was asked for."""
    engine = EngineSettings(backend=BackendKind.CPU, cache_tokens=8192, k_bits=4, v_bits=2, max_batch=STREAMS, threads=1)
    requests = [ask(text(270 + 3 * n, seed=n), 40, Sampler(temperature=0.0), logprobs=2) for n in range(STREAMS)]
    async with house(argv=REAL, configure=Configure(str(model), 4096, engine, str(model.parent)), vocabulary=vocabulary) as h:
        await h.ready()
        undisturbed = await asyncio.gather(*(hear(h.streams.open(request)) for request in requests))
        before = len(h.steps)
        entries = [h.streams.open(request) for request in requests]
        reading_all = asyncio.gather(*(hear(entry) for entry in entries))
        await until(lambda: all(len(entry.transcript.delivered) >= 2 for entry in entries), "two tokens of each")
        for entry in entries:
            h.streams.suspend(entry)
        disturbed = await reading_all
        events = [event for step in h.steps[before:] for event in step.events]
        for entry, one, other in zip(entries, undisturbed, disturbed, strict=True):
            (aside,) = [event for event in events if isinstance(event, Suspended) and event.id == entry.link_id]
            (again,) = [
                event for event in events if isinstance(event, Started) and (event.id, event.attempt) == (entry.link_id, 2)
            ]
            assert aside.kept == again.cached == PAGE
            assert (len(other.ids), other.opened, other.paused, [type(end) for end in other.ends]) == (40, 1, 0, [Ended])
            check_same(one, other)
        assert [summary.attempts for summary in h.summaries[STREAMS:]] == [2] * STREAMS
        assert h.view.restarts == 0
