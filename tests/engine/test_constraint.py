"""Grammars on the real library: held from the first token or after a thought, over suspends and faults, refused when bad."""

import json
import re
import threading

import msgspec
import pytest
import torch

from daemon.core.wire import Constraint, ConstraintKind, FailureClass, FinishReason, Reasoning, Submit
from daemon.engine.exl3.constraint import GrammarBroken, GrammarCompiler
from tests.engine.checkpoints import MESSAGE_END
from tests.engine.workbench import Workbench, ask, text

PATTERN = "[a-z]{3}(-[0-9]{4}){6}X"
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
)


def _constrained(request: Submit, kind: ConstraintKind, grammar: str, begins: list[int] | None = None) -> Submit:
    return msgspec.structs.replace(request, stop_ids=[MESSAGE_END], constraint=Constraint(kind, grammar, begins=begins or []))


def _decode(bench: Workbench, ids: list[int]) -> str:
    return bench.generator.tokenizer.tokenizer.decode([token for token in ids if token != MESSAGE_END], skip_special_tokens=False)


@pytest.mark.parametrize(
    ("kind", "grammar", "holds"),
    [
        (ConstraintKind.REGEX, PATTERN, PATTERN),
        (ConstraintKind.LARK, 'start: "yes" | "no"', "yes|no"),
        (ConstraintKind.GBNF, 'root ::= "left" | "right"', "left|right"),
    ],
)
def test_the_answer_follows_the_grammar_to_its_end(bench: Workbench, kind: ConstraintKind, grammar: str, holds: str) -> None:
    """And the request ends there, without a stop."""
    said = bench.run(_constrained(ask(1, text(40), 200), kind, grammar))[1]
    assert re.fullmatch(holds, _decode(bench, said))
    assert bench.finish(1) in {FinishReason.CONSTRAINT, FinishReason.STOP}


def test_a_json_schema_gives_json_that_fits_it(bench: Workbench) -> None:
    """`response_format` of OpenAI's API."""
    said = bench.run(_constrained(ask(1, text(40), 300), ConstraintKind.JSON_SCHEMA, SCHEMA))[1]
    found: dict[str, object] = json.loads(_decode(bench, said))
    assert found["ok"] in {True, False}
    assert found["n"] in {1, 2, 3}


def test_a_resumed_request_goes_on_in_the_middle_of_its_grammar(bench: Workbench) -> None:
    """The delivered tokens are replayed; the library alone would start the grammar over."""
    prompt = text(40)
    request = _constrained(ask(1, prompt, 200), ConstraintKind.REGEX, PATTERN)
    whole = bench.run(request)[1]
    cut = len(whole) // 2
    resumed = _constrained(ask(2, prompt + whole[:cut], 200 - cut, origin=40, attempt=2), ConstraintKind.REGEX, PATTERN)
    rest = bench.run(resumed)[2]
    assert re.fullmatch(PATTERN, _decode(bench, whole[:cut] + rest))


