"""One model laid out in another way: every layer on two cards, experts on the CPU. The same answers, nothing left behind.

Written without a GPU at hand: what is close enough is a guess until somebody has run it.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import msgspec

from daemon.core.settings import BackendKind, EngineLayout, EngineSettings
from daemon.core.wire import Configure, Sampler, Submit, Tokens, TokenSpan
from daemon.host.gpu_census import take_census
from daemon.host.kin import relatives
from tests.engine.checkpoints import Architecture, write_exl3_checkpoint
from tests.engine.child import EngineChild, ids_of
from tests.gpu.report import PartFailed, PartSkipped, Place

_CONTEXT = 4096
_PROMPTS = 4
_PROMPT, _ANSWER = 300, 24
_NEAR = 0.3
"""Most that the log-probability of a first token may differ on average: sums are rounded elsewhere, or computed by a CPU."""
_PATIENCE = 15.0
"""Seconds in which the processes of an engine that was killed must be gone."""
_VOCABULARY = 400
"""Plain tokens of the tiny tokenizer to choose from."""


class Likeness(msgspec.Struct, frozen=True):
    """One model, as it was and laid out differently."""

    model: str
    logprob_shift: float
    same_tokens: float
    """Share of an answer's tokens that are equal, up to the first that differs."""
    processes: int
    """That the engine consisted of."""
    left: int
    """Of them, how many were there after the engine had been killed."""
    memory_mib: list[list[int]]
    """Used on each card, before and after."""


class LayoutNumbers(msgspec.Struct, frozen=True):
    """Every model that was tried."""

    models: list[Likeness]


def run_tensor(place: Place) -> LayoutNumbers:
    """A dense model and a hybrid over two cards. Needs two."""
    cards = len(take_census(os.environ).gpus)
    if cards < 2:
        raise PartSkipped(f"needs two GPUs, and there {'is' if cards == 1 else 'are'} {cards}: a layer cannot be divided")
    models = [place.dense, place.hybrid] + ([] if place.model is None else [place.model])
    return judged([_alike(place, model, layout=EngineLayout.TENSOR) for model in models])


def run_experts(place: Place) -> LayoutNumbers:
    """A mixture of experts, all of them on the CPU."""
    models = [
        write_exl3_checkpoint(architecture, place.folder / architecture.name.lower())
        for architecture in (Architecture.QWEN3_MOE, Architecture.QWEN3_5_MOE)
    ]
    layers = {Architecture.QWEN3_MOE.name.lower(): 2, Architecture.QWEN3_5_MOE.name.lower(): 4}
    return judged([_alike(place, model, experts=layers[model.name]) for model in models])


def _alike(place: Place, model: Path, *, layout: EngineLayout = EngineLayout.SPLIT, experts: int = 0) -> Likeness:
    plain = EngineSettings(backend=BackendKind.CUDA, cache_tokens=_CONTEXT, max_batch=4, chunk_tokens=512)
    other = msgspec.structs.replace(plain, layout=layout, moe_cpu_layers=experts)
    before, after = answers(place, model, plain), answers(place, model, other)
    pairs = list(zip(before.said, after.said, strict=True))
    return Likeness(
        model=str(model),
        logprob_shift=round(mean(abs(one[1] - two[1]) for one, two in pairs), 4),
        same_tokens=round(mean(_same(one[0], two[0]) for one, two in pairs), 3),
        processes=after.processes,
        left=after.left,
        memory_mib=[before.memory_mib, after.memory_mib],
    )


class Answers(msgspec.Struct, frozen=True):
    """What one engine said, and how it ended."""

    said: list[tuple[list[int], float]]
    processes: int
    left: int
    memory_mib: list[int]


def answers(place: Place, model: Path, engine: EngineSettings) -> Answers:
    """Greedy answers to the same prompts; then the engine is killed."""
    with EngineChild() as child:
        hello = child.start(Configure(str(model), _CONTEXT - 256, engine, str(place.folder)))
        said = [_answer(child, number) for number in range(1, _PROMPTS + 1)]
        memory = [(device.total - device.free) >> 20 for device in hello.memory]
        family = _processes(child.process.pid)
        child.process.kill()
        child.process.wait()
        left = _after(_PATIENCE, lambda: sum(Path(f"/proc/{pid}").exists() for pid in family))
    return Answers(said, len(family), left, memory)


def _answer(child: EngineChild, number: int) -> tuple[list[int], float]:
    ids = [10 + (number * 7919 + at * 104729) % (_VOCABULARY - 10) for at in range(_PROMPT)]
    child.send(Submit(number, 1, [TokenSpan(ids)], len(ids), _ANSWER, sampler=Sampler(temperature=0.0), logprobs=1))
    events = child.until_ended(number)[number]
    first = next(event for event in events if isinstance(event, Tokens))
    return ids_of(events), first.logprobs[0].top[0][1]


def _processes(pid: int) -> list[int]:
    """Processes, not threads, that an engine consists of."""
    return [one for one in relatives(pid) if Path(f"/proc/{one}/task/{one}").exists() and _leads(one)]


def _leads(pid: int) -> bool:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    return f"\nTgid:\t{pid}\n" in text


def _after(seconds: float, count: Callable[[], int]) -> int:
    """What is left when nothing is, or when the time is over."""
    until = time.monotonic() + seconds
    while (left := count()) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _same(one: list[int], two: list[int]) -> float:
    longest = max(len(one), len(two), 1)
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))) / longest


def judged(models: list[Likeness]) -> LayoutNumbers:
    """The numbers, where every model is close enough. Raises PartFailed."""
    numbers = LayoutNumbers(models)
    for each in models:
        if each.logprob_shift > _NEAR:
            raise PartFailed(f"{each.model}: the first token's log-probability moved by {each.logprob_shift}", numbers)
        if each.processes < 2:
            raise PartFailed(f"{each.model}: one process computed it, so that nothing was laid out differently", numbers)
        if each.left:
            raise PartFailed(f"{each.model}: {each.left} of {each.processes} processes outlived their engine", numbers)
    return numbers
