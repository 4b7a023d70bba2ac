"""`/v1/messages`: Anthropic's answers, streamed and whole, and what a request becomes."""

import base64
import json
from dataclasses import replace

import pytest

from daemon.chat.control_tokens import IMAGE
from daemon.chat.messages import ChatInput, MediaPart
from daemon.chat.prompt import RenderedPrompt
from daemon.core.errors import NotReady, ShuttingDown
from daemon.core.events import Ended, Ending, Opened, Paused, Piece, StreamEvent
from daemon.core.pictures import PictureRule
from daemon.core.requests import ValidRequest
from daemon.core.settings import Overflow
from daemon.core.wire import ImageSpan, TokenSpan
from tests.api.anthropic_reading import HELLO, PATH, error_of, events, message_of
from tests.api.conftest import Connect
from tests.api.fakes import CARD, EOS, FIRST_CHARACTER, FakePrompts, FakeServing, application, breaks, says, settings, usage_of
from tests.api.reading import Json
from tests.api.test_chat_parsing import CALL, model
from tests.api.test_doorman import KEY, OWN_KEY, WITH_KEYS
from tests.pictures import png

COUNT = PATH + "/count_tokens"
TOOLS: list[Json] = [
    {
        "name": "get_weather",
        "description": "Weather of a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    }
]


def prompt_of(serving: FakeServing) -> str:
    """What the fake template made of the last request."""
    (span,) = serving.requests[-1].spans
    assert not isinstance(span, ImageSpan)
    return "".join(chr(token - FIRST_CHARACTER) for token in span.ids)


async def test_whole_answer_is_a_message(connect: Connect) -> None:
    serving = FakeServing(says("Hello", ".", cached=2))
    client = await connect(application(serving))
    response = await client.post(PATH, json={**HELLO, "model": "other-name", "temperature": 0.5, "top_k": 3, "top_p": 0.9})
    body = await response.json()
    assert response.status == 200, body
    assert body.pop("id").startswith("msg_")
    prompt = len("UserMessage: Hi\n")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "other-name",
        "content": [{"type": "text", "text": "Hello.", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt - 2,
            "cache_read_input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "output_tokens": 2,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }
    assert response.headers["request-id"]
    sampler = serving.requests[0].sampler
    assert (sampler.temperature, sampler.top_k, sampler.top_p) == (0.5, 3, 0.9)
    assert serving.requests[0].max_tokens == 64


async def test_stream_begins_and_ends_as_clients_expect(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("Hel", "lo"))))
    response = await client.post(PATH, json={**HELLO, "stream": True})
    found = await events(response)
    assert [event["type"] for event in found] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert found[0]["message"]["content"] == []
    assert found[0]["message"]["stop_reason"] is None
    assert "event: ping" in await response.text()
    assert message_of(found)["content"][0]["text"] == "Hello"


@pytest.mark.parametrize(
    ("text", "opened", "fields"),
    [
        ("hm, well\n</think>\n\nHello", True, {}),
        ("I look.\n" + CALL, False, {"tools": TOOLS}),
        ("hm</think>I look.\n" + CALL + "\n" + CALL, True, {"tools": TOOLS}),
        ("hm</think>" + CALL, True, {"tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        ("", False, {}),
    ],
)
async def test_stream_and_whole_answer_are_the_same_message(connect: Connect, text: str, opened: bool, fields: Json) -> None:
    client, _ = await model(connect, text, opened=opened)
    whole = await (await client.post(PATH, json={**HELLO, **fields})).json()
    streamed = message_of(await events(await client.post(PATH, json={**HELLO, **fields, "stream": True})))
    for message in (whole, streamed):
        message.pop("id")
        for block in message["content"]:
            if block["type"] == "tool_use":
                assert block.pop("id").startswith("toolu_")
    assert streamed == whole


async def test_thought_and_calls_are_blocks_in_order(connect: Connect) -> None:
    client, _ = await model(connect, "hm</think>I look.\n" + CALL + "\n" + CALL, opened=True)
    body = await (await client.post(PATH, json={**HELLO, "tools": TOOLS})).json()
    kinds = [block["type"] for block in body["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert body["content"][0]["thinking"] == "hm"
    assert body["content"][0]["signature"]
    assert body["content"][2]["input"] == {"city": "Oslo", "days": 3}
    assert body["stop_reason"] == "tool_use"
    assert body["usage"]["output_tokens_details"]["thinking_tokens"] >= 2
    assert body["content"][2]["id"] != body["content"][3]["id"]


async def test_hidden_thought_keeps_its_place_and_loses_its_text(connect: Connect) -> None:
    client, _ = await model(connect, "hm</think>Hello", opened=True)
    asked = {**HELLO, "thinking": {"type": "adaptive", "display": "omitted"}}
    whole = await (await client.post(PATH, json=asked)).json()
    streamed = message_of(await events(await client.post(PATH, json={**asked, "stream": True})))
    for message in (whole, streamed):
        assert [block["type"] for block in message["content"]] == ["thinking", "text"]
        assert message["content"][0]["thinking"] == ""
        assert message["content"][0]["signature"]


@pytest.mark.parametrize("stream", [True, False])
async def test_call_cut_by_the_limit_is_never_closed(connect: Connect, stream: bool) -> None:
    client, _ = await model(connect, CALL[:100], ending=Ending.LENGTH)
    response = await client.post(PATH, json={**HELLO, "tools": TOOLS, "stream": stream})
    if stream:
        found = await events(response)
        assert any(event["type"] == "content_block_start" for event in found)
        assert not any(event["type"] == "content_block_stop" for event in found)
        message = message_of(found)
    else:
        message = await response.json()
    assert message["stop_reason"] == "max_tokens"
    assert message["content"] == []


async def test_limit_of_the_context_is_told_from_that_of_the_request(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("x", ending=Ending.LENGTH, stop=None))))
    asked = await (await client.post(PATH, json=HELLO)).json()
    assert asked["stop_reason"] == "max_tokens"
    response = await client.post(PATH, json={**HELLO, "max_tokens": 65536})
    assert (await response.json())["stop_reason"] == "model_context_window_exceeded"
    assert response.headers["x-exl3d-max-tokens-clamped"].startswith("65536->")


async def test_stop_sequence_is_named(connect: Connect) -> None:
    serving = FakeServing(says("Hello", stop="ZZZ"))
    client = await connect(application(serving))
    body = await (await client.post(PATH, json={**HELLO, "stop_sequences": ["ZZZ", "Q"]})).json()
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "ZZZ")
    assert serving.requests[0].stop_strings == ("ZZZ", "Q")


async def test_extension_of_the_ending_is_told(connect: Connect) -> None:
    def script(request: ValidRequest) -> list[StreamEvent]:
        return [Opened(0, 0.0), Piece("x", (9,)), Ended(Ending.STOP, usage_of(request, 1), EOS, "repetition")]

    client = await connect(application(FakeServing(script)))
    assert (await (await client.post(PATH, json=HELLO)).json())["stop_detail"] == "repetition"
    streamed = message_of(await events(await client.post(PATH, json={**HELLO, "stream": True})))
    assert streamed["stop_detail"] == "repetition"


async def test_pause_is_a_comment(connect: Connect) -> None:
    def script(request: ValidRequest) -> list[StreamEvent]:
        return [Opened(0, 0.0), Paused("the engine restarts"), Piece("x", (9,)), Ended(Ending.STOP, usage_of(request, 1), EOS)]

    client = await connect(application(FakeServing(script)))
    response = await client.post(PATH, json={**HELLO, "stream": True})
    assert message_of(await events(response))["content"][0]["text"] == "x"
    assert ": the engine restarts\n\n" in await response.text()


# --- what a request becomes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]])
async def test_system_goes_first(connect: Connect, system: object) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    assert (await client.post(PATH, json={**HELLO, "system": system})).status == 200
    assert prompt_of(serving) == "SystemMessage: Be brief.\nUserMessage: Hi\n"


async def test_billing_header_of_an_agent_does_not_reach_the_prompt(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc=1; h=ab12"}, {"type": "text", "text": "Be brief."}]
    assert (await client.post(PATH, json={**HELLO, "system": system})).status == 200
    assert prompt_of(serving) == "SystemMessage: Be brief.\nUserMessage: Hi\n"


async def test_turns_with_calls_and_results_become_the_chat(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    messages: list[Json] = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "toolu_2", "name": "get_weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [{"type": "text", "text": "no city"}],
                    "is_error": True,
                },
                {"type": "text", "text": "So?"},
            ],
        },
        {"role": "system", "content": "Hurry."},
        {"role": "user", "content": [{"type": "document", "title": "T", "source": {"type": "text", "data": "D"}}]},
        {
            "role": "user",
            "content": [
                {"type": "search_result", "title": "A", "source": "B", "content": [{"type": "text", "text": "C"}]},
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "E"}]}},
            ],
        },
    ]
    response = await client.post(PATH, json={**HELLO, "messages": messages, "tools": TOOLS})
    assert response.status == 200, await response.text()
    assert prompt_of(serving).splitlines() == [
        "UserMessage: weather?",
        "AssistantMessage: I look.",
        "ToolMessage: sunny",
        "ToolMessage: Error:no city",
        "UserMessage: So?",
        "SystemMessage: Hurry.",
        "UserMessage: TD",
        "UserMessage: A",
        "B",
        "CE",
    ]


