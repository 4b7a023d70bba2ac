"""Grammars for arguments that stand between tags as bare text (Qwen, GLM, MiniMax, DeepSeek V3.2).

A string is written as it is, everything else as JSON. What is written must be read as what the schema admits, so:

1. A text never contains the tags of its own format.
2. Where a schema admits strings and other things, a text that would be read as one of those is written only as such.
3. What closes a text is part of its terminal, as far as it is letters (`Rules.closed`).
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from daemon.chat.call_grammar_rules import Rules, either, literal, regex, text_without
from daemon.chat.call_grammar_schemas import branches, declared, unenforceable, with_definitions
from daemon.chat.coerce import ANY, JsonType, Schema
from daemon.chat.json_values import JsonObject, JsonValue
from daemon.chat.tool_schemas import Tool

_CONTAINERS = frozenset({JsonType.ARRAY, JsonType.OBJECT})
_READ_OTHERWISE = r"\s*(?:(?i:true|false|null|none)|[+\-]?[0-9.][0-9.eE+\-]*)\s*"
"""Texts that are read as something else where the schema admits it."""
_BRACKET = r"\s*[\[{](?s:.*)"
_PLAIN_SCALARS = {
    JsonType.NULL: "null",
    JsonType.BOOLEAN: "true|false",
    JsonType.INTEGER: "-?(?:0|[1-9][0-9]{0,15})",
    JsonType.NUMBER: r"-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,15})?",
}
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})


@dataclass(frozen=True, slots=True)
class TagStyle:
    """How a format writes an argument."""

    opens: Callable[[str, bool], str]
    """The tag before a value, for its name and whether a string may follow."""
    closes: str
    """What follows a value."""
    forbidden: str
    """A regular expression for what a text must not contain."""
    name: re.Pattern[str]
    """What names can be written."""


def tagged_arguments(rules: Rules, tool: Tool, style: TagStyle, where: str) -> str:
    """An expression for a tool's arguments in their declared order; those not required may be left out. Raises BadConstraint."""
    parts: list[str] = []
    for name, schema, required in declared(tool, where):
        at = f"{where}.properties.{name}"
        if not style.name.fullmatch(name):
            raise unenforceable(at, "this name cannot be written in the model's call format")
        whole = _argument(rules, name, schema, tool.parameters, style, at)
        parts.append(whole if required else f"({whole})?")
    return " ".join(parts)


def _argument(rules: Rules, name: str, schema: JsonValue, root: JsonObject, style: TagStyle, where: str) -> str:
    texts = _Texts(style, Schema(schema, root), where)
    for branch in branches(schema, root, where):
        texts.add(branch, Schema(branch, root).types)
    opens = rules.text(style.opens(name, bool(texts.bodies)))
    if not texts.bodies:
        value = rules.json(with_definitions(schema, root))
        return rules.rule(f"{opens} {value} {rules.text(style.closes)}")
    ways = [rules.closed(either(texts.bodies), style.closes)]
    if texts.containers:
        inner: JsonObject = {"anyOf": list(texts.containers)}
        ways.append(f"{rules.json(with_definitions(dict(inner), root))} {rules.text(style.closes)}")
    return rules.rule(f"{opens} {either(ways)}")


class _Texts:
    """The ways to write a value as text, collected from the branches of its schema. `schema` is the whole."""

    def __init__(self, style: TagStyle, schema: Schema, where: str) -> None:
        self._style = style
        self._schema = schema
        self._where = where
        self._scalars: list[str] = []
        self._strings: list[str] = []
        self.containers: list[dict[str, JsonValue]] = []

    @property
    def bodies(self) -> list[str]:
        """Bodies of terminals; none where no string is admitted, so that JSON does for everything."""
        return [*self._strings, *self._scalars] if self._strings else []

    def add(self, branch: dict[str, JsonValue], types: frozenset[JsonType]) -> None:
        """Take a branch, which admits `types`. Raises BadConstraint."""
        values = branch["enum"] if isinstance(branch.get("enum"), list) else [branch["const"]] if "const" in branch else None
        if isinstance(values, list):
            for value in values:
                self._add_value(value)
            return
        if JsonType.STRING in types:
            self._strings.append(self._free(branch))
        if types == ANY:
            return
        if types & _CONTAINERS:
            names: list[JsonValue] = [kind.value for kind in sorted(types & _CONTAINERS, key=lambda kind: kind.value)]
            self.containers.append({**branch, "type": names})
        if not branch.keys() & _BOUNDS:
            self._scalars += [f"/{pattern}/" for kind, pattern in _PLAIN_SCALARS.items() if kind in types]

    def _add_value(self, value: JsonValue) -> None:
        if isinstance(value, str):
            if re.search(self._style.forbidden, value) or "\r" in value:
                raise unenforceable(f"{self._where}.enum", f"{value!r} cannot be written in the model's call format")
            self._strings.append(literal(value) if value else "/(?:)/")
        elif isinstance(value, dict | list):
            self.containers.append({"enum": [value]})
        else:
            self._scalars.append(literal(json.dumps(value)))

    def _free(self, branch: dict[str, JsonValue]) -> str:
        """Any text, within the limits of the branch, that is read as one."""
        parts = [free_text(branch, self._style.forbidden)]
        types = self._schema.types
        if types not in (ANY, frozenset({JsonType.STRING})):
            parts.append("~" + regex(_READ_OTHERWISE))
            if types & _CONTAINERS:
                parts.append("~" + regex(_BRACKET))
        return "(" + " & ".join(parts) + ")"


def free_text(branch: dict[str, JsonValue], forbidden: str) -> str:
    """The body of a terminal: any text without `forbidden`, within the limits a schema sets for strings."""
    parts = [text_without(forbidden)]
    least, most = branch.get("minLength"), branch.get("maxLength")
    if isinstance(least, int) or isinstance(most, int):
        upper = most if isinstance(most, int) else ""
        parts.append(regex(f"(?s:.{{{least if isinstance(least, int) else 0},{upper}}})"))
    pattern = branch.get("pattern")
    if isinstance(pattern, str):
        parts.append(regex(_whole(pattern)))
    return "(" + " & ".join(f"({part})" for part in parts) + ")"


def _whole(pattern: str) -> str:
    """A pattern that is searched for, as one that matches the whole."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[begins : len(pattern) - ends]
    return f"{'' if begins else '(?s:.*)'}(?:{inner}){'' if ends else '(?s:.*)'}"
