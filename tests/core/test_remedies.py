"""What verdicts mean, whom an end accuses, and how engines shrink."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.exit_codes import ExitCode
from daemon.core.faults_values import Label, Remedy
from daemon.core.remedies import (
    DEVICE_WIDE,
    LEAST_CACHE,
    LEAST_CHUNK,
    PAGE,
    Course,
    accuses,
    command,
    course,
    differences,
    shrink,
)
from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.supervision_memory import Cause


@pytest.mark.parametrize(
    ("remedy", "label", "expected"),
    [
        (Remedy.NONE, Label.BENIGN_NOISE, Course.NOTHING),
        (Remedy.PROCESS_RESTART, Label.CUDA_ILLEGAL_ADDRESS, Course.RESTART),
        (Remedy.ENGINE_REBUILD, Label.CUDA_OOM, Course.SMALLER),
        (Remedy.ENGINE_REBUILD, Label.CUDA_DEVICE_NOT_READY, Course.SMALLER),
        (Remedy.ENGINE_REBUILD, Label.NCCL_ERROR, Course.RESTART),
        (Remedy.ENGINE_REBUILD, Label.CONFIG, Course.REFUSE),
        (Remedy.WSL_SHUTDOWN, Label.DXGKRNL_GPU_LOST, Course.ADVISE),
        (Remedy.DRIVER_ACTION, Label.DRIVER_MISMATCH, Course.ADVISE),
        (Remedy.HOST_REBOOT, Label.GPU_FELL_OFF_BUS, Course.ADVISE),
    ],
)
def test_verdict_leads_to_its_course(remedy: Remedy, label: Label, expected: Course) -> None:
    assert course(remedy, label) is expected


@pytest.mark.parametrize("remedy", [Remedy.WSL_SHUTDOWN, Remedy.DRIVER_ACTION, Remedy.HOST_REBOOT])
@pytest.mark.parametrize("label", list(Label))
def test_advice_always_names_a_command(remedy: Remedy, label: Label) -> None:
    words = command(remedy, label)
    assert "`" in words or "turn the machine off" in words
    if remedy is Remedy.WSL_SHUTDOWN:
        assert "wsl.exe --shutdown" in words


@pytest.mark.parametrize(
    ("cause", "code", "expected"),
    [
        (Cause.ASKED, -9, False),
        (Cause.ASKED, -11, False),
        (Cause.REFUSED, -15, False),
        (Cause.DIED, -9, False),
        (Cause.DIED, -15, False),
        (Cause.DIED, -2, False),
        (Cause.DIED, 0, False),
        (Cause.DIED, -11, True),
        (Cause.DIED, -6, True),
        (Cause.DIED, 1, True),
        (Cause.DIED, ExitCode.DEVICE, True),
        (Cause.HUNG, -9, True),
        (Cause.HUNG, -15, True),
        (Cause.ANNOUNCED, ExitCode.DEVICE, True),
        (Cause.JUDGED, -15, True),
    ],
)
def test_end_accuses_only_where_a_request_may_have_caused_it(cause: Cause, code: int, expected: bool) -> None:
    assert accuses(cause, code) is expected


def test_illegal_access_with_its_xid_is_not_the_devices_fault() -> None:
    """The driver prints Xid 13 or 31 beside every illegal access: it must not clear the request that provoked it."""
    assert Label.XID_APP_FAULT not in DEVICE_WIDE
    assert Label.CUDA_ILLEGAL_ADDRESS not in DEVICE_WIDE
    assert {Label.GPU_FELL_OFF_BUS, Label.XID_ECC, Label.DRIVER_MISMATCH, Label.HOST_OOM} <= DEVICE_WIDE


def test_chunk_is_halved_first_and_then_the_cache_shrinks() -> None:
    engine = EngineSettings(chunk_tokens=2048, cache_tokens=10240)
    changes: list[str] = []
    for _ in range(4):
        less = shrink(engine, 80_000, None)
        assert less is not None
        changes.append(less.change)
        engine = less.engine
    assert changes == [
        "engine.chunk_tokens 1024 instead of 2048",
        "engine.chunk_tokens 512 instead of 1024",
        "engine.cache_tokens 8192 instead of 10240",
        "engine.cache_tokens 6400 instead of 8192",
    ]
    assert differences(EngineSettings(chunk_tokens=2048, cache_tokens=10240), engine) == (
        "engine.chunk_tokens 512 instead of 2048 and engine.cache_tokens 6400 instead of 10240"
    )


@pytest.mark.parametrize(
    ("backend", "room", "expected"),
    [(BackendKind.CUDA, None, 64000), (BackendKind.CPU, None, 26112), (BackendKind.AUTO, 40960, 32768)],
)
def test_unnamed_cache_shrinks_from_what_it_really_was(backend: BackendKind, room: int | None, expected: int) -> None:
    less = shrink(EngineSettings(backend=backend, chunk_tokens=512), 80_000, room)
    assert less is not None
    assert less.engine.cache_tokens == expected


@given(
    chunk=st.integers(1, 64).map(lambda pages: pages * PAGE),
    cache=st.none() | st.integers(2, 2000).map(lambda pages: pages * PAGE),
    context=st.integers(256, 200_000),
)
def test_shrinking_ends_never_grows_and_keeps_whole_pages(chunk: int, cache: int | None, context: int) -> None:
    engine = EngineSettings(backend=BackendKind.CUDA, chunk_tokens=chunk, cache_tokens=cache)
    for _ in range(200):
        less = shrink(engine, context, None)
        if less is None:
            return
        new = less.engine
        assert new.chunk_tokens <= engine.chunk_tokens
        assert new.chunk_tokens % PAGE == 0
        assert new.chunk_tokens >= min(LEAST_CHUNK, chunk)
        assert new.cache_tokens is None or (new.cache_tokens % PAGE == 0 and new.cache_tokens >= LEAST_CACHE)
        assert new.cache_tokens is None or new.cache_tokens <= (engine.cache_tokens or context + PAGE)
        assert new != engine
        engine = new
    raise AssertionError("shrinking has no end")
