"""docs/grafana-dashboard.json and docs/METRICS.md name what the daemon exposes, all of it, and nothing else."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, cast

from prometheus_client.parser import text_string_to_metric_families

from daemon.api.metric_names import Name
from daemon.api.metric_reference import BEGIN, reference
from tests.api.conftest import Connect
from tests.api.fakes import application

DOCS = Path(__file__).parents[2] / "docs"
Json: TypeAlias = Mapping[str, "Json"] | list["Json"] | str | int | float | bool | None
DASHBOARD = cast("Mapping[str, Json]", json.loads((DOCS / "grafana-dashboard.json").read_text()))
_METRIC = re.compile(r"\bexl3d_[a-z0-9_]+")
_SELECTOR = re.compile(r"\b(exl3d_[a-z0-9_]+)\{([^}]*)\}")
_GIVEN_BY_PROMETHEUS = {"instance", "job", "le"}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_GRAFANAS_OWN = {"type": "grafana", "uid": "-- Grafana --"}


def _objects(value: Json) -> Iterator[Mapping[str, Json]]:
    """Every object of the document."""
    if isinstance(value, Mapping):
        yield value
        for inner in value.values():
            yield from _objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner)


def _queries() -> list[str]:
    """Everything that is asked of Prometheus: panels, variables, annotations."""
    keys = ("expr", "definition")
    return [found for each in _objects(DASHBOARD) for key in keys if isinstance(found := each.get(key), str)]


def _panels() -> list[Mapping[str, Json]]:
    panels = DASHBOARD["panels"]
    assert isinstance(panels, list)
    return [panel for panel in panels if isinstance(panel, Mapping)]


async def _exposed(connect: Connect) -> set[str]:
    """Names that `/metrics` has: those of samples, and of families that have none yet."""
    client = await connect(application())
    text = await (await client.get("/metrics")).text()
    found = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    listed = {family.name for family in text_string_to_metric_families(text)}
    return found | {sample for name in Name if name.full in listed for sample in name.samples}


async def test_every_metric_of_the_dashboard_is_exposed(connect: Connect) -> None:
    exposed = await _exposed(connect)
    queries = _queries()
    assert len(queries) > 50
    for query in queries:
        used = cast("list[str]", _METRIC.findall(query))
        assert used, query
        assert set(used) <= exposed, query


async def test_every_metric_of_the_list_is_somewhere_on_the_dashboard() -> None:
    used = {metric for query in _queries() for metric in cast("list[str]", _METRIC.findall(query))}
    assert not [name.shown for name in Name if not used & set(name.samples)]


def test_queries_select_and_group_by_labels_that_the_metric_has() -> None:
    labels = {sample: set(name.value.labels) for name in Name for sample in name.samples}
    for query in _queries():
        for metric, selector in cast("list[tuple[str, str]]", _SELECTOR.findall(query)):
            asked = {part.partition("=")[0].strip() for part in selector.split(",") if part.strip()}
            assert asked <= labels.get(metric, set()) | _GIVEN_BY_PROMETHEUS, query
        known = {label for metric in cast("list[str]", _METRIC.findall(query)) for label in labels.get(metric, set())}
        for group in cast("list[str]", re.findall(r"by \(([^)]*)\)", query)):
            assert {part.strip() for part in group.split(",")} <= known | _GIVEN_BY_PROMETHEUS, query


def test_legends_show_labels_that_the_result_has() -> None:
    labels = {sample: set(name.value.labels) for name in Name for sample in name.samples}
    for target in _objects(DASHBOARD):
        legend, query = target.get("legendFormat"), target.get("expr")
        if not isinstance(legend, str) or not isinstance(query, str):
            continue
        groups = cast("list[str]", re.findall(r"by \(([^)]*)\)", query))
        known = (
            {part.strip() for group in groups for part in group.split(",")}
            if groups
            else set[str]().union(*(labels.get(metric, set()) for metric in cast("list[str]", _METRIC.findall(query))))
        )
        assert set(cast("list[str]", re.findall(r"\{\{(\w+)\}\}", legend))) <= known, query


def test_dashboard_asks_only_the_chosen_data_source() -> None:
    sources = [each["datasource"] for each in _objects(DASHBOARD) if "datasource" in each]
    assert len(sources) > 50
    assert all(source in (_SOURCE, _GRAFANAS_OWN) for source in sources)
    variables = {each.get("name"): each for each in _objects(DASHBOARD["templating"])}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    used = {name for query in _queries() for name in cast("list[str]", re.findall(r"\$(\w+)", query))}
    assert used <= set(variables) | {"__rate_interval"}


def test_dashboard_is_of_grafana_10_or_later_and_its_panels_do_not_overlap() -> None:
    version = DASHBOARD["schemaVersion"]
    assert isinstance(version, int)
    assert version >= 38
    assert "__inputs" not in DASHBOARD, "it loads as it is, also where it is provisioned from a file"
    taken: set[tuple[int, int]] = set()
    numbers: list[Json] = []
    for panel in _panels():
        place = panel["gridPos"]
        assert isinstance(place, Mapping)
        x, y, w, h = (value for key in "xywh" if isinstance(value := place[key], int))
        assert x + w <= 24
        cells = {(x + right, y + down) for right in range(w) for down in range(h)}
        assert not cells & taken, panel["title"]
        taken |= cells
        numbers.append(panel["id"])
    assert len(numbers) == len(set(map(str, numbers)))


def test_table_of_the_page_is_that_of_the_code() -> None:
    """`python -m daemon.api.metric_reference` prints the part below the mark."""
    page = (DOCS / "METRICS.md").read_text()
    assert page[page.index(BEGIN) :] == reference()


async def test_page_names_nothing_that_is_not_exposed(connect: Connect) -> None:
    exposed = await _exposed(connect)
    page = (DOCS / "METRICS.md").read_text()
    families = {name.shown for name in Name}
    assert set(cast("list[str]", _METRIC.findall(page))) <= exposed | families
    assert {name for name in exposed if name.startswith("exl3d_process_")} <= set(cast("list[str]", _METRIC.findall(page)))
