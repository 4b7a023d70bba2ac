"""From errors to answers: status, type, code and headers of each class, once, for JSON bodies and for streams alike.

`core/errors.py` states facts and knows no HTTP; this file knows nothing else. A class of the tree that is missing from the table
is found by a test. Errors outside of the tree are bugs: their text stays in the log and the client gets the request's id.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus

import msgspec

from daemon.core.errors import (
    BadConstraint,
    BodyTooLarge,
    ContextTooLong,
    Forbidden,
    GenerationFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    PoisonousRequest,
    QuotaExceeded,
    RequestError,
    RequestTimeout,
    ShuttingDown,
    TemplateFailed,
    Unauthorized,
    UnknownModel,
    UnsupportedParameter,
)
from daemon.core.wire import FailureClass


class Dialect(Enum):
    """Whose error shape a client expects."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Answer:
    """An error as it leaves the house."""

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a class of error becomes. `again`: whether the official clients should retry by themselves (None: their choice)."""

    status: HTTPStatus
    type: str
    code: str | None
    again: bool | None = None


_INVALID = "invalid_request_error"
_SERVER = "server_error"

RULES: Mapping[type[RequestError], _Rule] = {
    InvalidRequest: _Rule(HTTPStatus.BAD_REQUEST, _INVALID, None),
    UnsupportedParameter: _Rule(HTTPStatus.BAD_REQUEST, _INVALID, "unsupported_parameter"),
    ContextTooLong: _Rule(HTTPStatus.BAD_REQUEST, _INVALID, "context_length_exceeded"),
    BadConstraint: _Rule(HTTPStatus.BAD_REQUEST, _INVALID, "invalid_constraint"),
    TemplateFailed: _Rule(HTTPStatus.BAD_REQUEST, _INVALID, "template_failed"),
    UnknownModel: _Rule(HTTPStatus.NOT_FOUND, _INVALID, "model_not_found"),
    Unauthorized: _Rule(HTTPStatus.UNAUTHORIZED, _INVALID, "invalid_api_key"),
    Forbidden: _Rule(HTTPStatus.FORBIDDEN, "permission_error", "forbidden"),
    BodyTooLarge: _Rule(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _INVALID, "body_too_large"),
    Overloaded: _Rule(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded_error", "overloaded", again=True),
    QuotaExceeded: _Rule(HTTPStatus.TOO_MANY_REQUESTS, "insufficient_quota", "insufficient_quota", again=False),
    NotReady: _Rule(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready_error", "not_ready", again=True),
    RequestTimeout: _Rule(HTTPStatus.GATEWAY_TIMEOUT, "timeout_error", "timeout", again=False),
    ShuttingDown: _Rule(HTTPStatus.SERVICE_UNAVAILABLE, _SERVER, "shutting_down", again=True),
    PoisonousRequest: _Rule(HTTPStatus.UNPROCESSABLE_ENTITY, _INVALID, "poisonous_request", again=False),
    GenerationFailed: _Rule(HTTPStatus.INTERNAL_SERVER_ERROR, _SERVER, "generation_failed", again=False),
}
"""Every class of the tree but its abstract root."""

_OWN_LIMIT = _Rule(HTTPStatus.TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded", again=True)
_REFUSED_BY_ENGINE = _Rule(HTTPStatus.BAD_REQUEST, _INVALID, "generation_refused")
_BUG = _Rule(HTTPStatus.INTERNAL_SERVER_ERROR, _SERVER, "internal_error", again=False)
RETRY_HEADER = "retry-after-ms"
"""Beside Retry-After, for clients that read it: OpenAI's do."""
_SHUTDOWN_RETRY = 5.0
"""Seconds; a restart by systemd takes about this long before the front answers again."""


def answer_to(error: Exception, request_id: str) -> Answer:
    """The answer to any exception. What is not a RequestError is a bug and says only which request to look for in the log."""
    if not isinstance(error, RequestError):
        message = f"The server made a mistake. Its log says more about request {request_id}."
        return Answer(_BUG.status, _BUG.type, message, code=_BUG.code, headers=_headers(_BUG, None))
    rule = _rule(error)
    param, code = _field(error)
    return Answer(rule.status, rule.type, str(error), param, code or rule.code, _headers(rule, _retry_after(error)))


def unknown_url(method: str, path: str) -> Answer:
    """There is nothing at this path."""
    message = f"Unknown request URL: {method} {path}. docs/API.md lists what this server answers."
    return Answer(HTTPStatus.NOT_FOUND, _INVALID, message, code="unknown_url")


def wrong_method(method: str, path: str, allowed: str) -> Answer:
    """The path exists for other methods only."""
    message = f"Not allowed to {method} on {path}; allowed: {allowed}."
    return Answer(HTTPStatus.METHOD_NOT_ALLOWED, _INVALID, message, code="method_not_allowed", headers={"Allow": allowed})


def protocol_error(status: int, reason: str) -> Answer:
    """What the HTTP library itself refused."""
    kind = _INVALID if status < HTTPStatus.INTERNAL_SERVER_ERROR else _SERVER
    return Answer(status, kind, reason, code="http_error")


def error_json(answer: Answer, dialect: Dialect) -> bytes:
    """The body of an error, in the caller's shape; also what follows `data: ` inside a stream."""
    match dialect:
        case Dialect.OPENAI:
            return msgspec.json.encode(
                {"error": {"message": answer.message, "type": answer.type, "param": answer.param, "code": answer.code}}
            )
        case Dialect.ANTHROPIC:
            kind = _ANTHROPIC_TYPES.get(answer.status, "api_error")
            return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": answer.message}})


_ANTHROPIC_TYPES: Mapping[int, str] = {
    400: _INVALID,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: _INVALID,
    413: "request_too_large",
    422: _INVALID,
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _rule(error: RequestError) -> _Rule:
    if isinstance(error, Overloaded) and error.own_limit:
        return _OWN_LIMIT
    if isinstance(error, GenerationFailed) and error.kind in (FailureClass.INVALID, FailureClass.UNSUPPORTED):
        return _REFUSED_BY_ENGINE
    for kind in type(error).__mro__:
        if kind in RULES:
            return RULES[kind]
    return _BUG


def _field(error: RequestError) -> tuple[str | None, str | None]:
    if isinstance(error, InvalidRequest):
        return error.param, error.code
    return ("model", None) if isinstance(error, UnknownModel) else (None, None)


def _retry_after(error: RequestError) -> float | None:
    if isinstance(error, Overloaded | NotReady):
        return error.retry_after
    if isinstance(error, QuotaExceeded):
        return error.resets_in
    return _SHUTDOWN_RETRY if isinstance(error, ShuttingDown) else None


def _headers(rule: _Rule, retry_after: float | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    if retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
        headers[RETRY_HEADER] = str(max(1, math.ceil(retry_after * 1000)))
    if rule.again is not None:
        headers["x-should-retry"] = "true" if rule.again else "false"
    if rule.status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return headers
