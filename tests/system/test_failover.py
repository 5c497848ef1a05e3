"""The store fails over to a replica that lags, while deliveries are under way."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import redis
from aiohttp import web

from tests.servers import ReplicatedServer, run_replicated_server
from tests.system import canaries
from tests.system.api_client import call, create, post
from tests.system.daemons import run_command, run_daemon
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
            with run_daemon("worker", folder, *options, "--timeout", "60", "--lease", "70") as worker:
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


def test_after_a_failover_keys_are_those_of_the_replica_and_can_be_revoked_there(folder: Path) -> None:
    """As all that the replica had not been told: a revoked key is back, a new one is lost, and nothing else opens."""
    with run_replicated_server("valkey", folder) as server:
        address = folder / "store.sock"
        _point(address, server.primary_url)
        revoked, kept = (_make_key(server.primary_url) for _ in range(2))
        with run_daemon("serve", folder, "--redis", f"unix://{address}") as serve:

            def statuses(*keys: str) -> list[int]:
                headers = [{"Authorization": f"Bearer {key}"} if key else {} for key in keys]
                return [call(serve.url, "GET", "/whoami", headers=header).status for header in headers]

            server.wait_for_replica()
            server.cut_link()
            _revoke(server.primary_url, revoked)
            lost = _make_key(server.primary_url)
            wait_until(lambda: statuses(revoked, kept, lost, "") == [401, 200, 200, 401], "the primary's keys")
            _fail_over(server, address)
            wait_until(lambda: statuses(revoked, kept, lost, "") == [200, 200, 401, 401], "the replica's keys")
            _revoke(server.replica_url, revoked)
            wait_until(lambda: statuses(revoked, kept, lost, "") == [401, 200, 401, 401], "the key is revoked again")


def _make_key(store_url: str) -> str:
    made = run_command("keys", "create", "--scopes", "all", "--redis", store_url)
    assert made.returncode == 0, made.stderr
    return canaries.add_key(made.stdout.strip())


def _revoke(store_url: str, key: str) -> None:
    assert run_command("keys", "revoke", key[6:14], "--redis", store_url).returncode == 0


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
