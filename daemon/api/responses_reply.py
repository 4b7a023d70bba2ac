"""Answers of `/v1/responses`: items in one response, or the events of a stream. Both are written from the same sections.

A call that was cut off or broken is no item of a response. In a stream, where it has begun already, its arguments are never done
and its item ends as incomplete: clients insist on an end of every item, and this one says that nobody must carry it out.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from daemon.api.errors import Answer
from daemon.api.responses_schemas import (
    IncompleteDetails,
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningParam,
    ReasoningText,
    ResponseInputDetails,
    ResponseOut,
    ResponseOutputDetails,
    ResponseProblem,
    ResponsesBody,
    ResponseUsage,
    SummaryText,
    TextFormat,
    TextParam,
)
from daemon.api.sections import Begun, More, Over, Section, SectionEvent, SectionKind, Telling
from daemon.api.speech import Parser
from daemon.api.sse import comment
from daemon.api.watch import Watch
from daemon.chat.parsing import FinishReason
from daemon.core.errors import InvariantBroken
from daemon.core.events import Broken, Ended, Opened, Paused, Piece, StreamEvent
from daemon.core.wire import Sampler

_encode = msgspec.json.encode
_Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """What all parts of one answer share. `sampler` and `limit` are what the request came down to."""

    id: str
    model: str
    body: ResponsesBody
    sampler: Sampler
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def summarises(self) -> bool:
        """Whether thoughts are given as summaries."""
        asked = self.body.reasoning
        return asked is not None and (asked.summary is not None or asked.generate_summary is not None)

    def item_id(self, section: Section) -> str:
        """The id of a section's item."""
        return f"{_PREFIXES[section.kind]}_{self.id.removeprefix('resp_')}{section.index:02}"


_PREFIXES = {SectionKind.THOUGHT: "rs", SectionKind.TEXT: "msg", SectionKind.CALL: "fc"}


class ResponseDraft:
    """Folds an answer into one response."""

    def __init__(self, facts: ResponseFacts, watch: Watch, parser: Parser) -> None:
        self.watch = watch
        self._facts = facts
        self._telling = Telling(watch, parser)
        self._output: list[OutputItem] = []
        self._ended: Ended | None = None

    @property
    def finish_reason(self) -> str:
        """Why it ended, in the words of the metrics; empty before."""
        return self._telling.finish_reason

    def take(self, event: StreamEvent) -> bytes:
        """Keep what the event brings."""
        self.hear(event)
        return b""

    def hear(self, event: StreamEvent) -> list[SectionEvent]:
        """Keep what the event brings, and say which sections it made."""
        match event:
            case Piece():
                return self._keep(self._telling.piece(event))
            case Ended():
                self._ended = event
                sections, _ = self._telling.end(event)
                return self._keep(sections)
            case Opened() | Paused() | Broken():
                return []

    def response(self) -> ResponseOut:
        """The finished response."""
        if self._ended is None:
            raise InvariantBroken("a response was asked for before its end")
        detail = self._ended.detail
        cut = self.finish_reason == FinishReason.LENGTH.value
        return msgspec.structs.replace(
            self.so_far(),
            status="incomplete" if cut else "completed",
            usage=_usage_of(self.watch),
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if cut else None,
            stop_detail=msgspec.UNSET if detail is None else detail,
        )

    def so_far(self) -> ResponseOut:
        """The response at this moment."""
        facts, body = self._facts, self._facts.body
        return ResponseOut(
            id=facts.id,
            created_at=facts.created,
            model=facts.model,
            status="in_progress",
            output=self._output,
            usage=None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=body.reasoning or ReasoningParam(),
            temperature=facts.sampler.temperature,
            text=body.text or TextParam(format=TextFormat(type="text")),
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_p=facts.sampler.top_p,
            user=body.user,
        )

    def _keep(self, events: list[SectionEvent]) -> list[SectionEvent]:
        for event in events:
            match event:
                case Over(section, text, complete):
                    if complete or section.kind is not SectionKind.CALL:
                        self._output.append(item_of(self._facts, section, text, "completed" if complete else "incomplete"))
                case Begun() | More():
                    pass
        return events


