"""What bodies of OpenAI's `/v1/responses` may hold, and what answers look like. The structs validate requests and make
`/openapi.json`; names and shapes are OpenAI's.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from daemon.api.schemas import (
    MAX_COUNT,
    Budget,
    FrequencyPenalty,
    IgnoreEos,
    Json,
    MinP,
    ModelName,
    OneCall,
    Patience,
    PresencePenalty,
    StopTexts,
    Streamed,
    Temperature,
    TemplateVariables,
    TopK,
    TopP,
    User,
)


class _Tagged(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what a tag tells apart."""


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what has no tag."""


# --- what people send -------------------------------------------------------------------------------------------------


class InputText(_Tagged, frozen=True, kw_only=True, tag="input_text"):
    """Text of a message or a result."""

    text: str


class OutputTextIn(_Tagged, frozen=True, kw_only=True, tag="output_text"):
    """Text of an earlier answer, as this API gave it."""

    text: str


class PlainText(_Tagged, frozen=True, kw_only=True, tag="text"):
    """Text under the name that chat completions have for it."""

    text: str


class Refusal(_Tagged, frozen=True, kw_only=True, tag="refusal"):
    """An earlier answer that was none."""

    refusal: str


class InputImage(_Tagged, frozen=True, kw_only=True, tag="input_image"):
    """A picture as a `data:` URL, for models with eyes. Files kept by a server are refused, since this one keeps none."""

    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


ContentPart: TypeAlias = InputText | OutputTextIn | PlainText | Refusal | InputImage
PART_TYPES = ("input_text", "output_text", "text", "refusal", "input_image")


class MessageItem(_Tagged, frozen=True, kw_only=True, tag="message"):
    """One message. Its `type` may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]
    id: str | None = None
    status: str | None = None


class FunctionCallItem(_Tagged, frozen=True, kw_only=True, tag="function_call"):
    """A call that the model made in an earlier turn; `arguments` is JSON text."""

    call_id: Annotated[str, Meta(min_length=1)]
    name: Annotated[str, Meta(min_length=1)]
    arguments: str
    id: str | None = None
    status: str | None = None


class FunctionOutputItem(_Tagged, frozen=True, kw_only=True, tag="function_call_output"):
    """What a call gave."""

    call_id: Annotated[str, Meta(min_length=1)]
    output: str | list[ContentPart]
    id: str | None = None
    status: str | None = None


class SummaryText(_Part, frozen=True, kw_only=True):
    """A thought, where a summary was asked for."""

    text: str
    type: Literal["summary_text"] = "summary_text"


class ReasoningText(_Part, frozen=True, kw_only=True):
    """A thought."""

    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class ReasoningItem(_Tagged, frozen=True, kw_only=True, tag="reasoning"):
    """A thought of an earlier turn; the template decides whether the model sees it again."""

    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: str | None = None


InputItem: TypeAlias = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")


