"""Six people whose conversations grow to 80K each, in a cache that holds exactly that, and then in one that does not.

What was answered is not repeated in the next prompt; a person's prompt begins as the one before, so that its pages are found.

1. The cache is six times 80K. Everybody talks in turns; before each turn all wait for each other, so that the last answers, which
   fill the cache to its end, are generated together. Nobody may be refused, set aside or left waiting.
2. The cache is 60 % of that, and each person is guaranteed a sixth of it. Two grow to the full length, more than is theirs; once
   they generate, the four others come with conversations as long as their guarantee. They must get their room at once, by
   setting the two aside; and in the end all six finish. A guarantee counts as broken where a request of one of the four failed,
   fell silent once it had begun for longer than `silence`, or got its first token only when both of the two had ended.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from daemon.core.settings import PersonSettings
from ops.admin_socket import fetch_status, socket_path
from ops.bench import client
from ops.bench.client import session_for
from ops.bench.town import Plan, Town, town, words
from ops.bench.values import Endpoint, Sample, Target
from ops.errors import BenchFailed

_PAGE = 256
_MARGIN = 64
"""Tokens that a prompt is shorter than it might be: a few words are two tokens."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. Seconds are those of the profile; they are divided by `speed`."""

    people: int = 6
    tokens: int = 81_920
    """Of a conversation at its end: prompt and answer."""
    turns: int = 4
    answer: int = 1500
    big: int = 2
    """People who grow above their guarantee in part 2."""
    share: float = 0.6
    silence: float = 60.0
    speed: float = 5.0


class Second(msgspec.Struct, frozen=True):
    """Part 2."""

    suspended: int
    guarantees_broken: int
    finished: int


class Pool(msgspec.Struct, frozen=True):
    """The figures, as `make bench NAME=pool` prints them last."""

    peak_concurrent: int
    rejected: int
    suspended: int
    starved: int
    """People whose conversation did not come to its end."""
    second: Second
    pool_tokens: int
    second_pool_tokens: int
    guarantee_tokens: int
    speed: float


@dataclass(frozen=True, slots=True)
class Said:
    """One turn."""

    sample: Sample
    times: Sequence[float]


async def measure(size: Size) -> Pool:
    """Run both parts. Raises BenchFailed."""
    whole = size.people * size.tokens
    small = int(whole * size.share) // _PAGE * _PAGE
    guarantee = small // size.people // _PAGE * _PAGE
    first, suspended = await _first(size, whole)
    second = await _second(size, small, guarantee)
    last = [turns[-1] for turns in first if turns]
    refused = [turn for turns in first for turn in turns if turn.sample.problem is not None and "HTTP" in turn.sample.problem]
    return Pool(
        peak_concurrent=most_at_once([turn.times for turn in last]),
        rejected=len(refused),
        suspended=suspended,
        starved=sum(len(turns) < size.turns or turns[-1].sample.problem is not None for turns in first),
        second=second,
        pool_tokens=whole,
        second_pool_tokens=small,
        guarantee_tokens=guarantee,
        speed=size.speed,
    )


def most_at_once(times: Sequence[Sequence[float]]) -> int:
    """Most answers that were being generated at one moment: between their first and their last token."""
    spans = [(each[0], each[-1]) for each in times if each]
    return max((sum(begin <= moment <= end for begin, end in spans) for moment, _ in spans), default=0)


async def _first(size: Size, tokens: int) -> tuple[list[list[Said]], int]:
    people = [PersonSettings(name=f"person-{number + 1}", guaranteed_context=size.tokens) for number in range(size.people)]
    async with town(_plan(size, tokens, people)) as place:
        together = asyncio.Barrier(size.people)
        targets = [place.target(person.name) for person in people]
        told = await asyncio.gather(*(_grow(target, number, size, together) for number, target in enumerate(targets)))
        return told, await _suspensions(place)


def _plan(size: Size, tokens: int, people: Sequence[PersonSettings]) -> Plan:
    return Plan(cache_tokens=tokens, slots=size.people + 2, speed=size.speed, people=people)


async def _grow(target: Target, number: int, size: Size, together: asyncio.Barrier) -> list[Said]:
    """A conversation that reaches the full length with its last answer."""
    told: list[Said] = []
    async with session_for(target.key) as session:
        for turn in range(1, size.turns + 1):
            prompt = size.tokens * turn // size.turns - size.answer - _MARGIN
            await together.wait()
            said = await _say(session, target, words(prompt, number), size.answer)
            told.append(said)
            print(
                f"person {number + 1}, {said.sample.prompt_tokens} tokens: {said.sample.problem or 'answered'},"
                f" {said.sample.cached_tokens} cached",
                file=sys.stderr,
            )
    return told


async def _say(session: aiohttp.ClientSession, target: Target, text: str, tokens: int) -> Said:
    """One turn. The text of a person begins as that of the turn before: `words` of one seed."""
    times: list[float] = []
    return Said(await client.ask(session, target, _body(target, text, tokens), times.append), times)


def _body(target: Target, text: str, tokens: int) -> bytes:
    if target.endpoint is not Endpoint.COMPLETIONS:
        raise BenchFailed("this scenario asks for completions")
    return client.encoded(target, {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})


async def _suspensions(place: Town) -> int:
    return (await asyncio.to_thread(fetch_status, socket_path(place.served.state))).suspensions


async def _second(size: Size, tokens: int, guarantee: int) -> Second:
    people = [PersonSettings(name=f"person-{number + 1}", guaranteed_context=guarantee) for number in range(size.people)]
    answer = min(size.answer, guarantee // 2)
    async with town(_plan(size, tokens, people)) as place:
        started = asyncio.Event()
        waiting = size.big

        async def big(number: int) -> Said:
            nonlocal waiting
            target = place.target(people[number].name)
            times: list[float] = []

            def heard(t: float) -> None:
                nonlocal waiting
                if not times:
                    waiting -= 1
                    if not waiting:
                        started.set()
                times.append(t)

            async with session_for(target.key) as session:
                body = _body(target, words(size.tokens - 4 * answer - _MARGIN, number), 4 * answer)
                sample = await client.ask(session, target, body, heard)
                started.set()
                return Said(sample, times)

        async def small(number: int) -> Said:
            target = place.target(people[number].name)
            await started.wait()
            async with session_for(target.key) as session:
                return await _say(session, target, words(guarantee - answer - _MARGIN, number), answer)

        told = await asyncio.gather(*(big(number) if number < size.big else small(number) for number in range(size.people)))
        suspended = await _suspensions(place)
    for number, said in enumerate(told):
        print(f"second part, person {number + 1}: {said.sample.problem or 'finished'}", file=sys.stderr)
    return Second(
        suspended=suspended,
        guarantees_broken=broken(told[: size.big], told[size.big :], size.silence / size.speed),
        finished=sum(said.sample.problem is None for said in told),
    )


def broken(above: Sequence[Said], within: Sequence[Said], silence: float) -> int:
    """Requests of those within their guarantee that did not get what was theirs."""
    ends = max((said.sample.last for said in above), default=0.0)

    def kept(said: Said) -> bool:
        sample = said.sample
        if sample.problem is not None or sample.first is None or sample.first >= ends:
            return False
        return max(sample.gaps, default=0.0) <= silence

    return sum(not kept(said) for said in within)
