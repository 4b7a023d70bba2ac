"""Thoughts that the model begins itself, and what closes a thought at its budget."""

from daemon.core.wire import OPENING, Reasoning
from daemon.engine.exl3.thought import Thought

BEGIN = [10, 11]
END = [20]
CLOSE = [19, 20]
SENTENCE = [30, 31, 19, 20]


def thought(*, budget: int | None = None, inside: bool = False, delivered: tuple[int, ...] = ()) -> Thought:
    spec = Reasoning(END, CLOSE, inside=inside, budget_left=budget, begin_ids=BEGIN, budget_close_ids=SENTENCE)
    return Thought(spec, delivered)


def test_mark_at_the_beginning_opens_a_thought() -> None:
    """White space may come first."""
    model = thought()
    for token in (5, 10):
        model.feed(token)
        assert not model.inside
        assert not model.over
    model.feed(11)
    assert model.inside
    assert model.closes_on_stop()
    model.feed(20)
    assert model.over


def test_mark_further_on_is_text() -> None:
    model = thought()
    for token in [5] * OPENING:
        model.feed(token)
    assert model.over
    for token in BEGIN:
        model.feed(token)
    assert not model.inside


def test_mark_begun_before_a_resume_opens_a_thought() -> None:
    model = thought(delivered=(10,))
    model.feed(11)
    assert model.inside


def test_resume_long_after_the_beginning_opens_nothing() -> None:
    assert thought(delivered=(5,) * OPENING).over


def test_budget_of_a_thought_the_model_began_counts_from_there() -> None:
    model = thought(budget=2)
    for token in (*BEGIN, 5):
        model.feed(token)
    assert not model.spent
    model.feed(6)
    assert model.spent
    assert model.close() == SENTENCE
    assert (model.closed, model.spent_budgets) == (1, 1)


def test_stop_before_the_budget_is_closed_without_the_sentence() -> None:
    model = thought(budget=9, inside=True)
    model.feed(5)
    assert model.close() == CLOSE
    assert (model.closed, model.spent_budgets) == (1, 0)


def test_sentence_begun_before_a_resume_is_completed() -> None:
    assert thought(budget=0, inside=True, delivered=(5, 30, 31)).close() == [19, 20]
