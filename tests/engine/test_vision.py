"""Pictures through the real backend, on a tiny Qwen3.5 with a vision tower."""

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch
from exllamav3 import Config
from exllamav3.constants import PAGE_SIZE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from daemon.core.exit_codes import ExitCode
from daemon.core.framing import report_reader
from daemon.core.pictures import PictureRule, ids_of, refusal, tokens_of
from daemon.core.progress import PAGE_BYTES, read_progress
from daemon.core.settings import EngineSettings, Speculation
from daemon.core.wire import (
    Constraint,
    ConstraintKind,
    Drain,
    Failed,
    FailureClass,
    ImageSpan,
    Phase,
    Prefilling,
    Quote,
    Span,
    Started,
    Step,
    Submit,
    Suspended,
    TokenSpan,
)
from daemon.engine.backend import EngineFailed
from daemon.engine.exl3 import vision
from daemon.engine.exl3.containment import forget
from daemon.engine.inbox import Inbox
from daemon.engine.loop import EngineLoop
from daemon.engine.page import ProgressPage
from daemon.engine.writer import ReportWriter
from daemon.host.picture_rule import read_picture_rule
from tests.engine.checkpoints import PICTURE_END, PICTURE_START, Architecture, write_vision_checkpoint
from tests.engine.child import ids_of as told_ids
from tests.engine.conftest import ModelPath
from tests.engine.device import BACKEND
from tests.engine.workbench import GREEDY, Workbench, ask, text
from tests.pictures import drawn, encoded, png, span_of
from tests.process.front import wait_until

SETTINGS = EngineSettings(
    backend=BACKEND, cache_tokens=8192, max_batch=8, chunk_tokens=512, reserve_tokens=2048, threads=1, vision=True
)


@pytest.fixture(scope="module")
def model(seeing_checkpoint: Callable[[], Path]) -> Path:
    """The checkpoint."""
    return seeing_checkpoint()


@pytest.fixture(scope="module")
def rule(model: Path) -> PictureRule:
    """How it counts pictures."""
    return read_picture_rule(model)


@pytest.fixture(scope="module")
def one_engine(model: Path) -> Workbench:
    """An engine for the whole file: loading one takes longer than most tests."""
    return Workbench(model, SETTINGS)


@pytest.fixture
def bench(one_engine: Workbench) -> Workbench:
    """The engine, idle and with empty caches."""
    table, checkpoints = one_engine.generator.pagetable, one_engine.generator.recurrent_cache
    forget(one_engine.generator, table.all_pages)
    assert checkpoints is not None
    assert not checkpoints
    one_engine.forget()
    return one_engine


class Shown:
    """Prompts with pictures. `rule` says what stands around them."""

    def __init__(self, rule: PictureRule) -> None:
        self._rule = rule

    def spans(self, *parts: bytes | list[int]) -> list[Span]:
        """Text and pictures as the front sends them."""
        spans: list[Span] = []
        for part in parts:
            if isinstance(part, bytes):
                spans += [TokenSpan([PICTURE_START]), span_of(part, self._rule), TokenSpan([PICTURE_END])]
            else:
                spans.append(TokenSpan(part))
        return spans

    def ask(self, request: int, count: int, *parts: bytes | list[int], attempt: int = 1) -> Submit:
        """A greedy request for `count` tokens."""
        spans = self.spans(*parts)
        return Submit(request, attempt, spans, len(ids_of(spans)), count, sampler=GREEDY)


@pytest.fixture
def shown(rule: PictureRule) -> Shown:
    """Makes prompts."""
    return Shown(rule)


def resumed(request: Submit, delivered: list[int], *, attempt: int) -> Submit:
    """What the front sends after an interruption."""
    return msgspec.structs.replace(
        request,
        attempt=attempt,
        spans=[*request.spans, TokenSpan(delivered)],
        max_left=request.max_left - len(delivered),
        draws=len(delivered),
    )


