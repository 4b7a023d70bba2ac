"""Functions in Qwen's XML: `<function=NAME>`, then `<parameter=NAME>` elements, then `</function>`."""

import re

from daemon.chat.parsers.call_json import read_arguments
from daemon.chat.parsers.cursor import Steps
from daemon.chat.parsers.desk import Arguments, Desk, Verdict
from daemon.chat.parsers.loose_json import LooseJson
from daemon.chat.parsers.tagged import TaggedValue, Tags, TextArgument, ValueEnd

OPENER = "<function"
CLOSER = "</function>"
_PARAMETER = "<parameter"
_NAME = re.compile(r"[^\s<>\"'`=(){}\[\]]+")
_HEADER = re.compile(r"[^<>\n]+")
_UNTIL_TAG = re.compile(r"[^<]+")
_CLOSING_TAG = re.compile(r"/?[A-Za-z_:]+>?")
_MAX_NAME = 256


def header_name(header: str) -> str:
    """The name in a parameter's header: what stands behind `=`, quotes aside."""
    return header.strip().removeprefix("name=").strip("\"'")


TAGS = Tags(
    close="</parameter>",
    follow=("<parameter", "</function>", "</tool_call>", "<tool_call>", "<function=", "</think>"),
    opens="<parameter=",
    header_end=">",
    ends=(CLOSER, "</tool_call>"),
    restarts=("<tool_call>", "<function=", "</think>"),
    nested=("<function=", CLOSER),
    layout=True,
    name_of=header_name,
)


