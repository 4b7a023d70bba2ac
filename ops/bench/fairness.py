"""Whether one person's fifty long requests make five others wait for their one chat each.

On one daemon with fair order and one in order of arrival:

1. the five alone, one after the other in arriving; times to their first token;
2. the same while the aggressor's fifty long requests have been sent a moment before: `wait_ratio_p95` is the 95th percentile of
   these times over that of 1. Both are repeated, with other texts each time;
3. all six with more requests than can run: from when each of them has been served until the first of them has nothing waiting
   any more, Jain's index over what each was served, a prompt token counting 1 and a generated one 4 as in the settings.

`throughput_vs_fifo` is tokens a second of 2, prompts included, over those in order of arrival.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import aiohttp
import msgspec

from daemon.core.settings import PersonSettings, SharingOrder, SharingSettings
from ops.bench import client
from ops.bench.client import session_for
from ops.bench.summary import percentile
from ops.bench.town import Plan, Town, town
from ops.bench.values import Load, Sample, Target
from ops.errors import BenchFailed

_AGGRESSOR = "aggressor"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. Seconds are those of the profile; they are divided by `speed`."""

    people: int = 5
    long_requests: int = 50
    long_prompt: int = 4000
    long_tokens: int = 300
    chat_prompt: int = 600
    chat_tokens: int = 150
    rounds: int = 1
    backlog: int = 40
    """Chats of each of the five in part 3."""
    head_start: float = 4.0
    """Seconds between the aggressor's requests and the first chat."""
    apart: float = 2.0
    """Seconds between two people's chats."""
    slots: int = 16
    speed: float = 1.0


class Figures(msgspec.Struct, frozen=True):
    """One order of service."""

    wait_ratio_p95: float
    ttft_alone_p95_s: float
    """Times are given at the profile's own speed."""
    ttft_beside_p95_s: float
    jain: float | None
    completed: int
    tokens_s: float
    """Prompt and generated tokens a second of all together."""


class Fairness(msgspec.Struct, frozen=True):
    """The figures, as `make bench NAME=fairness` prints them last."""

    wait_ratio_p95: float
    jain: float | None
    completed: int
    """Requests of a round that ended well, at the fewest."""
    throughput_vs_fifo: float
    fair: Figures
    fifo: Figures
    slots: int
    speed: float


@dataclass(frozen=True, slots=True)
class Told:
    """One request, with the time of each piece of text."""

    sample: Sample
    times: Sequence[float]


@dataclass(frozen=True, slots=True)
class Round:
    """Parts 1 and 2 once."""

    alone: Sequence[Told]
    chats: Sequence[Told]
    long: Sequence[Told]


async def measure(size: Size) -> Fairness:
    """Run it with both orders. Raises BenchFailed."""
    fair = await _order(SharingOrder.FAIR, size)
    fifo = await _order(SharingOrder.FIFO, size)
    return Fairness(
        wait_ratio_p95=fair.wait_ratio_p95,
        jain=fair.jain,
        completed=fair.completed,
        throughput_vs_fifo=round(fair.tokens_s / fifo.tokens_s, 3),
        fair=fair,
        fifo=fifo,
        slots=size.slots,
        speed=size.speed,
    )


async def _order(order: SharingOrder, size: Size) -> Figures:
    names = [_AGGRESSOR, *(f"person-{number + 1}" for number in range(size.people))]
    people = [PersonSettings(name=name) for name in names]
    plan = Plan(cache_tokens=size.slots * 8192, slots=size.slots, speed=size.speed, people=people, order=order, max_queued=1024)
    async with town(plan) as place:
        targets = [place.target(name) for name in names]
        await turn(targets[0], targets[1:2], Size(long_requests=1, long_prompt=300, long_tokens=8), 999)
        rounds = [await turn(targets[0], targets[1:], size, number) for number in range(size.rounds)]
        served = await _backlog(place, names, size)
    found = figures(rounds, jain(served) if served else None, size.speed)
    print(f"{order.value}: {msgspec.json.encode(found).decode()}", file=sys.stderr)
    return found


async def turn(aggressor: Target, others: Sequence[Target], size: Size, number: int) -> Round:
    """Parts 1 and 2 once. Works on any server; texts differ from number to number."""
    alone = await _chats(others, size, 2 * number)
    async with session_for(aggressor.key) as session:
        long = [
            asyncio.create_task(tell(session, aggressor, size.long_prompt, size.long_tokens, 10_000 * (number + 1) + each))
            for each in range(size.long_requests)
        ]
        await asyncio.sleep(size.head_start / size.speed)
        chats = await _chats(others, size, 2 * number + 1)
        done = await asyncio.gather(*long)
    return Round(alone, chats, done)