def test_a_grammar_holds_through_a_contained_fault(dense: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new job's grammar stands where the old one's stood."""
    dense.backend.submit(_constrained(ask(1, text(40), 200), ConstraintKind.REGEX, PATTERN))
    dense.after_tokens(1, 8)
    failures: list[int] = []
    forward = dense.generator.model.forward

    def fail(input_ids: torch.Tensor, params: dict[str, object]) -> torch.Tensor:
        if not failures:
            failures.append(1)
            raise RuntimeError("a fault was played")
        return forward(input_ids, params)

    monkeypatch.setattr(dense.generator.model, "forward", fail)
    dense.until(lambda: dense.ended(1))
    assert failures
    assert re.fullmatch(PATTERN, _decode(dense, dense.ids(1)))


def test_a_grammar_begins_after_the_thought(bench: Workbench) -> None:
    """After several ids, put in by the engine at the budget; what follows them in the closing ids is not the grammar's."""
    end, tail = [20, 21], [22]
    reasoning = Reasoning(end_ids=end, close_ids=[19, *end, *tail], inside=True, budget_left=6)
    request = msgspec.structs.replace(
        _constrained(ask(1, text(40), 200), ConstraintKind.REGEX, "[0-9]{5}", begins=end), reasoning=reasoning
    )
    said = bench.run(request)[1]
    assert said[6:10] == [19, *end, *tail]
    assert re.fullmatch("[0-9]{5}", _decode(bench, said[10:]))
    resumed = msgspec.structs.replace(
        _constrained(ask(2, text(40) + said[:11], 100, origin=40, attempt=2), ConstraintKind.REGEX, "[0-9]{5}", begins=end),
        reasoning=msgspec.structs.replace(reasoning, inside=False, budget_left=0),
    )
    rest = bench.run(resumed)[2]
    assert re.fullmatch("[0-9]{5}", _decode(bench, said[10:11] + rest))


@pytest.mark.parametrize(
    ("kind", "grammar"),
    [
        (ConstraintKind.REGEX, "[a-"),
        (ConstraintKind.JSON_SCHEMA, '{"type": "nonsense"}'),
        (ConstraintKind.JSON_SCHEMA, "not json"),
        (ConstraintKind.LARK, "start: undefined_rule"),
        (ConstraintKind.JSON_SCHEMA, '{"$ref": "#"}'),  # compiles, and no text fits it
    ],
)
def test_a_bad_grammar_fails_its_request_and_is_never_left_out(dense: Workbench, kind: ConstraintKind, grammar: str) -> None:
    """No unconstrained text, and the engine goes on."""
    assert not dense.run(_constrained(ask(1, text(40), 20), kind, grammar))[1]
    assert dense.failure(1) is FailureClass.INVALID
    assert len(dense.run(ask(2, text(20), 3))[2]) == 3


def test_delivered_text_that_does_not_fit_the_grammar_fails(dense: Workbench) -> None:
    """It cannot have been delivered under it."""
    request = _constrained(ask(1, [*text(40), 300, 301, 302], 20, origin=40), ConstraintKind.REGEX, "[0-9]{3}")
    dense.run(request)
    assert dense.failure(1) is FailureClass.CONSTRAINT


def test_a_grammar_is_compiled_once_for_all_who_want_it(dense: Workbench) -> None:
    """Several at the same time, and later ones."""
    dense.run(*[_constrained(ask(number, text(30, seed=number), 40), ConstraintKind.REGEX, "[0-9]{4}") for number in (1, 2, 3)])
    for number in (1, 2, 3):
        assert re.fullmatch("[0-9]{4}", _decode(dense, dense.ids(number)))
    dense.backend.submit(_constrained(ask(4, text(30), 40), ConstraintKind.REGEX, "[0-9]{4}"))
    assert dense.generator.pending_jobs


def test_a_request_cancelled_while_its_grammar_compiles_is_gone(dense: Workbench) -> None:
    """Nothing enters later."""
    dense.backend.submit(_constrained(ask(1, text(30), 40), ConstraintKind.REGEX, "[0-9]{4,9}"))
    dense.backend.cancel(1)
    dense.run(ask(2, text(20), 30))
    assert not dense.of(1)


def test_a_grammar_that_takes_too_long_is_given_up(dense: Workbench) -> None:
    """The engine's thread never waits for it, and the request learns why."""
    woken = threading.Event()
    compiler = GrammarCompiler(dense.generator.tokenizer, woken.set, limit=0.0)
    constraint = Constraint(ConstraintKind.REGEX, "(a|b|c|d){1,900}(e|f){1,900}[g-z]{1,900}")
    compiler.start(constraint)
    assert woken.wait(60)
    results = compiler.collect()
    assert len(results) == 1
    assert results[0].matcher is None
    assert "longer than" in results[0].problem


def test_the_engine_s_own_ids_after_the_beginning_are_skipped_on_replay(dense: Workbench) -> None:
    """Only where they really follow; a token the grammar refuses is an error."""
    constraint = Constraint(ConstraintKind.REGEX, "[0-9]{3}", begins=[20, 21])
    woken = threading.Event()
    compiler = GrammarCompiler(dense.generator.tokenizer, woken.set)
    compiler.start(constraint)
    assert woken.wait(60)
    matcher = compiler.collect()[0].matcher
    assert matcher is not None
    digit = dense.generator.tokenizer.tokenizer.token_to_id("7")
    assert digit is not None
    followed = compiler.filter(matcher.deep_copy(), constraint, close_ids=[19, 20, 21, 22, 23])
    followed.replay([5, 19, 20, 21, 22, 23, digit])
    assert followed.is_active
    assert not followed.is_completed()
    followed.replay([digit, digit])
    assert followed.is_completed()
    waiting = compiler.filter(matcher.deep_copy(), constraint, close_ids=[])
    waiting.replay([5, 20])
    assert not waiting.is_active
    refused = compiler.filter(matcher.deep_copy(), constraint, close_ids=[])
    with pytest.raises(GrammarBroken, match="does not allow"):
        refused.replay([20, 21, 300])
