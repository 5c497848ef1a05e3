"""The store fails over to a replica that lags, while deliveries are under way."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import redis
from aiohttp import web

from tests.servers import ReplicatedServer, run_replicated_server
from tests.system.api_client import create, post
from tests.system.daemons import run_daemon
from tests.system.receivers import Call, Receiver, Rule, done, in_sequence, status
from tests.system.waiting import wait_until


def test_a_late_answer_to_a_delivery_that_a_failover_lost_leaves_the_new_task_alone(
    folder: Path, receiver: Receiver
) -> None:
    first_may_answer, second_may_answer = threading.Event(), threading.Event()
    receiver.rules["/"] = in_sequence(_after(first_may_answer, done), _after(second_may_answer, status(500)))
    task = {"id": "a", "callback": receiver.url()}
    with run_replicated_server("valkey", folder) as server:
        address = folder / "store.sock"
        _point(address, server.primary_url)
        options = ("--redis", f"unix://{address}")
        with run_daemon("serve", folder, *options) as serve:
            create(serve.url, **task)
            server.wait_for_replica()
            server.cut_link()
            with run_daemon("worker", folder, *options) as worker:
                wait_until(lambda: receiver.attempts("a") == [1], "the first delivery begins")
                _fail_over(server, address)
                wait_until(lambda: post(serve.url, "/delete", {"id": "a"}).status == 200, "the old task is deleted")
                create(serve.url, **task)
                wait_until(lambda: len(receiver.attempts("a")) == 2, "the delivery of the new task begins")
                first_may_answer.set()
                worker.wait_for_event("settle rejected: lease lost")
                second_may_answer.set()
                wait_until(lambda: post(serve.url, "/query", {"id": "a"}).body.get("state") == "error", "its failure")
    assert receiver.attempts("a") == [1, 1]


def test_a_daemon_ends_rather_than_use_a_replica_that_may_evict_tasks(folder: Path) -> None:
    with run_replicated_server("valkey", folder) as server, redis.Redis.from_url(server.replica_url) as replica:
        address = folder / "store.sock"
        _point(address, server.primary_url)
        with run_daemon("serve", folder, "--redis", f"unix://{address}") as serve:
            create(serve.url, callback="http://127.0.0.1:1/", delay=3600)
            server.wait_for_replica()
            replica.config_set("maxmemory-policy", "allkeys-lru")
            _fail_over(server, address)
            assert serve.wait_for_exit() == 1
    assert "the store's maxmemory-policy is allkeys-lru: it would throw tasks away" in serve.log.read_text()


def _after(event: threading.Event, then: Rule) -> Rule:
    """Return a rule: the answer of another rule, once the event is set, or after a minute."""

    async def answer(call: Call) -> web.Response:
        await asyncio.to_thread(event.wait, 60)
        return await then(call)

    return answer


def _point(address: Path, url: str) -> None:
    """Let `address` lead to the server at this URL."""
    link = address.with_suffix(".new")
    link.symlink_to(url.removeprefix("unix://"))
    link.replace(address)


def _fail_over(server: ReplicatedServer, address: Path) -> None:
    server.fail_over()
    _point(address, server.replica_url)
