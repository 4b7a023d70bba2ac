"""What bodies of Anthropic's `/v1/messages` may hold, and what answers look like. The structs validate requests and make
`/openapi.json`; names and shapes are Anthropic's.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from daemon.api.schemas import MAX_COUNT, MAX_STOPS, Json, ModelName, Patience, StopString, Streamed, Temperature, TopK, TopP


class _Block(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what a tag tells apart."""


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what has no tag."""


# --- what people send -------------------------------------------------------------------------------------------------


class CachedBlock(_Block, frozen=True, kw_only=True):
    """Base of blocks that may carry `cache_control`, which has no effect: the prefix cache finds prefixes by itself."""

    cache_control: Json | None = None


class TextBlock(CachedBlock, frozen=True, kw_only=True, tag="text"):
    """Text. Citations of earlier answers are not shown to the model."""

    text: str


class OnlyText(_Part, frozen=True, kw_only=True):
    """Text, where nothing else can stand: there no tag tells it apart, so its type is a field."""

    type: Literal["text"]
    text: str
    cache_control: Json | None = None


class Base64Source(_Block, frozen=True, kw_only=True, tag="base64"):
    """Content of a picture or document, as base64."""

    media_type: str
    data: str


class UrlSource(_Block, frozen=True, kw_only=True, tag="url"):
    """Only `data:` URLs are read; nothing is fetched."""

    url: str


class FileSource(_Block, frozen=True, kw_only=True, tag="file"):
    """A file kept by the server; refused, since this one keeps none."""

    file_id: str


class PlainSource(_Block, frozen=True, kw_only=True, tag="text"):
    """A document's text."""

    data: str
    media_type: str = "text/plain"


ImageSource: TypeAlias = Base64Source | UrlSource | FileSource


class ImageBlock(CachedBlock, frozen=True, kw_only=True, tag="image"):
    """A picture, for models with eyes."""

    source: ImageSource


class ContentSource(_Block, frozen=True, kw_only=True, tag="content"):
    """A document made of blocks."""

    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(CachedBlock, frozen=True, kw_only=True, tag="document"):
    """A document as text; others are refused."""

    source: Base64Source | UrlSource | FileSource | PlainSource | ContentSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(CachedBlock, frozen=True, kw_only=True, tag="search_result"):
    """A found text with its origin; shown to the model as text."""

    source: str
    title: str
    content: list[OnlyText]


class ToolUseBlock(CachedBlock, frozen=True, kw_only=True, tag="tool_use"):
    """A call that the model made in an earlier turn."""

    id: Annotated[str, Meta(min_length=1)]
    name: Annotated[str, Meta(min_length=1)]
    input: Json


class ToolResultBlock(CachedBlock, frozen=True, kw_only=True, tag="tool_result"):
    """What a call gave."""

    tool_use_id: Annotated[str, Meta(min_length=1)]
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(_Block, frozen=True, kw_only=True, tag="thinking"):
    """A thought of an earlier turn; the template decides whether the model sees it again. Signatures are not checked."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Block, frozen=True, kw_only=True, tag="redacted_thinking"):
    """A thought that only its own server can read: left out."""

    data: str = ""


InputBlock: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
)
BLOCK_TYPES = ("text", "image", "document", "search_result", "tool_use", "tool_result", "thinking", "redacted_thinking")


class InputMessage(_Part, frozen=True, kw_only=True):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[InputBlock]


class ToolParam(_Part, frozen=True, kw_only=True):
    """A tool that the client runs. Anthropic's own tools carry another `type` and are refused by name."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Json | None = None
    strict: bool | None = None


class ToolChoiceParam(_Part, frozen=True, kw_only=True):
    """Whether tools may or must be called; `name` belongs to the type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(_Part, frozen=True, kw_only=True):
    """Whether to think. `budget_tokens` closes the thought; `display: omitted` leaves its text out of the answer."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(_Part, frozen=True, kw_only=True):
    """A form that the answer follows by construction."""

    type: Literal["json_schema"]
    schema: Json


class OutputConfig(_Part, frozen=True, kw_only=True):
    """Form and effort of the answer."""

    format: OutputFormat | None = None
    effort: str | None = None


class Metadata(_Part, frozen=True, kw_only=True):
    """Accepted; owners come from keys."""

    user_id: str | None = None


class CountTokensBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/messages/count_tokens`, and what it shares with `/v1/messages`: everything that decides the prompt."""

    messages: Annotated[
        Annotated[list[InputMessage], Meta(min_length=1)],
        Meta(description="The turns; an assistant's at the end is gone on with"),
    ]
    model: ModelName = None
    system: Annotated[str | list[OnlyText] | None, Meta(description="Instructions, as text or blocks of text")] = None
    tools: Annotated[list[ToolParam] | None, Meta(description="Tools that the client runs; Anthropic's own are refused")] = None
    tool_choice: Annotated[ToolChoiceParam | None, Meta(description="auto, any, tool (with its name) or none")] = None
    thinking: Annotated[
        ThinkingParam | None,
        Meta(description="enabled (with budget_tokens), adaptive or disabled; absent: as the model's template does"),
    ] = None
    output_config: Annotated[
        OutputConfig | None, Meta(description="format json_schema: the answer follows it by construction; effort: low to max")
    ] = None
    output_format: Annotated[OutputFormat | None, Meta(description="Older name of output_config.format")] = None
    thread: Annotated[
        Json | None, Meta(description="Refused with the code thread_unsupported_request: no conversation is kept here")
    ] = None
    mcp_servers: Annotated[list[object] | None, Meta(description="Refused unless empty: the client runs the tools")] = None
    container: Annotated[str | Json | None, Meta(description="Refused: there is no code execution")] = None


class MessagesBody(CountTokensBody, frozen=True, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_COUNT, description="Longest answer in tokens, thoughts included")]
    stream: Streamed = None
    stop_sequences: Annotated[
        Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None,
        Meta(description="Texts that end the answer and are not part of it; they do not act inside thoughts"),
    ] = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    timeout: Patience = None
    metadata: Annotated[Metadata | None, Meta(description="Accepted; owners come from keys")] = None
    cache_control: Annotated[Json | None, Meta(description="Without effect: the prefix cache finds prefixes by itself")] = None


# --- what the server answers ------------------------------------------------------------------------------------------


class TextOut(_Block, frozen=True, kw_only=True, tag="text"):
    """Text of the answer."""

    text: str
    citations: None = None


class ThinkingOut(_Block, frozen=True, kw_only=True, tag="thinking"):
    """A thought."""

    thinking: str
    signature: str


class ToolUseOut(_Block, frozen=True, kw_only=True, tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: Json


OutputBlock: TypeAlias = TextOut | ThinkingOut | ToolUseOut


class MessageOutputDetails(_Part, frozen=True, kw_only=True):
    """What of the answer was thinking."""

    thinking_tokens: int


class MessageUsage(_Part, frozen=True, kw_only=True):
    """Anthropic's counts: `input_tokens` are those that no cache knew, so all three together are the prompt."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    output_tokens_details: MessageOutputDetails


StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageOut(_Part, frozen=True, kw_only=True):
    """The whole answer; also, empty, in `message_start`. `stop_detail` is exl3d's."""

    id: str
    model: str
    content: list[OutputBlock]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_detail: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class TokenCount(_Part, frozen=True, kw_only=True):
    """Answer of `/v1/messages/count_tokens`."""

    input_tokens: int
