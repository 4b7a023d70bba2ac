"""`exl3ctl` commands a daemon: what is asked over the socket, what people read, what scripts match on."""

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from daemon.core.operating import Outcome, Reloaded
from daemon.core.ports import Health, Status
from ops import service
from ops.admin_socket import running_socket
from ops.exit_codes import ExitCode
from tests.ops.exl3ctl import Tool, daemon_saying

STATUS = Status(
    version="0.1.0",
    uptime=1.0,
    ready=True,
    model="m",
    context=4096,
    engines=(),
    running=0,
    queued=0,
    requests=0,
    prompt_tokens=0,
    cached_tokens=0,
    generated_tokens=0,
)


def _said(value: object, code: int = 200) -> tuple[int, bytes]:
    return code, msgspec.json.encode(value)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["restart", "--engine"], "POST /restart"),
        (["restart", "--engine", "1"], "POST /restart?engine=1"),
        (["drain"], "POST /drain"),
        (["resume"], "POST /resume"),
    ],
)
def test_command_is_carried_out_and_its_words_are_shown(tmp_path: Path, arguments: list[str], asked: str, exl3ctl: Tool) -> None:
    where = ["--state-dir", str(tmp_path / "s")]
    with daemon_saying({asked: _said(Outcome(done=True, words="so be it"))}, tmp_path / "s") as heard:
        done = exl3ctl(*arguments, *where)
        as_json = exl3ctl(*arguments, *where, "--json")
    assert (done.code, done.out, done.err) == (ExitCode.OK, "so be it\n", "")
    assert json.loads(as_json.out) == {"done": True, "words": "so be it"}
    assert heard == [asked, asked]


def test_command_that_is_not_carried_out_exits_1_with_the_reason(tmp_path: Path, exl3ctl: Tool) -> None:
    with daemon_saying({"POST /drain": _said(Outcome(done=False, words="shutting down"), 409)}, tmp_path / "s"):
        done = exl3ctl("drain", "--wait", "--state-dir", str(tmp_path / "s"))
    assert (done.code, done.out, done.err) == (ExitCode.FAILED, "", "shutting down\n")


def test_drain_waits_until_no_request_is_left(tmp_path: Path, exl3ctl: Tool) -> None:
    answers = {
        "POST /drain": _said(Outcome(done=True, words="draining")),
        "GET /status": _said(replace(STATUS, running=1, queued=2)),
    }

    class Emptying(dict[str, tuple[int, bytes]]):
        """Says that three requests are left once, then none."""

        def get(self, key: str, default: tuple[int, bytes] = (404, b"")) -> tuple[int, bytes]:  # pyright: ignore[reportIncompatibleMethodOverride]  # all that the handler calls
            answer = super().get(key, default)
            if key == "GET /status":
                self[key] = _said(STATUS)
            return answer

    with daemon_saying(Emptying(answers), tmp_path / "s") as heard:
        done = exl3ctl("drain", "--wait", "--state-dir", str(tmp_path / "s"))
    assert (done.code, done.out) == (ExitCode.OK, "draining\n")
    assert done.err == "1 running, 2 queued\nno request is left\n"
    assert heard == ["POST /drain", "GET /status", "GET /status"]


@pytest.mark.parametrize("depth", ["live", "ready", "deep"])
def test_health_is_the_exit_code(tmp_path: Path, depth: str, exl3ctl: Tool) -> None:
    where = ["--state-dir", str(tmp_path / "s")]
    answers = {f"GET /health?depth={depth}": _said(Health(ok=depth != "deep", reason="words"))}
    with daemon_saying(answers, tmp_path / "s"):
        done = exl3ctl("health", depth, *where)
        as_json = exl3ctl("health", depth, *where, "--json")
    assert done.code == as_json.code == (ExitCode.FAILED if depth == "deep" else ExitCode.OK)
    assert done.out == ("not well: words\n" if depth == "deep" else "well: words\n")
    assert json.loads(as_json.out) == {"ok": depth != "deep", "reason": "words"}


