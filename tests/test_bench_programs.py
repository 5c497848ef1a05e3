"""The benchmark's programs: receivers, loads, peers and raw scripts."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from subprocess import Popen

import httptools
import pytest

from later.store.scripts import MAX_TASKS
from scripts.bench import bullmq_worker, lean_poster, light_receiver, load_generator
from scripts.bench.deliveries import delivery_figures
from scripts.bench.environment import Environment
from scripts.bench.load import Load, run_load
from scripts.bench.processes import Process
from scripts.bench.raw_script import CreateBatches, RawConnection
from scripts.bench.receivers import Listener, Receiver, run_faulty_receiver, run_light_receiver
from scripts.bench.results import BenchError
from scripts.bench.rows.create import CREATE
from scripts.bench.rows.lateness import lateness_figures
from scripts.bench.rows.memory import CASES, Case, measure_memory
from scripts.bench.runs import measure_row
from scripts.bench.stores import run_store
from tests.bench_environment import an_environment
from tests.cases import each_case


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A receiver with arrivals in its log; its process is any process."""
    log = tmp_path / "arrivals.log"
    log.write_text(
        "1504934230.004 a 2017-09-09T05:17:10.000Z\n"
        "1504934230.020 - -\n"
        "1504934230.009 a 2017-09-09T05:17:10.000Z\n"
        "1504934230.100 b 2017-09-09T05:17:10.101Z\n"
    )
    with Popen([shutil.which("sleep") or "sleep", "60"]) as process:
        yield Receiver("http://127.0.0.1:1/", log, Process(process, log))
        process.kill()


def test_arrivals_are_read_from_the_log(receiver: Receiver) -> None:
    arrivals = receiver.wait_for_arrivals(2, 1)
    assert [(arrival.id, round(arrival.late_ms)) for arrival in arrivals] == [(b"a", 4), (b"a", 9), (b"b", -1)]


def test_lateness_counts_first_arrivals(receiver: Receiver) -> None:
    late = lateness_figures(receiver.arrivals())
    assert {name: round(value) for name, value in late.items()} == {
        "p50": -1,
        "p99": 4,
        "most": 4,
        "earliest": -1,
        "twice": 1,
    }


def test_duplicate_and_early_arrivals_are_counted(receiver: Receiver) -> None:
    figures = delivery_figures(receiver.arrivals(), 1504934230_050)
    assert (figures["twice"], figures["early"], round(figures["rate"])) == (1, 2, 40)


def test_missing_callbacks_are_an_error(receiver: Receiver) -> None:
    with pytest.raises(BenchError, match="callbacks arrived in time"):
        receiver.wait_for_arrivals(3, 0.01)


@each_case(
    ("head", "length"),
    [(b"http/1.1 200 ok\r\ncontent-length: 12\r\nx: y", 12), (b"http/1.1 204 no\r\ncontent-length:0", 0), (b"", 0)],
)
def test_the_content_length_is_read_from_the_head(head: bytes, length: int) -> None:
    assert load_generator.content_length(head) == length


def test_a_header_is_found_in_any_case() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nWebhook-Id:  one \r\nlater-due: now"
    found = [light_receiver.header_value(head, name) for name in (b"webhook-id:", b"later-due:", b"x:")]
    assert found == [b"one", b"now", b"-"]


def test_a_receiver_has_a_url_at_each_of_its_addresses(receiver: Receiver) -> None:
    assert receiver.urls(1) == ["http://127.0.0.1:1/"]
    urls = receiver.urls(10_000)
    assert (urls[0], urls[-1], len(set(urls))) == ("http://127.1.0.1:1/", "http://127.1.39.250:1/", 10_000)


@pytest.mark.parametrize("listener", [Listener(tls=True), Listener(keep_alive=False)])
def test_only_nginx_has_tls_or_closes_connections(listener: Listener, tmp_path: Path) -> None:
    environment = an_environment(tmp_path)
    assert listener.why_missing(environment) == "nginx is not installed"
    assert Listener(origins=9).why_missing(environment) == ""


