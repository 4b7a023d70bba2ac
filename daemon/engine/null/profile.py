r"""The JSON file behind `engine.null_profile`: what the null model says, how long it takes, and where it fails.

Everything is optional; `{}` is a model that says plain tokens for ever in no time. An example:

    {
      "scripts": [{"marker": "weather", "text": "<tool_call>{\"name\": \"weather\"}</tool_call>"}],
      "decode": [{"at": 1, "seconds": 0.02}, {"at": 64, "seconds": 0.03}],
      "prefill": [{"at": 256, "seconds": 0.05}, {"at": 2048, "seconds": 0.25}],
      "decode_context": 1e-8,
      "recurrent": {"checkpoint_mib": 50, "checkpoint_seconds": 0.01},
      "faults": [{"kind": "raise", "place": "decode", "step": 20}]
    }
"""

from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import msgspec


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the parts of a profile."""


class Script(_Part, frozen=True):
    """What the model answers to a prompt, token by token from where generated text begins.

    A prompt is answered by the script whose marker stands last in it; else by the script with its number; else with plain
    tokens. A resumed request goes on in the middle of its script.
    """

    marker: str = ""
    """Text the prompt contains, as the tokenizer decodes it, control tokens included."""
    order: int | None = None
    """The request with this number, counted from 1 in the order in which they are first seen."""
    text: str = ""
    """The answer as text; names of control tokens stand for the tokens."""
    ids: list[int] = []
    """The answer as ids; instead of `text`."""
    ends: bool = True
    """Say the end-of-answer token after it. Otherwise plain tokens follow."""


class Point(_Part, frozen=True):
    """One measured time. Between points times are interpolated; beyond the last one they grow in proportion."""

    at: int
    """Rows of a decode pass, or tokens of a prefill chunk."""
    seconds: float


class FaultKind(Enum):
    """How a pass fails."""

    RAISE = "raise"
    """An exception that says nothing about the device."""
    MEMORY = "memory"
    """Out of memory."""
    DEVICE = "device"
    """A sticky device error."""
    NOT_FINITE = "not_finite"
    """NaN in the logits: of the marked request's row, or of all rows."""
    HANG = "hang"
    """The pass never comes back."""
    EXIT = "exit"
    """The process is gone, as if killed."""


class FaultPlace(Enum):
    """Which pass fails."""

    DECODE = "decode"
    PREFILL = "prefill"


class Fault(_Part, frozen=True):
    """A failure to play, once or `times` times."""

    kind: FaultKind
    place: FaultPlace = FaultPlace.DECODE
    step: int | None = None
    """The pass of its place with this number, counted from 1, and following ones up to `times`; None: any."""
    marker: str = ""
    """Only passes with a prompt that contains this text."""
    token: int = 0
    """With a marker: only once this many tokens have been generated for it."""
    times: int = 1


class Recurrent(_Part, frozen=True):
    """Makes the model a hybrid: it has slots for as many streams as `engine.max_batch`, and prefixes are of use only up to a page
    with a checkpoint.
    """

    interval: int = 2048
    """Tokens between two checkpoints that stay while it generates."""
    checkpoint_mib: float = 50.0
    """What one takes of `engine.checkpoint_memory_mib`."""
    checkpoint_seconds: float = 0.0
    """How long it takes to copy one."""


class NullProfile(_Part, frozen=True):
    """The whole file."""

    name: str = ""
    sources: list[str] = []
    """Where the numbers come from."""
    scripts: list[Script] = []
    decode: list[Point] = []
    """Seconds of a decode pass by rows, over empty contexts."""
    decode_context: float = 0.0
    """Seconds that each token in the context of each row adds to a decode pass."""
    prefill: list[Point] = []
    """Seconds of a prefill pass by tokens, at the beginning of a prompt."""
    prefill_context: float = 0.0
    """Seconds that each token before the chunk adds for each token of it."""
    recurrent: Recurrent | None = None
    faults: list[Fault] = []


def read_profile(path: str | None) -> NullProfile:
    """The profile in a file, or an empty one. Raises OSError and msgspec.ValidationError."""
    return NullProfile() if path is None else msgspec.json.decode(Path(path).read_bytes(), type=NullProfile)


class Curve:
    """Times by rows or tokens. No point: no time."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = sorted(points, key=lambda point: point.at)
        self._places = [point.at for point in self._points]

    def seconds(self, at: int) -> float:
        """The time for `at` rows or tokens."""
        if not self._points:
            return 0.0
        place = bisect_right(self._places, at)
        if place == 0:
            return self._points[0].seconds
        low = self._points[place - 1]
        if place == len(self._points):
            return low.seconds * at / low.at if low.at else low.seconds
        high = self._points[place]
        return low.seconds + (high.seconds - low.seconds) * (at - low.at) / (high.at - low.at)
