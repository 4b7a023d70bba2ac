"""Types of tool arguments, read from JSON Schema, for call formats whose values are bare text.

The rule is: text becomes what the schema asks for where that is certain, and stays the string it is everywhere else.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import TypeAlias
from urllib.parse import unquote

from daemon.chat.json_values import JsonObject, JsonValue


class JsonType(Enum):
    """The types of JSON Schema."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    ARRAY = "array"
    OBJECT = "object"


Types: TypeAlias = frozenset[JsonType]

ANY: Types = frozenset(JsonType)
_STRING: Types = frozenset({JsonType.STRING})
_NUMBERS: Types = frozenset({JsonType.INTEGER, JsonType.NUMBER})
_NAMES = {item.value: item for item in JsonType}

_HINTS: Mapping[str, JsonType] = {
    "properties": JsonType.OBJECT,
    "additionalProperties": JsonType.OBJECT,
    "patternProperties": JsonType.OBJECT,
    "required": JsonType.OBJECT,
    "items": JsonType.ARRAY,
    "prefixItems": JsonType.ARRAY,
    "minItems": JsonType.ARRAY,
    "maxItems": JsonType.ARRAY,
    "uniqueItems": JsonType.ARRAY,
    "pattern": JsonType.STRING,
    "minLength": JsonType.STRING,
    "maxLength": JsonType.STRING,
    "format": JsonType.STRING,
    "minimum": JsonType.NUMBER,
    "maximum": JsonType.NUMBER,
    "exclusiveMinimum": JsonType.NUMBER,
    "exclusiveMaximum": JsonType.NUMBER,
    "multipleOf": JsonType.NUMBER,
}
"""Keywords that mean something for one type only, for schemas that leave `type` out."""

_MAX_STEPS = 2000
"""Schema nodes one question may visit; references can make a small schema endless."""

_MAX_DEPTH = 64
"""Schemas inside one another, references included, that a question about types follows."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MAX_EXPANDED = 40
"""Digits up to which a number such as 1e3 is written out as an integer."""

_NUMBER_START = re.compile(r"[+-]?[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]*)?\s*")
_MAX_LITERAL = 64
"""Characters up to which text beside which a string is admitted may be a number, white space included."""

_WORDS: Mapping[JsonType, tuple[str, ...]] = {
    JsonType.BOOLEAN: ("true", "false"),
    JsonType.NULL: ("null",),
}


class Schema:
    """One place in a tool's parameters. References are followed; what cannot be resolved admits everything."""

    __slots__ = ("_node", "_root", "_types", "declared")

    def __init__(self, node: JsonValue, root: JsonObject, *, declared: bool = True) -> None:
        self._node = node
        self._root = root
        self._types: Types | None = None
        self.declared = declared
        """Whether the schema says anything about this place at all."""

    @property
    def types(self) -> Types:
        """The types a value here may have."""
        if self._types is None:
            self._types = _types(self._node, self._root, iter(range(_MAX_STEPS)), 0)
        return self._types

    @property
    def text_only(self) -> bool:
        """Whether a value here is a string whatever it looks like."""
        return self.types == _STRING or not self.declared

    def may_be_other(self, start: str) -> bool:
        """Whether text that begins with `start` (no white space in front) may stand for something that is no string."""
        types = self.types
        if self.text_only:
            return False
        if JsonType.STRING not in types:
            return True
        if start[0] in "[{":
            return (JsonType.ARRAY if start[0] == "[" else JsonType.OBJECT) in types
        if types == ANY or len(start) > _MAX_LITERAL:
            return False
        if types & _NUMBERS and _NUMBER_START.fullmatch(start):
            return True
        word = start.rstrip().lower()
        return any(one.startswith(word) for kind, words in _WORDS.items() if kind in types for one in words)

    def choices(self) -> list[JsonValue]:
        """The values that `enum` or `const` name here; empty where neither does."""
        found: list[JsonValue] = []
        for node in _closure(self._node, self._root):
            found.extend(_list_of(node, "enum"))
            if "const" in node:
                found.append(node["const"])
        return found

    def property(self, name: str) -> "Schema":
        """The place of a property of an object here."""
        others: JsonValue = None
        for node in _closure(self._node, self._root):
            named = node.get("properties")
            if isinstance(named, dict) and name in named:
                return Schema(named[name], self._root)
            if others is None:
                others = node.get("additionalProperties")
        if isinstance(others, dict):
            return Schema(others, self._root)
        return Schema(True, self._root, declared=False)  # noqa: FBT003  # `true` is the JSON Schema that admits everything

    def names(self) -> frozenset[str]:
        """The names of the properties declared here."""
        return frozenset(self.ordered_names())

    def ordered_names(self) -> list[str]:
        """The names of the properties declared here, in their order."""
        found: dict[str, None] = {}
        for node in _closure(self._node, self._root):
            named = node.get("properties")
            if isinstance(named, dict):
                found.update(dict.fromkeys(named))
        return list(found)

    def required(self) -> bool:
        """Whether an object here must have any property."""
        return any(node.get("required") for node in _closure(self._node, self._root))

    def items(self) -> "Schema":
        """The place of an element of an array here."""
        for node in _closure(self._node, self._root):
            items = node.get("items")
            if isinstance(items, dict):
                return Schema(items, self._root)
        return Schema(True, self._root, declared=False)  # noqa: FBT003  # as above


