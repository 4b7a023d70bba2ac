"""The shipped unit under a real systemd: ready when it says so, drained when stopped, back when killed."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.checkpoints import Architecture, write_checkpoint
from tests.systemd.machine import Machine, missing, wait_until

REPOSITORY = Path(__file__).parents[2]
UNIT = "exl3d.service"
PORT = 8321
CONFIG = f"""\
model: /srv/model
port: {PORT}
engine:
  backend: "null"
  null_profile: /srv/profile.json
supervisor:
  step_stall_seconds: 3
  backoff_seconds: 0.1
"""
PROFILE = '{"decode": [{"at": 1, "seconds": 0.02}]}'
# The interpreter of this checkout may lie where a service user cannot read; everything else stays as shipped.
# So may the checkout, which can lie under /tmp.
DROP_IN = """\
[Service]
User=root
Group=root
PrivateTmp=no
WatchdogSec=4
RestartSec=200ms
"""

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(300),
]


def _unit() -> str:
    text = (REPOSITORY / "systemd" / UNIT).read_text(encoding="utf-8")
    return text.replace("@PREFIX@", sys.prefix).replace("@CONFIG@", "/etc/exl3d/config.yaml")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with Machine(visible=[REPOSITORY, Path(sys.prefix)]) as booted:
        with tempfile.TemporaryDirectory() as directory:
            write_checkpoint(Architecture.LLAMA, Path(directory))
            shutil.copytree(directory, booted.root / "srv/model")
        booted.write("/srv/profile.json", PROFILE)
        booted.write("/srv/client.py", (Path(__file__).parent / "client.py").read_text(encoding="utf-8"))
        booted.write("/etc/exl3d/config.yaml", CONFIG)
        booted.write(f"/etc/systemd/system/{UNIT}", _unit())
        booted.write(f"/etc/systemd/system/{UNIT}.d/test.conf", DROP_IN)
        booted.run("systemctl", "daemon-reload")
        yield booted


@pytest.fixture
def running(machine: Machine) -> Iterator[Machine]:
    machine.run("systemctl", "reset-failed", UNIT, check=False)
    machine.run("systemctl", "start", UNIT)
    yield machine
    machine.run("systemctl", "stop", UNIT)


def _stream(machine: Machine, tokens: int) -> "subprocess.Popen[str]":
    """A client that has received its first piece."""
    client = machine.start(sys.executable, "/srv/client.py", str(PORT), str(tokens))
    assert client.stdout is not None
    assert client.stdout.readline() == "first\n"
    return client


def _outcome(client: "subprocess.Popen[str]") -> dict[str, object]:
    out, _ = client.communicate(timeout=120)
    return json.loads(out.splitlines()[-1])


def _engine(machine: Machine) -> int:
    """The engine's pid inside the container."""
    main = machine.show(UNIT, "MainPID")
    children = machine.run("pgrep", "--parent", main, "--full", "daemon.engine").stdout.split()
    assert len(children) == 1
    return int(children[0])


def test_start_returns_when_the_model_can_generate(running: Machine) -> None:
    assert running.show(UNIT, "ActiveState") == "active"
    outcome = _outcome(_stream(running, 3))
    assert (outcome["status"], outcome["finish"], outcome["done"]) == (200, "length", True)
    wait_until(lambda: "tokens of context" in running.show(UNIT, "StatusText"), "a status for people")


def test_stop_lets_a_running_stream_finish(running: Machine) -> None:
    client = _stream(running, 100)
    running.run("systemctl", "stop", UNIT)
    outcome = _outcome(client)
    assert (outcome["finish"], outcome["done"], outcome["error"]) == ("length", True, None)
    assert running.show(UNIT, "Result") == "success"


def test_killed_engine_is_replaced_and_its_stream_goes_on(running: Machine) -> None:
    undisturbed = _outcome(_stream(running, 100))
    daemon = running.show(UNIT, "MainPID")
    client = _stream(running, 100)
    running.run("kill", "-KILL", str(_engine(running)))
    outcome = _outcome(client)
    assert outcome == undisturbed
    assert running.show(UNIT, "MainPID") == daemon


def test_stopped_engine_is_found_and_replaced(running: Machine) -> None:
    client = _stream(running, 100)
    running.run("kill", "-STOP", str(_engine(running)))
    outcome = _outcome(client)
    assert (outcome["finish"], outcome["done"]) == ("length", True)


def test_killed_daemon_comes_back_and_leaves_no_engine(running: Machine) -> None:
    daemon, engine = running.show(UNIT, "MainPID"), _engine(running)
    running.run("kill", "-KILL", daemon)
    wait_until(lambda: running.show(UNIT, "MainPID") not in {daemon, "0"}, "a new daemon")
    running.wait_for(UNIT, "ActiveState", "active")
    assert running.run("kill", "-0", str(engine), check=False).returncode != 0


def test_stopped_daemon_is_ended_by_the_watchdog_and_comes_back(running: Machine) -> None:
    daemon = running.show(UNIT, "MainPID")
    running.run("kill", "-STOP", daemon)
    wait_until(lambda: running.show(UNIT, "MainPID") not in {daemon, "0"}, "a new daemon", 60)
    running.wait_for(UNIT, "ActiveState", "active")


def test_bad_configuration_fails_once_with_78(machine: Machine) -> None:
    machine.write("/etc/exl3d/config.yaml", "modell: /srv/model\n")
    try:
        assert machine.run("systemctl", "start", UNIT, check=False).returncode != 0
        machine.wait_for(UNIT, "ActiveState", "failed")
        assert machine.show(UNIT, "ExecMainStatus") == "78"
        assert machine.show(UNIT, "NRestarts") == "0"
        assert "modell" in machine.journal(UNIT)
    finally:
        machine.write("/etc/exl3d/config.yaml", CONFIG)


def test_unit_verifies_without_a_word_and_is_hardened(machine: Machine) -> None:
    """`systemd-analyze verify` exits 0 on unknown keys; only its silence proves that every key was understood."""
    verified = machine.run("systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}")
    ours = [line for line in verified.stderr.splitlines() if "exl3d" in line]
    assert ours == []
    table = machine.run("systemd-analyze", "security", "--offline=true", f"/etc/systemd/system/{UNIT}").stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", table)
    assert found is not None
    assert float(found[1]) <= 3.0
