"""`chat.completion` and `chat.completion.chunk`: what a chat answers, in one body or in pieces.

`ChatVoice` writes chunks from bytes prepared once a stream: per piece only the new text is encoded. `ChatDraft` folds the same
deltas into one message, so that both ways say the same.
"""

from collections.abc import Sequence

import msgspec

from daemon.api.logprobs import ChatLogprob, ChatLogprobs, chat_logprobs
from daemon.api.reply_facts import ReplyFacts, StreamStyle, Wrapping, stop_reason
from daemon.api.speech import Parser
from daemon.api.sse import comment
from daemon.api.usage import Timings, UsageBody
from daemon.api.watch import Watch
from daemon.chat.parsing import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentDelta,
    Delta,
    Final,
    ReasoningDelta,
    fold,
)
from daemon.core.errors import InvariantBroken
from daemon.core.events import Broken, Ended, Opened, Paused, Piece, StreamEvent

CHUNK_OBJECT = "chat.completion.chunk"
_encode = msgspec.json.encode


class FunctionBody(msgspec.Struct, frozen=True):
    """The function of a call."""

    name: str
    arguments: str


class CallBody(msgspec.Struct, frozen=True):
    """A tool call in a message."""

    id: str
    function: FunctionBody
    type: str = "function"


class MessageBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The assistant's message."""

    role: str
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[CallBody] | None = None


class ChoiceBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """One choice. `stop_reason` (vLLM's) is the stop string or id that ended it; `stop_detail` is exl3d's."""

    index: int
    message: MessageBody
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None = None
    stop_detail: str | None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    """The whole body."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChoiceBody]
    usage: UsageBody
    timings: Timings


class ChatDraft:
    """Folds one choice's events into a message."""

    def __init__(self, facts: ReplyFacts, index: int, watch: Watch, parser: Parser, *, logprobs: bool) -> None:
        self.watch = watch
        self._facts = facts
        self._index = index
        self._parser = parser
        self._logprobs: list[ChatLogprob] | None = [] if logprobs else None
        self._deltas: list[Delta] = []
        self._final: Final | None = None
        self._ended: Ended | None = None

    @property
    def finish_reason(self) -> str:
        """Why it ended; empty before."""
        return "" if self._final is None else self._final.finish_reason.value

    def take(self, event: StreamEvent) -> bytes:
        """Keep what the event brings."""
        match event:
            case Piece():
                if self._logprobs is not None and event.logprobs:
                    self._logprobs += chat_logprobs(self._facts.tokens, event.ids, event.logprobs)
                if event.text:
                    deltas = self._parser.feed(event.text)
                    self.watch.count_reasoning(deltas, len(event.ids))
                    self._deltas += deltas
            case Ended():
                self._final = self._parser.finish(event.ending)
                self._ended = event
            case Opened() | Paused() | Broken():
                pass
        return b""

    def choice(self) -> ChoiceBody:
        """The finished choice."""
        if self._final is None or self._ended is None:
            raise InvariantBroken("a choice was asked for before its end")
        message = fold(self._deltas, self._final)
        calls = [CallBody(call.id, FunctionBody(call.name, call.arguments)) for call in message.tool_calls]
        return ChoiceBody(
            index=self._index,
            message=MessageBody("assistant", message.content or (None if calls else ""), message.reasoning, calls or None),
            logprobs=None if self._logprobs is None else ChatLogprobs(self._logprobs),
            finish_reason=self.finish_reason,
            stop_reason=stop_reason(self._ended, self._facts.eos),
            stop_detail=self._ended.detail,
        )


class ChatVoice:
    """Writes one choice's chunks."""

    def __init__(
        self, facts: ReplyFacts, index: int, watch: Watch, parser: Parser, *, logprobs: bool, style: StreamStyle
    ) -> None:
        self.watch = watch
        self.finish_reason = ""
        self._facts = facts
        self._parser = parser
        self._waiting: list[ChatLogprob] | None = [] if logprobs else None
        self._wrapping = Wrapping(facts, CHUNK_OBJECT, index, watch, style)
        self._head = self._wrapping.head + b'"delta":'
        self._plain_tail = b',"logprobs":null,"finish_reason":null}]'
        close = self._wrapping.constant
        self._plain_end = None if logprobs or close is None else b"}" + self._plain_tail + close
        """All behind a text, where nothing in it changes."""
        self._content = self._head + b'{"content":'
        self._thought = self._head + b'{"reasoning_content":'
        self._opened = False

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
        if self._waiting is not None and piece.logprobs:
            self._waiting += chat_logprobs(self._facts.tokens, piece.ids, piece.logprobs)
        if not piece.text:
            return b""
        deltas = self._parser.feed(piece.text)
        self.watch.count_reasoning(deltas, len(piece.ids))
        if self._opened and self._plain_end is not None and len(deltas) == 1:  # nearly every token
            only = deltas[0]
            if isinstance(only, ContentDelta):
                return self._content + _encode(only.text) + self._plain_end
            if isinstance(only, ReasoningDelta):
                return self._thought + _encode(only.text) + self._plain_end
        return self._chunks(deltas)

    def _chunks(self, deltas: Sequence[Delta]) -> bytes:
        if not deltas:
            return b""
        parts: list[bytes] = []
        if not self._opened:
            self._opened = True
            parts.append(self._chunk(b'{"role":"assistant","content":""}'))
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    parts.append(self._chunk(b'{"content":' + _encode(text) + b"}"))
                case ReasoningDelta(text):
                    parts.append(self._chunk(b'{"reasoning_content":' + _encode(text) + b"}"))
                case CallStart(index, call_id, name):
                    call = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
                    parts.append(self._chunk(b'{"tool_calls":[' + _encode(call) + b"]}"))
                case CallArguments(index, text):
                    arguments = b'{"tool_calls":[{"index":%d,"function":{"arguments":' % index + _encode(text) + b"}}]}"
                    parts.append(self._chunk(arguments))
                case CallEnd():
                    pass
        return b"".join(parts)

    def _chunk(self, delta: bytes) -> bytes:
        tail = self._plain_tail if not self._waiting or delta.startswith(b'{"role"') else self._logprobs_tail(self._waiting)
        return self._head + delta + tail + self._wrapping.close()

    def _logprobs_tail(self, waiting: list[ChatLogprob]) -> bytes:
        self._waiting = []
        return b',"logprobs":' + _encode(ChatLogprobs(waiting)) + b',"finish_reason":null}]'

    def _end(self, ended: Ended) -> bytes:
        final = self._parser.finish(ended.ending)
        self.finish_reason = final.finish_reason.value
        rest = self._chunks(final.deltas)
        opening = b"" if self._opened else self._chunk(b'{"role":"assistant","content":""}')
        logprobs = ChatLogprobs(self._waiting) if self._waiting else None
        return rest + opening + self._head + b"{}" + self._wrapping.last(ended, self.finish_reason, logprobs)