@pytest.mark.parametrize(
    ("thinking", "budget"),
    [({"type": "enabled", "budget_tokens": 1024}, 1024), ({"type": "adaptive"}, None), ({"type": "between_tools"}, None)],
)
async def test_budget_of_thoughts_reaches_the_engine(connect: Connect, thinking: Json, budget: int | None) -> None:
    client, serving = await model(connect, "x</think>y", opened=True)
    assert (await client.post(PATH, json={**HELLO, "thinking": thinking})).status == 200
    reasoning = serving.requests[0].reasoning
    assert reasoning is not None
    assert reasoning.budget_left == budget


async def test_form_of_the_answer_is_a_constraint(connect: Connect) -> None:
    serving = FakeServing(says("{}"))
    client = await connect(application(serving))
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"name": {"type": "string"}}}}
    for fields in ({"output_config": {"format": form, "effort": "low"}}, {"output_format": form}):
        assert (await client.post(PATH, json={**HELLO, **fields})).status == 200
        constraint = serving.requests[-1].constraint
        assert constraint is not None
        assert json.loads(constraint.text) == form["schema"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
async def test_call_that_must_come_is_a_constraint(connect: Connect, choice: Json) -> None:
    client, serving = await model(connect, CALL)
    body = await (await client.post(PATH, json={**HELLO, "tools": TOOLS, "tool_choice": choice})).json()
    constraint = serving.requests[0].constraint
    assert constraint is not None
    assert "get_weather" in constraint.text
    assert [block["type"] for block in body["content"]] == ["tool_use"]


async def test_call_that_must_not_come_stays_text(connect: Connect) -> None:
    client, serving = await model(connect, CALL)
    body = await (await client.post(PATH, json={**HELLO, "tools": TOOLS, "tool_choice": {"type": "none"}})).json()
    assert serving.requests[0].constraint is None
    assert [block["type"] for block in body["content"]] == ["text"]
    assert body["stop_reason"] == "end_turn"


async def test_schema_that_no_grammar_can_hold_is_named(connect: Connect) -> None:
    client, serving = await model(connect, CALL)
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?=a)b"}}}
    tool = {"name": "x", "input_schema": schema}
    response = await client.post(PATH, json={**HELLO, "tools": [tool], "tool_choice": {"type": "any"}})
    assert response.status == 400
    assert "`tools[0].input_schema`" in (await error_of(response))["message"]
    assert serving.requests == []