async def _chats(people: Sequence[Target], size: Size, seed: int) -> list[Told]:
    """One chat of each, some time apart."""

    async def one(place: int, target: Target) -> Told:
        await asyncio.sleep(place * size.apart / size.speed)
        async with session_for(target.key) as session:
            return await tell(session, target, size.chat_prompt, size.chat_tokens, 100 * seed + place)

    return await asyncio.gather(*(one(place, target) for place, target in enumerate(people)))


async def tell(session: aiohttp.ClientSession, target: Target, prompt: int, tokens: int, seed: int) -> Told:
    """One request."""
    times: list[float] = []
    body = client.body(target, Load(1, 1, tokens, prompt, temperature=0.0, seed=seed), 0)
    return Told(await client.ask(session, target, body, times.append), times)


async def _backlog(place: Town, names: Sequence[str], size: Size) -> Mapping[str, float]:
    """Part 3: what each person was served while all had something waiting; empty where that never was so."""
    prices = SharingSettings()

    async def all_of(name: str) -> list[Told]:
        target = place.target(name)
        many, prompt, tokens = size.backlog, size.chat_prompt, size.chat_tokens
        if name == _AGGRESSOR:
            many, prompt, tokens = size.long_requests, size.long_prompt, size.long_tokens
        async with session_for(target.key) as session:
            seeds = [1_000_000 + 1000 * names.index(name) + each for each in range(many)]
            return await asyncio.gather(*(tell(session, target, prompt, tokens, seed) for seed in seeds))

    told = dict(zip(names, await asyncio.gather(*(all_of(name) for name in names)), strict=True))
    return served_while_all_wait(told, prices)


def served_while_all_wait(told: Mapping[str, Sequence[Told]], prices: SharingSettings) -> dict[str, float]:
    """Weighted tokens of each person between the moment when all have been served once and the moment when the first of them
    has no request left that waits. Prompts count when their first token comes.
    """
    firsts = {
        name: [one.sample.first for one in each if one.sample.first is not None and one.sample.problem is None]
        for name, each in told.items()
    }
    if not all(firsts.values()):
        return {}
    began, ended = max(min(times) for times in firsts.values()), min(max(times) for times in firsts.values())
    if ended <= began:
        return {}
    return {name: sum(_cost(one, began, ended, prices) for one in each) for name, each in told.items()}


def _cost(one: Told, began: float, ended: float, prices: SharingSettings) -> float:
    sample = one.sample
    tokens = sum(began < time <= ended for time in one.times) * prices.decode_price
    if sample.first is None or not began < sample.first <= ended:
        return tokens
    fresh = sample.prompt_tokens - sample.cached_tokens
    return tokens + fresh * prices.prefill_price + sample.cached_tokens * prices.cached_price


def jain(served: Mapping[str, float]) -> float:
    """Jain's index of equal weights: 1 where all got the same, 1/n where one got all."""
    values = list(served.values())
    squares = sum(value * value for value in values)
    return round(sum(values) ** 2 / (len(values) * squares), 4) if squares else 0.0


def figures(rounds: Sequence[Round], index: float | None, speed: float) -> Figures:
    """Figures of the rounds. Raises BenchFailed where no chat was answered."""
    alone = [_wait(one.sample) for each in rounds for one in each.alone if one.sample.problem is None]
    beside = [_wait(one.sample) for each in rounds for one in each.chats if one.sample.problem is None]
    if not alone or not beside:
        problems = {one.sample.problem for each in rounds for one in (*each.alone, *each.chats)}
        raise BenchFailed(f"no chat was answered: {problems}")
    quiet, busy = percentile(sorted(alone), 0.95), percentile(sorted(beside), 0.95)
    return Figures(
        wait_ratio_p95=round(busy / quiet, 3),
        ttft_alone_p95_s=round(quiet * speed, 3),
        ttft_beside_p95_s=round(busy * speed, 3),
        jain=index,
        completed=min(sum(one.sample.problem is None for one in (*each.chats, *each.long)) for each in rounds),
        tokens_s=round(fmean(_rate(each) for each in rounds) / speed, 1),
    )


def _wait(sample: Sample) -> float:
    return (sample.last if sample.first is None else sample.first) - sample.sent


def _rate(one: Round) -> float:
    good = [each.sample for each in (*one.chats, *one.long) if each.sample.problem is None]
    seconds = max(sample.last for sample in good) - min(sample.sent for sample in good)
    return sum(sample.prompt_tokens - sample.cached_tokens + sample.completion_tokens for sample in good) / seconds
