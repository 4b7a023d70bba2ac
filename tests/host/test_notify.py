"""What systemd hears, on a real datagram socket."""

import asyncio
import os
import socket
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import sdnotify

from daemon.host.notify import Systemd, fold, notifier_for, watchdog_seconds


@pytest.fixture
def hear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[], list[bytes]]]:
    """Everything sent to NOTIFY_SOCKET so far, a datagram an item."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.setblocking(False)  # noqa: FBT003  # the library's signature
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))

        def received() -> list[bytes]:
            datagrams: list[bytes] = []
            while True:
                try:
                    datagrams.append(listener.recv(65536))
                except BlockingIOError:
                    return datagrams

        yield received


@pytest.fixture
def systemd(hear: Callable[[], list[bytes]]) -> Generator[Systemd]:
    """The product over the real library."""
    notifier = notifier_for(os.environ)
    yield Systemd(notifier)
    assert isinstance(notifier, sdnotify.SystemdNotifier)
    assert notifier.socket is not None
    notifier.socket.close()


def test_ready_and_stopping_are_said_once(hear: Callable[[], list[bytes]], systemd: Systemd) -> None:
    for _ in range(2):
        systemd.ready()
        systemd.stopping()
    assert hear() == [b"READY=1", b"STOPPING=1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loading 3 of 10", b"STATUS=loading 3 of 10"),
        ("modèle → prêt", b"STATUS=modele ? pret"),
        ("模型 🙂", b"STATUS=?? ?"),
        ("two\nlines", b"STATUS=two lines"),
        ("x" * 9999, b"STATUS=" + b"x" * 400),
    ],
)
def test_status_of_any_script_arrives_as_one_ascii_line(
    hear: Callable[[], list[bytes]], systemd: Systemd, text: str, expected: bytes
) -> None:
    systemd.status(text)
    assert hear() == [expected]


def test_status_is_not_repeated(hear: Callable[[], list[bytes]], systemd: Systemd) -> None:
    systemd.status("a")
    systemd.status("a")
    systemd.status("b")
    assert hear() == [b"STATUS=a", b"STATUS=b"]


def test_more_time_is_in_microseconds(hear: Callable[[], list[bytes]], systemd: Systemd) -> None:
    systemd.more_time(1.5)
    assert hear() == [b"EXTEND_TIMEOUT_USEC=1500000"]


async def test_watchdog_is_fed_alone_and_only_while_healthy(hear: Callable[[], list[bytes]], systemd: Systemd) -> None:
    asked: list[bool] = []
    enough = asyncio.Event()

    def healthy() -> bool:
        asked.append(len(asked) % 2 == 0)
        if len(asked) == 6:
            enough.set()
        return asked[-1]

    pinging = asyncio.create_task(systemd.ping(0.003, healthy))
    await asyncio.wait_for(enough.wait(), 30)
    pinging.cancel()
    datagrams = hear()
    assert set(datagrams) == {b"WATCHDOG=1"}
    assert len(datagrams) == 3


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "17"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "18"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_is_meant_for_one_process(environment: dict[str, str], expected: float | None) -> None:
    assert watchdog_seconds(environment, 17) == expected


def test_without_systemd_nothing_happens() -> None:
    assert not isinstance(notifier_for({}), sdnotify.SystemdNotifier)
    Systemd(notifier_for({})).ready()


def test_with_systemd_its_socket_is_used(hear: Callable[[], list[bytes]]) -> None:
    notifier = notifier_for(os.environ)
    notifier.notify("READY=1")
    assert isinstance(notifier, sdnotify.SystemdNotifier)
    assert notifier.socket is not None
    notifier.socket.close()
    assert hear() == [b"READY=1"]


def test_socket_that_nobody_reads_holds_nobody_up(hear: Callable[[], list[bytes]], systemd: Systemd) -> None:
    for _ in range(5000):
        systemd.more_time(1)
    assert 0 < len(hear()) < 5000


def test_folding_keeps_ascii() -> None:
    assert fold("abc 123 ~!") == "abc 123 ~!"
