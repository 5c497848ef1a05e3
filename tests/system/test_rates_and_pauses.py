"""Pauses, rates and concurrency with real daemons, and a healthy topic beside limited ones."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system.api_client import build_tasks, call, create, create_many, post
from tests.system.daemons import run_daemon, run_up
from tests.system.lateness import measure_p99_lateness
from tests.system.receivers import Call, Receiver, delayed, hang, in_sequence, status
from tests.system.stores import StoreServer
from tests.system.waiting import PROPAGATION_S, wait_until

P99_S = 0.1
TRIES = 6
"""The best of several tries counts because the machine has other work."""


def put_policy(url: str, topic: str, **fields: object) -> None:
    assert call(url, "PUT", f"/topics/{topic}/policy", fields).status == 200


def calls_to(receiver: Receiver, path: str) -> list[Call]:
    return [call for call in receiver.calls if call.path == path]


@pytest.mark.alone
@pytest.mark.parametrize(("rate", "seconds"), [(10, 6), (1000, 4)])
def test_a_rate_is_exact_over_all_workers(
    folder: Path, store: StoreServer, receiver: Receiver, processes: int, rate: int, seconds: int
) -> None:
    """With 16 shards and two daemons of one or two processes."""
    options = ("--redis", store.url, "--shards", "16", "--ramp", "0")
    with ExitStack() as stack:
        up = stack.enter_context(run_daemon("up", folder, *options))
        wait_until(up.is_ready, "the daemon is ready")
        put_policy(up.url, "order", rate=rate)
        stack.enter_context(run_daemon("worker", folder, *options)).wait_for_event("listening")
        time.sleep(PROPAGATION_S)
        first = time.time() + 1
        create_many(up.url, build_tasks(rate * (seconds + 3), receiver.url(), first))
        wait_until(lambda: receiver.calls and time.time() > receiver.calls[0].arrived + seconds + 1.5, "time passes")
        begin = receiver.calls[0].arrived + 0.5
        counted = sum(begin <= call.arrived < begin + seconds for call in list(receiver.calls))
        assert counted == pytest.approx(rate * seconds, rel=0.05, abs=1)


def test_concurrency_holds_over_all_workers_and_through_a_kill(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    receiver.rules["/"] = delayed(0.2)
    options = ("--redis", store.url, "--timeout", "1", "--lease", "2")
    with run_daemon("up", folder, *options) as up, run_daemon("worker", folder, *options) as worker:
        wait_until(up.is_ready, "the daemon is ready")
        put_policy(up.url, "order", concurrency=3)
        time.sleep(PROPAGATION_S)
        tasks = build_tasks(60, receiver.url(), time.time())
        create_many(up.url, tasks)
        wait_until(lambda: len(receiver.calls) > 15, "some are delivered")
        worker.kill()
        wait_until(lambda: receiver.answered >= {str(task["id"]) for task in tasks}, "all are delivered")
        assert _max_concurrent(receiver) <= 3 + 3  # deliveries of the killed worker may still be under way
        first_attempts = [call for call in receiver.calls if call.attempt == 1]
        assert len(first_attempts) >= 57


def _max_concurrent(receiver: Receiver, took: float = 0.2) -> int:
    begun = sorted(call.arrived for call in receiver.calls)
    return max(sum(at <= other < at + took for other in begun) for at in begun)


def test_a_pause_takes_effect_within_two_seconds_and_deliveries_under_way_end(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    receiver.rules["/slow"] = delayed(3)
    with run_up(folder, data, "--ramp", "0") as up:
        slow = create(up.url, topic="order", callback=receiver.url("/slow"))
        wait_until(lambda: receiver.calls_of(slow), "the delivery is under way")
        create_many(up.url, build_tasks(600, receiver.url(), time.time(), rate=100))
        wait_until(lambda: len(receiver.calls) > 50, "some are delivered")
        assert call(up.url, "POST", "/topics/order/pause", {}).status == 200
        time.sleep(PROPAGATION_S)
        count = len(receiver.calls)
        time.sleep(1)
        assert len(receiver.calls) == count
        wait_until(lambda: slow in receiver.answered, "deliveries under way end")
        assert call(up.url, "POST", "/topics/order/resume", {}).status == 200
        wait_until(lambda: len(receiver.ids) == 601, "the daemon continues")
        assert receiver.repeated_calls() == []


def test_all_workers_respect_a_receivers_retry_after(folder: Path, store: StoreServer, receiver: Receiver) -> None:
    receiver.rules["/busy"] = in_sequence(status(503, retry_after="5"), status(200))
    options = ("--redis", store.url, "--shards", "16")
    with run_daemon("up", folder, *options) as up, run_daemon("worker", folder, *options) as worker:
        wait_until(up.is_ready, "the daemon is ready")
        worker.wait_for_event("listening")
        busy = create(up.url, topic="order", callback=receiver.url("/busy"))
        wait_until(lambda: receiver.calls_of(busy), "the task is delivered")
        time.sleep(PROPAGATION_S)
        busy_at = receiver.calls_of(busy)[0].arrived
        create_many(up.url, build_tasks(50, receiver.url("/others"), time.time()))
        other = create(up.url, topic="healthy", callback=receiver.url("/healthy"))
        wait_until(lambda: receiver.calls_of(other), "other topics are delivered")
        wait_until(lambda: len(calls_to(receiver, "/others")) == 50, "the topic is delivered again")
        assert min(call.arrived for call in calls_to(receiver, "/others")) >= busy_at + 5
        assert post(up.url, "/query", {"id": busy}).status in (200, 404)


@pytest.mark.alone
def test_a_healthy_topic_is_on_time_beside_a_paused_a_limited_and_a_slow_one(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    receiver.rules["/hangs"] = hang
    with run_up(folder, data, "--timeout", "3") as up:
        put_policy(up.url, "paused", paused=True)
        put_policy(up.url, "limited", rate=10)
        time.sleep(PROPAGATION_S)
        for topic, path in (("paused", "/never"), ("limited", "/limited"), ("slow", "/hangs")):
            create_many(up.url, build_tasks(5_000, receiver.url(path), time.time(), topic=topic))
        wait_until(lambda: len(calls_to(receiver, "/limited")) > 3, "the limited topic is delivered")
        assert any(measure_p99_lateness(up, receiver, receiver.url("/healthy")) < P99_S for _ in range(TRIES))
        assert calls_to(receiver, "/never") == []