async def test_assistants_turn_at_the_end_is_gone_on_with(connect: Connect) -> None:
    asked: list[bool] = []

    class Noted(FakePrompts):
        def render(self, chat: ChatInput) -> RenderedPrompt:
            asked.append(chat.continue_final)
            return super().render(chat)

    client = await connect(application(prompts=Noted()))
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is ("}]
    assert (await client.post(PATH, json={**HELLO, "messages": turns})).status == 200
    empty = [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]
    assert (await client.post(PATH, json={**HELLO, "messages": empty})).status == 200
    assert asked == [True, False]


async def test_both_headers_carry_the_key_and_betas_are_ignored(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving, WITH_KEYS))
    beta = {"anthropic-version": "2026-10-21", "anthropic-beta": "interleaved-thinking-2025-05-14,never-heard-of"}
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": OWN_KEY}):
        assert (await client.post(PATH, json=HELLO, headers={**headers, **beta})).status == 200
    assert [request.owner for request in serving.requests] == ["ann", "bob"]
    refused = await client.post(PATH, json=HELLO)
    assert refused.status == 401
    assert (await error_of(refused))["type"] == "authentication_error"


# --- pictures ---------------------------------------------------------------------------------------------------------

SEEN = png(96, 64)
RULE = PictureRule(32, 1024, 1 << 20, (7,), (8, 9))
PICTURE: Json = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(SEEN).decode()},
}


