"""The official openai client against the application on a real port: sync and async, streams, four at once, errors."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from daemon.core.errors import Overloaded, ShuttingDown
from tests.api.conftest import on_a_port
from tests.api.fakes import CARD, FakePrompts, FakeServing, application, breaks, says
from tests.api.test_chat_parsing import ADDED, CALL, TEMPLATE, TOOLS

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def serving() -> FakeServing:
    return FakeServing(says("Hello", " there", "."))


@pytest.fixture
async def base_url(serving: FakeServing) -> AsyncIterator[str]:
    """The application on a port of its own; the model thinks and calls tools."""
    async with on_a_port(application(serving, prompts=FakePrompts(tool_source=TEMPLATE), added=ADDED)) as url:
        yield f"{url}/v1"


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="KEY", max_retries=0) as made:
        yield made


async def test_async_client_reads_a_whole_answer(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=CARD.name, messages=MESSAGES, max_completion_tokens=32, temperature=0)
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


async def test_every_answer_has_a_request_id(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(model=CARD.name, messages=MESSAGES)
    assert raw.headers["x-request-id"].startswith("req_")


async def test_four_streams_at_once_are_each_complete(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    serving.script = says(*[f"w{index} " for index in range(50)])

    async def one() -> str:
        stream = await client.chat.completions.create(
            model=CARD.name, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        parts: list[str] = []
        async for chunk in stream:
            if chunk.choices:
                parts.append(chunk.choices[0].delta.content or "")
            else:
                assert chunk.usage is not None
                assert chunk.usage.completion_tokens == 50
        return "".join(parts)

    expected = "".join(f"w{index} " for index in range(50))
    assert await asyncio.gather(*(one() for _ in range(4))) == [expected] * 4


async def test_sync_client_streams_too(base_url: str) -> None:
    def read() -> str:
        with openai.OpenAI(base_url=base_url, api_key="KEY", max_retries=0) as made:
            stream = made.chat.completions.create(model=CARD.name, messages=MESSAGES, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(read) == "Hello there."


async def test_stream_helper_puts_a_tool_call_together(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    serving.script = says(*CALL)
    tools = cast("list[ChatCompletionToolParam]", TOOLS)
    async with client.chat.completions.stream(model=CARD.name, messages=MESSAGES, tools=tools) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "get_weather"
    assert calls[0].function.arguments.replace(" ", "") == '{"city":"Oslo","days":3}'
    assert final.choices[0].finish_reason == "tool_calls"


class Fruit(BaseModel):
    """A schema for `parse`."""

    name: str
    count: int


async def test_parse_helper_sends_its_schema_as_a_constraint(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    serving.script = says('{"name": "apple",', ' "count": 3}')
    answer = await client.chat.completions.parse(model=CARD.name, messages=MESSAGES, response_format=Fruit)
    assert answer.choices[0].message.parsed == Fruit(name="apple", count=3)
    constraint = serving.requests[0].constraint
    assert constraint is not None
    assert '"count"' in constraint.text


async def test_logprobs_and_choices_are_typed(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=CARD.name, messages=MESSAGES, logprobs=True, top_logprobs=2, n=2, seed=7)
    assert len(answer.choices) == 2
    logprobs = answer.choices[1].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["H", " ", "."]


async def test_completions_and_models_are_typed(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=CARD.name, prompt=["Bread is", "Tea is"], max_tokens=8)
    assert [choice.text for choice in answer.choices] == ["Hello there."] * 2
    listed = await client.models.list()
    assert [model.id for model in listed.data] == [CARD.name, *CARD.aliases]
    assert (await client.models.retrieve(CARD.name)).id == CARD.name


async def test_errors_are_the_clients_own_classes(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="nothing", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await client.chat.completions.create(model=CARD.name, messages=MESSAGES, temperature=9)
    serving.refusal = Overloaded("You have 4 requests running.", 3, own_limit=True)
    with pytest.raises(openai.RateLimitError, match="4 requests"):
        await client.chat.completions.create(model=CARD.name, messages=MESSAGES)


async def test_error_inside_a_stream_is_raised_with_its_text(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    serving.script = breaks(ShuttingDown(), "Hel")
    stream = await client.chat.completions.create(model=CARD.name, messages=MESSAGES, stream=True)
    parts: list[str] = []

    async def read() -> None:
        async for chunk in stream:
            parts.append(chunk.choices[0].delta.content or "")  # noqa: PERF401  # what came before the error counts

    with pytest.raises(openai.APIError, match="shutting down"):
        await read()
    assert "".join(parts) == "Hel"


async def test_closing_a_stream_cancels_the_request(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    serving.hold = 2
    stream = await client.chat.completions.create(model=CARD.name, messages=MESSAGES, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await asyncio.wait_for(serving.streams[0].cancelled.wait(), 60)
