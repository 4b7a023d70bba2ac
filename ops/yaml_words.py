"""Values as YAML. JSON is YAML; only plain words lose their quotes, as people write them."""

import json
from enum import Enum

import msgspec

_NOT_TEXT = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""Plain words that YAML reads as something other than text."""


def scalar(value: object) -> str:
    """`value` on one line of YAML."""
    plain = value.value if isinstance(value, Enum) else value
    if isinstance(plain, str) and plain.isascii() and plain.isidentifier() and plain.lower() not in _NOT_TEXT:
        return plain
    return json.dumps(msgspec.to_builtins(plain))
