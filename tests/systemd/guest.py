"""exl3d inside the container: a tiny model, a client that streams, and what is asked about the daemon."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.engine.checkpoints import Architecture, write_checkpoint
from tests.systemd.machine import Machine

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
EXL3CTL = f"{sys.prefix}/bin/exl3ctl"


def visible() -> list[Path]:
    """What a container must see of this machine."""
    return [REPOSITORY, Path(sys.prefix)]


def furnish(machine: Machine) -> None:
    """Put model, profile and client inside."""
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(Architecture.LLAMA, Path(directory))
        shutil.copytree(directory, machine.root / "srv/model")
    machine.run("chmod", "-R", "a+rX", "/srv/model")
    machine.write("/srv/profile.json", PROFILE)
    machine.write("/srv/client.py", (Path(__file__).parent / "client.py").read_text(encoding="utf-8"))


def stream(machine: Machine, tokens: int) -> "subprocess.Popen[str]":
    """A client that has received its first piece."""
    client = machine.start(sys.executable, "/srv/client.py", str(PORT), str(tokens))
    assert client.stdout is not None
    assert client.stdout.readline() == "first\n"
    return client


def outcome(client: "subprocess.Popen[str]") -> dict[str, object]:
    """What came, once it has ended."""
    out, _ = client.communicate(timeout=120)
    return json.loads(out.splitlines()[-1])


def engine_pid(machine: Machine) -> int:
    """The engine's pid inside the container."""
    main = machine.show(UNIT, "MainPID")
    children = machine.run("pgrep", "--parent", main, "--full", "daemon.engine").stdout.split()
    assert len(children) == 1
    return int(children[0])
