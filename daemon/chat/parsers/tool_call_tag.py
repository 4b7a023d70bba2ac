"""The `<tool_call>` envelope that Qwen, Hermes and GLM share. What is inside decides how it is read: a JSON object, a
function element, or a name with GLM's key and value tags. Models trained on one fall back to another.
"""

import re

from daemon.chat.parsers.call_json import CallObjects
from daemon.chat.parsers.cursor import Steps
from daemon.chat.parsers.desk import Desk, Verdict
from daemon.chat.parsers.glm_function import GlmFunction
from daemon.chat.parsers.xml_function import OPENER as FUNCTION
from daemon.chat.parsers.xml_function import XmlFunction

OPENER = "<tool_call>"
CLOSER = "</tool_call>"
_OBJECTS = CallObjects(closers=(CLOSER, OPENER))
_FENCE = "```"
_WORD = re.compile(r"[a-z_]+")
_CLOSING_TAG = re.compile(r"[^<>\n]+")


class ToolCallTag:
    """Reads what stands behind `<tool_call>`, or a function element that came without it."""

    def parse(self, opener: str, desk: Desk) -> Steps[Verdict]:
        """See CallParser."""
        if opener != OPENER:
            return (yield from self._bare(desk))
        return (yield from self._inside(desk, complete=False))

    def _bare(self, desk: Desk) -> Steps[Verdict]:
        verdict = yield from XmlFunction(desk, bare=True).read()
        if verdict is not Verdict.DONE:
            return verdict
        return (yield from self._inside(desk, complete=True))

    def _inside(self, desk: Desk, *, complete: bool) -> Steps[Verdict]:
        """Calls one after the other, until the envelope closes or text shows that its closing tag was forgotten."""
        cursor = desk.cursor
        while True:
            yield from cursor.spaces()
            first = yield from cursor.peek()
            if not first:
                return Verdict.DONE if complete else Verdict.CUT
            if (yield from cursor.skip(CLOSER)):
                return Verdict.DONE
            if (yield from self._layout(desk, first, complete=complete)):
                continue
            if first in "{[":
                verdict = yield from _OBJECTS.parse("", desk)
            elif (yield from cursor.skip(FUNCTION)):
                verdict = yield from XmlFunction(desk, bare=False).read()
            elif complete or first in "<`":
                return Verdict.DONE if complete else Verdict.TEXT
            else:
                verdict = yield from GlmFunction(desk).read()
            if verdict is not Verdict.DONE:
                return verdict
            complete = True

    def _layout(self, desk: Desk, first: str, *, complete: bool) -> Steps[bool]:
        """Consume what may stand around calls: another opening tag, a fence, and behind a call closing tags of any kind."""
        cursor = desk.cursor
        if first == "`":
            if not (yield from cursor.skip(_FENCE)):
                return False
            if not complete:
                yield from cursor.gather(_WORD, len("tool_calls"))
            return True
        if first != "<":
            return False
        if (yield from cursor.skip(OPENER)):
            return True
        if not complete or not (yield from cursor.match(("</",))) or (yield from cursor.match(("</think>",))):
            return False
        cursor.take(1)
        yield from cursor.gather(_CLOSING_TAG, None)
        yield from cursor.skip(">")
        return True
