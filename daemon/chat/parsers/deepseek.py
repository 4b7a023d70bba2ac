"""DeepSeek's calls. V3 and R1 write a type, a name and a fenced object, V3.1 a name and an object; V3.2 writes invoke elements
with a mark of its own.
"""

import re

from daemon.chat.parsers.cursor import Steps
from daemon.chat.parsers.desk import Desk, Verdict
from daemon.chat.parsers.invoke import Invoke
from daemon.chat.parsers.loose_json import LooseJson, read_arguments

BAR = "\uff5c"
_GAP = "\u2581"


def _tag(*words: str) -> str:
    return f"<{BAR}{_GAP.join(words)}{BAR}>"


CALLS = _tag("tool", "calls", "begin")
CALLS_END = _tag("tool", "calls", "end")
CALL = _tag("tool", "call", "begin")
CALL_END = _tag("tool", "call", "end")
SEPARATOR = _tag("tool", "sep")
MARK = f"{BAR}DSML{BAR}"
ENVELOPE = f"{MARK}function_calls"

_NAME = re.compile(r"[^\s<>\"'`{}\[\],;]+")
_WORD = re.compile(r"[a-z]+")
_SURPLUS = re.compile(r"[\s}]+")
_MAX_NAME = 256
_FENCE = "```"


class DeepSeek:
    """Reads calls behind any of DeepSeek's opening tags."""

    def __init__(self) -> None:
        self._invoke = Invoke(MARK, ENVELOPE)

    def parse(self, opener: str, desk: Desk) -> Steps[Verdict]:
        """See CallParser."""
        if opener == f"<{ENVELOPE}>":
            return (yield from self._invoke.parse(opener, desk))
        cursor = desk.cursor
        begun = opener == CALL
        complete = False
        while True:
            yield from cursor.spaces()
            mark = "" if begun else (yield from cursor.match((CALL, CALLS_END)))
            cursor.take(len(mark))
            if mark == CALLS_END:
                return Verdict.DONE
            if not mark and not begun:
                if complete:
                    return Verdict.DONE
                return Verdict.CUT if cursor.done else Verdict.TEXT
            verdict = yield from self._call(desk)
            if verdict is not Verdict.DONE:
                return verdict
            complete = True
            begun = False

    def _call(self, desk: Desk) -> Steps[Verdict]:
        cursor = desk.cursor
        name = yield from cursor.gather(_NAME, _MAX_NAME)
        yield from cursor.spaces()
        if not name or not (yield from cursor.skip(SEPARATOR)):
            return Verdict.CUT if cursor.done else Verdict.TEXT
        yield from cursor.spaces()
        first = yield from cursor.peek()
        if first and first not in "{`":
            # V3: what stood before the separator was the type, always "function".
            name = yield from cursor.gather(_NAME, _MAX_NAME)
            yield from cursor.spaces()
        fenced = yield from cursor.skip(_FENCE)
        if fenced:
            yield from cursor.gather(_WORD, _MAX_NAME)
        if (yield from LooseJson(cursor).first()) != "{":
            return Verdict.CUT if cursor.done else Verdict.TEXT
        arguments = desk.open(name)
        verdict = yield from read_arguments(LooseJson(cursor, (CALL_END, CALLS_END)), cursor, arguments)
        if verdict is Verdict.DONE:
            desk.complete(arguments)
            yield from cursor.gather(_SURPLUS, None)
            yield from cursor.skip(_FENCE)
            yield from cursor.spaces()
            yield from cursor.skip(CALL_END)
        return verdict
