"""Suspend and resume: what is kept, and that no delivered token ever changes."""

import msgspec
import pytest

from daemon.core.wire import Finished, Prefilling, Quote, Started, Submit, Suspended, Tokens, TokenSpan
from daemon.engine.null.profile import NullProfile, Recurrent
from tests.engine.conftest import NullBench
from tests.engine.workbench import Workbench, ask, text

PROMPT = text(730, seed=4)


def _suspended(bench: Workbench, request: int) -> Suspended:
    last = bench.of(request)[-1]
    assert isinstance(last, Suspended), last
    return last


def _resume(request: Submit, delivered: list[int]) -> Submit:
    """What the front sends to go on."""
    origin = request.origin
    spans = ask(1, [*_ids(request), *delivered], 1).spans
    return msgspec.structs.replace(
        request,
        attempt=request.attempt + 1,
        spans=spans,
        origin=origin,
        max_left=request.max_left - len(delivered),
        draws=len(delivered),
    )


def _ids(request: Submit) -> list[int]:
    (span,) = request.spans
    assert isinstance(span, TokenSpan)
    return span.ids


def _cached(bench: Workbench, request: int) -> int:
    return next(event.cached for event in bench.of(request) if isinstance(event, Started))


@pytest.mark.parametrize(("tokens", "pages"), [(20, 2), (45, 3)], ids=["the prompt's pages", "a page of the answer"])
def test_a_suspended_stream_stops_at_once_and_goes_on_from_its_last_page(bench: Workbench, tokens: int, pages: int) -> None:
    """Every full page is kept, with a checkpoint where one is needed; the continuation is that of a fresh request."""
    whole = bench.run(ask(1, PROMPT, 60))[1]
    request = ask(2, PROMPT, 60)
    bench.forget()
    bench.backend.submit(request)
    bench.after_tokens(2, tokens)
    bench.backend.suspend(2)
    bench.step()
    delivered = bench.ids(2)
    kept = _suspended(bench, 2).kept
    assert (len(delivered), kept) == (tokens, pages * 256)
    assert bench.results[-1].pool.referenced == 0
    bench.assert_same(PROMPT, delivered, whole[: len(delivered)])
    bench.forget()
    rest = bench.run(_resume(request, delivered))[2]
    assert _cached(bench, 2) == (kept if bench.generator.recurrent_cache is not None else len(PROMPT) + tokens - 1)
    assert next(event.start for event in bench.of(2) if isinstance(event, Tokens)) == len(PROMPT) + tokens
    bench.assert_same(PROMPT, delivered + rest, whole)
    fresh = bench.run(ask(3, PROMPT + delivered, len(rest)))[3]
    bench.assert_same(PROMPT + delivered, rest, fresh)


def test_a_cancelled_stream_of_a_hybrid_is_found_up_to_its_last_page(hybrid: Workbench) -> None:
    """The library would have stashed its state only once an interval; the next turn would begin at the prompt's end."""
    hybrid.backend.submit(ask(1, PROMPT, 400))
    hybrid.after_tokens(1, 45)
    delivered = hybrid.ids(1)
    hybrid.backend.cancel(1)
    hybrid.run(ask(2, PROMPT + delivered, 2))
    assert _cached(hybrid, 2) == 768


def test_a_generating_hybrid_holds_one_checkpoint_an_interval_and_that_of_its_last_page(null_bench: NullBench) -> None:
    """Those of the pages between make room: memory for one more a stream is what being set aside at once costs."""
    bench = null_bench(NullProfile(recurrent=Recurrent(interval=512, checkpoint_mib=1)))
    checkpoints = bench.generator.recurrent_cache
    assert checkpoints is not None
    said = bench.run(ask(1, text(300), 1300))[1]
    sequence = text(300) + said
    positions = [at for at in range(256, 1600, 256) if _has_checkpoint(bench, sequence, at)]
    assert positions == [256, 768, 1280, 1536]
    assert checkpoints.update_total_size() == len(positions) << 20


def _has_checkpoint(bench: Workbench, sequence: list[int], position: int) -> bool:
    """Whether a request for exactly so much, and a token, would begin there."""
    return bench.backend.quote(Quote(1, [TokenSpan(sequence[: position + 1])], 1)).cached == position


def test_a_prompt_suspended_in_the_middle_of_its_prefill_keeps_what_is_done(bench: Workbench) -> None:
    """At the last chunk's end."""
    long = text(3000, seed=6)
    bench.backend.submit(ask(1, long, 4))
    bench.until(lambda: any(isinstance(event, Prefilling) and event.done >= 1024 for event in bench.of(1)))
    bench.backend.suspend(1)
    bench.until(lambda: bench.ended(1))
    kept = _suspended(bench, 1).kept
    assert kept == 1024
    bench.forget()
    bench.run(ask(1, long, 4, attempt=2))
    assert _cached(bench, 1) == kept


def test_a_request_that_waits_is_suspended_at_once(dense: Workbench) -> None:
    """It holds nothing yet."""
    for number in range(1, 10):
        dense.backend.submit(ask(number, text(20, seed=number), 30))
    dense.step()
    dense.backend.suspend(9)
    dense.step()
    assert _suspended(dense, 9).kept == 0
    assert dense.results[-1].pool.pending == 0


def test_a_request_that_has_ended_is_not_suspended_too(dense: Workbench) -> None:
    """One last event, whichever comes first."""
    dense.run(ask(1, text(20), 3))
    dense.backend.suspend(1)
    assert not dense.backend.busy()
    assert isinstance(dense.of(1)[-1], Finished)


@pytest.mark.parametrize("count", [4])
def test_every_stream_of_a_full_batch_can_be_suspended_and_resumed(hybrid: Workbench, count: int) -> None:
    """All at once; delivered text stays, the rest follows."""
    requests = {number: ask(number, text(240 + 256 * (number % 2) + number, seed=number), 30) for number in range(1, count + 1)}
    for request in requests.values():
        hybrid.backend.submit(request)
    hybrid.after_tokens(count, 5)
    for number in requests:
        hybrid.backend.suspend(number)
    hybrid.until(lambda: all(hybrid.ended(number) for number in requests))
    delivered = {number: hybrid.ids(number) for number in requests}
    hybrid.forget()
    hybrid.run(*[_resume(request, delivered[number]) for number, request in requests.items()])
    for number, request in requests.items():
        assert len(delivered[number]) + len(hybrid.ids(number)) == 30
        assert _cached(hybrid, number) == (request.origin + len(delivered[number])) // 256 * 256


def test_checkpoints_while_prefilling_come_as_configured(hybrid: Workbench) -> None:
    """A long prompt interrupted after 4,096 tokens is not computed again from the beginning."""
    assert hybrid.generator.recurrent_checkpoint_interval_pp == 4096
