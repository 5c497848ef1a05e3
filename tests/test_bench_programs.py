"""The benchmark's programs: receivers, loads, peers and raw scripts."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from socket import create_connection
from subprocess import Popen
from typing import Any, cast

import httptools
import pytest

from later.store.scripts import MAX_TASKS
from scripts.bench import arq_worker, bullmq_worker, lean_poster, light_receiver, load_generator
from scripts.bench.consumer_load import Consumer, Work
from scripts.bench.deliveries import delivery_figures
from scripts.bench.environment import Environment
from scripts.bench.load import Load, run_load
from scripts.bench.processes import Process
from scripts.bench.raw_pulls import PullCalls, time_pulls
from scripts.bench.raw_script import CreateBatches, RawConnection
from scripts.bench.receivers import Listener, Receiver, run_faulty_receiver, run_light_receiver
from scripts.bench.results import BenchError
from scripts.bench.rows.create import CREATE
from scripts.bench.rows.lateness import lateness_figures
from scripts.bench.rows.memory import CASES, Case, measure_memory
from scripts.bench.rows.pull import PULL_100, Consumers, measure_bare
from scripts.bench.runs import measure_row
from scripts.bench.seed import build_task, seed_store
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


def test_a_turn_counts_only_its_own_arrivals(receiver: Receiver) -> None:
    of_the_turn = receiver.from_now_on()
    with receiver.log.open("a") as log:
        log.write("1504934230.200 c 2017-09-09T05:17:10.100Z\n")
    assert [arrival.id for arrival in of_the_turn.wait_for_arrivals(1, 1)] == [b"c"]


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


# arq


def test_arq_is_not_measured_without_pip(tmp_path: Path) -> None:
    assert arq_worker.install_arq(an_environment(tmp_path)) == "pip is not installed"


def test_arq_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = a_machine_with_pip(tmp_path, monkeypatch, f"mkdir -p {tmp_path}/arq; echo >>{tmp_path}/runs")
    assert [arq_worker.install_arq(environment) for _ in range(2)] == ["", ""]
    assert (tmp_path / "runs").read_text() == "\n"


def test_arq_is_not_measured_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = a_machine_with_pip(tmp_path, monkeypatch, "echo 'ERROR: no match' >&2; exit 1")
    assert arq_worker.install_arq(environment) == "pip install failed: no match"


def a_machine_with_pip(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Environment:
    """Put a script in pip's place; arq is installed in `arq` of the folder."""
    pip = folder / "pip"
    pip.write_text(f"#!/bin/sh\n{script}\n")
    pip.chmod(0o755)
    monkeypatch.setattr(arq_worker, "INSTALLED", folder / "arq")
    return replace(an_environment(folder), pip=str(pip))


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


def test_raw_pulls_claim_and_settle_every_task(tmp_path: Path) -> None:
    with run_store(an_environment(tmp_path), "none") as store, RawConnection(store.socket) as connection:
        now = int(time.time() * 1000)
        seed_store(store.url, (build_task(now, callback="", topic="order") for _ in range(60)))
        connection.load_scripts()
        time_pulls(connection, PullCalls("order", 10), 60, concurrency=4)
        assert tasks_in(connection) == (0, 0)
        assert store.count_in_flight(b"order") == 0


# Consumers


class Wire:
    """A connection of a consumer that answers nothing by itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def write(self, request: bytes) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        self.calls.append((head.split()[1].decode(), json.loads(body)))


def a_consumer(tasks: int, at_a_time: int, *, is_done_by_claim: bool = True) -> tuple[Consumer, Work, Wire]:
    work = Work("http://127.0.0.1:1", tasks, at_a_time, connections=1, is_done_by_claim=is_done_by_claim)
    wire = Wire()
    consumer = Consumer(work)
    consumer.connection_made(cast("asyncio.Transport", wire))
    return consumer, work, wire


def answer(consumer: Consumer, *leases: str, lost: str = "") -> None:
    body = json.dumps(
        {"tasks": [{"lease": lease} for lease in leases], "lost": [lost] if lost else []}, separators=(",", ":")
    )
    whole = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    consumer.data_received(whole[:-1])
    consumer.data_received(whole[-1:])


def test_a_consumer_acks_each_task_by_a_call() -> None:
    consumer, work, wire = a_consumer(tasks=2, at_a_time=1, is_done_by_claim=False)
    for leases in (["a"], [], ["b"], []):
        answer(consumer, *leases)
    assert (work.claimed, work.finished, work.ended.is_set()) == (2, 2, True)
    claim = ("/claim", {"topic": "jobs", "max": 1})
    assert wire.calls == [claim, ("/ack", {"leases": ["a"]}), claim, ("/ack", {"leases": ["b"]})]


def test_a_consumer_brings_tasks_back_with_its_next_claim() -> None:
    consumer, work, wire = a_consumer(tasks=3, at_a_time=2)
    for leases in (["a", "b"], ["c"], []):
        answer(consumer, *leases)
    assert (work.claimed, work.finished, work.ended.is_set()) == (3, 3, True)
    assert wire.calls[1:] == [
        ("/claim", {"topic": "jobs", "max": 2, "done": ["a", "b"]}),
        ("/ack", {"leases": ["c"]}),
    ]


def test_a_consumer_stops_when_nothing_is_due() -> None:
    consumer, work, wire = a_consumer(tasks=3, at_a_time=2)
    answer(consumer, "a", "b")
    answer(consumer)
    assert (work.finished, work.ended.is_set(), len(wire.calls)) == (2, True, 2)


def test_a_lost_lease_is_a_failure_of_the_measurement() -> None:
    consumer, work, _ = a_consumer(tasks=3, at_a_time=1)
    answer(consumer, lost="a")
    assert work.ended.is_set()
    assert '"lost":["a"]' in work.failure


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
def test_consumers_are_measured(tmp_path: Path) -> None:
    environment = replace(an_environment(tmp_path, queried=500), durabilities=["none"])
    measured = measure_row(PULL_100, environment, 1, lambda text: None)
    assert not measured.failed, [line.failure for line in measured.lines]
    assert all(line.median("rate") > 0 for line in measured.lines)
    consumers = Consumers(tasks=100, connections=4, at_a_time=1, is_done_by_claim=False)
    assert measure_bare(environment, consumers)["rate"] > 0


@pytest.mark.system
def test_the_faulty_receiver_is_busy_on_every_address(tmp_path: Path) -> None:
    with run_faulty_receiver(an_environment(tmp_path)) as port:
        for host in ("127.0.0.1", "127.2.0.40"):
            connection = HTTPConnection(host, port, timeout=10)
            connection.request("POST", "/busy", b"{}")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Retry-After"]) == (503, "3600")
            connection.close()
        with create_connection(("127.3.0.50", port), timeout=10) as endless:
            endless.sendall(b"POST /interim HTTP/1.1\r\n\r\n")
            assert sum(len(endless.recv(1 << 16)) for _ in range(100)) > 100_000
