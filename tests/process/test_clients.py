"""The official clients on a running daemon, and streams in every dialect that outlive the engine."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import anthropic
import openai
import pytest
from anthropic import beta_async_tool
from anthropic.types import ToolParam
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from tests.ops.demo import demo_model
from tests.process.front import Front, front
from tests.process.house import until
from tests.process.scripted import Family, Line, talking

FAMILY = Family.QWEN35
ASKED = "How warm is it where Ada lives?"
HOME = "Ada lives in Oslo."
WARMTH = "17 degrees in Oslo"
ANSWER = "It is 17 degrees where Ada lives, which is Oslo."
FRUIT = "Describe a fruit."
GREETING = "Say hello."
GREETED = "Hello, and welcome. Grüße, 你好 🦙!"
STORY = "Tell a long story."
TOLD = " ".join(f"Then, on day {day}, the keeper lit the lamp." for day in range(1, 21))
THOUGHT = " ".join(f"Chapter {chapter} needs a lamp." for chapter in range(1, 6))
NOTE = "Note the story down."
NOTED = {"title": "The keeper", "text": TOLD, "pages": 12}
ENDLESS = "Count for ever."
LINES = [
    Line(ASKED, FAMILY.thought("First I need her city.") + "I look.\n\n" + FAMILY.call("find_home", {"person": "Ada"})),
    Line(HOME, FAMILY.thought("Now the weather.") + FAMILY.call("measure", {"city": "Oslo", "days": 2})),
    Line(WARMTH, FAMILY.thought("That is all.") + ANSWER),
    Line(FRUIT, FAMILY.thought("An apple.") + '{"name": "apple", "count": 3}'),
    Line(GREETING, FAMILY.thought("Politely.") + GREETED),
    Line(STORY, FAMILY.thought(THOUGHT) + TOLD),
    Line(NOTE, FAMILY.thought("It is long.") + FAMILY.call("note", NOTED)),
    Line(ENDLESS, FAMILY.thought("One more.") + " ".join(str(number) for number in range(3000))),
]


class Fruit(BaseModel):
    """A fruit."""

    name: str
    count: int


HOME_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"person": {"type": "string"}},
    "required": ["person"],
    "additionalProperties": False,
}
NOTE_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "text": {"type": "string"}, "pages": {"type": "integer"}},
    "required": ["title", "text", "pages"],
    "additionalProperties": False,
}


def chat_tool(name: str, schema: dict[str, object]) -> ChatCompletionToolParam:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@dataclass(frozen=True)
class Talker:
    """A running daemon, and what its model is called."""

    running: Front
    model: str


@pytest.fixture(scope="module")
def talker(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Talker]:
    """One daemon for all tests of this file, with room for four streams. Tokens take long enough to disturb long answers."""
    directory = tmp_path_factory.mktemp("talker")
    with talking(model, FAMILY, LINES, directory, "engine.cache_tokens=16384", pass_seconds=0.002) as (running, name):
        yield Talker(running, name)


@pytest.fixture
async def client(talker: Talker) -> AsyncGenerator[openai.AsyncOpenAI]:
    """OpenAI's."""
    url = f"http://127.0.0.1:{talker.running.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def claude(talker: Talker) -> AsyncGenerator[anthropic.AsyncAnthropic]:
    """Anthropic's."""
    url = f"http://127.0.0.1:{talker.running.port}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made


