"""Writing grammars in llguidance's Lark: rules and terminals with names of their own, and texts in which control tokens count.

A tag that is a token of its own must be asked for by its id: as letters it would be another text to the model, and letters
never match such a token.
"""

import json
import re
from collections.abc import Mapping

from daemon.chat.json_values import JsonObject

WHITESPACE = r"[ \n\t]{0,24}"
"""Between the parts of a JSON document; bounded, because a model that has lost its way would say blanks for ever."""


class Rules:
    """Collects the rules of one grammar. `tokens` are the ids of the tags that are tokens of their own."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        self._lines: list[str] = []
        ordered = sorted(tokens, key=len, reverse=True)
        self._tags = re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if ordered else None

    def text(self, text: str) -> str:
        """An expression for exactly this text."""
        parts = self._tags.split(text) if self._tags is not None else [text]
        return " ".join(f"<[{self._tokens[part]}]>" if part in self._tokens else literal(part) for part in parts if part)

    def closed(self, body: str, closing: str) -> str:
        """An expression for text, the body of a terminal, up to and with a closing text. As far as letters go, the two are one
        terminal: a grammar does not look back, and the text would swallow its own end.
        """
        before, *rest = self._tags.split(closing, maxsplit=1) if self._tags is not None else [closing]
        terminal = self.terminal(f"{body} {literal(before)}" if before else body)
        return f"{terminal} {self.text(''.join(rest))}"

    def rule(self, body: str) -> str:
        """A rule; its name."""
        return self._add("r", body)

    def terminal(self, body: str) -> str:
        """A terminal, which is read as one piece; its name."""
        return self._add("T", body)

    def json(self, schema: JsonObject | bool) -> str:
        """A rule for JSON text that a schema admits; its name."""
        whole: dict[str, object] = {} if schema is True else dict(schema or {"not": {}})
        guidance = {"whitespace_pattern": WHITESPACE, "coerce_one_of": True}
        return self._add("r", "%json " + json.dumps({**whole, "x-guidance": guidance}, ensure_ascii=False))

    def grammar(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *self._lines]) + "\n"

    def _add(self, stem: str, body: str) -> str:
        name = f"{stem}{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name


def literal(text: str) -> str:
    """A literal in Lark."""
    return json.dumps(text, ensure_ascii=False)


def regex(pattern: str) -> str:
    """A regular expression in Lark."""
    return "/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern.replace("\n", r"\n")) + "/"


def either(expressions: list[str]) -> str:
    """One of several expressions."""
    return expressions[0] if len(expressions) == 1 else "(" + " | ".join(expressions) + ")"


def text_without(forbidden: str) -> str:
    """The body of a terminal: any text in which the regular expression `forbidden` is not found. No carriage returns, which
    readers of tagged values take for layout.
    """
    return r"/[^\r]*/ & ~" + regex(f"(?s:.*)(?:{forbidden})(?s:.*)")


def members(parts: list[tuple[str, bool]], rules: Rules, comma: str = ",") -> str:
    """Expressions in their order with commas between them; those not required may be left out."""
    tails = [""]
    for expression, required in reversed(parts):
        follower = f"{literal(comma)} {expression}"
        tails.append(rules.rule(f"{follower if required else f'({follower})?'} {tails[-1]}"))
    tails.reverse()
    heads: list[str] = []
    for index, (expression, required) in enumerate(parts):
        heads.append(f"{expression} {tails[index + 1]}")
        if required:
            return either(heads)
    return f"({either(heads)})?" if heads else ""
