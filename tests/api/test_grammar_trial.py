"""Grammars that would end or hold up the process that compiles them are refused, and the front goes on."""

import json

import pytest

from daemon.api import constraints
from daemon.api.constraints import compile_problem
from daemon.api.grammar_trial import INLINE_CHARACTERS, Undecided, compile_apart
from daemon.core.wire import Constraint, ConstraintKind
from tests.api.conftest import Connect
from tests.api.fakes import FakeServing, application
from tests.api.reading import CHAT, error_of

LINKS = 3000
CHAIN = "\n".join(["start: r0", *(f'r{link}: r{link + 1} | "x"' for link in range(LINKS)), f'r{LINKS}: "y"'])
"""Each rule needs the next: compiling it recurses as deep, and the stack is not."""
REFERENCES = json.dumps(
    {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{link}": {"$ref": f"#/$defs/d{link + 1}"} for link in range(LINKS)} | {f"d{LINKS}": {"type": "string"}},
    }
)


@pytest.mark.parametrize(("field", "text"), [("guided_grammar", CHAIN), ("guided_json", REFERENCES)], ids=["rules", "references"])
async def test_grammar_on_which_the_compiler_dies_is_400_and_the_front_lives(connect: Connect, field: str, text: str) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await client.post("/v1/chat/completions", json={**CHAT, field: text})
    assert response.status == 400
    error = await error_of(response)
    assert (error["code"], error["param"]) == ("invalid_constraint", field)
    assert "too deeply nested" in error["message"]
    assert (await client.get("/health")).status == 200
    assert serving.requests == []


def test_grammar_that_takes_too_long_is_given_up() -> None:
    slow = "start: " + " ".join(f'"a{word}"' for word in range(100_000))
    with pytest.raises(Undecided, match=r"longer than 0\.5 s"):
        compile_apart(Constraint(ConstraintKind.LARK, slow), seconds=0.5)


def test_trial_that_was_given_up_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Undecided("it takes longer than 10 s to compile"), ""])

    def tried(constraint: Constraint) -> str:
        del constraint
        answer = next(answers)
        if isinstance(answer, Undecided):
            raise answer
        return answer

    monkeypatch.setattr(constraints, "compile_apart", tried)
    large = Constraint(ConstraintKind.LARK, f'// given up once {"x" * INLINE_CHARACTERS}\nstart: "a"')
    assert [compile_problem(large) for _ in range(3)] == ["it takes longer than 10 s to compile", "", ""]


@pytest.mark.parametrize(("word", "problem"), [('"ä"', ""), ("nothing", "unknown name")])
def test_large_grammar_is_judged_as_a_small_one_is(word: str, problem: str) -> None:
    small = f"start: {word}"
    large = f"// {'x' * INLINE_CHARACTERS}\n{small}"
    for text in (small, large):
        found = compile_problem(Constraint(ConstraintKind.LARK, text))
        assert problem in found
        assert bool(found) is bool(problem)
