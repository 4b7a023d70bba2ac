"""The project's own figures, measured small: real processes, real engine, the JSON that later versions are compared by."""

import msgspec
import pytest

from ops.bench import health, overhead
from tests.ops.demo import demo_model


@pytest.mark.timeout(300)
async def test_overhead_is_measured_on_both_sides() -> None:
    """Every level that was asked for has its figure, and every process was seen to work."""
    size = overhead.Size(runs=1, null_tokens=96, null_streams=(1, 3), demo_streams=())
    figures = msgspec.to_builtins(await overhead.measure(demo_model(), size))
    assert set(figures) == {"front_us_per_token", "engine_us_per_token", "bare_us_per_token", "tok_s", "demo"}
    assert set(figures["tok_s"]) == {"1", "3"}
    assert figures["demo"] == {}
    assert all(figures[name] > 0 for name in ("front_us_per_token", "engine_us_per_token", "bare_us_per_token"))


@pytest.mark.timeout(300)
async def test_health_is_asked_while_the_engine_works() -> None:
    size = health.Size(streams=2, tokens=2, prompt_tokens=64)
    figures = msgspec.to_builtins(await health.measure(demo_model(), size))
    assert set(figures) == {"health_p99_ms", "during_prefill_ms"}
    assert all(value > 0 for value in figures.values())
