"""Drafts: the same answers in fewer passes, whatever else a request asks for, and constraints that are said in words at load."""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import (
    load_file,
    save_file,
)

from daemon.core.settings import BackendKind, EngineSettings, Speculation
from daemon.core.wire import (
    Constraint,
    ConstraintKind,
    FatalClass,
    Finished,
    FinishReason,
    Reasoning,
    Sampler,
    Started,
    Submit,
    Suspended,
    TokenLogprob,
    Tokens,
)
from daemon.engine.backend import EngineFailed
from tests.engine.checkpoints import Architecture, write_checkpoint, write_mtp_checkpoint, write_tokenizer
from tests.engine.conftest import ModelPath
from tests.engine.workbench import Workbench, ask, text

NARROW = Sampler(temperature=0.0, logit_bias=dict.fromkeys((20, 21, 22), 100.0))
"""Leaves three tokens, among which greedy choices repeat themselves often and not always."""
LENGTH = 60


def _engine(model: Path, speculation: Speculation = Speculation.NONE, draft: Path | None = None) -> Workbench:
    settings = EngineSettings(
        backend=BackendKind.CPU,
        cache_tokens=8192,
        max_batch=8,
        chunk_tokens=512,
        threads=1,
        speculation=speculation,
        draft_model=None if draft is None else str(draft),
    )
    return Workbench(model, settings)


@pytest.fixture(scope="module")
def plain(model_path: ModelPath) -> Workbench:
    """Without drafts."""
    return _engine(model_path(Architecture.LLAMA))


@pytest.fixture(scope="module")
def twin(model_path: ModelPath) -> Workbench:
    """The draft model is the model itself: nearly everything it says is accepted."""
    model = model_path(Architecture.LLAMA)
    return _engine(model, Speculation.DRAFT, model)


@pytest.fixture(scope="module")
def ngram(model_path: ModelPath) -> Workbench:
    """Drafts from the conversation."""
    return _engine(model_path(Architecture.LLAMA), Speculation.NGRAM)


@pytest.fixture(scope="module")
def plain_hybrid(model_path: ModelPath) -> Workbench:
    """Without drafts."""
    return _engine(model_path(Architecture.QWEN3_5))


@pytest.fixture(scope="module")
def ngram_hybrid(model_path: ModelPath) -> Workbench:
    """Rejected tokens must come out of the recurrent state again."""
    return _engine(model_path(Architecture.QWEN3_5), Speculation.NGRAM)


@pytest.fixture(autouse=True)
def _forgotten(request: pytest.FixtureRequest) -> None:
    """Engines are shared by the tests of this file: start with an empty record."""
    for name in ("plain", "twin", "ngram", "plain_hybrid", "ngram_hybrid"):
        if name in request.fixturenames:
            bench: Workbench = request.getfixturevalue(name)
            bench.forget()
            bench.results.clear()


def _finished(bench: Workbench, request: int) -> Finished:
    last = bench.of(request)[-1]
    assert isinstance(last, Finished), last
    return last


def _passes(bench: Workbench) -> int:
    return sum(result.durations.decode_tokens > 0 for result in bench.results)


def test_a_twin_s_drafts_are_accepted_and_the_answer_is_the_same(plain: Workbench, twin: Workbench) -> None:
    """Five tokens a pass."""
    request = ask(1, text(250), LENGTH)
    (want,), (got,) = plain.run(request).values(), twin.run(request).values()
    plain.assert_same(text(250), want, got)
    told = _finished(twin, 1)
    assert told.accepted >= 0.7 * LENGTH
    assert _passes(twin) < _passes(plain) / 3
    assert next(event.start for event in twin.of(1) if isinstance(event, Tokens)) == 250
    twin.generator.pagetable.validate_pagetable([])


