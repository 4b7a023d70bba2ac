"""`exl3ctl user add | list | limit | rotate | remove`: who may use exl3d, with what share and what limits.

The people stand in people.json of the state directory, beside those of config.yaml. A running daemon is asked to read it again,
and would see the change by itself a moment later.
"""

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console

from daemon.core.keys import SALT_BYTES, SECRET_BYTES, hash_key, new_key
from daemon.core.people import StoredPerson
from daemon.core.people_file import find, with_person, without_person
from daemon.core.settings import PersonSettings, Settings
from ops import config_file
from ops.admin_socket import command_reload, socket_path
from ops.errors import NotRunning, OpsError, UserFailed
from ops.options import Config, Json, print_json
from ops.people_file import PeopleFile, find_people
from ops.people_table import people_table, rows_of

DEFAULT = "default"
"""What to say for a limit that shall be none of their own."""

Name: TypeAlias = Annotated[str, typer.Argument(help="Who; appears in logs, metrics and `exl3ctl top`.")]
StateDir: TypeAlias = Annotated[
    Path | None, typer.Option(help="State directory of the daemon; default: the running daemon's, else the configuration's.")
]
RoleOption: TypeAlias = Annotated[str | None, typer.Option("--role", help="user or admin.")]
Weight: TypeAlias = Annotated[str | None, typer.Option(help="Share of the engine while others want it too; usually 1.")]
Guaranteed: TypeAlias = Annotated[
    str | None, typer.Option("--guaranteed-context", help="Tokens of cache that are always theirs, or default.")
]
MaxContext: TypeAlias = Annotated[str | None, typer.Option(help="Longest context of one request in tokens, or default.")]
MaxConcurrent: TypeAlias = Annotated[str | None, typer.Option(help="Requests that may run at once, or default.")]
MaxQueued: TypeAlias = Annotated[str | None, typer.Option(help="Requests that may wait; the next gets 429. Or default.")]
TokensPerDay: TypeAlias = Annotated[str | None, typer.Option(help="Prompt and answer tokens a day (UTC), or default.")]


def group() -> typer.Typer:
    """The five commands."""
    made = typer.Typer(help="People: who may use exl3d, with what share and what limits.", no_args_is_help=True)
    made.command("add")(user_add)
    made.command("list")(user_list)
    made.command("limit")(user_limit)
    made.command("rotate")(user_rotate)
    made.command("remove")(user_remove)
    return made


