"""The map from the tree of errors to answers is complete, and the same in both dialects and in streams."""

import json
from collections.abc import Iterator

import pytest

from daemon.api.errors import RULES, Dialect, answer_to, error_json
from daemon.core.errors import (
    BadConstraint,
    BodyTooLarge,
    ConfigError,
    ContextTooLong,
    Forbidden,
    GenerationFailed,
    InvalidRequest,
    InvariantBroken,
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

CASES: list[tuple[Exception, int, str | None]] = [
    (InvalidRequest("wrong", "x"), 400, None),
    (UnsupportedParameter("no", "x"), 400, "unsupported_parameter"),
    (ContextTooLong(limit=10, requested=5, prompt=9), 400, "context_length_exceeded"),
    (BadConstraint("no", "x"), 400, "invalid_constraint"),
    (TemplateFailed("no"), 400, "template_failed"),
    (UnknownModel("x", ("y",)), 404, "model_not_found"),
    (Unauthorized(), 401, "invalid_api_key"),
    (Forbidden("no"), 403, "forbidden"),
    (BodyTooLarge(2**20), 413, "body_too_large"),
    (Overloaded("full", 2, own_limit=True), 429, "rate_limit_exceeded"),
    (Overloaded("full", 2, own_limit=False), 503, "overloaded"),
    (QuotaExceeded(limit=1000, left=0, prompt=0, resets_in=90), 429, "insufficient_quota"),
    (NotReady("starting", 2), 503, "not_ready"),
    (RequestTimeout("late"), 504, "timeout"),
    (ShuttingDown(), 503, "shutting_down"),
    (PoisonousRequest(), 422, "poisonous_request"),
    (GenerationFailed(FailureClass.NOT_FINITE, "NaN"), 500, "generation_failed"),
    (GenerationFailed(FailureClass.INVALID, "no"), 400, "generation_refused"),
    (GenerationFailed(FailureClass.UNSUPPORTED, "no"), 400, "generation_refused"),
    (ConfigError("wrong"), 500, "internal_error"),
    (InvariantBroken("wrong"), 500, "internal_error"),
    (KeyError("x"), 500, "internal_error"),
]


def tree(kind: type[RequestError]) -> Iterator[type[RequestError]]:
    for child in kind.__subclasses__():
        yield child
        yield from tree(child)


def test_every_class_of_the_tree_has_a_rule() -> None:
    assert set(tree(RequestError)) == set(RULES)
    assert {type(error) for error, _, _ in CASES} >= set(RULES)


@pytest.mark.parametrize(("error", "status", "code"), CASES)
def test_error_has_status_code_and_text_in_both_dialects(error: Exception, status: int, code: str | None) -> None:
    answer = answer_to(error, "req-1")
    assert (answer.status, answer.code) == (status, code)
    openai = json.loads(error_json(answer, Dialect.OPENAI))
    assert set(openai["error"]) == {"message", "type", "param", "code"}
    anthropic = json.loads(error_json(answer, Dialect.ANTHROPIC))
    assert anthropic["type"] == "error"
    assert set(anthropic["error"]) == {"type", "message"}
    told = str(error) if isinstance(error, RequestError) else "req-1"
    assert told in openai["error"]["message"]
    assert told in anthropic["error"]["message"]
    assert ("Retry-After" in answer.headers) == (status in {429, 503})


def test_error_that_asks_to_come_back_at_once_says_one_second_at_least() -> None:
    assert answer_to(NotReady("x", 0.0), "").headers["Retry-After"] == "1"
