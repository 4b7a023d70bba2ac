"""Whether an answer that was interrupted is the answer that would have been given. The rules:

1. It ended well, with as many tokens as were asked for, and its text is that of its tokens.
2. Token by token it equals the undisturbed answer to the same prompt, or differs first at a near-tie: the undisturbed engine
   gave both tokens nearly the same probability, so that the shape of a batch may decide between them.
3. From a near-tie on the undisturbed answer is another one. It is asked for anew, as the answer to prompt and tokens up to and
   including the difference, and 2 holds for the rest, and so on to the end.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ops.bench.hearing import Heard, Token
from ops.errors import BenchFailed

NEAR_TIE = 0.05
"""Nats between two tokens below which rounding may choose: that far other batch shapes move the logits of a random fp16 model."""
_PART = "\N{REPLACEMENT CHARACTER}"
"""What stands for a token that is a part of a character."""
_WITNESSES = 6
"""Tokens that must agree for a difference to count as a shift of the whole text."""

Ask = Callable[[tuple[int, ...], int], Awaitable[Heard]]
"""Gives the undisturbed answer of so many tokens to a prompt."""


class Harm(Enum):
    """What happened to an answer."""

    LOST = "lost"
    """Its end or some of its tokens never came."""
    DUPLICATED = "duplicated"
    """Some of its tokens came twice."""
    CHANGED = "changed"
    """It went on as it should not have."""


@dataclass(slots=True)
class Likeness:
    """What the comparison found."""

    harm: Harm | None = None
    detail: str = ""
    gaps: list[float] = field(default_factory=list[float])
    """Nats at each near-tie that went the other way."""
    unseen: int = 0
    """Tokens after a near-tie that could not be compared, because tokens before them are parts of characters."""


class Words:
    """Ids of tokens that are known by their text alone."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        """`texts` of all ids; those that share one cannot be told apart."""
        self._ids: dict[str, int | None] = {}
        for token, text in texts.items():
            self._ids[text] = None if text in self._ids else token

    def ids(self, tokens: Sequence[Token]) -> tuple[int, ...] | None:
        """Their ids; None where a text belongs to several."""
        found = [self._ids.get(token.text) for token in tokens]
        known = tuple(token for token in found if token is not None)
        return known if len(known) == len(found) else None


def count_harm(heard: Heard, wanted: int) -> Likeness | None:
    """Rule 1; None where it holds."""
    if heard.problem is not None or not heard.complete or heard.finish is None:
        return Likeness(Harm.LOST, heard.problem or "it has no end")
    if len(heard.tokens) < wanted:
        return Likeness(Harm.LOST, f"{len(heard.tokens)} tokens of {wanted}")
    if len(heard.tokens) > wanted:
        return Likeness(Harm.DUPLICATED, f"{len(heard.tokens)} tokens of {wanted}")
    if heard.counted != wanted:
        return Likeness(Harm.LOST, f"the server counted {heard.counted} tokens of {wanted}")
    text = "".join(token.text for token in heard.tokens)
    if _PART not in text and heard.text != text:
        return Likeness(Harm.CHANGED, "its text is not that of its tokens")
    return None


def first_difference(one: Sequence[Token], other: Sequence[Token]) -> int | None:
    """Where two answers say different things first."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a.text != b.text), None)


def gap(undisturbed: Token, other: Token) -> float | None:
    """Nats by which the undisturbed engine preferred its token to the other; None where the other was not near at all."""
    rival = undisturbed.top.get(other.text)
    return None if rival is None else undisturbed.logprob - rival


def kind_of_change(undisturbed: Sequence[Token], disturbed: Sequence[Token], at: int) -> Harm:
    """What a difference at `at` that is no near-tie looks like: tokens left out, tokens said again, or other ones."""
    texts, came = [token.text for token in undisturbed], [token.text for token in disturbed]
    seen = came[at : at + _WITNESSES]
    for shift in range(1, len(texts)):
        if len(seen) == _WITNESSES and texts[at + shift : at + shift + _WITNESSES] == seen:
            return Harm.LOST
        if len(seen) == _WITNESSES and shift <= at and texts[at - shift : at - shift + _WITNESSES] == seen:
            return Harm.DUPLICATED
    return Harm.CHANGED


async def compare(ask: Ask, words: Words, heard: Heard, wanted: int) -> Likeness:
    """All rules. Raises BenchFailed where the undisturbed engine does not answer."""
    found = count_harm(heard, wanted)
    if found is not None:
        return found
    found = Likeness()
    start = 0
    while start < wanted:
        known = words.ids(heard.tokens[:start])
        if known is None:
            found.unseen = wanted - start
            break
        undisturbed = await ask(heard.prompt + known, wanted - start)
        problem = count_harm(undisturbed, wanted - start)
        if problem is not None:
            raise BenchFailed(f"an undisturbed answer is not whole: {problem.detail}")
        rest = heard.tokens[start:]
        at = first_difference(undisturbed.tokens, rest)
        if at is None:
            break
        distance = gap(undisturbed.tokens[at], rest[at])
        if distance is None or distance > NEAR_TIE:
            found.harm = kind_of_change(undisturbed.tokens, rest, at)
            found.detail = f"token {start + at}: {rest[at].text!r} for {undisturbed.tokens[at].text!r}, gap {distance}"
            break
        found.gaps.append(distance)
        start += at + 1
    return found
