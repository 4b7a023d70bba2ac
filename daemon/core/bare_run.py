"""What `python -m daemon.engine.bare` is asked and answers, a JSON document a line: generating without a daemon."""

import msgspec


class BareRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Generate for every prompt, `streams` of them at any time."""

    prompts: list[str]
    streams: int
    tokens: int
    """Tokens for each prompt."""


class BareReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line: everything is loaded."""

    backend: str


class BareResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run took."""

    tokens: int
    """Generated, all prompts together."""
    seconds: float
    """From the first job enqueued to the last token."""