def user_add(
    name: Name,
    *,
    role: RoleOption = None,
    weight: Weight = None,
    guaranteed_context: Guaranteed = None,
    max_context: MaxContext = None,
    max_concurrent: MaxConcurrent = None,
    max_queued: MaxQueued = None,
    tokens_per_day: TokensPerDay = None,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Add somebody and make a key for them. The key is printed once; the file keeps only its salted hash.

    A limit that is not named, or default, is that of `sharing` in config.yaml.
    """
    given = _given(role, weight, guaranteed_context, max_context, max_concurrent, max_queued, tokens_per_day)
    limits = _changed(_fresh(name), given)
    file = find_people(config, state_dir)
    made = _new_key()
    with file.changing() as people:
        if find(people, name) is not None:
            raise UserFailed(f"{name} is there already: `exl3ctl user limit` changes limits, `user rotate` makes a new key")
        before = tuple(people)
        people[:] = with_person(people, StoredPerson(limits, (made.hash,)))
    _tell_daemon(file, before)
    _warn_of_config(name, config_file.load(config).settings)
    _hand_over(name, made, limits, file, json=json)


def user_list(config: Config = None, state_dir: StateDir = None, json: Json = False) -> None:
    """Show everybody who has a key or limits, in config.yaml and in the state directory, and their tokens of today."""
    file = find_people(config, state_dir)
    report = config_file.load(config)
    rows = rows_of(report.settings, file.read(), file.state)
    if json:
        print_json(rows)
        return
    if not rows:
        print(f"nobody yet (neither in config.yaml nor in {file.path}): `exl3ctl user add NAME`", file=sys.stderr)
        return
    Console().print(people_table(rows))


def user_limit(
    name: Name,
    *,
    role: RoleOption = None,
    weight: Weight = None,
    guaranteed_context: Guaranteed = None,
    max_context: MaxContext = None,
    max_concurrent: MaxConcurrent = None,
    max_queued: MaxQueued = None,
    tokens_per_day: TokensPerDay = None,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Change somebody's share and limits; what is not named stays, and default means as in `sharing`.

    Somebody whose key is in config.yaml gets an entry here.
    """
    given = _given(role, weight, guaranteed_context, max_context, max_concurrent, max_queued, tokens_per_day)
    if not given:
        raise typer.BadParameter("say what to change, as in --weight 2 or --tokens-per-day default")
    file = find_people(config, state_dir)
    report = config_file.load(config)
    with file.changing() as people:
        others = tuple(people)
        known = find(people, name)
        if known is None and all(key.name != name for key in report.settings.keys):
            raise _unknown(name, people)
        before = known or StoredPerson(_fresh(name), ())
        after = StoredPerson(_changed(before.limits, given), before.hashes)
        people[:] = with_person(people, after)
    _tell_daemon(file, others)
    _warn_of_config(name, report.settings)
    if json:
        print_json(after.limits)
    else:
        _say(f"{name}: {_words(after.limits)}")


def user_rotate(
    name: Name,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="The old keys stay good, as for another device.")] = False,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Make a new key for somebody. The old ones are refused from this moment on."""
    file = find_people(config, state_dir)
    made = _new_key()
    with file.changing() as people:
        known = find(people, name)
        if known is None:
            raise _unknown(name, people)
        before = tuple(people)
        people[:] = with_person(people, StoredPerson(known.limits, (*(known.hashes if keep_old else ()), made.hash)))
    _tell_daemon(file, before)
    _hand_over(name, made, known.limits, file, json=json)


def user_remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = None,
    state_dir: StateDir = None,
) -> None:
    """Remove somebody. Their keys are refused from this moment on; answers that run are finished."""
    file = find_people(config, state_dir)
    if find(file.read(), name) is None:
        raise _unknown(name, file.read())
    if not yes:
        if not sys.stdin.isatty():
            raise UserFailed("nobody can be asked here; say --yes to go on")
        typer.confirm(f"Remove {name} and refuse their keys?", abort=True)
    with file.changing() as people:
        before = tuple(people)
        people[:] = without_person(people, name)
        left = any(person.hashes for person in people)
    _tell_daemon(file, before)
    settings = config_file.load(config).settings
    if any(key.name == name for key in settings.keys):
        _say(f"config.yaml still has a key of {name}")
    elif not left and not settings.keys:
        _say(
            "that was the last key: a running daemon refuses everybody now, and the next start lets in whoever is on this machine"
        )
    _say(f"{name} is removed")


@dataclass(frozen=True, slots=True)
class _Key:
    """A fresh key, and what is kept of it."""

    key: str
    hash: str


def _new_key() -> _Key:
    salt = secrets.token_bytes(SALT_BYTES)
    key = new_key(salt, secrets.token_bytes(SECRET_BYTES))
    return _Key(key, hash_key(key, salt))


def _fresh(name: str) -> PersonSettings:
    if not name.isprintable() or name != name.strip():
        raise typer.BadParameter("a name consists of printable characters, without spaces around it", param_hint="NAME")
    return _checked({"name": name})


def _given(
    role: str | None,
    weight: str | None,
    guaranteed_context: str | None,
    max_context: str | None,
    max_concurrent: str | None,
    max_queued: str | None,
    tokens_per_day: str | None,
) -> dict[str, object]:
    """The limits that were named, as the schema will check them."""
    named = {
        "role": role,
        "weight": weight,
        "guaranteed_context": guaranteed_context,
        "max_context": max_context,
        "max_concurrent": max_concurrent,
        "max_queued": max_queued,
        "tokens_per_day": tokens_per_day,
    }
    return {
        field: None if text.lower() == DEFAULT else text.replace("_", "") for field, text in named.items() if text is not None
    }


def _changed(limits: PersonSettings, given: dict[str, object]) -> PersonSettings:
    return _checked({**msgspec.to_builtins(limits), **given})


def _checked(fields: dict[str, object]) -> PersonSettings:
    """The limits as a value. Raises BadParameter in the option's own name."""
    try:
        return msgspec.convert(fields, PersonSettings, strict=False)
    except msgspec.ValidationError as problem:
        words, _, path = str(problem).partition(" - at `$.")
        field = path.rstrip("`")
        hint = "NAME" if field == "name" else f"--{field.replace('_', '-')}"
        raise typer.BadParameter(words[:1].lower() + words[1:], param_hint=hint) from problem


def _unknown(name: str, people: Sequence[StoredPerson]) -> UserFailed:
    known = ", ".join(person.limits.name for person in people) or "nobody"
    return UserFailed(f"there is no {name} in the state directory (there is: {known}); `exl3ctl user add` adds people")


def _tell_daemon(file: PeopleFile, before: Sequence[StoredPerson]) -> None:
    """Have a running daemon read the file now. What it refuses is put back, since its next start would refuse it too."""
    try:
        told = command_reload(socket_path(file.state))
    except NotRunning:
        return
    except OpsError as problem:
        _say(f"the daemon could not be told, and will see the change by itself: {problem}")
        return
    if told.problem.startswith(str(file.path)):
        file.restore(before)
        raise UserFailed(f"nothing was changed, since the running daemon does not take it over: {told.problem}")


def _warn_of_config(name: str, settings: Settings) -> None:
    if any(person.name == name for person in settings.people):
        _say(f"config.yaml has limits for {name}, and those count; keys from here are theirs too")


def _hand_over(name: str, made: _Key, limits: PersonSettings, file: PeopleFile, *, json: bool) -> None:
    if json:
        print_json({"name": name, "key": made.key, "limits": limits, "file": str(file.path)})
        return
    _say(f"{name}: {_words(limits)}; kept in {file.path}")
    _say(f"Give this key to {name}; it cannot be shown again:")
    print(made.key)


def _words(limits: PersonSettings) -> str:
    """What somebody has, but for what everybody has who was given nothing."""
    usual = PersonSettings(name=limits.name)
    fields = [field for field in limits.__struct_fields__ if getattr(limits, field) != getattr(usual, field)]
    built = msgspec.to_builtins(limits)
    return ", ".join(f"{field.replace('_', ' ')} {built[field]}" for field in fields) or "weight 1, limits as in `sharing`"


def _say(words: str) -> None:
    print(words, file=sys.stderr)
