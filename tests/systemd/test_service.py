"""The shipped unit under a real systemd: ready when it says so, drained when stopped, reloaded when asked, back when killed."""

import re
import sys
from collections.abc import Iterator

import pytest

from ops import service
from tests.systemd.guest import CONFIG, EXL3CTL, PORT, REPOSITORY, UNIT, engine_pid, furnish, outcome, stream, visible
from tests.systemd.machine import Machine, missing, wait_until

CONFIG_FILE = "/etc/exl3d/config.yaml"
# The interpreter of this checkout may lie where a service user cannot read; so may the checkout, which can lie under /tmp.
# TimeoutStopSec is too short for a drain, unless the daemon asks for more. Everything else stays as shipped.
DROP_IN = f"""\
[Service]
User=root
Group=root
PrivateTmp=no
Environment=PYTHONPATH={REPOSITORY}
WatchdogSec=4
TimeoutStopSec=1
RestartSec=200ms
"""

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with Machine(visible=visible()) as booted:
        furnish(booted)
        booted.write(CONFIG_FILE, CONFIG)
        booted.write(f"/etc/systemd/system/{UNIT}", service.unit(sys.prefix, "exl3d", "exl3d").text)
        booted.write(f"/etc/systemd/system/{UNIT}.d/test.conf", DROP_IN)
        booted.run("systemctl", "daemon-reload")
        yield booted


@pytest.fixture
def running(machine: Machine) -> Machine:
    """The service runs, with CONFIG: still, or again."""
    machine.write(CONFIG_FILE, CONFIG)
    machine.run("systemctl", "reset-failed", UNIT, check=False)
    if machine.show(UNIT, "ActiveState") == "active":
        machine.run("systemctl", "reload", UNIT)
    machine.run("systemctl", "start", UNIT)
    return machine


def test_start_returns_when_the_model_can_generate(running: Machine) -> None:
    assert running.show(UNIT, "ActiveState") == "active"
    came = outcome(stream(running, 3))
    assert (came["status"], came["finish"], came["done"]) == (200, "length", True)
    wait_until(lambda: "tokens of context" in running.show(UNIT, "StatusText"), "a status for people")


def test_stop_lets_a_running_stream_finish_beyond_the_units_own_time(running: Machine) -> None:
    """The drain of 30 s is longer than TimeoutStopSec here: the daemon asks for the time it needs."""
    client = stream(running, 100)
    running.run("systemctl", "stop", UNIT)
    came = outcome(client)
    assert (came["finish"], came["done"], came["error"]) == ("length", True, None)
    assert running.show(UNIT, "Result") == "success"


def test_killed_engine_is_replaced_and_its_stream_goes_on(running: Machine) -> None:
    undisturbed = outcome(stream(running, 100))
    daemon = running.show(UNIT, "MainPID")
    client = stream(running, 100)
    running.run("kill", "-KILL", str(engine_pid(running)))
    assert outcome(client) == undisturbed
    assert running.show(UNIT, "MainPID") == daemon


def test_stopped_engine_is_found_and_replaced(running: Machine) -> None:
    client = stream(running, 100)
    running.run("kill", "-STOP", str(engine_pid(running)))
    came = outcome(client)
    assert (came["finish"], came["done"]) == ("length", True)


def test_killed_daemon_comes_back_and_leaves_no_engine(running: Machine) -> None:
    daemon, engine = running.show(UNIT, "MainPID"), engine_pid(running)
    running.run("kill", "-KILL", daemon)
    wait_until(lambda: running.show(UNIT, "MainPID") not in {daemon, "0"}, "a new daemon")
    running.wait_for(UNIT, "ActiveState", "active")
    assert running.run("kill", "-0", str(engine), check=False).returncode != 0


def test_stopped_daemon_is_ended_by_the_watchdog_and_comes_back(running: Machine) -> None:
    daemon = running.show(UNIT, "MainPID")
    running.run("kill", "-STOP", daemon)
    wait_until(lambda: running.show(UNIT, "MainPID") not in {daemon, "0"}, "a new daemon", 60)
    running.wait_for(UNIT, "ActiveState", "active")


def test_reload_takes_over_a_good_file_under_a_running_stream(running: Machine) -> None:
    undisturbed = outcome(stream(running, 200))
    daemon, engine = running.show(UNIT, "MainPID"), engine_pid(running)
    client = stream(running, 200)
    running.write(CONFIG_FILE, CONFIG.replace(f"port: {PORT}", "port: 1\nlog:\n  level: debug"))
    running.run("systemctl", "reload", UNIT)
    assert running.show(UNIT, "ActiveState") == "active"
    assert "new values hold for log.level; needs a restart: port" in running.journal(UNIT)
    assert outcome(client) == undisturbed
    assert (running.show(UNIT, "MainPID"), engine_pid(running)) == (daemon, engine)


