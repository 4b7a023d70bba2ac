"""`POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API, over the same preparation as chats."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus

import msgspec
from aiohttp import web

from daemon.api.context import API, OUTCOME, REQUEST_ID, origin_of, served
from daemon.api.messages_prompt import chat_of_count, chat_of_messages
from daemon.api.messages_reply import MessageDraft, MessageFacts, MessageVoice, failure
from daemon.api.messages_schemas import BLOCK_TYPES, CountTokensBody, MessagesBody, TokenCount
from daemon.api.replying import stream_reply, whole_reply
from daemon.api.watch import Watch
from daemon.core.errors import ContextTooLong, InvalidRequest, InvariantBroken
from daemon.core.pictures import count_tokens

PATH = "/v1/messages"
COUNT_PATH = PATH + "/count_tokens"
REQUEST_ID_HEADER = "request-id"
"""Where Anthropic's clients look for the id of a request."""
_NO_THREADS = "thread_unsupported_request"


def add_routes(router: web.UrlDispatcher) -> None:
    """Put the family's paths on a router."""
    router.add_post(PATH, answer)
    router.add_post(COUNT_PATH, count)


async def prepare(request: web.Request, response: web.StreamResponse) -> None:
    """Headers of the family's answers, errors included (a signal of aiohttp)."""
    if request.path in {PATH, COUNT_PATH}:
        response.headers[REQUEST_ID_HEADER] = request.get(REQUEST_ID, "")


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer a chat, streamed or whole."""
    api = request.app[API]
    with _in_own_words():
        body = await api.door.enter(request, MessagesBody)
    if body.thread is not None:
        return _without_threads(request)
    card = api.serving.card()
    model = served(body.model, card)
    asked = chat_of_messages(body)
    origin = origin_of(request, "msg")
    origin = replace(origin, name=origin.name.replace("-", "_", 1))
    with asked.names.spoken(), _in_own_words():
        prepared = await api.preparing.chat(asked.body, card, origin)
    if prepared.parsing is None:
        raise InvariantBroken("a chat was prepared without a parser")
    group = prepared.groups[0]
    facts = MessageFacts(origin.name, model, asked.shows_thoughts, clamped=prepared.clamped is not None)
    watch = Watch(api.meters, api.meters.person(origin.owner), group.requests[0].prompt_tokens, origin.arrived)
    parser = prepared.parsing.parser()
    if body.stream:
        voice = MessageVoice(facts, watch, parser)
        return await stream_reply(request, prepared, [[voice]], lambda: _noted(request, voice, b""), failure)
    draft = MessageDraft(facts, watch, parser)
    return await whole_reply(request, prepared, [[draft]], lambda: _noted(request, draft, msgspec.json.encode(draft.message())))


async def count(request: web.Request) -> web.Response:
    """How many tokens a prompt has, however long it is."""
    api = request.app[API]
    with _in_own_words():
        body = await api.door.enter(request, CountTokensBody)
    if body.thread is not None:
        return _without_threads(request)
    card = api.serving.card()
    served(body.model, card)
    asked = chat_of_count(body)
    with asked.names.spoken():
        _, spans = await api.preparing.prompt(asked.body, card)
    return web.Response(body=msgspec.json.encode(TokenCount(input_tokens=count_tokens(spans))), content_type="application/json")


def _noted(request: web.Request, told: MessageVoice | MessageDraft, data: bytes) -> bytes:
    request[OUTCOME] = told.finish_reason
    return data


def _without_threads(request: web.Request) -> web.Response:
    """Refuse a conversation that the server should keep, in the words on which clients send all of it instead."""
    request[OUTCOME] = _NO_THREADS
    error: dict[str, object] = {
        "type": "invalid_request_error",
        "message": "`thread` is not supported: no conversation is kept here. Send all messages, without `thread`.",
        "details": {"error_code": _NO_THREADS, "unsupported": list[str]()},
    }
    return web.Response(
        body=msgspec.json.encode({"type": "error", "error": error}),
        status=HTTPStatus.BAD_REQUEST,
        content_type="application/json",
    )


@contextmanager
def _in_own_words() -> Generator[None]:
    """Word errors as Anthropic's clients know them: some read the length of a prompt out of the text to shorten it."""
    try:
        yield
    except ContextTooLong as error:
        if error.prompt >= error.limit:
            words = f"prompt is too long: {error.prompt} tokens > {error.limit} maximum."
        else:
            words = (
                f"input length and `max_tokens` exceed context limit: {error.prompt} + {error.requested} > {error.limit},"
                " decrease input length or `max_tokens` and try again."
            )
        raise InvalidRequest(f"{words} {error}", error.param, "context_length_exceeded") from error
    except InvalidRequest as error:
        if error.param is None or not _names_block(error.param):
            raise
        raise replace(error, message=f"{error.message} Blocks are of type {', '.join(BLOCK_TYPES)}.") from error


def _names_block(param: str) -> bool:
    return param.startswith("messages[") and param.endswith("].type")