def cached(bench: Workbench, request: int, attempt: int = 1) -> int:
    """Tokens found in the prefix cache."""
    return next(event.cached for event in bench.of(request) if isinstance(event, Started) and event.attempt == attempt)


def failed(bench: Workbench, request: int) -> Failed:
    """How a request failed."""
    last = bench.of(request)[-1]
    assert isinstance(last, Failed), last
    return last


def test_hello_says_that_pictures_are_taken(bench: Workbench) -> None:
    assert bench.backend.hello("boot", 1).limits.vision


def test_answer_depends_on_what_the_picture_shows_and_on_nothing_else(bench: Workbench, shown: Shown) -> None:
    """The same picture gives the same answer, also to a second request with it; another picture of its size does not."""
    one, other = png(128, 96), png(128, 96, seed=1)
    said = bench.run(*(shown.ask(n, 12, text(20), data, text(9, seed=2)) for n, data in enumerate((one, one, other), start=1)))
    assert said[1] == said[2]
    assert said[1] != said[3]
    assert len(said[1]) == 12


def test_two_pictures_are_told_apart_by_their_order(bench: Workbench, shown: Shown) -> None:
    one, other = png(128, 96), png(96, 64, seed=1)
    said = bench.run(shown.ask(1, 12, one, text(9), other, text(5)), shown.ask(2, 12, other, text(9), one, text(5)))
    assert said[1] != said[2]


def test_second_turn_finds_the_picture_and_all_before_it_cached(bench: Workbench, shown: Shown) -> None:
    parts = (text(200), png(256, 256), text(100, seed=4))
    first = bench.run(shown.ask(1, 20, *parts))[1]
    prompt = len(ids_of(shown.spans(*parts)))
    bench.run(shown.ask(2, 4, *parts, [*first, *text(30, seed=5)]))
    assert cached(bench, 1) == 0
    assert cached(bench, 2) == prompt // PAGE_SIZE * PAGE_SIZE > 0
    started = bench.of(2)[0]
    assert isinstance(started, Started)


def test_picture_that_was_forgotten_is_looked_at_again_and_still_found_cached(model: Path, shown: Shown) -> None:
    """Nothing is remembered with no memory for it; the ids, and so the pages, are the picture's own."""
    bench = Workbench(model, msgspec.structs.replace(SETTINGS, vision_memory_mib=0))
    parts = (png(256, 256), text(300))
    said = bench.run(shown.ask(1, 8, *parts), shown.ask(2, 8, *parts))
    again = bench.run(shown.ask(3, 8, *parts))
    assert said[1] == said[2] == again[3]
    assert cached(bench, 3) == PAGE_SIZE


def test_suspended_answer_goes_on_as_if_nothing_had_been(bench: Workbench, shown: Shown) -> None:
    request = shown.ask(1, 40, text(200), png(200, 120), text(60), png(64, 64, seed=3), text(9))
    whole = bench.run(request)[1]
    bench.forget()
    bench.backend.submit(msgspec.structs.replace(request, id=2))
    bench.after_tokens(2, 15)
    bench.backend.suspend(2)
    bench.until(lambda: bench.ended(2))
    aside = bench.of(2)[-1]
    assert isinstance(aside, Suspended)
    assert aside.kept == PAGE_SIZE
    delivered = bench.ids(2)
    bench.forget()
    rest = bench.run(resumed(msgspec.structs.replace(request, id=2), delivered, attempt=2))[2]
    assert cached(bench, 2, attempt=2) == PAGE_SIZE
    bench.assert_same(ids_of(request.spans), whole, delivered + rest)


def test_another_engine_goes_on_with_the_same_answer(model: Path, bench: Workbench, shown: Shown) -> None:
    """What an engine's death leaves is the picture itself, and the delivered ids."""
    request = shown.ask(1, 24, text(30), png(200, 120), text(9))
    whole = bench.run(request)[1]
    successor = Workbench(model, SETTINGS)
    rest = successor.run(resumed(request, whole[:10], attempt=2))[1]
    assert rest == whole[10:]