def test_reload_of_a_bad_file_fails_and_the_old_configuration_stays(running: Machine) -> None:
    daemon = running.show(UNIT, "MainPID")
    running.write(CONFIG_FILE, CONFIG + "log:\n  level: loud\n")
    assert running.run("systemctl", "reload", UNIT, check=False).returncode != 0
    assert running.show(UNIT, "ActiveState") == "active"
    assert running.show(UNIT, "MainPID") == daemon
    assert "the old one stays: /etc/exl3d/config.yaml, line" in running.journal(UNIT)
    assert outcome(stream(running, 3))["done"]


def test_hangup_signal_reloads_and_ends_nothing(running: Machine) -> None:
    daemon = running.show(UNIT, "MainPID")
    running.write(CONFIG_FILE, CONFIG + "server:\n  max_queued: 9\n")
    running.run("systemctl", "kill", "--signal=HUP", "--kill-whom=main", UNIT)
    wait_until(lambda: "server.max_queued" in running.run(EXL3CTL, "logs", "-n", "20").stdout, "the reload in the log")
    assert running.show(UNIT, "MainPID") == daemon
    assert outcome(stream(running, 3))["done"]


def test_commands_reach_the_service(running: Machine) -> None:
    """As root types them on the machine, with nothing named but the command."""
    before = engine_pid(running)
    assert running.run(EXL3CTL, "health", "deep").stdout.startswith("well")
    client = stream(running, 300)
    assert "replaced; 1 request" in running.run(EXL3CTL, "restart", "--engine").stdout
    assert outcome(client)["done"]
    assert engine_pid(running) != before
    running.run(EXL3CTL, "drain", "--wait")
    assert running.run(EXL3CTL, "health", check=False).returncode == 1
    running.run(EXL3CTL, "resume")
    daemon = running.show(UNIT, "MainPID")
    running.run(EXL3CTL, "restart")
    assert running.show(UNIT, "MainPID") != daemon
    assert running.show(UNIT, "ActiveState") == "active"


def test_crash_loop_ends_at_the_start_limit(machine: Machine) -> None:
    """Somebody else has the port, so every start fails with 1; after six in half an hour a person must look."""
    machine.run("systemctl", "stop", UNIT)
    machine.write(CONFIG_FILE, CONFIG)
    machine.run("systemctl", "reset-failed", UNIT, check=False)
    machine.run("systemd-run", "--unit=holder", f"--socket-property=ListenStream=127.0.0.1:{PORT}", "true")
    try:
        assert machine.run("systemctl", "start", UNIT, check=False).returncode != 0
        machine.wait_for(UNIT, "ActiveState", "failed", 120)
        assert "Start request repeated too quickly" in machine.journal(UNIT)
        assert machine.journal(UNIT).count(f"port {PORT} on 127.0.0.1 is in use") == 6
    finally:
        machine.run("systemctl", "stop", "holder.socket")
    assert machine.run("systemctl", "start", UNIT, check=False).returncode != 0, "the limit holds though the port is free"


def test_bad_configuration_fails_once_with_78(machine: Machine) -> None:
    machine.run("systemctl", "stop", UNIT)
    machine.run("systemctl", "reset-failed", UNIT, check=False)
    machine.write(CONFIG_FILE, "modell: /srv/model\n")
    try:
        assert machine.run("systemctl", "start", UNIT, check=False).returncode != 0
        machine.wait_for(UNIT, "ActiveState", "failed")
        assert machine.show(UNIT, "ExecMainStatus") == "78"
        assert machine.show(UNIT, "NRestarts") == "0"
        assert "modell" in machine.journal(UNIT)
    finally:
        machine.write(CONFIG_FILE, CONFIG)


def test_unit_verifies_without_a_word_and_is_hardened(machine: Machine) -> None:
    """`systemd-analyze verify` exits 0 on unknown keys; only its silence proves that every key was understood."""
    verified = machine.run("systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}")
    ours = [line for line in verified.stderr.splitlines() if "exl3d" in line]
    assert ours == []
    table = machine.run("systemd-analyze", "security", "--offline=true", f"/etc/systemd/system/{UNIT}").stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", table)
    assert found is not None
    assert float(found[1]) <= 3.0
