"""Agent frameworks on a running daemon, on a model that calls in XML and on one that calls in JSON: they need nothing special."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.engine.checkpoints import Architecture
from tests.engine.written import Checkpoint
from tests.process.scripted import Family, Line, talking

ASKED = "How warm is it where Ada lives?"
HOME = "Ada lives in Oslo."
WARMTH = "17 degrees in Oslo"
ANSWER = "It is 17 degrees where Ada lives, which is Oslo."
FRUIT = "Describe a fruit."
FRUIT_AS_CALL = "Describe a fruit by calling."
FRUIT_AS_OUTPUT = "Describe a fruit as the output tool."
GREETING = "Say hello."


class Fruit(BaseModel):
    """A fruit."""

    name: str
    count: int


def lines(family: Family) -> list[Line]:
    """What the model answers."""
    apple = '{"name": "apple", "count": 3}'
    return [
        Line(ASKED, family.thought("First I need her city.") + family.call("find_home", {"person": "Ada"})),
        Line(HOME, family.thought("Now the weather.") + family.call("measure", {"city": "Oslo", "days": 2})),
        Line(WARMTH, family.thought("That is all I need.") + family.said(ANSWER)),
        Line(FRUIT, family.thought("An apple.") + family.said(apple)),
        Line(FRUIT_AS_CALL, family.thought("An apple.") + family.call("Fruit", {"name": "apple", "count": 3})),
        Line(FRUIT_AS_OUTPUT, family.thought("An apple.") + family.call("final_result", {"name": "apple", "count": 3})),
        Line(GREETING, family.thought("Politely.") + family.said("Hello, and welcome.")),
    ]


@dataclass(frozen=True)
class Talker:
    """Where a model can be asked."""

    family: Family
    url: str
    name: str


@pytest.fixture(scope="module", params=[Family.QWEN35, Family.HERMES], ids=lambda family: cast("Family", family).value)
def talker(request: pytest.FixtureRequest, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Generator[Talker]:
    """A daemon for all tests of this file, one family after the other."""
    family = cast("Family", request.param)
    model, directory = checkpoint(Architecture.LLAMA), tmp_path_factory.mktemp(family.value)
    with talking(model, family, lines(family), directory, pass_seconds=0.004) as (running, name):
        yield Talker(family, f"http://127.0.0.1:{running.port}/v1", name)


# --- Pydantic AI ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel], ids=["chat", "responses"])
async def model(request: pytest.FixtureRequest, talker: Talker) -> AsyncGenerator[Model]:
    """The framework's model, over either of OpenAI's APIs."""
    kind = cast("Callable[..., Model]", request.param)
    async with openai.AsyncOpenAI(base_url=talker.url, api_key="none", max_retries=0) as client:
        yield kind(talker.name, provider=OpenAIProvider(openai_client=client))


def weather_agent(model: Model) -> tuple[Agent[None, str], list[str]]:
    """An agent with two tools, and what they are asked."""
    asked: list[str] = []
    agent = Agent(model, instructions="Use the tools.")

    def find_home(person: str) -> str:
        """Say where somebody lives."""
        asked.append(f"home of {person}")
        return HOME

    def measure(city: str, days: int) -> dict[str, str]:
        """Measure the temperature of a city."""
        asked.append(f"weather of {city} for {days}")
        return {"mean": WARMTH}

    agent.tool_plain(find_home)
    agent.tool_plain(measure)
    return agent, asked


def thought_of(part: ThinkingPart) -> str:
    """Its text: chats give it as such, responses as raw content, which goes back as such with the next request."""
    raw = cast("list[str]", (part.provider_details or {}).get("raw_content", []))
    return "".join([part.content, *raw]).strip()


async def test_pydantic_agent_uses_two_tools_and_answers(model: Model) -> None:
    agent, asked = weather_agent(model)
    result = await agent.run(ASKED)
    assert asked == ["home of Ada", "weather of Oslo for 2"]
    assert result.output == ANSWER
    parts = [part for message in result.all_messages() for part in message.parts]
    assert [thought_of(part) for part in parts if isinstance(part, ThinkingPart)] == [
        "First I need her city.",
        "Now the weather.",
        "That is all I need.",
    ]
    usage = result.usage
    assert usage.requests == 3
    assert usage.input_tokens > usage.output_tokens > 0


async def test_pydantic_agent_streams_its_answer_behind_two_tools(model: Model) -> None:
    agent, asked = weather_agent(model)
    async with agent.run_stream(ASKED) as result:
        deltas = [delta async for delta in result.stream_text(delta=True, debounce_by=None)]
    assert len(asked) == 2
    assert len(deltas) > 1
    assert "".join(deltas) == ANSWER


async def test_pydantic_agent_gets_a_typed_output_from_an_output_tool(model: Model) -> None:
    """The framework makes the model call a tool that it never offered by name: `tool_choice: required`."""
    agent = Agent(model, output_type=Fruit)
    assert (await agent.run(FRUIT_AS_OUTPUT)).output == Fruit(name="apple", count=3)


async def test_pydantic_agent_gets_a_typed_output_by_its_schema(model: Model) -> None:
    agent = Agent(model, output_type=NativeOutput(Fruit))
    assert (await agent.run(FRUIT)).output == Fruit(name="apple", count=3)


# --- LangChain --------------------------------------------------------------------------------------------------------


class Asking(Protocol):
    """A model of LangChain's, as far as tests use it; its own types have holes."""

    def invoke(self, input: object) -> AIMessage:  # noqa: A002 - LangChain's name
        """A whole answer."""
        ...

    def stream(self, input: object) -> Iterator[AIMessageChunk]:  # noqa: A002 - LangChain's name
        """The answer in pieces."""
        ...

    def astream(self, input: object) -> AsyncIterator[AIMessageChunk]:  # noqa: A002 - LangChain's name
        """The same on an event loop."""
        ...

    def bind_tools(self, tools: Sequence[BaseTool]) -> "Asking":
        """The model with tools."""
        ...

    def with_structured_output(self, schema: type[BaseModel], *, method: str) -> "Structured":
        """The model, held to a schema."""
        ...


