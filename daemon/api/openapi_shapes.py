"""Shapes that `/openapi.json` tells of and that no other struct of the API has: answers that are put together from facts, errors,
and what the chat room takes in its messages and tools. A test that asks the running application holds them to the truth.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from daemon.api.schemas import Json
from daemon.chat.tool_schemas import MAX_NAME


class _Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all of them."""


# --- inside of requests -----------------------------------------------------------------------------------------------


class ChatMessage(_Shape, frozen=True, kw_only=True):
    """A message of a chat. `function` is OpenAI's old name of `tool`, `developer` its new name of `system`. What belongs to one
    role only is not looked at in others.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Json] | None = None
    name: str | None = None
    reasoning_content: Annotated[object, Meta(description="Of an assistant: the thought, a string")] = None
    tool_calls: Annotated[object, Meta(description="Of an assistant: an array of calls")] = None
    tool_call_id: Annotated[object, Meta(description="Of a tool: the id of the call, a string")] = None


class ChatFunction(_Shape, frozen=True, kw_only=True):
    """A function that the model may call; `parameters` is a JSON schema of type object."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ChatTool(_Shape, frozen=True, kw_only=True):
    """A tool of a chat."""

    type: Literal["function"]
    function: ChatFunction


# --- answers ----------------------------------------------------------------------------------------------------------


class ErrorDetail(_Shape, frozen=True, kw_only=True):
    """What went wrong, in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(_Shape, frozen=True, kw_only=True):
    """An error, in OpenAI's shape."""

    error: ErrorDetail


class AnthropicErrorDetail(_Shape, frozen=True, kw_only=True):
    """What went wrong, in Anthropic's shape."""

    type: str
    message: str
    details: Json | msgspec.UnsetType = msgspec.UNSET


class AnthropicErrorAnswer(_Shape, frozen=True, kw_only=True):
    """An error, in Anthropic's shape."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class ModelArchitecture(_Shape, frozen=True, kw_only=True):
    """What the model is made for."""

    name: str
    input_modalities: list[str]
    output_modalities: list[str]


class ModelAnswer(_Shape, frozen=True, kw_only=True):
    """One name of the served model, with its context length under every name that clients look for."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    context_length: int
    max_context_length: int
    context_window: int
    max_model_len: int
    max_input_tokens: int
    n_ctx: int
    architecture: ModelArchitecture


class ModelsAnswer(_Shape, frozen=True, kw_only=True):
    """Every name."""

    object: Literal["list"]
    data: list[ModelAnswer]


class HealthAnswer(_Shape, frozen=True, kw_only=True):
    """Whether all is well, and why not."""

    status: Literal["ok", "unavailable"]
    reason: str


class VersionAnswer(_Shape, frozen=True, kw_only=True):
    """The daemon's version."""

    version: str
