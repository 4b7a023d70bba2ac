"""What `python -m daemon.engine.bare` is asked and answers, a JSON document a line: generating without a daemon."""

import msgspec


class BareRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Generate for every prompt, `streams` of them at any time."""

    prompts: list[str]
    streams: int
    tokens: int
    """Tokens for each prompt."""
    late: str | None = None
    """A prompt that comes, for one token, once everybody has generated `late_after` tokens."""
    late_after: int = 16


class BareReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line: everything is loaded."""

    backend: str


class BareResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run took."""

    tokens: int
    """Generated, all prompts together."""
    seconds: float
    """From the first job enqueued to the last token."""
    gaps_before: list[float] = []
    """Seconds between two tokens of a prompt until the late one came."""
    gaps_beside: list[float] = []
    """The same while that one was prefilled."""
    late_seconds: float | None = None
    """From the late prompt's enqueuing to its token."""
