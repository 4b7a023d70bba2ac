"""Schemas of tools as the grammar compiler takes them. What it cannot enforce is refused by name of its field, unless it is
merely a remark: then it is left out.
"""

from collections.abc import Iterator, Mapping

from daemon.chat.coerce import resolve
from daemon.chat.json_values import JsonObject, JsonValue
from daemon.chat.tool_schemas import Tool
from daemon.core.errors import BadConstraint

_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})
"""Formats that are enforced. Others are remarks, which is all that JSON Schema wants of any of them."""
_UNENFORCEABLE = frozenset(
    {
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
_COMBINATORS = ("anyOf", "oneOf", "allOf")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_LISTS = (*_COMBINATORS, "prefixItems")


def unenforceable(where: str, what: str = "") -> BadConstraint:
    """The error for a part of a schema that no grammar can hold a model to."""
    words = what or "this part of a schema cannot be enforced"
    return BadConstraint(f"`{where}`: {words}, which `tool_choice` or `strict` asks for here.", where)


def cleaned(schema: JsonValue, where: str) -> JsonValue:
    """A schema without remarks that the compiler takes amiss. Raises BadConstraint."""
    if not isinstance(schema, dict):
        return schema
    out: dict[str, JsonValue] = {}
    for key, value in schema.items():
        at = f"{where}.{key}"
        if key in _UNENFORCEABLE:
            if not _is_vacuous(key, value):
                raise unenforceable(at)
        elif key in _NAMED and isinstance(value, dict):
            out[key] = {name: cleaned(item, f"{at}.{name}") for name, item in value.items()}
        elif key in _LISTS and isinstance(value, list):
            out[key] = [cleaned(item, f"{at}[{index}]") for index, item in enumerate(value)]
        elif key in _SINGLE:
            out[key] = cleaned(value, at)
        elif key != "format" or value in _FORMATS:
            out[key] = value
    return out


def cleaned_object(schema: JsonObject, where: str) -> JsonObject:
    """As `cleaned`, of the schema of an object."""
    found = cleaned(dict(schema), where)
    return found if isinstance(found, dict) else {}


def _is_vacuous(key: str, value: JsonValue) -> bool:
    """Whether a keyword asks for nothing: many schema makers write such."""
    match key:
        case "uniqueItems" | "not":
            return value is False
        case "propertyNames" | "unevaluatedItems" | "unevaluatedProperties":
            return value is True or value == {} or (key == "propertyNames" and value == {"type": "string"})
        case _:
            return False


def arguments_schema(tool: Tool, where: str) -> JsonObject:
    """The arguments of a tool as one JSON object. Names that are not declared are not written, unless the schema says so.
    Raises BadConstraint.
    """
    schema = {**cleaned_object(tool.parameters, where), "type": "object"}
    closed = "additionalProperties" in schema or "patternProperties" in schema or "$ref" in schema
    if "properties" in schema and not closed and not any(key in schema for key in _COMBINATORS):
        schema["additionalProperties"] = False
    return schema


def declared(tool: Tool, where: str) -> Iterator[tuple[str, JsonValue, bool]]:
    """The arguments of a tool, whose schema is `cleaned`, one by one, for formats that write them so: name, schema, whether it
    is required. Raises BadConstraint where the arguments depend on each other.
    """
    root = tool.parameters
    for key in _COMBINATORS:
        if root.get(key):
            raise unenforceable(f"{where}.{key}")
    node = _followed(dict(root), root)
    properties = node.get("properties")
    named = dict(properties) if isinstance(properties, dict) else {}
    required = node.get("required")
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    for name in [*named, *(name for name in needed if name not in named)]:
        yield name, named.get(name, True), name in needed


def _followed(node: Mapping[str, JsonValue], root: JsonObject) -> Mapping[str, JsonValue]:
    """A node with its reference followed."""
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return node
    target = resolve(reference, root)
    rest = {key: value for key, value in node.items() if key != "$ref"}
    return {**(_followed(target, root) if isinstance(target, dict) else {}), **rest}


def branches(schema: JsonValue, root: JsonObject, where: str) -> list[dict[str, JsonValue]]:
    """The alternatives of a schema, each without references and combinators on its first level. Raises BadConstraint."""
    if not isinstance(schema, dict):
        return [{}]
    node = dict(_followed(schema, root))
    parts = node.pop("allOf", None)
    if isinstance(parts, list) and parts:
        if len(parts) > 1 or not isinstance(parts[0], dict):
            raise unenforceable(f"{where}.allOf")
        return branches({**parts[0], **node}, root, where)
    for key in ("anyOf", "oneOf"):
        choices = node.pop(key, None)
        if isinstance(choices, list) and choices:
            found: list[dict[str, JsonValue]] = []
            for index, choice in enumerate(choices):
                merged = {**node, **choice} if isinstance(choice, dict) else node
                found += branches(merged, root, f"{where}.{key}[{index}]")
            return found
    return [node]


def with_definitions(schema: JsonValue, root: JsonObject) -> JsonObject | bool:
    """A part of a schema as a schema of its own: with what its references lead to."""
    if not isinstance(schema, dict):
        return schema is not False
    return {**{key: root[key] for key in ("$defs", "definitions") if key in root}, **schema}
