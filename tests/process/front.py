"""A whole daemon as a process, with the real engine over scripted logits: what a person starts, seen from outside."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from daemon.core.ports import Status

DEADLINE = 120.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition` holds; fail with `what` after a generous time."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {DEADLINE} s in vain: {what}")
        time.sleep(0.02)


@dataclass
class Front:
    """A running daemon."""

    process: subprocess.Popen[bytes]
    port: int
    state: Path
    log: Path
    heard: list[bytes]
    """Datagrams that systemd would have got."""

    def status(self) -> Status:
        """What `exl3ctl status` would be told, over the admin socket."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.state / "run" / "exl3d.sock"))
            client.sendall(b"GET /status HTTP/1.0\r\nHost: x\r\n\r\n")
            answer = b""
            while data := client.recv(65536):
                answer += data
        return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=Status)

    def engine_pid(self) -> int:
        """The engine's process."""
        pid = self.status().engines[0].pid
        assert pid is not None
        return pid

    def text(self) -> str:
        """Everything in its log."""
        return self.log.read_text()

    def end(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(model: Path, state: Path, port: int, settings: Sequence[str]) -> list[str]:
    """The command line of a daemon."""
    options = [
        f"--set={setting}" for setting in (f"state_dir={state}", "engine.backend=null", "engine.cache_tokens=8192", *settings)
    ]
    return [sys.executable, "-P", "-m", "daemon", "--model", str(model), "--port", str(port), *options]


def environment(**more: str) -> dict[str, str]:
    """What a daemon is started with."""
    root = str(Path(__file__).resolve().parents[2])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NOTIFY_", "WATCHDOG_"))}
    return {**kept, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **more}


def _listen(notify: socket.socket, heard: list[bytes]) -> None:
    """Read like systemd: always, since a full queue would hold its senders up."""
    while datagram := notify.recv(65536):
        heard.append(datagram)


@contextmanager
def front(model: Path, directory: Path, *settings: str, profile: Mapping[str, object] | None = None) -> Generator[Front]:
    """A daemon that is ready; killed at the end if it still runs."""
    state, log, port = directory / "state", directory / "log", free_port()
    if profile is not None:
        (directory / "profile.json").write_text(json.dumps(profile))
        settings = (*settings, f"engine.null_profile={directory / 'profile.json'}")
    (directory / "notify").unlink(missing_ok=True)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(directory / "notify"))
    heard: list[bytes] = []
    threading.Thread(target=_listen, args=(notify, heard), daemon=True).start()
    with log.open("wb") as out, notify:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command(model, state, port, settings)],  # nothing outlives killed tests
            stderr=out,
            cwd=directory,
            env=environment(NOTIFY_SOCKET=str(directory / "notify"), WATCHDOG_USEC="600000"),
        )
        running = Front(process, port, state, log, heard)
        try:
            wait_until(lambda: process.poll() is not None or " ready: " in running.text(), "ready")
            assert process.poll() is None, running.text()
            yield running
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            notify.shutdown(socket.SHUT_RD)
