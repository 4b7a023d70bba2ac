"""Thoughts: followed, closed at a stop and at their budget, and continued within the same request."""

import msgspec
import pytest
import torch

from daemon.core.wire import Finished, FinishReason, OnStop, Reasoning
from daemon.engine.exl3.thought import Thought
from daemon.engine.null.profile import NullProfile, Script
from tests.engine.conftest import NullBench
from tests.engine.workbench import Workbench, ask, text

END = [20, 21]
CLOSE = [19, 20, 21, 22]
STOP = 2


def _reasoning(budget: int | None = None, on_stop: OnStop = OnStop.CLOSE, *, inside: bool = True) -> Reasoning:
    return Reasoning(end_ids=END, close_ids=CLOSE, inside=inside, budget_left=budget, on_stop=on_stop)


def test_a_thought_ends_where_the_model_ends_it() -> None:
    """All of the end ids, in a row."""
    thought = Thought(_reasoning())
    for token in (20, 5, 20):
        thought.feed(token)
        assert thought.inside
    thought.feed(21)
    assert not thought.inside
    assert not thought.closes_on_stop()


def test_an_end_mark_begun_before_a_resume_is_recognised() -> None:
    """The delivered ids are part of the sequence."""
    thought = Thought(_reasoning(), delivered=[7, 20])
    thought.feed(21)
    assert not thought.inside


def test_a_budget_counts_thinking_tokens() -> None:
    """And lets a mark that has begun be completed."""
    thought = Thought(_reasoning(budget=3))
    for token in (5, 6):
        thought.feed(token)
        assert not thought.spent
    thought.feed(20)
    assert not thought.spent
    thought.feed(8)
    assert thought.spent
    assert thought.close() == CLOSE
    assert not thought.inside
    assert thought.closed == 1


def test_closing_ids_that_an_earlier_attempt_delivered_are_not_repeated() -> None:
    """The engine died in the middle of closing."""
    thought = Thought(_reasoning(budget=0), delivered=[5, 19, 20])
    assert thought.spent
    assert thought.close() == [21, 22]


def test_a_request_that_answers_already_has_no_thought_to_close() -> None:
    """`inside` is false from the start."""
    thought = Thought(_reasoning(budget=0, inside=False))
    assert not thought.spent
    assert not thought.closes_on_stop()


def _script(bench: NullBench, ids: list[int]) -> Workbench:
    return bench(NullProfile(scripts=[Script(order=1, ids=ids, ends=False)]))


def test_a_stop_inside_a_thought_closes_it_and_the_model_answers(null_bench: NullBench) -> None:
    """The stop id is dropped, the closing ids are delivered in its place, one request, one finish."""
    bench = _script(null_bench, [30, 31, STOP, 90, 91, 92, 32, 33, STOP])
    request = msgspec.structs.replace(ask(1, text(20), 50), stop_ids=[STOP], reasoning=_reasoning())
    said = bench.run(request)[1]
    assert said == [30, 31, *CLOSE, 32, 33, STOP]
    last = bench.of(1)[-1]
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.STOP
    assert last.closed_thoughts == 1


def test_a_stop_inside_a_thought_may_end_the_request(null_bench: NullBench) -> None:
    """Where the front wants that."""
    bench = _script(null_bench, [30, 31, STOP, 40])
    request = msgspec.structs.replace(ask(1, text(20), 50), stop_ids=[STOP], reasoning=_reasoning(on_stop=OnStop.FINISH))
    assert bench.run(request)[1] == [30, 31, STOP]


def test_a_spent_budget_closes_the_thought(null_bench: NullBench) -> None:
    """After exactly so many thinking tokens."""
    bench = _script(null_bench, [30, 31, 32, 33, 34, 35, 36, 37, 38, STOP])
    request = msgspec.structs.replace(ask(1, text(20), 50), stop_ids=[STOP], reasoning=_reasoning(budget=3))
    assert bench.run(request)[1] == [30, 31, 32, *CLOSE, 37, 38, STOP]


def test_a_budget_spent_before_the_first_token_closes_at_once(null_bench: NullBench) -> None:
    """A resumed request whose thinking was over."""
    bench = _script(null_bench, [0, 0, 0, 0, 40, STOP])
    request = msgspec.structs.replace(ask(1, text(20), 50), stop_ids=[STOP], reasoning=_reasoning(budget=0))
    assert bench.run(request)[1] == [*CLOSE, 40, STOP]


def test_a_thought_the_model_ends_itself_is_left_alone(null_bench: NullBench) -> None:
    """Nothing is added."""
    bench = _script(null_bench, [30, *END, 40, STOP])
    request = msgspec.structs.replace(ask(1, text(20), 50), stop_ids=[STOP], reasoning=_reasoning(budget=30))
    assert bench.run(request)[1] == [30, *END, 40, STOP]
    last = bench.of(1)[-1]
    assert isinstance(last, Finished)
    assert last.closed_thoughts == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_a_closed_thought_continues_on_the_real_model(bench: Workbench, seed: int) -> None:
    """The answer after the closing ids is what a fresh request for the same sequence gives."""
    prompt = text(60, seed=seed)
    request = msgspec.structs.replace(ask(1, prompt, 30), reasoning=_reasoning(budget=5))
    said = bench.run(request)[1]
    assert said[5:9] == CLOSE
    fresh = bench.run(ask(2, prompt + said[:9], 21))[2]
    bench.assert_same(prompt + said[:9], said[9:], fresh)


def test_closing_goes_on_after_a_contained_fault(null_bench: NullBench) -> None:
    """Ids that still had to be put in are put in by the next job."""
    bench = _script(null_bench, [30, 31, 32, 33, 34, 35, 36, 37, STOP])
    bench.backend.submit(msgspec.structs.replace(ask(1, text(20), 50), stop_ids=[STOP], reasoning=_reasoning(budget=2)))
    bench.after_tokens(1, 4)
    forward = bench.generator.model.forward
    calls: list[int] = []

    def fail(input_ids: torch.Tensor, params: dict[str, object]) -> torch.Tensor:
        if not calls:
            calls.append(1)
            raise RuntimeError("a fault was played")
        return forward(input_ids, params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.generator.model, "forward", fail)
        bench.until(lambda: bench.ended(1))
    assert calls
    assert bench.ids(1) == [30, 31, *CLOSE, 36, 37, STOP]
