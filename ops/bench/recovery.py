"""What clients notice when engines fail: 16 streams, engines made to fail 50 times at random moments, and every stream compared.

Half of the faults meet the demo model, half a tiny hybrid. A fault is one of five (`faults.FaultKind`), each as often as the
others, at a moment drawn from a seeded generator once all streams have gone on after the one before. Afterwards a daemon of its
own, which nothing happens to, gives the same answers, and `likeness` says where they differ and whether they may.

Times come from the daemon's log, whose lines say when the engine changed its state, and from the clients' own clocks:

    detect    from the fault until the engine is no longer taken for ready. An engine that is told to fail from inside does so
              after the pass it is in, and says when
    reap      until its process is gone
    load      until the next engine serves, the wait before a restart included
    reprefill until a stream's next token, for each stream
    pause     between two tokens of a stream, for each stream and fault

All are the 95th percentile. `excess_p95_s` is what a pause is longer than its own four parts: the time since the last token
before the fault.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise
from pathlib import Path

import aiohttp
import msgspec
from tokenizers import Tokenizer

from ops.bench import tiny_hybrid
from ops.bench.client import prompt_text, session_for
from ops.bench.faults import FaultKind
from ops.bench.hearing import Heard, completion, hear
from ops.bench.likeness import Harm, Likeness, Words, compare
from ops.bench.processes import RunningDaemon, Setup, daemon
from ops.bench.summary import percentile
from ops.bench.torment import BUDGET, Outcome, Plan, torment
from ops.bench.values import Load
from ops.errors import BenchFailed

_ALTERNATIVES = 20
_SHARE = 0.95
_LEAST_STALL = 4.0
_STALLS = 3.0
_DEATHS = (FaultKind.KILL, FaultKind.DEVICE, FaultKind.EXIT)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    kills: int = 50
    streams: int = 16
    seed: int = 20
    demo_words: int = 12
    demo_tokens: int = 32
    hybrid_words: int = 200
    """Words of a prompt to the hybrid: more than a page of tokens with the answer, so that it resumes from checkpoints too."""
    hybrid_tokens: int = 160


class Times(msgspec.Struct, frozen=True):
    """95th percentiles, in seconds; None of what did not happen."""

    detect_s: float | None
    reap_s: float | None
    load_s: float | None
    reprefill_s: float | None
    pause_p95_s: float | None
    excess_p95_s: float | None


class NearTies(msgspec.Struct, frozen=True):
    """Where answers took another way at tokens of nearly the same probability."""

    demo: int
    hybrid: int
    widest_gap: float
    """Nats; `likeness.NEAR_TIE` is allowed."""
    unseen_tokens: int
    """Tokens after a near-tie that could not be compared: parts of characters stand before them."""


class Budget(msgspec.Struct, frozen=True):
    """Restarts that the supervisor was allowed, and when it took an engine for hung."""

    restarts: int
    window_minutes: float
    stall_s: dict[str, float]


class Recovery(msgspec.Struct, frozen=True):
    """The figures, as `make bench NAME=recovery` prints them last."""

    kills: int
    lost: int
    duplicated: int
    changed: int
    death: Times
    stall: Times
    contained_pause_p95_s: float | None
    """Pauses where the engine contained an exception and lived on."""
    streams: int
    """Answers compared."""
    near_ties: NearTies
    budget: Budget
    seed: int


@dataclass(frozen=True, slots=True)
class _Half:
    """One model's part."""

    outcome: Outcome
    likenesses: Sequence[Likeness]
    stall: float


async def measure(demo: Path, size: Size) -> Recovery:
    """Run both halves. Raises BenchFailed."""
    print(f"restart budget: {BUDGET.restarts} in {BUDGET.restart_window_minutes:g} minutes", file=sys.stderr)
    kills = size.kills // 2
    with tempfile.TemporaryDirectory(prefix="exl3d-bench-") as folder:
        hybrid = tiny_hybrid.write(Path(folder, "tiny-hybrid"), _words(5000, 0, 0), ascii_only=True)
        first = await _half(_Case("demo", Setup(demo, "cpu", 8192, size.streams), size.demo_words, size.demo_tokens, kills), size)
        setup = Setup(hybrid, "cpu", 32768, size.streams)
        second = await _half(_Case("hybrid", setup, size.hybrid_words, size.hybrid_tokens, size.kills - kills), size)
    return _figures(first, second, size)


@dataclass(frozen=True, slots=True)
class _Case:
    """A model and what is asked of it."""

    name: str
    setup: Setup
    words: int
    tokens: int
    kills: int


def _words(count: int, seed: int, number: int) -> str:
    return prompt_text(Load(streams=1, requests=1, tokens=1, prompt_tokens=count, seed=seed), number)


def _kinds(case: _Case, seed: int) -> Sequence[FaultKind]:
    kinds = [list(FaultKind)[number % len(FaultKind)] for number in range(case.kills)]
    random.Random(f"{seed}/{case.name}").shuffle(kinds)  # noqa: S311  # an order, not a secret
    return kinds


