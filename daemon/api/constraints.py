"""Structured output: the several ways in which clients ask for it become one `Constraint`, checked before it is sent.

llguidance compiles the grammar here as the engine will, so that a bad schema is refused at the door and a generation never runs
unconstrained. Compiling is done in a thread by the caller: a large schema takes a while.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import cast

from daemon.api.grammar_trial import INLINE_CHARACTERS, Undecided, compile_apart, compile_here
from daemon.api.schemas import Generation, Json
from daemon.core.errors import BadConstraint, InvalidRequest
from daemon.core.wire import Constraint, ConstraintKind

_REMEMBERED = 64
"""Large constraints whose trial is remembered."""
_FORMATS = ("text", "json_object", "json_schema")


def wants_constraint(body: Generation) -> bool:
    """Whether there is anything to compile."""
    fields = (body.response_format, body.guided_json, body.guided_regex, body.guided_grammar, body.guided_choice)
    return any(field is not None for field in (*fields, body.structured_outputs, body.grammar, body.json_schema))


def constraint_of(body: Generation) -> Constraint | None:
    """The constraint a body asks for, compiled once to see that it can be. Raises BadConstraint and InvalidRequest."""
    found = [*_response_format(body.response_format), *_guided(body), *_structured(body.structured_outputs)]
    if len(found) > 1:
        names = " and ".join(f"`{name}`" for name, _ in found)
        raise InvalidRequest(f"{names} both ask for a form of the answer; give one of them.", found[1][0])
    if not found:
        return None
    param, constraint = found[0]
    check(constraint, param)
    return constraint


_Found = list[tuple[str, Constraint]]


def _response_format(given: Json | None) -> _Found:
    if given is None:
        return []
    match given.get("type"):
        case "text":
            return []
        case "json_object":
            return [("response_format", _schema({"type": "object"}, "response_format"))]
        case "json_schema":
            wrapper = given.get("json_schema")
            if not isinstance(wrapper, dict):
                param = "response_format.json_schema"
                raise InvalidRequest(f"`{param}` is required: an object with name and schema.", param)
            param = "response_format.json_schema.schema"
            return [(param, _schema(cast("Json", wrapper).get("schema"), param))]
        case other:
            param = "response_format.type"
            raise InvalidRequest(f"`{param}` is {json.dumps(other)[:80]}; expected one of {', '.join(_FORMATS)}.", param)


def _guided(body: Generation) -> _Found:
    found: _Found = []
    for name in ("guided_json", "json_schema"):
        value = cast("Json | str | None", getattr(body, name))
        if value is not None:
            found.append((name, _schema(value, name)))
    if body.guided_regex is not None:
        found.append(("guided_regex", Constraint(ConstraintKind.REGEX, body.guided_regex)))
    for name in ("guided_grammar", "grammar"):
        text = cast("str | None", getattr(body, name))
        if text:
            found.append((name, _grammar(text)))
    if body.guided_choice is not None:
        found.append(("guided_choice", _choice(body.guided_choice)))
    return found


def _structured(given: Json | None) -> _Found:
    if given is None:
        return []
    found: _Found = []
    readers: dict[str, Callable[[object, str], Constraint]] = {
        "json": _schema,
        "regex": lambda value, param: Constraint(ConstraintKind.REGEX, _text(value, param)),
        "grammar": lambda value, param: _grammar(_text(value, param)),
        "choice": lambda value, param: _choice(_texts(value, param)),
        "json_object": lambda _, param: _schema({"type": "object"}, param),
    }
    for name, value in given.items():
        param = f"structured_outputs.{name}"
        if value is None or value is False:
            continue
        if name not in readers:
            raise InvalidRequest(f"`{param}` is not known; expected one of {', '.join(readers)}.", param)
        found.append((param, readers[name](value, param)))
    return found


def _schema(value: object, param: str) -> Constraint:
    if isinstance(value, str):
        try:
            value = cast("object", json.loads(value))
        except (ValueError, RecursionError) as problem:
            raise BadConstraint(f"`{param}` is not valid JSON: {problem}.", param) from problem
    if not isinstance(value, dict | bool):
        raise BadConstraint(f"`{param}` must be a JSON schema, which is an object.", param)
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(value, ensure_ascii=False))


def _grammar(text: str) -> Constraint:
    kind = ConstraintKind.GBNF if "::=" in text else ConstraintKind.LARK
    return Constraint(kind, text)


def _choice(texts: list[str]) -> Constraint:
    return Constraint(ConstraintKind.LARK, "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))


def _text(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"`{param}` must be a non-empty string.", param)
    return value


def _texts(value: object, param: str) -> list[str]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    texts = [item for item in items if isinstance(item, str) and item]
    if not texts or len(texts) != len(items):
        raise InvalidRequest(f"`{param}` must be an array of non-empty strings.", param)
    return texts


def check(constraint: Constraint, param: str) -> None:
    """Raises BadConstraint where a constraint does not compile; `param` is the field that asked for it."""
    problem = compile_problem(constraint)
    if problem:
        raise BadConstraint(f"`{param}` cannot be compiled: {problem.strip()[:500]}", param)


def compile_problem(constraint: Constraint) -> str:
    """What is wrong with a constraint; empty where nothing is. What is large is tried in a process of its own, once."""
    if len(constraint.text) <= INLINE_CHARACTERS:
        return compile_here(constraint.kind, constraint.text)
    try:
        return _tried(constraint.kind, constraint.text)
    except Undecided as problem:
        return str(problem)


@lru_cache(maxsize=_REMEMBERED)
def _tried(kind: ConstraintKind, text: str) -> str:
    """Clients send the same schema again and again. What was given up because the machine was busy is not remembered."""
    return compile_apart(Constraint(kind, text))
