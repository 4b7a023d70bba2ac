"""Anthropic's answers: blocks in one message, or the events of a stream. Both are written from the same sections.

A call that was cut off or broken is no block of a message; in a stream, where it has begun already, its block is never closed,
so that nobody carries it out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from daemon.api.errors import Answer, Dialect, error_json
from daemon.api.messages_schemas import (
    MessageOut,
    MessageOutputDetails,
    MessageUsage,
    OutputBlock,
    StopReason,
    TextOut,
    ThinkingOut,
    ToolUseOut,
)
from daemon.api.sections import Begun, More, Over, Section, SectionEvent, SectionKind, Telling
from daemon.api.speech import Parser
from daemon.api.sse import comment
from daemon.api.watch import Watch
from daemon.chat.parsing import Final, FinishReason
from daemon.core.errors import InvariantBroken
from daemon.core.events import Broken, Ended, Opened, Paused, Piece, StreamEvent

SIGNATURE = "unsigned"
"""Thoughts are not signed. Clients keep a thought for the next turn only where its signature is not empty."""
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_encode = msgspec.json.encode
_Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What all parts of one answer share."""

    id: str
    model: str
    shows_thoughts: bool
    clamped: bool
    """The answer may be shorter than was asked for, since the context ends before."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """How an answer ended, in Anthropic's words."""

    stop_reason: StopReason
    stop_sequence: str | None
    detail: str | None


class MessageDraft:
    """Folds an answer into one message."""

    def __init__(self, facts: MessageFacts, watch: Watch, parser: Parser) -> None:
        self.watch = watch
        self._facts = facts
        self._telling = Telling(watch, parser)
        self._blocks: list[OutputBlock] = []
        self._ending: _Ending | None = None

    @property
    def finish_reason(self) -> str:
        """Why it ended, in the words of the metrics; empty before."""
        return self._telling.finish_reason

    def take(self, event: StreamEvent) -> bytes:
        """Keep what the event brings."""
        match event:
            case Piece():
                self._keep(self._telling.piece(event))
            case Ended():
                sections, final = self._telling.end(event)
                self._ending = _ending(event, final, clamped=self._facts.clamped)
                self._keep(sections)
            case Opened() | Paused() | Broken():
                pass
        return b""

    def message(self) -> MessageOut:
        """The finished message."""
        ending = self._ending
        if ending is None:
            raise InvariantBroken("a message was asked for before its end")
        return MessageOut(
            id=self._facts.id,
            model=self._facts.model,
            content=self._blocks,
            usage=usage_of(self.watch),
            stop_reason=ending.stop_reason,
            stop_sequence=ending.stop_sequence,
            stop_detail=msgspec.UNSET if ending.detail is None else ending.detail,
        )

    def _keep(self, events: Sequence[SectionEvent]) -> None:
        for event in events:
            match event:
                case Over(section, text, complete):
                    if complete or section.kind is not SectionKind.CALL:
                        self._blocks.append(_block(section, text, shown=self._facts.shows_thoughts))
                case Begun() | More():
                    pass


class MessageVoice:
    """Writes the events of a stream. The first goes out with the first text: until then an error has its own status."""

    def __init__(self, facts: MessageFacts, watch: Watch, parser: Parser) -> None:
        self.watch = watch
        self._facts = facts
        self._telling = Telling(watch, parser)
        self._started = False

    @property
    def finish_reason(self) -> str:
        """Why it ended, in the words of the metrics; empty before."""
        return self._telling.finish_reason

    def take(self, event: StreamEvent) -> bytes:
        """The events that an event makes."""
        match event:
            case Piece():
                return self._written(self._telling.piece(event))
            case Ended():
                sections, final = self._telling.end(event)
                ending = _ending(event, final, clamped=self._facts.clamped)
                return self._written(sections) + self._start() + self._last(ending)
            case Paused():
                return comment(event.why)
            case Opened() | Broken():
                return b""

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        empty = MessageOut(id=self._facts.id, model=self._facts.model, content=[], usage=usage_of(self.watch))
        return _event("message_start", {"message": empty}) + PING

    def _written(self, events: Sequence[SectionEvent]) -> bytes:
        if not events:
            return b""
        return self._start() + b"".join(map(self._section, events))

    def _section(self, event: SectionEvent) -> bytes:
        match event:
            case Begun(section):
                block = _block(section, "", shown=True)
                return _event("content_block_start", {"index": section.index, "content_block": block})
            case More(section, text):
                if section.kind is SectionKind.THOUGHT and not self._facts.shows_thoughts:
                    return b""
                name, field = _DELTAS[section.kind]
                return _DELTA % (section.index, name, field, _encode(text))
            case Over(section, _, complete):
                if section.kind is SectionKind.CALL and not complete:
                    return b""
                signed = _signed(section.index) if section.kind is SectionKind.THOUGHT else b""
                return signed + _event("content_block_stop", {"index": section.index})

    def _last(self, ending: _Ending) -> bytes:
        delta: _Json = {"stop_reason": ending.stop_reason, "stop_sequence": ending.stop_sequence}
        if ending.detail is not None:
            delta["stop_detail"] = ending.detail
        return _event("message_delta", {"delta": delta, "usage": usage_of(self.watch)}) + _event("message_stop", {})


def failure(answer: Answer) -> bytes:
    """The end of a broken stream."""
    return b"event: error\ndata: " + error_json(answer, Dialect.ANTHROPIC) + b"\n\n"


def usage_of(watch: Watch) -> MessageUsage:
    """Usage at this moment."""
    usage = watch.so_far()
    return MessageUsage(
        input_tokens=usage.prompt - usage.cached,
        cache_read_input_tokens=usage.cached,
        cache_creation_input_tokens=0,
        output_tokens=usage.completion,
        output_tokens_details=MessageOutputDetails(thinking_tokens=usage.reasoning),
    )


_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":%b}}\n\n'
_DELTAS = {
    SectionKind.TEXT: (b"text_delta", b"text"),
    SectionKind.THOUGHT: (b"thinking_delta", b"thinking"),
    SectionKind.CALL: (b"input_json_delta", b"partial_json"),
}


def _signed(index: int) -> bytes:
    return _DELTA % (index, b"signature_delta", b"signature", _encode(SIGNATURE))


def _event(name: str, fields: _Json) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **fields}) + b"\n\n"


def _block(section: Section, text: str, *, shown: bool) -> OutputBlock:
    match section.kind:
        case SectionKind.TEXT:
            return TextOut(text=text)
        case SectionKind.THOUGHT:
            return ThinkingOut(thinking=text if shown else "", signature=SIGNATURE if text else "")
        case SectionKind.CALL:
            given = msgspec.json.decode(text, type=_Json) if text else {}
            return ToolUseOut(id="toolu_" + section.call_id.removeprefix("call_"), name=section.name, input=given)


def _ending(ended: Ended, final: Final, *, clamped: bool) -> _Ending:
    match final.finish_reason:
        case FinishReason.TOOL_CALLS:
            return _Ending("tool_use", None, ended.detail)
        case FinishReason.LENGTH:
            return _Ending("model_context_window_exceeded" if clamped else "max_tokens", None, ended.detail)
        case FinishReason.STOP if isinstance(ended.stop, str):
            return _Ending("stop_sequence", ended.stop, ended.detail)
        case FinishReason.STOP:
            return _Ending("end_turn", None, ended.detail)