def test_a_stranger_s_drafts_are_rejected_and_the_answer_is_the_same(
    plain: Workbench, model_path: ModelPath, tmp_path: Path
) -> None:
    """A draft model that says something else costs time and changes nothing."""
    other = write_checkpoint(Architecture.LLAMA, tmp_path / "other", seed=7)
    bench = _engine(model_path(Architecture.LLAMA), Speculation.DRAFT, other)
    requests = [ask(number, text(200 + number, seed=number), 30) for number in range(1, 5)]
    want, got = plain.run(*requests), bench.run(*requests)
    for request in requests:
        plain.assert_same(text(200 + request.id, seed=request.id), want[request.id], got[request.id])
        assert _finished(bench, request.id).rejected > 60
    counts = bench.backend.statistics(1)
    assert counts.accepted == sum(_finished(bench, request.id).accepted for request in requests)
    assert counts.rejected == sum(_finished(bench, request.id).rejected for request in requests)


def test_repeats_are_drafted_from_the_conversation(plain: Workbench, ngram: Workbench) -> None:
    """Some are right and some are not; every token drafted is counted as one or the other."""
    request = ask(1, text(250), LENGTH, sampler=NARROW)
    (want,), (got,) = plain.run(request).values(), ngram.run(request).values()
    assert want == got
    told = _finished(ngram, 1)
    assert told.accepted > 5
    assert _passes(ngram) + told.accepted == LENGTH


def test_rejected_tokens_leave_no_trace_in_a_hybrid_s_state(plain_hybrid: Workbench, ngram_hybrid: Workbench) -> None:
    """Accepted and rejected in turns, for two streams at once."""
    prompts = {number: text(200 + 7 * number, seed=number) for number in (1, 2)}
    for bench in (plain_hybrid, ngram_hybrid):
        bench.run(*[ask(number, ids, LENGTH, sampler=NARROW) for number, ids in prompts.items()])
    for number in prompts:
        assert plain_hybrid.ids(number) == ngram_hybrid.ids(number)
    told = [_finished(ngram_hybrid, number) for number in prompts]
    assert sum(each.accepted for each in told) > 5
    assert sum(each.rejected for each in told) > 5


def test_a_dense_drafter_serves_a_hybrid(plain_hybrid: Workbench, model_path: ModelPath) -> None:
    """Nearly all is rejected here; the state is put back each time."""
    bench = _engine(model_path(Architecture.QWEN3_5), Speculation.DRAFT, model_path(Architecture.LLAMA))
    request = ask(1, text(300), 40)
    (want,), (got,) = plain_hybrid.run(request).values(), bench.run(request).values()
    plain_hybrid.assert_same(text(300), want, got)
    assert _finished(bench, 1).rejected > 80


def test_a_model_s_own_head_drafts_for_it(tmp_path: Path) -> None:
    """A random head is hardly ever right: what it says comes out of the state again, prompt by prompt, also from the cache."""
    model = write_mtp_checkpoint(tmp_path / "mtp")
    alone, bench = _engine(model), _engine(model, Speculation.MTP)
    for number, ids in ((1, text(300)), (2, text(300))):
        request = ask(number, ids, 12)
        (want,), (got,) = alone.run(request).values(), bench.run(request).values()
        alone.assert_same(ids, want, got)
        assert _finished(bench, number).rejected > 20
    assert next(event.cached for event in bench.of(2) if isinstance(event, Started)) == 256


def test_what_a_model_s_own_head_gets_right_is_accepted(tmp_path: Path) -> None:
    """A model that always says the same token is easily guessed: five a pass, and the next turn begins where they ended."""
    model = write_mtp_checkpoint(tmp_path / "mtp")
    weights = load_file(model / "model.safetensors")
    save_file(weights | {"lm_head.weight": torch.zeros_like(weights["lm_head.weight"])}, model / "model.safetensors")
    bench = _engine(model, Speculation.MTP)
    prompt = text(300)
    (said,) = bench.run(ask(1, prompt, 250)).values()
    assert said == [0] * 250
    assert _finished(bench, 1).accepted >= 190
    assert _passes(bench) < 60
    (more,) = bench.run(ask(2, prompt + said, 5)).values()
    assert more == [0] * 5
    assert next(event.cached for event in bench.of(2) if isinstance(event, Started)) == 512
    bench.generator.pagetable.validate_pagetable([])


