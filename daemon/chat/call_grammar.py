"""Calls by constrained decoding, in the model's own call format: whatever such a grammar admits, the parser reads as calls of
the tools on offer, with arguments that their schemas admit.

A grammar may hold from the beginning of an answer (`required`, named), where it may let a thought come first, or from the tag
with which a model begins a call (`strict` with `auto`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from daemon.chat.call_grammar_gemma import gemma_arguments
from daemon.chat.call_grammar_rules import Rules, either, literal, members, text_without
from daemon.chat.call_grammar_schemas import arguments_schema, cleaned_object, declared, unenforceable, with_definitions
from daemon.chat.call_grammar_values import TagStyle, tagged_arguments
from daemon.chat.coerce import Schema, quoted
from daemon.chat.json_values import plain_object
from daemon.chat.parsers import deepseek
from daemon.chat.parsing import Dialect, Format, visible_tokens
from daemon.chat.thought_marks import thought_marks
from daemon.chat.tool_schemas import Tool
from daemon.core.model import AddedToken

_GAP = "/[ \\n]{1,4}/?"
_PLAIN_NAME = re.compile(r"[^\s<>\"'`=(){}\[\],;:]+")
_PYTHON_NAME = re.compile(r"[\w.\-]+")
_HARMONY_TURN = "<|start|>assistant"
_HARMONY_CALL = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"


class Lead(Enum):
    """What may stand in front of what a grammar describes."""

    NOTHING = "nothing"
    """It begins at once."""
    BEHIND = "behind"
    """It begins behind a thought whose end the engine sees."""
    THOUGHT = "thought"
    """The model may begin with a thought."""
    REST = "rest"
    """The answer begins inside a thought whose end only its text tells."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool with the field its arguments were declared in, for errors. Those of a tool that is not `exact` may have any
    values.
    """

    tool: Tool
    where: str
    exact: bool = True


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a format writes calls: `opener`, `head`, calls with `join` between them, `closer`. Expressions but for `opener`."""

    opener: str
    calls: list[str]
    head: str = ""
    join: str = ""
    closer: str = ""
    many: bool = True


def reading_dialect(dialect: Dialect) -> Dialect:
    """The dialect in which forced calls are written and read: a model that knows no calls is made to write Hermes'."""
    return replace(dialect, format=Format.HERMES_JSON) if dialect.format is Format.PLAIN else dialect


def guidance_tokens(added: Iterable[AddedToken]) -> dict[str, int]:
    """Ids of the added tokens that llguidance takes for something else than their letters."""
    return {token.text: token.id for token in added if token.special or (token.text[:1] == "<" and token.text[-1:] == ">")}


