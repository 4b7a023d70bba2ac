"""Usage and timings as clients read them: OpenAI's counts, and llama-server's `timings` beside them."""

from collections.abc import Sequence

import msgspec

from daemon.api.watch import Watch
from daemon.core.events import Usage


class PromptDetails(msgspec.Struct, frozen=True):
    """What of the prompt was already known."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """What of the answer was thinking."""

    reasoning_tokens: int


class UsageBody(msgspec.Struct, frozen=True):
    """OpenAI's usage object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(msgspec.Struct, frozen=True):
    """llama-server's timings. Milliseconds and tokens a second; choices of one request are added up."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


def usage_body(usage: Usage) -> UsageBody:
    """The usage of one stream."""
    return UsageBody(
        usage.prompt,
        usage.completion,
        usage.prompt + usage.completion,
        PromptDetails(usage.cached),
        CompletionDetails(usage.reasoning),
    )


def total(prompts: Sequence[Usage], answers: Sequence[Usage]) -> Usage:
    """The usage of a request: each prompt once (`prompts`, that of its first choice), every answer."""
    return Usage(
        prompt=sum(usage.prompt for usage in prompts),
        cached=sum(usage.cached for usage in prompts),
        completion=sum(usage.completion for usage in answers),
        reasoning=sum(usage.reasoning for usage in answers),
    )


def timings(watches: Sequence[Watch]) -> Timings:
    """The timings of a request. The prompt's time runs from when the engine began with it to the first token."""
    first = watches[0]
    fresh = max(first.prompt - first.cached, 0)
    tokens = sum(watch.received for watch in watches)
    prefill = max(first.first - first.began, 0.0)
    decode = max(max(watch.last for watch in watches) - first.first, 0.0)
    return Timings(
        cache_n=first.cached,
        prompt_n=fresh,
        prompt_ms=round(prefill * 1e3, 3),
        prompt_per_second=round(fresh / prefill, 3) if prefill else 0.0,
        predicted_n=tokens,
        predicted_ms=round(decode * 1e3, 3),
        predicted_per_second=round(tokens / decode, 3) if decode else 0.0,
    )
