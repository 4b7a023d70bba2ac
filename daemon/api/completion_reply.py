"""`text_completion`: what a completion answers, in one body or in pieces. The text is the model's own, parsed by nobody."""

import msgspec

from daemon.api.logprobs import TextLogprobs, text_logprobs
from daemon.api.reply_facts import ReplyFacts, StreamStyle, Wrapping, stop_reason
from daemon.api.sse import comment
from daemon.api.usage import Timings, UsageBody
from daemon.api.watch import Watch
from daemon.core.events import Broken, Ended, Opened, Paused, Piece, StreamEvent

OBJECT = "text_completion"
_encode = msgspec.json.encode


class TextChoice(msgspec.Struct, frozen=True):
    """One choice. `stop_reason` (vLLM's) is the stop string or id that ended it; `stop_detail` is exl3d's."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str
    stop_reason: str | int | None = None
    stop_detail: str | None = None


class TextCompletion(msgspec.Struct, frozen=True):
    """The whole body."""

    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageBody
    timings: Timings


class TextDraft:
    """Folds one choice's events into text that begins with `echo`."""

    def __init__(self, facts: ReplyFacts, index: int, watch: Watch, echo: str) -> None:
        self.watch = watch
        self._facts = facts
        self._index = index
        self._texts = [echo]
        self._offset = len(echo)
        self._logprobs: TextLogprobs | None = None
        self._ended: Ended | None = None

    @property
    def finish_reason(self) -> str:
        """Why it ended; empty before."""
        return "" if self._ended is None else self._ended.ending.value

    def take(self, event: StreamEvent) -> bytes:
        """Keep what the event brings."""
        match event:
            case Piece():
                self._texts.append(event.text)
                if event.logprobs:
                    found, self._offset = text_logprobs(self._facts.tokens, event.ids, event.logprobs, self._offset)
                    self._logprobs = found if self._logprobs is None else _joined(self._logprobs, found)
            case Ended():
                self._ended = event
            case Opened() | Paused() | Broken():
                pass
        return b""

    def choice(self) -> TextChoice:
        """The finished choice."""
        ended = self._ended
        return TextChoice(
            index=self._index,
            text="".join(self._texts),
            logprobs=self._logprobs,
            finish_reason=self.finish_reason,
            stop_reason=None if ended is None else stop_reason(ended, self._facts.eos),
            stop_detail=None if ended is None else ended.detail,
        )


class TextVoice:
    """Writes one choice's chunks; the first begins with `echo`."""

    def __init__(self, facts: ReplyFacts, index: int, watch: Watch, echo: str, style: StreamStyle) -> None:
        self.watch = watch
        self.finish_reason = ""
        self._facts = facts
        self._echo = echo
        self._offset = len(echo)
        self._wrapping = Wrapping(facts, OBJECT, index, watch, style)
        self._head = self._wrapping.head + b'"text":'
        close = self._wrapping.constant
        self._plain_end = None if close is None else b',"logprobs":null,"finish_reason":null}]' + close
        """All behind a text without logprobs, where nothing in it changes."""

    def take(self, event: StreamEvent) -> bytes:
        """The chunks that an event makes."""
        match event:
            case Piece():
                return self._piece(event)
            case Ended():
                return self._end(event)
            case Paused():
                return comment(event.why)
            case Opened() | Broken():
                return b""

    def _piece(self, piece: Piece) -> bytes:
        if self._plain_end is not None and piece.text and not (piece.logprobs or self._echo):  # nearly every token
            return self._head + _encode(piece.text) + self._plain_end
        logprobs = b"null"
        if piece.logprobs:
            found, self._offset = text_logprobs(self._facts.tokens, piece.ids, piece.logprobs, self._offset)
            logprobs = _encode(found)
        elif not piece.text:
            return b""
        text = _encode(self._echo + piece.text)
        self._echo = ""
        return self._head + text + b',"logprobs":' + logprobs + b',"finish_reason":null}]' + self._wrapping.close()

    def _end(self, ended: Ended) -> bytes:
        self.finish_reason = ended.ending.value
        text = _encode(self._echo)
        self._echo = ""
        return self._head + text + self._wrapping.last(ended, self.finish_reason, None)


def _joined(one: TextLogprobs, other: TextLogprobs) -> TextLogprobs:
    one.tokens.extend(other.tokens)
    one.token_logprobs.extend(other.token_logprobs)
    one.top_logprobs.extend(other.top_logprobs)
    one.text_offset.extend(other.text_offset)
    return one
