"""People on a whole daemon: keys that come and go with `exl3ctl user`, tokens of the day that survive a restart."""

import json
import subprocess
import sys
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path

import pytest

from daemon.core.people_file import FILE_NAME
from ops.__main__ import main
from tests.api.reading import Json
from tests.process.front import DEADLINE, Front, command, environment, free_port, front, wait_until

BODY = {"prompt": "one two three", "max_tokens": 8, "ignore_eos": True}


class Tool:
    """`exl3ctl user` about one state directory, in this process: starting another for each command would take seconds."""

    def __init__(self, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = state
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setenv("HOME", str(state.parent))
        monkeypatch.chdir(state.parent)

    def __call__(self, *arguments: str) -> str:
        """What it prints for programs."""
        code, out = self.ended(*arguments)
        assert code == 0
        return out.strip()

    def ended(self, *arguments: str) -> tuple[int, str]:
        """Its exit code and what it prints for programs."""
        self._monkeypatch.setattr(sys, "argv", ["exl3ctl", "user", *arguments, "--state-dir", str(self.state)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as raised:
            main()
        return int(raised.value.code or 0), self._capsys.readouterr().out

    def tokens_today(self, name: str) -> int:
        """As the list tells it."""
        return next(row["tokens_today"] for row in json.loads(self("list", "--json")) if row["name"] == name)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    """The commands, about the state directory that `front` uses."""
    return Tool(tmp_path / "state", monkeypatch, capsys)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a completion was answered with."""

    status: int
    headers: HTTPMessage
    body: Json


def ask(running: Front, key: str | None) -> Answer:
    """One completion, whole."""
    return _call(running, key, "POST", "/v1/completions", json.dumps(BODY))


def _call(running: Front, key: str | None, method: str, path: str, body: str | None = None) -> Answer:
    connection = HTTPConnection("127.0.0.1", running.port, timeout=DEADLINE)
    try:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, json.loads(response.read()))
    finally:
        connection.close()


def test_people_come_go_and_are_limited_while_the_daemon_runs(model: Path, tmp_path: Path, tool: Tool) -> None:
    state = tool.state
    with front(model, tmp_path) as running:
        assert ask(running, None).status == 200
        first = tool("add", "ann", "--weight", "2")
        bob = tool("add", "bob")
        assert (state / FILE_NAME).stat().st_mode & 0o777 == 0o600
        assert first not in (state / FILE_NAME).read_text()
        assert [ask(running, key).status for key in (None, first, bob)] == [401, 200, 200]

        second = tool("rotate", "ann")
        assert [ask(running, key).status for key in (first, second, bob)] == [401, 200, 200]

        mum = tool("add", "mum", "--role", "admin")
        assert [_call(running, key, "GET", "/admin/status").status for key in (None, bob, mum)] == [401, 403, 200]
        assert _call(running, bob, "POST", "/admin/drain").status == 403

        answer = ask(running, second).body["usage"]["total_tokens"]
        wait_until(lambda: tool.tokens_today("ann") == 3 * answer, "three answers on ann's account")
        tool("limit", "ann", "--tokens-per-day", str(3 * answer))
        refused = ask(running, second)
        assert refused.status == 429
        assert refused.body["error"]["code"] == "insufficient_quota"
        assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
        assert 0 < int(refused.headers["Retry-After"]) <= 86400
        assert ask(running, bob).status == 200

        assert tool.ended("remove", "bob")[0] == 1, "nobody can be asked"
        tool("remove", "bob", "--yes")
        assert ask(running, bob).status == 401
        running.process.kill()
        running.process.wait(DEADLINE)

    again = tmp_path / "again"
    again.mkdir()
    with front(model, again, f"state_dir={state}", "host=0.0.0.0") as running:
        assert ask(running, None).status == 401
        assert ask(running, second).status == 429, "what was used today is known after a kill"
        tool("limit", "ann", "--tokens-per-day", "default")
        assert ask(running, second).status == 200


def test_change_of_the_file_is_seen_without_being_told(model: Path, tmp_path: Path, tool: Tool) -> None:
    """As with a state directory that is written by a tool of one's own, or on another machine."""
    state, elsewhere = tool.state, tmp_path / "elsewhere"
    tool.state = elsewhere
    key = tool("add", "ann")
    with front(model, tmp_path) as running:
        assert ask(running, None).status == 200
        fresh = state / "fresh"
        fresh.write_bytes((elsewhere / FILE_NAME).read_bytes())
        fresh.chmod(0o600)
        fresh.replace(state / FILE_NAME)
        wait_until(lambda: ask(running, None).status == 401, "the door closed")
        assert ask(running, key).status == 200
        (state / FILE_NAME).write_text("{ damaged")
        wait_until(lambda: "people known before stay" in running.text(), "the damage noticed")
        assert ask(running, key).status == 200
        (state / FILE_NAME).unlink()
        wait_until(lambda: ask(running, key).status == 401, "the key revoked")
        assert ask(running, None).status == 401, "and the door does not open again"


def test_damaged_file_of_people_ends_the_start_with_78_and_its_path(model: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / FILE_NAME).write_text('{"version": 1, "people": [], "passwords": []}')
    ended = subprocess.run(
        command(model, state, free_port(), ()),
        cwd=tmp_path,
        env=environment(HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == 78
    assert str(state / FILE_NAME) in ended.stderr
    assert "passwords" in ended.stderr
    assert "Traceback" not in ended.stderr
