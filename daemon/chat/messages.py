"""A chat as people send it, typed. Parsing happens once, at the door; every error names the field it is about.

The shapes are OpenAI's (`messages`, `tools`, `tool_choice`, `chat_template_kwargs`). The other API families build the same
values with the constructors. Nothing here knows a template or a tokenizer: making a chat fit a template is
`chat/normalise.py`'s work.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias, cast

from daemon.chat.json_values import (
    JsonValue,
    clean_text,
    decode_json,
    got,
    plain_object,
    read_object,
    read_optional_bool,
    read_optional_text,
    read_text,
)
from daemon.chat.tool_schemas import Tool, parse_tools
from daemon.core.errors import InvalidRequest

MAX_MESSAGES = 100_000
RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "chat_template",
        "continue_final_message",
        "eos_token",
        "messages",
        "tool_choice",
        "tools",
    }
)
"""Variables of a template that have a parameter of their own, so that `chat_template_kwargs` may not carry them."""


class MediaKind(Enum):
    """What a part of a message is, where it is not text."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text in a message that is a list of parts."""

    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """Something to look at or to listen to."""

    kind: MediaKind
    url: str
    """As sent, such as `data:image/png;base64,…`; empty where the part carried something else."""
    where: str
    """The field it came in, as in `messages[2].content[0]`, for whoever must refuse it."""


Part: TypeAlias = TextPart | MediaPart
Content: TypeAlias = str | tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Instructions of whoever runs the application; OpenAI's `developer` role is the same thing under a newer name."""

    content: Content


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a person says."""

    content: Content
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made in an earlier turn. `id` is None where the client sent none."""

    name: str
    arguments: Mapping[str, JsonValue]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What the model said in an earlier turn, or the beginning of what it shall go on with."""

    content: Content = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of a call. `call_id` is None where the client sent none (OpenAI's old `function` role never has one)."""

    content: Content
    call_id: str | None = None
    name: str | None = None


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class ToolMode(Enum):
    """Whether the model may or must call tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tool choice of a request; `name` is set exactly with NAMED."""

    mode: ToolMode = ToolMode.AUTO
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ChatInput:
    """Everything of a request that decides the prompt."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    thinking: bool | None = None
    """True or False where the request says so; None leaves it to the template."""
    effort: str | None = None
    """`reasoning_effort` as sent, but for `none`, which means `thinking=False`."""
    kwargs: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """`chat_template_kwargs`, without what the fields above say."""
    add_generation_prompt: bool = True
    continue_final: bool = False
    """The last message is an assistant's and the answer goes on from its last character."""


def parse_chat(body: Mapping[str, object]) -> ChatInput:
    """The chat in a decoded request body; other fields are not looked at. Raises InvalidRequest with the field's name."""
    messages = parse_messages(body.get("messages"))
    tools = parse_tools(body.get("tools"), "tools")
    kwargs = _parse_kwargs(body.get("chat_template_kwargs"))
    thinking, effort = _parse_thinking(body, kwargs)
    going_on = read_optional_bool(body.get("continue_final_message"), "continue_final_message") or False
    asked = read_optional_bool(body.get("add_generation_prompt"), "add_generation_prompt")
    if going_on and not isinstance(messages[-1], AssistantMessage):
        raise InvalidRequest(
            "`continue_final_message` needs an assistant message at the end of `messages`.", "continue_final_message"
        )
    if going_on and asked:
        raise InvalidRequest("`continue_final_message` and `add_generation_prompt` exclude each other.", "continue_final_message")
    return ChatInput(
        messages=messages,
        tools=tools,
        tool_choice=_parse_tool_choice(body.get("tool_choice"), tools),
        thinking=thinking,
        effort=effort,
        kwargs=kwargs,
        add_generation_prompt=not going_on and asked is not False,
        continue_final=going_on,
    )


