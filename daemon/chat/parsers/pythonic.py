"""Calls written as Python: `[get_weather(city="Oslo", days=2), …]`, in Llama 4's tags or bare. JSON objects in the same places
are read too: Llama 4's template asks for either.
"""

import re
from collections.abc import Callable

from daemon.chat.coerce import escaped, json_of_scalar, quoted
from daemon.chat.parsers.call_json import CallObjects
from daemon.chat.parsers.cursor import Steps
from daemon.chat.parsers.desk import Arguments, Desk, Verdict

START = "<|python_start|>"
END = "<|python_end|>"

_NAME = re.compile(r"[\w.\-]+")
_PLAIN = re.compile(r"[^\"'\\\n]+")
_SCALAR = re.compile(r"[A-Za-z0-9+.\-_]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}
_CODES = {"x": 2, "u": 4, "U": 8}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_TAGGED = CallObjects(closers=(END,))
_BARE = CallObjects(bare=True)
_MAX_WORD = 256
_MAX_DEPTH = 64
_MAX_CODE = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class Pythonic:
    """Reads a list of calls of declared tools; the bracket comes next, or the tag is consumed."""

    def parse(self, opener: str, desk: Desk) -> Steps[Verdict]:
        """See CallParser."""
        cursor = desk.cursor
        objects = _TAGGED if opener else _BARE
        yield from cursor.spaces()
        if (yield from cursor.peek()) == "{":
            return (yield from objects.parse("", desk))
        in_list = yield from cursor.skip("[")
        yield from cursor.spaces()
        if in_list and (yield from cursor.peek()) == "{":
            return (yield from objects.parse("[", desk))
        done = False
        while True:
            yield from cursor.spaces()
            if done and (not in_list or (yield from cursor.skip("]"))):
                yield from cursor.skip(END)
                return Verdict.DONE
            verdict = yield from self._call(desk, tagged=bool(opener) or done)
            if verdict is not Verdict.DONE:
                return verdict
            done = True
            yield from cursor.spaces()
            comma = yield from cursor.skip(",")
            if in_list and not comma and not (yield from cursor.match(("]",))):
                # The bracket was forgotten; the calls are whole.
                return Verdict.DONE

    def _call(self, desk: Desk, *, tagged: bool) -> Steps[Verdict]:
        cursor = desk.cursor
        name = yield from cursor.gather(_NAME, _MAX_WORD)
        if not name or not desk.tools.declared(name) or not (yield from cursor.skip("(")):
            if cursor.done and desk.tools.begins_declared(name) and (name or tagged):
                return Verdict.CUT
            return Verdict.TEXT
        arguments = desk.open(name)
        order = arguments.schema.ordered_names()
        while True:
            yield from cursor.spaces()
            if (yield from cursor.skip(")")):
                desk.complete(arguments)
                return Verdict.DONE
            verdict = yield from self._argument(desk, arguments, order)
            if verdict is not Verdict.DONE:
                return verdict
            yield from cursor.spaces()
            if not (yield from cursor.skip(",")) and not (yield from cursor.match((")",))):
                return Verdict.CUT if cursor.done else Verdict.BROKEN

    def _argument(self, desk: Desk, arguments: Arguments, order: list[str]) -> Steps[Verdict]:
        """`NAME=VALUE`, or a value alone for the next parameter in the schema's order."""
        cursor = desk.cursor
        word = yield from cursor.gather(_NAME, _MAX_WORD)
        yield from cursor.spaces()
        named = bool(word) and (yield from cursor.skip("="))
        if named:
            yield from cursor.spaces()
            name = word
        else:
            name = next((key for key in order if key not in arguments.seen), "")
        if cursor.done:
            return Verdict.CUT
        if not name or name in arguments.seen:
            return Verdict.BROKEN
        literal = _literal(word) if not named and word else None
        first = yield from cursor.peek()
        if literal is None and first not in {'"', "'", "[", "(", "{"}:
            literal = _literal((yield from cursor.gather(_SCALAR, _MAX_WORD)))
            if literal is None:
                return Verdict.CUT if cursor.done else Verdict.BROKEN
        arguments.key(name)
        if literal is not None:
            arguments.write(json_of_scalar(literal, arguments.schema.property(name)))
            return Verdict.DONE
        return (yield from _Value(desk, arguments.write).read())


def _literal(word: str) -> str | None:
    """A number or constant as JSON text; None where it is neither."""
    plain = word.replace("_", "")
    return _WORDS.get(word) or (plain if _NUMBER.fullmatch(plain) else None)


class _Value:
    """A Python literal, written as JSON as it arrives. Tuples and lists are arrays."""

    def __init__(self, desk: Desk, out: Callable[[str], None]) -> None:
        self._cursor = desk.cursor
        self._out = out
        self._opened = False  # whether the last element was the bracket that opens an array or object

    def read(self) -> Steps[Verdict]:
        """Consume one value. No recursion: the brackets open are kept in a list."""
        stack: list[str] = []
        lead = ""
        while True:
            yield from self._cursor.spaces()
            first = yield from self._cursor.peek()
            if stack and first == stack[-1]:
                self._cursor.take(1)
                self._out("}" if stack.pop() == "}" else "]")
            else:
                self._out(lead)
                verdict = yield from self._element(first, stack)
                if verdict is not Verdict.DONE:
                    return verdict
                if self._opened:
                    lead = ""
                    continue
            if not stack:
                return Verdict.DONE
            yield from self._cursor.spaces()
            lead = ", "
            if not (yield from self._cursor.skip(",")) and (yield from self._cursor.peek()) != stack[-1]:
                return self._missing()

    def _missing(self) -> Verdict:
        return Verdict.CUT if self._cursor.done else Verdict.BROKEN

    def _element(self, first: str, stack: list[str]) -> Steps[Verdict]:
        """A key with its colon in a dictionary, then a value or the bracket that opens one."""
        self._opened = False
        if stack and stack[-1] == "}":
            verdict = yield from self._key(first)
            if verdict is not Verdict.DONE:
                return verdict
            first = yield from self._cursor.peek()
        if first in _CLOSING:
            if len(stack) >= _MAX_DEPTH:
                return Verdict.BROKEN
            self._cursor.take(1)
            self._out("{" if first == "{" else "[")
            stack.append(_CLOSING[first])
            self._opened = True
            return Verdict.DONE
        if first in {'"', "'"}:
            return (yield from self._string())
        literal = _literal((yield from self._cursor.gather(_SCALAR, _MAX_WORD)))
        if literal is None:
            return self._missing()
        self._out(literal)
        return Verdict.DONE

    def _key(self, first: str) -> Steps[Verdict]:
        if first in {'"', "'"}:
            verdict = yield from self._string()
            if verdict is not Verdict.DONE:
                return verdict
        else:
            literal = _literal((yield from self._cursor.gather(_SCALAR, _MAX_WORD)))
            if literal is None:
                return self._missing()
            self._out(quoted(literal))
        yield from self._cursor.spaces()
        if not (yield from self._cursor.skip(":")):
            return self._missing()
        self._out(": ")
        yield from self._cursor.spaces()
        return Verdict.DONE

    def _string(self) -> Steps[Verdict]:
        """A string, also a triple-quoted one."""
        quote = yield from self._cursor.peek()
        closing = (yield from self._cursor.match((quote * 3,))) or quote
        self._cursor.take(len(closing))
        self._out('"')
        while True:
            plain = self._cursor.run(_PLAIN)
            if plain:
                self._out(escaped(plain))
            char = yield from self._cursor.peek()
            if not char:
                return Verdict.CUT
            if (yield from self._cursor.skip(closing)):
                self._out('"')
                return Verdict.DONE
            if char == "\\":
                yield from self._escape()
            else:
                self._out(escaped(self._cursor.take(1)))

    def _escape(self) -> Steps[None]:
        self._cursor.take(1)
        char = yield from self._cursor.peek()
        if char in _CODES:
            self._cursor.take(1)
            yield from self._code(char)
        elif char in _ESCAPES:
            self._cursor.take(1)
            self._out(escaped(_ESCAPES[char]))
        elif char in {'"', "'", "\\"}:
            self._out(escaped(self._cursor.take(1)))
        else:
            self._out("\\\\")

    def _code(self, kind: str) -> Steps[None]:
        digits = ""
        while len(digits) < _CODES[kind]:
            digit = yield from self._cursor.peek()
            if not digit or digit not in "0123456789abcdefABCDEF":
                break
            digits += self._cursor.take(1)
        code = int(digits, 16) if len(digits) == _CODES[kind] else -1
        if code in _SURROGATES:
            self._out(f"\\u{code:04x}")  # JSON's own spelling, so that a pair of them makes one character
        else:
            self._out(escaped(chr(code) if 0 <= code <= _MAX_CODE else f"\\{kind}{digits}"))
