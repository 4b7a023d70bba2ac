"""Gemma 4's calls: `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:2}<tool_call|>`.

Keys are bare, and strings stand between delimiters of their own in which nothing is escaped. Models drift: they forget the
opening delimiter or a bracket, quote as other languages do, or write `=` for `:`.
"""

import re
from collections.abc import Callable

from daemon.chat.coerce import JsonType, Schema, escaped, json_of_text, quoted
from daemon.chat.json_values import clean_text, decode_json
from daemon.chat.parsers.cursor import Cursor, Steps
from daemon.chat.parsers.desk import Arguments, Desk, Verdict
from daemon.chat.parsers.loose_json import nowhere, strict_json

OPENER = "<|tool_call>"
CLOSER = "<tool_call|>"
DELIMITER = '<|"|>'

_CALL = "call:"
_NAME = re.compile(r"[^\s<>\"'`{}()\[\],;=]+")
_KEY = re.compile(r"[\w.\-$@/]+")
_TEXT = re.compile(r"[^<]+")
_BARE = re.compile(r"[^<,{}\[\]]+")
_QUOTED = {'"': re.compile(r'[^"]+'), "'": re.compile(r"[^']+")}
_ESCAPED_PAIR = re.compile(r"\\.")
_MAX_NAME = 256
_MAX_DEPTH = 64
_SCALARS = Schema({"type": ["number", "boolean", "null", "string"]}, {})


class Gemma:
    """Reads calls behind the tag, or a bare `call:NAME{…}` of a declared tool."""

    def parse(self, opener: str, desk: Desk) -> Steps[Verdict]:
        """See CallParser."""
        cursor = desk.cursor
        if not opener and not (yield from cursor.match((_CALL,))):
            cursor.take(1)
            return Verdict.TEXT
        while True:
            yield from cursor.spaces()
            yield from cursor.skip(_CALL)
            verdict = yield from self._call(desk, bare=not opener)
            if verdict is not Verdict.DONE:
                return verdict
            yield from cursor.spaces()
            if (yield from cursor.skip(CLOSER)) or not (yield from cursor.match((_CALL,))):
                return Verdict.DONE

    def _call(self, desk: Desk, *, bare: bool) -> Steps[Verdict]:
        cursor = desk.cursor
        name = yield from cursor.gather(_NAME, _MAX_NAME)
        yield from cursor.spaces()
        declared = desk.tools.declared(name)
        if not name or (bare and not declared):
            return Verdict.CUT if cursor.done and (not name or desk.tools.begins_declared(name)) else Verdict.TEXT
        if not (yield from cursor.skip("{")):
            if declared and not bare and (yield from cursor.match((CLOSER,))):
                desk.complete(desk.open(name))
                return Verdict.DONE
            return Verdict.CUT if cursor.done else Verdict.TEXT
        arguments = desk.open(name)
        verdict = yield from _Values(cursor).arguments(arguments)
        if verdict is Verdict.DONE:
            desk.complete(arguments)
        return verdict