def test_picture_across_chunks_and_pages_and_an_answer_that_queues_for_more_of_them_keep_their_places(
    model: Path, bench: Workbench, shown: Shown
) -> None:
    """The library builds a job anew when it claims more pages; its picture, and the places behind it, must be the same."""
    request = shown.ask(1, 40, text(230), png(256, 256), text(186))
    assert len(ids_of(request.spans)) == 2 * PAGE_SIZE - 30
    wide = bench.run(request)[1]
    narrow = Workbench(model, msgspec.structs.replace(SETTINGS, chunk_tokens=256, reserve_tokens=16))
    narrow.generator.recurrent_checkpoint_interval = PAGE_SIZE
    narrow.backend.submit(request)
    narrow.after_tokens(1, 1)
    (job,) = narrow.generator.active_jobs
    assert job.max_rq_tokens is not None
    assert job.max_rq_tokens < 40, "it must queue again for this to show anything"
    narrow.until(lambda: narrow.ended(1))
    bench.assert_same(ids_of(request.spans), wide, narrow.ids(1))


def test_failed_step_is_survived_with_the_picture(bench: Workbench, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    request = shown.ask(1, 20, text(30), png(96, 96), text(9))
    whole = bench.run(request)[1]
    bench.forget()
    bench.backend.submit(msgspec.structs.replace(request, id=2))
    bench.after_tokens(2, 5)
    with monkeypatch.context() as patched:
        patched.setattr(bench.generator, "iterate", _fail)
        bench.step()
    bench.until(lambda: bench.ended(2))
    assert bench.ids(2) == whole


def _fail() -> None:
    raise RuntimeError("for once")


def test_quote_counts_a_picture_and_finds_it(bench: Workbench, shown: Shown) -> None:
    """Before anybody has looked at it, and after."""
    spans = shown.spans(png(256, 256), text(300))
    fresh = bench.backend.quote(Quote(7, spans, 20))
    assert (fresh.new_pages, fresh.cached) == (2, 0)
    bench.run(Submit(1, 1, spans, len(ids_of(spans)), 4, sampler=GREEDY))
    assert bench.backend.quote(Quote(8, spans, 20)).cached == PAGE_SIZE


def test_damaged_picture_ends_its_own_request_in_words(bench: Workbench, shown: Shown) -> None:
    """Its header was whole, so the front let it in."""
    whole, cut = png(128, 128), png(256, 128)[:-400]
    said = bench.run(shown.ask(1, 6, whole, text(5)), shown.ask(2, 6, whole, text(5), cut), shown.ask(3, 6, text(5)))
    assert (len(said[1]), len(said[2]), len(said[3])) == (6, 0, 6)
    assert failed(bench, 2).kind is FailureClass.INVALID
    assert failed(bench, 2).detail.startswith("picture 2 of 2 cannot be read: OSError: ")
    assert bench.results[-1].pool.pending == 0


def test_picture_that_was_counted_otherwise_is_refused_with_both_numbers(bench: Workbench, shown: Shown) -> None:
    request = shown.ask(1, 6, png(128, 128), text(5))
    wrong = [msgspec.structs.replace(span, tokens=9) if isinstance(span, ImageSpan) else span for span in request.spans]
    bench.run(msgspec.structs.replace(request, spans=wrong))
    assert failed(bench, 1).kind is FailureClass.INTERNAL
    assert "takes 16 tokens and was counted as 9" in failed(bench, 1).detail


def test_tower_that_fails_ends_only_those_who_show_the_picture(
    bench: Workbench, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: vision.Tower, patches: vision.Patches) -> None:
        del self, patches
        raise RuntimeError("no light")

    with monkeypatch.context() as patched:
        patched.setattr(vision.Tower, "look", fail)
        said = bench.run(shown.ask(1, 6, png(128, 128, seed=11), text(5)), shown.ask(2, 6, text(5)))
    assert len(said[2]) == 6
    assert (failed(bench, 1).kind, "no light" in failed(bench, 1).detail) == (FailureClass.PREFILL, True)
    assert len(bench.run(shown.ask(3, 6, png(128, 128, seed=11), text(5)))[3]) == 6


def test_tower_that_loses_the_device_ends_the_engine(bench: Workbench, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: vision.Tower, patches: vision.Patches) -> None:
        del self, patches
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(vision.Tower, "look", fail)
    with pytest.raises(EngineFailed, match="illegal memory access"):
        bench.run(shown.ask(1, 6, png(128, 128, seed=13), text(5)))


def test_cancelled_while_its_picture_is_decoded_leaves_nothing_behind(bench: Workbench, shown: Shown) -> None:
    bench.backend.submit(shown.ask(1, 6, png(128, 128, seed=12), text(5)))
    bench.backend.cancel(1)
    assert len(bench.run(shown.ask(2, 6, png(128, 128, seed=12), text(5)))[2]) == 6
    assert bench.of(1) == []
    pool = bench.backend.pool()
    assert (pool.referenced, pool.pending) == (0, 0)


def test_picture_that_is_being_decoded_is_on_the_progress_page_and_holds_up_a_drain(
    model: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder that crashes takes the engine along: its request must be known. No step runs meanwhile."""
    go_on = threading.Event()

    def slowly(data: bytes) -> Image.Image:
        assert go_on.wait(60)
        return drawn(128, 128, seed=len(data))

    monkeypatch.setattr(vision, "decode", slowly)
    page, inbox = os.memfd_create("page"), Inbox()
    os.truncate(page, PAGE_BYTES)
    backend = Workbench(model, SETTINGS, wake=inbox.wake).backend
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        for command in (shown.ask(1, 3, png(128, 128, seed=14), text(5)), Drain()):
            inbox.put(command)
        done = threads.submit(EngineLoop(backend, inbox, ReportWriter(ours), ProgressPage(page)).run)
        wait_until(lambda: _in_flight(page) == (1,), "an idle engine that names the request")
        assert not done.done()
        go_on.set()
        assert done.result(60) is ExitCode.OK
        reports = report_reader().feed(theirs.recv(1 << 20))
    os.close(page)
    events = [event for report in reports if isinstance(report, Step) for event in report.events]
    assert len(told_ids(events)) == 3


def _in_flight(page: int) -> tuple[int, ...]:
    """Whom an idle engine names on its page."""
    seen = read_progress(os.pread(page, PAGE_BYTES, 0))
    return seen.in_flight if seen is not None and seen.phase is Phase.IDLE else ()


def test_grammar_holds_for_an_answer_about_a_picture(bench: Workbench, shown: Shown) -> None:
    request = shown.ask(1, 20, png(128, 128), text(5))
    limited = msgspec.structs.replace(request, constraint=Constraint(ConstraintKind.REGEX, "(cat|dog){3}"))
    said = bench.run(limited)[1]
    spoken = bench.backend._loaded.tokenizer.tokenizer.decode(said)  # pyright: ignore[reportPrivateUsage] - what people would read
    assert len(spoken) == 9
    assert {spoken[at : at + 3] for at in (0, 3, 6)} <= {"cat", "dog"}


def test_prefill_of_a_picture_is_reported_in_tokens_of_the_whole_prompt(bench: Workbench, shown: Shown) -> None:
    bench.run(shown.ask(1, 2, text(300), png(256, 256)))
    told = [event for event in bench.of(1) if isinstance(event, Prefilling)]
    assert told[-1].done == told[-1].total == 300 + 64 + 2 - 1


@pytest.mark.parametrize("speculation", [Speculation.NGRAM, Speculation.MTP])
def test_drafts_do_not_change_what_is_said_about_pictures(
    speculation: Speculation, model: Path, bench: Workbench, shown: Shown, tmp_path: Path
) -> None:
    """N-grams look at low halves of ids only, and none of a picture's is taken for text; the head is shown the pictures too."""
    request = shown.ask(1, 40, text(12), png(128, 128), text(12), png(128, 128), text(12), png(160, 96, seed=2))
    drafter = write_vision_checkpoint(tmp_path / "drafting", mtp=True) if speculation is Speculation.MTP else model
    drafting = Workbench(drafter, msgspec.structs.replace(SETTINGS, speculation=speculation))
    plain = bench.run(request)[1]
    bench.assert_same(ids_of(request.spans), plain, drafting.run(request)[1])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(32, 1200), st.integers(32, 1200), st.integers(16, 80))
def test_front_and_tower_count_alike(model: Path, rule: PictureRule, width: int, height: int, tokens: int) -> None:
    """Small pictures are enlarged, large ones shrunk, by the model's bounds or the configuration's. Weights play no part."""
    config = Config.from_directory(str(model))
    component = vision.prepare(msgspec.structs.replace(SETTINGS, vision_tokens=tokens), config, on_cpu=True)
    assert component is not None
    limited = rule.limited(tokens)
    if refusal(limited, width, height) is None:
        _, _, (frames, rows, columns) = component.preprocess(Image.new("RGB", (width, height)))
        assert frames * rows * columns // 4 == tokens_of(limited, width, height)


def test_photograph_that_lies_on_its_side_is_stood_up() -> None:
    lying = drawn(120, 80)
    exif = Image.Exif()
    exif[0x0112] = 6
    assert vision.decode(encoded(lying, "JPEG", exif=exif)).size == (80, 120)


def test_transparent_picture_and_palette_are_taken(bench: Workbench, shown: Shown) -> None:
    see_through, palette = drawn(64, 64).convert("RGBA"), drawn(64, 64, seed=1).convert("P")
    see_through.putalpha(99)
    files = [encoded(see_through), encoded(palette, "GIF"), encoded(drawn(64, 64), "WEBP"), encoded(drawn(64, 64).convert("L"))]
    said = bench.run(*(shown.ask(n, 3, data, text(4)) for n, data in enumerate(files, start=1)))
    assert [len(ids) for ids in said.values()] == [3] * 4


def test_engine_without_a_tower_refuses_to_be_told_to_look(model_path: ModelPath) -> None:
    with pytest.raises(EngineFailed, match=r"engine\.vision is true, but .* has no vision tower"):
        Workbench(model_path(Architecture.QWEN3_5), SETTINGS)


def test_draft_model_and_pictures_are_refused_together(model: Path) -> None:
    with pytest.raises(EngineFailed, match="draft models cannot take pictures"):
        Workbench(model, msgspec.structs.replace(SETTINGS, speculation=Speculation.DRAFT, draft_model=str(model)))


def test_model_with_a_tower_that_is_not_wanted_serves_text_only(model: Path, shown: Shown) -> None:
    bench = Workbench(model, msgspec.structs.replace(SETTINGS, vision=False))
    assert not bench.backend.hello("boot", 1).limits.vision
    said = bench.run(ask(1, text(20), 5), shown.ask(2, 5, png(64, 64), text(5)))
    assert len(said[1]) == 5
    assert failed(bench, 2).kind is FailureClass.UNSUPPORTED


def test_embeddings_keep_the_ids_of_the_picture(bench: Workbench, shown: Shown) -> None:
    """What the job is given covers exactly the ids in its prompt."""
    request = shown.ask(1, 30, text(5), png(128, 96), text(5))
    bench.backend.submit(request)
    bench.after_tokens(1, 1)
    (job,) = bench.generator.active_jobs
    ids = job.sequences[0].sequence_ids.torch()[0]
    assert torch.equal(ids[: request.origin], torch.tensor(ids_of(request.spans)))
