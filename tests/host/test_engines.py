"""Several supervisors as one: what their states mean together, and which of them hear what."""

from dataclasses import dataclass, field
from types import MappingProxyType

import pytest

from daemon.core.faults_values import Label, Remedy
from daemon.core.gpu import GpuReading
from daemon.core.supervision_events import Event, Judged, RestartAsked, StartAsked, StopAsked
from daemon.core.supervision_values import (
    Backoff,
    Failed,
    FailedKind,
    Mode,
    Ready,
    Rung,
    Starting,
    Stopped,
    Stopping,
    ThenRestart,
    ThenStop,
)
from daemon.host.engines import Engines, OwnCards
from daemon.host.operations import Operations
from daemon.host.supervisor import View
from daemon.host.vacancy import UsedMemory
from tests.host.desk import Desk

READY = Ready(1, since=0.0, advanced=0.0, observed=0.0)
STARTING = Starting(1, 0.0, 0.0, 0.0)
FAILED = Failed(FailedKind.DEVICE, "its card fell off the bus")


@dataclass
class Supervised:
    """A supervisor that stays in one mode and remembers what it heard."""

    mode: Mode
    heard: list[Event] = field(default_factory=list[Event])
    looks: int = 0

    def post(self, event: Event) -> None:
        self.heard.append(event)

    def view(self) -> View:
        return View(0.0, self.mode, 0, None, None, None, 0.0)

    def observe(self) -> None:
        self.looks += 1

    async def run(self) -> None:
        raise NotImplementedError


def engines(*modes: Mode) -> tuple[Engines, list[Supervised]]:
    """Engines in these modes."""
    together, supervised = Engines(lambda: 5.0), [Supervised(mode) for mode in modes]
    for each in supervised:
        together.add(each)
    return together, supervised


@pytest.mark.parametrize(
    ("modes", "ready", "hopeless"),
    [
        ((READY, FAILED), True, 0),
        ((STARTING, READY), True, 0),
        ((STARTING, FAILED), False, 0),
        ((Backoff(1.0, "again"), FAILED), False, 0),
        ((FAILED, FAILED), False, 2),
        ((Stopped(), STARTING), False, 0),
    ],
)
def test_one_engine_is_enough_to_serve_and_hope_ends_with_the_last(modes: tuple[Mode, ...], ready: bool, hopeless: int) -> None:
    together, _ = engines(*modes)
    assert (together.ready, len(together.hopeless)) == (ready, hopeless)


@pytest.mark.parametrize(
    ("modes", "done", "stopped"),
    [
        ((Stopped(), Stopped()), True, True),
        ((Stopped(), Stopping(1, Rung.ASKED, 9.0, ThenStop())), True, False),
        ((Stopped(), Stopping(1, Rung.ASKED, 9.0, ThenRestart(None))), False, False),
        ((Stopped(), READY), False, False),
        ((Stopped(), Stopping(1, Rung.STUCK, 9.0, ThenStop())), True, True),
    ],
)
def test_shutdown_waits_for_every_engine(modes: tuple[Mode, ...], done: bool, stopped: bool) -> None:
    together, _ = engines(*modes)
    assert (together.done, together.stopped) == (done, stopped)


def test_start_stop_and_looks_reach_every_engine() -> None:
    together, supervised = engines(READY, STARTING)
    together.start()
    together.stop(30.0)
    together.observe()
    assert [each.heard for each in supervised] == [[StartAsked(5.0), StopAsked(5.0, 30.0)]] * 2
    assert [each.looks for each in supervised] == [1, 1]


def test_verdict_goes_to_the_engine_it_is_about_and_one_about_the_machine_to_all() -> None:
    together, supervised = engines(READY, READY)
    about_one = Judged(1.0, 1, Remedy.PROCESS_RESTART, Label.CUDA_UNKNOWN, "x")
    about_all = Judged(2.0, None, Remedy.HOST_REBOOT, Label.XID_ECC, "y")
    together.hand_on(1, about_one)
    together.hand_on(None, about_all)
    assert [each.heard for each in supervised] == [[about_all], [about_one, about_all]]


# --- restarts on request ---


def _operations(together: Engines) -> Operations:
    desk = Desk(engines=2)
    return Operations(engines=together, intake=desk.streams, reloader=_NoReloader(), stopping=lambda: False, clock=lambda: 7.0)  # pyright: ignore[reportArgumentType]  # nothing here reloads


class _NoReloader:
    """Nothing is reloaded here."""


def test_restart_of_one_engine_leaves_the_others_alone() -> None:
    together, supervised = engines(READY, READY)
    outcome = _operations(together).restart_engines(1)
    assert outcome.done
    assert "engine 1" in outcome.words
    assert supervised[0].heard == []
    assert isinstance(supervised[1].heard[0], RestartAsked)


@pytest.mark.parametrize("number", [2, -1])
def test_restart_of_an_engine_that_is_not_there_says_which_are(number: int) -> None:
    together, supervised = engines(READY, READY)
    outcome = _operations(together).restart_engines(number)
    assert not outcome.done
    assert "engines 0 to 1" in outcome.words
    assert [each.heard for each in supervised] == [[], []]


def test_restart_without_a_number_replaces_all() -> None:
    together, supervised = engines(READY, READY)
    assert _operations(together).restart_engines().done
    assert [len(each.heard) for each in supervised] == [1, 1]


# --- memory ---


class _Gauge:
    """Two cards, of which the second is full."""

    def __init__(self, *, blind: bool = False) -> None:
        self.blind = blind
        self.hurried = 0

    def used_mib(self) -> UsedMemory | None:
        return None if self.blind else UsedMemory(3.0, MappingProxyType({0: 100, 1: 11_000}))

    def read_soon(self) -> None:
        self.hurried += 1


def test_engine_of_one_card_waits_for_the_memory_of_that_card_only() -> None:
    readings = (GpuReading("A", "GPU-a", "0000:01:00"), GpuReading("B", "GPU-b", "0000:02:00"))
    gauge = _Gauge()
    own = OwnCards(gauge, lambda: readings, ["GPU-a"])
    assert own.used_mib() == UsedMemory(3.0, {0: 100})
    own.read_soon()
    assert gauge.hurried == 1
    assert OwnCards(_Gauge(blind=True), lambda: readings, ["GPU-a"]).used_mib() is None
