"""The table of metrics: series exist at 0 from the start, their number is bounded, and Prometheus likes them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from later.api.routes import ROUTES, Route
from later.core import address_guard
from later.core.held import Held
from later.core.retry import OutcomeKind
from later.delivery import sender
from later.metrics import MAX_TOPICS, OTHER, TOPIC_COUNTERS, Metrics, MetricSamples
from later.metrics.labels import (
    DEATH_REASONS,
    DENIAL_REASONS,
    FAILURE_CODES,
    FIRING_RESULTS,
    FOLLOW_UP_FIELDS,
    HELD,
    OUTCOMES,
    PULLED,
    REFUSAL_CAUSES,
    REQUEUED_FROM,
    failure_code,
)
from later.metrics.samples import samples_of
from later.metrics.topic_labels import TopicCounter
from later.processes.metrics import ProcessMetrics
from later.store import scripts
from later.store.keys import Bucket
from tests.api.api_fixture import serve_api
from tests.cases import each_case

MAX_SERIES = 9_500
TOPICS = [f"team/topic-{n}" for n in range(MAX_TOPICS + 50)]


@pytest.fixture
async def routes() -> list[Route]:
    async with serve_api() as api:
        return [*api.http.app[ROUTES]]


def series(metrics: Metrics) -> dict[str, float]:
    return parse(metrics.exposition().text)


def parse(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


@each_case(
    ("name", "label", "values"),
    [
        ("later_deliveries_total", "outcome", OUTCOMES),
        ("later_topic_deliveries_total", "outcome", OUTCOMES),
        ("later_topic_dead_total", "reason", DEATH_REASONS),
        ("later_delivery_failures_total", "code", FAILURE_CODES),
        ("later_callbacks_refused_total", "why", REFUSAL_CAUSES),
        ("later_tasks_requeued_total", "from", REQUEUED_FROM),
        ("later_api_denied_total", "reason", DENIAL_REASONS),
        ("later_follow_ups_total", "field", FOLLOW_UP_FIELDS),
        ("later_firings_total", "result", FIRING_RESULTS),
        ("later_lateness_seconds_count", "held", tuple(held for held in HELD if held != PULLED)),
    ],
)
def test_series_of_a_closed_set_of_labels_are_born_at_zero(name: str, label: str, values: tuple[str, ...]) -> None:
    found = {s: value for s, value in series(Metrics()).items() if s.startswith(f"{name}{{")}
    assert {label_value(s, label) for s in found} == set(values)
    assert set(found.values()) == {0}


def label_value(series: str, label: str) -> str | None:
    found = re.search(rf'[{{,]{label}="([\w -]+)"', series)
    return found and found[1]


def test_a_topics_deaths_and_deliveries_are_born_at_zero_when_it_is_met() -> None:
    metrics = Metrics()
    metrics.topics.refresh(["order"])
    found = series(metrics)
    assert all(found[f'later_topic_dead_total{{reason="{reason}",topic="order"}}'] == 0 for reason in DEATH_REASONS)
    assert all(found[f'later_topic_deliveries_total{{outcome="{o}",topic="order"}}'] == 0 for o in OUTCOMES)


def test_the_closed_sets_are_those_of_the_code() -> None:
    assert set(HELD) == {held.value for held in Held}
    assert REFUSAL_CAUSES == address_guard.REFUSAL_CAUSES
    assert set(OUTCOMES) == {kind.value for kind in OutcomeKind}
    assert set(REQUEUED_FROM) == {Bucket.UNACK.value, Bucket.ERROR.value}
    failed = re.findall(r'_failed\("(\w+)"', Path(sender.__file__).read_text())
    assert set(failed) <= set(FAILURE_CODES)


@each_case(
    ("reason", "status", "code"),
    [
        ("status", 503, "503"),
        ("status", 410, "410"),
        ("status", 404, "4xx"),
        ("status", 301, "3xx"),
        ("status", 599, "5xx"),
        ("status", 999, "5xx"),
        ("status", 101, "reply"),
        ("code", 200, "code"),
        ("timeout", None, "timeout"),
    ],
)
def test_a_receiver_cannot_make_up_codes(reason: str, status: int | None, code: str) -> None:
    assert failure_code(reason, status) == code
    assert code in FAILURE_CODES


def test_no_counter_has_a_series_for_its_birth() -> None:
    assert [name for name in series(Metrics()) if "_created{" in name or name.endswith("_created")] == []


def test_the_counters_by_topic_are_those_that_processes_sum_by_topic() -> None:
    counters = [counter for counter in Metrics().topics.series if isinstance(counter, TopicCounter)]
    assert {family.name for counter in counters for family in counter.collect()} == TOPIC_COUNTERS


def test_samples_for_other_processes_are_those_of_the_exposition() -> None:
    metrics = Metrics()
    metrics.topics.refresh(["order"])
    metrics.deliveries.inc("order", "done")
    metrics.claims_throttled.inc("order")
    of_store = [sample for samples in metrics.store.samples().values() for sample in samples]
    of_process = [sample for sample in metrics.process_samples() if not sample.metric.startswith("process_")]
    together = [sample for sample in samples_of(metrics.registry) if not sample.metric.startswith("process_")]
    assert sorted([*of_store, *of_process]) == sorted(together)


def fill(metrics: Metrics, topics: list[str], routes: list[Route]) -> None:
    """Give a daemon all the series that it can ever have."""
    metrics.topics.refresh(topics)
    for verb in store_verbs():
        metrics.round_trip_observer(verb)(1)
    for ticker in range(20):
        metrics.add_ticker(f"ticker-{ticker}", lambda: 0.0)
    fill_requests(metrics, routes)
    fill_counters(metrics, topics)
    fill_gauges(metrics, topics)


def fill_requests(metrics: Metrics, routes: list[Route]) -> None:
    """Have each route answer with all statuses that there are for it: only those with a body find it wrong."""
    with_body = {route.template for route in routes if route.method in ("POST", "PUT", "PATCH")}
    for template, route in metrics.requests.add_routes([route.template for route in routes]).items():
        for code in (200, 400, 404, 500, 503, *((409, 413, 415) if template in with_body else ())):
            route.observe(code, 0.01)


def fill_counters(metrics: Metrics, topics: list[str]) -> None:
    for topic in topics:
        metrics.claims_throttled.inc(topic)
        metrics.tasks_put_back.inc(topic)
        metrics.consumers.claimed.inc(topic)
        for reason in DEATH_REASONS:
            metrics.topic_dead.inc(topic, reason)
        for outcome in OUTCOMES:
            metrics.deliveries.inc(topic, outcome)
        for status in range(100, 1000):
            metrics.count_delivery_failure(topic, "status", status)
        for reason in ("code", "timeout", "connect", "reply", "proxy"):
            metrics.count_delivery_failure(topic, reason, None)


def fill_gauges(metrics: Metrics, topics: list[str]) -> None:
    for number, topic in enumerate([*topics[:MAX_TOPICS], OTHER]):
        for bucket in Bucket:
            metrics.store.tasks.labels(bucket.value, topic).set(1)
        for held in Held if topic == OTHER else [[*Held][number % len(Held)]]:
            metrics.store.tasks_due.labels(topic, held.value).set(1)
            metrics.store.oldest_due_age.labels(topic, held.value).set(1)
        if topic != OTHER:
            metrics.store.topic_permits.labels(topic).set(1)


def store_verbs() -> set[str]:
    """Return the verbs in the code of the store: each is the first string in a call, or the name of a verb.

    Only commands and Spark's jobs read or check the whole store; they have no metrics.
    """
    modules = set(Path(scripts.__file__).parent.glob("*.py"))
    text = "".join(path.read_text() for path in modules if path.stem not in ("doctor", "scan"))
    return set(re.findall(r'(?:execute\w*|fan_out\w*|in_slices|Verb)\(\s*(?:self\._client, |name=)?"(\w+)"', text))


def test_a_daemon_never_has_more_than_9500_series(routes: list[Route]) -> None:
    metrics = Metrics()
    fill(metrics, TOPICS, routes)
    found = series(metrics)
    assert {name.partition("_total{")[0] for name in found if f'topic="{TOPICS[0]}"' in name} >= TOPIC_COUNTERS
    assert MAX_TOPICS * 37 < len(found) <= MAX_SERIES


def test_a_daemon_of_several_processes_has_no_more_series_either(routes: list[Route]) -> None:
    own, running = Metrics(), {}
    totals = ProcessMetrics(own, 3)
    for number, topics in enumerate((TOPICS, TOPICS[::-1], TOPICS[25:]), 1):
        child = Metrics()
        fill(child, topics, routes)
        running[number] = child.process_samples()
        totals.update_store(child.store.samples())
    assert MAX_TOPICS * 37 < len(parse(totals.exposition(running).text)) <= MAX_SERIES


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)")
@pytest.mark.parametrize("topics", [[], TOPICS], ids=["at start", "full"])
def test_promtool_has_nothing_to_say_about_the_metrics(topics: list[str], routes: list[Route]) -> None:
    metrics = Metrics()
    if topics:
        fill(metrics, topics, routes)
    text = metrics.exposition().text
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_of_the_exemplars_of_several_processes_the_latest_remains_in_its_bucket() -> None:
    first, second = Metrics(), Metrics()
    for metrics, trace, at_s in ((first, "a" * 32, 2.0), (second, "b" * 32, 1.0)):
        lateness = metrics.lateness.labels("no")
        lateness.observe(0.02)
        lateness.add_exemplar(0.02, trace, at_s)
    daemon = ProcessMetrics(Metrics(), 2)
    running = {
        number: msgspec.convert(msgspec.to_builtins(metrics.process_samples()), MetricSamples)
        for number, metrics in ((1, first), (2, second))
    }
    text = daemon.exposition(running, "application/openmetrics-text").text
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # prometheus_client's
    samples = [sample for family in families for sample in family.samples]
    assert [sample.exemplar.labels for sample in samples if sample.exemplar] == [{"trace_id": "a" * 32}]
    assert [line for line in text.splitlines() if " # {" in line] == [
        'later_lateness_seconds_bucket{held="no",le="0.025"} 2.0 # {trace_id="' + "a" * 32 + '"} 0.02 2.0'
    ]
