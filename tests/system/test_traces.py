"""Traces of a daemon, as a collector gets them: what belongs to what, over kills, retries and redrives.

A collector that is away or hangs delays neither a delivery nor a stop.
"""

from __future__ import annotations

import os
import signal
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import canaries
from tests.system.api_client import build_tasks, call, create_many, get, post, query
from tests.system.collectors import EXPORTS_AT_ONCE, Collector, run_collector
from tests.system.daemons import (
    embedded_store_pid,
    run_command,
    run_daemon,
    run_up,
    simulated_fault,
)
from tests.system.receivers import Receiver, delayed, status
from tests.system.waiting import wait_until

CERTIFICATES = Path(__file__).parents[1] / "delivery" / "certificates"
CALLER = f"00-{'a' * 32}-{'b' * 16}-01"
CALLERS_SPAN = CALLER.removesuffix("-01")
QUERY_CANARY, CONTENT_CANARY = "canary-in-query", "canary-in-content"
NOBODY = "http://127.0.0.1:9"
"""The URL of a collector that is away: nothing listens on the port of `discard`."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with run_collector() as collector:
        yield collector


def create_traced(url: str, receiver: Receiver, **fields: object) -> str:
    """Create a task as a caller does whose request belongs to a trace; return its id."""
    task = {
        "topic": "order",
        "callback": receiver.url(f"/?q={QUERY_CANARY}"),
        "content": CONTENT_CANARY,
        "headers": canaries.HEADERS,
        **fields,
    }
    headers = {"traceparent": CALLER, "Authorization": f"Bearer {canaries.KEY}"}
    answer = call(url, "POST", "/create", task, headers=headers)
    assert answer.status == 200, answer
    return str(answer.body["id"])


@pytest.mark.parametrize(("parent", "processes"), [("link", 2), ("child", 1)], indirect=["processes"])
def test_a_task_is_followed_from_its_caller_to_its_receiver_over_a_kill_a_retry_and_a_redrive(
    parent: str, folder: Path, data: Path, receiver: Receiver, collector: Collector
) -> None:
    options = ("--otlp", collector.url, "--trace-parent", parent, "--retry-base", "1")
    receiver.rules["/"] = status(500)
    with run_up(folder, data, *options, env=EXPORTS_AT_ONCE) as up:
        id = create_traced(up.url, receiver, delay=2, retry=1)
        wait_until(lambda: collector.named("create order"), "the create is exported")
        up.kill()
    with run_up(folder, data, *options, env=EXPORTS_AT_ONCE) as again:
        wait_until(lambda: len(receiver.calls) == 2 and query(again.url, id)["state"] == "dead", "the task is dead")
        receiver.rules.clear()
        assert post(again.url, "/redrive", {"id": id}).status == 200
        wait_until(lambda: len(collector.named("deliver order")) == 3, "all deliveries are exported")
    [create] = collector.named("create order")
    deliveries = collector.named("deliver order")
    assert (create.trace_id, create.parent_id) == ("a" * 32, "b" * 16)
    assert [call.headers["traceparent"].rpartition("-")[0] for call in receiver.calls] == [
        delivery.context for delivery in deliveries
    ]
    if parent == "link":
        assert [delivery.links for delivery in deliveries] == [[create.context]] * 3
        assert len({"a" * 32, *(delivery.trace_id for delivery in deliveries)}) == 4
    else:
        assert {(delivery.trace_id, delivery.parent_id) for delivery in deliveries} == {("a" * 32, create.span_id)}
    assert [delivery.attributes["later.verdict"] for delivery in deliveries] == ["error", "dead", "done"]
    assert {delivery.attributes["messaging.message.id"] for delivery in deliveries} == {id}
    assert collector.resources[0]["service.name"] == "later"
    assert collector.paths == {"/v1/traces"}
    assert_nothing_secret(collector)


def assert_nothing_secret(collector: Collector) -> None:
    exported = b"".join(collector.bodies)
    assert b"messaging.message.id" in exported
    assert [text for text in (QUERY_CANARY, CONTENT_CANARY) if text.encode() in exported] == []
    canaries.check(exported, "what a collector got")


@pytest.mark.parametrize("processes", [2], indirect=True)
def test_serve_and_worker_trace_what_they_do_each_and_environment_variables_reach_the_collector(
    folder: Path, data: Path, receiver: Receiver, collector: Collector
) -> None:
    env = {
        **EXPORTS_AT_ONCE,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=shop",
        "OTEL_SERVICE_NAME": "later-of-shop",
    }
    options = ("--data", str(data), "--otlp", f"{collector.url}/v1/traces")
    with (
        run_up(folder, data, "--topic-rate", "0.001"),
        run_daemon("serve", folder, *options, env=env) as serve,
        run_daemon("worker", folder, *options, env=env) as worker,
    ):
        for _ in range(5):  # `up`, which exports nothing, delivers one at most
            create_traced(serve.url, receiver)
        wait_until(lambda: collector.named("create order"), "the creates are exported")
        wait_until(lambda: collector.named("deliver order"), "the deliveries are exported")
        for daemon in (serve, worker):
            daemon.send(signal.SIGTERM)
        assert [daemon.wait_for_exit() for daemon in (serve, worker)] == [0, 0]
    assert {resource["service.name"] for resource in collector.resources} == {"later-of-shop"}
    assert {headers["x-tenant"] for headers in collector.headers} == {"shop"}


@pytest.mark.parametrize("processes", [1], indirect=True)
def test_a_collector_may_have_a_certificate_of_an_authority_of_its_own(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATES / "receiver.pem")
    trusted = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(CERTIFICATES / "authority.pem")}
    env = {**EXPORTS_AT_ONCE, **trusted, "REQUESTS_CA_BUNDLE": "", "CURL_CA_BUNDLE": ""}
    with run_collector(tls) as collector:
        url = collector.url.replace("http:", "https:")
        with run_up(folder, data, "--otlp", url, env=env) as up:
            create_traced(up.url, receiver)
            wait_until(lambda: collector.named("deliver order"), "the delivery is exported")
            assert up.stop() == 0  # killed, it would leave a connection that the collector cannot end as TLS wants it


def test_of_tasks_without_a_trace_a_share_is_traced(
    folder: Path, data: Path, receiver: Receiver, collector: Collector
) -> None:
    with run_up(folder, data, "--otlp", collector.url, "--trace-sample", "0.1", env=EXPORTS_AT_ONCE) as up:
        create_many(up.url, build_tasks(1000, receiver.url(), time.time()))
        wait_until(lambda: len(receiver.ids) == 1000, "every task is delivered")
        traced = {call.id for call in receiver.calls if "traceparent" in call.headers}
        wait_until(lambda: len(collector.named("deliver order")) >= len(traced), "their deliveries are exported")
    [create] = collector.named("create order")
    deliveries = collector.named("deliver order")
    assert 50 < len(deliveries) < 150
    assert all(delivery.links == [create.context] for delivery in deliveries)
    assert {delivery.attributes["messaging.message.id"] for delivery in deliveries} == traced


def test_metrics_lead_to_traces(folder: Path, data: Path, receiver: Receiver, collector: Collector) -> None:
    with run_up(folder, data, "--otlp", collector.url, env=EXPORTS_AT_ONCE) as up:
        create_traced(up.url, receiver)
        wait_until(lambda: collector.named("deliver order"), "the delivery is exported")
        [delivery] = collector.named("deliver order")
        example = f'# {{trace_id="{delivery.trace_id}"}}'

        def examples() -> list[str]:
            accept = {"Accept": "application/openmetrics-text", "Authorization": f"Bearer {canaries.KEY}"}
            text: str = call(up.url, "GET", "/metrics", headers=accept).body.decode()
            return [line.partition("{")[0] for line in text.splitlines() if example in line]

        wait_until(examples, "the metrics have examples", 10)
        assert sorted(examples()) == ["later_delivery_duration_seconds_bucket", "later_lateness_seconds_bucket"]
        assert "trace_id" not in get(up.url, "/metrics").body.decode()


@pytest.mark.alone
@pytest.mark.parametrize(("fault", "processes"), [("away", 1), ("hangs", 2)], indirect=["processes"])
def test_a_collector_that_takes_nothing_delays_neither_deliveries_nor_the_stop(
    fault: str, folder: Path, data: Path, receiver: Receiver, collector: Collector, processes: int
) -> None:
    collector.hangs = True
    url = NOBODY if fault == "away" else collector.url
    receiver.rules["/"] = delayed(0.01)
    queue = {"OTEL_BSP_MAX_QUEUE_SIZE": "150", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "100"}
    with run_up(folder, data, "--otlp", url, env={**EXPORTS_AT_ONCE, **queue}) as up:
        tasks = build_tasks(600, receiver.url(), time.time() + 1, 500)
        create_many(up.url, tasks)
        wait_until(lambda: len(receiver.ids) == 600, "every task is delivered", 60)
        late_s = sorted(call.lateness for call in receiver.calls)
        wait_until(lambda: any(event["event"] == "traces not exported" for event in up.events()), "it is logged", 30)
        began = time.monotonic()
        assert up.stop() == 0
        assert time.monotonic() - began < 8
        logged = [event for event in up.events() if event["event"] == "traces not exported"]
    assert late_s[len(late_s) // 2] < 1
    assert len(logged) <= 2 * processes, logged  # once a minute each


def test_a_killed_embedded_store_is_restarted_by_a_daemon_that_exports(
    folder: Path, data: Path, receiver: Receiver, collector: Collector
) -> None:
    with run_up(folder, data, "--otlp", collector.url, env=EXPORTS_AT_ONCE) as up:
        create_traced(up.url, receiver)
        wait_until(lambda: collector.named("deliver order"), "the delivery is exported")
        os.kill(embedded_store_pid(data) or 0, signal.SIGKILL)
        wait_until(lambda: not up.is_ready(), "the exit of the store is noticed", 5)
        wait_until(up.is_ready, "the store is restarted", 10)
        create_traced(up.url, receiver)
        wait_until(lambda: len(collector.named("deliver order")) == 2, "the next delivery is exported")


def test_without_the_option_nothing_of_opentelemetry_is_needed(folder: Path, data: Path, receiver: Receiver) -> None:
    env = simulated_fault("no-opentelemetry")
    with run_up(folder, data, "--trace-context", "keep", env=env) as up:
        create_traced(up.url, receiver)
        wait_until(lambda: receiver.calls, "the delivery")
        assert receiver.calls[0].headers["traceparent"] == CALLER


@pytest.mark.parametrize("processes", [1], indirect=True)
@pytest.mark.parametrize("command", ["up", "serve", "worker", "dev"])
def test_where_the_extra_is_missing_the_option_says_what_to_install(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in simulated_fault("no-opentelemetry").items():
        monkeypatch.setenv(name, value)
    done = run_command(command, "--otlp", NOBODY)
    assert (done.returncode, done.stderr) == (
        2,
        f"later: `later {command} --otlp` needs packages of OpenTelemetry: pip install 'later[otel]'\n",
    )


def test_a_wrong_variable_of_opentelemetry_is_told(folder: Path, data: Path) -> None:
    env = {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"}  # it is read as OpenTelemetry is imported
    with run_daemon("up", folder, "--data", str(data), "--otlp", NOBODY, env=env) as up:
        assert up.wait_for_exit() in (1, 2)
        log = up.log.read_text()
        assert "later: --otlp: the environment of OpenTelemetry (OTEL_…) is wrong: OTEL_SPAN_ATTR" in log
        assert "Traceback" not in log
