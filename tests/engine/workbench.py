"""An engine inside the test's own process: the real backend over the real library, stepped by hand."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from exllamav3 import ComboSampler, Job

from daemon.core.settings import EngineSettings
from daemon.core.wire import (
    Configure,
    Event,
    Failed,
    FailureClass,
    Finished,
    FinishReason,
    Sampler,
    Submit,
    Suspended,
    Tokens,
    TokenSpan,
)
from daemon.engine.backend import StepResult
from daemon.engine.exl3 import loading, runtime
from daemon.engine.tensors import integers
from tests.engine.child import ids_of
from tests.engine.device import BACKEND

GREEDY = Sampler(temperature=0.0)
MOST_STEPS = 20_000
"""Turns after which a test gives up: something stands still."""


def text(length: int, seed: int = 0) -> list[int]:
    """Ordinary ids, the same for the same seed."""
    numbers = random.Random(seed)  # noqa: S311 - test data
    return [numbers.randrange(10, 500) for _ in range(length)]


def ask(
    request: int, ids: list[int], max_left: int, *, sampler: Sampler = GREEDY, origin: int | None = None, attempt: int = 1
) -> Submit:
    """A plain request; change the rest with msgspec.structs.replace."""
    return Submit(
        id=request,
        attempt=attempt,
        spans=[TokenSpan(ids)],
        origin=len(ids) if origin is None else origin,
        max_left=max_left,
        sampler=sampler,
    )


class Watch:
    """Records whose prefill ran."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def prefilling(self, request: int | None) -> None:
        """`request`'s prefill begins."""
        if request is not None:
            self.order.append(request)


class Workbench:
    """See the module. `settings` are those of the engine; the defaults suit tiny models."""

    def __init__(self, model: Path, settings: EngineSettings | None = None, wake: Callable[[], None] = lambda: None) -> None:
        chosen = settings or EngineSettings(
            backend=BACKEND, cache_tokens=8192, max_batch=8, chunk_tokens=512, reserve_tokens=2048, threads=1
        )
        self.watch = Watch()
        self.backend = loading.load(
            Configure(model=str(model), context=8192, engine=chosen, state_dir=str(model)),
            runtime.prepare(chosen),
            self.watch,
            lambda _stage, _done, _total: None,
            wake,
        )
        self.generator = self.backend.generator
        self.results: list[StepResult] = []
        self.events: list[Event] = []
        self._sorted: dict[int, list[Event]] = {}
        self._sorted_from: tuple[list[Event], int] = (self.events, 0)

    def step(self) -> StepResult:
        """One turn."""
        result = self.backend.step()
        self.results.append(result)
        self.events += result.events
        return result

    def of(self, request: int) -> list[Event]:
        """What was reported about a request so far."""
        events, done = self._sorted_from
        if events is not self.events or done > len(events):
            self._sorted.clear()
            done = 0
        for event in self.events[done:]:
            self._sorted.setdefault(event.id, []).append(event)
        self._sorted_from = (self.events, len(self.events))
        return self._sorted.get(request, [])

    def ids(self, request: int) -> list[int]:
        """The ids a request was given so far."""
        return ids_of(self.of(request))

    def until(self, done: Callable[[], bool]) -> None:
        """Step until something holds."""
        for _ in range(MOST_STEPS):
            if done():
                return
            self.step()
        raise AssertionError("the engine stands still")

    def ended(self, request: int) -> bool:
        """Whether a request's last event was reported."""
        told = self.of(request)
        return bool(told) and isinstance(told[-1], Finished | Failed | Suspended)

    def run(self, *requests: Submit) -> dict[int, list[int]]:
        """Submit and run to the end; the ids of each."""
        for request in requests:
            self.backend.submit(request)
        self.until(lambda: all(self.ended(request.id) for request in requests))
        return {request.id: self.ids(request.id) for request in requests}

    def after_tokens(self, request: int, count: int) -> None:
        """Step until a request has been given `count` tokens."""
        self.until(lambda: len(self.ids(request)) >= count)

    def finish(self, request: int) -> FinishReason:
        """How a request finished."""
        last = self.of(request)[-1]
        assert isinstance(last, Finished), last
        return last.reason

    def failure(self, request: int) -> FailureClass:
        """How a request failed."""
        last = self.of(request)[-1]
        assert isinstance(last, Failed), last
        return last.kind

    def forget(self) -> None:
        """Drop what was reported, so that an id can be used again."""
        self.events = []

    def library(self, ids: list[int], count: int) -> list[int]:
        """What the library's own job says, greedily, on the same generator."""
        job = Job(input_ids=torch.tensor([ids]), max_new_tokens=count, sampler=ComboSampler(temperature=0.0))
        self.generator.enqueue(job)
        said: list[int] = []
        while self.generator.num_remaining_jobs():
            for result in self.generator.iterate():
                found = result.get("token_ids")
                if isinstance(found, torch.Tensor):
                    said += integers(found)
        return said

    def gap(self, ids: list[int]) -> float:
        """The difference of the two largest log-probabilities of the token that follows `ids`: small is a near-tie."""
        kept, self.events = self.events, []
        request = msgspec.structs.replace(ask(999_999, ids, 1), logprobs=2)
        self.run(request)
        told = next(event for event in self.of(request.id) if isinstance(event, Tokens))
        self.events = [*kept, *(event for event in self.events if event.id != request.id)]
        (_, first), (_, second) = told.logprobs[0].top
        return first - second

    def assert_same(self, prompt: list[int], one: list[int], two: list[int]) -> None:
        """Two greedy answers to a prompt are equal, but for what a different batch shape does to a near-tie of the two best.

        Measured on the tiny models: the same token computed in another shape moves by up to 0.02 on the dense one, and by
        up to 0.13 on the hybrid, whose chunked and stepwise recurrences round differently; median gaps are 0.7.
        """
        assert len(one) == len(two)
        place = next((at for at, (first, second) in enumerate(zip(one, two, strict=True)) if first != second), None)
        if place is not None:
            assert self.gap(prompt + one[:place]) < (0.05 if self.generator.recurrent_cache is None else 0.3)
