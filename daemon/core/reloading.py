"""What a new configuration changes while the daemon runs, and what of it must wait for a restart. Pure.

Every setting is in one of two lists, or in a section that is as a whole, and a test walks the schema to see that none is
forgotten. What is in neither would wait for a restart: that is always safe.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

import msgspec

from daemon.core.settings import Settings

T = TypeVar("T", bound=msgspec.Struct)

LIVE = frozenset(
    {
        "keys",
        "people",
        "sharing.order",
        "sharing.prefill_price",
        "sharing.cached_price",
        "sharing.decode_price",
        "sharing.max_concurrent",
        "sharing.max_queued",
        "sharing.tokens_per_day",
        "sharing.guaranteed_context",
        "sharing.default_timeout_seconds",
        "sharing.background",
        "server.max_queued",
        "server.max_tokens_overflow",
        "server.drain_seconds",
        "server.keepalive_seconds",
        "server.resume_timeout",
        "server.stall_buffer",
        "server.cors_origins",
        "answers.on_empty_answer",
        "answers.reasoning_budget",
        "answers.detect_repetition",
        "answers.repetition_tokens",
        "answers.repetition_count",
        "log.level",
        "log.format",
    }
)
"""Taken over by a reload. Streams that run go on; what was decided about them at their start stays."""

RESTART = frozenset(
    {
        "model",
        "host",
        "port",
        "model_name",
        "aliases",
        "context",
        "state_dir",
        "sharing.itl_target_ms",
        "server.max_body_mib",
        "answers.call_format",
        "answers.closing_sentence",
    }
)
"""Taken over by `exl3ctl restart` only."""

RESTART_SECTIONS = frozenset({"engine", "supervisor", "watchdog"})
"""Sections of which nothing is taken over: what they say goes into processes and parts that are made once."""


class Reloadable(Protocol):
    """A part that has settings of its own which may change."""

    def reload(self, settings: Settings) -> None:
        """Take over what may change. Raises ConfigError where it cannot, and has changed nothing then."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """What comes of new settings."""

    settings: Settings
    """What holds from now on: the new values of what may change, the old values of everything else."""
    applied: tuple[str, ...]
    """Settings that change at once, by their path as in `sharing.max_queued`."""
    waiting: tuple[str, ...]
    """Settings that differ but need a restart."""


def setting_paths(kind: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterator[str]:
    """Every setting of the schema. A list, such as `keys`, is one setting."""
    for field in msgspec.structs.fields(kind):
        path = f"{prefix}{field.name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from setting_paths(field.type, f"{path}.")
        else:
            yield path


def compare(running: Settings, wanted: Settings) -> Change:
    """What may be taken over of `wanted` while `running` holds."""
    different = tuple(path for path in setting_paths() if _value(running, path) != _value(wanted, path))
    return Change(
        settings=_mixed(running, wanted, ""),
        applied=tuple(path for path in different if path in LIVE),
        waiting=tuple(path for path in different if path not in LIVE),
    )


def _value(settings: msgspec.Struct, path: str) -> object:
    value: object = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _mixed(running: T, wanted: T, prefix: str) -> T:
    changes: dict[str, object] = {}
    for field in msgspec.structs.fields(running):
        path = f"{prefix}{field.name}"
        new = cast("object", getattr(wanted, field.name))
        if isinstance(new, msgspec.Struct):
            changes[field.name] = _mixed(cast("msgspec.Struct", getattr(running, field.name)), new, f"{path}.")
        elif path in LIVE:
            changes[field.name] = new
    return msgspec.structs.replace(running, **changes)