class CallGrammars:
    """Writes the grammars of one model. `template` is its template for chats with tools, `tokens` the ids of those added tokens
    that no letters match (`guidance_tokens`).
    """

    def __init__(self, dialect: Dialect, template: str, tokens: Mapping[str, int]) -> None:
        self._dialect = dialect
        self._template = template
        visible = {*visible_tokens(reading_dialect(dialect))}
        self._tokens = {text: token for text, token in tokens.items() if text in visible}

    def opener(self) -> str | None:
        """The tag with which every call begins, if it is a token of its own and stands for nothing else."""
        if self._dialect.format is Format.PLAIN or deepseek.MARK in self._template:
            return None
        opener = _OPENERS.get(self._dialect.format, "")
        return opener if opener in self._tokens else None

    def calls(self, tools: Sequence[OfferedTool], *, one: bool, lead: Lead) -> str:
        """The grammar of an answer that consists of calls. Raises BadConstraint."""
        rules = Rules(self._tokens)
        shape = self._shape(rules, tools)
        opener = rules.text(shape.opener)
        return rules.grammar(f"{self._lead(rules, lead)} {opener} {_sequence(shape, opener, one=one)}")

    def begun_calls(self, tools: Sequence[OfferedTool], *, one: bool) -> str:
        """The grammar of what follows the first `opener`. Raises BadConstraint."""
        rules = Rules(self._tokens)
        shape = self._shape(rules, tools)
        return rules.grammar(_sequence(shape, rules.text(shape.opener), one=one))

    def content(self, schema: Mapping[str, object] | bool, *, lead: Lead) -> str:
        """The grammar of an answer that is a JSON document, whatever the model puts in front of visible text."""
        rules = Rules(self._tokens)
        document = rules.json(schema if isinstance(schema, bool) else plain_object(schema, "schema"))
        final = ""
        if self._dialect.format is Format.GPT_OSS:
            final = rules.text("<|channel|>final<|message|>")
        return rules.grammar(f"{self._lead(rules, lead)} {final} {document}")

    def _lead(self, rules: Rules, lead: Lead) -> str:
        """What may come before: white space, and with THOUGHT or REST a thought."""
        marks = thought_marks(self._dialect)
        harmony = self._dialect.format is Format.GPT_OSS
        if marks is None:
            return _GAP
        again = rules.text(_HARMONY_TURN) if harmony else _GAP
        rest = rules.closed(f"({text_without(re.escape(marks.end))})", marks.end)
        match lead:
            case Lead.NOTHING:
                return _GAP
            case Lead.BEHIND:
                return again
            case Lead.THOUGHT:
                return f"({_GAP} {rules.text(marks.begin)} {rest})? {again if harmony else _GAP}"
            case Lead.REST:
                return f"{rest} {again}"

    def _shape(self, rules: Rules, tools: Sequence[OfferedTool]) -> _Shape:
        form = self._dialect.format
        opener = _OPENERS.get(form, "")
        match form:
            case Format.PLAIN | Format.HERMES_JSON | Format.QWEN3_XML | Format.GLM | Format.GEMMA:
                return _Shape(opener, [_enveloped(rules, each, form) for each in tools], join=_GAP)
            case Format.MISTRAL if "[ARGS]" in self._template:
                return _Shape(opener, [_named(rules, each, "{}[ARGS]", "") for each in tools])
            case Format.MISTRAL:
                return _listed(opener, [_object(rules, each, "arguments", "") for each in tools])
            case Format.GPT_OSS:
                return _Shape("", [_named(rules, each, _HARMONY_CALL, "") for each in tools], many=False)
            case Format.LLAMA3_JSON:
                return _Shape("", [_object(rules, each, "parameters", "") for each in tools], many=False)
            case Format.PYTHONIC:
                return _listed("", [_python(rules, each) for each in tools])
            case Format.DEEPSEEK:
                return self._deepseek(rules, tools)
            case Format.MINIMAX:
                calls = [_element(rules, each, '<invoke name="{}">\n', _MINIMAX, "</invoke>\n") for each in tools]
                return _Shape(opener, calls, head=literal("\n"), closer=rules.text("</minimax:tool_call>"))

    def _deepseek(self, rules: Rules, tools: Sequence[OfferedTool]) -> _Shape:
        if deepseek.MARK in self._template:
            envelope = f"<{deepseek.ENVELOPE}>"
            begin, end = f'\n<{deepseek.MARK}invoke name="{{}}">\n', f"</{deepseek.MARK}invoke>"
            calls = [_element(rules, each, begin, _DEEPSEEK, end) for each in tools]
            return _Shape(envelope, calls, closer=rules.text(f"\n</{deepseek.ENVELOPE}>"))
        before, after = f"{deepseek.CALL}{{}}{deepseek.SEPARATOR}", deepseek.CALL_END
        if "```json" in self._template:
            before, after = f"{deepseek.CALL}function{deepseek.SEPARATOR}{{}}\n```json\n", f"\n```{deepseek.CALL_END}"
        calls = [_named(rules, each, before, after) for each in tools]
        return _Shape(deepseek.CALLS, calls, join=_GAP, closer=rules.text(deepseek.CALLS_END))


_OPENERS: Mapping[Format, str] = {
    Format.PLAIN: "<tool_call>",
    Format.HERMES_JSON: "<tool_call>",
    Format.QWEN3_XML: "<tool_call>",
    Format.GLM: "<tool_call>",
    Format.GEMMA: "<|tool_call>",
    Format.MISTRAL: "[TOOL_CALLS]",
    Format.MINIMAX: "<minimax:tool_call>",
    Format.DEEPSEEK: deepseek.CALLS,
}

_HEADER_NAME = re.compile(r"[^\s<>\"'`=(){}\[\]]+")
_QWEN = TagStyle(
    lambda name, _: f"<parameter={name}>\n", "\n</parameter>\n", r"</?(?:parameter|function|tool_call|think)", _HEADER_NAME
)
_GLM = TagStyle(
    lambda name, _: f"<arg_key>{name}</arg_key>\n<arg_value>",
    "</arg_value>\n",
    r"</?(?:arg_key|arg_value|tool_call|think)",
    _HEADER_NAME,
)
_MINIMAX = TagStyle(
    lambda name, _: f'<parameter name="{name}">',
    "</parameter>\n",
    r"</?(?:parameter|invoke|minimax:|tool_calls|think)",
    _HEADER_NAME,
)
_DEEPSEEK = TagStyle(
    lambda name, is_text: f'<{deepseek.MARK}parameter name="{name}" string="{"true" if is_text else "false"}">',
    f"</{deepseek.MARK}parameter>\n",
    f"</?(?:{deepseek.MARK}|think)",
    _HEADER_NAME,
)


