"""An application that moves: pending tasks without a callback of their own follow the policy of their topic."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from tests.system.api_client import call, get, post
from tests.system.daemons import run_command, run_daemon
from tests.system.receivers import Receiver, status
from tests.system.stores import StoreServer
from tests.system.waiting import wait_until

TASKS = 200
PENDING = ("delay", "unack", "error")
RETRIES = {"retry": 1000, "retry_base": 0.1, "retry_cap": 0.2}


def test_tasks_follow_an_application_that_moves_while_a_worker_is_killed(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    """The old place answers errors until the policy names the new one. Each task arrives there, with its context."""
    receiver.rules["/old"] = status(500)
    ids = [f"t{number}" for number in range(TASKS)]
    with ExitStack() as running:
        serve = running.enter_context(run_daemon("serve", folder, "--redis", store.url))
        options = ("--redis", store.url, "--timeout", "1", "--lease", "2")
        killed, _ = (running.enter_context(run_daemon("worker", folder, *options)) for _ in range(2))

        def set_policy(path: str, **fields: object) -> None:
            answer = call(serve.url, "PATCH", f"/{path}/policy", fields)
            assert (answer.status, "warning" in answer.body) == (200, False)

        set_policy("namespaces/shop", callback=receiver.url("/old"), **RETRIES)
        tasks = [
            {"id": id, "topic": "shop/order", "delay": number / 100, "context": {"number": str(number)}}
            for number, id in enumerate(ids)
        ]
        assert post(serve.url, "/create/batch", tasks).body["created"] == TASKS
        assert post(serve.url, "/create", {"topic": "order"}).status == 400
        wait_until(lambda: len(receiver.ids) > TASKS // 4, "the old place is called", 30)
        killed.kill()
        set_policy("topics/shop%2Forder", callback=receiver.url("/new"))

        def counts() -> dict[str, int]:
            topic = get(serve.url, "/topics/shop%2Forder").body
            return {state: topic[state] for state in (*PENDING, "dead")}

        wait_until(lambda: not any(counts().values()), "no task is left", 60)
        for id, task in zip(ids, tasks, strict=True):
            last = receiver.calls_of(id)[-1]
            body = json.loads(last.content)
            assert (last.path, body["context"], body["topic"]) == ("/new", task["context"], "shop/order"), id
        assert run_command("doctor", "--redis", store.url).returncode == 0