async def _half(case: _Case, size: Size) -> _Half:
    """One model: measure its pace on a quiet daemon, torment another, and let the quiet one say what should have come."""
    tokenizer = Tokenizer.from_file(str(case.setup.model / "tokenizer.json"))
    prompts = (tuple(tokenizer.encode(_words(case.words, size.seed, number), add_special_tokens=False).ids) for number in count())
    async with daemon(case.setup) as quiet, session_for(None) as session:
        ask = _Undisturbed(quiet, session, size.streams)
        stall = await _patience(ask, list(islice(prompts, size.streams)), case)
        plan = Plan(case.name, case.setup, prompts, case.tokens, size.streams, _kinds(case, size.seed), size.seed, stall)
        outcome = await torment(plan)
        print(f"{case.name}: comparing {len(outcome.heard)} answers with undisturbed ones", file=sys.stderr)
        texts = {token: tokenizer.decode([token], skip_special_tokens=False) for token in range(tokenizer.get_vocab_size())}
        words = Words(texts)
        likenesses = await asyncio.gather(*(compare(ask, words, heard, case.tokens) for heard in outcome.heard))
    for heard, found in zip(outcome.heard, likenesses, strict=True):
        if found.harm is not None:
            print(f"{case.name}: an answer of {len(heard.tokens)} tokens is {found.harm.value}: {found.detail}", file=sys.stderr)
    return _Half(outcome, likenesses, stall)


async def _patience(ask: "_Undisturbed", prompts: Sequence[tuple[int, ...]], case: _Case) -> float:
    """Seconds without progress that no healthy engine needs here: several times the longest silence of a first round."""
    heard = await asyncio.gather(*(ask(prompt, min(case.tokens, 16)) for prompt in prompts))
    silences: list[float] = []
    for one in heard:
        if one.problem is not None:
            raise BenchFailed(f"{case.name}: the quiet daemon does not answer: {one.problem}")
        times = [one.sent, *(token.t for token in one.tokens)]
        silences += [after - before for before, after in pairwise(times)]
    stall = max(_LEAST_STALL, _STALLS * max(silences))
    print(f"{case.name}: longest silence {max(silences):.1f} s; an engine counts as hung after {stall:.1f} s", file=sys.stderr)
    return round(stall, 1)


class _Undisturbed:
    """Asks a daemon that nothing happens to, as many at once as under torment."""

    def __init__(self, served: RunningDaemon, session: aiohttp.ClientSession, streams: int) -> None:
        self._served = served
        self._session = session
        self._places = asyncio.Semaphore(streams)

    async def __call__(self, prompt: tuple[int, ...], tokens: int) -> Heard:
        async with self._places:
            body = completion(self._served.model, prompt, tokens, _ALTERNATIVES)
            return await hear(self._session, f"{self._served.base_url}/completions", body, Heard(prompt, time.time()))


@dataclass(frozen=True, slots=True)
class _Pause:
    """One stream's pause at one fault, in seconds."""

    whole: float
    reprefill: float
    parts: float


def _pauses(outcome: Outcome, kinds: Sequence[FaultKind]) -> list[_Pause]:
    """Of streams that were under way when a fault came, and went on."""
    found: list[_Pause] = []
    for fault in outcome.faults:
        if fault.kind not in kinds:
            continue
        resumed = fault.t if fault.recovery is None else fault.recovery.served
        for heard in outcome.heard:
            before = [token.t for token in heard.tokens if token.t <= resumed]
            after = [token.t for token in heard.tokens if token.t > resumed]
            if before and after and before[0] < fault.t:
                found.append(_Pause(after[0] - before[-1], after[0] - resumed, after[0] - fault.t))
    return found


def _times(halves: Sequence[_Half], kinds: Sequence[FaultKind]) -> Times:
    faults = [fault for half in halves for fault in half.outcome.faults if fault.kind in kinds]
    known = [(fault.t, fault.recovery) for fault in faults if fault.recovery is not None]
    pauses = [pause for half in halves for pause in _pauses(half.outcome, kinds)]
    return Times(
        detect_s=_p95([recovery.lost - t for t, recovery in known]),
        reap_s=_p95([recovery.gone - recovery.lost for _, recovery in known]),
        load_s=_p95([recovery.served - recovery.gone for _, recovery in known]),
        reprefill_s=_p95([pause.reprefill for pause in pauses]),
        pause_p95_s=_p95([pause.whole for pause in pauses]),
        excess_p95_s=_p95([pause.whole - pause.parts for pause in pauses]),
    )


def _p95(values: Sequence[float]) -> float | None:
    return round(percentile(sorted(values), _SHARE), 3) if values else None


def _figures(demo: _Half, hybrid: _Half, size: Size) -> Recovery:
    halves = (demo, hybrid)
    found = [likeness for half in halves for likeness in half.likenesses]
    harms = [likeness.harm for likeness in found]
    gaps = [gap for likeness in found for gap in likeness.gaps]
    return Recovery(
        kills=sum(len(half.outcome.faults) for half in halves),
        lost=harms.count(Harm.LOST),
        duplicated=harms.count(Harm.DUPLICATED),
        changed=harms.count(Harm.CHANGED),
        death=_times(halves, _DEATHS),
        stall=_times(halves, (FaultKind.STOP,)),
        contained_pause_p95_s=_p95([pause.whole for half in halves for pause in _pauses(half.outcome, (FaultKind.RAISE,))]),
        streams=len(found),
        near_ties=NearTies(
            demo=sum(len(likeness.gaps) for likeness in demo.likenesses),
            hybrid=sum(len(likeness.gaps) for likeness in hybrid.likenesses),
            widest_gap=round(max(gaps, default=0.0), 4),
            unseen_tokens=sum(likeness.unseen for likeness in found),
        ),
        budget=Budget(BUDGET.restarts, BUDGET.restart_window_minutes, {"demo": demo.stall, "hybrid": hybrid.stall}),
        seed=size.seed,
    )