@pytest.mark.parametrize("command", ["health", "drain", "resume", "reload", "restart"])
def test_without_a_daemon_every_command_exits_3(
    tmp_path: Path, command: str, exl3ctl: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "installed", lambda: False)
    done = exl3ctl(command, "--state-dir", str(tmp_path))
    assert (done.code, done.out) == (ExitCode.NOT_RUNNING, "")
    assert "no exl3d is running" in done.err


def test_reload_says_what_holds_and_what_waits(tmp_path: Path, exl3ctl: Tool) -> None:
    answer = _said(Reloaded("", ("keys", "log.level"), ("model",)))
    with daemon_saying({"POST /reload": answer}, tmp_path / "s"):
        done = exl3ctl("reload", "--state-dir", str(tmp_path / "s"))
    assert (done.code, done.out) == (ExitCode.OK, "new values hold for keys, log.level; needs a restart: model\n")


def test_reload_of_a_bad_file_without_a_daemon_shows_what_is_bad(tmp_path: Path, exl3ctl: Tool) -> None:
    """Its daemon may have another state directory, which only the file could tell."""
    (tmp_path / "config.yaml").write_text("state_dir: elsewhere\nprot: 8321\n")
    done = exl3ctl("reload", "--config", str(tmp_path / "config.yaml"))
    assert done.code != ExitCode.OK
    assert "prot" in done.err


def test_reload_of_a_bad_file_finds_the_daemon_and_exits_1(tmp_path: Path, exl3ctl: Tool) -> None:
    """The very file that is at fault cannot say where the daemon is: it is looked for where it is by default."""
    (tmp_path / "config.yaml").write_text("prot: 1\n")
    answer = _said(Reloaded("config.yaml, line 1: there is no setting `prot`"), 409)
    with daemon_saying({"POST /reload": answer}, tmp_path / ".local/state/exl3d"):
        done = exl3ctl("reload")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert "the old one stays: config.yaml, line 1" in done.err


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """`systemctl` and `journalctl` that only write down how they were called; ending with 5."""
    directory, log = tmp_path / "bin", tmp_path / "called"
    directory.mkdir()
    for name in ("systemctl", "journalctl"):
        tool = directory / name
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >> "{log}"\nexit 5\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)
    monkeypatch.setattr(service, "installed", lambda: True)
    return lambda: log.read_text().splitlines()


def test_restart_of_the_service_is_systemds_work(exl3ctl: Tool, tools: Callable[[], list[str]]) -> None:
    assert exl3ctl("restart").code == 5
    assert tools() == ["systemctl restart exl3d.service"]
    misread = exl3ctl("restart", "1")
    assert (misread.code, len(tools())) == (ExitCode.USAGE, 1)
    assert "--engine" in misread.err


@pytest.mark.parametrize("installed", [False, True])
def test_restart_of_a_daemon_started_by_hand_says_how(
    tmp_path: Path, installed: bool, exl3ctl: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is a service beside it, which is not what was meant."""
    monkeypatch.setattr(service, "installed", lambda: installed)
    with daemon_saying({"GET /status": _said(STATUS)}, tmp_path / "s"):
        done = exl3ctl("restart", "--state-dir", str(tmp_path / "s"))
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert "Ctrl-C" in done.err
    assert "--engine" in done.err


@pytest.mark.parametrize(
    ("arguments", "called"),
    [
        ([], "journalctl --unit exl3d.service --lines 100 --no-pager"),
        (["-f", "-n", "5"], "journalctl --unit exl3d.service --lines 5 --follow"),
        (["--since", "today"], "journalctl --unit exl3d.service --lines 100 --no-pager --since today"),
    ],
)
def test_logs_are_the_journals(arguments: list[str], called: str, exl3ctl: Tool, tools: Callable[[], list[str]]) -> None:
    assert exl3ctl("logs", *arguments).code == 5
    assert tools() == [called]


def test_logs_without_the_service_say_where_they_are(exl3ctl: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "installed", lambda: False)
    done = exl3ctl("logs")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert "stderr" in done.err


def test_socket_that_may_not_be_looked_at_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may look everywhere, so the system's refusal is played."""
    closed = tmp_path / "closed" / "run" / "exl3d.sock"
    real = Path.stat

    def stat_(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path == closed:
            raise PermissionError
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat_)
    assert running_socket([tmp_path / "absent", tmp_path / "closed"]) == closed
