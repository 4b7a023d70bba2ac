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
_FENCE = re.compile(r"[`a-z_]+")
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
            if first == "`":
                if (yield from cursor.match(("```",))) and not complete:
                    yield from cursor.gather(_FENCE, None)
                    continue
                if not (yield from self._closing_fence(desk, complete=complete)):
                    return Verdict.DONE if complete else Verdict.TEXT
                continue
            if first in "{[":
                verdict = yield from _OBJECTS.parse("", desk)
            elif first == "<":
                mark = yield from cursor.match((CLOSER, OPENER, FUNCTION, "</"))
                if mark == CLOSER:
                    cursor.take(len(mark))
                    return Verdict.DONE
                if mark == OPENER:
                    cursor.take(len(mark))
                    continue
                if mark == "</" and complete and not (yield from cursor.match(("</think>",))):
                    cursor.take(1)
                    yield from cursor.gather(_CLOSING_TAG, None)
                    yield from cursor.skip(">")
                    continue
                if mark != FUNCTION:
                    return Verdict.DONE if complete else Verdict.TEXT
                cursor.take(len(mark))
                verdict = yield from XmlFunction(desk, bare=False).read()
            elif complete:
                return Verdict.DONE
            else:
                verdict = yield from GlmFunction(desk).read()
            if verdict is not Verdict.DONE:
                return verdict
            complete = True

    def _closing_fence(self, desk: Desk, *, complete: bool) -> Steps[bool]:
        if complete and (yield from desk.cursor.skip("```")):
            return True
        return False
