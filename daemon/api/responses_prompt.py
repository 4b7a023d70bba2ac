"""From bodies of `/v1/responses` to a chat as the rest of the API prepares it. Pure; errors name the field that was sent."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import msgspec

from daemon.api.renaming import Names
from daemon.api.responses_schemas import (
    ITEM_TYPES,
    PART_TYPES,
    ContentPart,
    FunctionCallItem,
    FunctionOutputItem,
    InputImage,
    InputItem,
    InputText,
    MessageItem,
    OutputTextIn,
    PlainText,
    ReasoningItem,
    Refusal,
    ResponsesBody,
    ResponseTool,
)
from daemon.api.schemas import ChatBody, Json
from daemon.core.errors import InvalidRequest, UnsupportedParameter

Part = dict[str, object]

_NAMES = Names(
    [
        (r"tools\[(\d+)\]\.function", r"tools[\1]"),
        (r"tool_choice\.function\.name", "tool_choice.name"),
        (r"response_format\.json_schema\.schema", "text.format.schema"),
        (r"response_format\.json_schema", "text.format"),
        ("response_format", "text.format"),
        ("reasoning_effort", "reasoning.effort"),
        ("max_tokens", "max_output_tokens"),
        ("messages", "input"),
    ]
)
_SAME = (
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "ignore_eos",
    "timeout",
    "chat_template_kwargs",
)
"""Fields that chats have under the same name."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A body as a chat, and how to speak about the chat's fields."""

    body: ChatBody
    names: Names


@dataclass(slots=True)
class _Turn:
    """What the model said in one turn, gathered from several items."""

    thoughts: list[str] = field(default_factory=list[str])
    said: list[Part] = field(default_factory=list[Part])
    calls: list[Part] = field(default_factory=list[Part])

    def message(self) -> Part:
        """As a chat has it."""
        message: Part = {"role": "assistant", "content": self.said}
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _Turns:
    """Collects the chat's messages, and where their pictures came from."""

    def __init__(self) -> None:
        self.messages: list[Part] = []
        self.paths: list[tuple[str, str]] = []
        self._turn: _Turn | None = None

    def add(self, item: InputItem, where: str) -> None:
        """Add an item."""
        match item:
            case MessageItem(role="assistant"):
                self._own(says=True).said += _parts(item.content, f"{where}.content")
            case FunctionCallItem(name=name, arguments=arguments, call_id=call_id):
                call: Part = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                self._own().calls.append(call)
            case ReasoningItem():
                thought = "\n".join(part.text for part in (item.content or item.summary))
                if thought:
                    self._own(says=True).thoughts.append(thought)
            case MessageItem(role=role, content=content):
                self._other({"role": role}, content, f"{where}.content")
            case FunctionOutputItem(call_id=call_id, output=output):
                self._other({"role": "tool", "tool_call_id": call_id}, output, f"{where}.output")

    def close(self) -> None:
        """The model's turn is over."""
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None

    def _own(self, *, says: bool = False) -> _Turn:
        """The turn that the model is in. With `says`, the next one where this one has said all that it had to: text ends
        a turn, but for what follows calls, whose results must come right behind their turn.
        """
        if says and self._turn is not None and self._turn.said and not self._turn.calls:
            self.close()
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _other(self, head: Part, content: str | list[ContentPart], where: str) -> None:
        self.close()
        parts = list(_parts(content, where))
        place = len(self.messages)
        self.messages.append({**head, "content": parts})
        self.paths += [
            (f"messages[{place}].content[{index}]", f"{where}[{index}]")
            for index, part in enumerate(parts)
            if part["type"] == "image_url"
        ]


def chat_of(body: ResponsesBody) -> Translated:
    """A body as a chat. Raises InvalidRequest."""
    _refuse(body)
    turns = _Turns()
    if body.instructions:
        turns.messages.append({"role": "system", "content": body.instructions})
    for item, where in _items(body):
        turns.add(item, where)
    turns.close()
    fields: dict[str, object] = {name: getattr(body, name) for name in _SAME}
    fields |= {
        "stream": body.stream,
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "reasoning_budget": body.reasoning_budget,
        "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _format(body),
        **_tools(body, turns.paths),
    }
    chat = ChatBody(messages=list(turns.messages), **fields)  # pyright: ignore[reportArgumentType]  # checked above, field by field
    return Translated(chat, _NAMES.with_paths(turns.paths))


