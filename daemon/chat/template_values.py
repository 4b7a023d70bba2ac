"""A normalised chat as the plain values that templates read, with people's text marked."""

from collections.abc import Callable, Sequence
from typing import Final

from daemon.chat.abilities import Abilities
from daemon.chat.control_tokens import CONTINUE, IMAGE, ControlTokens
from daemon.chat.json_values import JsonValue
from daemon.chat.messages import (
    AssistantMessage,
    ChatInput,
    Content,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolMessage,
    ToolMode,
    UserMessage,
)
from daemon.chat.normalise import arguments_text
from daemon.chat.templates import EFFORT_NAMES, EFFORTS, ChatTemplate
from daemon.chat.tool_schemas import Tool

_USUAL: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}

TemplateMessage = dict[str, JsonValue]


def template_messages(messages: Sequence[Message], abilities: Abilities, marks: ControlTokens) -> list[TemplateMessage]:
    """Messages in the shape of the template's family. Inserted text is marked, so that none of it acts as a control token."""
    values = [_message(message, abilities, marks) for message in messages]
    return _grouped(values) if abilities.grouped_results else values


def _message(message: Message, abilities: Abilities, marks: ControlTokens) -> TemplateMessage:
    match message:
        case SystemMessage(content):
            return {"role": "system", "content": _content(content, abilities, marks.people)}
        case UserMessage(content, name):
            return {"role": "user", "content": _content(content, abilities, marks.people), **_named(name, marks)}
        case AssistantMessage(content, reasoning, calls, name):
            value: TemplateMessage = {
                "role": "assistant",
                "content": _content(content, abilities, marks.assistant),
                **_named(name, marks),
            }
            if reasoning:
                value |= dict.fromkeys(abilities.reasoning_keys, marks.assistant(reasoning))
            if calls:
                if abilities.null_content and not content:
                    value["content"] = None
                value["tool_calls"] = [_call(call, abilities, marks) for call in calls]
            return value
        case ToolMessage(content, call_id, name):
            answered: TemplateMessage = {} if call_id is None else {"tool_call_id": marks.people(call_id)}
            return {"role": "tool", "content": _content(content, abilities, marks.people), **answered, **_named(name, marks)}


def _grouped(values: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Results moved into the message of their calls, and the words that follow them too: the model said all of it in one
    turn. Words that came before the calls stay before them, as a message of their own.
    """
    out: list[TemplateMessage] = []
    for value in values:
        last = out[-1] if out else {}
        results = last.get("tool_responses")
        if value["role"] == "tool" and "tool_calls" in last:
            result: JsonValue = {"name": value.get("name", "unknown"), "response": value["content"]}
            last["tool_responses"] = [*(results if isinstance(results, list) else ()), result]
        elif value["role"] == "assistant" and results and not last["content"] and "tool_calls" not in value:
            out[-1] = {**last, "content": value["content"]}
        elif "tool_calls" in value and value["content"]:
            out.append({"role": "assistant", "content": value["content"]})
            out.append({**value, "content": ""})
        else:
            out.append(value)
    return out


def _named(name: str | None, marks: ControlTokens) -> TemplateMessage:
    return {} if name is None else {"name": marks.people(name)}


def _call(call: ToolCall, abilities: Abilities, marks: ControlTokens) -> JsonValue:
    arguments = marks.people(arguments_text(call)) if abilities.text_arguments else marks.people_json(dict(call.arguments))
    function: JsonValue = {"name": marks.people(call.name), "arguments": arguments}
    return {"id": marks.people(call.id or ""), "type": "function", "function": function}


def _content(content: Content, abilities: Abilities, mark: Callable[[str], str]) -> JsonValue:
    """Pictures become a mark in the text: where a picture stands is the engine's to fill, start and end tokens included."""
    if isinstance(content, str):
        text = mark(content)
    else:
        text = "".join(mark(part.text) if isinstance(part, TextPart) else IMAGE for part in content)
    return text if abilities.text_content else [{"type": "text", "text": text}]


def go_on(messages: list[TemplateMessage], abilities: Abilities) -> None:
    """Mark the end of the last message, where the prompt will be cut: that of its text, or of its thought where there is
    nothing else yet.
    """
    last = messages[-1]
    content = last["content"]
    match content:
        case "" if any(last.get(key) for key in abilities.reasoning_keys):
            for key in abilities.reasoning_keys:
                last[key] = f"{last[key]}{CONTINUE}"
        case [{"type": "text", "text": str(text)}]:
            last["content"] = [{"type": "text", "text": text + CONTINUE}]
        case _:
            last["content"] = f"{content}{CONTINUE}"


def template_variables(chat: ChatInput, template: ChatTemplate, marks: ControlTokens) -> dict[str, JsonValue]:
    """What a chat sets beside its messages. Families say the same thing under different names."""
    values: dict[str, JsonValue] = {
        "tools": [marks.people_json(dict(tool.definition)) for tool in offered(chat)] or None,
        "documents": None,
        "add_generation_prompt": chat.add_generation_prompt,
        **thinking_variables(chat.thinking, chat.effort, template),
    }
    if "tool_choice" in template.variables:
        values["tool_choice"] = describe_choice(chat.tool_choice)
    return values | {key: marks.people_json(value) for key, value in chat.kwargs.items()}


def offered(chat: ChatInput) -> Sequence[Tool]:
    """The tools the model is shown: none where it may not call any."""
    return () if chat.tool_choice.mode is ToolMode.NONE else chat.tools


def thinking_variables(thinking: bool | None, effort: str | None, template: ChatTemplate) -> dict[str, JsonValue]:
    """The names under which templates learn whether and how hard to think. Words a template does not know are left out:
    `reasoning_effort` has a new word every few months, and none of them should fail a chat.
    """
    known = template.variables
    values: dict[str, JsonValue] = {}
    if thinking is not None:
        values["enable_thinking"] = thinking
        if "thinking" in known:
            values["thinking"] = thinking
    if effort is None and thinking is False and not known & {"enable_thinking", "thinking"}:
        effort = "low"  # gpt-oss cannot stop thinking, only think little
    word = None if effort is None else _effort_word(effort, template)
    if word is not None:
        values |= dict.fromkeys(sorted(known & EFFORT_NAMES), word)
    return values


def _effort_word(effort: str, template: ChatTemplate) -> str | None:
    """1. A word that the template itself names. 2. The usual word of the same meaning, if the template takes it. 3. The
    nearest word that it takes. 4. For a word nobody knows, nothing: the template's own default.
    """
    quoted = f"'{effort}'" in template.source or f'"{effort}"' in template.source
    if effort in template.efforts and quoted:
        return effort
    if effort not in EFFORTS:
        return None
    usual = _USUAL[effort]
    if usual in template.efforts:
        return usual
    return min(template.efforts, key=lambda word: abs(EFFORTS.index(word) - EFFORTS.index(effort)), default=None)


def describe_choice(choice: ToolChoice) -> str:
    """A tool choice in one word, as in `named:read_file`."""
    return f"named:{choice.name}" if choice.mode is ToolMode.NAMED else choice.mode.value
