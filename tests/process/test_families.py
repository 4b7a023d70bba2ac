"""Other families through the whole daemon: OpenAI's client in a two-tool loop, with thoughts, needs to know none of them."""

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.chat.chat_completion import Choice

from tests.process.scripted import Family, Line, talking

MODEL = "here"
ASKED = "How warm is it where Ada lives?"
HOME = "Ada lives in Oslo."
WARMTH = "17 degrees in Oslo"
ANSWER = "It is 17 degrees where Ada lives, which is Oslo."
OTHERS = (Family.GEMMA4, Family.GLM, Family.MISTRAL, Family.GPT_OSS)
"""Those that `test_clients_agents.py` leaves."""
THOUGHTS = ["First I need her city.", "Now the weather.", "That is all I need."]


def tool(name: str, **properties: str) -> ChatCompletionToolParam:
    """A tool whose arguments have these types, all of them needed."""
    kinds = {key: {"type": kind} for key, kind in properties.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Say what {name} finds.",
            "parameters": {"type": "object", "properties": kinds, "required": list(kinds)},
        },
    }


TOOLS = [tool("find_home", person="string"), tool("measure", city="string", days="integer")]


def lines(family: Family) -> list[Line]:
    """What the model answers."""
    return [
        Line(ASKED, family.thought(THOUGHTS[0]) + family.call("find_home", {"person": "Ada"})),
        Line(HOME, family.thought(THOUGHTS[1]) + family.call("measure", {"city": "Oslo", "days": 2})),
        Line(WARMTH, family.thought(THOUGHTS[2]) + family.said(ANSWER)),
    ]


@dataclass(frozen=True)
class Message:
    """An answer as tests compare it, and as it goes back."""

    thought: str
    call: tuple[str, object] | None
    text: str
    reason: str
    sent: ChatCompletionMessageParam


@pytest.fixture(scope="module", params=OTHERS, ids=lambda family: cast("Family", family).value)
def talker(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[Family, openai.OpenAI]]:
    """A client of a daemon, one family after the other."""
    family = cast("Family", request.param)
    directory = tmp_path_factory.mktemp(family.value)
    with (
        talking(model, family, lines(family), directory, f"model_name={MODEL}") as (running, _),
        openai.OpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none", max_retries=0) as made,
    ):
        yield family, made


def message_of(choice: Choice, thought: object) -> Message:
    """A choice as a message."""
    calls = choice.message.tool_calls or []
    assert len(calls) <= 1
    call = next(((call.function.name, json.loads(call.function.arguments)) for call in calls if call.type == "function"), None)
    sent = cast("ChatCompletionMessageParam", choice.message.to_dict())
    return Message(str(thought or "").strip(), call, choice.message.content or "", choice.finish_reason, sent)


def whole(client: openai.OpenAI, messages: list[ChatCompletionMessageParam]) -> Message:
    """The next message."""
    choice = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0]
    return message_of(choice, choice.message.to_dict().get("reasoning_content"))


def streamed(client: openai.OpenAI, messages: list[ChatCompletionMessageParam]) -> Message:
    """The same, put together by the client's own helper."""
    thought = ""
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
        for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                thought += cast("str", event.chunk.choices[0].delta.to_dict().get("reasoning_content") or "")
        choice = stream.get_final_completion().choices[0]
    return message_of(cast("Choice", choice), thought)


@pytest.mark.parametrize("turn", [whole, streamed])
def test_two_tools_are_called_in_turn_and_the_answer_is_given(
    talker: tuple[Family, openai.OpenAI], turn: Callable[[openai.OpenAI, list[ChatCompletionMessageParam]], Message]
) -> None:
    family, client = talker
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": ASKED}]
    said: list[Message] = []
    for result in (HOME, WARMTH, None):
        said.append(turn(client, messages))
        messages.append(said[-1].sent)
        if result is not None:
            calls = cast("list[dict[str, str]]", said[-1].sent.get("tool_calls"))
            messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": result})
    assert [message.call for message in said] == [
        ("find_home", {"person": "Ada"}),
        ("measure", {"city": "Oslo", "days": 2}),
        None,
    ]
    assert [message.reason for message in said] == ["tool_calls", "tool_calls", "stop"]
    assert said[-1].text == ANSWER
    assert [message.thought for message in said] == (THOUGHTS if family.thinks else ["", "", ""])
