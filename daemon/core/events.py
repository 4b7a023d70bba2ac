"""What a stream gives to whoever serves its client. Every stream ends in exactly one `Ended` or `Broken`.

Structs, since one is made for every token: they cost a fraction of a frozen dataclass.
"""

from enum import Enum
from typing import TypeAlias

import msgspec

from daemon.core.errors import RequestError
from daemon.core.wire import TokenLogprob


class Ending(Enum):
    """Why an answer ended well, in OpenAI's words where they have one."""

    STOP = "stop"
    LENGTH = "length"


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one stream."""

    prompt: int
    cached: int
    completion: int
    reasoning: int = 0


class Opened(msgspec.Struct, frozen=True):
    """Pages are held and prefill begins. Sent once, whatever happens to engines later."""

    cached: int
    queued: float
    """Seconds between acceptance and this."""
    at: float | None = None
    """CLOCK_MONOTONIC seconds at which the pages were held; the event itself comes later."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Text that is certain: no half character, no half stop string. `ids` are the tokens received since the last piece;
    they may run ahead of the text. `text` may be empty.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


class Paused(msgspec.Struct, frozen=True):
    """Nothing will come for a while; `why` is for people. The client must be kept waiting."""

    why: str


class ThoughtClosing(Enum):
    """Why a thought was closed that the model did not close itself."""

    STOP = "stop"
    """The model stopped inside it."""
    BUDGET = "budget"
    """Its budget was spent."""
    REPETITION = "repetition"
    """It ran in circles."""


REPETITION = "repetition"
"""`Ended.detail` of an answer that ran in circles and was ended for it."""


class Ended(msgspec.Struct, frozen=True):
    """The answer is complete. `stop` is the stop string or stop id that ended it; `detail` an extension such as `repetition`."""

    ending: Ending
    usage: Usage
    stop: str | int | None = None
    detail: str | None = None
    closings: tuple[ThoughtClosing, ...] = ()
    """Thoughts that were closed on the way, as far as the engine told."""


class Broken(msgspec.Struct, frozen=True):
    """The answer cannot be completed. What was delivered stands."""

    error: RequestError
    usage: Usage


StreamEvent: TypeAlias = Opened | Piece | Paused | Ended | Broken
