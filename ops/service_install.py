"""Lays the service down and takes it away. Every step says what it did; doing it twice changes nothing."""

import grp
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ops import config_file, service
from ops.config_example import example
from ops.errors import InstallFailed
from ops.service import ServiceFile

_PUBLIC, _GROUP_ONLY, _PRIVATE_DIRECTORY = 0o644, 0o640, 0o750
_OLDEST_SYSTEMD = 249
_SECONDS = 60.0
_BACKUP = ".old"


class Verb(Enum):
    """What a step did."""

    WROTE = "wrote"
    REPLACED = "replaced"
    KEPT = "kept"
    MADE = "made"
    REMOVED = "removed"
    CHECKED = "checked"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done, or found wrong."""

    verb: Verb
    what: str


@dataclass(frozen=True, slots=True)
class Ground:
    """Where files are laid: this machine, or a directory that stands for its root, where nothing but files is touched."""

    root: Path | None = None

    @property
    def live(self) -> bool:
        """Whether users and systemd are touched."""
        return self.root is None

    def at(self, path: Path) -> Path:
        """Where a path of the service lies."""
        return path if self.root is None else self.root / path.relative_to("/")


def install(ground: Ground, user: str, config: Path | None) -> Iterator[Step]:
    """Lay everything down and look whether it works. `config` is what /etc/exl3d/config.yaml is made from where there is none;
    without it, every setting at its default. Raises InstallFailed.
    """
    group = user
    if ground.live:
        yield from _user(user)
        group = grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    unit = service.unit(sys.prefix, user, group)
    wanted = [unit, *service.drop_ins(_systemd_version())]
    text = example() if config is None else _read(config)
    yield _config(ground, text, group)
    for file in wanted:
        yield _lay(ground, file, keep_old=file is unit)
    yield from _remove_strangers(ground, {file.path for file in wanted})
    if ground.live:
        yield _state(user)
        _run("systemctl", "daemon-reload")
        yield Step(Verb.CHECKED, "systemd has read its units again (systemctl daemon-reload)")
        yield verify()
        yield _can_run(user)


def uninstall(ground: Ground, *, purge: bool) -> Iterator[Step]:
    """Stop the service and take its files away; with `purge` also configuration, state, cache and the user made for it."""
    unit = ground.at(service.UNITS / service.UNIT)
    if ground.live and unit.exists():
        _run("systemctl", "disable", "--now", service.UNIT)
        yield Step(Verb.CHECKED, f"{service.UNIT} is stopped and disabled")
    yield from _remove(unit)
    yield from _remove(unit.with_name(unit.name + _BACKUP))
    yield from _remove_strangers(ground, frozenset())
    directory = ground.at(service.UNITS / f"{service.UNIT}.d")
    if directory.is_dir():
        if any(directory.iterdir()):
            yield Step(Verb.KEPT, f"{directory}, which holds drop-ins of yours")
        else:
            directory.rmdir()
            yield Step(Verb.REMOVED, str(directory))
    if ground.live:
        _run("systemctl", "daemon-reload")
        _run("systemctl", "reset-failed", service.UNIT, check=False)
    yield from _leave(ground, purge=purge)


def verify() -> Step:
    """What systemd says about the installed unit. It exits with 0 on keys it does not know: only its silence counts."""
    done = _run("systemd-analyze", "verify", str(service.UNITS / service.UNIT), check=False)
    complaints = [line for line in done.stderr.splitlines() if "exl3d" in line]
    if done.returncode != 0 or complaints:
        return Step(Verb.PROBLEM, "systemd-analyze verify: " + "; ".join(complaints or [done.stderr.strip()]))
    return Step(Verb.CHECKED, "systemd understands every line (systemd-analyze verify)")


def next_commands(config: Path) -> Iterator[str]:
    """What a person does now, a line each."""
    report = config_file.ask(config)
    problem = report.first_problem
    if problem is not None:
        yield f"sudoedit {config}    # {problem}"
    elif report.settings.model is None:
        yield f"sudoedit {config}    # name a model directory in `model:`"
    yield f"sudo systemctl enable --now {service.UNIT}"
    yield "sudo exl3ctl status"


def _user(name: str) -> Iterator[Step]:
    try:
        pwd.getpwnam(name)
    except KeyError:
        if name != service.USER:
            raise InstallFailed(f"there is no user {name} on this machine") from None
    else:
        yield Step(Verb.KEPT, f"user {name}")
        return
    _run("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", str(service.STATE), name)
    yield Step(Verb.MADE, f"system user {name}")


def _config(ground: Ground, text: str, group: str) -> Step:
    path = ground.at(service.CONFIG)
    if path.exists():
        return Step(Verb.KEPT, f"{path}, which is yours")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(_GROUP_ONLY)
    if ground.live:
        shutil.chown(path, "root", group)
    return Step(Verb.WROTE, f"{path} (mode 640, group {group}: it may hold hashes of keys)")


def _lay(ground: Ground, file: ServiceFile, *, keep_old: bool) -> Step:
    path = ground.at(file.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    old = path.read_text(encoding="utf-8") if path.exists() else None
    if old == file.text:
        return Step(Verb.KEPT, f"{path}, which is up to date")
    if old is not None and keep_old:
        backup = path.with_name(path.name + _BACKUP)
        backup.write_text(old, encoding="utf-8")
    path.write_text(file.text, encoding="utf-8")
    path.chmod(_PUBLIC)
    if old is None:
        return Step(Verb.WROTE, str(path))
    return Step(Verb.REPLACED, f"{path}" + (f" (the old one is {path.name}{_BACKUP})" if keep_old else ""))


def _remove_strangers(ground: Ground, wanted: "frozenset[Path] | set[Path]") -> Iterator[Step]:
    """Take away our drop-ins that this systemd does not want."""
    for shipped in service.shipped_drop_ins():
        path = service.UNITS / f"{service.UNIT}.d" / shipped.name
        if path not in wanted:
            yield from _remove(ground.at(path))


def _remove(path: Path) -> Iterator[Step]:
    if path.exists():
        path.unlink()
        yield Step(Verb.REMOVED, str(path))


def _state(user: str) -> Step:
    """The state directory. systemd would make it at the first start; a model may have to be put there before."""
    if service.STATE.exists():
        return Step(Verb.KEPT, str(service.STATE))
    service.STATE.mkdir(mode=_PRIVATE_DIRECTORY)
    shutil.chown(service.STATE, user, pwd.getpwnam(user).pw_gid)
    return Step(Verb.MADE, f"{service.STATE}, for what the service makes")


def _can_run(user: str) -> Step:
    """Whether the service's user reaches our programs: a checkout in somebody's home often cannot be read by others."""
    program = f"{sys.prefix}/bin/exl3d"
    done = _run("runuser", "-u", user, "--", program, "--version", check=False)
    if done.returncode == 0:
        return Step(Verb.CHECKED, f"user {user} can run {program}")
    closed = next(_closed_directories(user, (Path(program), Path(sys.executable).resolve())), None)
    why = done.stderr.strip().splitlines()[-1:] if closed is None else [f"it may not enter {closed}"]
    return Step(
        Verb.PROBLEM,
        f"user {user} cannot run {program}: {''.join(why)}. Move the checkout to a place that everybody can read, as in"
        " /opt/exl3d, or install with --user NAME, the one whose home it is",
    )


def _closed_directories(user: str, files: Sequence[Path]) -> Iterator[Path]:
    for file in files:
        for directory in reversed(file.parents):
            if _run("runuser", "-u", user, "--", "test", "-x", str(directory), check=False).returncode != 0:
                yield directory


def _leave(ground: Ground, *, purge: bool) -> Iterator[Step]:
    directories = [ground.at(path) for path in (service.ETC, service.STATE, service.CACHE)]
    for directory in directories:
        if not directory.exists():
            continue
        if purge:
            shutil.rmtree(directory)
        yield Step(Verb.REMOVED if purge else Verb.KEPT, str(directory))
    if not (ground.live and _exists(service.USER)):
        return
    if purge:
        _run("userdel", service.USER)
    yield Step(Verb.REMOVED if purge else Verb.KEPT, f"user {service.USER}")


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _systemd_version() -> int:
    if shutil.which("systemctl") is None:
        return _OLDEST_SYSTEMD
    found = re.match(r"systemd (\d+)", _run("systemctl", "--version").stdout)
    return int(found[1]) if found else _OLDEST_SYSTEMD


def _read(config: Path) -> str:
    try:
        return config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InstallFailed(f"{config} cannot be read: {problem}") from problem


def _run(*argv: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """A tool of the system, heard but not shown. Raises InstallFailed with its words."""
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=_SECONDS, cwd="/", env=_environment())
    except FileNotFoundError as problem:
        raise InstallFailed(f"{argv[0]} is not on this machine") from problem
    except subprocess.TimeoutExpired as problem:
        raise InstallFailed(f"`{' '.join(argv)}` did not end within {_SECONDS:.0f} s") from problem
    if check and done.returncode != 0:
        raise InstallFailed(f"`{' '.join(argv)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done


def _environment() -> dict[str, str]:
    """Words we can read, and nothing of ours that would make another user's Python look elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "XDG_"))}
    return {**kept, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