def quoted(text: str) -> str:
    """A JSON string of `text`."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """`text` as it stands inside a JSON string."""
    return quoted(text)[1:-1]


def json_of_text(raw: str, schema: Schema, strict_json: Callable[[str], str | None]) -> str | None:
    """What a model wrote as bare text, as JSON text of the type that `schema` asks for.

    None: the text is empty where a string is not admitted, so the value was left out. `strict_json` gives the JSON text of
    an object or array written loosely, None where it is neither.
    """
    text = raw.strip()
    types = schema.types
    if schema.text_only:
        return quoted(raw)
    if types == ANY:
        return (strict_json(text) if text[:1] in {"{", "["} else None) or quoted(raw)
    if not text:
        return quoted(raw) if JsonType.STRING in types else None
    if JsonType.STRING in types and text in schema.choices():
        return quoted(text)
    found = _scalar(text, types) or _container(text, types, strict_json)
    if found is not None:
        return found
    if text in {"null", "None"} and JsonType.STRING not in types:
        return "null"
    return quoted(raw)


def json_of_scalar(literal: str, schema: Schema) -> str:
    """A JSON scalar as `schema` wants it: 5.0 is 5 for an integer, and a number its own text for a string."""
    types = schema.types
    if not _JSON_NUMBER.fullmatch(literal):
        return literal
    if schema.text_only and schema.declared:
        return quoted(literal)
    if JsonType.INTEGER in types and JsonType.NUMBER not in types:
        return _integer(literal) or literal
    return literal


def _scalar(text: str, types: Types) -> str | None:
    if JsonType.NULL in types and (text == "null" or (text == "None" and JsonType.STRING not in types)):
        return "null"
    if JsonType.BOOLEAN in types and text.lower() in {"true", "false"}:
        return text.lower()
    if JsonType.NUMBER in types and (number := _number(text)) is not None:
        return number
    if JsonType.INTEGER in types and (number := _integer(text)) is not None:
        return number
    return None


def _container(text: str, types: Types, strict_json: Callable[[str], str | None]) -> str | None:
    wanted = [first for kind, first in ((JsonType.OBJECT, "{"), (JsonType.ARRAY, "[")) if kind in types]
    if text[0] in wanted:
        return strict_json(text)
    if wanted and text[0] == '"' and JsonType.STRING not in types:
        inner = _decoded(text)
        if inner is not None and inner.strip()[:1] in wanted:
            return strict_json(inner.strip())
    return None


def _decoded(text: str) -> str | None:
    """The string that JSON text stands for; None where it is no string."""
    try:
        value: object = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _number(text: str) -> str | None:
    if not _NUMBER.fullmatch(text):
        return None
    if _JSON_NUMBER.fullmatch(text):
        return text
    mantissa, mark, exponent = text.lower().partition("e")
    sign = "-" if mantissa[0] == "-" else ""
    whole, dot, part = mantissa.lstrip("+-").partition(".")
    whole = whole.lstrip("0") or "0"
    return f"{sign}{whole}{'.' + (part or '0') if dot else ''}{mark}{exponent}"


def _integer(text: str) -> str | None:
    if _INTEGER.fullmatch(text):
        sign = "-" if text[0] == "-" else ""
        digits = text.lstrip("+-").lstrip("0") or "0"
        return sign + digits if digits != "0" else "0"
    if not _NUMBER.fullmatch(text) or len(text) > _MAX_EXPANDED:
        return None
    try:
        value = Decimal(text)
    except ArithmeticError:  # an exponent beyond what decimals can hold
        return None
    if abs(value.adjusted()) > _MAX_EXPANDED or value != value.to_integral_value():
        return None
    return str(int(value))


def _types(node: JsonValue, root: JsonObject, steps: Iterator[int], depth: int) -> Types:
    """The types `node` admits; everything where nothing is said or the search grows too long."""
    if not isinstance(node, dict) or depth > _MAX_DEPTH or next(steps, None) is None:
        return ANY
    types = _own_types(node)
    reference = node.get("$ref")
    if isinstance(reference, str):
        types &= _types(resolve(reference, root), root, steps, depth + 1)
    for part in _list_of(node, "allOf"):
        types &= _types(part, root, steps, depth + 1)
    for key in ("anyOf", "oneOf"):
        branches = [_types(branch, root, steps, depth + 1) for branch in _list_of(node, key)]
        if branches:
            types &= frozenset[JsonType]().union(*branches)
    if types == ANY:
        types = frozenset(kind for key, kind in _HINTS.items() if key in node) or ANY
    if node.get("nullable") is True:
        types |= {JsonType.NULL}
    if JsonType.NUMBER in types:
        types |= {JsonType.INTEGER}
    return types or ANY


def _own_types(node: dict[str, JsonValue]) -> Types:
    """What `type`, `enum` and `const` of one node say."""
    types = ANY
    declared = node.get("type")
    names = declared if isinstance(declared, list) else [declared]
    found = frozenset(_NAMES[name] for name in names if isinstance(name, str) and name in _NAMES)
    if found:
        types = found | {JsonType.INTEGER} if JsonType.NUMBER in found else found
    if enum := _list_of(node, "enum"):
        types &= _named(enum)
    if "const" in node:
        types &= _named([node["const"]])
    return types


def _list_of(node: dict[str, JsonValue], key: str) -> list[JsonValue]:
    value = node.get(key)
    return value if isinstance(value, list) else []


def _named(values: list[JsonValue]) -> Types:
    """The types of values that a schema lists. An integer is a number too."""
    found: set[JsonType] = set()
    for value in values:
        match value:
            case None:
                found.add(JsonType.NULL)
            case bool():
                found.add(JsonType.BOOLEAN)
            case int() | float():
                found |= _NUMBERS
            case str():
                found.add(JsonType.STRING)
            case list():
                found.add(JsonType.ARRAY)
            case dict():
                found.add(JsonType.OBJECT)
    return frozenset(found)


def resolve(reference: str, root: JsonObject) -> JsonValue:
    """The node that a local reference such as `#/$defs/Name` points at; None where there is none."""
    if not reference.startswith("#"):
        return None
    node: JsonValue = dict(root)
    for part in reference[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def _closure(node: JsonValue, root: JsonObject) -> Iterator[dict[str, JsonValue]]:
    """`node` and everything it is made of: references, allOf, anyOf and oneOf, each once."""
    waiting = [node]
    references: set[str] = set()
    for _ in range(_MAX_STEPS):
        if not waiting:
            return
        node = waiting.pop(0)
        if not isinstance(node, dict):
            continue
        yield node
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in references:
            references.add(reference)
            waiting.append(resolve(reference, root))
        for key in ("allOf", "anyOf", "oneOf"):
            waiting.extend(_list_of(node, key))
