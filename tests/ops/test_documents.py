"""What README.md, the pages of docs/ and wsl/README.md name exists: files, tests, settings, commands with their options, targets
of make. Pages go out of date silently; decisions in docs/adr/ may speak of what is gone.
"""

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from daemon.core.reloading import setting_paths
from ops.__main__ import application

ROOT = Path(__file__).parents[2]
_FILES = (ROOT / "README.md", ROOT / "wsl" / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PAGES = [str(page.relative_to(ROOT)) for page in _FILES]
_BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")
_PATH = re.compile(r"([\w.*-]+(?:/[\w.*-]+)*\.(?:py|service|yaml)|[\w.-]+(?:/[\w.-]+)*/)(?:::(\w+))?")
_TREES = ("", "daemon", "daemon/engine", "tests", "tests/engine", "tests/process")
"""Where a path in a page may begin."""
_SETTING = re.compile(r"([a-z]+\.[a-z0-9_]+)(?::? .*)?")
_COMMAND = re.compile(r"\bexl3ctl ((?:(?!exl3ctl)[^|#;>\n])*)")
_TARGET = re.compile(r"\bmake ([a-z][a-z-]*)\b(?=$|[ `'\"])")
_MODULE = re.compile(r"python -m ((?:daemon|ops|tests)[\w.]*)")


@cache
def _written(page: str) -> str:
    """The part of a page that people write."""
    return (ROOT / page).read_text(encoding="utf-8").partition("<!-- made by")[0]


def _spans(page: str) -> Iterator[str]:
    return iter(_SPAN.findall(_BLOCK.sub("", _written(page))))


def _typed(page: str) -> Iterator[str]:
    """What somebody may type: code in lines, and the lines of blocks."""
    yield from _spans(page)
    for block in _BLOCK.findall(_written(page)):
        yield from block.replace("\\\n", " ").splitlines()


def _places(path: str) -> list[Path]:
    return [place for tree in _TREES for place in (ROOT / tree).glob(path.rstrip("/"))]


@pytest.mark.parametrize("page", PAGES)
def test_files_and_tests_that_are_named_exist(page: str) -> None:
    named = [found.groups() for span in _spans(page) if (found := _PATH.fullmatch(span)) is not None]
    lost = [path for path, _ in named if not _places(path)]
    unknown = [test for path, test in named if test and not any(f"def {test}(" in place.read_text() for place in _places(path))]
    assert (lost, unknown) == ([], [])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links: list[str] = _LINK.findall(_BLOCK.sub("", _written(page)))
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_settings_that_are_named_exist(page: str) -> None:
    known = set(setting_paths())
    sections = {path.partition(".")[0] for path in known if "." in path}
    named = [found[1] for span in _spans(page) if (found := _SETTING.fullmatch(span)) is not None]
    assert [path for path in named if path.partition(".")[0] in sections and path not in known] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_that_are_named_exist(page: str) -> None:
    wrong = [problem for line in _typed(page) for typed in _COMMAND.findall(line) if (problem := _misfit(typed))]
    assert wrong == []


def _misfit(typed: str) -> str:
    """What of the words behind `exl3ctl` does not exist; empty where all does."""
    words = typed.split()
    command = typer.main.get_command(application())
    while isinstance(command, TyperGroup) and words and re.fullmatch("[a-z]+", words[0]):
        if words[0] not in command.commands:
            return typed
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(words))
    return "" if set(options) <= {*known, "--help"} else typed


@pytest.mark.parametrize("page", PAGES)
def test_targets_of_make_that_are_named_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert [target for line in _typed(page) for target in _TARGET.findall(line) if target not in targets] == []


@pytest.mark.parametrize("page", PAGES)
def test_modules_to_run_exist(page: str) -> None:
    named = [module for line in _typed(page) for module in _MODULE.findall(line)]
    assert [module for module in named if importlib.util.find_spec(module) is None] == []
