"""Whatever a call grammar admits is read as calls that the tools' schemas admit; what it cannot enforce is refused by name."""

import json
from collections.abc import Mapping
from functools import cache
from random import Random

import jsonschema
import pytest

from daemon.chat.call_grammar import CallGrammars, Lead, OfferedTool, guidance_tokens, reading_dialect
from daemon.chat.json_values import JsonValue
from daemon.chat.parsers import deepseek
from daemon.chat.parsers.formats import BRACKETS, CHANNEL, THINK
from daemon.chat.parsing import Dialect, Format, Message, build_parser, fold, visible_tokens
from daemon.chat.tool_schemas import Tool, parse_tools
from daemon.core.errors import BadConstraint
from daemon.core.events import Ending
from tests.chat.grammar_sampling import ByteTokens

ZOD_INTEGER = {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}
MIXED = {
    "type": "object",
    "properties": {
        "nullable": {"type": ["string", "null"]},
        "union": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "integer"}, {"type": "boolean"}]},
        "list": {"type": "array", "items": {"type": "string"}},
        "object": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": "boolean"}},
            "required": ["y"],
            "additionalProperties": False,
        },
        "text_or_list": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}, "maxItems": 3}]},
        "anything": {},
        "referred": {"$ref": "#/$defs/Flag"},
        "pattern": {"type": "string", "pattern": "^[a-z]{2,5}$"},
        "length": {"type": "string", "minLength": 3, "maxLength": 6},
        "choice": {"enum": ["auto", 5, None, True]},
        "constant": {"const": "x y"},
    },
    "required": ["union", "object", "referred"],
    "$defs": {"Flag": {"type": "boolean"}},
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": ZOD_INTEGER, "unit": {"enum": ["C", "F"]}},
    "required": ["city"],
    "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#",
}
MODELS: Mapping[str, tuple[Dialect, str]] = {
    "plain": (Dialect(Format.PLAIN, None), ""),
    "hermes": (Dialect(Format.HERMES_JSON, THINK), ""),
    "qwen": (Dialect(Format.QWEN3_XML, THINK), ""),
    "glm": (Dialect(Format.GLM, THINK), ""),
    "gemma": (Dialect(Format.GEMMA, CHANNEL), ""),
    "mistral": (Dialect(Format.MISTRAL, BRACKETS), "[ARGS]"),
    "mistral before v11": (Dialect(Format.MISTRAL, None), ""),
    "gpt-oss": (Dialect(Format.GPT_OSS, None), ""),
    "llama": (Dialect(Format.LLAMA3_JSON, None), ""),
    "pythonic": (Dialect(Format.PYTHONIC, None), ""),
    "deepseek v3.1": (Dialect(Format.DEEPSEEK, THINK), ""),
    "deepseek r1": (Dialect(Format.DEEPSEEK, THINK), "```json"),
    "deepseek v3.2": (Dialect(Format.DEEPSEEK, THINK), deepseek.MARK),
    "minimax": (Dialect(Format.MINIMAX, THINK), ""),
}


def tools_of(**schemas: object) -> tuple[Tool, ...]:
    """Tools by name with their parameters."""
    return parse_tools(
        [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in schemas.items()], "tools"
    )


TOOLS = tools_of(get_weather=WEATHER, nothing={"type": "object", "properties": {}}, mixed=MIXED)


def offered(tools: tuple[Tool, ...] = TOOLS, *, exact: bool = True) -> list[OfferedTool]:
    """Tools as the API offers them."""
    return [OfferedTool(tool, f"tools[{index}].function.parameters", exact) for index, tool in enumerate(tools)]


@cache
def model_of(name: str, *, tagged: bool) -> tuple[ByteTokens, CallGrammars]:
    """A tokenizer, with or without the format's tags as tokens, and the grammars for it."""
    dialect, template = MODELS[name]
    tokens = ByteTokens(visible_tokens(reading_dialect(dialect)) if tagged else ())
    return tokens, CallGrammars(dialect, template, guidance_tokens(tokens.added))


def read(name: str, text: str, tools: tuple[Tool, ...] = TOOLS) -> Message:
    """What the parser makes of an answer."""
    parser = build_parser(reading_dialect(MODELS[name][0]), tools, starts_in_reasoning=False)
    deltas = parser.feed(text)
    return fold(deltas, parser.finish(Ending.STOP))


def check(message: Message, text: str, tools: tuple[Tool, ...] = TOOLS) -> None:
    """Calls of tools on offer with valid arguments, and no visible text."""
    assert message.tool_calls, text
    assert message.content is None, text
    schemas = {tool.name: dict(tool.parameters) for tool in tools}
    for call in message.tool_calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_everything_a_grammar_admits_is_read_as_valid_calls(name: str, tagged: bool) -> None:
    """A player that chooses among the admitted tokens by chance, with and without thoughts, one call and several."""
    tokens, grammars = model_of(name, tagged=tagged)
    for seed in range(8):
        lead = Lead.THOUGHT if seed % 2 else Lead.NOTHING
        one = seed % 3 == 0
        text = tokens.play(grammars.calls(offered(), one=one, lead=lead), Random(seed))  # noqa: S311 - no secret
        message = read(name, text)
        check(message, text)
        assert not one or len(message.tool_calls) == 1, text