def parse_messages(value: object, where: str = "messages") -> tuple[Message, ...]:
    """A list of OpenAI's message objects, at least one. Raises InvalidRequest."""
    if not isinstance(value, list):
        raise InvalidRequest(f"`{where}` must be a list of messages{got(value)}.", where)
    items = cast("list[object]", value)
    if not items:
        raise InvalidRequest(f"`{where}` is empty: a chat needs at least one message.", where)
    if len(items) > MAX_MESSAGES:
        raise InvalidRequest(f"`{where}` has {len(items)} messages; the limit is {MAX_MESSAGES}.", where)
    return tuple(_parse_message(item, f"{where}[{index}]") for index, item in enumerate(items))


def _parse_message(value: object, where: str) -> Message:
    message = read_object(value, where)
    role = message.get("role")
    name = read_optional_text(message.get("name"), f"{where}.name")
    content = message.get("content")
    at = f"{where}.content"
    match role:
        case "system" | "developer":
            return SystemMessage(_parse_content(content, at))
        case "user":
            return UserMessage(_parse_content(content, at), name)
        case "assistant":
            return AssistantMessage(
                content=_parse_content("" if content is None else content, at),
                reasoning=_parse_reasoning(message, where),
                calls=_parse_calls(message, where),
                name=name,
            )
        case "tool" | "function":
            call_id = read_optional_text(message.get("tool_call_id"), f"{where}.tool_call_id")
            return ToolMessage(_parse_content("" if content is None else content, at), call_id, name)
        case _:
            raise InvalidRequest(
                f"`{where}.role` must be one of system, developer, user, assistant, tool or function{got(role)}.",
                f"{where}.role",
            )


def _parse_content(value: object, where: str) -> Content:
    match value:
        case str():
            return clean_text(value)
        case list():
            parts = cast("list[object]", value)
            return tuple(_parse_part(part, f"{where}[{index}]") for index, part in enumerate(parts))
        case _:
            raise InvalidRequest(f"`{where}` must be a string or a list of content parts{got(value)}.", where)


def _parse_part(value: object, where: str) -> Part:
    part = read_object(value, where)
    kind = part.get("type")
    match kind:
        case "text" | "input_text" | "output_text":
            return TextPart(read_text(part.get("text"), f"{where}.text"))
        case "refusal":
            return TextPart(read_text(part.get("refusal"), f"{where}.refusal"))
        case "image_url" | "input_image":
            return MediaPart(MediaKind.IMAGE, _media_url(part.get("image_url"), f"{where}.image_url"), where)
        case "video_url":
            return MediaPart(MediaKind.VIDEO, _media_url(part.get("video_url"), f"{where}.video_url"), where)
        case "input_audio" | "audio_url":
            return MediaPart(MediaKind.AUDIO, "", where)
        case "file" | "input_file":
            return MediaPart(MediaKind.FILE, "", where)
        case _:
            raise InvalidRequest(f"`{where}.type` must be text, image_url or refusal{got(kind)}.", f"{where}.type")


def _media_url(value: object, where: str) -> str:
    if isinstance(value, str):
        return read_text(value, where)
    return read_text(read_object(value, where).get("url"), f"{where}.url")


def _parse_reasoning(message: Mapping[str, object], where: str) -> str:
    """The first name with something in it wins: clients echo one filled and one empty field."""
    for key in ("reasoning_content", "reasoning", "thinking"):
        text = read_optional_text(message.get(key), f"{where}.{key}")
        if text:
            return text
    return ""


def _parse_calls(message: Mapping[str, object], where: str) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    if calls is None:
        legacy = message.get("function_call")
        return (
            ()
            if legacy is None
            else (_parse_function(read_object(legacy, f"{where}.function_call"), f"{where}.function_call", None),)
        )
    at = f"{where}.tool_calls"
    if not isinstance(calls, list):
        raise InvalidRequest(f"`{at}` must be a list of tool calls{got(calls)}.", at)
    return tuple(_parse_call(call, f"{at}[{index}]") for index, call in enumerate(cast("list[object]", calls)))


def _parse_call(value: object, where: str) -> ToolCall:
    call = read_object(value, where)
    kind = call.get("type")
    if kind not in {None, "function"}:
        raise InvalidRequest(f"`{where}.type` must be `function`{got(kind)}.", f"{where}.type")
    call_id = read_optional_text(call.get("id"), f"{where}.id")
    return _parse_function(read_object(call.get("function"), f"{where}.function"), f"{where}.function", call_id)


