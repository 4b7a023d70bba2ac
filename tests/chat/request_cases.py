"""What becomes of a request body before any template is rendered: for cases of `format: request`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from daemon.chat.abilities import Abilities
from daemon.chat.control_tokens import ControlTokens
from daemon.chat.json_values import JsonValue
from daemon.chat.messages import parse_chat
from daemon.chat.normalise import normalise
from daemon.chat.template_values import TemplateMessage, describe_choice, template_messages, thinking_variables
from daemon.chat.templates import ChatTemplate
from daemon.core.errors import InvalidRequest

_STRICT = ChatTemplate("default", "", Abilities(), frozenset({"enable_thinking"}), (), str)


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """Status of the answer; the messages and the variables handed to a template of the strictest wide-spread family."""

    status: int
    messages: list[TemplateMessage]
    kwargs: dict[str, JsonValue]
    error: str = ""
    param: str | None = None


def request_outcome(body: Mapping[str, object], abilities: Abilities | None = None) -> RequestOutcome:
    """Run a body through the product's parsing and normalisation. Only a wrong request is caught, as the server does."""
    able = abilities or Abilities()
    try:
        chat = parse_chat(body)
        messages = normalise(chat.messages, able, continue_final=chat.continue_final)
    except InvalidRequest as error:
        return RequestOutcome(HTTPStatus.BAD_REQUEST, [], {}, str(error), error.param)
    kwargs = thinking_variables(chat.thinking, chat.effort, _STRICT) | dict(chat.kwargs)
    if body.get("tool_choice") is not None:
        kwargs["tool_choice"] = describe_choice(chat.tool_choice)
    return RequestOutcome(HTTPStatus.OK, template_messages(messages, able, ControlTokens((), ())), kwargs)


def judge_request(case: Mapping[str, object]) -> str:
    """Why a case of `format: request` fails; empty if it passes. How merged texts are joined is free."""
    outcome = request_outcome(cast("Mapping[str, object]", case["output"]))
    accepted = [case["expect"], *cast("list[object]", case.get("also_ok") or [])]
    faults = [_fault(outcome, cast("Mapping[str, object]", expected)) for expected in accepted]
    return "" if "" in faults else faults[0]


def _fault(outcome: RequestOutcome, expected: Mapping[str, object]) -> str:
    status = expected.get("status")
    if outcome.status not in (status if isinstance(status, list) else [status]):
        return f"status {outcome.status}, not {status}: {outcome.error}"
    if outcome.status != HTTPStatus.OK:
        return ""
    messages, kwargs = expected.get("template_messages"), expected.get("template_kwargs")
    if messages is not None and _with_single_breaks(outcome.messages) != _with_single_breaks(messages):
        return f"messages {outcome.messages}, not {messages}"
    wanted = cast("Mapping[str, object]", kwargs or {})
    if any(key not in outcome.kwargs or outcome.kwargs[key] != value for key, value in wanted.items()):
        return f"variables {outcome.kwargs}, not {kwargs}"
    return ""


def _with_single_breaks(value: object) -> object:
    match value:
        case str():
            return re.sub(r"\n+", "\n", value)
        case list():
            return [_with_single_breaks(item) for item in cast("list[object]", value)]
        case dict():
            return {key: _with_single_breaks(item) for key, item in cast("dict[str, object]", value).items()}
        case _:
            return value
