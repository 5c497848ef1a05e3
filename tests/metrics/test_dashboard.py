"""The dashboard for Grafana: its queries name metrics and labels that exist, and Prometheus gives a result for each."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from later.core.held import Held
from later.metrics import Metrics
from later.store.keys import Bucket
from tests.cases import each_case

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
SCRAPED = {"instance", "job"}
"""The labels that Prometheus adds."""
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


def exposition() -> str:
    """Return the metrics of a daemon that has done a little of everything."""
    metrics = Metrics()
    metrics.topics.refresh(["order", "mail"])
    for topic in ("order", "mail"):
        metrics.count_deliveries(topic, "done", 9)
        metrics.count_delivery_failure(topic, "status", 503)
        metrics.count_death(topic, "exhausted", "a")
        for bucket in Bucket:
            metrics.store.tasks.labels(bucket.value, topic).set(3)
        metrics.store.tasks_due.labels(topic, Held.RATE.value).set(2)
        metrics.store.oldest_due_age.labels(topic, Held.RATE.value).set(70)
    for observe in metrics.observe_lateness.values():
        observe(0.004)
    metrics.delivery_duration.observe(0.02)
    metrics.event_loop_lag.observe(0.002)
    metrics.delivery_slots.set(256)
    metrics.add_ticker("delay", lambda: 60.0)
    metrics.round_trip_observer("claim")(0.001)
    for route in metrics.requests.add_routes(["/create", "/topics/{topic}"]).values():
        route.observe(200, 0.01)
    return metrics.exposition().text


def series(text: str) -> Iterator[tuple[str, str, float]]:
    """Yield the series of a daemon as Prometheus has scraped them: name with labels, type, value."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {**sample.labels, "instance": "a:8080", "job": "later"}
            matchers = ", ".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
            yield f"{sample.name}{{{matchers}}}", family.type, sample.value


def labels_by_metric(text: str) -> dict[str, set[str]]:
    labels = defaultdict[str, set[str]](set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels[sample.name] |= {*sample.labels} | SCRAPED
    return labels


def unknown_names(query: Query) -> set[str]:
    """Return the metrics and labels in a query that no daemon has."""
    known = labels_by_metric(exposition())
    selectors = re.findall(r"\b((?:later|process)_\w+)(?:{([^}]*)})?", query.text)
    named = {metric: set(re.findall(r"(\w+)=?[=!~]~?\"", matchers)) for metric, matchers in selectors}
    unknown = {metric for metric in named if metric not in known}
    for metric, labels in named.items():
        unknown |= labels - known[metric] if metric in known else set()
    of_all = set[str]().union(*(known[metric] for metric in named if metric in known))
    grouped = {label for group in re.findall(r"by \(([^)]*)\)", query.text) for label in group.split(", ")}
    return unknown | (grouped - of_all) | (query.legend - of_all)


def evaluate(text: str, queries: list[Query], folder: Path) -> str:
    """Return why not each query has a number as its result over half an hour of these metrics; empty if it has."""
    rows = [
        {"series": name, "values": f"0+{value}x30" if type in ("counter", "histogram") else f"{value}x30"}
        for name, type, value in series(text)
    ]
    results = [
        {
            "expr": f"clamp_max(count(({query.text}) > -Inf), 1)",
            "eval_time": "20m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for query in queries
    ]
    test = {"interval": "1m", "input_series": rows, "promql_expr_test": results}
    path = folder / "dashboard_test.yml"
    path.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", path.name], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)"
)


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
    assert unknown_names(query) == set()


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
    assert unknown_names(Query(panel="", text=text, legend=frozenset(legend))) == unknown


@each_case("variable", [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"])
def test_every_variable_lists_the_values_of_a_label_that_exists(variable: dict[str, Any]) -> None:
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", substitute(variable["query"]["query"]))
    assert found is not None
    assert variable["definition"] == variable["query"]["query"]
    assert unknown_names(Query(panel="", text=found[1], legend=frozenset({found[2]}))) == set()
    assert variable["name"] == found[2]


@needs_promtool
def test_prometheus_gives_a_number_for_every_query(tmp_path: Path) -> None:
    assert evaluate(exposition(), QUERIES, tmp_path) == ""


@needs_promtool
@each_case("text", ["later_tasks{state='none'}", "0 * later_tasks / 0", "sum(later_tasks"])
def test_a_query_without_a_number_is_found(text: str, tmp_path: Path) -> None:
    assert evaluate(exposition(), [Query(panel="", text=text, legend=frozenset())], tmp_path) != ""
