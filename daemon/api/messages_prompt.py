"""From Anthropic's bodies to a chat as the rest of the API prepares it. Pure; every error names the field that was sent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from daemon.api.messages_schemas import (
    Base64Source,
    ContentSource,
    CountTokensBody,
    DocumentBlock,
    FileSource,
    ImageBlock,
    InputBlock,
    InputMessage,
    MessagesBody,
    PlainSource,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolChoiceParam,
    ToolParam,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from daemon.api.renaming import Names
from daemon.api.schemas import ChatBody, Json
from daemon.core.errors import InvalidRequest, UnsupportedParameter

BILLING_HEADER = "x-anthropic-billing-header:"
"""A block that Anthropic's own agent puts in front of its instructions; it changes with every request and would spoil the
prefix cache from the first token on.
"""

_NAMES = Names(
    [
        (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
        (r"tools\[(\d+)\]\.function", r"tools[\1]"),
        (r"tool_choice\.function\.name", "tool_choice.name"),
        (r"response_format\.json_schema\.schema", "output_config.format.schema"),
        ("reasoning_effort", "output_config.effort"),
    ]
)

Block = InputBlock | DocumentBlock
Part = dict[str, object]


@dataclass(frozen=True, slots=True)
class Translated:
    """A body as a chat, and how to speak about the chat's fields."""

    body: ChatBody
    names: Names
    shows_thoughts: bool = True
    """`thinking.display: omitted` leaves the text of thoughts out of the answer."""


class _Turns:
    """Collects the chat's messages, and where their pictures came from."""

    def __init__(self) -> None:
        self.messages: list[Part] = []
        self.paths: list[tuple[str, str]] = []

    def add(self, role: str, parts: Sequence[tuple[Part, str]], **more: object) -> None:
        """Add a message of these parts, each with the field it was sent in."""
        place = len(self.messages)
        self.messages.append({"role": role, "content": [part for part, _ in parts], **more})
        self.paths += [
            (f"messages[{place}].content[{index}]", path)
            for index, (part, path) in enumerate(parts)
            if part["type"] == "image_url"
        ]


def chat_of_count(body: CountTokensBody) -> Translated:
    """What of a body decides the prompt. Raises InvalidRequest."""
    return _translated(body, {})


def chat_of_messages(body: MessagesBody) -> Translated:
    """The whole of a body. Raises InvalidRequest."""
    return _translated(
        body,
        {
            "max_tokens": body.max_tokens,
            "stop": body.stop_sequences or None,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "timeout": body.timeout,
            "stream": body.stream,
        },
    )


def _translated(body: CountTokensBody, generation: Mapping[str, object]) -> Translated:
    _refuse(body)
    turns = _Turns()
    system = list(_system(body))
    if system:
        turns.add("system", [(part, "system") for part in system])
    for index, message in enumerate(body.messages):
        _turn(message, f"messages[{index}]", turns)
    last = turns.messages[-1] if turns.messages else {}
    going_on = last.get("role") == "assistant" and "tool_calls" not in last
    if going_on and not last["content"]:
        turns.messages.pop()
        going_on = False
    fields = {**generation, **_tools(body), **_thinking(body), **_output(body)}
    if going_on:
        fields["continue_final_message"] = True
    chat = ChatBody(messages=list(turns.messages), **fields)  # pyright: ignore[reportArgumentType]  # checked above, field by field
    omitted = body.thinking is not None and body.thinking.display == "omitted"
    return Translated(chat, _NAMES.with_paths(turns.paths), shows_thoughts=not omitted)


def _refuse(body: CountTokensBody) -> None:
    if body.mcp_servers:
        raise UnsupportedParameter("`mcp_servers` is not supported: tools are run by the client.", "mcp_servers")
    if body.container is not None:
        raise UnsupportedParameter("`container` is not supported: there is no code execution.", "container")


def _system(body: CountTokensBody) -> Iterator[Part]:
    texts = [body.system] if isinstance(body.system, str) else [block.text for block in body.system or []]
    return (_text(text) for text in texts if text and not text.startswith(BILLING_HEADER))


# --- turns ------------------------------------------------------------------------------------------------------------


def _turn(message: InputMessage, where: str, turns: _Turns) -> None:
    content = message.content
    blocks: Sequence[InputBlock] = [TextBlock(text=content)] if isinstance(content, str) else content
    placed = [(block, f"{where}.content[{index}]") for index, block in enumerate(blocks)]
    match message.role:
        case "user":
            _user(placed, turns)
        case "assistant":
            _assistant(placed, turns)
        case "system":
            turns.add("system", [pair for block, path in placed for pair in _said(block, path, "a system message")])


def _user(placed: Sequence[tuple[InputBlock, str]], turns: _Turns) -> None:
    """What a person says, and before, between or behind it the results of calls, in the order in which they stand."""
    said: list[tuple[Part, str]] = []
    for block, path in placed:
        if isinstance(block, ToolResultBlock):
            if said:
                turns.add("user", said)
                said = []
            turns.add("tool", list(_result(block, path)), tool_call_id=block.tool_use_id)
        else:
            said += _said(block, path, "a user message")
    if said or not any(isinstance(block, ToolResultBlock) for block, _ in placed):
        turns.add("user", said)


