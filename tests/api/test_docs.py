"""docs/API.md says what the code does."""

import re
from pathlib import Path

from daemon.api.errors import RULES
from daemon.api.observing import OPEN_PATHS
from daemon.api.reference import BEGIN, reference
from tests.api.fakes import application

PAGE = (Path(__file__).parents[2] / "docs" / "API.md").read_text()
_ROW = re.compile(r"^\| (?P<method>GET|POST) `(?P<path>/[^`]*)` \| (?P<key>yes|no) \|", re.MULTILINE)


def test_parameters_are_those_of_the_code() -> None:
    """`python -m daemon.api.reference` prints the part below the mark."""
    assert PAGE[PAGE.index(BEGIN) :] == reference()


def test_endpoints_are_those_of_the_application() -> None:
    routes = {
        (route.method, route.resource.canonical)
        for route in application().router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    rows = {(row["method"], row["path"]): row["key"] for row in _ROW.finditer(PAGE)}
    assert set(rows) == routes
    assert {path for (_, path), key in rows.items() if key == "no"} == OPEN_PATHS


def test_every_code_of_an_error_is_named() -> None:
    codes = {rule.code for rule in RULES.values() if rule.code is not None}
    assert not [code for code in codes if f"`{code}`" not in PAGE]