def test_a_hybrid_goes_on_from_a_checkpoint_made_among_drafts(plain_hybrid: Workbench, ngram_hybrid: Workbench) -> None:
    """A page's end stops the acceptance of a draft, so that the state is stored exactly there."""
    prompt = text(490, seed=3)
    request = ask(1, prompt, LENGTH, sampler=NARROW)
    (want,) = plain_hybrid.run(request).values()
    ngram_hybrid.backend.submit(request)
    ngram_hybrid.after_tokens(1, 40)
    ngram_hybrid.backend.suspend(1)
    ngram_hybrid.step()
    last = ngram_hybrid.of(1)[-1]
    assert isinstance(last, Suspended)
    assert last.kept == 512
    delivered = ngram_hybrid.ids(1)
    ngram_hybrid.forget()
    again = ask(1, prompt + delivered, LENGTH - len(delivered), sampler=NARROW, origin=len(prompt), attempt=2)
    (rest,) = ngram_hybrid.run(again).values()
    assert next(event.cached for event in ngram_hybrid.of(1) if isinstance(event, Started)) == 512
    assert delivered + rest == want


def _variants() -> list[Submit]:
    """What a request may ask for besides, all greedy."""
    prompt = text(250)
    base = ask(1, prompt, 40)
    thought = Reasoning(end_ids=[30], close_ids=[40, 41, 30, 42], inside=True, budget_left=11)
    return [
        msgspec.structs.replace(base, sampler=Sampler(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5)),
        msgspec.structs.replace(base, reasoning=thought),
        msgspec.structs.replace(base, constraint=Constraint(ConstraintKind.REGEX, "[a-m ]{3,30}z")),
        msgspec.structs.replace(
            base, reasoning=thought, constraint=Constraint(ConstraintKind.REGEX, "[a-m ]{3,30}z", begins=[30, 42])
        ),
        msgspec.structs.replace(base, min_left=30, stop_ids=list(range(10, 400))),
        msgspec.structs.replace(base, stop_ids=list(range(10, 60))),
    ]


@pytest.mark.parametrize(
    "request_",
    _variants(),
    ids=["penalties", "a budget for thinking", "a grammar", "a grammar after the thought", "a least length", "stops"],
)
def test_drafts_change_nothing_else_about_a_request(plain: Workbench, twin: Workbench, request_: Submit) -> None:
    """The token that ends a thought, a grammar or the answer may stand in the middle of an accepted draft."""
    (want,), (got,) = plain.run(request_).values(), twin.run(request_).values()
    assert _finished(plain, 1).reason is _finished(twin, 1).reason
    assert msgspec.structs.replace(_finished(twin, 1), accepted=0, rejected=0) == _finished(plain, 1)
    plain.assert_same(text(250), want, got)
    assert twin.results[-1].pool.referenced == 0


def test_a_stop_in_the_middle_of_a_draft_is_the_last_token(plain: Workbench, twin: Workbench) -> None:
    """What was accepted behind it is not delivered, and counted as rejected."""
    (want,) = plain.run(ask(1, text(250), 40)).values()
    stop = want[7]
    request = msgspec.structs.replace(ask(2, text(250), 40), stop_ids=[stop])
    (got,) = twin.run(request).values()
    assert got == want[: want.index(stop) + 1]
    assert _finished(twin, 2).reason is FinishReason.STOP


