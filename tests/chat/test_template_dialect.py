"""Templates mean what they mean in transformers, which renders the same chats here as the reference."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import cast

import pytest
from transformers.utils import chat_template_utils

from daemon.chat.control_tokens import ControlTokens
from daemon.chat.json_values import JsonObject, JsonValue
from daemon.chat.messages import ChatInput, UserMessage, parse_chat
from daemon.chat.normalise import normalise
from daemon.chat.prompt import PromptBuilder
from daemon.chat.template_values import template_messages
from daemon.core.errors import InvalidRequest, TemplateFailed
from tests.chat.template_families import FAMILIES, builder, model, source

THEIRS = cast("Callable[..., tuple[list[str], object]]", vars(chat_template_utils)["render_jinja_template"])
"""transformers' renderer, whose own types are unfinished."""

TOOLS: list[JsonValue] = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Reads <one> file & gives it back: “ü”.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}},
        },
    }
]
CALL: JsonObject = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "I should look.",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a/ä.txt","limit":3}'}}
    ],
}
CHATS: Mapping[str, Sequence[JsonObject]] = {
    "one question": [{"role": "user", "content": "  Hello <b>you</b> & 'me'\n\n"}],
    "with a system message": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "several turns": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello 🙂", "reasoning_content": "They greet."},
        {"role": "user", "content": "1 < 2, isn't it?"},
    ],
    "a tool loop": [
        {"role": "user", "content": "What is in a/ä.txt?"},
        CALL,
        {"role": "tool", "tool_call_id": "c1", "content": "text\nmore"},
    ],
    "after a tool loop": [
        {"role": "user", "content": "What is in a/ä.txt?"},
        CALL,
        {"role": "tool", "tool_call_id": "c1", "content": "text\nmore"},
        {"role": "assistant", "content": "It says text."},
        {"role": "user", "content": "Thanks"},
    ],
}


@cache
def built(family: str) -> PromptBuilder:
    return builder(family)


def reference(
    family: str, chat: ChatInput, template: str | None = None, tools: list[JsonValue] | None = None, **variables: object
) -> str:
    """What transformers makes of the normalised messages, nothing marked."""
    abilities = built(family).abilities
    messages = template_messages(normalise(chat.messages, abilities), abilities, ControlTokens((), ()))
    tokens = {"bos_token": model(family).bos_token, "eos_token": model(family).eos_token}
    given = {"add_generation_prompt": True, **tokens, **variables}
    return THEIRS([messages], tools=tools, chat_template=template or source(family), **given)[0][0]


def undated(text: str) -> str:
    """Text without today's date, which passes between two renderings at midnight."""
    return re.sub(r"\d{4}-\d\d-\d\d|\d\d [A-Z][a-z]{2} \d{4}", "DATE", text)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_renders_ordinary_chats_as_transformers_does(family: str, chat: str) -> None:
    parsed = parse_chat({"messages": CHATS[chat]})
    assert undated(built(family).render(parsed).text) == undated(reference(family, parsed))


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("family", [family for family in FAMILIES if built(family).supports_tools])
def test_every_family_shows_tools_as_transformers_does(family: str, chat: str) -> None:
    parsed = parse_chat({"messages": CHATS[chat], "tools": TOOLS})
    text = built(family).render(parsed).text
    assert "read_file" in text
    assert undated(text) == undated(reference(family, parsed, tools=TOOLS))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% generation %}{% set x = 1 %}a{% endgeneration %}{{ x is defined }}", "aFalse"),
        ("{% for n in range(9) %}{% if n == 1 %}{% continue %}{% elif n == 3 %}{% break %}{% endif %}{{ n }}{% endfor %}", "02"),
        ("{% if true %}\nkept\n{% endif %}\n    {% if true %}x{% endif %}", "kept\nx"),
        ("{{ {'ü': [1, 2.5, none, true], '<': \"'\"} | tojson }}", '{"ü": [1, 2.5, null, true], "<": "\'"}'),
        ("{{ {'ü': 1} | tojson(ensure_ascii=true) }}", '{"\\u00fc": 1}'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=2, sort_keys=true) }}", '{\n  "a": [\n    2\n  ],\n  "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{% set ns = namespace(n=0) %}{% for m in 'abc' %}{% set ns.n = ns.n + 2 %}{% endfor %}{{ ns.n }}", "6"),
        ("{% macro f(x, y='z') %}{{ x ~ y }}{% endmacro %}{{ f('a') }}{{ f('b', y=1) }}", "azb1"),
        ("{{ messages[0].content[::-1] }}{{ messages[0]['content'].upper() }}", "ihHI"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '{}{x}'.format('b', x=4) }}{{ 'a' * 3 }}{{ [1] + [2] }}", "a-3b4aaa[1, 2]"),
        ("{{ none }}|{{ undefined_thing }}|{{ 1.0 }}|{{ true }}", "None||1.0|True"),
        ("{% set t %}x{{ 1 }}{% endset %}{{ t }}{% filter upper %}y{% endfilter %}", "x1Y"),
        ("{{ 'x' if messages[0].nothing is not defined else 'y' }}{{ 'a' in {'a': 1} }}", "xTrue"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}", "a1True"),
        (
            "{{ dict(a=1) }}{{ ['b', 'a'] | sort | join(',') }}{{ messages | map(attribute='role') | list }}",
            "{'a': 1}a,b['user']",
        ),
    ],
)
def test_a_piece_of_the_dialect_means_what_it_means_in_transformers(template: str, expected: str) -> None:
    chat = ChatInput((UserMessage("hi"),))
    assert builder(default=template).render(chat).text == expected == reference("chatml", chat, template)


