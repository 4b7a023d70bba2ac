"""`/v1/responses`: answers as items, streamed and whole, and what a request becomes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from daemon.chat.messages import AssistantMessage, ChatInput, SystemMessage, ToolMessage, UserMessage
from daemon.chat.prompt import RenderedPrompt
from daemon.core.errors import NotReady, ShuttingDown
from daemon.core.events import Ended, Ending, Opened, Paused, Piece, StreamEvent
from daemon.core.requests import ValidRequest
from tests.api.conftest import Connect
from tests.api.fakes import CARD, EOS, FakePrompts, FakeServing, application, breaks, says, usage_of
from tests.api.reading import Json, error_of
from tests.api.responses_reading import HELLO, PATH, events, response_of
from tests.api.test_chat_parsing import CALL, model

SHAPES = Path(__file__).parents[1] / "cases" / "request_shapes"
TOOLS: list[Json] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Weather of a city",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    }
]


class Noting(FakePrompts):
    """Keeps what it is asked to render."""

    def __init__(self) -> None:
        super().__init__()
        self.chats: list[ChatInput] = []

    def render(self, chat: ChatInput) -> RenderedPrompt:
        """As the base does."""
        self.chats.append(chat)
        return super().render(chat)


async def test_whole_answer_is_a_response(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("Hello", ".", cached=2))))
    response = await client.post(
        PATH, json={**HELLO, "model": "other-name", "instructions": "Be brief.", "metadata": {"a": "b"}, "max_output_tokens": 9}
    )
    body = await response.json()
    assert response.status == 200, body
    assert body["id"].startswith("resp_")
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", "other-name")
    assert (body["instructions"], body["metadata"], body["max_output_tokens"]) == ("Be brief.", {"a": "b"}, 9)
    assert (body["error"], body["incomplete_details"], body["previous_response_id"], body["store"]) == (None, None, None, False)
    (item,) = body["output"]
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}],
    }
    prompt = len("SystemMessage: Be brief.\nUserMessage: Hi\n")
    assert body["usage"] == {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + 2,
    }


async def test_stream_has_the_events_of_a_text_in_order(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("Hel", "lo"))))
    found = await events(await client.post(PATH, json={**HELLO, "stream": True}))
    assert [event["type"] for event in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert {event["content_index"] for event in found if "content_index" in event} == {0}
    assert response_of(found)["output"][0]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize("fields", [{}, {"reasoning": {"effort": "low", "summary": "auto"}}, {"parallel_tool_calls": False}])
@pytest.mark.parametrize(
    ("text", "opened"), [("hm\n</think>\n\nHello", True), ("hm</think>I look.\n" + CALL + "\n" + CALL, True), ("", False)]
)
async def test_stream_and_whole_answer_are_the_same_response(connect: Connect, text: str, opened: bool, fields: Json) -> None:
    client, _ = await model(connect, text, opened=opened)
    asked = {**HELLO, "tools": TOOLS, **fields}
    whole = await (await client.post(PATH, json=asked)).json()
    streamed = response_of(await events(await client.post(PATH, json={**asked, "stream": True})))
    for response in (whole, streamed):
        del response["id"], response["created_at"]
        for item in response["output"]:
            del item["id"]
            item.pop("call_id", None)
    assert streamed == whole


async def test_thought_and_calls_are_items(connect: Connect) -> None:
    client, _ = await model(connect, "hm</think>I look.\n" + CALL + "\n" + CALL, opened=True)
    body = await (await client.post(PATH, json={**HELLO, "tools": TOOLS})).json()
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call", "function_call"]
    thought, _, call, other = body["output"]
    assert (thought["summary"], thought["content"]) == ([], [{"type": "reasoning_text", "text": "hm"}])
    assert json.loads(call["arguments"]) == {"city": "Oslo", "days": 3}
    assert call["call_id"] != other["call_id"]
    assert len({item["id"] for item in body["output"]}) == 4
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] >= 2


async def test_thought_comes_as_a_summary_where_one_is_asked_for(connect: Connect) -> None:
    client, _ = await model(connect, "hm</think>Hello", opened=True)
    found = await events(await client.post(PATH, json={**HELLO, "stream": True, "reasoning": {"summary": "auto"}}))
    (thought, _) = response_of(found)["output"]
    assert (thought["summary"], thought["content"]) == ([{"type": "summary_text", "text": "hm"}], [])
    assert [event["type"] for event in found[2:9] if event["type"].startswith("response.reasoning")][:2] == [
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
    ]


@pytest.mark.parametrize("stream", [True, False])
async def test_call_cut_by_the_limit_is_never_complete(connect: Connect, stream: bool) -> None:
    client, _ = await model(connect, CALL[:100], ending=Ending.LENGTH)
    response = await client.post(PATH, json={**HELLO, "tools": TOOLS, "stream": stream})
    if stream:
        found = await events(response)
        assert any(event["type"] == "response.function_call_arguments.delta" for event in found)
        (done,) = [event for event in found if event["type"].endswith(".done")]
        assert (done["type"], done["item"]["status"]) == ("response.output_item.done", "incomplete")
        body = response_of(found)
    else:
        body = await response.json()
    assert (body["status"], body["output"]) == ("incomplete", [])
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("stream", [True, False])
async def test_text_cut_by_the_limit_is_incomplete(connect: Connect, stream: bool) -> None:
    client = await connect(application(FakeServing(says("Hel", ending=Ending.LENGTH, stop=None))))
    response = await client.post(PATH, json={**HELLO, "stream": stream})
    body = response_of(await events(response)) if stream else await response.json()
    assert (body["status"], body["output"][0]["status"]) == ("incomplete", "incomplete")


async def test_extension_of_the_ending_and_pauses_are_told(connect: Connect) -> None:
    def script(request: ValidRequest) -> list[StreamEvent]:
        ended = Ended(Ending.STOP, usage_of(request, 1), EOS, "repetition")
        return [Opened(0, 0.0), Paused("the engine restarts"), Piece("x", (9,)), ended]

    client = await connect(application(FakeServing(script)))
    assert (await (await client.post(PATH, json=HELLO)).json())["stop_detail"] == "repetition"
    response = await client.post(PATH, json={**HELLO, "stream": True})
    assert response_of(await events(response))["stop_detail"] == "repetition"
    assert ": the engine restarts\n\n" in await response.text()


# --- what a request becomes -------------------------------------------------------------------------------------------


async def test_items_become_the_chat(connect: Connect) -> None:
    prompts = Noting()
    client = await connect(application(prompts=prompts))
    items: list[Json] = [
        {"role": "developer", "content": "Hurry."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "assistant", "content": "Sunny."},
        {"role": "assistant", "content": "And rain."},
        {"role": "user", "content": "So?"},
    ]
    response = await client.post(PATH, json={"input": items, "instructions": "Be brief.", "tools": TOOLS, "include": []})
    assert response.status == 200, await response.text()
    (chat,) = prompts.chats
    assert [type(message) for message in chat.messages] == [
        SystemMessage,
        SystemMessage,
        UserMessage,
        AssistantMessage,
        ToolMessage,
        ToolMessage,
        AssistantMessage,
        AssistantMessage,
        UserMessage,
    ]
    said = chat.messages[3]
    assert isinstance(said, AssistantMessage)
    assert said.reasoning == "hm"
    assert [(call.id, call.arguments) for call in said.calls] == [("c1", {"city": "Oslo"}), ("c2", {})]
    assert [tool.strict for tool in chat.tools] == [True]


async def test_thought_without_effort_and_budget_are_passed_on(connect: Connect) -> None:
    prompts = Noting()
    client = await connect(application(prompts=prompts))
    for effort in ("none", "high"):
        assert (await client.post(PATH, json={**HELLO, "reasoning": {"effort": effort}})).status == 200
    assert [(chat.thinking, chat.effort) for chat in prompts.chats] == [(False, None), (None, "high")]
    thinking, serving = await model(connect, "x</think>y", opened=True)
    assert (await thinking.post(PATH, json={**HELLO, "reasoning_budget": 7})).status == 200
    reasoning = serving.requests[0].reasoning
    assert reasoning is not None
    assert reasoning.budget_left == 7


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}, {"type": "object"}),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "text"}, None),
    ],
)
async def test_form_of_the_answer_is_a_constraint(connect: Connect, form: Json, schema: Json | None) -> None:
    serving = FakeServing(says("{}"))
    client = await connect(application(serving))
    assert (await client.post(PATH, json={**HELLO, "text": {"format": form}})).status == 200
    constraint = serving.requests[0].constraint
    assert (constraint and json.loads(constraint.text)) == schema


async def test_sampling_and_ignore_eos_reach_the_engine(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "stop": "Z", "ignore_eos": True, "max_output_tokens": 5}
    body = await (await client.post(PATH, json={**HELLO, **fields})).json()
    request = serving.requests[0]
    assert (request.sampler.temperature, request.sampler.top_p, request.sampler.top_k) == (0.5, 0.9, 7)
    assert (request.seed, request.stop_strings, request.stop_ids, request.max_tokens) == (3, ("Z",), (), 5)
    assert (body["temperature"], body["top_p"]) == (0.5, 0.9)


@pytest.mark.parametrize(
    ("choice", "mode", "tools"),
    [
        ("required", "required", 2),
        ({"type": "function", "name": "other"}, "named", 2),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}, "required", 1),
    ],
)
async def test_tool_choice_is_understood(connect: Connect, choice: object, mode: str, tools: int) -> None:
    prompts = Noting()
    client = await connect(application(prompts=prompts))
    offered = [*TOOLS, {"type": "function", "name": "other"}]
    response = await client.post(PATH, json={**HELLO, "tools": offered, "tool_choice": choice})
    assert response.status == 200, await response.text()
    (chat,) = prompts.chats
    assert (chat.tool_choice.mode.value, len(chat.tools)) == (mode, tools)


async def test_call_that_must_come_is_a_constraint_on_the_allowed_tools(connect: Connect) -> None:
    client, serving = await model(connect, CALL)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    offered = [{"type": "function", "name": "other"}, *TOOLS]
    body = await (await client.post(PATH, json={**HELLO, "tools": offered, "tool_choice": allowed})).json()
    constraint = serving.requests[0].constraint
    assert constraint is not None
    assert "get_weather" in constraint.text
    assert "other" not in constraint.text
    assert [item["type"] for item in body["output"]] == ["function_call"]
    assert body["tool_choice"] == allowed
    assert [tool["name"] for tool in body["tools"]] == ["other", "get_weather"]


# --- errors -----------------------------------------------------------------------------------------------------------

IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,eHg="}
WRONG: list[tuple[Json, str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": [3]}, "input[0]"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "vid"}]}]},
        "input[0].content[1].type",
    ),
    ({"input": [{"role": "user", "content": "x"}, {"type": "function_call", "name": "x", "arguments": "{}"}]}, "input[1]"),
    (
        {"instructions": "i", "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}, IMAGE]}]},
        "input[0].content[1]",
    ),
    (
        {"input": [{"role": "user", "content": "x"}, {"type": "function_call_output", "call_id": "c", "output": [IMAGE]}]},
        "input[1].output[0]",
    ),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "x", "parameters": {"type": "string"}}]}, "tools[0].parameters.type"),
    ({"tools": TOOLS * 2}, "tools[1].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": 3}}, "tool_choice.name"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}}, "tool_choice.mode"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
    (
        {
            "tools": [*TOOLS, {"type": "function", "name": "x", "parameters": {"type": "string"}}],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
        },
        "tools[1].parameters.type",
    ),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {"type": "objec"}}}}, "text.format.schema"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
async def test_wrong_field_is_named_as_it_was_sent(connect: Connect, fields: Json, param: str) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await client.post(PATH, json={**HELLO, **fields})
    assert response.status == 400, await response.text()
    error = await error_of(response)
    assert error["param"] == param
    assert f"`{param}`" in error["message"]
    assert serving.requests == []


async def test_what_asks_for_nothing_passes(connect: Connect) -> None:
    client = await connect(application())
    nothing: Json = {
        "background": False,
        "previous_response_id": None,
        "store": True,
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
        "top_logprobs": 0,
        "metadata": {},
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "x",
        "user": "u",
        "max_tool_calls": 3,
    }
    assert (await client.post(PATH, json={**HELLO, **nothing})).status == 200


async def test_unknown_model_and_busy_server_have_their_status(connect: Connect) -> None:
    serving = FakeServing(served=replace(CARD, aliases=()))
    client = await connect(application(serving))
    assert (await client.post(PATH, json={**HELLO, "model": "other-name"})).status == 404
    serving.refusal = NotReady("starting", 2)
    refused = await client.post(PATH, json={**HELLO, "stream": True})
    assert (refused.status, (await error_of(refused))["code"]) == (503, "not_ready")


@pytest.mark.parametrize("texts", [("Hel",), ()])
async def test_error_inside_a_stream_is_told_and_ends_the_response(connect: Connect, texts: tuple[str, ...]) -> None:
    client = await connect(application(FakeServing(breaks(ShuttingDown(), *texts))))
    response = await client.post(PATH, json={**HELLO, "stream": True})
    if not texts:
        assert response.status == 503
        return
    found = await events(response)
    told, failed = found[-2:]
    assert (told["type"], told["code"]) == ("error", "shutting_down")
    assert "shutting down" in told["message"]
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "shutting_down"


# --- recorded requests ------------------------------------------------------------------------------------------------


def recorded() -> Iterator[tuple[str, Json]]:
    for path in sorted(SHAPES.glob("*.json")):
        for index, entry in enumerate(cast("list[Json]", json.loads(path.read_text()))):
            if entry["request"] == f"POST {PATH}":
                yield f"{path.stem}-{index}", {**entry, "body": {**entry["body"], "model": CARD.name}}


@pytest.mark.parametrize("entry", [pytest.param(entry, id=name) for name, entry in recorded()])
async def test_recorded_request_is_answered(connect: Connect, entry: Json) -> None:
    serving = FakeServing(says("Hello", "."))
    client = await connect(application(serving))
    body = entry["body"]
    response = await client.post(PATH, data=json.dumps(body), headers=entry["headers"])
    if "previous_response_id" in body:
        assert response.status == 400
        assert (await error_of(response))["code"] == "unsupported_parameter"
        return
    answer = response_of(await events(response)) if body.get("stream") else await response.json()
    assert answer["status"] == "completed", answer
    assert answer["output"][0]["content"][0]["text"] == "Hello."
    if body.get("ignore_eos"):
        assert serving.requests[0].stop_ids == ()


def test_recordings_are_there() -> None:
    assert len(list(recorded())) > 12
