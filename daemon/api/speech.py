"""How the served model speaks: what the chat room's parsers need for each answer, and what engines must know about thoughts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from daemon.chat.parsing import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentDelta,
    Delta,
    Dialect,
    Final,
    FinishReason,
    Format,
    ReasoningDelta,
    build_parser,
    detect,
    visible_tokens,
)
from daemon.chat.tool_schemas import Tool
from daemon.core.events import Ending
from daemon.core.model import AddedToken
from daemon.core.ports import Tokenizing
from daemon.core.wire import Reasoning


class Parser(Protocol):
    """One answer's parser."""

    def feed(self, text: str) -> list[Delta]:
        """What is certain after more text."""
        ...

    def finish(self, ending: Ending) -> Final:
        """The rest, and why it ended."""
        ...


class Speech:
    """The dialect of one model, read from its chat template (`template`: that for chats with tools) and its added tokens."""

    def __init__(self, template: str, added: Sequence[AddedToken], tokenizing: Tokenizing) -> None:
        self.dialect: Dialect = detect(template, added_tokens=[token.text for token in added])
        visible = frozenset(visible_tokens(self.dialect))
        self.shown_ids = frozenset(token.id for token in added if token.text in visible)
        """Special ids whose text the parser must see."""
        self._tokenizing = tokenizing
        self._thought: Reasoning | None = None

    async def thought(self, budget: int | None) -> Reasoning | None:
        """What an engine needs when the answer begins inside a thought; None where the model has no tags for thoughts.
        `budget` is the most tokens that the thought may take.
        """
        thinking = self.dialect.thinking
        if self._thought is None and thinking is not None:
            end = await self._tokenizing.encode_rendered(thinking.close)
            close = await self._tokenizing.encode_rendered(f"\n{thinking.close}\n\n")
            self._thought = Reasoning(end_ids=list(end), close_ids=list(close), inside=True)
        return None if self._thought is None else msgspec.structs.replace(self._thought, budget_left=budget)


@dataclass(frozen=True, slots=True)
class ParserPlan:
    """Makes the parsers of one request's choices."""

    dialect: Dialect
    tools: tuple[Tool, ...]
    """Tools that may be called now."""
    in_reasoning: bool
    """Whether the answers begin inside a thought."""
    one_call: bool = False
    """`parallel_tool_calls: false`: calls after the first are dropped."""

    def parser(self) -> Parser:
        """A parser for one answer."""
        if not self.tools and self.dialect.thinking is None and self.dialect.format is not Format.GPT_OSS:
            return _Verbatim()
        made = build_parser(self.dialect, self.tools, starts_in_reasoning=self.in_reasoning)
        return _FirstCall(made) if self.one_call else made


class _Verbatim:
    """Nothing can be told apart: the text is the answer, at no cost."""

    def feed(self, text: str) -> list[Delta]:
        return [ContentDelta(text)]

    def finish(self, ending: Ending) -> Final:
        reason = FinishReason.LENGTH if ending is Ending.LENGTH else FinishReason.STOP
        return Final((), reason, inside_reasoning=False)


class _FirstCall:
    """Lets one call through."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Delta]:
        return [delta for delta in self._parser.feed(text) if _is_first(delta)]

    def finish(self, ending: Ending) -> Final:
        final = self._parser.finish(ending)
        return Final(tuple(filter(_is_first, final.deltas)), final.finish_reason, final.inside_reasoning)


def _is_first(delta: Delta) -> bool:
    match delta:
        case CallStart(index) | CallArguments(index) | CallEnd(index):
            return index == 0
        case ContentDelta() | ReasoningDelta():
            return True