async def test_picture_is_refused_by_its_place_where_the_model_has_no_eyes(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}, PICTURE]}
    cases = [
        ([{"role": "user", "content": [{"type": "text", "text": "x"}, PICTURE]}], "messages[0].content[1]"),
        (
            [{"role": "assistant", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "x"}, result]}],
            "messages[1].content[1].content[1]",
        ),
    ]
    for messages, place in cases:
        response = await client.post(PATH, json={**HELLO, "messages": messages, "system": "s"})
        assert response.status == 400
        assert f"`{place}`" in (await error_of(response))["message"]
    assert serving.requests == []


@pytest.mark.parametrize(
    "source",
    [
        {"type": "url", "url": "https://example.com/x.png"},
        {"type": "file", "file_id": "file_1"},
        {"type": "base64", "media_type": "image/png", "data": "***"},
        {"type": "base64", "media_type": "text/plain", "data": "eHh4"},
    ],
)
async def test_picture_that_cannot_be_had_is_refused(connect: Connect, source: Json) -> None:
    client = await connect(application(FakeServing(served=replace(CARD, pictures=RULE)), prompts=_Looking()))
    response = await client.post(
        PATH, json={**HELLO, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    )
    assert response.status == 400
    assert "messages[0].content[0]" in (await error_of(response))["message"]


class _Looking(FakePrompts):
    """A template that shows pictures."""

    def render(self, chat: ChatInput) -> RenderedPrompt:
        rendered = super().render(chat)
        images = tuple(
            part
            for message in chat.messages
            if not isinstance(message.content, str)
            for part in message.content
            if isinstance(part, MediaPart)
        )
        return replace(rendered, text=rendered.text + IMAGE * len(images), images=images)


async def test_picture_reaches_a_model_with_eyes(connect: Connect) -> None:
    serving = FakeServing(served=replace(CARD, pictures=RULE))
    client = await connect(application(serving, prompts=_Looking()))
    response = await client.post(PATH, json={**HELLO, "messages": [{"role": "user", "content": [PICTURE]}]})
    assert response.status == 200, await response.text()
    (image,) = [span for span in serving.requests[0].spans if isinstance(span, ImageSpan)]
    assert (image.media_type, image.data, image.tokens) == ("image/png", SEEN, 6)
    before, _, after = serving.requests[0].spans
    assert isinstance(before, TokenSpan)
    assert before.ids[-1:] == [7]
    assert after == TokenSpan([8, 9])
    counted = await client.post(COUNT, json={"model": CARD.name, "messages": [{"role": "user", "content": [PICTURE]}]})
    assert (await counted.json())["input_tokens"] == serving.requests[0].prompt_tokens == len(before.ids) + 6 + 2


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
@pytest.mark.parametrize("path", [PATH, COUNT])
async def test_thread_is_refused_so_that_clients_send_everything(connect: Connect, path: str, thread: Json) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await client.post(path, json={**HELLO, "thread": thread})
    assert response.status == 400
    error = await error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": []}
    assert serving.requests == []


WRONG: list[tuple[Json, str]] = [
    ({"max_tokens": None}, "`max_tokens` is required"),
    ({"max_tokens": 0}, "`max_tokens`"),
    ({"temperature": "hot"}, "`temperature`"),
    ({"messages": []}, "`messages`"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "`messages[0].role`"),
    ({"messages": [{"role": "user", "content": 3}]}, "`messages[0].content`"),
    ({"messages": [{"role": "user", "content": [{"type": "web_search_tool_result"}]}]}, "`messages[0].content[0].type`"),
    ({"messages": [{"role": "user", "content": [{"type": "vid"}]}]}, "Blocks are of type text, image"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "`messages[0].content[0]`"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "y", "input": {}}]}]},
        "type tool_use has no place in a user message",
    ),
    ({"messages": [{"role": "assistant", "content": [PICTURE]}]}, "no place in an assistant message"),
    (
        {"messages": [{"role": "user", "content": [{"type": "document", "source": PICTURE["source"]}]}]},
        "`messages[0].content[0].source`",
    ),
    ({"system": 3}, "`system`"),
    ({"tools": [{"type": "web_search_20260101", "name": "web_search"}]}, "`tools[0].type`: 'web_search_20260101'"),
    ({"tools": [{"name": "x"}]}, "`tools[0].input_schema` is required"),
    ({"tools": [{"name": "x", "input_schema": {"type": "string"}}]}, "`tools[0].input_schema.type`"),
    ({"tools": [{"name": "x y", "input_schema": {}}]}, "`tools[0].name`"),
    ({"tools": TOOLS * 2}, "`tools[1].name`"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "`tool_choice`"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "`tool_choice.name` is required"),
    ({"tool_choice": {"type": "any"}}, "`tool_choice`"),
    ({"thinking": {"type": "enabled"}}, "`thinking.budget_tokens` is required"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "`thinking.budget_tokens`"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "objec"}}}},
        "`output_config.format.schema`",
    ),
    ({"mcp_servers": [{"url": "x"}]}, "`mcp_servers`"),
    ({"container": "c"}, "`container`"),
    ({"stop_sequences": [""]}, "`stop_sequences[0]`"),
]


