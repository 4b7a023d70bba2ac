"""Sampling: seeds, penalties, biases, probabilities, and what a resumed request must not change."""

import msgspec
import pytest
import torch
from exllamav3 import ComboSampler

from daemon.core.wire import Dry, Sampler, TokenLogprob, Tokens, Xtc
from daemon.engine.exl3.sampler import DRAW_LIMIT, Probabilities, build_sampler, seeded
from tests.engine.workbench import GREEDY, Workbench, ask, text

WARM = Sampler(temperature=0.9, top_p=0.95, top_k=40, min_p=0.02)


def test_the_same_seed_gives_the_same_text_and_another_seed_another(bench: Workbench) -> None:
    """A request alone is reproducible."""
    one = msgspec.structs.replace(ask(1, text(40), 30, sampler=WARM), seed=7)
    said = bench.run(
        one,
    )[1]
    again = bench.run(msgspec.structs.replace(one, id=2))[2]
    other = bench.run(msgspec.structs.replace(one, id=3, seed=8))[3]
    assert said == again
    assert said != other


def test_a_resumed_request_draws_where_it_left_off(bench: Workbench) -> None:
    """`draws` skips what was drawn for delivered tokens."""
    prompt = text(40)
    whole = bench.run(msgspec.structs.replace(ask(1, prompt, 30, sampler=WARM), seed=7))[1]
    resumed = ask(2, prompt + whole[:11], 19, sampler=WARM, origin=40, attempt=2)
    rest = bench.run(msgspec.structs.replace(resumed, seed=7, draws=11))[2]
    bench.assert_same(prompt + whole[:11], rest, whole[11:])
    started_over = bench.run(msgspec.structs.replace(resumed, id=3, seed=7, draws=0))[3]
    assert started_over != whole[11:]


def test_draws_are_skipped_as_the_library_makes_them() -> None:
    """One number a token."""
    numbers = seeded(5, 0)
    drawn = [numbers.randint(0, DRAW_LIMIT) for _ in range(20)]
    assert seeded(5, 12).randint(0, DRAW_LIMIT) == drawn[12]


def test_penalties_do_not_count_the_prompt(dense: Workbench) -> None:
    """A prompt full of one token does not make that token unlikely; OpenAI's penalties are on what was generated."""
    prompt = text(60)
    free = dense.run(ask(1, prompt, 1))[1][0]
    crowded = [*([free] * 50), *prompt]
    plain = dense.run(ask(2, crowded, 1))[2]
    punished = ask(
        3,
        crowded,
        1,
        sampler=msgspec.structs.replace(GREEDY, presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=1.9),
    )
    assert dense.run(punished)[3] == plain


def test_penalties_count_what_was_generated_in_earlier_attempts(dense: Workbench) -> None:
    """`origin` travels with the request: after a resume, delivered tokens are still generated ones."""
    prompt = text(60)
    sampler = msgspec.structs.replace(GREEDY, frequency_penalty=1.5)
    whole = dense.run(ask(1, prompt, 24, sampler=sampler))[1]
    rest = dense.run(ask(2, prompt + whole[:12], 12, sampler=sampler, origin=60, attempt=2))[2]
    dense.assert_same(prompt + whole[:12], rest, whole[12:])
    assert whole != dense.run(ask(3, prompt, 24))[3]


def test_a_bias_forces_and_forbids_tokens(dense: Workbench) -> None:
    """As in OpenAI's API."""
    prompt = text(60)
    first = dense.run(ask(1, prompt, 1))[1][0]
    forced = msgspec.structs.replace(GREEDY, logit_bias={77: 100.0})
    banned = msgspec.structs.replace(GREEDY, logit_bias={first: -100.0})
    assert dense.run(ask(2, prompt, 4, sampler=forced))[2] == [77] * 4
    assert dense.run(ask(3, prompt, 1, sampler=banned))[3][0] != first


