"""The official openai client on `/v1/responses`: sync and async, the stream helper, `parse`, errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import cast

import openai
import pytest
from openai.types.responses import FunctionToolParam, ResponseInputParam
from pydantic import BaseModel

from daemon.core.errors import ShuttingDown
from daemon.core.events import Ending
from tests.api.conftest import on_a_port
from tests.api.fakes import CARD, FakePrompts, FakeServing, application, breaks, says
from tests.api.test_chat_parsing import ADDED, CALL, TEMPLATE
from tests.api.test_responses import TOOLS

FUNCTIONS = cast("list[FunctionToolParam]", TOOLS)


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
        yield f"{url}/v1"


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="KEY", max_retries=0) as made:
        yield made


async def test_async_client_reads_a_whole_answer(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model=CARD.name, input="Say hello.", max_output_tokens=32)
    assert answer.output_text == "Hello there."
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 3


async def test_sync_client_streams(base_url: str) -> None:
    def read() -> str:
        with openai.OpenAI(base_url=base_url, api_key="KEY", max_retries=0) as made:
            stream = made.responses.create(model=CARD.name, input="Say hello.", stream=True)
            return "".join(event.delta for event in stream if event.type == "response.output_text.delta")

    assert await asyncio.to_thread(read) == "Hello there."


@pytest.mark.parametrize("summary", [None, "auto"])
async def test_stream_helper_puts_thought_text_and_calls_together(
    client: openai.AsyncOpenAI, serving: FakeServing, prompts: FakePrompts, summary: str | None
) -> None:
    prompts.ending = "<|im_start|>assistant\n<think>\n"
    serving.script = says(*("hm</think>I look.\n" + CALL + "\n" + CALL))
    asked = {} if summary is None else {"summary": summary}
    async with client.responses.stream(
        model=CARD.name,
        input="Weather?",
        tools=FUNCTIONS,
        reasoning=asked,  # pyright: ignore[reportArgumentType]  # one of the literals of its type
    ) as stream:
        seen = {event.type async for event in stream}
        final = await stream.get_final_response()
    assert {"response.function_call_arguments.done", "response.output_text.done", "response.completed"} <= seen
    assert ("response.reasoning_summary_text.delta" in seen) == (summary is not None)
    assert ("response.reasoning_text.delta" in seen) == (summary is None)
    thought, message, call, other = final.output
    assert thought.type == "reasoning"
    assert message.type == "message"
    assert call.type == "function_call"
    assert other.type == "function_call"
    assert json.loads(call.arguments) == {"city": "Oslo", "days": 3}
    assert final.output_text.strip() == "I look."
    parts = thought.content or [] if summary is None else thought.summary
    assert [part.text for part in parts] == ["hm"]


async def test_answer_goes_back_as_input(client: openai.AsyncOpenAI, serving: FakeServing, prompts: FakePrompts) -> None:
    prompts.ending = "<|im_start|>assistant\n<think>\n"
    serving.script = says("hm</think>", CALL)
    items: ResponseInputParam = [{"role": "user", "content": "Weather?"}]
    answer = await client.responses.create(model=CARD.name, input=items, tools=FUNCTIONS, include=[])
    items += cast("ResponseInputParam", [item.to_dict() for item in answer.output])
    (call,) = [item for item in answer.output if item.type == "function_call"]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    serving.script = says("hm</think>", "It is sunny.")
    final = await client.responses.create(model=CARD.name, input=items, tools=FUNCTIONS)
    assert final.output_text == "It is sunny."


class Fruit(BaseModel):
    """A schema for `parse`."""

    name: str
    count: int


async def test_parse_helper_sends_its_schema_as_a_constraint(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    serving.script = says('{"name": "apple",', ' "count": 3}')
    answer = await client.responses.parse(model=CARD.name, input="Describe an apple.", text_format=Fruit)
    assert answer.output_parsed == Fruit(name="apple", count=3)
    constraint = serving.requests[0].constraint
    assert constraint is not None
    assert '"name"' in constraint.text
    assert '"count"' in constraint.text


async def test_call_cut_by_the_limit_cannot_be_carried_out(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    serving.script = says(*CALL[:100], ending=Ending.LENGTH, stop=None)
    stream = await client.responses.create(model=CARD.name, input="x", tools=FUNCTIONS, stream=True)
    found = [event async for event in stream]
    assert found[-1].type == "response.incomplete"
    assert found[-1].response.output == []


async def test_call_that_breaks_leaves_the_text_around_it(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    broken = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\nnonsense</function>"
    serving.script = says("I look.\n", *broken, "</tool_call>", "Well.")
    async with client.responses.stream(model=CARD.name, input="x", tools=FUNCTIONS) as stream:
        seen = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert seen[-1] == "response.completed"
    assert "I look." in final.output_text
    assert [item.type for item in final.output if item.type == "function_call"] == []


async def test_conversations_and_errors_are_refused_in_the_clients_own_classes(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        await client.responses.create(model=CARD.name, input="x", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="nothing", input="x")


async def test_error_inside_a_stream_is_raised_with_its_text(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    serving.script = breaks(ShuttingDown(), "Hel")
    stream = await client.responses.create(model=CARD.name, input="x", stream=True)
    parts: list[str] = []

    async def read() -> None:
        async for event in stream:
            if event.type == "response.output_text.delta":
                parts.append(event.delta)  # noqa: PERF401  # what came before the error counts

    with pytest.raises(openai.APIError, match="shutting down"):
        await read()
    assert parts == ["Hel"]


async def test_closing_a_stream_cancels_the_request(client: openai.AsyncOpenAI, serving: FakeServing) -> None:
    serving.hold = 2
    stream = await client.responses.create(model=CARD.name, input="x", stream=True)
    await anext(aiter(stream))
    await stream.close()
    await asyncio.wait_for(serving.streams[0].cancelled.wait(), 60)
