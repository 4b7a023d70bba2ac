"""Grammars for Gemma's arguments: bare keys, strings between delimiters of their own, objects and arrays in between."""

import json
import re

from daemon.chat.call_grammar_rules import Rules, either, literal, members
from daemon.chat.call_grammar_schemas import branches, declared, unenforceable, with_definitions
from daemon.chat.call_grammar_values import free_text
from daemon.chat.coerce import JsonType, Schema
from daemon.chat.json_values import JsonObject, JsonValue
from daemon.chat.parsers.gemma import CLOSER, DELIMITER
from daemon.chat.tool_schemas import Tool

_FORBIDDEN = f"{re.escape(DELIMITER)}|{re.escape(CLOSER)}"
_KEY = re.compile(r"[A-Za-z0-9_.\-$@/]+")
_ANY_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,40}/"
_SCALARS = (JsonType.INTEGER, JsonType.NUMBER, JsonType.BOOLEAN, JsonType.NULL)
_Node = dict[str, JsonValue]


def gemma_arguments(rules: Rules, tool: Tool, where: str) -> str:
    """An expression for a tool's arguments without the braces. Raises BadConstraint."""
    writer = _Writer(rules, tool.parameters)
    return members([(writer.member(name, schema, where), required) for name, schema, required in declared(tool, where)], rules)


class _Writer:
    """Writes the values of one tool; `root` is where references lead."""

    def __init__(self, rules: Rules, root: JsonObject) -> None:
        self._rules = rules
        self._root = root

    def member(self, name: str, schema: JsonValue, where: str) -> str:
        """A key with its value."""
        at = f"{where}.properties.{name}"
        if not _KEY.fullmatch(name):
            raise unenforceable(at, "this name cannot be written in the model's call format")
        return self._rules.rule(f"{literal(name + ':')} {self._value(schema, at)}")

    def _value(self, schema: JsonValue, where: str) -> str:
        ways: list[str] = []
        for branch in branches(schema, self._root, where):
            ways += self._ways(branch, where)
        return self._rules.rule(either(ways))

    def _ways(self, branch: _Node, where: str) -> list[str]:
        if "enum" in branch or "const" in branch:
            listed = branch.get("enum")
            return [self._known(value, where) for value in (listed if isinstance(listed, list) else [branch.get("const")])]
        types = Schema(branch, self._root).types
        ways: list[str] = []
        if JsonType.STRING in types:
            text = self._rules.closed(free_text(branch, _FORBIDDEN), DELIMITER)
            ways.append(f"{self._rules.text(DELIMITER)} {text}")
        scalars: list[JsonValue] = [kind.value for kind in _SCALARS if kind in types]
        if scalars:
            ways.append(self._rules.json(with_definitions({**branch, "type": scalars}, self._root)))
        if JsonType.ARRAY in types:
            ways.append(self._array(branch, where))
        if JsonType.OBJECT in types:
            ways.append(self._object(branch, where))
        return ways

    def _known(self, value: JsonValue, where: str) -> str:
        if isinstance(value, dict | list) or (isinstance(value, str) and re.search(_FORBIDDEN, value)):
            raise unenforceable(f"{where}.enum", "this value cannot be written in the model's call format")
        if isinstance(value, str):
            return self._rules.text(f"{DELIMITER}{value}{DELIMITER}")
        return literal(json.dumps(value))

    def _array(self, branch: _Node, where: str) -> str:
        for key in ("prefixItems", "contains", "uniqueItems"):
            if branch.get(key):
                raise unenforceable(f"{where}.{key}")
        item = self._value(branch.get("items", {"type": "string"}), f"{where}.items")
        least, most = branch.get("minItems"), branch.get("maxItems")
        low = least if isinstance(least, int) else 0
        if most == 0:
            return literal("[]")
        upper = most - 1 if isinstance(most, int) else ""
        more = f'("," {item}){{{max(low - 1, 0)},{upper}}}'
        return f"{literal('[')} {item} {more} {literal(']')}" if low else f"{literal('[')} ({item} {more})? {literal(']')}"

    def _object(self, branch: _Node, where: str) -> str:
        for key in ("minProperties", "maxProperties", "patternProperties"):
            if branch.get(key):
                raise unenforceable(f"{where}.{key}")
        named, required, others = branch.get("properties"), branch.get("required"), branch.get("additionalProperties")
        needed = required if isinstance(required, list) else []
        if isinstance(named, dict) and named:
            parts = [(self.member(name, schema, where), name in needed) for name, schema in named.items()]
            return f"{literal('{')} {members(parts, self._rules)} {literal('}')}"
        if needed:
            raise unenforceable(f"{where}.required")
        if others is False:
            return literal("{}")
        value = self._value(others if isinstance(others, dict) else {"type": "string"}, f"{where}.additionalProperties")
        pair = self._rules.rule(f'{self._rules.terminal(_ANY_KEY)} ":" {value}')
        return f'{literal("{")} ({pair} ("," {pair})*)? {literal("}")}'