@pytest.mark.parametrize(
    "sampler",
    [
        msgspec.structs.replace(WARM, xtc=Xtc(0.5, 0.1)),
        msgspec.structs.replace(WARM, dry=Dry(0.8)),
        msgspec.structs.replace(WARM, dry=Dry(0.8, breakers=["\n", "."])),
        msgspec.structs.replace(WARM, temperature_last=True, repetition_penalty=1.1),
        msgspec.structs.replace(GREEDY, dry=Dry(0.8)),
    ],
    ids=["xtc", "dry", "dry with breakers", "temperature last", "greedy dry"],
)
def test_every_sampler_runs_to_the_end(dense: Workbench, sampler: Sampler) -> None:
    """On the real library."""
    assert len(dense.run(msgspec.structs.replace(ask(1, text(40), 20, sampler=sampler), seed=3))[1]) == 20


def test_dry_breaks_a_loop(dense: Workbench) -> None:
    """A model that only repeats what it was given stops repeating it."""
    bias = {10: 12.0, 11: 12.0, 12: 12.0, 13: 12.0}
    plain = dense.run(ask(1, text(30), 60, sampler=msgspec.structs.replace(GREEDY, logit_bias=bias)))[1]
    dry = dense.run(
        ask(2, text(30), 60, sampler=msgspec.structs.replace(GREEDY, logit_bias=bias, dry=Dry(4.0, breakers=["zzzz"])))
    )[2]
    assert _longest_repeat(dry) < _longest_repeat(plain)


def _longest_repeat(ids: list[int]) -> int:
    """Length of the longest run that occurs a second time."""
    for size in range(len(ids) - 1, 0, -1):
        seen: set[tuple[int, ...]] = set()
        for start in range(len(ids) - size + 1):
            run = tuple(ids[start : start + size])
            if run in seen:
                return size
            seen.add(run)
    return 0


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": -3}, {"top_p": 1.5}, {"min_p": 2.0}])
def test_values_out_of_range_are_refused(dense: Workbench, wrong: dict[str, float]) -> None:
    """The library would take some of them and misbehave."""
    with pytest.raises(ValueError, match="must"):
        build_sampler(msgspec.convert(wrong, Sampler), dense.generator.tokenizer)


def test_a_plain_request_gets_the_library_s_combined_sampler(dense: Workbench) -> None:
    """Which it can run in one kernel on a GPU."""
    assert isinstance(build_sampler(WARM, dense.generator.tokenizer), ComboSampler)


def test_log_probabilities_come_with_every_token_and_from_raw_logits(bench: Workbench) -> None:
    """Before penalties, temperature and masks; the chosen one is among the best of a greedy request."""
    prompt = text(60)
    request = msgspec.structs.replace(ask(1, prompt, 8), logprobs=3)
    bench.run(request)
    hot = msgspec.structs.replace(ask(2, prompt, 8), logprobs=3, sampler=msgspec.structs.replace(GREEDY, logit_bias={77: 100.0}))
    bench.run(hot)
    told = [event for event in bench.of(1) if isinstance(event, Tokens)]
    assert all(len(event.logprobs) == len(event.ids) == 1 for event in told)
    for event in told:
        (logprob,) = event.logprobs
        assert len(logprob.top) == 3
        assert logprob.top[0] == (event.ids[0], logprob.chosen)
        assert logprob.chosen <= 0
    biased = next(event for event in bench.of(2) if isinstance(event, Tokens))
    assert biased.ids == [77]
    assert biased.logprobs[0].chosen < told[0].logprobs[0].chosen
    assert biased.logprobs[0].top[0][0] == told[0].ids[0]


def test_log_probabilities_are_those_of_a_softmax_over_the_vocabulary() -> None:
    """Padding columns do not count."""
    logits = torch.tensor([[[1.0, 3.0, 2.0, 50.0]]])
    said = Probabilities(logits, vocabulary=3, top=2).of(0)
    expected = torch.log_softmax(torch.tensor([1.0, 3.0, 2.0]), dim=-1)
    assert said.chosen == pytest.approx(float(expected[0]))
    assert [token for token, _ in said.top] == [1, 2]
    assert isinstance(said, TokenLogprob)


def test_no_alternatives_are_given_where_none_were_asked_for(dense: Workbench) -> None:
    """`logprobs=0` is the chosen token's alone."""
    dense.run(msgspec.structs.replace(ask(1, text(20), 2), logprobs=0))
    told = [event for event in dense.of(1) if isinstance(event, Tokens)]
    assert all(not event.logprobs[0].top for event in told)