@pytest.mark.parametrize("name", [name for name in MODELS if model_of(name, tagged=True)[1].opener()])
def test_call_once_begun_is_held_to_its_schema(name: str) -> None:
    tokens, grammars = model_of(name, tagged=True)
    opener = grammars.opener()
    assert opener is not None
    grammar = grammars.begun_calls(offered(), one=False)
    for seed in range(4):
        text = opener + tokens.play(grammar, Random(seed))  # noqa: S311 - no secret
        check(read(name, text), text)


def test_calls_as_the_model_was_trained_to_write_them_are_admitted() -> None:
    tokens, grammars = model_of("qwen", tagged=True)
    grammar = grammars.calls(offered(), one=False, lead=Lead.BEHIND)
    call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew <b>York\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    assert tokens.follows(grammar, "\n\n" + call + "</function>\n</tool_call>")
    assert not tokens.follows(grammar, "\n\n" + call.replace("3", "three") + "</function>\n</tool_call>")
    assert not tokens.follows(grammar, "Let me see. " + call + "</function>\n</tool_call>")


def test_thought_comes_first_where_the_model_may_think() -> None:
    tokens, grammars = model_of("hermes", tagged=True)
    call = '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'
    thinking = grammars.calls(offered(), one=True, lead=Lead.THOUGHT)
    assert tokens.follows(thinking, f"<think>\nHm, <tool or not?\n</think>\n\n{call}")
    assert tokens.follows(thinking, call)
    assert not tokens.follows(grammars.calls(offered(), one=True, lead=Lead.NOTHING), f"<think>\n</think>\n\n{call}")
    tokens, grammars = model_of("hermes", tagged=False)
    assert tokens.follows(grammars.calls(offered(), one=True, lead=Lead.REST), f"Hm, maybe.</think>\n\n{call}")


def test_document_comes_behind_the_thought_and_in_the_final_channel() -> None:
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tokens, grammars = model_of("qwen", tagged=True)
    assert tokens.follows(grammars.content(schema, lead=Lead.THOUGHT), '<think>well</think>\n\n{"a": 1}')
    tokens, grammars = model_of("gpt-oss", tagged=True)
    behind = '<|start|>assistant<|channel|>final<|message|>{"a": 1}'
    assert tokens.follows(grammars.content(schema, lead=Lead.BEHIND), behind)
    assert tokens.follows(grammars.content(schema, lead=Lead.THOUGHT), "<|channel|>analysis<|message|>well<|end|>" + behind)


@pytest.mark.parametrize(
    ("name", "schema", "field"),
    [
        ("hermes", {"properties": {"a": {"not": {"type": "string"}}}}, "properties.a.not"),
        ("hermes", {"properties": {"a": {"type": "array", "uniqueItems": True}}}, "properties.a.uniqueItems"),
        ("qwen", {"properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 2}]}}}, "properties.a.allOf"),
        ("qwen", {"anyOf": [{"required": ["a"]}], "properties": {"a": {}}}, "anyOf"),
        ("qwen", {"properties": {"a b": {"type": "string"}}}, "properties.a b"),
        ("glm", {"properties": {"a": {"enum": ["</arg_value>"]}}}, "properties.a.enum"),
        ("gemma", {"properties": {"a": {"type": "object", "minProperties": 1}}}, "properties.a.minProperties"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(name: str, schema: dict[str, object], field: str) -> None:
    _, grammars = model_of(name, tagged=True)
    tools = tools_of(tool={"type": "object", **schema})
    with pytest.raises(BadConstraint) as refused:
        grammars.calls(offered(tools), one=True, lead=Lead.NOTHING)
    assert refused.value.param == f"tools[0].function.parameters.{field}"
    grammars.calls(offered(tools_of(tool={"type": "object"})), one=True, lead=Lead.NOTHING)


def test_remarks_in_schemas_are_no_reason_to_refuse() -> None:
    """What zod, pydantic and OpenAPI write beside what they mean."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "format": "int64", "nullable": True, "example": 3, "title": "A"},
            "b": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
            "c": {"oneOf": [{"type": "string", "format": "binary"}, {"type": "null"}], "default": None},
        },
        "required": ["a", "b", "c"],
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    }
    tools = tools_of(tool=schema)
    for name in ("hermes", "qwen", "mistral"):
        tokens, grammars = model_of(name, tagged=True)
        text = tokens.play(grammars.calls(offered(tools), one=True, lead=Lead.NOTHING), Random(1))  # noqa: S311 - no secret
        check(read(name, text, tools), text, tools)


def test_tool_that_is_not_strict_may_have_any_values() -> None:
    tools = tools_of(tool={"type": "object", "properties": {"a": {"not": {"type": "string"}}}})
    tokens, grammars = model_of("qwen", tagged=True)
    begun = grammars.begun_calls(offered(tools, exact=False), one=True)
    assert tokens.follows(begun, "\n<function=tool>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>")
