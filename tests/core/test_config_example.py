"""config.yaml is generated, loads, and says the truth about every default."""

import re
from pathlib import Path

import msgspec
import yaml

from daemon.core.settings import Settings
from ops.config_example import example

REPOSITORY = Path(__file__).parents[2]


def _uncommented(text: str) -> str:
    """The file as it is after somebody has removed the `#` in front of every setting."""
    return re.sub(r"^#(?=[a-z]|  )", "", text, flags=re.MULTILINE)


def test_repository_config_is_what_the_schema_generates() -> None:
    """`make format` writes it; a change of the schema must come with the file."""
    assert (REPOSITORY / "config.yaml").read_text(encoding="utf-8") == example()


def test_example_as_it_stands_means_the_defaults() -> None:
    assert msgspec.convert(yaml.safe_load(example()), Settings) == Settings()


def test_example_with_every_line_live_means_the_defaults() -> None:
    """Each commented default is the true one, at the right place, in valid YAML."""
    tree = yaml.safe_load(_uncommented(example()))
    assert msgspec.convert(tree, Settings) == Settings()
    assert set(tree) == set(msgspec.to_builtins(Settings()))
    assert set(tree["engine"]) == set(msgspec.to_builtins(Settings().engine))


def test_example_explains_every_key() -> None:
    """No key stands without a comment above it."""
    lines = example().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"#?\s*[a-z_]+:", line) and not line.startswith("# "):
            assert lines[number - 1].lstrip("#").lstrip().startswith(("#",)) or lines[number - 1].startswith("# "), line


def test_minimum_is_three_lines() -> None:
    live = [line for line in example().splitlines() if line and not line.startswith("#")]
    assert [line.partition(":")[0] for line in live] == ["model", "host", "port"]
