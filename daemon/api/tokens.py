"""`POST /tokenize`, `/detokenize` and `/apply-template`: what a prompt becomes, without generating anything.

Names are those of vLLM and of llama-server, side by side.
"""

import asyncio
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from daemon.api.context import API, served
from daemon.api.schemas import ChatBody, Json, ModelName, TemplateVariables, TokenId
from daemon.core.errors import InvalidRequest
from daemon.core.pictures import count_tokens
from daemon.core.wire import TokenSpan

TOKENIZE_PATH = "/tokenize"
DETOKENIZE_PATH = "/detokenize"
TEMPLATE_PATH = "/apply-template"
MAX_TOKENS = 2**20
"""Ids that one request may have decoded."""

_CHAT = (
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    "enable_thinking",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
)


class TemplateBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /apply-template`: what of a chat decides its prompt."""

    messages: Annotated[Annotated[list[object], Meta(min_length=1)], Meta(description="A conversation, as chats have it")]
    model: ModelName = None
    tools: Annotated[list[object] | None, Meta(description="Functions that the model may call")] = None
    tool_choice: Annotated[str | Json | None, Meta(description="none leaves the tools out")] = None
    chat_template_kwargs: TemplateVariables = None
    enable_thinking: Annotated[bool | None, Meta(description="Short for chat_template_kwargs.enable_thinking")] = None
    reasoning_effort: Annotated[str | None, Meta(description="none turns thinking off; other values reach the template")] = None
    add_generation_prompt: Annotated[bool | None, Meta(description="Whether the template opens the answer; true if absent")] = (
        None
    )
    continue_final_message: Annotated[
        bool | None, Meta(description="The last message, the assistant's, is to be gone on with")
    ] = None


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /tokenize`: a text, under either name, or a chat with the fields of `/apply-template`."""

    prompt: Annotated[str | None, Meta(description="Text in which control tokens do not count (vLLM's name)")] = None
    content: Annotated[str | None, Meta(description="The same under llama-server's name")] = None
    messages: Annotated[list[object] | None, Meta(description="A conversation, instead of a text")] = None
    model: ModelName = None
    tools: Annotated[list[object] | None, Meta(description="With `messages`: functions that the model may call")] = None
    tool_choice: Annotated[str | Json | None, Meta(description="With `messages`: none leaves the tools out")] = None
    chat_template_kwargs: Annotated[Json | None, Meta(description="With `messages`: variables of the chat template")] = None
    enable_thinking: Annotated[bool | None, Meta(description="Short for chat_template_kwargs.enable_thinking")] = None
    reasoning_effort: Annotated[str | None, Meta(description="With `messages`: none turns thinking off")] = None
    add_generation_prompt: Annotated[bool | None, Meta(description="With `messages`: whether the template opens the answer")] = (
        None
    )
    continue_final_message: Annotated[bool | None, Meta(description="With `messages`: the last one is to be gone on with")] = None
    return_token_strs: Annotated[bool | None, Meta(description="Add `token_strs`, the text of each token (vLLM's name)")] = None
    with_pieces: Annotated[bool | None, Meta(description="`tokens` are objects of id and piece (llama-server's name)")] = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /detokenize`."""

    tokens: Annotated[Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)], Meta(description="Token ids")]
    model: ModelName = None


class TokenPiece(msgspec.Struct, frozen=True):
    """A token and its text; U+FFFD where it is part of a character."""

    id: int
    piece: str


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/tokenize`."""

    tokens: list[int | TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct, frozen=True):
    """Answer of `/detokenize`: the text under both names."""

    prompt: str
    content: str


class AppliedTemplate(msgspec.Struct, frozen=True):
    """Answer of `/apply-template`."""

    prompt: str


def add_routes(router: web.UrlDispatcher) -> None:
    """Put the family's paths on a router."""
    router.add_post(TOKENIZE_PATH, tokenize)
    router.add_post(DETOKENIZE_PATH, detokenize)
    router.add_post(TEMPLATE_PATH, apply_template)


async def tokenize(request: web.Request) -> web.Response:
    """Ids of a text or of a chat's prompt. Pictures in it are counted, but have no ids that mean anything elsewhere."""
    api = request.app[API]
    body = await api.door.enter(request, TokenizeBody)
    card = api.serving.card()
    served(body.model, card)
    text = body.content if body.prompt is None else body.prompt
    if (text is None) == (body.messages is None):
        raise InvalidRequest("Give either `prompt` (or `content`) or `messages`.", "prompt", "missing_required_parameter")
    if text is not None:
        ids = await api.tokenizing.encode_plain(text)
        count = len(ids)
    else:
        _, spans = await api.preparing.prompt(_chat(body), card)
        ids = tuple(token for span in spans if isinstance(span, TokenSpan) for token in span.ids)
        count = count_tokens(spans)

    def written() -> bytes:
        """The answer; in a thread, since a book has a million tokens and everybody's streams wait for the loop."""
        texts = [api.tokenizing.token_text(token) for token in ids] if body.return_token_strs or body.with_pieces else []
        tokens: list[int | TokenPiece] = list(ids)
        if body.with_pieces:
            tokens = [TokenPiece(token, piece) for token, piece in zip(ids, texts, strict=True)]
        strings = texts if body.return_token_strs else None
        return msgspec.json.encode(Tokenized(tokens=tokens, count=count, max_model_len=card.context, token_strs=strings))

    answer = await asyncio.get_running_loop().run_in_executor(api.threads, written)
    return web.Response(body=answer, content_type="application/json")


async def detokenize(request: web.Request) -> web.Response:
    """Text of ids, special tokens included."""
    api = request.app[API]
    body = await api.door.enter(request, DetokenizeBody)
    card = api.serving.card()
    served(body.model, card)
    for index, token in enumerate(body.tokens):
        if token >= card.vocabulary:
            param = f"tokens[{index}]"
            raise InvalidRequest(f"`{param}` is {token}; this model's token ids end at {card.vocabulary - 1}.", param)
    text = await api.tokenizing.decode(body.tokens, hide_special=False)
    return _json(Detokenized(text, text))


async def apply_template(request: web.Request) -> web.Response:
    """The prompt of a chat as text."""
    api = request.app[API]
    body = await api.door.enter(request, TemplateBody)
    card = api.serving.card()
    served(body.model, card)
    rendered, _ = await api.preparing.prompt(_chat(body), card)
    return _json(AppliedTemplate(rendered.readable))


def _chat(body: TemplateBody | TokenizeBody) -> ChatBody:
    given = {name: getattr(body, name) for name in _CHAT}
    return ChatBody(messages=body.messages or [], **given)


def _json(body: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
