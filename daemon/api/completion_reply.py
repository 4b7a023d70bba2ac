"""`text_completion`: what a completion answers, in one body or in pieces. The text is the model's own, parsed by nobody."""

import msgspec

from daemon.api.logprobs import TextLogprobs, text_logprobs
from daemon.api.reply_facts import ReplyFacts, StreamStyle, stop_reason
from daemon.api.sse import comment
from daemon.api.usage import Timings, UsageBody, usage_body
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
        self._style = style
        self._echo = echo
        self._offset = len(echo)
        head = {"id": facts.id, "object": OBJECT, "created": facts.created, "model": facts.model}
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":[{"index":%d,"text":' % index
        self._close = b',"usage":null}\n\n' if style.include_usage else b"}\n\n"
        self._plain_end = None if style.continuous_usage else b',"logprobs":null,"finish_reason":null}]' + self._close
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
        logprobs = b"null"
        if piece.logprobs:
            found, self._offset = text_logprobs(self._facts.tokens, piece.ids, piece.logprobs, self._offset)
            logprobs = _encode(found)
        elif not piece.text:
            return b""
        if self._plain_end is not None and not piece.logprobs and not self._echo:
            return self._head + _encode(piece.text) + self._plain_end
        text = _encode(self._echo + piece.text)
        self._echo = ""
        return self._head + text + b',"logprobs":' + logprobs + b',"finish_reason":null}]' + self._end_of_chunk()

    def _end(self, ended: Ended) -> bytes:
        self.finish_reason = ended.ending.value
        tail: dict[str, object] = {"logprobs": None, "finish_reason": self.finish_reason}
        stop = stop_reason(ended, self._facts.eos)
        if stop is not None:
            tail["stop_reason"] = stop
        if ended.detail is not None:
            tail["stop_detail"] = ended.detail
        text = _encode(self._echo)
        self._echo = ""
        return self._head + text + b"," + _encode(tail)[1:] + b"]" + self._end_of_chunk()

    def _end_of_chunk(self) -> bytes:
        if not self._style.continuous_usage:
            return self._close
        return b',"usage":' + _encode(usage_body(self.watch.so_far())) + b"}\n\n"


def _joined(one: TextLogprobs, other: TextLogprobs) -> TextLogprobs:
    one.tokens.extend(other.tokens)
    one.token_logprobs.extend(other.token_logprobs)
    one.top_logprobs.extend(other.top_logprobs)
    one.text_offset.extend(other.text_offset)
    return one