class ResponseTool(_Part, frozen=True, kw_only=True):
    """A function that the client runs, in the flat form of this API. OpenAI's own tools are refused by name."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ReasoningParam(_Part, frozen=True, kw_only=True):
    """How hard to think; with `summary` the thought is given as a summary, where some clients look for it."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextFormat(_Part, frozen=True, kw_only=True):
    """A form that the answer follows by construction; `schema` belongs to the type `json_schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Json | None = None
    strict: bool | None = None
    description: str | None = None


class TextParam(_Part, frozen=True, kw_only=True):
    """Form of the answer."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponseStreamOptions(_Part, frozen=True, kw_only=True):
    """Accepted; nothing is obfuscated."""

    include_obfuscation: bool | None = None


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/responses`."""

    input: Annotated[
        str | Annotated[list[object], Meta(min_length=1)],
        Meta(description="A person's message, or items: message, function_call, function_call_output, reasoning"),
    ]
    model: ModelName = None
    instructions: Annotated[str | None, Meta(description="A system message in front of the input")] = None
    stream: Streamed = None
    stream_options: Annotated[ResponseStreamOptions | None, Meta(description="Accepted; nothing is obfuscated")] = None
    tools: Annotated[
        list[ResponseTool] | None, Meta(description="Functions that the model may call; OpenAI's own tools are refused")
    ] = None
    tool_choice: Annotated[str | Json | None, Meta(description="auto, none, required, a function by name, or allowed_tools")] = (
        None
    )
    parallel_tool_calls: OneCall = None
    max_tool_calls: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None, Meta(description="Without effect: it counts calls of OpenAI's own tools")
    ] = None
    text: Annotated[TextParam | None, Meta(description="format text, json_object or json_schema: by construction")] = None
    reasoning: Annotated[
        ReasoningParam | None, Meta(description="effort (none turns thinking off); summary: the thought comes as a summary")
    ] = None
    reasoning_budget: Annotated[
        Budget | None,
        Meta(description="Thinking tokens after which the thought is closed; -1: no limit; absent: as for chats"),
    ] = None
    max_output_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None,
        Meta(description="Longest answer, thoughts included; absent: to the end of the context"),
    ] = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: MinP = None
    presence_penalty: PresencePenalty = None
    frequency_penalty: FrequencyPenalty = None
    seed: Annotated[
        Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None, Meta(description="Same seed, same draws; -1: not given")
    ] = None
    stop: StopTexts = None
    ignore_eos: IgnoreEos = None
    timeout: Patience = None
    chat_template_kwargs: TemplateVariables = None
    include: Annotated[
        list[str] | None, Meta(description="message.output_text.logprobs is refused; others ask for what never occurs here")
    ] = None
    top_logprobs: Annotated[int | None, Meta(description="Refused unless 0")] = None
    truncation: Annotated[str | None, Meta(description="disabled; auto is refused: a prompt is never truncated")] = None
    metadata: Annotated[Json | None, Meta(description="Given back, not stored")] = None
    store: Annotated[bool | None, Meta(description="Accepted; nothing is stored")] = None
    previous_response_id: Annotated[str | None, Meta(description="Refused: answers are not kept; send the whole input")] = None
    conversation: Annotated[str | Json | None, Meta(description="Refused: conversations are not kept here")] = None
    prompt: Annotated[Json | None, Meta(description="Refused: no prompts are kept here")] = None
    background: Annotated[bool | None, Meta(description="true is refused: answers are not kept")] = None
    user: User = None


# --- what the server answers ------------------------------------------------------------------------------------------

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(_Tagged, frozen=True, kw_only=True, tag="output_text"):
    """Text of the answer."""

    text: str
    annotations: list[Json] = []
    logprobs: list[Json] = []


class OutputMessage(_Tagged, frozen=True, kw_only=True, tag="message"):
    """The visible answer."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputReasoning(_Tagged, frozen=True, kw_only=True, tag="reasoning"):
    """A thought, as `content`, or as `summary` where that was asked for."""

    id: str
    status: ItemStatus
    summary: list[SummaryText] = []
    content: list[ReasoningText] = []
    encrypted_content: None = None


class OutputCall(_Tagged, frozen=True, kw_only=True, tag="function_call"):
    """A call."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem: TypeAlias = OutputMessage | OutputReasoning | OutputCall


class ResponseInputDetails(_Part, frozen=True, kw_only=True):
    """What of the prompt was already known."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ResponseOutputDetails(_Part, frozen=True, kw_only=True):
    """What of the answer was thinking."""

    reasoning_tokens: int


class ResponseUsage(_Part, frozen=True, kw_only=True):
    """The counts of this API."""

    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class IncompleteDetails(_Part, frozen=True, kw_only=True):
    """Why an answer is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseProblem(_Part, frozen=True, kw_only=True):
    """Why there is no answer."""

    code: str
    message: str


class ResponseOut(_Part, frozen=True, kw_only=True):
    """The whole answer, and its state in events. `stop_detail` is exl3d's."""

    id: str
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    output: list[OutputItem]
    usage: ResponseUsage | None
    error: ResponseProblem | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: Json
    parallel_tool_calls: bool
    reasoning: ReasoningParam
    temperature: float
    text: TextParam
    tool_choice: str | Json
    tools: list[ResponseTool]
    top_p: float
    user: str | None = None
    object: Literal["response"] = "response"
    background: bool = False
    previous_response_id: None = None
    store: bool = False
    truncation: Literal["disabled"] = "disabled"
    stop_detail: str | msgspec.UnsetType = msgspec.UNSET