class _Values:
    """Reads Gemma's values and writes them as JSON."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._key: str | None = None  # a key that was consumed while looking for the end of a bare value

    def arguments(self, arguments: Arguments) -> Steps[Verdict]:
        """A call's arguments; the opening brace is consumed."""

        def begin(name: str) -> Callable[[str], None]:
            if name in arguments.seen:
                return nowhere
            arguments.key(name)
            return arguments.write

        return (yield from self._members(arguments.schema, begin, 0))

    def _members(self, schema: Schema, begin: Callable[[str], Callable[[str], None]], depth: int) -> Steps[Verdict]:
        """Members of an object up to its closing brace. `begin` is told each name when its value is sure to come."""
        cursor = self._cursor
        while True:
            yield from cursor.spaces()
            if self._key is None:
                if (yield from cursor.skip("}")) or (yield from cursor.match((CLOSER,))):
                    return Verdict.DONE
                self._key = yield from self._next_key()
                if not self._key:
                    return Verdict.CUT if cursor.done else Verdict.BROKEN
            name, self._key = self._key, None
            yield from cursor.spaces()
            if not (yield from cursor.peek()):
                return Verdict.CUT
            verdict = yield from self._value(schema.property(name), lambda name=name: begin(name), depth, in_object=True)
            if verdict is not Verdict.DONE:
                return verdict
            yield from cursor.spaces()
            if self._key is None and not (yield from cursor.skip(",")) and not (yield from cursor.match(("}", CLOSER))):
                return Verdict.CUT if cursor.done else Verdict.BROKEN

    def _next_key(self) -> Steps[str]:
        """A key with its colon; empty where there is none."""
        cursor = self._cursor
        quote = yield from cursor.match((DELIMITER, '"', "'"))
        cursor.take(len(quote))
        name = yield from cursor.gather(_KEY, _MAX_NAME)
        if quote:
            yield from cursor.skip(quote)
        yield from cursor.spaces()
        if (yield from cursor.skip(":")) or (yield from cursor.skip("=")):
            return name
        return ""

    def _value(
        self, schema: Schema, begin: Callable[[], Callable[[str], None]], depth: int, *, in_object: bool
    ) -> Steps[Verdict]:
        cursor = self._cursor
        if (yield from cursor.skip(DELIMITER)):
            return (yield from self._delimited(schema, begin))
        first = yield from cursor.peek()
        if first in {"{", "["}:
            if depth >= _MAX_DEPTH:
                return Verdict.BROKEN
            cursor.take(1)
            out = begin()
            return (yield from self._object(schema, out, depth) if first == "{" else self._array(schema, out, depth))
        if first in _QUOTED:
            text = yield from self._quoted(first, in_object=in_object)
        else:
            text = yield from self._bare(in_object=in_object)
        if text is None:
            return Verdict.CUT
        begin()(_typed(text, schema, is_string=first in _QUOTED))
        return Verdict.DONE

    def _object(self, schema: Schema, out: Callable[[str], None], depth: int) -> Steps[Verdict]:
        names = 0
        out("{")

        def begin(name: str) -> Callable[[str], None]:
            nonlocal names
            out((", " if names else "") + quoted(name) + ": ")
            names += 1
            return out

        verdict = yield from self._members(schema, begin, depth + 1)
        if verdict is Verdict.DONE:
            out("}")
        return verdict

    def _array(self, schema: Schema, out: Callable[[str], None], depth: int) -> Steps[Verdict]:
        cursor = self._cursor
        items = schema.items()
        out("[")
        lead = ""
        while True:
            yield from cursor.spaces()
            if (yield from cursor.skip("]")) or (yield from cursor.match((CLOSER,))):
                out("]")
                return Verdict.DONE
            if cursor.done:
                return Verdict.CUT
            out(lead)
            lead = ", "
            verdict = yield from self._value(items, lambda: out, depth + 1, in_object=False)
            if verdict is not Verdict.DONE:
                return verdict
            yield from cursor.spaces()
            if not (yield from cursor.skip(",")) and not (yield from cursor.match(("]", CLOSER))):
                return Verdict.CUT if cursor.done else Verdict.BROKEN

    def _delimited(self, schema: Schema, begin: Callable[[], Callable[[str], None]]) -> Steps[Verdict]:
        """Text up to the closing delimiter, as it arrives where it is a string."""
        cursor = self._cursor
        held: list[str] = []
        out = None
        brackets = ""  # at the end of the text so far: the call's own, if its tag closes before the delimiter
        if JsonType.STRING in schema.types:
            out = begin()
            out('"')
        while True:
            text = cursor.run(_TEXT)
            if not text:
                if not (yield from cursor.peek()):
                    return Verdict.CUT
                if (yield from cursor.match((CLOSER,))):
                    brackets = ""
                    break
                if (yield from cursor.skip(DELIMITER)):
                    break
                text = cursor.take(1)
            text = brackets + text
            kept = text[: max(len(text.rstrip("}]")), len(text) - _MAX_DEPTH)]
            brackets = text[len(kept) :]
            if out:
                out(escaped(kept))
            else:
                held.append(kept)
        (out or held.append)(brackets)
        if out:
            out('"')
        else:
            whole = "".join(held)
            begin()(json_of_text(whole, schema, strict_json) or quoted(whole))
        return Verdict.DONE

    def _quoted(self, quote: str, *, in_object: bool) -> Steps[str | None]:
        """Text in ordinary quotes: the closing one is that behind which the object or array goes on. None: cut off."""
        cursor = self._cursor
        cursor.take(1)
        parts: list[str] = []
        while True:
            text = yield from cursor.gather(_QUOTED[quote], None)
            parts.append(text)
            if cursor.done:
                return None
            cursor.take(1)
            spaces = yield from cursor.spaces()
            if cursor.done or (yield from cursor.match(("}", "]", CLOSER))):
                break
            if (yield from cursor.match((",",))):
                if not in_object:
                    break
                tail = yield from self._behind_comma()
                if tail is None:
                    break
                spaces += tail
            parts.append(quote + spaces)
        text = "".join(parts)
        return _unescaped(text) if quote == '"' else text

    def _bare(self, *, in_object: bool) -> Steps[str | None]:
        """Text without an opening delimiter: up to a lone closing one, or to where the object or array goes on."""
        cursor = self._cursor
        parts: list[str] = []
        while True:
            parts.append((yield from cursor.gather(_BARE, None)))
            if cursor.done:
                return None
            if (yield from cursor.skip(DELIMITER)) or (yield from cursor.match((CLOSER,))):
                break
            if (yield from cursor.match(("}" if in_object else "]",))):
                break
            if (yield from cursor.match((",",))):
                if not in_object:
                    break
                tail = yield from self._behind_comma()
                if tail is None:
                    break
                parts.append(tail)
                continue
            parts.append(cursor.take(1))
        return "".join(parts).strip()

    def _behind_comma(self) -> Steps[str | None]:
        """Consume a comma and decide whether a member follows: None if so (its key is consumed), else the text it all is."""
        cursor = self._cursor
        recorder = cursor.record()
        cursor.take(1)
        yield from cursor.spaces()
        key = yield from self._next_key()
        cursor.forget(recorder)
        if key:
            self._key = key
            return None
        return recorder.text


def _typed(text: str, schema: Schema, *, is_string: bool) -> str:
    """The JSON of a value that stood without delimiters."""
    if is_string and JsonType.STRING in schema.types:
        return quoted(text)
    if not schema.declared:
        schema = _SCALARS
    return json_of_text(text, schema, strict_json) or quoted(text)


def _unescaped(text: str) -> str:
    """Text between double quotes, where models write JSON's escapes; as it stands where it is no JSON."""
    if not _ESCAPED_PAIR.search(text):
        return text
    decoded = decode_json(f'"{text}"')
    return clean_text(decoded) if isinstance(decoded, str) else text