def test_the_date_a_template_prints_is_the_time_it_is_given() -> None:
    prompts = builder(default="{{ strftime_now('%d %B %Y, %H:%M') }}")
    assert prompts.render(ChatInput((UserMessage("hi"),))).text == "29 November 2026, 12:30"


def test_a_template_that_raises_gives_its_own_words() -> None:
    prompts = builder(default="{{ raise_exception('Only pirates may ask.') }}")
    with pytest.raises(TemplateFailed, match=r"refused these messages: Only pirates may ask\.") as caught:
        prompts.render(ChatInput((UserMessage("hi"),)))
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ messages.nothing.more }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{% include 'other' %}", "TypeError"),
    ],
)
def test_a_template_that_fails_gives_an_error_with_the_cause(template: str, words: str) -> None:
    with pytest.raises(TemplateFailed, match=words):
        builder(default=template).render(ChatInput((UserMessage("hi"),)))


@pytest.mark.parametrize("template", ["{% if %}", "{{ x | no_such_filter }}", "{% for %}", "{{", "(" * 3 + "{{" + "(" * 3000])
def test_a_broken_template_fails_chats_and_says_where(template: str) -> None:
    prompts = builder(default=template)
    assert prompts.problem is not None
    assert not prompts.supports_tools
    assert not prompts.supports_thinking
    with pytest.raises(TemplateFailed, match="chat template `default`"):
        prompts.render(ChatInput((UserMessage("hi"),)))


def test_a_model_without_template_names_the_file_that_lacks_it() -> None:
    prompts = PromptBuilder(replace(model(), templates={}))
    with pytest.raises(TemplateFailed, match=r"tokenizer_config\.json") as caught:
        prompts.render(ChatInput((UserMessage("hi"),)))
    assert caught.value.code == "no_chat_template"
    assert prompts.problem is not None


def test_a_chat_with_tools_uses_the_template_made_for_them() -> None:
    prompts = builder(default="plain", tool_use="tools: {{ tools[0].function.name }}")
    plain = prompts.render(parse_chat({"messages": [{"role": "user", "content": "hi"}]}))
    assert (plain.template, plain.text) == ("default", "plain")
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    tooled = prompts.render(parse_chat(body))
    assert (tooled.template, tooled.text) == ("tool_use", "tools: read_file")
    assert prompts.render(parse_chat({**body, "tool_choice": "none"})).template == "default"
    assert prompts.supports_tools


def test_a_single_template_of_another_name_serves_every_chat() -> None:
    assert builder(rag="only one").render(ChatInput((UserMessage("hi"),))).text == "only one"


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "parts_only"])
@pytest.mark.parametrize("text", ["The answer is", "Ends in blanks  \n ", "same same", "x"])
def test_an_answer_to_be_continued_ends_the_prompt(family: str, text: str) -> None:
    body = {
        "messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}],
        "continue_final_message": True,
    }
    prompt = built(family).render(parse_chat(body)).text
    assert prompt.endswith(text)
    full = built(family).render(parse_chat({**body, "continue_final_message": False, "add_generation_prompt": False})).text
    assert full.startswith(prompt.rstrip())


@pytest.mark.parametrize(
    "last",
    [{"content": "<think>\nHm, let me"}, {"content": None, "reasoning_content": "Hm, let me"}, {"content": "<think>Hm, let me"}],
)
def test_a_thought_to_be_continued_ends_the_prompt_inside_it(last: JsonObject) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", **last}], "continue_final_message": True}
    assert built("qwen35").render(parse_chat(body)).text.endswith("<|im_start|>assistant\n<think>\nHm, let me")


def test_a_template_that_hides_the_last_message_cannot_continue_it() -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}],
        "continue_final_message": True,
    }
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        builder(default="{{ messages[0].content }}").render(parse_chat(body))


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        ({}, "<think>\n"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<think>\n\n</think>\n\n"),
        ({"enable_thinking": False}, "<think>\n\n</think>\n\n"),
        ({"reasoning_effort": "none"}, "<think>\n\n</think>\n\n"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "<think>\n"),
        ({"reasoning_effort": "beyond all measure"}, "<think>\n"),
        ({"add_generation_prompt": False}, "hi<|im_end|>\n"),
    ],
)
def test_a_request_switches_thinking_by_any_of_its_names(body: JsonObject, ending: str) -> None:
    chat = parse_chat({"messages": [{"role": "user", "content": "hi"}], **body})
    assert built("qwen35").render(chat).text.endswith(ending)


@pytest.mark.parametrize(
    ("effort", "shown"),
    [("low", "low"), ("minimal", "low"), ("max", "high"), ("none", "low"), ("odd", "medium"), (None, "medium")],
)
def test_efforts_reach_a_template_in_words_it_was_trained_on(effort: str | None, shown: str) -> None:
    chat = parse_chat({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": effort})
    assert f"Reasoning: {shown}\n" in built("gpt_oss").render(chat).text


def test_other_template_variables_reach_the_template() -> None:
    prompts = builder(default="{{ flavour }}{{ deep.list[1] }}")
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"flavour": "mint", "deep": {"list": [1, "two"]}},
    }
    assert prompts.render(parse_chat(body)).text == "minttwo"