def test_the_lean_loop_sends_whole_requests() -> None:
    (request,) = lean_poster.build_requests("http://127.0.0.1:80/success", 1, at=1.0)
    parsed: list[bytes] = []

    class Reader:
        def on_body(self, body: bytes) -> None:
            parsed.append(body)

        def on_message_complete(self) -> None:
            parsed.append(b"")

    httptools.HttpRequestParser(Reader()).feed_data(request)
    body, end = parsed
    assert (json.loads(body)["content"], end) == ("hello", b"")


# BullMQ


def test_bullmq_is_not_measured_without_node(tmp_path: Path) -> None:
    assert bullmq_worker.install_bullmq(an_environment(tmp_path)) == "Node with npm is not installed"


def test_bullmq_is_not_measured_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = a_machine_with_npm(tmp_path, monkeypatch, "echo 'npm error code ENOTFOUND' >&2; exit 1")
    assert bullmq_worker.install_bullmq(environment) == "npm ci failed: code ENOTFOUND"


def test_bullmq_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = a_machine_with_npm(tmp_path, monkeypatch, "echo >>runs")
    assert [bullmq_worker.install_bullmq(environment) for _ in range(2)] == ["", ""]
    assert (tmp_path / "bullmq" / "runs").read_text() == "\n"


def a_machine_with_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Environment:
    """Put a script in npm's place; BullMQ is installed in `bullmq` of the folder."""
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(bullmq_worker, "INSTALLED", folder / "bullmq")
    return replace(an_environment(folder), node="node")


def test_the_lock_of_bullmq_names_no_registry() -> None:
    lock = json.loads((bullmq_worker.SOURCE / "package-lock.json").read_text())
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
    assert lock["packages"][""]["dependencies"]["bullmq"] == lock["packages"]["node_modules/bullmq"]["version"]


# Raw scripts


def test_raw_creates_make_tasks_that_can_be_claimed(tmp_path: Path) -> None:
    environment = an_environment(tmp_path)
    creates = CreateBatches(MAX_TASKS + 1)
    with run_store(environment, "none") as store, RawConnection(store.socket) as connection:
        connection.load_scripts()
        connection.time_messages(creates.batches(3, lambda: int(time.time() * 1000)), creates.call_count, concurrency=2)
        assert tasks_in(connection) == (3 * (MAX_TASKS + 1), 3 * (MAX_TASKS + 1))


def tasks_in(connection: RawConnection) -> tuple[int, int]:
    connection.send(
        b"*2\r\n$4\r\nHLEN\r\n$14\r\n{later:0}:pool\r\n*2\r\n$5\r\nZCARD\r\n$21\r\n{later:0}:delay:order\r\n"
    )
    return connection.read_answer(), connection.read_answer()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_kind_of_task_takes_memory(tmp_path: Path, case: Case) -> None:
    assert 50 < measure_memory(an_environment(tmp_path, memory_tasks=2000), case)["bytes"] < 1000


# Processes


@pytest.mark.system
def test_the_load_generator_loads_the_light_receiver(tmp_path: Path) -> None:
    environment = an_environment(tmp_path)
    with run_light_receiver(environment) as receiver:
        load = Load(url=receiver.url, bodies=[b"{}", b"[]"], connections=4, seconds=10, requests=100)
        result = run_load(environment, load)
    assert 100 <= result.requests < 110


@pytest.mark.system
def test_a_row_is_measured(tmp_path: Path) -> None:
    environment = replace(an_environment(tmp_path, load_s=0.3), durabilities=["none"])
    measured = measure_row(CREATE, environment, 1, lambda text: None)
    assert not measured.failed, [line.failure for line in measured.lines]
    assert all(line.median("rate") > 0 for line in measured.lines)


@pytest.mark.system
def test_the_faulty_receiver_is_busy_on_every_address(tmp_path: Path) -> None:
    with run_faulty_receiver(an_environment(tmp_path)) as port:
        for host in ("127.0.0.1", "127.2.0.40"):
            connection = HTTPConnection(host, port, timeout=10)
            connection.request("POST", "/busy", b"{}")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Retry-After"]) == (503, "3600")
            connection.close()