def _refuse(body: ResponsesBody) -> None:
    """Refuse what would need a memory of earlier answers, and what is not done here."""
    asked: Mapping[str, tuple[bool, str]] = {
        "previous_response_id": (body.previous_response_id is not None, "answers are not kept here; send the whole input"),
        "conversation": (body.conversation is not None, "conversations are not kept here; send the whole input"),
        "prompt": (body.prompt is not None, "no prompts are kept here"),
        "background": (body.background is True, "answers are not kept here"),
        "truncation": (body.truncation not in {None, "disabled"}, "a prompt is never truncated"),
        "top_logprobs": (bool(body.top_logprobs), "probabilities are given by /v1/chat/completions"),
        "include": ("message.output_text.logprobs" in (body.include or []), "probabilities are given by /v1/chat/completions"),
    }
    for name, (given, why) in asked.items():
        if given:
            raise UnsupportedParameter(f"`{name}` is not supported: {why}.", name)


# --- input ------------------------------------------------------------------------------------------------------------


def _items(body: ResponsesBody) -> Iterator[tuple[InputItem, str]]:
    if isinstance(body.input, str):
        yield MessageItem(role="user", content=body.input), "input"
        return
    for index, value in enumerate(body.input):
        yield _item(value, f"input[{index}]"), f"input[{index}]"


def _item(value: object, where: str) -> InputItem:
    if isinstance(value, dict) and cast("Json", value).get("type") is None:
        value = {**cast("Json", value), "type": "message"}
    try:
        return msgspec.convert(value, InputItem)
    except msgspec.ValidationError as problem:
        text, _, path = str(problem).partition(" - at `$")
        param = where + path.removesuffix("`")
        words = f"`{param}`: {text[0].lower()}{text[1:]}."
        if param == f"{where}.type":
            words = f"{words} Items are of type {', '.join(ITEM_TYPES)}."
        elif param.endswith("].type"):
            words = f"{words} Parts are of type {', '.join(PART_TYPES)}."
        raise InvalidRequest(words, param, "invalid_value") from problem


def _parts(content: str | list[ContentPart], where: str) -> Iterator[Part]:
    parts: list[ContentPart] = [InputText(text=content)] if isinstance(content, str) else content
    for index, part in enumerate(parts):
        match part:
            case InputText(text=text) | OutputTextIn(text=text) | PlainText(text=text):
                yield {"type": "text", "text": text}
            case Refusal(refusal=text):
                yield {"type": "text", "text": text}
            case InputImage(image_url=url):
                if url is None:
                    param = f"{where}[{index}]"
                    raise InvalidRequest(f"`{param}`: no files are kept here; send the picture as `image_url`.", param)
                yield {"type": "image_url", "image_url": {"url": url}}


# --- tools and manner -------------------------------------------------------------------------------------------------


def _tools(body: ResponsesBody, paths: list[tuple[str, str]]) -> dict[str, object]:
    """The tools and their choice; `paths` gets the places of those that move when others are left out."""
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or [])]
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(tools, choice, paths)
    fields: dict[str, object] = {"tool_choice": choice}
    if tools:
        fields["tools"] = tools
    return fields


def _tool(tool: ResponseTool, where: str) -> Part:
    if tool.type != "function":
        param = f"{where}.type"
        raise UnsupportedParameter(f"`{param}`: {tool.type[:80]!r} is not supported; tools are of type function.", param)
    # In the order in which templates print it and models have seen it.
    function: Part = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _allowed(tools: list[Part], choice: Json, paths: list[tuple[str, str]]) -> dict[str, object]:
    """`allowed_tools`: some of the tools, of which the model may or must call one."""
    mode, names = choice.get("mode"), choice.get("tools")
    if mode not in {"auto", "required"}:
        raise InvalidRequest("`tool_choice.mode` must be auto or required.", "tool_choice.mode", "invalid_value")
    if not isinstance(names, list):
        raise InvalidRequest("`tool_choice.tools` must be an array of tools by name.", "tool_choice.tools", "invalid_value")
    allowed = {cast("Json", one).get("name") for one in cast("list[object]", names) if isinstance(one, dict)}
    kept = [index for index, tool in enumerate(tools) if cast("Part", tool["function"])["name"] in allowed]
    if not kept:
        raise InvalidRequest("`tool_choice.tools` names none of `tools`.", "tool_choice.tools", "invalid_value")
    paths += [(f"tools[{place}].function", f"tools[{index}]") for place, index in enumerate(kept)]
    return {"tools": [tools[index] for index in kept], "tool_choice": mode}


def _format(body: ResponsesBody) -> Json | None:
    given = body.text.format if body.text is not None else None
    if given is None:
        return None
    if given.type != "json_schema":
        return {"type": given.type}
    return {"type": "json_schema", "json_schema": {"name": given.name or "answer", "schema": given.schema}}