@pytest.mark.parametrize(("fields", "named"), WRONG)
async def test_wrong_field_is_named_in_anthropics_words(connect: Connect, fields: Json, named: str) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await client.post(PATH, json={**HELLO, **fields})
    assert response.status == 400, await response.text()
    error = await error_of(response)
    assert error["type"] == "invalid_request_error"
    assert named in error["message"]
    assert serving.requests == []


async def test_error_has_anthropics_shape_whatever_happens(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    assert (await error_of(await client.post(PATH, data=b"{")))["type"] == "invalid_request_error"
    assert (await error_of(await client.post(PATH, json={**HELLO, "model": "no"})))["type"] == "not_found_error"
    wrong = await client.get(PATH)
    assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")
    assert (await error_of(wrong))["type"] == "invalid_request_error"
    serving.refusal = NotReady("starting", 2)
    refused = await client.post(PATH, json={**HELLO, "stream": True})
    assert refused.status == 503
    assert refused.headers["Retry-After"]
    assert (await error_of(refused))["type"] == "overloaded_error"


async def test_error_inside_a_stream_is_an_event_of_its_own(connect: Connect) -> None:
    client = await connect(application(FakeServing(breaks(ShuttingDown(), "Hel"))))
    found = await events(await client.post(PATH, json={**HELLO, "stream": True}))
    assert found[0]["type"] == "message_start"
    assert found[-1]["type"] == "error"
    assert found[-1]["error"]["type"] == "overloaded_error"
    assert "shutting down" in found[-1]["error"]["message"]
    assert not any(event["type"] == "message_stop" for event in found)


async def test_overflow_is_told_in_the_words_that_clients_read(connect: Connect) -> None:
    client = await connect(application(chosen=settings(max_tokens_overflow=Overflow.REFUSE)))
    long = {"messages": [{"role": "user", "content": "x" * 5000}]}
    message = (await error_of(await client.post(PATH, json={**HELLO, **long})))["message"]
    assert message.startswith("prompt is too long: 5014 tokens > 4096 maximum.")
    assert "maximum context length is 4096" in message


async def test_overflow_by_the_answer_is_told_in_the_words_that_clients_read(connect: Connect) -> None:
    client = await connect(application(chosen=settings(max_tokens_overflow=Overflow.REFUSE)))
    message = (await error_of(await client.post(PATH, json={**HELLO, "max_tokens": 4090})))["message"]
    assert message.startswith("input length and `max_tokens` exceed context limit: 16 + 4090 > 4096,")


# --- counting ---------------------------------------------------------------------------------------------------------


async def test_count_is_that_of_the_prompt_and_runs_nothing(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    asked = {"messages": HELLO["messages"], "system": "Be brief.", "tools": TOOLS}
    counted = await (await client.post(COUNT, json=asked)).json()
    assert serving.requests == []
    await client.post(PATH, json={**asked, "max_tokens": 4})
    assert counted == {"input_tokens": serving.requests[0].prompt_tokens}


async def test_prompt_beyond_the_context_is_counted_nevertheless(connect: Connect) -> None:
    client = await connect(application())
    response = await client.post(COUNT, json={"messages": [{"role": "user", "content": "x" * 9000}]})
    assert (await response.json())["input_tokens"] == 9000 + len("UserMessage: \n")
