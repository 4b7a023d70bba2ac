"""The sending side of the link: nothing waits for a slow front, nothing is lost to one that is merely slow."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.framing import report_reader
from daemon.core.wire import (
    Durations,
    Event,
    Finished,
    FinishReason,
    Phase,
    Pool,
    Probed,
    Report,
    Started,
    Step,
    TokenLogprob,
    Tokens,
)
from daemon.engine import writer
from daemon.engine.writer import FrontStuck, ReportWriter, join_tokens, merge_steps

POOL = Pool(pages=8, referenced=1, slots=2, running=1, pending=0)


def _step(number: int, *events: Event) -> Step:
    return Step(n=number, t=float(number), phase=Phase.DECODE, pool=POOL, durations=Durations(decode=0.5), events=list(events))


def _read(link: socket.socket, until: int) -> list[Report]:
    frames = report_reader()
    seen: list[Report] = []
    link.settimeout(60)
    while not any(isinstance(report, Step) and report.n >= until for report in seen):
        seen += frames.feed(link.recv(1 << 16))
    return seen


def test_tokens_of_a_request_are_joined_and_others_keep_their_order() -> None:
    """Only where nothing else happened to it in between."""
    joined = join_tokens(
        [
            Started(1, 1, 0, 1),
            Tokens(1, 1, 10, [5], [TokenLogprob(-1.0)]),
            Tokens(2, 1, 3, [7]),
            Tokens(1, 1, 11, [6], [TokenLogprob(-2.0)]),
            Finished(2, 1, FinishReason.STOP),
            Tokens(1, 2, 12, [9]),
        ]
    )
    assert joined == [
        Started(1, 1, 0, 1),
        Tokens(1, 1, 10, [5, 6], [TokenLogprob(-1.0), TokenLogprob(-2.0)]),
        Tokens(2, 1, 3, [7]),
        Finished(2, 1, FinishReason.STOP),
        Tokens(1, 2, 12, [9]),
    ]


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=60))
def test_joining_keeps_every_id_of_every_request_in_order(turns: list[tuple[int, bool]]) -> None:
    """Whatever the interleaving."""
    events: list[Event] = []
    place: dict[int, int] = dict.fromkeys((1, 2, 3), 0)
    for request, token in turns:
        if token:
            events.append(Tokens(request, 1, place[request], [place[request]]))
            place[request] += 1
        else:
            events.append(Started(request, 1, 0, 0))
    joined = join_tokens(events)
    for request, count in place.items():
        said = [event for event in joined if isinstance(event, Tokens) and event.id == request]
        assert [token for event in said for token in event.ids] == list(range(count))
        assert all(event.start == event.ids[0] for event in said)
        kinds = [type(event) for event in joined if event.id == request]
        assert kinds.count(Started) == sum(1 for one, token in turns if one == request and not token)


def test_merged_steps_tell_the_newest_figures_and_all_that_happened() -> None:
    """Durations add up, answers and events are all there."""
    first = Step(1, 1.0, Phase.PREFILL, POOL, Durations(prefill=1.0, prefill_tokens=9), [Started(1, 1, 0, 1)], [Probed(4)])
    merged = merge_steps(first, _step(2, Tokens(1, 1, 5, [6])))
    assert (merged.n, merged.phase) == (2, Phase.DECODE)
    assert merged.durations == Durations(prefill=1.0, decode=0.5, prefill_tokens=9)
    assert merged.events == [Started(1, 1, 0, 1), Tokens(1, 1, 5, [6])]
    assert merged.answers == [Probed(4)]


def test_a_front_that_reads_gets_one_report_a_step() -> None:
    """The ordinary case."""
    front, back = socket.socketpair()
    with front, back:
        sender = ReportWriter(back)
        for number in range(1, 51):
            sender.put(_step(number, Tokens(1, 1, number, [number])))
        steps = [report for report in _read(front, 50) if isinstance(report, Step)]
        assert [step.n for step in steps] == list(range(1, 51))


def test_a_front_that_does_not_read_holds_nothing_up_and_loses_nothing() -> None:
    """Steps are merged behind its back; when it reads at last, every id is there, in order."""
    front, back = socket.socketpair()
    with front, back:
        back.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sender = ReportWriter(back)
        count = 20_000
        for number in range(1, count + 1):
            sender.put(_step(number, Tokens(1, 1, number, [number])))
        steps = [report for report in _read(front, count) if isinstance(report, Step)]
        assert len(steps) < count / 2
        said = [token for step in steps for event in step.events if isinstance(event, Tokens) for token in event.ids]
        assert said == list(range(1, count + 1))
        assert sum(step.durations.decode for step in steps) == pytest.approx(0.5 * count)
        assert sender.flush(60)


def test_a_front_that_never_reads_ends_the_engine_instead_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the bound and the patience are used up."""
    now = [0.0]
    monkeypatch.setattr(writer, "MAX_BACKLOG", 1000)
    front, back = socket.socketpair()
    with front, back:
        back.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sender = ReportWriter(back, clock=lambda: now[0])
        for number in range(1, 3000):
            sender.put(_step(number, Tokens(1, 1, number, [number] * 10)))
        now[0] = writer.PATIENCE + 1
        with pytest.raises(FrontStuck, match="has not read"):
            sender.put(_step(3000))


def test_a_front_that_is_gone_is_no_error_of_the_writer() -> None:
    """The reader ends the process; the writer keeps quiet."""
    front, back = socket.socketpair()
    with back:
        front.close()
        sender = ReportWriter(back)
        for number in range(1, 100):
            sender.put(_step(number))
        assert sender.flush(60)
