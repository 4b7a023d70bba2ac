"""How long an answer may be: what was asked for, fitted to the room that prompt and context leave. Pure."""

from dataclasses import dataclass

from daemon.core.errors import ContextTooLong, InvalidRequest
from daemon.core.people import Person
from daemon.core.ports import ModelCard
from daemon.core.settings import Overflow

CLAMPED_HEADER = "x-exl3d-max-tokens-clamped"


@dataclass(frozen=True, slots=True)
class Length:
    """Limits of one answer in tokens. `clamped_from` is what was asked for where that was more."""

    most: int
    least: int
    clamped_from: int | None = None

    @property
    def note(self) -> str | None:
        """Value of CLAMPED_HEADER, as in `65536->63382`."""
        return None if self.clamped_from is None else f"{self.clamped_from}->{self.most}"


def own_context(card: ModelCard, person: Person) -> int:
    """The longest prompt + answer of a person's requests, in tokens: the model's, or their own where that is less."""
    return card.context if person.max_context is None else min(card.context, person.max_context)


def fit(prompt: int, asked: int | None, least: int | None, context: int, overflow: Overflow) -> Length:
    """Fit an answer beside a prompt of `prompt` tokens. `asked` None: to the end of the context.

    Raises ContextTooLong where the prompt leaves no room or `overflow` refuses, InvalidRequest where `least` exceeds `asked`.
    """
    room = context - prompt
    if room < 1:
        raise ContextTooLong(limit=context, requested=asked or 1, prompt=prompt)
    if asked is None:
        return Length(room, min(least or 0, room))
    if least is not None and least > asked:
        raise InvalidRequest(f"`min_tokens` is {least}; expected at most `max_tokens`, which is {asked}.", "min_tokens")
    if asked <= room:
        return Length(asked, least or 0)
    match overflow:
        case Overflow.REFUSE:
            raise ContextTooLong(limit=context, requested=asked, prompt=prompt)
        case Overflow.CLAMP:
            return Length(room, min(least or 0, room), clamped_from=asked)
