"""Where recognised parts of an answer become deltas. Owns the rules on white space around tags and on calls' indexes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from daemon.chat.parsers.deltas import CallArguments, CallEnd, CallStart, ContentDelta, Delta, ReasoningDelta


class CallSink(Protocol):
    """Where a call goes as it is read. One call at a time: begin, write…, then end or abandon."""

    def begin(self, name: str) -> None:
        """A call of `name` is certain."""
        ...

    def write(self, text: str) -> None:
        """More of its arguments as JSON text."""
        ...

    def end(self) -> None:
        """It is complete."""
        ...

    def abandon(self) -> None:
        """It turned out broken or cut off; what was written stands but is never completed. Without a call: nothing."""
        ...


class _Hold:
    """White space that is given out only if text follows it."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        if text:
            self._parts.append(text)

    def release(self) -> str:
        if not self._parts:
            return ""
        text = "".join(self._parts)
        self._parts.clear()
        return text


class Transcript:
    """Collects an answer's deltas, neighbours of one kind joined.

    White space around thoughts and calls is layout, not content: it is held back until text follows, and dropped where none
    does. Inside content and thoughts it is kept exactly.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._deltas: list[Delta] = []
        self._texts: list[str] = []
        self._make: Callable[[str], Delta] | None = None
        self._hold = _Hold()
        self._joint: str | None = None  # white space before what was cut out of the content; None: nothing was
        self._content = False
        self._thoughts = False  # whether any thought had text
        self._thought = False  # whether this thought has
        self._after_thought = False
        self._index = -1
        self._open = False
        self.calls = 0
        """Complete calls so far."""

    # --- text ---------------------------------------------------------------------------------------------------------

    def content(self, text: str) -> None:
        """Visible text."""
        kept = text.rstrip()
        if not kept:
            self._hold.add(text)
            return
        if self._joint is None and (self._content or not self._after_thought):
            self._add(ContentDelta, self._hold.release() + kept)
        else:
            self._add(ContentDelta, self._lead(kept) + kept.lstrip())
        self._joint = None
        self._content = True
        if len(kept) < len(text):
            self._hold.add(text[len(kept) :])

    def _lead(self, text: str) -> str:
        """The white space in front of the first text behind a thought or call."""
        lead = self._hold.release() + text[: len(text) - len(text.lstrip())]
        if self._joint is not None and self._content:
            # Text on both sides of a cut keeps the layout of one side, not of both.
            return self._joint or lead
        return _without_blank_lines(lead)

    def cut(self) -> None:
        """Something that is no content stood here."""
        held = self._hold.release()
        if self._joint is None:
            self._joint = held

    def reasoning(self, text: str) -> None:
        """Text of a thought."""
        kept = text.rstrip()
        if not kept:
            self._hold.add(text)
            return
        held = self._hold.release()
        whole = held + kept
        if not self._thought:
            whole = whole.lstrip("\r\n")
            if self._thoughts:
                whole = "\n" + whole
        self._thought = self._thoughts = True
        self._add(ReasoningDelta, whole)
        self._hold.add(text[len(kept) :])

    def begin_reasoning(self) -> None:
        """A thought begins."""
        self.cut()
        self._thought = False

    def end_reasoning(self) -> None:
        """The thought is over."""
        held = self._hold.release().rstrip("\r\n")
        if self._thought and held:
            self._add(ReasoningDelta, held)
        self._thought = False
        self._after_thought = True

    def finish(self) -> None:
        """The answer is over: white space at its end is content if nothing was cut out after the last text."""
        held = self._hold.release()
        if self._content and self._joint is None and held:
            self._add(ContentDelta, held)

    # --- calls --------------------------------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """See CallSink."""
        self.cut()
        self._index += 1
        self._open = True
        self._settle()
        self._deltas.append(CallStart(self._index, self._new_id(), name))

    def write(self, text: str) -> None:
        """See CallSink."""
        if text:
            self._add(self._arguments, text)

    def end(self) -> None:
        """See CallSink."""
        self._settle()
        self._deltas.append(CallEnd(self._index))
        self._open = False
        self.calls += 1

    def abandon(self) -> None:
        """See CallSink."""
        self._open = False

    def drain(self) -> list[Delta]:
        """The deltas since the last drain."""
        self._settle()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _arguments(self, text: str) -> Delta:
        return CallArguments(self._index, text)

    def _add(self, make: Callable[[str], Delta], text: str) -> None:
        if make != self._make:
            self._settle()
            self._make = make
        self._texts.append(text)

    def _settle(self) -> None:
        texts = self._texts
        if self._make is not None and texts:
            self._deltas.append(self._make(texts[0] if len(texts) == 1 else "".join(texts)))
            texts.clear()
        self._make = None


def _without_blank_lines(lead: str) -> str:
    """White space that begins a text, without its empty lines: the indentation of the first line stays."""
    return lead[lead.rindex("\n") + 1 :] if "\n" in lead else ""


@dataclass(frozen=True, slots=True)
class _Begun:
    name: str


@dataclass(frozen=True, slots=True)
class _Written:
    text: str


@dataclass(frozen=True, slots=True)
class _Complete:
    pass


_Event: TypeAlias = _Begun | _Written | _Complete


class HeldCalls:
    """Calls that are certain only when more of the answer is known; replayed or dropped then."""

    def __init__(self) -> None:
        self._events: list[_Event] = []
        self._settled = 0
        self.names: list[str] = []
        """Names of the complete calls."""

    def begin(self, name: str) -> None:
        """See CallSink."""
        self._events.append(_Begun(name))

    def write(self, text: str) -> None:
        """See CallSink."""
        self._events.append(_Written(text))

    def end(self) -> None:
        """See CallSink."""
        begun = self._events[self._settled]
        if isinstance(begun, _Begun):
            self.names.append(begun.name)
        self._events.append(_Complete())
        self._settled = len(self._events)

    def abandon(self) -> None:
        """See CallSink."""
        del self._events[self._settled :]

    def replay(self, sink: CallSink) -> None:
        """Give the complete calls to `sink`."""
        self.abandon()
        for event in self._events:
            match event:
                case _Begun(name):
                    sink.begin(name)
                case _Written(text):
                    sink.write(text)
                case _Complete():
                    sink.end()
