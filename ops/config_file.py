"""Where config.yaml lies and what is in it, as an operator's tool sees it. The daemon has its own reader; both use the schema
of core/settings.py, so both accept the same keys.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from daemon.core.settings import Settings
from ops.errors import BadConfig

SYSTEM_CONFIG = Path("/etc/exl3d/config.yaml")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and the file they came from; None where no file was found and defaults hold."""

    settings: Settings
    path: Path | None


def search_path(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where config.yaml is looked for, first found first: the same places as the daemon."""
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
    return (Path("config.yaml"), home / "exl3d" / "config.yaml", SYSTEM_CONFIG)


def find(given: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: `given` as it is, else the first that exists."""
    if given is not None:
        return given
    return next((path for path in search_path(environ) if path.is_file()), None)


def load(given: Path | None, environ: Mapping[str, str] = os.environ) -> Loaded:
    """Read and check the configuration. Raises BadConfig with file, line and key."""
    path = find(given, environ)
    if path is None:
        return Loaded(Settings(), None)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadConfig(f"{path}: {problem}") from problem
    settings = parse(text, str(path))
    check(settings, str(path))
    return Loaded(settings, path)


def parse(text: str, name: str) -> Settings:
    """Settings from YAML text. `name` is what messages call the file. Raises BadConfig."""
    try:
        tree: object = yaml.safe_load(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as problem:
        raise BadConfig(f"{name}: this is no YAML: {problem}") from problem
    if tree is None:
        return Settings()
    try:
        return msgspec.convert(tree, Settings)
    except msgspec.ValidationError as problem:
        line = _line(root, str(problem))
        raise BadConfig(f"{name}{f', line {line}' if line else ''}: {problem}") from problem


def check(settings: Settings, name: str) -> None:
    """Rules that a schema cannot say. Raises BadConfig."""
    if not settings.keys and not _is_loopback(settings.host):
        raise BadConfig(
            f"{name}: host {settings.host} can be reached by other machines, so API keys are needed."
            " Run `exl3ctl key new NAME` for each person and put the lines under `keys:`, or use host 127.0.0.1."
        )
    if settings.model is not None and not Path(settings.model).expanduser().is_dir():
        raise BadConfig(f"{name}: model: {settings.model} is no directory")


def state_dir(settings: Settings, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the daemon keeps what it makes: the setting, else systemd's $STATE_DIRECTORY, else ~/.local/state/exl3d."""
    if settings.state_dir is not None:
        return Path(settings.state_dir).expanduser()
    given = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    return Path(environ.get("HOME", "/")) / ".local" / "state" / "exl3d"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _line(node: yaml.Node | None, problem: str) -> int | None:
    """The line of the key that a msgspec message is about: it ends in ` - at `$.a.b``, or names an unknown field."""
    path = problem.rpartition(" - at `")[2].rstrip("`") if " - at `" in problem else "$"
    names = [name for name in path.removeprefix("$").split(".") if name]
    unknown = problem.partition("unknown field `")[2].partition("`")[0]
    if unknown:
        names.append(unknown)
    line: int | None = None
    for name in names:
        key, _, index = name.partition("[")
        found = _child(node, key)
        if found is None:
            return line
        line, node = found
        if index and isinstance(node, yaml.SequenceNode):
            node = node.value[int(index.rstrip("]"))] if index.rstrip("]").isdigit() else None
            line = node.start_mark.line + 1 if node is not None else line
    return line


def _child(node: yaml.Node | None, key: str) -> tuple[int, yaml.Node] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    for name, value in node.value:
        if name.value == key:
            return name.start_mark.line + 1, value
    return None
