"""Every case from public reports, in every way of feeding it; and that the runner notices what is wrong."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from tests.chat.run_cases import cases_of, decoded, judge, main

FILE = Path(__file__).parent.parent / "cases" / "parser_cases.jsonl"
CASES = cases_of(FILE)


@pytest.mark.parametrize("case", CASES, ids=[str(case["id"]) for case in CASES])
def test_a_reported_answer_is_taken_apart_as_expected(case: Mapping[str, object]) -> None:
    assert judge(case) == ""


def test_the_case_file_is_whole() -> None:
    assert len(CASES) == 157
    assert len({case["id"] for case in CASES}) == 157


def _spoilt(**changes: object) -> dict[str, object]:
    case = next(dict(case) for case in CASES if case["id"] == "qx-048")
    case["expect"] = {**_mapping(case["expect"]), **changes}
    return case


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, dict)
    return cast("Mapping[str, object]", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("content", "something"),
        ("reasoning", "something"),
        ("finish_reason", "stop"),
        ("tool_calls", ()),
        ("tool_calls", [{"name": "read_file", "arguments": {"path": "x"}}, {"name": "read_file", "arguments": {"path": "x"}}]),
        (
            "tool_calls",
            [{"name": "read_file", "arguments": {"path": "x"}}, {"name": "read_file", "arguments": {"path": "x", "limit": 5.0}}],
        ),
        ("tool_calls", [{"name": "read_file", "arguments": {"path": "x"}}, {"name": "write_file", "arguments": {"path": "x"}}]),
    ],
)
def test_a_wrong_expectation_fails_the_case(name: str, value: object) -> None:
    assert judge(_spoilt(**{name: value})).startswith("whole: ")


def test_a_file_with_a_failing_case_is_reported_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join([lines[0], lines[0].replace("return 2", "return 3", 1), '{"id": "odd"}']), encoding="utf-8")
    assert main([str(file)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in shown[:-1]] == [["FAILED", "qx-003"], ["FAILED", "odd"]]
    assert shown[-1] == "1 passed, 2 failed"


def test_the_runner_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chat.run_cases", str(FILE)],
        cwd=FILE.parent.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "157 passed, 0 failed")


def test_bytes_that_are_half_a_character_are_waited_for() -> None:
    assert decoded([bytes([byte]) for byte in "é😀".encode()]) == ["", "é", "", "", "", "😀"]
