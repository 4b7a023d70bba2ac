"""Values out of other people's JSON, which may be of any shape."""

from typing import cast


def as_object(value: object) -> dict[str, object]:
    """A JSON object; empty where the value is something else."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """A JSON array; empty where the value is something else."""
    return cast("list[object]", value) if isinstance(value, list) else []
