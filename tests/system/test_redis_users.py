"""Daemons and commands, each as its own user of deploy/redis.conf: the store refuses none of what they do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from later.core.signing import make_master
from tests.redis_users import CONFIGURATION, run_configured_server, url_as
from tests.servers import SERVERS
from tests.system.api_client import Answer, call, create, get, post
from tests.system.daemons import COMMAND, environment, run_daemon
from tests.system.receivers import Receiver, status
from tests.system.waiting import wait_until

FAR = 3600
SIGNING_KEY = make_master().text


@pytest.fixture
def server_url(folder: Path, processes: int) -> Iterator[str]:
    """The URL of a server with the file: Valkey, and Redis for daemons of several processes, if it is installed."""
    with run_configured_server(folder, "redis" if processes > 1 and "redis" in SERVERS else "valkey") as url:
        yield url


def store_of(user: str, server_url: str) -> dict[str, str]:
    """Return the environment of a process that works on the store as this user, and signs: a command line is public."""
    return {"LATER_REDIS": url_as(user, server_url), "LATER_SIGNING_KEY": SIGNING_KEY}


def events_to(receiver: Receiver) -> tuple[str, str]:
    """Return the option that sends events for operators to the receiver."""
    return "--events", receiver.url("/events")


def run_as(user: str, server_url: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**environment(), **store_of(user, server_url)}
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=env, timeout=60, check=False)


def uses_in_list(server_url: str, id: str) -> bool:
    """Return True if the list of keys says when the key was used."""
    (key,) = json.loads(run_as("later-operator", server_url, "keys", "list", "--json").stdout)["keys"]
    return bool(key["id"] == id and key["last_used_at"])


def refusals(server_url: str) -> list[tuple[str, str, str]]:
    """Return what the server has refused: user, kind, and the command or key."""
    with redis.Redis.from_url(url_as("admin", server_url)) as admin:
        return [(entry["username"], entry["reason"], entry["object"]) for entry in admin.acl_log()]


def use_whole_api(url: str, receiver: Receiver) -> None:
    """Make every kind of call that uses the store."""
    wait_until(lambda: get(url, "/readyz").status == 200, "all processes are up")
    receiver.rules["/no"] = status(410)
    for number in range(3):
        create(url, id=f"done{number}", topic="shop/order", callback=receiver.url())
        create(url, id=f"gone{number}", topic="shop/order", callback=receiver.url("/no"), ttl=FAR)
    create(url, id="far", topic="shop/far", callback=receiver.url(), delay=FAR)
    topic = "/topics/shop%2Forder"
    answers: list[Answer] = [
        call(url, "PATCH", f"{topic}/policy", {"rate": 500, "concurrency": 10}),
        call(url, "POST", "/admin/v2/persistent/public/shop/order/delayedDelivery", {"tickTime": 5}),
        post(url, f"{topic}/pause", {}),
        post(url, f"{topic}/resume", {}),
    ]
    wait_until(lambda: get(url, topic).body["dead"] == 3, "three tasks are dead")
    wait_until(lambda: {f"done{number}" for number in range(3)} <= receiver.ids, "the others are delivered")
    told = {"later.tasks.dead", "later.topic.paused"}
    wait_until(
        lambda: {call.body["type"] for call in receiver.calls.copy() if call.path == "/events"} == told,
        "the operators are told",
    )
    items = [{"topic": "shop/batch", "callback": receiver.url(), "delay": FAR, "id": "batch"}]
    answers += [
        post(url, "/create/batch?job=j", items),
        get(url, "/jobs/j"),
        post(url, "/query", {"id": "far"}),
        post(url, "/query/batch", [{"id": "far"}, {"id": "none"}]),
        post(url, "/list", {"topic": "shop/order", "state": "dead"}),
        post(url, "/list", {"topic": "shop/far", "state": "pending"}),
        post(url, "/explain", {"id": "far"}),
        post(url, "/explain", {"topic": "shop/order"}),
        post(url, "/update", {"id": "far", "delay": 2 * FAR}),
        post(url, "/redrive", {"id": "gone0"}),
        post(url, "/redrive", {"topic": "shop/order", "reason": "gone"}),
        post(url, "/run-now", {"id": "batch"}),
        post(url, "/delete", {"id": "far"}),
        post(url, "/delete/batch?pending=true", [{"id": "none"}]),
        post(url, f"{topic}/purge", {"states": ["dead"], "reason": "gone"}),
        post(url, f"{topic}/purge", {}),
        get(url, "/topics"),
        get(url, "/topics?namespace=shop"),
        call(url, "DELETE", f"{topic}/policy"),
        post(url, f"{topic}/signing/rotate", {"overlap": 60}),
        get(url, f"{topic}/signing"),
        get(url, "/readyz"),
        get(url, "/metrics"),
    ]
    assert [answer for answer in answers if answer.status not in (200, 204)] == []


def test_each_program_works_as_its_own_user(server_url: str, folder: Path, receiver: Receiver) -> None:
    with (
        run_daemon("serve", folder, *events_to(receiver), env=store_of("later-api", server_url)) as api,
        run_daemon("worker", folder, *events_to(receiver), env=store_of("later-worker", server_url)) as worker,
    ):
        use_whole_api(api.url, receiver)
        wait_until(worker.is_ready, "the worker is ready")
        for user, *words in (
            ("later-monitor", "status"),
            ("later-monitor", "doctor"),
            ("later-operator", "status"),
            ("later-operator", "doctor", "--repair"),
            ("later-operator", "secrets", "rotate", "--namespace", "shop"),
            ("later-operator", "secrets", "list"),
            ("later-operator", "audit"),
        ):
            done = run_as(user, server_url, *words)
            assert done.returncode == 0, (user, words, done)
        assert "topic paused" in run_as("later-operator", server_url, "audit").stdout
        key = run_as("later-operator", server_url, "keys", "create", "caller", "--scopes", "all").stdout.strip()
        wait_until(lambda: get(api.url, "/topics").status == 401, "the API asks for keys")
        headers = {"Authorization": f"Bearer {key}"}
        id = key.split("_")[1]

        def is_use_listed() -> bool:
            """Use the key, of which each process learns by itself, and look for its use."""
            assert call(api.url, "GET", "/topics", headers=headers).status == 200
            return uses_in_list(server_url, id)

        wait_until(is_use_listed, "the key's use is in the list")
        wait_until(
            lambda: call(worker.url, "GET", "/metrics", headers=headers).status == 200, "the worker knows the key"
        )
        assert run_as("later-operator", server_url, "keys", "revoke", id).returncode == 0
        assert (api.stop(), worker.stop()) == (0, 0)
    assert refusals(server_url) == []


def test_one_daemon_with_api_and_workers_has_a_user_too(server_url: str, folder: Path, receiver: Receiver) -> None:
    with run_daemon("up", folder, *events_to(receiver), env=store_of("later", server_url)) as later:
        use_whole_api(later.url, receiver)
        assert later.stop() == 0
    assert refusals(server_url) == []


def test_the_server_does_not_start_before_each_user_has_a_password(folder: Path) -> None:
    file = folder / "redis.conf"
    file.write_text(CONFIGURATION.read_text().replace("dir /var/lib/redis", f"dir {folder}"))
    done = subprocess.run(
        [SERVERS["valkey"], file, "--port", "0"], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert "SHA256-OF-THE-PASSWORD-OF-later" in done.stdout + done.stderr