def _parse_function(function: Mapping[str, object], where: str, call_id: str | None) -> ToolCall:
    name = read_text(function.get("name"), f"{where}.name")
    if not name:
        raise InvalidRequest(f"`{where}.name` is empty.", f"{where}.name")
    return ToolCall(name, parse_arguments(function.get("arguments"), f"{where}.arguments"), call_id or None)


def parse_arguments(value: object, where: str) -> Mapping[str, JsonValue]:
    """Arguments of an earlier call as an object, whatever their spelling, so that a client's own JSON style cannot change
    the prompt. A string that is no JSON object gives an empty object: the model wrote it, and one cut-off call must not
    end a conversation. Raises InvalidRequest for anything but a string or an object.
    """
    if value is None:
        return {}
    if not isinstance(value, str):
        return plain_object(value, where)
    decoded = decode_json(value)
    if isinstance(decoded, str):  # encoded twice, as some clients do
        decoded = decode_json(decoded)
    if not isinstance(decoded, dict):
        return {}
    try:
        return plain_object(cast("dict[str, object]", decoded), where)
    except InvalidRequest:  # nested beyond every limit: as unusable as text that does not parse
        return {}


def _parse_tool_choice(value: object, tools: tuple[Tool, ...]) -> ToolChoice:
    match value:
        case None:
            return ToolChoice()
        case "auto" | "none":
            return ToolChoice(ToolMode(value))
        case "required":
            choice = ToolChoice(ToolMode.REQUIRED)
        case dict():
            choice = ToolChoice(ToolMode.NAMED, _chosen_name(cast("Mapping[str, object]", value)))
        case _:
            raise InvalidRequest(
                f"`tool_choice` must be auto, none, required or an object that names a function{got(value)}.", "tool_choice"
            )
    if not tools:
        raise InvalidRequest("`tool_choice` asks for a call, but there are no `tools`.", "tool_choice")
    if choice.mode is ToolMode.NAMED and choice.name not in {tool.name for tool in tools}:
        raise InvalidRequest(f"`tool_choice` names {choice.name!r}, which is not among `tools`.", "tool_choice")
    return choice


def _chosen_name(value: Mapping[str, object]) -> str:
    if value.get("type") != "function":
        raise InvalidRequest(f"`tool_choice.type` must be `function`{got(value.get('type'))}.", "tool_choice.type")
    function = value.get("function")
    if function is None:  # the flat form of the responses API
        return read_text(value.get("name"), "tool_choice.function.name")
    return read_text(read_object(function, "tool_choice.function").get("name"), "tool_choice.function.name")


def _parse_kwargs(value: object) -> dict[str, JsonValue]:
    if value is None:
        return {}
    where = "chat_template_kwargs"
    kwargs = plain_object(value, where)
    for name in kwargs:
        if name in RESERVED_KWARGS or name.startswith("_"):
            at = f"{where}.{name}"
            raise InvalidRequest(f"`{at}` cannot be set: it has a parameter of its own or is not for requests.", at)
    return kwargs


def _parse_thinking(body: Mapping[str, object], kwargs: dict[str, JsonValue]) -> tuple[bool | None, str | None]:
    """Whether to think, and how hard. The most particular word wins: `chat_template_kwargs`, then `enable_thinking`, then
    `reasoning_effort`. Takes what it understands out of `kwargs`.
    """
    effort = read_optional_text(body.get("reasoning_effort"), "reasoning_effort")
    inner = kwargs.pop("reasoning_effort", None)
    if inner is not None:
        effort = read_text(inner, "chat_template_kwargs.reasoning_effort")
    thinking = read_optional_bool(kwargs.pop("enable_thinking", None), "chat_template_kwargs.enable_thinking")
    if thinking is None:
        thinking = read_optional_bool(body.get("enable_thinking"), "enable_thinking")
    if effort == "none":
        return (False if thinking is None else thinking), None
    return thinking, effort
