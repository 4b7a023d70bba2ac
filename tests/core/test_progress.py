"""The progress page: what is read is what was written, or nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.progress import MAX_IN_FLIGHT, PAGE_BYTES, Progress, ProgressWriter, read_progress
from daemon.core.wire import Phase

READINGS = st.builds(
    Progress,
    step=st.integers(0, 2**63),
    t=st.floats(0, 1e9),
    phase=st.sampled_from(Phase),
    prefilling=st.none() | st.integers(1, 2**63),
    prompt_tokens=st.integers(0, 2**63),
    generated_tokens=st.integers(0, 2**63),
    in_flight=st.lists(st.integers(1, 2**63), max_size=20).map(tuple),
)


def test_untouched_page_reads_as_nothing() -> None:
    assert read_progress(bytes(PAGE_BYTES)) is None


@given(st.lists(READINGS, min_size=1, max_size=5))
def test_last_written_reading_is_read(readings: list[Progress]) -> None:
    page = bytearray(PAGE_BYTES)
    writer = ProgressWriter(memoryview(page))
    for reading in readings:
        writer.write(reading)
    assert read_progress(page) == readings[-1]


@given(READINGS, READINGS, st.data())
def test_torn_copy_is_never_believed(old: Progress, new: Progress, data: st.DataObject) -> None:
    """A copy made of the front of one write and the back of another is one of the two readings or nothing."""
    page = bytearray(PAGE_BYTES)
    writer = ProgressWriter(memoryview(page))
    writer.write(old)
    before = bytes(page)
    writer.write(new)
    cut = data.draw(st.integers(0, 300))
    assert read_progress(bytes(page[:cut]) + before[cut:]) in (None, old, new)


def test_more_requests_than_the_page_holds_keeps_the_newest() -> None:
    page = bytearray(PAGE_BYTES)
    everybody = tuple(range(1, MAX_IN_FLIGHT + 10))
    ProgressWriter(memoryview(page)).write(Progress(1, math.pi, Phase.DECODE, None, 0, 0, everybody))
    reading = read_progress(page)
    assert reading is not None
    assert reading.in_flight == everybody[-MAX_IN_FLIGHT:]


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_survives_the_page(phase: Phase) -> None:
    page = bytearray(PAGE_BYTES)
    ProgressWriter(memoryview(page)).write(Progress(1, 0.0, phase, 3, 0, 0, (3,)))
    reading = read_progress(page)
    assert reading is not None
    assert (reading.phase, reading.prefilling) == (phase, 3)
