"""Scenarios of the project's own benches against a server that is already there: any model, any speed, two keys at most."""

from collections.abc import Sequence

import msgspec

from ops.bench import fairness as fair
from ops.bench.interference import prefill_alone, schedule, together
from ops.bench.streams import ladder
from ops.bench.summary import Level
from ops.bench.values import Target

_CHATS = 5


class Fairness(msgspec.Struct, frozen=True):
    """How long one person's chats waited, alone and beside another's many long requests."""

    wait_ratio_p95: float
    ttft_alone_p95_s: float
    ttft_beside_p95_s: float
    completed: int
    requests: int
    tokens_s: float


class Interference(msgspec.Struct, frozen=True):
    """What a long prompt did to running answers; see `ops/bench/interference.py` for q and s."""

    itl_p99_ms: float
    decode_ms: float
    q: float
    s: float
    product: float
    prefill_alone_s: float
    prefill_beside_s: float


async def streams(target: Target, widths: Sequence[int], tokens: int, prompt_tokens: int) -> list[Level]:
    """All requests of a level at once, level after level."""
    return await ladder(target, widths, tokens, prompt_tokens)


def crowd(long_requests: int, prompt_tokens: int, tokens: int) -> fair.Size:
    """Sizes for `fairness`: chats have an eighth of the long prompts' length."""
    return fair.Size(
        people=_CHATS,
        long_requests=long_requests,
        long_prompt=prompt_tokens,
        long_tokens=tokens,
        chat_prompt=max(16, prompt_tokens // 8),
        chat_tokens=tokens,
        head_start=1.0,
        apart=0.5,
        speed=1.0,
    )


async def fairness(target: Target, other_key: str, size: fair.Size) -> Fairness:
    """Five chats with the other key, alone and then beside the long requests of the target's own. Raises BenchFailed."""
    other = Target(target.base_url, target.model, other_key, target.endpoint)
    told = await fair.turn(target, [other] * size.people, size, 0)
    found = fair.figures([told], None, 1.0)
    return Fairness(
        wait_ratio_p95=found.wait_ratio_p95,
        ttft_alone_p95_s=found.ttft_alone_p95_s,
        ttft_beside_p95_s=found.ttft_beside_p95_s,
        completed=found.completed,
        requests=size.people + size.long_requests,
        tokens_s=found.tokens_s,
    )


async def interference(target: Target, width: int, prompt_tokens: int, tokens: int) -> Interference:
    """`width` answers of `tokens` tokens while a prompt is read. Raises BenchFailed where they end before it is."""
    alone = await prefill_alone(target, prompt_tokens)
    found = schedule(await together(target, width, prompt_tokens, tokens=tokens, quiet=16), alone, 1.0)
    return Interference(
        itl_p99_ms=found.itl_p99_ms,
        decode_ms=found.decode_ms,
        q=found.q,
        s=found.s,
        product=found.product,
        prefill_alone_s=round(alone, 3),
        prefill_beside_s=found.prefill_s,
    )
