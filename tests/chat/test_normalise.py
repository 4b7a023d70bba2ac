"""A chat is changed as little as a template needs, and in the same way every time."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chat.abilities import Abilities
from daemon.chat.json_values import JsonObject, JsonValue
from daemon.chat.messages import (
    AssistantMessage,
    ChatInput,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    parse_chat,
    parse_messages,
)
from daemon.chat.normalise import normalise
from daemon.chat.prompt import PromptBuilder
from daemon.core.errors import InvalidRequest
from tests.chat.request_cases import judge_request, request_outcome
from tests.chat.template_families import FAMILIES, builder

STRICT = Abilities()
FREE = Abilities(late_system=True, needs_user=False)
CASES = Path(__file__).parent.parent / "cases" / "parser_cases.jsonl"


@cache
def built(family: str) -> PromptBuilder:
    return builder(family)


def request_cases() -> list[dict[str, object]]:
    cases = [cast("dict[str, object]", json.loads(line)) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [case for case in cases if case["format"] == "request"]


@pytest.mark.parametrize("case", request_cases(), ids=lambda case: str(case["id"]))
def test_a_publicly_reported_request_is_normalised_as_expected(case: dict[str, object]) -> None:
    assert judge_request(case) == ""


def test_a_wrong_normalisation_would_be_noticed() -> None:
    case = request_cases()[0]
    expected: dict[str, object] = {**cast("dict[str, object]", case["expect"]), "template_messages": [{}]}
    assert judge_request({**case, "expect": expected}) != ""
    assert judge_request({**case, "expect": {**expected, "status": 400}}) != ""
    assert judge_request({**case, "expect": expected, "also_ok": [case["expect"]]}) == ""


# --- system messages --------------------------------------------------------------------------------------------------


def test_leading_system_messages_become_one() -> None:
    chat = (SystemMessage("A"), SystemMessage(""), SystemMessage("B"), UserMessage("hi"))
    assert normalise(chat, STRICT) == (SystemMessage("A\n\nB"), UserMessage("hi"))


def test_a_late_system_message_stays_where_the_template_takes_it() -> None:
    chat = (SystemMessage("A"), UserMessage("hi"), SystemMessage("B"))
    assert normalise(chat, FREE) == chat


def test_a_late_system_message_becomes_a_users_in_its_place_where_the_template_refuses_it() -> None:
    chat = (SystemMessage("A"), UserMessage("hi"), AssistantMessage("yes"), SystemMessage("B"))
    assert normalise(chat, STRICT) == (*chat[:3], UserMessage("B"))


def test_a_system_message_goes_to_the_first_user_where_there_is_no_system_role() -> None:
    abilities = built("gemma").abilities
    chat = (SystemMessage("A"), UserMessage("hi"), AssistantMessage("yes"), UserMessage("and?"))
    assert normalise(chat, abilities) == (UserMessage("A\n\nhi"), *chat[2:])


def test_a_developer_message_is_a_system_message() -> None:
    assert parse_messages([{"role": "developer", "content": "A"}]) == (SystemMessage("A"),)


# --- thoughts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "thought", "rest"),
    [
        ("<think>\nold\nthought\n</think>\n\nHello", "old\nthought", "Hello"),
        ("\n<think>x</think>Hello </think>", "x", "Hello </think>"),
        ("<think>\n\n</think>\n\nHello", "", "Hello"),
        ("<thinking>x</thinking>Hello", "x", "Hello"),
        ("[THINK]x[/THINK]Hello", "x", "Hello"),
        ("<think>never closed", "", "<think>never closed"),
        ("Write <think>x</think> like this", "", "Write <think>x</think> like this"),
        ("  spaced  ", "", "  spaced  "),
    ],
)
def test_a_thought_in_the_text_moves_to_where_the_template_looks(content: str, thought: str, rest: str) -> None:
    assert normalise((UserMessage("hi"), AssistantMessage(content)), STRICT)[1] == AssistantMessage(rest, thought)


def test_a_thought_given_by_name_wins_over_one_in_the_text() -> None:
    message = AssistantMessage("<think>a</think>Hello", "b")
    assert normalise((UserMessage("hi"), message), STRICT)[1] == AssistantMessage("Hello", "b")


def test_a_template_that_reads_no_thoughts_gets_the_text_as_it_was() -> None:
    message = AssistantMessage("<think>a</think>Hello")
    assert normalise((UserMessage("hi"), message), replace(STRICT, reasoning_keys=()))[1] == message


def test_thoughts_are_dropped_before_the_last_question_and_kept_after_it_as_the_template_says() -> None:
    call = ToolCall("look", {"path": "a"}, "c1")
    tail = (AssistantMessage("", "second thought", (call,)), ToolMessage("data", "c1"))
    chat = (UserMessage("one"), AssistantMessage("<think>\nfirst thought\n</think>\n\nA"), UserMessage("two"), *tail)
    text = built("qwen35").render(ChatInput(chat)).text
    assert "first thought" not in text
    assert "<think>\nsecond thought\n</think>\n\n<tool_call>" in text
    kept = built("qwen35").render(ChatInput(chat, kwargs={"preserve_thinking": True})).text
    assert "<|im_start|>assistant\n<think>\nfirst thought\n</think>\n\nA<|im_end|>" in kept


# --- calls and results ------------------------------------------------------------------------------------------------


def agent(first: Sequence[ToolCall], *results: ToolMessage) -> tuple[Message, ...]:
    return (UserMessage("hi"), AssistantMessage(calls=tuple(first)), *results)


def test_results_stand_in_the_order_of_their_calls() -> None:
    calls = [ToolCall("f", {}, "a"), ToolCall("f", {}, "b"), ToolCall("f", {}, "c")]
    chat = agent(calls, ToolMessage("3", "c"), ToolMessage("?", "unknown"), ToolMessage("1", "a"), ToolMessage("2", "b"))
    assert [message.content for message in normalise(chat, STRICT)[2:]] == ["1", "2", "3", "?"]


def test_calls_without_ids_get_ids_that_do_not_change_from_turn_to_turn() -> None:
    calls = [ToolCall("f", {}), ToolCall("g", {})]
    chat = agent(calls, ToolMessage("of g", name="g"), ToolMessage("of f"))
    first = normalise(chat, STRICT)
    message = first[1]
    assert isinstance(message, AssistantMessage)
    ids = [call.id for call in message.calls]
    assert len(set(ids)) == 2
    assert None not in ids
    assert [(result.content, result.call_id) for result in first[2:] if isinstance(result, ToolMessage)] == [
        ("of f", ids[0]),
        ("of g", ids[1]),
    ]
    assert normalise((*chat, AssistantMessage("done"), UserMessage("more")), STRICT)[: len(first)] == first


def test_a_template_with_rules_for_ids_gets_ids_that_follow_them() -> None:
    abilities = built("mistral").abilities
    chat = agent([ToolCall("f", {}, "call_1234567890"), ToolCall("f", {}, "abcDEF012")], ToolMessage("x", "call_1234567890"))
    _, message, result = normalise(chat, abilities)
    assert isinstance(message, AssistantMessage)
    assert isinstance(result, ToolMessage)
    assert [len(call.id or "") for call in message.calls] == [9, 9]
    assert message.calls[1].id == "abcDEF012"
    assert result.call_id == message.calls[0].id
    assert "[TOOL_RESULTS]" in built("mistral").render(ChatInput(chat)).text


def test_a_template_that_wants_results_within_the_models_turn_gets_them_there() -> None:
    """What the model wrote in one turn, with results between, is read back as one turn."""
    calls = [ToolCall("look", {"n": 1}, "a"), ToolCall("find", {"n": 2}, "b")]
    chat = (*agent(calls, ToolMessage("two", "b"), ToolMessage("one", "a")), AssistantMessage("done"), UserMessage("thanks"))
    text = built("gemma4").render(ChatInput(chat)).text
    assert text.partition("<|turn>model\n")[2] == (
        "<|tool_call>call:look{n:1}<tool_call|><|tool_call>call:find{n:2}<tool_call|>"
        '<|tool_response>response:look{value:<|"|>one<|"|>}<tool_response|>'
        '<|tool_response>response:find{value:<|"|>two<|"|>}<tool_response|>'
        "done<turn|>\n<|turn>user\nthanks<turn|>\n<|turn>model\n"
    )
    going_on = built("gemma4").render(ChatInput(chat[:-2])).text
    assert text.startswith(going_on)
    assert going_on.endswith("<tool_response|>")


def test_words_before_a_call_stay_before_it_where_results_are_grouped() -> None:
    chat = (UserMessage("hi"), AssistantMessage("I look.", calls=(ToolCall("look", {}, "a"),)), ToolMessage("data", "a"))
    text = built("gemma4").render(ChatInput(chat)).text
    assert text.index("I look.") < text.index("call:look") < text.index("response:look")


@pytest.mark.parametrize("family", ["llama3", "gpt_oss"])
def test_several_calls_become_one_message_each_where_the_template_knows_one(family: str) -> None:
    calls = [ToolCall("f", {"n": 1}, "a"), ToolCall("g", {"n": 2}, "b")]
    chat = agent(calls, ToolMessage("two", "b"), ToolMessage("one", "a"))
    messages = normalise(chat, built(family).abilities)
    assert [type(message).__name__ for message in messages[1:]] == ["AssistantMessage", "ToolMessage"] * 2
    text = built(family).render(ChatInput(chat)).text
    assert text.index('"n": 1') < text.index("one") < text.index('"n": 2') < text.index("two")


@pytest.mark.parametrize("family", ["chatml", "gemma", "parts_only"])
def test_a_model_without_tools_reads_calls_and_results_as_text(family: str) -> None:
    chat = (*agent([ToolCall("look", {"path": "ä"}, "c1")], ToolMessage("data", "c1")), UserMessage("so?"))
    text = built(family).render(ChatInput(chat)).text
    assert 'Call of look: {"path": "ä"}' in text
    assert "Result of look:\n\ndata" in text


@pytest.mark.parametrize("family", [family for family in FAMILIES if built(family).supports_tools])
def test_arguments_render_the_same_however_a_client_spells_them(family: str) -> None:
    """Hermes sends them without spaces; others as an object, or encoded twice; the model wrote them with spaces."""
    arguments = {"path": "a/ä b.txt", "n": 3, "deep": {"x": [1.5, None, True]}}
    written = json.dumps(arguments, ensure_ascii=False)
    spellings: list[object] = [
        written,
        json.dumps(arguments, separators=(",", ":")),
        json.dumps(arguments, indent=2),
        arguments,
        json.dumps(written),
    ]
    prompts: set[str] = set()
    for spelling in spellings:
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": spelling}}
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "data"},
        ]
        prompts.add(built(family).render(parse_chat({"messages": messages})).text)
    assert len(prompts) == 1
    if family == "hermes":
        assert written in prompts.pop()


@pytest.mark.parametrize(
    "arguments", ["", "{", "null", "[1]", '"x"', "NaN", '{"a": NaN}', "[" * 5000, '{"a":' * 500 + "1" + "}" * 500]
)
def test_arguments_that_are_no_object_become_an_empty_one(arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    outcome = request_outcome({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]})
    assert outcome.status == 200
    assert outcome.messages[1]["tool_calls"] == [{**call, "function": {"name": "look", "arguments": {}}}]


def test_arguments_with_raw_line_breaks_are_read_as_models_write_them() -> None:
    call = {"id": "c1", "function": {"name": "look", "arguments": '{"text": "a\nb\tc"}'}}
    (message,) = parse_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert isinstance(message, AssistantMessage)
    assert message.calls[0].arguments == {"text": "a\nb\tc"}


def test_the_old_function_role_and_call_are_understood() -> None:
    chat = parse_messages(
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": '{"path": "a"}'}},
            {"role": "function", "name": "look", "content": "data"},
        ]
    )
    _, message, result = normalise(chat, STRICT)
    assert isinstance(message, AssistantMessage)
    assert isinstance(result, ToolMessage)
    assert result.call_id == message.calls[0].id is not None


# --- what strict templates insist on ----------------------------------------------------------------------------------


def test_a_user_turn_is_put_in_only_where_the_template_needs_one() -> None:
    chat = (SystemMessage("A"), AssistantMessage("B"))
    assert normalise(chat, FREE) == chat
    assert normalise(chat, STRICT) == (SystemMessage("A"), UserMessage(""), AssistantMessage("B"))
    late = (AssistantMessage("B"), UserMessage("C"))
    assert normalise(late, STRICT) == late
    assert normalise(late, replace(STRICT, user_first=True)) == (UserMessage(""), *late)


def test_neighbours_of_one_role_merge_only_where_the_template_needs_turns() -> None:
    chat = (UserMessage("A"), UserMessage("B"), AssistantMessage("C", "t"), AssistantMessage("D", "u"))
    assert normalise(chat, FREE) == chat
    assert normalise(chat, replace(FREE, alternates=True)) == (UserMessage("A\n\nB"), AssistantMessage("C\n\nD", "t\n\nu"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "roles",
    [
        *("s", "ss", "a", "au", "uu", "usu", "sua", "uaau", "aauu", "susas"),
        *("uat", "ut", "tu", "uct", "uctt", "uctu", "uctsau", "cct", "uacta", "uata", "uctuctau"),
    ],
)
def test_every_order_of_roles_is_served_by_every_family(family: str, roles: str) -> None:
    call = ToolCall("look", {"path": "a"}, "c1")
    kinds: dict[str, Message] = {
        "s": SystemMessage("SYSTEM"),
        "u": UserMessage("USER"),
        "a": AssistantMessage("ASSISTANT"),
        "c": AssistantMessage("", calls=(call,)),
        "t": ToolMessage("RESULT", "c1"),
    }
    text = built(family).render(ChatInput(tuple(kinds[role] for role in roles))).text
    for role, word in (("s", "SYSTEM"), ("u", "USER"), ("a", "ASSISTANT"), ("t", "RESULT"), ("c", "look")):
        assert text.count(word) >= min(roles.count(role), 1), role


# --- content ----------------------------------------------------------------------------------------------------------


def test_text_parts_become_one_text_before_anything_else() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, {"type": "refusal", "refusal": "c"}]
    assert normalise(parse_messages([{"role": "user", "content": parts}]), STRICT) == (UserMessage("a\nb\nc"),)


@pytest.mark.parametrize("kind", ["image_url", "input_image", "video_url", "input_audio", "file"])
def test_what_a_text_model_cannot_take_is_refused_by_place(kind: str) -> None:
    part = {"type": kind, kind if kind != "input_image" else "image_url": {"url": "data:,"}}
    outcome = request_outcome({"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]})
    assert (outcome.status, outcome.param) == (400, "messages[0].content[1]")
    assert "text only" in outcome.error


def test_halves_of_characters_are_replaced_and_pairs_are_joined() -> None:
    (message,) = parse_messages([{"role": "user", "content": "a\ud83d\ude42b\ud83d"}])
    assert message == UserMessage("a🙂b\ufffd")


# --- the prefix cache -------------------------------------------------------------------------------------------------


TURNS = st.lists(
    st.sampled_from(["user", "answer", "thought", "agent", "late"]),
    min_size=1,
    max_size=6,
)


def turn(kind: str, at: int) -> list[JsonObject]:
    match kind:
        case "user":
            return [{"role": "user", "content": f"question {at}"}]
        case "late":
            return [{"role": "system", "content": f"reminder {at}"}]
        case "answer":
            return [{"role": "assistant", "content": f"answer {at}"}]
        case "thought":
            return [{"role": "assistant", "content": f"<think>\nthought {at}\n</think>\n\nanswer {at}"}]
        case _:
            call: JsonValue = {"function": {"name": "look", "arguments": f'{{"path":"{at}"}}'}}
            return [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": f"data {at}"}]


@settings(max_examples=60, deadline=None)
@given(TURNS, TURNS)
def test_later_turns_never_change_how_earlier_ones_are_normalised(before: list[str], after: list[str]) -> None:
    """Templates may drop thoughts of earlier turns, which is theirs to decide; what they are given stays the same."""
    chat: list[JsonObject] = [{"role": "system", "content": "S"}, {"role": "user", "content": "first"}]
    for at, kind in enumerate(before):
        chat += turn(kind, at)
    longer = list(chat)
    for at, kind in enumerate(after):
        longer += turn(kind, 100 + at)
    for abilities in (STRICT, FREE, built("llama3").abilities, built("glm").abilities):
        short = normalise(parse_messages(chat), abilities)
        assert normalise(parse_messages(longer), abilities)[: len(short)] == short


@pytest.mark.parametrize("family", ["hermes", "glm", "llama3", "gpt_oss", "chatml"])
def test_a_growing_conversation_keeps_its_rendered_prefix(family: str) -> None:
    tool: JsonObject = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    chat: list[JsonObject] = [{"role": "system", "content": "S"}, {"role": "user", "content": "first"}]
    before = ""
    for at, kind in enumerate(["agent", "answer", "user", "agent", "agent", "answer", "user", "late", "user"]):
        body = {"messages": chat, "tools": [tool], "add_generation_prompt": False}
        text = built(family).render(parse_chat(body)).text
        assert text.startswith(before)
        before = text
        chat += turn(kind, at)


@pytest.mark.parametrize("message", ["", "x"])
def test_media_of_a_chat_are_refused_even_beside_other_content(message: str) -> None:
    parts = [{"type": "text", "text": message}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(InvalidRequest):
        normalise(parse_messages([{"role": "user", "content": parts}]), STRICT)
