"""`exl3ctl` in the test's own process, and a daemon's admin socket that says what the test wants."""

import http.server
import socketserver
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from ops.__main__ import main

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Done:
    """How a call ended."""

    code: int
    out: str
    err: str


class Tool:
    """`exl3ctl` in an empty home and folder, away from the repository's config.yaml."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "STATE_DIRECTORY", "FORCE_COLOR", "GITHUB_ACTIONS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (("HOME", str(home)), ("NO_COLOR", "1"), ("COLUMNS", "100"), ("PYTHONPATH", str(REPOSITORY))):
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(home)

    def __call__(self, *arguments: str) -> Done:
        """Run a command line to its end."""
        self._monkeypatch.setattr(sys, "argv", ["exl3ctl", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self._capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)


class _Answer(http.server.BaseHTTPRequestHandler):
    """An admin socket that knows some answers by heart."""

    answers: ClassVar[Mapping[str, tuple[int, bytes]]]
    asked: ClassVar[list[str]]

    def _say(self) -> None:
        asked = f"{self.command} {self.path}"
        self.asked.append(asked)
        code, body = self.answers.get(asked, (404, b""))
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._say()

    def do_POST(self) -> None:
        self._say()

    def address_string(self) -> str:
        return "exl3ctl"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
        """Keep the test's output clean."""


@contextmanager
def daemon_saying(answers: Mapping[str, tuple[int, bytes]], state: Path) -> Generator[list[str]]:
    """A daemon's admin socket under a state directory; gives what it was asked, as in `GET /status`."""
    (state / "run").mkdir(parents=True)
    asked: list[str] = []
    handler = type("Handler", (_Answer,), {"answers": answers, "asked": asked})
    with socketserver.UnixStreamServer(str(state / "run" / "exl3d.sock"), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()
