"""Queries of Prometheus: whether they name metrics and labels that a daemon has, and give numbers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from later.core.held import Held
from later.metrics import Metrics
from later.store.keys import Bucket

SCRAPED = {"instance", "job"}
"""The labels that Prometheus adds."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)"
)


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


def unknown_names(query: str, legend: frozenset[str] = frozenset()) -> set[str]:
    """Return the metrics and labels in a query, and in the legend of its result, that no daemon has."""
    known = labels_by_metric(exposition())
    selectors = re.findall(r"\b((?:later|process)_\w+)(?:{([^}]*)})?", query)
    named = {metric: set(re.findall(r"(\w+)=?[=!~]~?\"", matchers)) for metric, matchers in selectors}
    unknown = {metric for metric in named if metric not in known}
    for metric, labels in named.items():
        unknown |= labels - known[metric] if metric in known else set()
    of_all = set[str]().union(*(known[metric] for metric in named if metric in known))
    grouped = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
    return unknown | (grouped - of_all) | (legend - of_all)


def evaluate(text: str, queries: Sequence[str], folder: Path) -> str:
    """Return why not each query has a number as its result over half an hour of these metrics; empty if it has."""
    rows = [
        {"series": name, "values": f"0+{value}x30" if type in ("counter", "histogram") else f"{value}x30"}
        for name, type, value in series(text)
    ]
    results = [
        {
            "expr": f"clamp_max(count(({query}) > -Inf), 1)",
            "eval_time": "20m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for query in queries
    ]
    test = {"interval": "1m", "input_series": rows, "promql_expr_test": results}
    path = folder / "queries_test.yml"
    path.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", path.name], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
