"""From a config.yaml, `--set` options and the environment to `Settings`, once, at start. Nobody reads them later.

Every complaint names the key, and the line where the file has it, or the command line where it was typed there.
"""

import difflib
import ipaddress
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import cast

import msgspec
import yaml

from daemon.core.errors import ConfigError
from daemon.core.settings import Settings
from daemon.host.credentials import read_keys

SYSTEM_FILE = Path("/etc/exl3d/config.yaml")
_COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the daemon runs with."""

    settings: Settings
    state_dir: Path
    source: Path | None
    """The file it came from; None where there was none."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where each key was written, so that a person is sent to the right place."""

    file: str
    lines: Mapping[str, int]
    typed: tuple[str, ...]
    """Keys given on the command line; these go before the file's."""

    def of(self, path: str) -> str:
        """As in `config.yaml, line 3`. `path` as in `keys[0].name`; msgspec writes `[...]` for any item of a list, and the
        first item's line is near enough.
        """
        if any(path == key or path.startswith((f"{key}.", f"{key}[")) for key in self.typed):
            return _COMMAND_LINE
        line = self.lines.get(path.replace("[...]", "[0]"))
        return f"{self.file}, line {line}" if line else self.file


def find_file(given: Path | None, environment: Mapping[str, str]) -> Path | None:
    """The file to read: the one given, else the first that exists of ./config.yaml, the user's and the system's."""
    if given is not None:
        return given
    home = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or "/") / ".config")
    candidates = (Path("config.yaml"), home / "exl3d" / "config.yaml", SYSTEM_FILE)
    return next((path for path in candidates if path.is_file()), None)


def read_configuration(given: Path | None, overrides: Sequence[str], environment: Mapping[str, str]) -> Configuration:
    """Read the file there is, apply `section.key=value` overrides, add systemd's keys, check everything. Raises ConfigError."""
    source = find_file(given, environment)
    text = "" if source is None else _read(source)
    name = "settings" if source is None else str(source)
    tree = _parse(text, name)
    places = _Places(name, _lines(text, name), tuple(_override(tree, override) for override in overrides))
    for path in _endless(tree, ""):
        raise ConfigError(f"`{path}`: expected a finite number", places.of(path))
    try:
        settings = msgspec.convert(_spell_nulls(tree, Settings), Settings)
    except msgspec.ValidationError as problem:
        raise _explain(problem, places) from problem
    settings = msgspec.structs.replace(settings, keys=[*settings.keys, *read_keys(environment)])
    return Configuration(settings, state_directory(settings, environment), source)


def state_directory(settings: Settings, environment: Mapping[str, str]) -> Path:
    """Where what exl3d makes is kept: as configured, else as systemd says, else in the user's home."""
    if settings.state_dir is not None:
        return at_home(settings.state_dir, "state_dir")
    given = environment.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    state = environment.get("XDG_STATE_HOME")
    return (Path(state) if state else Path(environment.get("HOME") or "/") / ".local" / "state") / "exl3d"


def at_home(written: str, setting: str) -> Path:
    """The absolute path that a setting means; `~` is a home. Raises ConfigError for the home of somebody who is not there."""
    try:
        return Path(written).expanduser().absolute()
    except RuntimeError as problem:
        raise ConfigError(f"`{setting}` is {written}, and nobody on this machine has such a home") from problem


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot be read: {problem}", str(path)) from problem


def _parse(text: str, name: str) -> dict[str, object]:
    try:
        tree: object = yaml.safe_load(text)
    except RecursionError as problem:
        raise ConfigError("is nested too deeply", name) from problem
    except yaml.YAMLError as problem:
        raise ConfigError(f"is no YAML: {problem}", name) from problem
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError("must consist of `key: value` lines", name)
    return cast("dict[str, object]", tree)


def _lines(text: str, name: str) -> dict[str, int]:
    """Line of each key, by its path as in `engine.k_bits` or `keys[0].name`."""
    lines: dict[str, int] = {}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    try:
        if root is not None:
            _collect(root, "", lines, name)
    except RecursionError as problem:  # an anchor inside itself
        raise ConfigError("is nested too deeply", name) from problem
    return lines


def _collect(node: yaml.Node, path: str, lines: dict[str, int], file: str) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            name = f"{path}.{key.value}" if path else f"{key.value}"
            line = key.start_mark.line + 1
            if name in lines:
                raise ConfigError(f"`{name}` stands on line {lines[name]} and again on line {line}; keep one", file)
            lines[name] = line
            _collect(value, name, lines, file)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(cast("list[yaml.Node]", node.value)):
            lines[f"{path}[{index}]"] = item.start_mark.line + 1
            _collect(item, f"{path}[{index}]", lines, file)


def _override(tree: dict[str, object], override: str) -> str:
    """Put one `section.key=value` into the tree; gives the key's path. Raises ConfigError."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set wants section.key=value, not {override!r}")
    *sections, key = path.strip().split(".")
    place = tree
    for section in sections:
        inner = place.get(section)
        if inner is None:
            inner = place[section] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override}: `{section}` is no section")
        place = cast("dict[str, object]", inner)
    try:
        place[key] = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise ConfigError(f"--set {override}: the value is no YAML: {problem}") from problem
    return path.strip()


def _endless(value: object, path: str) -> Iterator[str]:
    """Where infinity stands: the schema would take it for a number of seconds, and no timer can."""
    if isinstance(value, float) and math.isinf(value):
        yield path
    elif isinstance(value, dict):
        for name, inner in cast("dict[object, object]", value).items():
            yield from _endless(inner, f"{path}.{name}" if path else f"{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[object]", value)):
            yield from _endless(inner, f"{path}[{index}]")


def _spell_nulls(tree: dict[str, object], kind: type[msgspec.Struct]) -> dict[str, object]:
    """YAML reads a bare `null` as nothing. Where a setting has a choice of that name (the null backend), it is meant; a section
    of which nothing but its name is left is one at its defaults.
    """
    for field in msgspec.structs.fields(kind):
        value = tree.get(field.name, msgspec.UNSET)
        inner = cast("object", field.type)
        inner = getattr(inner, "__origin__", inner)
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            _spell_nulls(cast("dict[str, object]", value), inner)
        elif value is None and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            del tree[field.name]
        elif value is None and isinstance(inner, type) and issubclass(inner, Enum) and "null" in {item.value for item in inner}:
            tree[field.name] = "null"
    return tree


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`")
_PLACE = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`$")


def _explain(problem: msgspec.ValidationError, places: _Places) -> ConfigError:
    """Msgspec's words with our names: the key, its place, and the key that was probably meant."""
    text = str(problem)
    found = _PLACE.search(text)
    path = found["path"].lstrip(".") if found else ""
    words = _PLACE.sub("", text)
    unknown = _UNKNOWN.match(words)
    if unknown:
        field = unknown["field"]
        key = f"{path}.{field}" if path else field
        near = difflib.get_close_matches(field, _known_keys(path), n=1)
        words = f"there is no setting `{key}`" + (f"; did you mean `{near[0]}`?" if near else "")
        path = key
    elif path:
        words = f"`{path}`: {words[:1].lower()}{words[1:]}"
    return ConfigError(words, places.of(path))


def _known_keys(path: str) -> Iterable[str]:
    kind: object = Settings
    for section in filter(None, path.split(".")):
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(cast("type[msgspec.Struct]", kind))}
        kind = fields.get(section.partition("[")[0])
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return ()
    return [field.encode_name for field in msgspec.structs.fields(cast("type[msgspec.Struct]", kind))]


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
