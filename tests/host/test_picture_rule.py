"""How a model directory says what its tower does with pictures, and in which words it is refused."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from daemon.core.errors import ConfigError
from daemon.core.pictures import PictureRule
from daemon.host.picture_rule import read_picture_rule

QWEN3_5: dict[str, object] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "vision_config": {"spatial_merge_size": 2, "depth": 27},
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
}
BOUNDS: dict[str, object] = {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}}


def directory(path: Path, config: Mapping[str, object], bounds: Mapping[str, object] | str | None = None) -> Path:
    """A model directory with these files."""
    (path / "config.json").write_text(json.dumps(config))
    if bounds is not None:
        (path / "preprocessor_config.json").write_text(bounds if isinstance(bounds, str) else json.dumps(bounds))
    return path


def test_qwen_3_5_counts_in_squares_of_32_pixels(tmp_path: Path) -> None:
    assert read_picture_rule(directory(tmp_path, QWEN3_5, BOUNDS)) == PictureRule(32, 65536, 16777216, (248053,), (248054,))


def test_ids_that_are_not_named_are_the_familys(tmp_path: Path) -> None:
    """And the bounds may stand under their older names."""
    config = {"architectures": ["Glm4vForConditionalGeneration"], "vision_config": {"spatial_merge_size": 2}}
    older = {"patch_size": 14, "min_pixels": 3136, "max_pixels": 12845056}
    assert read_picture_rule(directory(tmp_path, config, older)) == PictureRule(28, 3136, 12845056, (151339,), (151340,))


@pytest.mark.parametrize(
    ("config", "bounds", "words"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, None, "names no vision tower (vision_config): set engine.vision to false"),
        (QWEN3_5 | {"architectures": ["Gemma3ForConditionalGeneration"]}, None, "whose pictures exl3d cannot count"),
        (QWEN3_5 | {"vision_config": {"depth": 2}}, None, "spatial_merge_size"),
        (QWEN3_5, None, "preprocessor_config.json: cannot be read"),
        (QWEN3_5, "{", "preprocessor_config.json: is not as exl3d expects it for pictures"),
        (QWEN3_5, {"patch_size": 16}, "says neither `size` nor `min_pixels` and `max_pixels`"),
    ],
)
def test_directory_that_does_not_say_is_refused_in_words(
    tmp_path: Path, config: Mapping[str, object], bounds: Mapping[str, object] | str | None, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_picture_rule(directory(tmp_path, config, bounds))
    assert words in str(refused.value)
