r"""The JSON file behind `engine.null_profile`: what the null model says, how long it takes, and where it fails.

Everything is optional; `{}` is a model that says plain tokens for ever in no time. An example:

    {
      "scripts": [{"marker": "weather", "text": "<tool_call>{\"name\": \"weather\"}</tool_call>"}],
      "decode": [{"at": 1, "seconds": 0.02}, {"at": 64, "seconds": 0.03}],
      "prefill": [{"at": 256, "seconds": 0.05}, {"at": 2048, "seconds": 0.25}],
      "faults": [{"kind": "raise", "place": "decode", "step": 20}]
    }
"""

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


class NullProfile(_Part, frozen=True):
    """The whole file."""

    scripts: list[Script] = []
    decode: list[Point] = []
    prefill: list[Point] = []
    faults: list[Fault] = []


def read_profile(path: str | None) -> NullProfile:
    """The profile in a file, or an empty one. Raises OSError and msgspec.ValidationError."""
    return NullProfile() if path is None else msgspec.json.decode(Path(path).read_bytes(), type=NullProfile)


def seconds_at(points: Sequence[Point], at: int) -> float:
    """The time for `at` rows or tokens."""
    if not points:
        return 0.0
    ordered = sorted(points, key=lambda point: point.at)
    below = [point for point in ordered if point.at <= at]
    above = [point for point in ordered if point.at > at]
    if not below:
        return above[0].seconds
    low = below[-1]
    if not above:
        return low.seconds * at / low.at if low.at else low.seconds
    high = above[0]
    return low.seconds + (high.seconds - low.seconds) * (at - low.at) / (high.at - low.at)
