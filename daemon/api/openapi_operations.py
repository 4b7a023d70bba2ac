"""Every operation of the API as `/openapi.json` tells of it: one table, which a test compares with the routes."""

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from daemon.api import (
    chat_completions,
    completions,
    messages,
    messages_schemas,
    models,
    responses,
    responses_schemas,
    schemas,
    tokens,
)
from daemon.api.chat_reply import ChatCompletion
from daemon.api.completion_reply import TextCompletion
from daemon.api.observing import OPEN_PATHS
from daemon.api.openapi_shapes import HealthAnswer, ModelAnswer, ModelsAnswer, VersionAnswer

Kind = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Operation:
    """What can be asked at a path, and what can come back."""

    method: str
    path: str
    summary: str
    answer: Kind | None
    """None: text."""
    statuses: tuple[HTTPStatus, ...]
    """Statuses of errors."""
    body: Kind | None = None
    streams: bool = False
    """Whether the answer may be a stream of events."""
    parameter: str | None = None
    """A part of the path."""

    @property
    def open(self) -> bool:
        """Whether it needs no key."""
        return self.path in OPEN_PATHS


_ASKING = (HTTPStatus.UNAUTHORIZED, HTTPStatus.METHOD_NOT_ALLOWED)
_READING = (HTTPStatus.BAD_REQUEST, *_ASKING, HTTPStatus.NOT_FOUND, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_BUSY = (*_READING, HTTPStatus.SERVICE_UNAVAILABLE)
_GENERATING = (
    *_BUSY,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.GATEWAY_TIMEOUT,
)


def operations() -> Iterator[Operation]:
    """Every operation, in the order of docs/API.md."""
    yield _generates(chat_completions.PATH, "A chat's answer", schemas.ChatBody, ChatCompletion)
    yield _generates(completions.PATH, "The continuation of one or several prompts", schemas.CompletionBody, TextCompletion)
    yield _generates(responses.PATH, "An answer as items", responses_schemas.ResponsesBody, responses_schemas.ResponseOut)
    yield _generates(
        messages.PATH, "A chat's answer in Anthropic's shape", messages_schemas.MessagesBody, messages_schemas.MessageOut
    )
    yield _reads(
        messages.COUNT_PATH, "How many tokens a prompt has", messages_schemas.CountTokensBody, messages_schemas.TokenCount
    )
    yield _reads(tokens.TOKENIZE_PATH, "Ids of a text or of a chat's prompt", tokens.TokenizeBody, tokens.Tokenized)
    yield _reads(tokens.DETOKENIZE_PATH, "Text of ids", tokens.DetokenizeBody, tokens.Detokenized)
    yield _reads(tokens.TEMPLATE_PATH, "The prompt of a chat, as text", tokens.TemplateBody, tokens.AppliedTemplate)
    yield _gets(models.PATH, "Every name of the served model", ModelsAnswer)
    yield Operation("get", models.PATH + "/{id}", "One of them", ModelAnswer, (*_ASKING, HTTPStatus.NOT_FOUND), parameter="id")
    for path, summary in _HEALTH.items():
        yield Operation("get", path, summary, HealthAnswer, (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.SERVICE_UNAVAILABLE))
    yield Operation("get", "/health/live", "The front answers", HealthAnswer, (HTTPStatus.METHOD_NOT_ALLOWED,))
    yield _gets("/metrics", "Numbers for Prometheus", None)
    yield Operation("get", "/version", "The daemon's version", VersionAnswer, (HTTPStatus.METHOD_NOT_ALLOWED,))
    yield _gets("/openapi.json", "This document", None)


_HEALTH = {
    "/health": "Requests are accepted and the engine makes progress",
    "/health/ready": "The same",
    "/health/deep": "A token was produced lately",
}


def _generates(path: str, summary: str, body: Kind, answer: Kind) -> Operation:
    return Operation("post", path, summary, answer, _GENERATING, body, streams=True)


def _reads(path: str, summary: str, body: Kind, answer: Kind) -> Operation:
    return Operation("post", path, summary, answer, _BUSY, body)


def _gets(path: str, summary: str, answer: Kind | None) -> Operation:
    return Operation("get", path, summary, answer, _ASKING)
