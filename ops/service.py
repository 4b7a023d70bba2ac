"""The daemon as a systemd service: its names and places, its files as they are laid down, and whether it is installed here."""

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.errors import InstallFailed

UNIT = "exl3d.service"
USER = "exl3d"
"""The system user made for the service where no other is named."""
ETC = Path("/etc/exl3d")
CONFIG = ETC / "config.yaml"
STATE = Path("/var/lib/exl3d")
CACHE = Path("/var/cache/exl3d")
UNITS = Path("/etc/systemd/system")
SOURCE = Path(__file__).resolve().parents[1] / "systemd"
"""The shipped files: in the checkout that this package lies in."""
_UNIT_PLACES = (UNITS, Path("/run/systemd/system"), Path("/usr/local/lib/systemd/system"), Path("/usr/lib/systemd/system"))
_BOOTED = Path("/run/systemd/system")
_UNQUOTABLE = frozenset('"\\%$\n')
"""What means something to systemd inside quotes."""


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """One file of the service."""

    path: Path
    text: str


def booted() -> bool:
    """Whether systemd runs this machine."""
    return _BOOTED.is_dir()


def installed() -> bool:
    """Whether systemd runs this machine and knows the unit."""
    return booted() and any((place / UNIT).exists() for place in _UNIT_PLACES)


def unit(prefix: str, user: str, group: str) -> ServiceFile:
    """The unit for the programs under `prefix`, a virtual environment. Raises InstallFailed for one that no unit can name."""
    if _UNQUOTABLE & set(prefix):
        raise InstallFailed(f"systemd cannot start programs in {prefix!r}: choose a path without quotes, backslashes, % and $")
    text = _shipped(UNIT)
    for name, value in (("PREFIX", prefix), ("CONFIG", str(CONFIG)), ("USER", user), ("GROUP", group)):
        text = text.replace(f"@{name}@", value)
    return ServiceFile(UNITS / UNIT, text)


def drop_ins(version: int) -> Iterator[ServiceFile]:
    """The drop-ins for a version of systemd: those whose name begins with a version it has reached."""
    for path in shipped_drop_ins():
        if int(path.name.partition("-")[0]) <= version:
            yield ServiceFile(UNITS / f"{UNIT}.d" / path.name, path.read_text(encoding="utf-8"))


def shipped_drop_ins() -> list[Path]:
    """All of them, as `254-backoff.conf`."""
    return sorted((SOURCE / f"{UNIT}.d").glob("[0-9]*-*.conf"))


def call(argv: Sequence[str]) -> int:
    """Run one of systemd's tools in our place, with our terminal; its exit code."""
    return subprocess.run(argv, check=False).returncode


def _shipped(name: str) -> str:
    path = SOURCE / name
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as problem:
        raise InstallFailed(f"{path} is missing: `exl3ctl install` works from a checkout of exl3d") from problem
