"""JSON as typed values, and the small readers with which requests are taken apart. Errors name the field."""

import json
from collections.abc import Mapping
from typing import NoReturn, TypeAlias, cast

from daemon.core.errors import InvalidRequest

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]

MAX_DEPTH = 64
"""Levels of nesting in what people send; real tool schemas stay below 20."""


def plain_json(value: object, where: str, depth: int = 0) -> JsonValue:
    """A copy of decoded JSON that holds nothing but JSON, its text cleaned. Raises InvalidRequest."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"`{where}` is nested deeper than {MAX_DEPTH} levels.", where)
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return clean_text(value)
        case list():
            return [plain_json(item, where, depth + 1) for item in cast("list[object]", value)]
        case dict():
            items = cast("dict[object, object]", value).items()
            return {clean_text(str(key)): plain_json(item, where, depth + 1) for key, item in items}
        case _:
            raise InvalidRequest(f"`{where}` must be JSON{got(value)}.", where)


def plain_object(value: object, where: str) -> dict[str, JsonValue]:
    """As `plain_json`, for what must be an object."""
    return {clean_text(key): plain_json(item, where, 1) for key, item in read_object(value, where).items()}


def decode_json(text: str) -> object:
    """The value of JSON text as models and clients write it (raw newlines in strings allowed); None where it is no JSON."""
    try:
        return cast("object", json.loads(text, strict=False, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def clean_text(text: str) -> str:
    """Text that can be encoded: surrogate pairs joined, halves replaced by U+FFFD (clients cut strings in the middle of an
    emoji).
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def read_object(value: object, where: str) -> Mapping[str, object]:
    """A JSON object. Raises InvalidRequest."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"`{where}` must be an object{got(value)}.", where)
    return cast("Mapping[str, object]", value)


def read_text(value: object, where: str) -> str:
    """A string. Raises InvalidRequest."""
    if not isinstance(value, str):
        raise InvalidRequest(f"`{where}` must be a string{got(value)}.", where)
    return clean_text(value)


def read_optional_text(value: object, where: str) -> str | None:
    """A string or null."""
    return None if value is None else read_text(value, where)


def read_optional_bool(value: object, where: str) -> bool | None:
    """A boolean or null. Strings and numbers are not taken for booleans."""
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequest(f"`{where}` must be true or false{got(value)}.", where)


def got(value: object) -> str:
    """The end of an error message: what stood there instead, never the whole of it."""
    match value:
        case None:
            return ", but it is missing or null"
        case bool():
            return ", not a boolean"
        case int() | float():
            return ", not a number"
        case str():
            return f", not {value[:40]!r}"
        case list():
            return ", not a list"
        case dict():
            return ", not an object"
        case _:
            return f", not {type(value).__name__}"
