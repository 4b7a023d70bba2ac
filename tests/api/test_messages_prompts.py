"""One conversation, told in the words of three API families, is one prompt: templates and the prefix cache see no difference."""

from typing import Any

import pytest
from aiohttp import web

from tests.api.conftest import Connect
from tests.api.fakes import FakeServing, application, says
from tests.api.reading import Json
from tests.api.test_messages import prompt_of
from tests.chat.template_families import FAMILIES, builder, model

SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
ABOUT = {"name": "get_weather", "description": "Weather of a city"}
ASKED, SAID, THOUGHT, RESULT, AGAIN = "Weather in Oslo?", "I look.", "They want weather.", "sunny, 21 degrees", "And tomorrow?"

CHAT: Json = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ASKED},
        {
            "role": "assistant",
            "content": SAID,
            "reasoning_content": THOUGHT,
            "tool_calls": [
                {
                    "id": "abcDEF123",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Oslo","days":3}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "abcDEF123", "content": RESULT},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": AGAIN},
    ],
    "tools": [{"type": "function", "function": {**ABOUT, "parameters": SCHEMA}}],
}
MESSAGES: Json = {
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": ASKED},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": THOUGHT, "signature": "unsigned"},
                {"type": "text", "text": SAID},
                {"type": "tool_use", "id": "abcDEF123", "name": "get_weather", "input": {"city": "Oslo", "days": 3}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "abcDEF123", "content": [{"type": "text", "text": RESULT}]}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Sunny."}]},
        {"role": "user", "content": [{"type": "text", "text": AGAIN, "cache_control": {"type": "ephemeral"}}]},
    ],
    "tools": [{**ABOUT, "input_schema": SCHEMA}],
}
RESPONSES: Json = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": ASKED},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": THOUGHT}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": SAID, "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "abcDEF123",
            "name": "get_weather",
            "arguments": '{"city": "Oslo", "days": 3}',
            "status": "completed",
        },
        {"type": "function_call_output", "call_id": "abcDEF123", "output": RESULT},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": [{"type": "input_text", "text": AGAIN}]},
    ],
    "tools": [{"type": "function", **ABOUT, "parameters": SCHEMA}],
}
TOLD: dict[str, Json] = {"/v1/chat/completions": CHAT, "/v1/messages": MESSAGES, "/v1/responses": RESPONSES}
THINKING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"enable_thinking": False},
    "/v1/messages": {"thinking": {"type": "disabled"}},
    "/v1/responses": {"reasoning": {"effort": "none"}},
}


def speaking(family: str, serving: FakeServing) -> web.Application:
    """The application over the family's own template."""
    return application(serving, prompts=builder(family), added=model(family).added)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("thinking", [True, False])
async def test_same_conversation_is_the_same_prompt_in_all_families(connect: Connect, family: str, thinking: bool) -> None:
    prompts: list[str] = []
    for path, body in TOLD.items():
        serving = FakeServing(says("x"))
        client = await connect(speaking(family, serving))
        response = await client.post(path, json={**body, **({} if thinking else THINKING[path])})
        assert response.status == 200, await response.text()
        prompts.append(prompt_of(serving))
    assert RESULT in prompts[0]
    assert AGAIN in prompts[0]
    assert prompts[1:] == prompts[:1] * 2


@pytest.mark.parametrize("family", FAMILIES)
async def test_counting_and_applying_see_the_same_prompt(connect: Connect, family: str) -> None:
    serving = FakeServing(says("x"))
    client = await connect(speaking(family, serving))
    await client.post("/v1/chat/completions", json=CHAT)
    prompt = prompt_of(serving)
    counted = await (await client.post("/v1/messages/count_tokens", json={**MESSAGES, "max_tokens": None})).json()
    assert counted["input_tokens"] == len(prompt)
    assert (await (await client.post("/tokenize", json=CHAT)).json())["count"] == len(prompt)
    assert (await (await client.post("/apply-template", json=CHAT)).json())["prompt"] == prompt