def test_each_accepted_token_has_its_own_log_probability(plain: Workbench, twin: Workbench) -> None:
    """Several tokens in one event, each with what the model itself says of it."""
    request = msgspec.structs.replace(ask(1, text(250), 12), logprobs=2)
    plain.run(request)
    twin.run(request)
    want, got = (_logprobs(bench) for bench in (plain, twin))
    assert len(got) == len(want) == 12
    assert any(len(event.ids) > 1 for event in twin.of(1) if isinstance(event, Tokens))
    for one, other in zip(want, got, strict=True):
        assert other.chosen == pytest.approx(one.chosen, abs=0.1)


def _logprobs(bench: Workbench) -> list[TokenLogprob]:
    return [each for event in bench.of(1) if isinstance(event, Tokens) for each in event.logprobs]


def test_a_seed_draws_once_a_token_delivered(twin: Workbench) -> None:
    """However many of a draft were looked at: a resume skips as many draws as tokens."""
    sampler = Sampler(temperature=1.0, top_k=3)
    request = msgspec.structs.replace(ask(1, text(250), 30, sampler=sampler), seed=5)
    (whole,) = twin.run(request).values()
    twin.forget()
    delivered = whole[:13]
    again = ask(1, text(250) + delivered, 17, sampler=sampler, origin=250, attempt=2)
    (rest,) = twin.run(msgspec.structs.replace(again, seed=5, draws=13)).values()
    assert rest[:3] == whole[13:16]


def test_streams_come_and_go_beside_each_other_with_drafts(plain: Workbench, twin: Workbench) -> None:
    """One joins, one is cancelled, one ends: rows find their own logits."""
    requests = {number: ask(number, text(100 + 30 * number, seed=number), 25 + number) for number in range(1, 5)}
    want = {number: plain.run(request)[number] for number, request in requests.items()}
    twin.backend.submit(requests[1])
    twin.backend.submit(requests[2])
    twin.after_tokens(1, 6)
    twin.backend.submit(requests[3])
    twin.backend.cancel(2)
    twin.backend.submit(requests[4])
    twin.until(lambda: all(twin.ended(number) for number in (1, 3, 4)))
    for number in (1, 3, 4):
        plain.assert_same(text(100 + 30 * number, seed=number), want[number], twin.ids(number))
    twin.generator.pagetable.validate_pagetable([])


def _refused(model: Path, speculation: Speculation, draft: str | None = None, backend: BackendKind = BackendKind.CPU) -> str:
    settings = EngineSettings(backend=backend, cache_tokens=2048, threads=1, speculation=speculation, draft_model=draft)
    with pytest.raises(EngineFailed) as raised:
        Workbench(model, settings)
    assert raised.value.kind is FatalClass.CONFIG
    return raised.value.detail


def test_what_does_not_fit_together_is_said_at_load(model_path: ModelPath, tmp_path: Path) -> None:
    """Each with what to change."""
    model = model_path(Architecture.LLAMA)
    assert "engine.draft_model must name" in _refused(model, Speculation.DRAFT)
    assert "set it to draft" in _refused(model, Speculation.NGRAM, str(model))
    assert "no multi-token prediction head" in _refused(model, Speculation.MTP)
    assert "is not a model directory" in _refused(model, Speculation.DRAFT, str(tmp_path / "absent"))
    assert "recurrent layers needs a GPU" in _refused(model, Speculation.DRAFT, str(model_path(Architecture.QWEN3_5)))
    write_tokenizer(tmp_path)
    assert "null backend drafts nothing" in _refused(tmp_path, Speculation.NGRAM, backend=BackendKind.NULL)


def test_a_draft_model_of_another_family_is_refused(model_path: ModelPath, tmp_path: Path) -> None:
    """Its ids mean other words."""
    other = write_checkpoint(Architecture.LLAMA, tmp_path / "other")
    path = other / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace("<think>", "<thunk>"), encoding="utf-8")
    detail = _refused(model_path(Architecture.LLAMA), Speculation.DRAFT, str(other))
    assert "does not speak the tokens" in detail
