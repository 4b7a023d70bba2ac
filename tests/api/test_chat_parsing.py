"""Thoughts and tool calls of a chat, streamed and not: the same message both ways."""

import json

import pytest

from daemon.core.events import Ending
from daemon.core.model import AddedToken
from daemon.core.settings import AnswerSettings, CallFormat, Settings
from daemon.core.wire import OnStop
from tests.api.conftest import Client, Connect
from tests.api.fakes import FIRST_CHARACTER, FakePrompts, FakeServing, application, says
from tests.api.reading import CHAT, Json, events

PATH = "/v1/chat/completions"
TEMPLATE = "<|im_start|>assistant <think> </think> <tool_call><function=name><parameter=x></parameter></function></tool_call>"
ADDED = (
    AddedToken(60_001, "<think>", special=False),
    AddedToken(60_002, "</think>", special=True),
    AddedToken(60_003, "<tool_call>", special=True),
    AddedToken(60_004, "<|im_end|>", special=True),
)
TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]
CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)


async def model(connect: Connect, text: str, *, opened: bool = False, ending: Ending = Ending.STOP) -> tuple[Client, FakeServing]:
    """A client on a thinking model that says `text`, one character a token; `opened`: the template opens the thought."""
    serving = FakeServing(says(*text, ending=ending))
    ending_text = "<|im_start|>assistant\n" + ("<think>\n" if opened else "")
    prompts = FakePrompts(tool_source=TEMPLATE, ending=ending_text)
    return await connect(application(serving, prompts=prompts, added=ADDED)), serving


async def message_of(client: Client, **fields: object) -> tuple[Json, str]:
    body = await (await client.post(PATH, json={**CHAT, **fields})).json()
    return body["choices"][0]["message"], body["choices"][0]["finish_reason"]


async def streamed_message_of(client: Client, **fields: object) -> tuple[Json, str]:
    """The message that a client puts together from the chunks."""
    message: Json = {"role": "assistant", "content": None}
    finish = ""
    for chunk in await events(await client.post(PATH, json={**CHAT, **fields, "stream": True})):
        choice = chunk["choices"][0]
        finish = choice["finish_reason"] or finish
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for call in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append(
                    {"id": call["id"], "type": call["type"], "function": {"name": call["function"]["name"], "arguments": ""}}
                )
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message, finish


async def test_thought_and_answer_are_told_apart_in_both_ways(connect: Connect) -> None:
    client, _ = await model(connect, "hm, well\n</think>\n\nHello", opened=True)
    message, finish = await message_of(client)
    assert message == {"role": "assistant", "content": "Hello", "reasoning_content": message["reasoning_content"]}
    assert message["reasoning_content"].strip() == "hm, well"
    assert await streamed_message_of(client) == (message, finish)


async def test_thought_that_the_prompt_opened_is_told_to_the_engine(connect: Connect) -> None:
    client, serving = await model(connect, "x</think>y", opened=True)
    await message_of(client, response_format={"type": "json_object"}, reasoning_budget=77)
    reasoning = serving.requests[0].reasoning
    assert reasoning is not None
    assert reasoning.budget_left == 77
    assert reasoning.inside
    assert reasoning.on_stop is OnStop.CLOSE
    assert reasoning.end_ids == [FIRST_CHARACTER + ord(character) for character in "</think>"]
    constraint = serving.requests[0].constraint
    assert constraint is not None
    assert constraint.begins == reasoning.end_ids
    assert serving.requests[0].shown_ids == {60_001, 60_002, 60_003}


async def test_answer_that_may_begin_with_a_thought_tells_the_engine_how(connect: Connect) -> None:
    client, serving = await model(connect, "y")
    await message_of(client, response_format={"type": "json_object"})
    reasoning = serving.requests[0].reasoning
    assert reasoning is not None
    assert not reasoning.inside
    assert reasoning.begin_ids == [FIRST_CHARACTER + ord(character) for character in "<think>"]
    assert serving.requests[0].constraint is not None
    assert serving.requests[0].constraint.begins == []


async def test_answer_without_thoughts_tells_the_engine_nothing(connect: Connect) -> None:
    client, serving = await model(connect, "y")
    await message_of(client, enable_thinking=False)
    assert serving.requests[0].reasoning is None


async def test_tool_call_is_the_same_streamed_and_whole(connect: Connect) -> None:
    client, _ = await model(connect, "I look.\n" + CALL)
    message, finish = await message_of(client, tools=TOOLS)
    assert finish == "tool_calls"
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo", "days": 3}
    streamed, streamed_finish = await streamed_message_of(client, tools=TOOLS)
    assert streamed_finish == "tool_calls"
    assert streamed["tool_calls"][0]["function"] == call["function"]
    assert streamed["tool_calls"][0]["id"].startswith("call_")
    assert (streamed["content"] or "").strip() == message["content"].strip() == "I look."


async def test_call_without_text_has_null_content(connect: Connect) -> None:
    client, _ = await model(connect, CALL)
    message, _ = await message_of(client, tools=TOOLS)
    assert message["content"] is None


async def test_call_cut_by_the_limit_ends_with_length_and_is_no_call(connect: Connect) -> None:
    client, _ = await model(connect, CALL[:70], ending=Ending.LENGTH)
    message, finish = await message_of(client, tools=TOOLS)
    assert finish == "length"
    assert "tool_calls" not in message


async def test_tool_choice_none_leaves_markup_as_text(connect: Connect) -> None:
    client, _ = await model(connect, CALL)
    message, finish = await message_of(client, tools=TOOLS, tool_choice="none")
    assert finish == "stop"
    assert "get_weather" in message["content"]


@pytest.mark.parametrize("stream", [True, False])
async def test_no_parallel_calls_gives_the_first_only(connect: Connect, stream: bool) -> None:
    client, _ = await model(connect, CALL + "\n" + CALL)
    read = streamed_message_of if stream else message_of
    both, _ = await read(client, tools=TOOLS)
    assert len(both["tool_calls"]) == 2
    one, finish = await read(client, tools=TOOLS, parallel_tool_calls=False)
    assert len(one["tool_calls"]) == 1
    assert finish == "tool_calls"


async def test_thinking_is_counted_in_usage(connect: Connect) -> None:
    client, _ = await model(connect, "hm</think>Hello", opened=True)
    body = await (await client.post(PATH, json=CHAT)).json()
    assert 2 <= body["usage"]["completion_tokens_details"]["reasoning_tokens"] <= len("hm</think>")


async def test_configured_call_format_overrides_the_template(connect: Connect) -> None:
    """A fine-tune may keep a template that shows another format than the one it writes."""
    said = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
    chosen = Settings(answers=AnswerSettings(call_format=CallFormat.HERMES_JSON))
    prompts = FakePrompts(tool_source=TEMPLATE, ending="<|im_start|>assistant\n")
    client = await connect(application(FakeServing(says(*said)), chosen, prompts=prompts, added=ADDED))
    message, finish = await message_of(client, tools=TOOLS)
    assert finish == "tool_calls"
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo", "days": 3}
