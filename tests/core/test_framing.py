"""The link's frames: whatever way the bytes arrive, the messages are the same; garbage is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.errors import LinkCorrupt
from daemon.core.framing import MAX_FRAME, command_reader, frame, report_reader
from daemon.core.settings import EngineSettings
from daemon.core.wire import (
    Cancel,
    Command,
    Configure,
    Constraint,
    ConstraintKind,
    DeviceMemory,
    Drain,
    Dry,
    Durations,
    Failed,
    FailureClass,
    Fatal,
    FatalClass,
    Finished,
    FinishReason,
    Hello,
    ImageSpan,
    Keep,
    Limits,
    Loading,
    OnStop,
    Phase,
    Pool,
    Prefilling,
    Probe,
    Probed,
    Quote,
    Quoted,
    Reasoning,
    Report,
    Sampler,
    Started,
    Statistics,
    Stats,
    Steer,
    Step,
    Submit,
    Suspend,
    Suspended,
    TokenLogprob,
    Tokens,
    TokenSpan,
    Waiting,
    Xtc,
)

POOL = Pool(pages=16, referenced=3, slots=4, running=2, pending=1)

COMMANDS: list[Command] = [
    Configure(model="/m", context=4096, engine=EngineSettings(k_bits=4, v_bits=2), state_dir="/s"),
    Submit(
        id=7,
        attempt=2,
        spans=[TokenSpan([1, 2]), ImageSpan("ab", "image/png", b"\x89PNG", 7), TokenSpan([3])],
        origin=2,
        max_left=10,
        min_left=1,
        sampler=Sampler(temperature=0.5, logit_bias={5: -100.0}, dry=Dry(0.8, breakers=["\n"]), xtc=Xtc(0.5, 0.1)),
        seed=3,
        draws=1,
        stop_ids=[2],
        logprobs=5,
        reasoning=Reasoning([9], [8, 9], inside=True, budget_left=100, on_stop=OnStop.FINISH),
        constraint=Constraint(ConstraintKind.REGEX, "[0-9]+", begins=[9]),
        rank=-1,
    ),
    Cancel(7),
    Suspend(7),
    Steer(ranks={7: 1}, chunk=512, itl_target=0.25),
    Keep([7, 8]),
    Quote(1, [TokenSpan([1])], 5),
    Probe(1),
    Stats(1),
    Drain(),
]

REPORTS: list[Report] = [
    Hello(
        1,
        "boot",
        42,
        "exl3 on cpu",
        "LlamaForCausalLM",
        Limits(256, 16, 4, 0, 16),
        [2],
        49152,
        [DeviceMemory("RTX", "GPU-1", 12 << 30, 1 << 30, 9 << 30, 10 << 30, 32)],
    ),
    Loading("weights", 3, 30),
    Step(
        n=1,
        t=12.5,
        phase=Phase.DECODE,
        pool=POOL,
        durations=Durations(0.1, 0.2, 256, 4),
        events=[
            Started(7, 1, cached=256, new_pages=2, kv_only=256),
            Prefilling(7, 1, 256, 700),
            Tokens(7, 1, 2, [5, 6], [TokenLogprob(-0.5, [(5, -0.5)]), TokenLogprob(-1.0)]),
            Waiting(7, 1, pages=3),
            Suspended(7, 1, kept=512),
            Finished(7, 1, FinishReason.CONSTRAINT, accepted=1, rejected=2, closed_thoughts=1),
            Failed(8, 1, FailureClass.SAMPLING, "boom"),
        ],
        answers=[Quoted(1, 5, 256), Probed(1), Statistics(1, 2, 3, 4, 5, 6, 7, 8, 9)],
    ),
    Fatal(FatalClass.DEVICE, "CUDA error 719"),
]


def test_catalogue_names_every_message() -> None:
    """A message added to the unions must be added to the lists above, so that it is tried here."""
    assert {type(command) for command in COMMANDS} == set(Command.__args__)
    assert {type(report) for report in REPORTS} == set(Report.__args__)


@given(st.integers(min_value=1, max_value=400))
def test_frames_in_any_chunks_give_the_same_messages(size: int) -> None:
    commands, reports = command_reader(), report_reader()
    down = b"".join(map(frame, COMMANDS))
    up = b"".join(map(frame, REPORTS))
    assert [m for i in range(0, len(down), size) for m in commands.feed(down[i : i + size])] == COMMANDS
    assert [m for i in range(0, len(up), size) for m in reports.feed(up[i : i + size])] == REPORTS


def test_frame_longer_than_the_limit_is_refused_before_it_is_collected() -> None:
    with pytest.raises(LinkCorrupt, match=str(MAX_FRAME)):
        command_reader().feed((MAX_FRAME + 1).to_bytes(4, "little"))


def test_report_on_the_command_side_is_corrupt() -> None:
    with pytest.raises(LinkCorrupt, match="not a message"):
        command_reader().feed(frame(REPORTS[1]))


@given(st.binary(max_size=200))
def test_garbage_gives_messages_or_link_corrupt_and_nothing_else(data: bytes) -> None:
    reader = report_reader()
    try:
        messages = reader.feed(data)
    except LinkCorrupt:
        return
    assert all(isinstance(message, Report) for message in messages)