def _sequence(shape: _Shape, opener: str, *, one: bool) -> str:
    call = either(shape.calls)
    again = f"{shape.join} {opener if shape.opener and not shape.closer else ''} {call}"
    more = "" if one or not shape.many else f"({again})*"
    return f"{shape.head} {call} {more} {shape.closer}"


def _listed(opener: str, calls: list[str]) -> _Shape:
    return _Shape(opener, calls, head=literal("["), join=literal(", "), closer=literal("]"))


def _arguments(rules: Rules, each: OfferedTool) -> str:
    """A rule for a call's arguments as JSON."""
    return rules.json(arguments_schema(each.tool, each.where) if each.exact else {"type": "object"})


def _held_to(each: OfferedTool) -> Tool:
    """The tool, with no more of its schema than the model is to be held to."""
    if each.exact:
        return replace(each.tool, parameters=cleaned_object(each.tool.parameters, each.where))
    names = Schema(dict(each.tool.parameters), each.tool.parameters).ordered_names()
    return replace(each.tool, parameters={"type": "object", "properties": dict.fromkeys(names, True)})


def _object(rules: Rules, each: OfferedTool, key: str, layout: str = "\n") -> str:
    """A call as one JSON object."""
    begin = f'{layout}{{"name": {quoted(each.tool.name)}, "{key}": '
    return rules.rule(f"{literal(begin)} {_arguments(rules, each)} {literal('}' + layout)}")


def _written(each: OfferedTool, names: re.Pattern[str]) -> str:
    """A tool's name where a format writes it bare. Raises BadConstraint."""
    name = each.tool.name
    if not names.fullmatch(name):
        where = each.where.removesuffix("parameters") + "name"
        raise unenforceable(where, f"{name!r} cannot be written in the model's call format")
    return name


def _named(rules: Rules, each: OfferedTool, before: str, after: str) -> str:
    """A call as a bare name and JSON arguments."""
    name = _written(each, _PLAIN_NAME)
    return rules.rule(f"{rules.text(before.format(name))} {_arguments(rules, each)} {rules.text(after)}")


def _element(rules: Rules, each: OfferedTool, before: str, style: TagStyle, after: str) -> str:
    """A call whose arguments stand between tags of their own."""
    begin = rules.text(before.format(_written(each, _PLAIN_NAME)))
    return rules.rule(f"{begin} {tagged_arguments(rules, _held_to(each), style, each.where)} {rules.text(after)}")


def _enveloped(rules: Rules, each: OfferedTool, form: Format) -> str:
    """A call with the tag that closes it, in the formats that put one tag before and one behind each call."""
    if form in {Format.PLAIN, Format.HERMES_JSON}:
        return rules.rule(f"{_object(rules, each, 'arguments')} {rules.text('</tool_call>')}")
    if form is Format.QWEN3_XML:
        return _element(rules, each, "\n<function={}>\n", _QWEN, "</function>\n</tool_call>")
    if form is Format.GLM:
        return _element(rules, each, "{}\n", _GLM, "</tool_call>")
    return _gemma(rules, each)


def _gemma(rules: Rules, each: OfferedTool) -> str:
    begin = rules.text(f"call:{_written(each, _PLAIN_NAME)}{{")
    return rules.rule(f"{begin} {gemma_arguments(rules, _held_to(each), each.where)} {rules.text('}<tool_call|>')}")


def _python(rules: Rules, each: OfferedTool) -> str:
    """A call as Python writes it. Values are JSON, which is read there as well."""
    tool = _held_to(each)
    parts: list[tuple[str, bool]] = []
    for name, schema, required in declared(tool, each.where):
        at = f"{each.where}.properties.{name}"
        if not _PYTHON_NAME.fullmatch(name):
            raise unenforceable(at, "this name cannot be written in the model's call format")
        value = rules.json(with_definitions(schema, tool.parameters))
        parts.append((rules.rule(f"{literal(name + '=')} {value}"), required))
    return rules.rule(f"{literal(_written(each, _PYTHON_NAME) + '(')} {members(parts, rules, ', ')} {literal(')')}")
