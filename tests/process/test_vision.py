"""Pictures through the whole daemon: the official clients, real weights with a vision tower, an engine that dies in between."""

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import anthropic
import msgspec
import openai
import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionContentPartParam, ChatCompletionMessageParam

from daemon.core.config_report import ConfigReport
from tests.pictures import data_url, drawn, encoded, png
from tests.process.front import Front, environment, front, wait_until

PAGE = 256
MIDDLE = 12
"""Pieces of an answer after which its engine is killed."""
LETTER = "Letter from the lighthouse keeper: the tides are high and the daemon keeps serving. " * 6


@pytest.fixture(scope="module")
def running(seeing_checkpoint: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory) -> Generator[Front]:
    """A daemon whose model has eyes."""
    settings = ("engine.backend=cpu", "engine.cache_tokens=8192", "engine.threads=1", "engine.vision=true")
    with front(seeing_checkpoint(), tmp_path_factory.mktemp("daemon"), *settings) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def client(running: Front) -> Generator[openai.OpenAI]:
    """OpenAI's client."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none", max_retries=0, timeout=60) as connected:
        yield connected


def showing(*pictures: bytes, text: str = "What is this?") -> ChatCompletionMessageParam:
    """A person's turn with pictures."""
    parts: list[ChatCompletionContentPartParam] = [
        {"type": "image_url", "image_url": {"url": data_url(picture)}} for picture in pictures
    ]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def name_of(client: openai.OpenAI) -> str:
    """The model's name."""
    return client.models.list().data[0].id


def say(
    client: openai.OpenAI, messages: list[ChatCompletionMessageParam], tokens: int = 16, *, victim: int | None = None
) -> tuple[str, CompletionUsage]:
    """One streamed answer and its usage. The `victim` is killed in the middle of it."""
    said: list[str] = []
    usage: CompletionUsage | None = None
    stream = client.chat.completions.create(
        model=name_of(client),
        messages=messages,
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    for chunk in stream:
        said += [choice.delta.content for choice in chunk.choices if choice.delta.content]
        usage = chunk.usage or usage
        if victim is not None and len(said) >= MIDDLE:
            os.kill(victim, signal.SIGKILL)
            victim = None
    assert usage is not None
    return "".join(said), usage


def cached(usage: CompletionUsage) -> int:
    """Prompt tokens found in the cache."""
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details.cached_tokens or 0


def test_model_says_that_it_takes_pictures(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.model_extra is not None
    assert model.model_extra["architecture"]["input_modalities"] == ["text", "image"]


def test_picture_counts_and_is_found_in_the_cache_by_the_second_turn(client: openai.OpenAI) -> None:
    """256 x 256 pixels are 64 tokens, and one before and one behind them."""
    _, bare = say(client, [{"role": "user", "content": LETTER}])
    messages: list[ChatCompletionMessageParam] = [showing(png(256, 256, seed=5), text=LETTER)]
    answer, first = say(client, messages)
    assert first.prompt_tokens == bare.prompt_tokens + 64 + 2
    messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": "And then?"})
    _, second = say(client, messages)
    assert cached(first) == 0
    assert cached(second) == (first.prompt_tokens - 1) // PAGE * PAGE > 0


def test_answer_depends_on_the_pictures_and_on_their_order(client: openai.OpenAI) -> None:
    one, other = png(128, 96), png(96, 128, seed=1)
    answers = [say(client, [showing(*pictures)])[0] for pictures in ((one, other), (other, one), (one, other))]
    assert answers[0] == answers[2] != answers[1]


def test_answer_about_a_picture_survives_the_death_of_the_engine(running: Front, client: openai.OpenAI) -> None:
    """The next engine has never seen the picture; it is sent along, and looked at again."""
    messages: list[ChatCompletionMessageParam] = [showing(png(200, 120, seed=8), png(64, 64, seed=9), text=LETTER)]
    undisturbed, usage = say(client, messages, 48)
    victim = running.engine_pid()
    disturbed, again = say(client, messages, 48, victim=victim)
    assert disturbed == undisturbed
    assert (again.prompt_tokens, again.completion_tokens) == (usage.prompt_tokens, 48)
    wait_until(lambda: running.status().engines[0].state == "ready", "the next engine")
    assert running.engine_pid() != victim
    assert running.status().interruptions == 1


def test_damaged_picture_is_a_bad_request_in_words_and_others_are_served(client: openai.OpenAI) -> None:
    """Its header is whole: what is wrong with it shows only when it is decoded, in the engine."""
    with pytest.raises(openai.BadRequestError, match=r"picture 2 of 2 cannot be read"):
        client.chat.completions.create(model=name_of(client), messages=[showing(png(64, 64), png(256, 128, seed=3)[:-300])])
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\]\.content\[0\].*is no PNG, JPEG, WEBP or GIF"):
        client.chat.completions.create(model=name_of(client), messages=[showing(b"GIF, nearly")])
    assert say(client, [showing(png(64, 64))])[1].completion_tokens == 16


def test_other_families_of_requests_show_the_same_picture(running: Front, client: openai.OpenAI) -> None:
    """Responses and Messages: the prompt of all three is the same, and so is what it costs."""
    data = encoded(drawn(160, 96, seed=4), "JPEG")
    _, usage = say(client, [showing(data)])
    name = name_of(client)
    response = client.responses.create(
        model=name,
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_image", "image_url": data_url(data, "image/jpeg"), "detail": "auto"},
                    {"type": "input_text", "text": "What is this?"},
                ],
            }
        ],
        max_output_tokens=4,
    )
    assert response.usage is not None
    assert response.usage.input_tokens == usage.prompt_tokens
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{running.port}", api_key="none", max_retries=0) as other:
        counted = other.messages.count_tokens(
            model=name,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/jpeg",
                                "data": base64.b64encode(data).decode(),
                            },
                        },
                        {"type": "text", "text": "What is this?"},
                    ],
                }
            ],
        )
    assert counted.input_tokens == usage.prompt_tokens


def test_vision_that_the_model_does_not_have_is_said_at_the_start(model: Path, tmp_path: Path) -> None:
    """Before anything is loaded, in one sentence; `exl3ctl config check` says the same."""
    with pytest.raises(AssertionError, match="names no vision tower"), front(model, tmp_path, "engine.vision=true"):
        pass
    asked = [sys.executable, "-P", "-m", "daemon.config_check", f"--set=model={model}", "--set=engine.vision=true"]
    told = subprocess.run(asked, env=environment(), cwd=tmp_path, capture_output=True, check=True).stdout
    assert "names no vision tower" in (msgspec.json.decode(told, type=ConfigReport).model_problem or "")
