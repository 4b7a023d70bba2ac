"""The prefix bench, small: a real daemon, a real hybrid, a real cache."""

import msgspec
import pytest

from ops.bench import prefix


@pytest.mark.timeout(300)
async def test_growing_conversation_gives_its_figures() -> None:
    """Cold and warm times of a conversation of six pages, whose cold twin must find nothing."""
    figures = msgspec.to_builtins(await prefix.measure(prefix.Size(tokens=1500, turns=2, wordings=1)))
    assert set(figures) == {"cold_s", "warm_s", "ratio", "ttft_growth"}
    assert figures["cold_s"] > 0
    assert figures["ratio"] == pytest.approx(figures["warm_s"] / figures["cold_s"], abs=0.01)


@pytest.mark.parametrize(
    ("values", "rise"), [([1.0, 2.0, 3.0], 1.0), ([5.0, 5.0], 0.0), ([4.0], 0.0), ([0.0, 0.0, 3.0, 3.0], 1.2), ([], 0.0)]
)
def test_slope_is_that_of_the_least_squares_line(values: list[float], rise: float) -> None:
    assert prefix.slope(values) == pytest.approx(rise)
