"""Tools as people declare them. A schema that is none, is endless or is enormous is refused here, by name of its field."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import unquote

from daemon.chat.json_values import (
    MAX_DEPTH,
    JsonObject,
    JsonValue,
    got,
    plain_object,
    read_object,
    read_optional_bool,
    read_optional_text,
    read_text,
)
from daemon.core.errors import InvalidRequest

MAX_TOOLS = 1024
MAX_SCHEMA_BYTES = 512 * 1024
"""Of one tool's parameters as JSON; the largest tools seen in the wild take 30 KiB."""
MAX_NAME = 256

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_EMPTY_PARAMETERS: JsonObject = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: JsonObject
    """JSON Schema of the arguments, an object schema."""
    strict: bool
    definition: JsonObject
    """The declaration as templates want it: `{"type": "function", "function": {…}}`, in the order of the request."""


def parse_tools(value: object, where: str = "tools") -> tuple[Tool, ...]:
    """The `tools` of a request; null means none. Raises InvalidRequest."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest(f"`{where}` must be a list of tools{got(value)}.", where)
    items = cast("list[object]", value)
    if len(items) > MAX_TOOLS:
        raise InvalidRequest(f"`{where}` has {len(items)} tools; the limit is {MAX_TOOLS}.", where)
    tools = tuple(_parse_tool(item, f"{where}[{index}]") for index, item in enumerate(items))
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            at = f"{where}[{index}].function.name"
            raise InvalidRequest(f"`{at}`: there are two tools named {tool.name!r}.", at)
        seen.add(tool.name)
    return tools


def _parse_tool(value: object, where: str) -> Tool:
    tool = read_object(value, where)
    kind = tool.get("type")
    if kind != "function":
        raise InvalidRequest(f"`{where}.type` must be `function`{got(kind)}.", f"{where}.type")
    at = f"{where}.function"
    function = read_object(tool.get("function"), at)
    name = read_text(function.get("name"), f"{at}.name")
    if not name or len(name) > MAX_NAME or not name.isprintable() or " " in name:
        raise InvalidRequest(
            f"`{at}.name` must have 1 to {MAX_NAME} characters, none of them a space or a line break.", f"{at}.name"
        )
    parameters = parse_schema(function.get("parameters"), f"{at}.parameters")
    declared = {key: item for key, item in plain_object(function, at).items() if item is not None}
    definition: dict[str, JsonValue] = {
        "type": "function",
        "function": {**declared, "name": name, "parameters": dict(parameters)},
    }
    return Tool(
        name=name,
        description=read_optional_text(function.get("description"), f"{at}.description") or "",
        parameters=parameters,
        strict=read_optional_bool(function.get("strict"), f"{at}.strict") or False,
        definition=definition,
    )


def parse_schema(value: object, where: str) -> JsonObject:
    """JSON Schema of a tool's arguments; null means no arguments. Raises InvalidRequest."""
    if value is None:
        return _EMPTY_PARAMETERS
    schema = plain_object(value, where)
    size = len(json.dumps(schema))
    if size > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"`{where}` is {size // 1024} KiB of schema; the limit is {MAX_SCHEMA_BYTES // 1024} KiB.", where)
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"`{where}.type` must be `object`: arguments have names.", f"{where}.type")
    _check_schema(schema, where)
    _References(schema, where).follow(schema, ("#",))
    return schema


def _check_schema(schema: JsonValue, where: str) -> None:
    """Check the keywords that this server and the templates read; others are left to the grammar compiler."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise InvalidRequest(f"`{where}` must be a JSON Schema: an object, true or false{got(schema)}.", where)
    _check_type(schema.get("type"), f"{where}.type")
    _check_named(schema, ("properties", "$defs", "definitions", "patternProperties"), where)
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if key in schema:
            for index, item in enumerate(_list(schema[key], f"{where}.{key}")):
                _check_schema(item, f"{where}.{key}[{index}]")
    for key in ("items", "additionalProperties", "not"):
        if key in schema and not isinstance(schema[key], list):  # a list of items is the older spelling of prefixItems
            _check_schema(schema[key], f"{where}.{key}")
    if "required" in schema and not all(isinstance(item, str) for item in _list(schema["required"], f"{where}.required")):
        raise InvalidRequest(f"`{where}.required` must be a list of property names.", f"{where}.required")
    if "enum" in schema:
        _list(schema["enum"], f"{where}.enum")
    read_optional_text(schema.get("$ref"), f"{where}.$ref")


def _check_named(schema: Mapping[str, JsonValue], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if key in schema:
            for name, item in read_object(schema[key], f"{where}.{key}").items():
                _check_schema(cast("JsonValue", item), f"{where}.{key}.{name}")


def _check_type(value: JsonValue, where: str) -> None:
    types = value if isinstance(value, list) else [] if value is None else [value]
    for item in types:
        if item not in _TYPES:
            raise InvalidRequest(f"`{where}` must be one of {', '.join(sorted(_TYPES))}{got(item)}.", where)


def _list(value: JsonValue, where: str) -> list[JsonValue]:
    if not isinstance(value, list):
        raise InvalidRequest(f"`{where}` must be a list{got(value)}.", where)
    return value


_DATA: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords that hold data, in which `$ref` means nothing."""


class _References:
    """Follows the local references of one schema; each target is looked at once."""

    def __init__(self, root: JsonValue, where: str) -> None:
        self._root = root
        self._where = where
        self._finished: set[str] = set()

    def follow(self, schema: JsonValue, path: tuple[str, ...]) -> None:
        """Raises InvalidRequest if a reference leads back to where it came from; `path` are the references on the way."""
        if len(path) > MAX_DEPTH:
            raise InvalidRequest(f"`{self._where}` has references that lead through more than {MAX_DEPTH} others.", self._where)
        for reference in _references(schema):
            if reference in path:
                raise InvalidRequest(
                    f"`{self._where}` refers to itself through {reference!r}; schemas of tools must not be recursive.",
                    self._where,
                )
            if reference not in self._finished:
                self.follow(self._target(reference), (*path, reference))
                self._finished.add(reference)

    def _target(self, reference: str) -> JsonValue:
        """What a reference points at; null where it leads out of the schema or nowhere."""
        value = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            match value:
                case dict():
                    value = value.get(key)
                case list() if key.isdecimal() and int(key) < len(value):
                    value = value[int(key)]
                case _:
                    return None
        return value if reference.startswith("#") else None


def _references(schema: JsonValue) -> Iterator[str]:
    match schema:
        case dict():
            reference = schema.get("$ref")
            if isinstance(reference, str):
                yield reference
            for key, item in schema.items():
                if key not in _DATA:
                    yield from _references(item)
        case list():
            for item in schema:
                yield from _references(item)
        case _:
            pass
