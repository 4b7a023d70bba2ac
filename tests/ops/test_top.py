"""`exl3ctl top`: what a picture holds in which terminal, and that Ctrl-C leaves the terminal as it was."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from daemon.core.admission_values import Reason
from daemon.core.admission_views import PersonFigures, SharingFigures
from daemon.core.gpu import GpuReading
from daemon.core.ports import EngineStatus, Overview, Status
from daemon.core.stream_view import StreamState, StreamView
from daemon.core.wire import Pool
from ops.exit_codes import ExitCode
from ops.top_frame import frame
from ops.top_tables import short
from ops.top_values import Flow, flow_between, shares
from tests.ops.exl3ctl import REPOSITORY, Tool, daemon_saying

ENGINE = EngineStatus(
    state="ready",
    detail="",
    pid=1,
    backend="exl3 on cuda",
    pool=Pool(pages=400, referenced=380, slots=16, running=3, pending=0),
    page=256,
    restarts=2,
    uptime=10.0,
)
STATUS = Status(
    version="0.1.0",
    uptime=100.0,
    ready=True,
    model="Qwen3-8B-EXL3",
    context=81920,
    engines=(ENGINE,),
    running=2,
    queued=1,
    requests=9,
    prompt_tokens=1000,
    cached_tokens=750,
    generated_tokens=5678,
    sharing=SharingFigures(
        people={
            "ann": PersonFigures(
                running=2, pages=200, warm_tokens=12_300, guaranteed=80_000, weight=2, served=900, waits=4, waited=6
            ),
            "bob": PersonFigures(queued=1, served=300),
        },
        queued={Reason.PAGES: 1, Reason.TURN: 0},
    ),
    gpus=(GpuReading("RTX 5070", "u", "0000:01:00", 11_000, 12_227, 61, 0.97, 203.5),),
)
ANSWERING = StreamView(
    name="chatcmpl-0123456789abcdef",
    owner="ann",
    background=False,
    state=StreamState.ANSWERING,
    engine=0,
    prompt=81_920,
    cached=40_960,
    generated=150,
    limit=500,
    age=70.0,
    waited=1.5,
    rate=21.25,
)
WAITING = StreamView(
    name="chatcmpl-fedcba9876543210",
    owner="bob",
    background=True,
    state=StreamState.WAITING,
    engine=None,
    prompt=12,
    cached=0,
    generated=0,
    limit=500,
    age=3.0,
)
NOW = Overview(STATUS, (WAITING, ANSWERING))


def drawn(overview: Overview, width: int, flow: Flow | None = None, height: int | None = None, notice: str = "") -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(frame(overview, flow or Flow(), width, height, notice))
    return capture.get().splitlines()


def row_of(lines: Sequence[str], start: str) -> list[str]:
    (found,) = [line.split() for line in lines if line.startswith(start)]
    return found


def test_wide_picture_shows_people_streams_pool_and_gpu() -> None:
    lines = drawn(NOW, 160, Flow(30.0, {"ann": 30.0, "bob": 0.0}))
    text = "\n".join(lines)
    assert "2 running, 1 waiting (1 pages), 30.0 tok/s, 75% of prompts cached" in text
    assert "97.3k of 102k tokens, 3 of 16 slots, 2 restarts" in text
    assert "11,000 of 12,227 MiB, 97% busy, 61 °C, 204 W, RTX 5070" in text
    assert "1 answering, 1 waiting" in text
    assert row_of(lines, "ann ") == ["ann", "2", "0", "30.0", "100%", "51.2k", "12.3k", "80k", "2", "1.5", "s", "900"]
    assert row_of(lines, "bob ") == ["bob", "0", "1", "0.0", "0%", "0", "0", "1", "300"]
    answering = [
        "chatcmpl-0123456789abcdef",
        "ann",
        "answering",
        "81.9k",
        "50%",
        "150",
        "21.2",
        "1.5",
        "s",
        "0",
        "1",
        "min",
        "10",
        "s",
    ]
    assert row_of(lines, ANSWERING.name) == answering
    assert row_of(lines, WAITING.name) == [WAITING.name, "bob", "waiting", "12", "0", "3", "s"]


@pytest.mark.parametrize("width", [20, 40, 46, 56, 70, 80, 100, 140])
def test_picture_fits_its_terminal_and_always_says_who_runs(width: int) -> None:
    lines = drawn(NOW, width, Flow(30.0, {"ann": 30.0}))
    assert max(map(len, lines)) <= width
    assert row_of(lines, "exl3d")[1].startswith("Qwen3")
    assert any(line.startswith("ann") for line in lines)


def test_low_terminal_shows_what_runs_and_counts_the_rest() -> None:
    streams = tuple(replace(WAITING, name=f"w{number}") for number in range(40))
    lines = drawn(Overview(STATUS, (*streams, ANSWERING)), 100, height=24)
    assert len(lines) <= 24
    assert any(ANSWERING.name[:10] in line for line in lines)
    shown = sum(1 for line in lines if line.startswith("w"))
    assert f"and {40 - shown} more" in lines[-1]
    assert shown > 3
    assert len(drawn(Overview(STATUS, streams), 100)) > 40


def test_picture_of_a_daemon_that_loads_without_gpu_says_how_far_it_is() -> None:
    loading = replace(ENGINE, state="starting", detail="loading layers", pool=None, loading=0.4)
    status = replace(STATUS, ready=False, engines=(loading, ENGINE), gpus=(), sharing=SharingFigures(), shut="an upgrade")
    text = "\n".join(drawn(Overview(status, ()), 100))
    for words in ("● not ready", "engine 0  starting  loading layers", "40% loaded", "engine 1", "an upgrade", "no request"):
        assert words in text
    assert "GPU" not in text


def test_gpu_whose_driver_tells_nothing_is_named() -> None:
    assert "no figures, silent" in "\n".join(
        drawn(replace(NOW, status=replace(STATUS, gpus=(GpuReading("silent", "", ""),))), 100)
    )


def test_rates_are_what_was_generated_between_two_looks_of_the_same_daemon() -> None:
    people = {**STATUS.sharing.people, "ann": replace(STATUS.sharing.people["ann"], served=1000), "eve": PersonFigures(served=20)}
    later = replace(NOW, status=replace(STATUS, uptime=104.0, sharing=SharingFigures(people)))
    flow = flow_between(NOW, later)
    assert (flow.total, flow.people) == (30.0, {"ann": 25.0, "bob": 0.0, "eve": 5.0})
    assert flow_between(None, NOW) == Flow()
    assert flow_between(later, NOW) == Flow()
    assert shares(NOW, Flow()) == {"ann": 0.75, "bob": 0.25}
    assert shares(later, flow)["ann"] == 25 / 30


def test_numbers_are_short() -> None:
    assert [short(number) for number in (0, 950, 1000, 12_345, 999_400, 999_600, 1_500_000)] == [
        "0",
        "950",
        "1k",
        "12.3k",
        "999k",
        "1M",
        "1.5M",
    ]


def test_once_prints_one_picture_and_json_is_the_whole_answer(tmp_path: Path, exl3ctl: Tool) -> None:
    state = tmp_path / "s"
    with daemon_saying({"GET /top": (200, msgspec.json.encode(NOW))}, state) as asked:
        shown = exl3ctl("top", "--once", "--state-dir", str(state))
        piped = exl3ctl("top", "--state-dir", str(state))
        as_json = exl3ctl("top", "--json", "--state-dir", str(state))
    assert (shown.code, shown.err) == (ExitCode.OK, "")
    assert "Qwen3-8B-EXL3" in shown.out
    assert piped.out == shown.out
    assert msgspec.convert(json.loads(as_json.out), Overview) == NOW
    assert asked == ["GET /top"] * 3


def test_without_a_daemon_top_exits_3(tmp_path: Path, exl3ctl: Tool) -> None:
    done = exl3ctl("top", "--state-dir", str(tmp_path))
    assert (done.code, done.out) == (ExitCode.NOT_RUNNING, "")


def _read(terminal: int, until: bytes, heard: bytes = b"") -> bytes:
    """Everything that was written to a terminal, until something is in it."""
    deadline = time.monotonic() + 60
    while until not in heard:
        assert time.monotonic() < deadline, heard
        if select.select([terminal], [], [], 1)[0]:
            heard += os.read(terminal, 65536)
    return heard


def test_ctrl_c_ends_the_live_picture_and_gives_the_terminal_back(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    answers = {"GET /top": (200, msgspec.json.encode(NOW))}
    with daemon_saying(answers, tmp_path / "s"):
        process = subprocess.Popen(
            [
                "env",
                "--default-signal=INT",  # whoever runs the tests in the background has it ignored, and we would inherit that
                *(sys.executable, "-P", "-m", "ops", "top", "--interval", "0.1", "--state-dir", str(tmp_path / "s")),
            ],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        )
        os.close(theirs)
        try:
            heard = _read(ours, b"Qwen3-8B-EXL3")
            heard = _read(ours, b"Qwen3-8B-EXL3", heard.partition(b"Qwen3-8B-EXL3")[2])
            process.send_signal(signal.SIGINT)
            heard = _read(ours, b"\x1b[?25h", heard)
            assert process.wait(60) == 0
            assert b"\x1b[?1049l" in heard
            assert b"Traceback" not in heard
        finally:
            process.kill()
            process.wait()
            os.close(ours)
