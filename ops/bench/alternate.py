"""Two people who take turns in long conversations, and whether both find theirs warm each time.

On the tiny hybrid, with its real cache and recurrent checkpoints on the CPU. The cache holds what the two are guaranteed and a
little more. First each conversation is read in cold. Then the two take turns: each asks a short question on top of its
conversation, and between any two turns a third person, who is guaranteed nothing, sends prompts of their own: enough to push
out whatever was used longest ago before its turn comes again. The warm ratio of a person is the median time to the first token
of their warm turns over that of their cold one. `without_guarantees` is the same where nobody is guaranteed anything.

An 80,000-token conversation takes this model minutes on a CPU; `tokens` is smaller by default and stands in the figures.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from daemon.core.settings import PersonSettings
from ops.bench import client
from ops.bench.client import session_for
from ops.bench.town import Plan, Town, town_of, words, write_model
from ops.errors import BenchFailed

_PAGE = 256
_NAMES = ("first", "second")
_GUEST = "guest"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    tokens: int = 8192
    turns: int = 3
    question: int = 60
    guests: int = 2
    """Prompts of the third person between two turns."""
    guest_share: float = 1.0
    """Length of the third person's prompts, as a share of a conversation."""
    spare_share: float = 1.1
    """Room beside the two guarantees, as a share of one: the third person's prompt fits, and little else."""


class Person(msgspec.Struct, frozen=True):
    """One of the two."""

    cold_s: float
    warm_s: float
    """Median of the warm turns."""
    warm_ratio: float
    cached_share: float
    """Of the prompt's tokens, at the worst turn."""


class Alternate(msgspec.Struct, frozen=True):
    """The figures, as `make bench NAME=alternate` prints them last."""

    warm_ratio: dict[str, float]
    people: dict[str, Person]
    without_guarantees: dict[str, Person]
    tokens: int
    pool_tokens: int
    guarantee_tokens: int


@dataclass(frozen=True, slots=True)
class _Turn:
    """In seconds and tokens."""

    seconds: float
    prompt: int
    cached: int


async def measure(size: Size) -> Alternate:
    """Run it, with guarantees and without. Raises BenchFailed."""
    guarantee = -(-(size.tokens + 2 * size.question + 64) // _PAGE) * _PAGE + 2 * _PAGE
    pool = 2 * guarantee + int(guarantee * size.spare_share) // _PAGE * _PAGE
    kept = await _part(size, pool, guarantee)
    print("without guarantees:", file=sys.stderr)
    bare = await _part(size, pool, 0)
    return Alternate(
        warm_ratio={name: person.warm_ratio for name, person in kept.items()},
        people=kept,
        without_guarantees=bare,
        tokens=size.tokens,
        pool_tokens=pool,
        guarantee_tokens=guarantee,
    )


async def _part(size: Size, pool: int, guarantee: int) -> dict[str, Person]:
    people = [PersonSettings(name=name, guaranteed_context=guarantee) for name in _NAMES] + [PersonSettings(name=_GUEST)]
    plan = Plan(cache_tokens=pool, slots=3, people=people)
    with TemporaryDirectory(prefix="exl3d-bench-") as folder:
        async with town_of(write_model(Path(folder)), plan, backend="cpu") as place:
            told = await _take_turns(place, size)
    return {name: _person(turns) for name, turns in told.items()}


async def _take_turns(place: Town, size: Size) -> dict[str, list[_Turn]]:
    told: dict[str, list[_Turn]] = {name: [] for name in _NAMES}
    for turn in range(size.turns + 1):
        for number, name in enumerate(_NAMES):
            text = f"{words(size.tokens, number)} {words(size.question, 100 + 10 * turn + number)}"
            told[name].append(await _ask(place, name, text))
            for guest in range(size.guests if turn else 0):
                seed = 1000 + 100 * turn + 10 * number + guest
                await _ask(place, _GUEST, words(int(size.tokens * size.guest_share), seed))
    return told


async def _ask(place: Town, name: str, text: str) -> _Turn:
    target = place.target(name)
    async with session_for(target.key) as session:
        body = client.encoded(target, {"prompt": text, "max_tokens": 2, "temperature": 0, "ignore_eos": True})
        sample = await client.ask(session, target, body)
    if sample.problem is not None or sample.first is None:
        raise BenchFailed(f"{name}'s turn failed: {sample.problem or 'no token came'}")
    found = _Turn(sample.first - sample.sent, sample.prompt_tokens, sample.cached_tokens)
    print(f"{name}: {found.prompt} tokens, {found.cached} cached, first token after {found.seconds:.2f} s", file=sys.stderr)
    return found


def _person(turns: list[_Turn]) -> Person:
    cold, warm = turns[0], turns[1:]
    seconds = median(turn.seconds for turn in warm)
    return Person(
        cold_s=round(cold.seconds, 3),
        warm_s=round(seconds, 3),
        warm_ratio=round(seconds / cold.seconds, 4),
        cached_share=round(min(turn.cached / turn.prompt for turn in warm), 4),
    )
