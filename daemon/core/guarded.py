"""Text from people that must not act as a control token, marked so that it survives a template.

Models read tokens such as `<|im_end|>` as structure. A person's message may contain that very text. `guard` puts a mark
inside each such occurrence before the template is rendered; the tokenizer later finds the marks, removes them and encodes
those occurrences as ordinary text (`pieces`). Text without such occurrences is not touched, so ordinary prompts are encoded
exactly as the model's own tokenizer would.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MARK = "\ufdd0"
"""A Unicode noncharacter: never part of text that is meant to be exchanged, so it can be removed from what people send."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A stretch of a rendered prompt. With `literal`, control tokens in it are ordinary text."""

    text: str
    literal: bool


class Guard:
    """Knows a tokenizer's control tokens (`texts`, the added tokens of tokenizer.json)."""

    def __init__(self, texts: Iterable[str]) -> None:
        ordered = sorted({text for text in texts if text}, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        marked = "|".join(re.escape(text[0] + MARK + text[1:]) for text in ordered)
        self._marked = re.compile(f"({marked})") if ordered else None

    def guard(self, text: str) -> str:
        """`text` with every control token in it marked, and marks that were in it removed."""
        text = text.replace(MARK, "")
        if self._control is None:
            return text
        return self._control.sub(lambda found: found[0][0] + MARK + found[0][1:], text)

    def pieces(self, rendered: str) -> Iterator[Guarded]:
        """A rendered prompt as stretches to encode one after the other; one stretch where nothing is marked."""
        if MARK not in rendered or self._marked is None:
            yield Guarded(rendered.replace(MARK, ""), literal=False)
            return
        for index, part in enumerate(self._marked.split(rendered)):
            if part:
                yield Guarded(part.replace(MARK, ""), literal=index % 2 == 1)
