"""The null model: what it says, how long it takes, where it fails."""

from pathlib import Path

import msgspec
import pytest

from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.wire import FailureClass, FatalClass, FinishReason, Started
from daemon.engine.backend import EngineFailed
from daemon.engine.null.profile import Curve, Fault, FaultKind, NullProfile, Point, Recurrent, Script, read_profile
from tests.engine.checkpoints import MESSAGE_END
from tests.engine.conftest import NullBench
from tests.engine.workbench import Workbench, ask, text


def _encode(bench: Workbench, words: str) -> list[int]:
    return bench.generator.tokenizer.tokenizer.encode(words, add_special_tokens=False).ids


def _play(bench: Workbench, number: int, prompt: str) -> str:
    request = msgspec.structs.replace(ask(number, _encode(bench, prompt), 200), stop_ids=[MESSAGE_END])
    said = bench.run(request)[number]
    return bench.generator.tokenizer.tokenizer.decode(said, skip_special_tokens=False)


def test_the_script_whose_marker_stands_last_in_the_prompt_is_played(null_bench: NullBench) -> None:
    """Control tokens included, and the end of the answer after it."""
    answer = "<think>\nsun or rain?\n</think>\n<tool_call>{}</tool_call>"
    bench = null_bench(NullProfile(scripts=[Script(marker="weather", text=answer), Script(marker="hello", text="Hi there.")]))
    assert _play(bench, 1, "hello, what is the weather?") == answer + "<|im_end|>"
    assert bench.finish(1) is FinishReason.STOP
    assert _play(bench, 2, "about the weather: hello") == "Hi there.<|im_end|>"


def test_scripts_may_go_by_the_order_of_requests(null_bench: NullBench) -> None:
    """Where prompts are all alike."""
    bench = null_bench(NullProfile(scripts=[Script(order=1, text="one"), Script(order=2, text="two")]))
    assert [_play(bench, number, "again") for number in (1, 2)] == ["one<|im_end|>", "two<|im_end|>"]


def test_a_resumed_request_goes_on_in_the_middle_of_its_script(null_bench: NullBench) -> None:
    """Positions count from where generated text begins."""
    ids = [40, 41, 42, 43, 44, 45]
    bench = null_bench(NullProfile(scripts=[Script(marker="", order=1, ids=ids, ends=False)]))
    prompt = text(10)
    resumed = ask(1, prompt + ids[:2], 4, origin=10, attempt=2)
    assert bench.run(resumed)[1] == ids[2:]


def test_without_a_script_plain_text_comes_for_ever(null_bench: NullBench) -> None:
    """The same for the same position, and never an end."""
    bench = null_bench()
    said = bench.run(ask(1, text(10), 300), ask(2, text(10, seed=3), 300))
    assert said[1] == said[2]
    assert len(set(said[1])) > 50
    assert MESSAGE_END not in said[1]


def test_times_are_interpolated_and_grow_beyond_the_last_point() -> None:
    """Seconds a batch size or a chunk takes."""
    curve = Curve([Point(at=64, seconds=0.04), Point(at=1, seconds=0.02)])
    assert curve.seconds(1) == 0.02
    assert curve.seconds(64) == 0.04
    assert curve.seconds(128) == pytest.approx(0.08)
    assert 0.02 < curve.seconds(32) < 0.04
    assert Curve([Point(at=4, seconds=0.1)]).seconds(2) == 0.1
    assert Curve([]).seconds(5) == 0.0


def test_a_profile_s_times_are_spent(null_bench: NullBench) -> None:
    """And measured by the engine."""
    bench = null_bench(NullProfile(decode=[Point(at=1, seconds=0.02)], prefill=[Point(at=256, seconds=0.05)]))
    bench.run(ask(1, text(257), 3))
    assert bench.results[0].durations.prefill >= 0.05
    assert all(result.durations.decode >= 0.02 for result in bench.results if result.durations.decode_tokens)


def test_time_grows_with_the_context(null_bench: NullBench) -> None:
    """For each token of each row, and for each token of a chunk."""
    bench = null_bench(NullProfile(decode_context=0.0001, prefill_context=0.0000002))
    bench.run(ask(1, text(1025), 2))
    assert [result.durations.prefill_tokens for result in bench.results] == [512, 512, 0]
    assert bench.results[1].durations.prefill >= 512 * 512 * 0.0000002
    assert bench.results[1].durations.decode >= 1024 * 0.0001


def test_a_recurrent_profile_makes_a_hybrid(null_bench: NullBench) -> None:
    """Its prefixes are of use up to a checkpoint, whose store has the configured budget."""
    bench = null_bench(NullProfile(recurrent=Recurrent(checkpoint_mib=1500)))
    limits = bench.backend.hello("boot", 1).limits
    assert (limits.interval, limits.slots) == (2048, 8)
    bench.run(ask(1, text(600), 3))
    bench.run(ask(2, text(600), 3))
    assert _cached(bench, 2) == 512
    for number in (3, 4):
        bench.run(ask(number, text(600, seed=number), 3))
    bench.run(ask(5, text(600), 3))
    assert _cached(bench, 5) == 0


def _cached(bench: Workbench, request: int) -> int:
    return next(event.cached for event in bench.of(request) if isinstance(event, Started))


def test_numbers_that_are_none_fail_the_marked_request_alone(null_bench: NullBench) -> None:
    """Of two in the batch."""
    bench = null_bench(NullProfile(faults=[Fault(kind=FaultKind.NOT_FINITE, marker="broken", token=3)]))
    bench.run(ask(1, _encode(bench, "all is well"), 20), ask(2, _encode(bench, "this one is broken"), 20))
    assert len(bench.ids(1)) == 20
    assert bench.failure(2) is FailureClass.NOT_FINITE
    assert len(bench.ids(2)) == 3


def test_a_profile_is_read_strictly(tmp_path: Path) -> None:
    """A misspelt key is an error and not a model that says something else."""
    path = tmp_path / "profile.json"
    path.write_text('{"scripts": [{"marker": "a", "txt": "b"}]}', encoding="utf-8")
    with pytest.raises(msgspec.ValidationError, match="txt"):
        read_profile(str(path))
    assert read_profile(None) == NullProfile()


def test_a_null_engine_needs_a_tokenizer(tmp_path: Path) -> None:
    """And says which file is missing."""
    with pytest.raises(EngineFailed, match=r"tokenizer\.json is missing") as raised:
        Workbench(tmp_path, EngineSettings(backend=BackendKind.NULL, threads=1))
    assert raised.value.kind is FatalClass.CONFIG
