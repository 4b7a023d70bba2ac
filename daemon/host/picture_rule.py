"""Reads from a model directory how its vision tower counts pictures: config.json names the tower, preprocessor_config.json its
bounds. Only asked where engine.vision is on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from daemon.core.errors import ConfigError
from daemon.core.pictures import PictureRule

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Marks:
    """The keys of config.json that name the ids around a picture, and what they are where it does not say."""

    start: str
    end: str
    ids: tuple[int, int]


_QWEN = _Marks("vision_start_token_id", "vision_end_token_id", (151652, 151653))
_GLM = _Marks("image_start_token_id", "image_end_token_id", (151339, 151340))

SERVED: Mapping[str, _Marks] = {
    "Qwen2_5_VLForConditionalGeneration": _QWEN,
    "Qwen3VLForConditionalGeneration": _QWEN,
    "Qwen3VLMoeForConditionalGeneration": _QWEN,
    "Qwen3_5ForConditionalGeneration": _QWEN,
    "Qwen3_5MoeForConditionalGeneration": _QWEN,
    "Glm4vForConditionalGeneration": _GLM,
    "Glm4vMoeForConditionalGeneration": _GLM,
}
"""Architectures whose pictures are counted by `core.pictures`, and the defaults that exllamav3 has for them."""


class _Tower(msgspec.Struct):
    spatial_merge_size: int


class _Config(msgspec.Struct):
    architectures: list[str] = []
    vision_config: _Tower | None = None
    vision_start_token_id: int | None = None
    vision_end_token_id: int | None = None
    image_start_token_id: int | None = None
    image_end_token_id: int | None = None


class _Size(msgspec.Struct):
    """Pixels, whatever the names say."""

    shortest_edge: int
    longest_edge: int


class _Preprocessor(msgspec.Struct):
    patch_size: int
    size: _Size | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None


def read_picture_rule(directory: Path) -> PictureRule:
    """The rule of the model in `directory`. Raises ConfigError, in words for whoever set engine.vision."""
    where = directory / "config.json"
    config = _read(where, _Config)
    name = config.architectures[0] if config.architectures else "none"
    if config.vision_config is None:
        raise ConfigError("names no vision tower (vision_config): set engine.vision to false", str(where))
    marks = SERVED.get(name)
    if marks is None:
        raise ConfigError(
            f"names the architecture {name}, whose pictures exl3d cannot count; it takes pictures with {', '.join(SERVED)}."
            " Set engine.vision to false to serve its text",
            str(where),
        )
    bounds_at = directory / "preprocessor_config.json"
    bounds = _read(bounds_at, _Preprocessor)
    least, most = bounds.min_pixels, bounds.max_pixels
    if least is None or most is None:
        if bounds.size is None:
            raise ConfigError("says neither `size` nor `min_pixels` and `max_pixels`: download the file again", str(bounds_at))
        least, most = bounds.size.shortest_edge, bounds.size.longest_edge
    start, end = _around(config, marks)
    return PictureRule(bounds.patch_size * config.vision_config.spatial_merge_size, least, most, (start,), (end,))


def _around(config: _Config, marks: _Marks) -> tuple[int, int]:
    named: tuple[int | None, int | None] = getattr(config, marks.start), getattr(config, marks.end)
    start, end = marks.ids
    return start if named[0] is None else named[0], end if named[1] is None else named[1]


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as problem:
        raise ConfigError(f"cannot be read: {problem.strerror or problem}; engine.vision needs it", str(path)) from problem
    except msgspec.DecodeError as problem:
        raise ConfigError(f"is not as exl3d expects it for pictures: {problem}", str(path)) from problem
