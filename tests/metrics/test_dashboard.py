"""The dashboard for Grafana: its queries name metrics and labels that exist, and Prometheus gives a result for each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases import each_case
from tests.metrics.queries import evaluate, exposition, needs_promtool, unknown_names

PATH = Path(__file__).parents[2] / "deploy" / "grafana" / "later.json"
TEXT = PATH.read_text()
DASHBOARD = json.loads(TEXT)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {
    "$instance": "a:8080|b:8081",
    "$topic": "order|mail",
    "$__rate_interval": "5m",
}
"""The variables in queries, those that Grafana sets itself included, with values of the form that it puts there."""
UNITS = {"s", "percentunit", "cps", "ops", "reqps", "bytes", "short"}
"""The units of Grafana that the dashboard uses: one with another name is shown as a suffix, and no error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """A query of a panel, with its variables substituted, and the labels that its legend shows."""

    panel: str
    text: str
    legend: frozenset[str]

    def __str__(self) -> str:
        return f"{self.panel}: {self.text}"


def substitute(text: str) -> str:
    for variable, value in VARIABLES.items():
        text = text.replace(variable, value)
    return text


QUERIES = [
    Query(
        panel=panel["title"],
        text=substitute(target["expr"]),
        legend=frozenset(re.findall(r"{{(\w+)}}", target["legendFormat"])),
    )
    for panel in PANELS
    for target in panel["targets"]
]


def test_the_rows_and_variables_are_those_of_its_readers() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["What users feel", "Backlog", "Workers", "Store and API"]
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "instance", "topic"}


@each_case("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_every_panel_has_a_unit_a_description_and_a_legend(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["description"].endswith(".")
    assert panel["targets"]
    assert all(target["legendFormat"] for target in panel["targets"])


def test_no_panel_covers_another() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_no_id_of_a_private_grafana_is_in_it() -> None:
    assert "id" not in DASHBOARD
    assert set(re.findall(r'"uid": "([^"]*)"', TEXT)) == {"later", "${datasource}"}
    assert not {"__inputs", "__requires", "gnetId", "iteration"} & DASHBOARD.keys()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert ids == [*range(1, len(ids) + 1)]


@each_case("query", QUERIES, ids=map(str, QUERIES))
def test_every_query_names_metrics_and_labels_of_a_daemon(query: Query) -> None:
    assert "$" not in query.text
    assert unknown_names(query.text, query.legend) == set()


@each_case(
    ("text", "legend", "unknown"),
    [
        ("rate(later_nothing_total[5m])", set(), {"later_nothing_total"}),
        ('later_tasks{bucket="dead"}', set(), {"bucket"}),
        ("sum by (held) (later_tasks)", set(), {"held"}),
        ("later_tasks", {"code"}, {"code"}),
        ('later_tasks{state!="dead", topic=~"a|b"}', {"instance"}, set()),
    ],
)
def test_a_name_that_no_daemon_has_is_found(text: str, legend: set[str], unknown: set[str]) -> None:
    assert unknown_names(text, frozenset(legend)) == unknown


@each_case("variable", [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"])
def test_every_variable_lists_the_values_of_a_label_that_exists(variable: dict[str, Any]) -> None:
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", substitute(variable["query"]["query"]))
    assert found is not None
    assert variable["definition"] == variable["query"]["query"]
    assert unknown_names(found[1], frozenset({found[2]})) == set()
    assert variable["name"] == found[2]


@needs_promtool
def test_prometheus_gives_a_number_for_every_query(tmp_path: Path) -> None:
    assert evaluate(exposition(), [query.text for query in QUERIES], tmp_path) == ""


@needs_promtool
@each_case("text", ["later_tasks{state='none'}", "0 * later_tasks / 0", "sum(later_tasks"])
def test_a_query_without_a_number_is_found(text: str, tmp_path: Path) -> None:
    assert evaluate(exposition(), [text], tmp_path) != ""
