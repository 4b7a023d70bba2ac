"""docs/DEPENDENCIES.md gives a reason for each dependency, and for nothing else; the installer asks for the same versions."""

import re
import tomllib
from pathlib import Path
from typing import cast

from ops.machine_plan import OLDEST_PYTHON, TORCH
from ops.release_wheels import EXLLAMAV3

REPOSITORY = Path(__file__).parents[2]


def _project() -> dict[str, object]:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        return cast("dict[str, object]", tomllib.load(file)["project"])


def _requirements(extra: str | None = None) -> list[str]:
    project = _project()
    if extra is None:
        return cast("list[str]", project["dependencies"])
    return cast("dict[str, list[str]]", project["optional-dependencies"])[extra]


def _names(requirements: list[str]) -> list[str]:
    return [re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0] for requirement in requirements]


def _explained(heading: str) -> list[str]:
    """Package names in the table under a heading, in order; each row must give a reason."""
    page = (REPOSITORY / "docs" / "DEPENDENCIES.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", section, flags=re.MULTILINE)
    assert all(len(reason.split()) > 1 for _, reason in rows)
    return [name for name, _ in rows]


def test_every_run_time_dependency_has_its_reason() -> None:
    assert _explained("To run") == _names(_requirements())


def test_every_development_dependency_has_its_reason() -> None:
    assert _explained("To develop and test (`dev`)") == _names(_requirements("dev"))


def test_installer_asks_for_the_versions_of_the_project() -> None:
    """The plan runs before anything is installed and cannot read pyproject.toml, so it repeats three of its facts."""
    assert TORCH in _requirements()
    assert f"exllamav3=={EXLLAMAV3}" in _requirements()
    assert _project()["requires-python"] == f">={OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]}"
