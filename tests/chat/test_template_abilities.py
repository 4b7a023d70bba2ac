"""What is found out about a template by trying it."""

import pytest

from daemon.chat.abilities import Abilities
from daemon.chat.messages import AssistantMessage, ChatInput, ToolCall, ToolMessage, UserMessage
from tests.chat.template_families import FAMILIES, builder

PLAIN = {"needs_user": False, "tools": False, "tool_role": False, "reasoning_keys": ()}
EXPECTED: dict[str, dict[str, object]] = {
    "chatml": {**PLAIN, "late_system": True},
    "deepseek": {
        "tools": False,
        "needs_user": False,
        "late_system": True,
        "text_arguments": True,
        "null_content": True,
        "reasoning_keys": (),
    },
    "gemma": {**PLAIN, "needs_user": True, "system": False, "user_first": True, "alternates": True},
    "gemma4": {"needs_user": False, "late_system": True, "grouped_results": True, "reasoning_keys": ()},
    "glm": {"needs_user": False, "late_system": True},
    "gpt_oss": {"needs_user": False, "many_calls": False, "stray_results": False, "reasoning_keys": ("thinking",)},
    "hermes": {"needs_user": False, "late_system": True, "reasoning_keys": ()},
    "llama3": {"needs_user": False, "late_system": True, "many_calls": False, "reasoning_keys": ()},
    "mistral": {"user_first": True, "alternates": True, "short_ids": True, "reasoning_keys": ()},
    "parts_only": {**PLAIN, "late_system": True, "text_content": False},
    "qwen35": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_abilities_of_every_family_are_found(family: str) -> None:
    found = builder(family).abilities
    assert {name: getattr(found, name) for name in Abilities.__slots__} == {
        name: EXPECTED[family].get(name, getattr(Abilities(), name)) for name in Abilities.__slots__
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_families_with_tools_and_thoughts_are_told_apart(family: str) -> None:
    prompts = builder(family)
    assert prompts.supports_tools == (family not in {"chatml", "deepseek", "gemma", "parts_only"})
    assert prompts.supports_thinking == (family in {"deepseek", "gemma4", "glm", "gpt_oss", "qwen35"})


def test_a_template_that_writes_a_results_name_gets_one() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
        "{% if m.role == 'tool' %} from {{ m.name }}{% endif %};{% endfor %}"
    )
    prompts = builder(default=template)
    assert prompts.abilities.named_results
    chat = ChatInput((UserMessage("hi"), AssistantMessage(calls=(ToolCall("look", {}, "c"),)), ToolMessage("data", "c")))
    assert "tool:data from look;" in prompts.render(chat).text


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{ reasoning_effort }}", {"minimal": "low", "low": "low", "high": "high", "xhigh": "high", "odd": ""}),
        ("{{ thinking_effort or 'max' }}", {"max": "max", "high": "high"}),
        (
            "{% if reasoning_effort not in ['low','medium','xhigh'] %}{{ raise_exception('') }}{% endif %}{{ reasoning_effort }}",
            {"minimal": "low", "medium": "medium", "high": "medium", "xhigh": "xhigh", "max": "xhigh"},
        ),
    ],
)
def test_an_effort_is_said_in_a_word_the_template_takes(template: str, shown: dict[str, str]) -> None:
    prompts = builder(default=template)
    found = {word: prompts.render(ChatInput((UserMessage("hi"),), effort=word)).text for word in shown}
    assert found == shown


@pytest.mark.parametrize(
    ("arguments", "text_arguments"),
    [
        ("call.function.arguments", True),
        ("call.function.arguments | tojson", False),
        ("call.function.arguments.items() | list", False),
    ],
)
def test_a_template_that_prints_arguments_as_they_are_gets_them_as_text(arguments: str, text_arguments: bool) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for call in m.tool_calls or [] %}"
        "{{ call.function.name }}({{ " + arguments + " }}){% endfor %};{% endfor %}"
    )
    assert builder(default=template).abilities.text_arguments is text_arguments
