"""Parsing at the door: what is accepted, and that every wrong field is named in the caller's own words."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chat.messages import ChatInput, ToolChoice, ToolMode, UserMessage, parse_chat, parse_messages
from daemon.chat.prompt import PromptBuilder
from daemon.chat.tool_schemas import MAX_TOOLS, parse_tools
from daemon.core.errors import InvalidRequest
from tests.chat.template_families import FAMILIES, builder

USER = {"role": "user", "content": "hi"}
TOOL: dict[str, object] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@cache
def built(family: str) -> PromptBuilder:
    return builder(family)


def nested(depth: int) -> object:
    value: object = {}
    for _ in range(depth):
        value = {"properties": {"x": value}}
    return value


EMPTY: dict[str, object] = {}


def with_message(message: object) -> dict[str, object]:
    return {"messages": [USER, message]}


def with_function(**function: object) -> dict[str, object]:
    return {"messages": [USER], "tools": [{"type": "function", "function": {"name": "look", **function}}]}


def with_schema(schema: object) -> dict[str, object]:
    return with_function(parameters=schema)


WRONG: list[tuple[Mapping[str, object], str]] = [
    ({}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    (with_message({"content": "x"}), "messages[1].role"),
    (with_message({"role": "wizard", "content": "x"}), "messages[1].role"),
    (with_message({"role": "user"}), "messages[1].content"),
    (with_message({"role": "user", "content": None}), "messages[1].content"),
    (with_message({"role": "user", "content": 5}), "messages[1].content"),
    (with_message({"role": "user", "content": {"type": "text"}}), "messages[1].content"),
    (with_message({"role": "system", "content": None}), "messages[1].content"),
    (with_message({"role": "user", "content": ["x"]}), "messages[1].content[0]"),
    (with_message({"role": "user", "content": [{"type": "text"}]}), "messages[1].content[0].text"),
    (with_message({"role": "user", "content": [{"type": "text", "text": 1}]}), "messages[1].content[0].text"),
    (with_message({"role": "user", "content": [{"type": "odd"}]}), "messages[1].content[0].type"),
    (with_message({"role": "user", "content": [{"type": "image_url"}]}), "messages[1].content[0].image_url"),
    (
        with_message({"role": "user", "content": [{"type": "image_url", "image_url": EMPTY}]}),
        "messages[1].content[0].image_url.url",
    ),
    (with_message({"role": "user", "content": "x", "name": 1}), "messages[1].name"),
    (with_message({"role": "assistant", "content": "x", "reasoning_content": 1}), "messages[1].reasoning_content"),
    (with_message({"role": "assistant", "tool_calls": {}}), "messages[1].tool_calls"),
    (with_message({"role": "assistant", "tool_calls": [1]}), "messages[1].tool_calls[0]"),
    (with_message({"role": "assistant", "tool_calls": [{"type": "odd"}]}), "messages[1].tool_calls[0].type"),
    (with_message({"role": "assistant", "tool_calls": [{"id": 1}]}), "messages[1].tool_calls[0].id"),
    (with_message({"role": "assistant", "tool_calls": [{"id": "a"}]}), "messages[1].tool_calls[0].function"),
    (with_message({"role": "assistant", "tool_calls": [{"function": EMPTY}]}), "messages[1].tool_calls[0].function.name"),
    (with_message({"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}), "messages[1].tool_calls[0].function.name"),
    (
        with_message({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (with_message({"role": "assistant", "function_call": 1}), "messages[1].function_call"),
    (with_message({"role": "tool", "content": "x", "tool_call_id": 1}), "messages[1].tool_call_id"),
    ({"messages": [USER], "tools": {}}, "tools"),
    ({"messages": [USER], "tools": [1]}, "tools[0]"),
    ({"messages": [USER], "tools": [TOOL] * (MAX_TOOLS + 1)}, "tools"),
    ({"messages": [USER], "tools": [{"type": "odd"}]}, "tools[0].type"),
    ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
    ({"messages": [USER], "tools": [TOOL, TOOL]}, "tools[1].function.name"),
    (with_function(name=None), "tools[0].function.name"),
    (with_function(name="two words"), "tools[0].function.name"),
    (with_function(name="x" * 257), "tools[0].function.name"),
    (with_function(description=5), "tools[0].function.description"),
    (with_function(strict="yes"), "tools[0].function.strict"),
    (with_schema([]), "tools[0].function.parameters"),
    (with_schema("object"), "tools[0].function.parameters"),
    (with_schema({"type": "array"}), "tools[0].function.parameters.type"),
    (with_schema({"properties": []}), "tools[0].function.parameters.properties"),
    (with_schema({"properties": {"a": 1}}), "tools[0].function.parameters.properties.a"),
    (with_schema({"properties": {"a": {"type": "text"}}}), "tools[0].function.parameters.properties.a.type"),
    (with_schema({"properties": {"a": {"type": 5}}}), "tools[0].function.parameters.properties.a.type"),
    (with_schema({"properties": {"a": {"items": 1}}}), "tools[0].function.parameters.properties.a.items"),
    (with_schema({"properties": {"a": {"anyOf": {}}}}), "tools[0].function.parameters.properties.a.anyOf"),
    (with_schema({"properties": {"a": {"anyOf": [1]}}}), "tools[0].function.parameters.properties.a.anyOf[0]"),
    (with_schema({"properties": {"a": {"enum": "x"}}}), "tools[0].function.parameters.properties.a.enum"),
    (with_schema({"properties": {"a": {"$ref": 1}}}), "tools[0].function.parameters.properties.a.$ref"),
    (with_schema({"required": "a"}), "tools[0].function.parameters.required"),
    (with_schema({"required": [1]}), "tools[0].function.parameters.required"),
    (with_schema({"description": "x" * 600_000}), "tools[0].function.parameters"),
    ({"messages": [USER], "tool_choice": "must"}, "tool_choice"),
    ({"messages": [USER], "tool_choice": 1}, "tool_choice"),
    ({"messages": [USER], "tool_choice": "required"}, "tool_choice"),
    ({"messages": [USER], "tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "odd"}}, "tool_choice.type"),
    ({"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
    ({"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
    ({"messages": [USER], "chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"messages": [USER], "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"messages": [USER], "chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
    ({"messages": [USER], "chat_template_kwargs": {"_private": 1}}, "chat_template_kwargs._private"),
    ({"messages": [USER], "chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
    ({"messages": [USER], "enable_thinking": "no"}, "enable_thinking"),
    ({"messages": [USER], "reasoning_effort": 5}, "reasoning_effort"),
    ({"messages": [USER], "add_generation_prompt": 1}, "add_generation_prompt"),
    ({"messages": [USER], "continue_final_message": "yes"}, "continue_final_message"),
    ({"messages": [USER], "continue_final_message": True}, "continue_final_message"),
]


@pytest.mark.parametrize(("body", "param"), WRONG, ids=[f"{at}-{param}"[:60] for at, (_, param) in enumerate(WRONG)])
def test_a_wrong_field_is_named(body: Mapping[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(body)
    assert caught.value.param == param
    assert f"`{param}" in str(caught.value) or "tool_choice" in param
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("body", [with_schema(nested(200)), {"messages": [USER], "chat_template_kwargs": {"a": nested(200)}}])
def test_what_is_nested_without_end_is_refused(body: Mapping[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="nested deeper than"):
        parse_chat(body)


def test_both_ways_to_end_a_prompt_exclude_each_other() -> None:
    body = {
        "messages": [USER, {"role": "assistant", "content": "x"}],
        "continue_final_message": True,
        "add_generation_prompt": True,
    }
    with pytest.raises(InvalidRequest, match="exclude each other"):
        parse_chat(body)


def test_null_means_not_given_everywhere() -> None:
    fields = (
        *("tools", "tool_choice", "chat_template_kwargs", "enable_thinking", "reasoning_effort"),
        *("add_generation_prompt", "continue_final_message"),
    )
    assert parse_chat({"messages": [USER], **dict.fromkeys(fields)}) == ChatInput((UserMessage("hi"),))
    message = {**USER, "name": None, "tool_calls": None, "tool_call_id": None, "reasoning_content": None, "refusal": None}
    assert parse_messages([message]) == (UserMessage("hi"),)


@pytest.mark.parametrize(
    ("given_choice", "choice"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice(ToolMode.NONE)),
        ("required", ToolChoice(ToolMode.REQUIRED)),
        ({"type": "function", "function": {"name": "look"}}, ToolChoice(ToolMode.NAMED, "look")),
        ({"type": "function", "name": "look"}, ToolChoice(ToolMode.NAMED, "look")),
    ],
)
def test_every_form_of_tool_choice_is_understood(given_choice: object, choice: ToolChoice) -> None:
    assert parse_chat({"messages": [USER], "tools": [TOOL], "tool_choice": given_choice}).tool_choice == choice


def test_tools_keep_their_order_and_words_and_get_the_parameters_they_lack() -> None:
    declared = {"name": "look", "strict": True, "description": "d", "parameters": None, "x-extra": [1]}
    (tool,) = parse_tools([{"type": "function", "function": declared}])
    assert tool.strict
    assert tool.definition == {
        "type": "function",
        "function": {**declared, "parameters": {"type": "object", "properties": {}}},
    }
    assert list(tool.parameters) == ["type", "properties"]


ACCEPTED: list[dict[str, object]] = [
    {"properties": {"a": {"type": ["string", "null"]}, "b": True, "c": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}},
    {"$schema": "x", "type": "object", "properties": {"n": {"type": "integer", "minimum": -9007199254740991}}},
    {"type": "object", "additionalProperties": False, "properties": {"a": {"items": [{}]}, "b": {"items": {}}}},
    {"properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {}}},
    {"properties": {"a": {"$ref": "#/nowhere/0"}, "b": {"$ref": "https://example.org/schema"}, "c": {"default": {"$ref": "#"}}}},
]


@pytest.mark.parametrize("schema", ACCEPTED)
def test_schemas_that_clients_send_are_accepted(schema: object) -> None:
    assert parse_chat(with_schema(schema)).tools[0].parameters == schema


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"node": {"$ref": "#"}}},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"properties": {"next": {"$ref": "#/$defs/x"}}}}},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}},
        {"properties": {"a/b": {"items": {"$ref": "#/properties/a~1b"}}}},
    ],
)
def test_a_schema_that_refers_to_itself_is_refused(schema: object) -> None:
    with pytest.raises(InvalidRequest, match="refers to itself") as caught:
        parse_chat(with_schema(schema))
    assert caught.value.param == "tools[0].function.parameters"


def test_a_chain_of_references_without_end_is_refused() -> None:
    links = {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(5000)}
    with pytest.raises(InvalidRequest, match="more than 64 others"):
        parse_chat(with_schema({"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": links}))


SHAPES = Path(__file__).parent.parent / "cases" / "request_shapes"


def recorded() -> Iterator[tuple[str, dict[str, object]]]:
    """The chats that real clients were seen to send."""
    for file in sorted(SHAPES.glob("*.json")):
        for at, entry in enumerate(cast("list[dict[str, object]]", json.loads(file.read_text(encoding="utf-8")))):
            if entry["request"] == "POST /v1/chat/completions":
                yield f"{file.stem}-{at}", unshortened(cast("dict[str, object]", entry["body"]))


def unshortened(body: dict[str, object]) -> dict[str, object]:
    """A body without the notes that stand in the recordings for more tools and messages of the same kind."""
    lists = {key: cast("list[object]", body[key]) for key in ("messages", "tools") if isinstance(body.get(key), list)}
    return {**body, **{key: [item for item in items if isinstance(item, dict)] for key, items in lists.items()}}


@pytest.mark.parametrize(("name", "body"), list(recorded()), ids=lambda value: value if isinstance(value, str) else "")
def test_what_real_clients_send_is_rendered_by_every_family(name: str, body: dict[str, object]) -> None:
    if not body["messages"]:  # recorded to see the error
        with pytest.raises(InvalidRequest, match="`messages` is empty"):
            parse_chat(body)
        return
    chat = parse_chat(body)
    for family in FAMILIES:
        prompts = built(family)
        text = prompts.render(chat).readable
        for tool in chat.tools:
            assert (tool.name in text) >= prompts.supports_tools, (name, family)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["role", "content", "name", "tool_calls", "function", "arguments", "tool_call_id", "reasoning_content", "type", "text"]
)
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "function", "developer"])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.dictionaries(FIELDS, JSON), max_size=3), ROLES, st.dictionaries(st.sampled_from(["tools", "tool_choice"]), JSON)
)
def test_any_json_is_parsed_or_refused_with_a_field(
    messages: list[dict[str, object]], role: str, extra: dict[str, object]
) -> None:
    body = {"messages": [{"role": role, **message} for message in messages], **extra}
    params: list[str | None] = []
    try:
        parse_chat(body)
    except InvalidRequest as error:
        params.append(error.param)
    assert None not in params
