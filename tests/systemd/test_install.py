"""`exl3ctl install` and `uninstall` on a real systemd: the service runs as its own user, hardened as shipped."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.core.keys import SALT_BYTES, SECRET_BYTES, hash_key, new_key
from tests.systemd.guest import CONFIG, EXL3CTL, PORT, REPOSITORY, UNIT, furnish, visible
from tests.systemd.machine import Machine, missing, wait_until

INTERPRETER = Path(sys.executable).resolve()
SALT = b"s" * SALT_BYTES
KEY = new_key(SALT, b"k" * SECRET_BYTES)
# A checkout under /tmp is hidden by PrivateTmp, which no service of a person has to bear.
DROP_IN = f"""\
[Service]
Environment=PYTHONPATH={REPOSITORY}
LoadCredential=keys:/etc/exl3d/keys
""" + ("PrivateTmp=no\n" if REPOSITORY.is_relative_to(tempfile.gettempdir()) else "")

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with Machine(visible=visible()) as booted:
        furnish(booted)
        yield booted


def _open_the_way(machine: Machine) -> None:
    """Let everybody enter the directories of the interpreter, as a person would choose them. Inside only."""
    for directory in INTERPRETER.parents:
        machine.run("chmod", "a+x", str(directory), check=False)


@pytest.mark.skipif(INTERPRETER.is_relative_to("/usr"), reason="the interpreter lies where everybody can read it")
def test_programs_that_the_services_user_cannot_reach_are_told_with_the_directory(machine: Machine) -> None:
    closed = INTERPRETER.parents[-2]
    machine.run("chmod", "700", str(closed))
    done = machine.run(EXL3CTL, "install", check=False)
    assert done.returncode == 1
    assert f"user exl3d cannot run {sys.prefix}/bin/exl3d: it may not enter {closed}" in done.stderr
    assert "--user NAME" in done.stderr
    assert "Next:" not in done.stdout


def test_installed_service_runs_as_its_own_user_with_keys_that_only_root_reads(machine: Machine) -> None:
    _open_the_way(machine)
    assert "systemd understands every line" in machine.run(EXL3CTL, "install").stdout
    again = machine.run(EXL3CTL, "install").stdout
    assert "wrote" not in again
    assert "Next:\n" in again
    machine.write("/etc/exl3d/config.yaml", CONFIG)
    machine.write("/etc/exl3d/keys", f"ann {hash_key(KEY, SALT)}\n")
    machine.run("chmod", "600", "/etc/exl3d/keys")
    machine.write(f"/etc/systemd/system/{UNIT}.d/override.conf", DROP_IN)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "--now", UNIT)
    assert machine.show(UNIT, "ActiveState") == "active", machine.journal(UNIT)
    assert machine.run("ps", "-o", "user=", "-p", machine.show(UNIT, "MainPID")).stdout.strip() == "exl3d"
    assert _asked(machine) == "401"
    assert _asked(machine, "Authorization", f"Bearer {KEY}") == "200"
    machine.run(EXL3CTL, "health", "deep")
    machine.run("systemctl", "reload", UNIT)


def test_others_are_told_to_use_sudo(machine: Machine) -> None:
    """Whoever may not look into the service's state directory gets words and no traceback."""
    done = machine.run("runuser", "-u", "nobody", "--", EXL3CTL, "status", "--state-dir", "/var/lib/exl3d", check=False)
    assert done.returncode == 3
    assert "sudo" in done.stderr
    assert "Traceback" not in done.stderr


def test_removed_service_leaves_what_is_a_persons_unless_purged(machine: Machine) -> None:
    done = machine.run(EXL3CTL, "uninstall", "--yes")
    assert "override.conf" not in done.stdout
    assert "holds drop-ins of yours" in done.stdout
    wait_until(lambda: machine.show(UNIT, "LoadState") == "not-found", "the unit to be forgotten")
    assert machine.run("test", "-e", "/etc/exl3d/config.yaml", check=False).returncode == 0
    assert machine.run("pgrep", "--full", "daemon.engine", check=False).returncode == 1
    machine.run(EXL3CTL, "uninstall", "--yes", "--purge")
    for path in ("/etc/exl3d", "/var/lib/exl3d", "/var/cache/exl3d"):
        assert machine.run("test", "-e", path, check=False).returncode == 1, path
    assert machine.run("id", "exl3d", check=False).returncode != 0


def _asked(machine: Machine, *header: str) -> str:
    """The status of a question about the models, with one more header if given."""
    code = (
        "import http.client, sys\n"
        f"connection = http.client.HTTPConnection('127.0.0.1', {PORT}, timeout=30)\n"
        "connection.request('GET', '/v1/models', headers=dict([sys.argv[1:]] if sys.argv[1:] else []))\n"
        "print(connection.getresponse().status)\n"
    )
    return machine.run(sys.executable, "-c", code, *header).stdout.strip()