class ResponseVoice:
    """Writes the events of a stream. The first goes out with the first text: until then an error has its own status."""

    def __init__(self, facts: ResponseFacts, watch: Watch, parser: Parser) -> None:
        self.watch = watch
        self._facts = facts
        self._draft = ResponseDraft(facts, watch, parser)
        self._number = 0
        self._started = False

    @property
    def finish_reason(self) -> str:
        """Why it ended, in the words of the metrics; empty before."""
        return self._draft.finish_reason

    def take(self, event: StreamEvent) -> bytes:
        """The events that an event makes."""
        match event:
            case Piece():
                return self._written(self._draft.hear(event))
            case Ended():
                sections = self._draft.hear(event)
                response = self._draft.response()
                written = self._written(sections) or self._start()
                return written + self._event(f"response.{response.status}", {"response": response})
            case Paused():
                return comment(event.why)
            case Opened() | Broken():
                return b""

    def failure(self, answer: Answer) -> bytes:
        """The end of a broken stream. Clients that read only `error` find the text there."""
        problem: _Json = {"message": answer.message, "type": answer.type, "param": answer.param, "code": answer.code}
        failed = msgspec.structs.replace(
            self._draft.so_far(),
            status="failed",
            error=ResponseProblem(code=answer.code or answer.type, message=answer.message),
        )
        start = self._start()
        told = self._event("error", {name: problem[name] for name in ("message", "param", "code")} | {"error": problem})
        return start + told + self._event("response.failed", {"response": failed})

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        empty = msgspec.structs.replace(self._draft.so_far(), output=[])
        return self._event("response.created", {"response": empty}) + self._event("response.in_progress", {"response": empty})

    def _written(self, events: Sequence[SectionEvent]) -> bytes:
        if not events:
            return b""
        return self._start() + b"".join(map(self._section, events))

    def _section(self, event: SectionEvent) -> bytes:
        section = event.section
        place: _Json = {"item_id": self._facts.item_id(section), "output_index": section.index}
        form = _FORMS[_Kind(section.kind, self._facts.summarises and section.kind is SectionKind.THOUGHT)]
        match event:
            case Begun():
                item = item_of(self._facts, section, "", "in_progress", begun=True)
                return self._event("response.output_item.added", {"output_index": section.index, "item": item}) + self._part(
                    form, "added", place, ""
                )
            case More(text=text):
                return self._event(form.text + ".delta", {**place, **form.index, "delta": text, **form.extra})
            case Over(text=text, complete=False) if section.kind is SectionKind.CALL:
                item = item_of(self._facts, section, text, "incomplete")
                return self._event("response.output_item.done", {"output_index": section.index, "item": item})
            case Over(text=text, complete=complete):
                status: ItemStatus = "completed" if complete else "incomplete"
                item = item_of(self._facts, section, text, status)
                done: _Json = {**place, **form.index, form.whole: text, **form.extra}
                if section.kind is SectionKind.CALL:
                    done["name"] = section.name
                return (
                    self._event(form.text + ".done", done)
                    + self._part(form, "done", place, text)
                    + self._event("response.output_item.done", {"output_index": section.index, "item": item})
                )

    def _part(self, form: "_Form", what: str, place: _Json, text: str) -> bytes:
        if form.part is None:
            return b""
        return self._event(f"{form.part}.{what}", {**place, **form.index, "part": {**form.blank, "text": text}})

    def _event(self, name: str, fields: Mapping[str, object]) -> bytes:
        data = _encode({"type": name, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Which way of writing a section down."""

    kind: SectionKind
    summary: bool


@dataclass(frozen=True, slots=True)
class _Form:
    """How the events of a section are named, and what stands in them besides the text."""

    text: str
    whole: str
    """Field of the whole text."""
    part: str | None = None
    """Events of the part that the text stands in; None where the item has no parts."""
    index: Mapping[str, object] = field(default_factory=dict[str, object])
    extra: Mapping[str, object] = field(default_factory=dict[str, object])
    blank: Mapping[str, object] = field(default_factory=dict[str, object])


_CONTENT = "response.content_part"
_FIRST_CONTENT: Mapping[str, object] = {"content_index": 0}
_FORMS: Mapping[_Kind, _Form] = {
    _Kind(SectionKind.TEXT, summary=False): _Form(
        "response.output_text",
        "text",
        _CONTENT,
        _FIRST_CONTENT,
        {"logprobs": []},
        {"type": "output_text", "annotations": [], "logprobs": []},
    ),
    _Kind(SectionKind.THOUGHT, summary=False): _Form(
        "response.reasoning_text", "text", _CONTENT, _FIRST_CONTENT, blank={"type": "reasoning_text"}
    ),
    _Kind(SectionKind.THOUGHT, summary=True): _Form(
        "response.reasoning_summary_text",
        "text",
        "response.reasoning_summary_part",
        {"summary_index": 0},
        blank={"type": "summary_text"},
    ),
    _Kind(SectionKind.CALL, summary=False): _Form("response.function_call_arguments", "arguments"),
}


def item_of(facts: ResponseFacts, section: Section, text: str, status: ItemStatus, *, begun: bool = False) -> OutputItem:
    """A section as an item; with `begun`, before it has any part."""
    item_id = facts.item_id(section)
    match section.kind:
        case SectionKind.TEXT:
            return OutputMessage(id=item_id, status=status, content=[] if begun else [OutputText(text=text)])
        case SectionKind.THOUGHT if facts.summarises:
            return OutputReasoning(id=item_id, status=status, summary=[] if begun else [SummaryText(text=text)])
        case SectionKind.THOUGHT:
            return OutputReasoning(id=item_id, status=status, content=[] if begun else [ReasoningText(text=text)])
        case SectionKind.CALL:
            return OutputCall(id=item_id, call_id=section.call_id, name=section.name, arguments=text, status=status)


def _usage_of(watch: Watch) -> ResponseUsage:
    usage = watch.so_far()
    return ResponseUsage(
        input_tokens=usage.prompt,
        input_tokens_details=ResponseInputDetails(cached_tokens=usage.cached),
        output_tokens=usage.completion,
        output_tokens_details=ResponseOutputDetails(reasoning_tokens=usage.reasoning),
        total_tokens=usage.prompt + usage.completion,
    )