def _assistant(placed: Sequence[tuple[InputBlock, str]], turns: _Turns) -> None:
    thoughts: list[str] = []
    calls: list[Part] = []
    said: list[tuple[Part, str]] = []
    for block, path in placed:
        match block:
            case ThinkingBlock(thinking=thinking):
                thoughts.append(thinking)
            case RedactedThinkingBlock():
                pass
            case ToolUseBlock(id=call_id, name=name, input=given):
                calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": given}})
            case TextBlock(text=text):
                said += [(_text(text), path)] if text else []
            case ImageBlock() | DocumentBlock() | SearchResultBlock() | ToolResultBlock():
                raise _misplaced(block, path, "an assistant message")
    more: Part = {"tool_calls": calls} if calls else {}
    if any(thoughts):
        more["reasoning_content"] = "\n".join(thoughts)
    turns.add("assistant", said, **more)


def _result(block: ToolResultBlock, where: str) -> Iterator[tuple[Part, str]]:
    content = block.content
    blocks = [TextBlock(text=content)] if isinstance(content, str) else content or []
    placed = [pair for index, one in enumerate(blocks) for pair in _said(one, f"{where}.content[{index}]", "a result")]
    if block.is_error and not any("error" in str(part.get("text", "")).lower() for part, _ in placed):
        # The model must see that the call failed, and templates have no field for it.
        yield _text("Error:"), where
    yield from placed


def _said(block: Block, where: str, place: str) -> Iterator[tuple[Part, str]]:
    """What a block shows to the model, with the field it came in."""
    match block:
        case TextBlock(text=text):
            yield _text(text), where
        case ImageBlock(source=source):
            yield _picture(source, where), where
        case DocumentBlock():
            yield from _document(block, where)
        case SearchResultBlock(source=source, title=title, content=content):
            yield _text("\n".join([title, source, *(one.text for one in content)])), where
        case ToolUseBlock() | ToolResultBlock() | ThinkingBlock() | RedactedThinkingBlock():
            raise _misplaced(block, where, place)


def _document(block: DocumentBlock, where: str) -> Iterator[tuple[Part, str]]:
    head = "\n".join(text for text in (block.title, block.context) if text)
    if head:
        yield _text(head), where
    match block.source:
        case PlainSource(data=data):
            yield _text(data), where
        case ContentSource(content=content):
            blocks = [TextBlock(text=content)] if isinstance(content, str) else content
            for index, one in enumerate(blocks):
                yield from _said(one, f"{where}.source.content[{index}]", "a document")
        case Base64Source() | UrlSource() | FileSource():
            param = f"{where}.source"
            raise InvalidRequest(f"`{param}`: documents are taken as text only (source type text or content).", param)


def _picture(source: Base64Source | UrlSource | FileSource, where: str) -> Part:
    match source:
        case Base64Source(media_type=media_type, data=data):
            url = f"data:{media_type};base64,{data}"
        case UrlSource(url=given):
            url = given
        case FileSource():
            param = f"{where}.source"
            raise InvalidRequest(f"`{param}`: no files are kept here; send the picture as base64.", param)
    return {"type": "image_url", "image_url": {"url": url}}


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _misplaced(block: Block, where: str, place: str) -> InvalidRequest:
    kind = type(block).__struct_config__.tag
    return InvalidRequest(f"`{where}`: a block of type {kind} has no place in {place}.", where)


# --- tools and manner -------------------------------------------------------------------------------------------------


def _tools(body: CountTokensBody) -> dict[str, object]:
    fields: dict[str, object] = {}
    if body.tools:
        fields["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools)]
    choice = body.tool_choice
    if choice is not None:
        fields["tool_choice"] = _choice(choice)
        if choice.disable_parallel_tool_use:
            fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: ToolParam, where: str) -> Part:
    if tool.type not in {None, "custom"}:
        param = f"{where}.type"
        raise UnsupportedParameter(
            f"`{param}`: {str(tool.type)[:80]!r} is not supported; tools are of type custom, with an input_schema.", param
        )
    if tool.input_schema is None:
        param = f"{where}.input_schema"
        raise InvalidRequest(f"`{param}` is required: a JSON schema of type object.", param, "missing_required_parameter")
    # In the order in which templates print it and models have seen it.
    function: Part = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: ToolChoiceParam) -> str | Json:
    match choice.type:
        case "auto":
            return "auto"
        case "none":
            return "none"
        case "any":
            return "required"
        case "tool":
            if not choice.name:
                raise InvalidRequest(
                    "`tool_choice.name` is required where the type is tool.", "tool_choice.name", "missing_required_parameter"
                )
            return {"type": "function", "function": {"name": choice.name}}


def _thinking(body: CountTokensBody) -> dict[str, object]:
    thinking = body.thinking
    if thinking is None:
        return {}
    match thinking.type:
        case "disabled":
            return {"enable_thinking": False}
        case "adaptive" | "between_tools":
            return {"enable_thinking": True}
        case "enabled":
            if thinking.budget_tokens is None:
                param = "thinking.budget_tokens"
                raise InvalidRequest(f"`{param}` is required where thinking is enabled.", param, "missing_required_parameter")
            return {"enable_thinking": True, "reasoning_budget": thinking.budget_tokens}


def _output(body: CountTokensBody) -> dict[str, object]:
    fields: dict[str, object] = {}
    config = body.output_config
    form = (config.format if config is not None else None) or body.output_format
    if form is not None:
        fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema}}
    if config is not None and config.effort is not None:
        fields["reasoning_effort"] = config.effort
    return fields
