"""Types of arguments, read from JSON Schema."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chat.coerce import ANY, JsonType, Schema, json_of_scalar, json_of_text, resolve
from daemon.chat.json_values import JsonObject, JsonValue
from daemon.chat.parsers.loose_json import strict_json


def place(schema: JsonValue, root: JsonObject | None = None) -> Schema:
    return Schema(schema, root or {})


@pytest.mark.parametrize(
    ("schema", "raw", "expected"),
    [
        ({"type": "string"}, "02134", '"02134"'),
        ({"type": "string"}, "true", '"true"'),
        ({"type": "string"}, "null", '"null"'),
        ({"type": "string"}, "", '""'),
        ({"type": "integer"}, "007", "7"),
        ({"type": "integer"}, "-0", "0"),
        ({"type": "integer"}, "+3", "3"),
        ({"type": "integer"}, "5.0", "5"),
        ({"type": "integer"}, "1e3", "1000"),
        ({"type": "integer"}, "5.5", '"5.5"'),
        ({"type": "integer"}, "1e99", '"1e99"'),
        ({"type": "integer"}, "1e99999999999999999999", '"1e99999999999999999999"'),
        ({"type": "integer"}, "1_000", '"1_000"'),
        ({"type": "integer"}, " 5 ", "5"),
        ({"type": "integer"}, "", None),
        ({"type": "integer"}, "None", "null"),
        ({"type": "number"}, "3.140", "3.140"),
        ({"type": "number"}, ".5", "0.5"),
        ({"type": "number"}, "5.", "5.0"),
        ({"type": "number"}, "+05.5e2", "5.5e2"),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "FALSE", "false"),
        ({"type": "boolean"}, "yes", '"yes"'),
        ({"type": "array"}, "[1, 'a', None,]", '[1, "a", null]'),
        ({"type": "array"}, "a, b", '"a, b"'),
        ({"type": "array"}, '"[1]"', "[1]"),
        ({"type": "object"}, "[1]", '"[1]"'),
        ({"type": "object"}, '{"a": {}} x', '"{\\"a\\": {}} x"'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "None", '"None"'),
        ({"type": ["integer", "null"]}, "None", "null"),
        ({"type": ["string", "integer"]}, "10", "10"),
        ({"type": ["string", "integer"]}, "010a", '"010a"'),
        ({"type": ["string", "object"]}, "{not json", '"{not json"'),
        ({"type": "string", "nullable": True}, "null", "null"),
        ({"enum": ["1", 2]}, "1", '"1"'),
        ({"enum": ["1", 2]}, "2", "2"),
        ({"const": 5}, "5", "5"),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, '{"a": 1}', '{"a": 1}'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "8080", '"8080"'),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": "integer"}]}, "4", "4"),
        ({"properties": {"a": {}}}, '{"a": 1}', '{"a": 1}'),
        ({"items": {}}, "[1]", "[1]"),
        ({"description": "anything"}, "5", '"5"'),
        ({"description": "anything"}, '{"a": 1}', '{"a": 1}'),
        (True, "[1]", "[1]"),
    ],
)
def test_text_becomes_what_the_schema_asks_for(schema: JsonValue, raw: str, expected: str | None) -> None:
    assert json_of_text(raw, place(schema), strict_json) == expected


@pytest.mark.parametrize(
    ("schema", "literal", "expected"),
    [
        ({"type": "integer"}, "5.0", "5"),
        ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "number"}, "5.0", "5.0"),
        ({"type": "string"}, "2134", '"2134"'),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, "true", "true"),
        (True, "1", "1"),
    ],
)
def test_a_json_scalar_is_fitted_to_its_place(schema: JsonValue, literal: str, expected: str) -> None:
    assert json_of_scalar(literal, place(schema)) == expected


ROOT: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "limit": {"$ref": "#/$defs/Limit"},
        "a/b": {"$ref": "#/properties/limit"},
        "loop": {"$ref": "#/properties/loop"},
    },
    "$defs": {
        "Limit": {"allOf": [{"$ref": "#/$defs/Whole"}]},
        "Whole": {"type": "integer"},
        "Point": {"type": "object", "properties": {"x": {"type": "number"}}},
        "More": {"additionalProperties": {"type": "boolean"}},
    },
}


def test_references_are_followed_through_others() -> None:
    schema = Schema(ROOT, ROOT)
    assert schema.property("limit").types == {JsonType.INTEGER}
    assert schema.property("a/b").types == {JsonType.INTEGER}
    assert resolve("#/properties/a~1b", ROOT) == {"$ref": "#/properties/limit"}


def test_an_endless_reference_admits_everything() -> None:
    assert Schema(ROOT, ROOT).property("loop").types == ANY
    twice: dict[str, JsonValue] = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "string"}]}
    assert Schema(twice, twice).types == ANY
    assert Schema(twice, twice).names() == frozenset()


def test_a_reference_to_nowhere_admits_everything() -> None:
    for reference in ("#/$defs/None", "other.json", "#/$defs/Whole/type/0"):
        assert place({"$ref": reference}, ROOT).types == ANY


def test_properties_are_found_in_every_branch() -> None:
    schema = place({"oneOf": [{"$ref": "#/$defs/Point"}, {"properties": {"y": {"type": "string"}}}]}, ROOT)
    assert schema.ordered_names() == ["y", "x"]
    assert schema.property("x").types == {JsonType.NUMBER, JsonType.INTEGER}
    assert not schema.property("z").declared
    assert place({"$ref": "#/$defs/More"}, ROOT).property("z").types == {JsonType.BOOLEAN}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(json_values, st.sampled_from([None, 2]))
def test_well_formed_json_keeps_its_value(value: JsonValue, indent: int | None) -> None:
    for ascii_only in (False, True):
        strict = strict_json(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
        assert strict is not None
        assert json.loads(strict) == value


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="{}[]\":,'\\ntrue1e-. x", max_size=40))
def test_what_is_called_json_is_json(text: str) -> None:
    strict = strict_json(text)
    if strict is not None:
        json.loads(strict)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30), json_values)
def test_no_text_and_no_schema_raises(raw: str, schema: JsonValue) -> None:
    found = json_of_text(raw, place(schema), strict_json)
    if found is not None:
        json.loads(found)
