"""gpt-oss's answers: messages with a role, a channel and sometimes a recipient, each framed by tokens of their own.

`<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>`. The analysis channel is
thought, the others are visible; what is addressed to a function is a call, whatever its channel.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from daemon.chat.parsers.cursor import Cursor, Recorder, Steps
from daemon.chat.parsers.desk import Desk, Toolbox, Verdict
from daemon.chat.parsers.loose_json import LooseJson, read_arguments
from daemon.chat.parsers.transcript import Transcript
from daemon.core.events import Ending

START = "<|start|>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
CONSTRAIN = "<|constrain|>"
END = "<|end|>"
CALL = "<|call|>"
RETURN = "<|return|>"

_MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
_CLOSING = (END, CALL, RETURN)
_TEXT = re.compile(r"[^<]+")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_ROLE = re.compile(r"\s*(?:assistant)?\s*(?:to=[^\s<]+)?\s*")
_CHANNEL_NAME = re.compile(r"\s*([a-z]*)")
_MAX_HEADER = 512
_ANALYSIS = "analysis"
_FINAL = "final"


@dataclass(frozen=True, slots=True)
class _Header:
    channel: str
    recipient: str


class Harmony:
    """The walk through one answer."""

    def __init__(self, cursor: Cursor, transcript: Transcript, tools: Toolbox, *, inside: bool) -> None:
        self._cursor = cursor
        self._transcript = transcript
        self._tools = tools
        self._shown = False
        self.inside = inside
        """Whether the walk is inside a thought."""
        self._between: Callable[[str], None] | None = None
        """Where text goes while the walk waits between two marks, everything before consumed."""

    def run(self) -> Steps[None]:
        """Read the whole answer."""
        if self.inside:
            yield from self._text(_ANALYSIS)
        else:
            # The prompt ends behind the role, so that a recipient may come first.
            self._transcript.content((yield from self._cursor.spaces()))
            if not (yield from self._cursor.match((*_MARKS, "to="))):
                yield from self._text(_FINAL)
        while not self._cursor.done:
            header = yield from self._header()
            if header is not None:
                yield from self._body(header)
        self._transcript.finish()

    # --- headers ------------------------------------------------------------------------------------------------------

    def _header(self) -> Steps[_Header | None]:
        """Everything up to where a message's text begins; None where no message comes of it."""
        channel = ""
        role = ""
        section = ""  # the mark whose section is being read
        size = 0
        while True:
            text, mark = yield from self._until_mark(_MAX_HEADER - size)
            size += len(text)
            if section == CHANNEL:
                channel += text
            elif section != CONSTRAIN:
                role += text
            if not mark:
                return self._headless(role, channel, section)
            self._cursor.take(len(mark))
            if mark == MESSAGE:
                return self._parsed(role, channel)
            if mark in _CLOSING:
                # A header that is not followed by a message is noise of the model's; what stands alone is text.
                return self._headless(role, "", section) if not channel else None
            if mark == START:
                role = channel = ""
            section = mark

    def _until_mark(self, limit: int) -> Steps[tuple[str, str]]:
        """Text up to the next mark, consumed, and the mark, not consumed; no mark at the end or beyond the limit."""
        parts: list[str] = []
        size = 0
        while size < limit:
            part = yield from self._cursor.gather(_TEXT, limit - size)
            if not (yield from self._cursor.peek()):
                parts.append(part)
                break
            mark = yield from self._cursor.match(_MARKS)
            if mark:
                parts.append(part)
                return "".join(parts), mark
            if self._cursor.ending is Ending.LENGTH and self._cursor.cut_short(_MARKS, at_line_start=True):
                self._cursor.take(len(self._cursor.rest))
            else:
                part += self._cursor.take(1)
            parts.append(part)
            size += len(part)
        return "".join(parts), ""

    def _parsed(self, role: str, channel: str) -> _Header:
        found = _RECIPIENT.search(role) or _RECIPIENT.search(channel)
        name = _CHANNEL_NAME.match(channel)
        return _Header(name[1] if name else "", found[1] if found else "")

    def _headless(self, role: str, channel: str, section: str) -> _Header | None:
        """Text that no message mark followed: what is no header is shown, as the visible text it probably is."""
        if self._cursor.ending is Ending.LENGTH and section:
            return None
        header = self._parsed(role, channel)
        left = channel[len(header.channel) :] if channel else role
        if _ROLE.fullmatch(left):
            return None
        self._transcript.content(left)
        return header if not self._cursor.done else None

    # --- messages -----------------------------------------------------------------------------------------------------

    def _body(self, header: _Header) -> Steps[None]:
        name = self._tools.resolve(header.recipient)
        addressed = header.recipient.startswith("functions.") or self._tools.declared(name)
        if not (addressed and self._tools):
            yield from self._text(header.channel)
            return
        recorder = self._cursor.record()
        yield from self._cursor.spaces()
        first = yield from self._cursor.peek()
        if first == "{" or (yield from self._cursor.match((CALL,))):
            yield from self._call(name.removeprefix("functions."), recorder, empty=first != "{")
            return
        self._cursor.forget(recorder)
        yield from self._text(header.channel)

    def _call(self, name: str, recorder: Recorder, *, empty: bool) -> Steps[None]:
        desk = Desk(self._cursor, self._tools, self._transcript, recorder)
        arguments = desk.open(name)
        if empty:
            verdict = Verdict.DONE
        else:
            verdict = yield from read_arguments(LooseJson(self._cursor, _CLOSING), self._cursor, arguments)
        self._cursor.forget(recorder)
        if verdict is Verdict.DONE:
            desk.complete(arguments)
            self._transcript.cut()
            yield from self._skip_to_mark()
            return
        self._transcript.abandon()
        if verdict is Verdict.BROKEN or self._cursor.ending is Ending.STOP:
            self._transcript.content(recorder.text)
            yield from self._text(_FINAL)

    def _skip_to_mark(self) -> Steps[None]:
        """What stands between a call's arguments and the end of its message is noise."""
        while not self._cursor.done:
            yield from self._cursor.gather(_TEXT, None)
            if (yield from self._cursor.match(_MARKS)):
                return
            self._cursor.take(1)

    def take_plain(self, text: str) -> bool:
        """Take new text of a message that begins no mark, as `_text` would: nearly every token."""
        show = self._between
        if show is None or _TEXT.fullmatch(text) is None:
            return False
        show(text)
        self._shown = self._shown or not self.inside
        return True

    def _next_mark(self, show: Callable[[str], None]) -> Steps[str]:
        """The next character behind text that begins no mark; empty at the end."""
        self._between = show
        character = yield from self._cursor.peek()
        self._between = None
        return character

    def _text(self, channel: str) -> Steps[None]:
        """A message's text up to its end."""
        self.inside = channel == _ANALYSIS
        show = self._transcript.reasoning if self.inside else self._transcript.content
        if self.inside:
            self._transcript.begin_reasoning()
        elif self._shown:
            # Two visible messages are two paragraphs.
            self._transcript.content("\n\n")
            self._transcript.cut()
        while (yield from self._next_mark(show)):
            text = self._cursor.run(_TEXT)
            if not text:
                mark = yield from self._cursor.match(_MARKS)
                if mark in {START, CHANNEL}:
                    break
                if mark:
                    self._cursor.take(len(mark))
                    if mark in _CLOSING:
                        break
                    continue
                if self._cursor.ending is Ending.LENGTH and self._cursor.cut_short(_MARKS, at_line_start=True):
                    self._cursor.take(len(self._cursor.rest))
                    continue
                text = self._cursor.take(1)
            show(text)
            self._shown = self._shown or not self.inside
        if self.inside:
            self._transcript.end_reasoning()
            self.inside = self._cursor.done