class Structured(Protocol):
    """A model of LangChain's that answers with objects."""

    def invoke(self, input: object) -> BaseModel:  # noqa: A002 - LangChain's name
        """The object."""
        ...


Langchain = Callable[..., Asking]


@pytest.fixture
async def langchain(talker: Talker) -> AsyncGenerator[Langchain]:
    """LangChain's model, with connections of its own: by default it keeps some beyond the life of an event loop."""
    async with openai.DefaultAsyncHttpxClient() as calm:
        with openai.DefaultHttpxClient() as client:
            made = cast("Langchain", ChatOpenAI)
            yield partial(
                made,
                model=talker.name,
                base_url=talker.url,
                api_key=SecretStr("none"),
                max_retries=0,
                http_client=client,
                http_async_client=calm,
            )


BOTH = pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])


@tool
def find_home(person: str) -> str:
    """Say where somebody lives."""
    return f"{person}: {HOME}"


@tool
def measure(city: str, days: int) -> str:
    """Measure the temperature of a city."""
    return f"{WARMTH} ({city}, {days})"


TOOLS = {"find_home": find_home, "measure": measure}


@BOTH
def test_langchain_reads_a_whole_answer(langchain: Langchain, responses: bool) -> None:
    answer = langchain(use_responses_api=responses).invoke(GREETING)
    assert answer.text == "Hello, and welcome."
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


@BOTH
async def test_langchain_streams_an_answer_with_its_usage(langchain: Langchain, responses: bool) -> None:
    total: AIMessageChunk | None = None
    texts: list[str] = []
    async for chunk in langchain(use_responses_api=responses, stream_usage=True).astream(GREETING):
        texts.append(chunk.text)
        total = chunk if total is None else total + chunk
    assert "".join(texts) == "Hello, and welcome."
    # How many pieces the answer comes in is the machine's affair: what waits for a slow reader is merged.
    assert len(texts) > 1
    assert total is not None
    assert total.usage_metadata is not None
    assert total.usage_metadata["output_tokens"] > 0


@BOTH
def test_langchain_model_with_tools_calls_both_and_answers(langchain: Langchain, responses: bool) -> None:
    model = langchain(use_responses_api=responses).bind_tools(list(TOOLS.values()))
    messages: list[BaseMessage] = [HumanMessage(ASKED)]
    called: list[tuple[str, dict[str, object]]] = []
    while True:
        answer = model.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            break
        (call,) = answer.tool_calls
        called.append((call["name"], call["args"]))
        messages.append(cast("ToolMessage", TOOLS[call["name"]].invoke(call)))
    assert called == [("find_home", {"person": "Ada"}), ("measure", {"city": "Oslo", "days": 2})]
    assert answer.text == ANSWER


@BOTH
def test_langchain_puts_a_streamed_call_together(langchain: Langchain, responses: bool) -> None:
    model = langchain(use_responses_api=responses).bind_tools(list(TOOLS.values()))
    total: AIMessageChunk | None = None
    for chunk in model.stream(ASKED):
        total = chunk if total is None else total + chunk
    assert total is not None
    assert [(call["name"], call["args"]) for call in total.tool_calls] == [("find_home", {"person": "Ada"})]


@pytest.mark.parametrize(
    ("method", "words"),
    [("json_schema", FRUIT), ("json_mode", FRUIT), ("function_calling", FRUIT_AS_CALL)],
)
def test_langchain_structured_output_is_an_object_of_its_class(langchain: Langchain, method: str, words: str) -> None:
    assert langchain().with_structured_output(Fruit, method=method).invoke(words) == Fruit(name="apple", count=3)
