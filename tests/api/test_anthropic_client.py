"""The official anthropic client against the application on a real port, and what it was recorded to send."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import anthropic
import pytest
from anthropic import beta_async_tool
from anthropic.types import MessageParam, ToolParam
from pydantic import BaseModel

from daemon.core.errors import Overloaded, ShuttingDown
from daemon.core.events import StreamEvent
from daemon.core.requests import ValidRequest
from tests.api.anthropic_reading import error_of, events, message_of
from tests.api.conftest import Connect, on_a_port
from tests.api.fakes import CARD, FakePrompts, FakeServing, application, breaks, says
from tests.api.reading import Json
from tests.api.test_chat_parsing import ADDED, CALL, TEMPLATE
from tests.api.test_messages import TOOLS

MESSAGES: list[MessageParam] = [{"role": "user", "content": "Say hello."}]
SHAPES = Path(__file__).parents[1] / "cases" / "request_shapes" / "anthropic_py.json"


@pytest.fixture
def serving() -> FakeServing:
    return FakeServing(says("Hello", " there", "."))


@pytest.fixture
def prompts() -> FakePrompts:
    return FakePrompts(tool_source=TEMPLATE)


@pytest.fixture
async def base_url(serving: FakeServing, prompts: FakePrompts) -> AsyncIterator[str]:
    """The application on a port of its own; the model thinks and calls tools."""
    async with on_a_port(application(serving, prompts=prompts, added=ADDED)) as url:
        yield url


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="KEY", max_retries=0) as made:
        yield made


async def test_async_client_reads_a_whole_answer(client: anthropic.AsyncAnthropic) -> None:
    answer = await client.messages.create(model=CARD.name, messages=MESSAGES, max_tokens=32, system="Be brief.")
    assert [block.text for block in answer.content if block.type == "text"] == ["Hello there."]
    assert (answer.stop_reason, answer.usage.output_tokens) == ("end_turn", 3)


async def test_every_answer_has_a_request_id(client: anthropic.AsyncAnthropic) -> None:
    raw = await client.messages.with_raw_response.create(model=CARD.name, messages=MESSAGES, max_tokens=32)
    assert raw.request_id is not None
    assert raw.request_id.startswith("req_")


async def test_sync_client_reads_and_streams(base_url: str) -> None:
    def read() -> tuple[str, str]:
        with anthropic.Anthropic(base_url=base_url, api_key="KEY", max_retries=0) as made:
            whole = made.messages.create(model=CARD.name, messages=MESSAGES, max_tokens=32)
            with made.messages.stream(model=CARD.name, messages=MESSAGES, max_tokens=32) as stream:
                streamed = "".join(stream.text_stream)
            return "".join(block.text for block in whole.content if block.type == "text"), streamed

    assert await asyncio.to_thread(read) == ("Hello there.", "Hello there.")


async def test_stream_helper_puts_thought_text_and_call_together(
    client: anthropic.AsyncAnthropic, serving: FakeServing, prompts: FakePrompts
) -> None:
    prompts.ending = "<|im_start|>assistant\n<think>\n"
    serving.script = says(*("hm</think>I look.\n" + CALL))
    async with client.messages.stream(
        model=CARD.name,
        messages=MESSAGES,
        max_tokens=300,
        tools=cast("list[ToolParam]", TOOLS),
        thinking={"type": "enabled", "budget_tokens": 1024},
    ) as stream:
        seen = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert {"thinking", "signature", "text", "input_json", "content_block_stop", "message_stop"} <= set(seen)
    thought, text, call = final.content
    assert thought.type == "thinking"
    assert text.type == "text"
    assert call.type == "tool_use"
    assert (thought.thinking, text.text.strip(), call.input) == ("hm", "I look.", {"city": "Oslo", "days": 3})
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens_details is not None
    assert final.usage.output_tokens_details.thinking_tokens >= 2


async def test_raw_stream_can_be_read(client: anthropic.AsyncAnthropic) -> None:
    stream = await client.messages.create(model=CARD.name, messages=MESSAGES, max_tokens=32, stream=True)
    texts = [
        event.delta.text async for event in stream if event.type == "content_block_delta" and event.delta.type == "text_delta"
    ]
    assert texts == ["Hello", " there", "."]


class Fruit(BaseModel):
    """A schema for `parse`."""

    name: str
    count: int


async def test_parse_helper_sends_its_schema_as_a_constraint(client: anthropic.AsyncAnthropic, serving: FakeServing) -> None:
    serving.script = says('{"name": "apple",', ' "count": 3}')
    answer = await client.messages.parse(model=CARD.name, messages=MESSAGES, max_tokens=99, output_format=Fruit)
    assert answer.parsed_output == Fruit(name="apple", count=3)
    constraint = serving.requests[0].constraint
    assert constraint is not None
    assert '"name"' in constraint.text
    assert '"count"' in constraint.text


async def test_counting_tokens_runs_nothing(client: anthropic.AsyncAnthropic, serving: FakeServing) -> None:
    counted = await client.messages.count_tokens(model=CARD.name, messages=MESSAGES, tools=cast("list[ToolParam]", TOOLS))
    assert counted.input_tokens == len("UserMessage: Say hello.\n")
    assert serving.requests == []


async def test_models_can_be_listed(client: anthropic.AsyncAnthropic) -> None:
    assert [model.id async for model in client.models.list()] == [CARD.name, *CARD.aliases]


async def test_tool_runner_falls_back_to_whole_conversations(client: anthropic.AsyncAnthropic, serving: FakeServing) -> None:
    asked: list[str] = []

    @beta_async_tool
    async def get_weather(city: str, days: int) -> str:
        """Weather of a city."""
        asked.append(f"{city} {days}")
        return "sunny"

    def script(request: ValidRequest) -> list[StreamEvent]:
        first = len(serving.requests) == 1
        return list((says(CALL) if first else says("It is sunny."))(request))

    serving.script = script
    runner_ = client.beta.messages.tool_runner(
        model=CARD.name, max_tokens=200, tools=[get_weather], messages=[{"role": "user", "content": "Weather in Oslo?"}]
    )
    final = await runner_.until_done()
    assert asked == ["Oslo 3"]
    assert [block.text for block in final.content if block.type == "text"] == ["It is sunny."]
    assert len(serving.requests) == 2
    longer, shorter = serving.requests[1].prompt_tokens, serving.requests[0].prompt_tokens
    assert longer > shorter + len("sunny")


async def test_errors_are_the_clients_own_classes(client: anthropic.AsyncAnthropic, serving: FakeServing) -> None:
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(model="nothing", messages=MESSAGES, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        await client.messages.create(model=CARD.name, messages=MESSAGES, max_tokens=0)
    serving.refusal = Overloaded("You have 4 requests running.", 3, own_limit=True)
    with pytest.raises(anthropic.RateLimitError, match="4 requests"):
        await client.messages.create(model=CARD.name, messages=MESSAGES, max_tokens=1)


async def test_error_inside_a_stream_is_raised_with_its_text(client: anthropic.AsyncAnthropic, serving: FakeServing) -> None:
    serving.script = breaks(ShuttingDown(), "Hel")
    parts: list[str] = []

    async def read() -> None:
        async with client.messages.stream(model=CARD.name, messages=MESSAGES, max_tokens=9) as stream:
            async for text in stream.text_stream:
                parts.append(text)  # noqa: PERF401  # what came before the error counts

    with pytest.raises(anthropic.APIStatusError, match="shutting down"):
        await read()
    assert parts == ["Hel"]


async def test_closing_a_stream_cancels_the_request(client: anthropic.AsyncAnthropic, serving: FakeServing) -> None:
    serving.hold = 2
    stream = await client.messages.create(model=CARD.name, messages=MESSAGES, max_tokens=9, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await asyncio.wait_for(serving.streams[0].cancelled.wait(), 60)


# --- recorded requests ------------------------------------------------------------------------------------------------


def recorded() -> Iterator[tuple[int, Json]]:
    for index, entry in enumerate(cast("list[Json]", json.loads(SHAPES.read_text()))):
        if entry["request"].startswith("POST /v1/messages"):
            yield index, {**entry, "body": {**entry["body"], "model": CARD.name}}


@pytest.mark.parametrize("entry", [pytest.param(entry, id=str(index)) for index, entry in recorded()])
async def test_recorded_request_is_answered(connect: Connect, entry: Json) -> None:
    serving = FakeServing(says("Hello", "."))
    client = await connect(application(serving))
    body = entry["body"]
    response = await client.post(entry["request"].split()[1], data=json.dumps(body), headers=entry["headers"])
    if "thread" in body or body.get("temperature") == "hot":
        assert response.status == 400
        wrong = await error_of(response)
        assert "details" in wrong or "temperature" in wrong["message"]
        return
    assert response.status == 200, await response.text()
    if entry["request"].endswith("count_tokens"):
        assert (await response.json())["input_tokens"] > 0
        return
    message = message_of(await events(response)) if body.get("stream") else await response.json()
    assert message["content"][0]["text"] == "Hello."


def test_recordings_are_there() -> None:
    assert len(list(recorded())) > 10