class XmlFunction:
    """Reads one function element; `<function` is consumed. With `bare` nothing says that this is a call, so only a declared
    tool followed by the beginnings of arguments or its end is one.
    """

    def __init__(self, desk: Desk, *, bare: bool) -> None:
        self._desk = desk
        self._cursor = desk.cursor
        self._bare = bare
        self._any = False

    def read(self) -> Steps[Verdict]:
        """Consume the element, as far as it goes."""
        name = yield from self._name()
        if not name or (self._bare and not self._desk.tools.declared(name)):
            return Verdict.CUT if self._cursor.done else Verdict.TEXT
        arguments = self._desk.open(name)
        while True:
            yield from self._cursor.spaces()
            if self._cursor.done:
                return self._at_end_of_answer(arguments)
            first = yield from self._cursor.peek()
            if first == "{" and not self._any:
                verdict = yield from read_arguments(LooseJson(self._cursor, (CLOSER, "</tool_call>")), self._cursor, arguments)
                if verdict is Verdict.DONE:
                    self._desk.complete(arguments)
                    yield from self._cursor.spaces()
                    yield from self._cursor.skip(CLOSER)
                return verdict
            verdict = yield from self._element(arguments)
            if verdict is not None:
                return verdict

    def _name(self) -> Steps[str]:
        """The function's name, with the end of its tag."""
        if (yield from self._cursor.match(("=", " name="))):
            yield from self._equals()
            yield from self._cursor.spaces()
            name = yield from self._cursor.gather(_NAME, _MAX_NAME)
            if (yield from self._cursor.match(('"', "'"))):
                self._cursor.take(1)
            spaces = yield from self._cursor.spaces()
            if (yield from self._cursor.skip(">")) or ("\n" in spaces and self._desk.tools.declared(name)):
                return name
        return ""

    def _equals(self) -> Steps[None]:
        yield from self._cursor.skip(" name")
        yield from self._cursor.skip("=")
        if (yield from self._cursor.match(('"', "'"))):
            self._cursor.take(1)

    def _element(self, arguments: Arguments) -> Steps[Verdict | None]:
        """One thing inside the function; a verdict if it ends it."""
        cursor = self._cursor
        mark = yield from cursor.match((_PARAMETER, CLOSER, "</tool_call>", "<tool_call>", OPENER, "</think>", "</"))
        if mark == _PARAMETER:
            cursor.take(len(mark))
            return (yield from self._parameter(arguments))
        if mark in {CLOSER, "</tool_call>", "<tool_call>", OPENER, "</think>"}:
            if mark == CLOSER:
                cursor.take(len(mark))
            elif not self._any and (self._bare or mark in {"<tool_call>", OPENER}):
                return Verdict.TEXT
            return self._complete(arguments)
        if not self._any:
            return Verdict.TEXT
        # Between elements anything else is drift, such as a closing tag that was written twice.
        cursor.take(1)
        yield from cursor.gather(_UNTIL_TAG, None)
        return None

    def _complete(self, arguments: Arguments) -> Verdict:
        self._desk.complete(arguments)
        return Verdict.DONE

    def _at_end_of_answer(self, arguments: Arguments) -> Verdict:
        """The answer ended between elements: complete if the model ended it and nothing can be missing."""
        if self._desk.stopped and (self._any or (not self._bare and not arguments.schema.required())):
            return self._complete(arguments)
        return Verdict.CUT

    def _parameter(self, arguments: Arguments) -> Steps[Verdict | None]:
        """One parameter, and those that begin where its closing tag was forgotten; `<parameter` is consumed."""
        yield from self._equals()
        header = yield from self._cursor.gather(_HEADER, _MAX_NAME)
        name = header_name(header)
        closed = yield from self._cursor.skip(">")
        if not closed and self._cursor.done:
            return Verdict.CUT
        declared = arguments.schema.names()
        key, equals, value = name.partition("=")
        if closed and equals and name not in declared and key.strip() in declared:
            return (yield from self._folded(arguments, key.strip(), value))
        if not closed or not name or (name not in declared and _NAME.fullmatch(name) is None):
            return (yield from self._nameless(arguments))
        self._any = True
        while True:
            target = TextArgument(arguments, name, layout=True)
            value_reader = TaggedValue(self._cursor, TAGS, arguments, target)
            end = yield from value_reader.read()
            match end:
                case ValueEnd.CLOSED:
                    return None
                case ValueEnd.NEXT:
                    name = value_reader.next_name
                case ValueEnd.CALL:
                    return self._complete(arguments)
                case ValueEnd.CUT:
                    return Verdict.CUT

    def _folded(self, arguments: Arguments, name: str, value: str) -> Steps[Verdict | None]:
        """`<parameter=NAME=VALUE>`: the value slipped into the tag."""
        self._any = True
        body: list[str] = []
        end = yield from self._until_close(body)
        if end is ValueEnd.CUT:
            return Verdict.CUT
        text = "".join(body)
        if text.strip().endswith(">"):
            text = f"{value}>{text.strip()[:-1]}"
        elif not text.strip():
            text = value
        target = TextArgument(arguments, name, layout=True)
        target.write(text)
        target.finish()
        return None if end is ValueEnd.CLOSED else self._complete(arguments)

    def _nameless(self, arguments: Arguments) -> Steps[Verdict | None]:
        """An element without a name is dropped: no key can be made of it."""
        self._any = True
        end = yield from self._until_close([])
        if end is ValueEnd.CUT:
            return Verdict.CUT
        return None if end is ValueEnd.CLOSED else self._complete(arguments)

    def _until_close(self, body: list[str]) -> Steps[ValueEnd]:
        """Consume text up to the end of an element whose name is not known."""
        while True:
            body.append((yield from self._cursor.gather(_UNTIL_TAG, None)))
            if self._cursor.done:
                return ValueEnd.CUT
            mark = yield from self._cursor.match((TAGS.close, TAGS.opens, *TAGS.ends))
            if mark == TAGS.close:
                self._cursor.take(len(mark))
                return ValueEnd.CLOSED
            if mark == TAGS.opens:
                return ValueEnd.CLOSED
            if mark:
                if mark == CLOSER:
                    self._cursor.take(len(mark))
                return ValueEnd.CALL
            body.append(self._cursor.take(1))