def says(words: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": words}]


# --- openai -----------------------------------------------------------------------------------------------------------


async def test_openai_reads_the_same_answer_whole_and_streamed(talker: Talker, client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model=talker.model, messages=says(GREETING))
    assert whole.choices[0].message.content == GREETED
    assert whole.choices[0].finish_reason == "stop"
    stream = await client.chat.completions.create(
        model=talker.model, messages=says(GREETING), stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    async for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == GREETED
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_openai_sync_client_parses_an_object(talker: Talker) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{talker.running.port}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.parse(model=talker.model, messages=says(FRUIT), response_format=Fruit)
        assert answer.choices[0].message.parsed == Fruit(name="apple", count=3)
        response = client.responses.parse(model=talker.model, input=FRUIT, text_format=Fruit)
        assert response.output_parsed == Fruit(name="apple", count=3)


async def test_openai_stream_helper_puts_text_and_call_together(talker: Talker, client: openai.AsyncOpenAI) -> None:
    tools = [chat_tool("find_home", HOME_SCHEMA)]
    async with client.chat.completions.stream(model=talker.model, messages=says(ASKED), tools=tools) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert {"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    message = final.choices[0].message
    assert (message.content or "").strip() == "I look."
    (call,) = message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("find_home", {"person": "Ada"})
    assert final.choices[0].finish_reason == "tool_calls"


async def test_openai_conversation_with_tools_goes_on_from_what_was_answered(talker: Talker, client: openai.AsyncOpenAI) -> None:
    """The answers go back as they came, thoughts included, and the model finds its own words again in the prefix cache."""
    results = {"find_home": HOME, "measure": WARMTH}
    schema: dict[str, object] = {"type": "object", "properties": {"days": {"type": "integer"}, "city": {"type": "string"}}}
    tools = [chat_tool("find_home", HOME_SCHEMA), chat_tool("measure", schema)]
    messages = says(ASKED)
    called: list[tuple[str, object]] = []
    while True:
        answer = await client.chat.completions.create(model=talker.model, messages=messages, tools=tools)
        message = answer.choices[0].message
        messages.append(cast("ChatCompletionMessageParam", message.to_dict()))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            assert call.type == "function"
            called.append((call.function.name, json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": results[call.function.name]})
    assert called == [("find_home", {"person": "Ada"}), ("measure", {"city": "Oslo", "days": 2})]
    assert message.content == ANSWER
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) > 0


async def test_openai_streams_that_are_closed_or_cancelled_free_their_places(talker: Talker, client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model=talker.model, messages=says(ENDLESS), stream=True)
    await anext(aiter(stream))
    assert talker.running.status().running == 1
    await stream.close()
    await until(lambda: talker.running.status().running == 0, "the closed stream's end")
    waiting = asyncio.ensure_future(client.chat.completions.create(model=talker.model, messages=says(ENDLESS)))
    await until(lambda: talker.running.status().running == 1, "the next one's start")
    waiting.cancel()
    await until(lambda: talker.running.status().running == 0, "the cancelled request's end")


# --- anthropic --------------------------------------------------------------------------------------------------------


async def test_anthropic_stream_puts_thought_text_and_call_together(talker: Talker, claude: anthropic.AsyncAnthropic) -> None:
    tool: ToolParam = {"name": "find_home", "input_schema": HOME_SCHEMA}
    async with claude.messages.stream(
        model=talker.model, messages=[{"role": "user", "content": ASKED}], max_tokens=2000, tools=[tool]
    ) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_message()
    assert {"thinking", "text", "input_json", "message_stop"} <= kinds
    thought, text, call = final.content
    assert thought.type == "thinking"
    assert text.type == "text"
    assert call.type == "tool_use"
    assert (thought.thinking, text.text.strip(), call.input) == ("First I need her city.", "I look.", {"person": "Ada"})
    assert final.stop_reason == "tool_use"


async def test_anthropic_tool_runner_runs_two_tools_to_an_answer(talker: Talker, claude: anthropic.AsyncAnthropic) -> None:
    asked: list[str] = []

    @beta_async_tool
    async def find_home(person: str) -> str:
        """Say where somebody lives."""
        asked.append(person)
        return HOME

    @beta_async_tool
    async def measure(city: str, days: int) -> str:
        """Measure the temperature of a city."""
        asked.append(f"{city} {days}")
        return WARMTH

    runner = claude.beta.messages.tool_runner(
        model=talker.model, max_tokens=2000, tools=[find_home, measure], messages=[{"role": "user", "content": ASKED}]
    )
    final = await runner.until_done()
    assert asked == ["Ada", "Oslo 2"]
    assert [block.text for block in final.content if block.type == "text"] == [ANSWER]


async def test_anthropic_stream_that_is_left_frees_its_place(talker: Talker, claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(
        model=talker.model, messages=[{"role": "user", "content": ENDLESS}], max_tokens=6000
    ) as stream:
        await anext(aiter(stream))
        assert talker.running.status().running == 1
    await until(lambda: talker.running.status().running == 0, "the left stream's end")


# --- across the death of the engine -----------------------------------------------------------------------------------


@dataclass
class Story:
    """What a reader has heard so far."""

    thought: str = ""
    text: str = ""
    call: str = ""
    reason: str | None = None

    @property
    def begun(self) -> bool:
        """Whether there was something to hear."""
        return len(self.thought + self.text + self.call) > 60


async def read_messages(claude: anthropic.AsyncAnthropic, model: str, story: Story) -> None:
    """`/v1/messages`: thought and text."""
    stream = await claude.messages.create(
        model=model, messages=[{"role": "user", "content": STORY}], max_tokens=6000, stream=True
    )
    async for event in stream:
        if event.type == "content_block_delta" and event.delta.type == "thinking_delta":
            story.thought += event.delta.thinking
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            story.text += event.delta.text
        elif event.type == "message_delta":
            story.reason = event.delta.stop_reason


async def read_responses(client: openai.AsyncOpenAI, model: str, story: Story) -> None:
    """`/v1/responses`: thought and text."""
    async for event in await client.responses.create(model=model, input=STORY, stream=True):
        if event.type == "response.reasoning_text.delta":
            story.thought += event.delta
        elif event.type == "response.output_text.delta":
            story.text += event.delta
        elif event.type == "response.completed":
            story.reason = event.response.status
            assert event.response.output_text == story.text


async def read_call(client: openai.AsyncOpenAI, model: str, story: Story) -> None:
    """`/v1/chat/completions`: a call whose arguments come in pieces."""
    stream = await client.chat.completions.create(
        model=model, messages=says(NOTE), tools=[chat_tool("note", NOTE_SCHEMA)], stream=True
    )
    async for chunk in stream:
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                story.call += call.function.arguments or ""
            story.reason = choice.finish_reason or story.reason


async def read_call_in_responses(client: openai.AsyncOpenAI, model: str, story: Story) -> None:
    """`/v1/responses`: the same call."""
    tool: FunctionToolParam = {"type": "function", "name": "note", "parameters": NOTE_SCHEMA, "strict": False}
    async for event in await client.responses.create(model=model, input=NOTE, tools=[tool], stream=True):
        if event.type == "response.function_call_arguments.delta":
            story.call += event.delta
        elif event.type == "response.completed":
            story.reason = event.response.status


async def test_streams_of_every_dialect_are_the_same_across_the_death_of_the_engine(
    talker: Talker, client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    """`kill -9` in the middle of two stories and of the arguments of two calls."""
    stories = [Story() for _ in range(4)]
    before = talker.running.status().engines[0].restarts
    reading = asyncio.gather(
        read_messages(claude, talker.model, stories[0]),
        read_responses(client, talker.model, stories[1]),
        read_call(client, talker.model, stories[2]),
        read_call_in_responses(client, talker.model, stories[3]),
    )
    await until(lambda: reading.done() or all(story.begun for story in stories), "all in the middle")
    assert not any(story.reason for story in stories)
    os.kill(talker.running.engine_pid(), signal.SIGKILL)
    await reading
    assert talker.running.status().engines[0].restarts == before + 1
    for story in stories[:2]:
        assert (story.thought.strip(), story.text) == (THOUGHT, TOLD)
    for story in stories[2:]:
        assert json.loads(story.call) == NOTED
    assert [story.reason for story in stories] == ["end_turn", "completed", "tool_calls", "completed"]


# --- a real model -----------------------------------------------------------------------------------------------------


async def test_demo_model_answers_in_plain_text(tmp_path: Path) -> None:
    model = demo_model()
    with front(model, tmp_path, "engine.backend=cpu", "engine.cache_tokens=1024") as running:
        url = f"http://127.0.0.1:{running.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            words = says("What is the capital of France?")
            stream = await client.chat.completions.create(
                model=model.name, messages=words, temperature=0, max_tokens=12, stream=True
            )
            text = "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])
    assert "Paris" in text
