"""Keeps people's text from acting as control tokens, whole or in pieces.

`core/guarded.py` marks control tokens inside a string. A template, though, puts strings next to each other and next to its
own text, and a token could come together across such a joint. So strings that begin or end with a part of a control token
carry a mark at that edge too, and after rendering `settle` looks at the whole: every control token with a mark inside is
marked in the one way the tokenizer side knows, and all other marks are removed. A prompt without forged tokens comes out
exactly as if nothing had been marked.
"""

import re
from collections.abc import Iterable
from typing import Final

from daemon.chat.json_values import JsonValue
from daemon.core.guarded import MARK, Guard
from daemon.core.model import AddedToken

ASSISTANT_TAGS: Final = frozenset(
    {
        *(f"{slash}{name}>" for slash in ("<", "</") for name in ("think", "thinking", "thought", "reasoning", "seed:think")),
        *(f"{slash}{name}>" for slash in ("<", "</") for name in ("tool_call", "tool_calls", "function_call", "function_calls")),
        *(f"{slash}{name}>" for slash in ("<", "</") for name in ("arg_key", "arg_value", "minimax:tool_call", "seed:tool_call")),
        *("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        *("<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>", '<|"|>', "<|python_tag|>"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),  # noqa: RUF001 - DeepSeek's own characters
    }
)
"""What an assistant's earlier words may contain as tokens: a call it wrote wrongly stays in its text and must be read back
as it was written. Tokens that end a turn, begin a role or carry a tool's result are never among them.
"""

CONTINUE: Final = "\ufdd1"
"""Stands in a rendered prompt where an unfinished answer goes on."""
IMAGE: Final = "\ufdd2"
"""Stands in a rendered prompt where a picture belongs."""
_OURS: Final = re.compile(f"[{MARK}{CONTINUE}{IMAGE}]")

_PIPES: Final = ("|", "｜")  # noqa: RUF001 - DeepSeek's full-width pipe


class ControlTokens:
    """The control tokens of one model, and the two ways of marking text: `people` and `assistant`.

    `sources` are the texts in which a model's own structure is written: its templates, its BOS and EOS.
    """

    def __init__(self, added: Iterable[AddedToken], sources: Iterable[str]) -> None:
        templates = tuple(sources)
        texts = frozenset(token.text for token in added if is_control(token, templates))
        self._people = Guard(texts)
        self._assistant = Guard(texts - ASSISTANT_TAGS)
        self._any = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None
        self._beginnings = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._endings = frozenset(text[start:] for text in texts for start in range(1, len(text)))
        self._first = frozenset(text[0] for text in texts)
        self._last = frozenset(text[-1] for text in texts)
        self._longest = max(map(len, texts), default=0)

    def people(self, text: str) -> str:
        """Text in which no control token may count."""
        return self._mark_edges(text, self._people)

    def assistant(self, text: str) -> str:
        """What the model said earlier: tags of thoughts and calls count, nothing else."""
        return self._mark_edges(text, self._assistant)

    def people_json(self, value: JsonValue) -> JsonValue:
        """As `people`, for all strings and keys in a value."""
        match value:
            case str():
                return self.people(value)
            case list():
                return [self.people_json(item) for item in value]
            case dict():
                return {self.people(key): self.people_json(item) for key, item in value.items()}
            case None | bool() | int() | float():
                return value

    def remark(self, text: str) -> str:
        """Text whose marks `tojson` has turned into escapes, marked afresh."""
        return self._people.guard(text.replace(MARK.encode("unicode_escape").decode(), ""))

    def settle(self, rendered: str) -> str:
        """A rendered prompt with marks only where control tokens must be read as text."""
        if MARK not in rendered:
            return rendered
        pieces = rendered.split(MARK)
        plain = "".join(pieces)
        if self._any is None:
            return plain
        marks: list[int] = []
        position = 0
        for piece in pieces[:-1]:
            position += len(piece)
            marks.append(position)
        return self._settle(plain, marks)

    def _settle(self, plain: str, marks: list[int]) -> str:
        out: list[str] = []
        done = 0
        upcoming = 0
        for found in self._any.finditer(plain) if self._any else ():
            while upcoming < len(marks) and marks[upcoming] <= found.start():
                upcoming += 1
            if upcoming == len(marks):
                break
            if marks[upcoming] < found.end():
                out += (plain[done : found.start() + 1], MARK, plain[found.start() + 1 : found.end()])
                done = found.end()
        out.append(plain[done:])
        return "".join(out)

    def _mark_edges(self, text: str, guard: Guard) -> str:
        text = guard.guard(text if text.isascii() else _OURS.sub("", text))
        end = len(text.rstrip())  # templates trim, so blanks at an edge separate nothing
        if self._ends_open(text[:end]):
            text = text[:end] + MARK + text[end:]
        start = len(text) - len(text.lstrip())
        if self._begins_open(text, start):
            text = text[:start] + MARK + text[start:]
        return text

    def _ends_open(self, text: str) -> bool:
        """Whether the text ends with the beginning of a control token."""
        tail = text[-self._longest :] if self._longest else ""
        return any(letter in self._first and tail[at:] in self._beginnings for at, letter in enumerate(tail))

    def _begins_open(self, text: str, start: int) -> bool:
        """Whether the text begins, after blanks, with the end of a control token."""
        head = text[start : start + self._longest]
        return any(letter in self._last and head[: at + 1] in self._endings for at, letter in enumerate(head))


def is_control(token: AddedToken, templates: Iterable[str]) -> bool:
    """Whether an added token is structure rather than a shortcut for ordinary text (runs of blanks, HTML tags). Tokenizers
    mark it unreliably, so tokens that look like control tokens or that the model's own template writes count as well.
    """
    text = token.text
    if not text.strip() or text.isalnum():
        return token.special and text.strip() != ""
    return (
        token.special
        or text in ASSISTANT_TAGS
        or any(pipe in text for pipe in _PIPES)
        or any(text in source for source in templates)
    )
