"""Two tenants of a real daemon, each with the command line and a key file: one id, two tasks, two calls."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

from tests.system.api_client import call
from tests.system.daemons import run_command, run_up
from tests.system.receivers import Receiver
from tests.system.test_keys import SEEN_WITHIN_S, make_key
from tests.system.waiting import wait_until

TENANTS = ("team", "other")


def test_two_tenants_have_a_task_each_under_one_id(folder: Path, data: Path, receiver: Receiver) -> None:
    with run_up(folder, data) as up:

        def later(tenant: str, *arguments: str) -> CompletedProcess[str]:
            return run_command(*arguments, "--url", up.url, "--key-file", str(folder / tenant))

        keys = {tenant: make_key(data, "--scopes", "all", "--namespace", tenant) for tenant in TENANTS}
        for tenant, key in keys.items():
            (folder / tenant).touch(0o600)
            (folder / tenant).write_text(key)
        time.sleep(SEEN_WITHIN_S)

        def create(tenant: str) -> bool:
            task = {"id": "order-1", "topic": f"{tenant}/x", "callback": receiver.url("/"), "delay": 3600}
            answer = call(up.url, "POST", "/create", task, headers={"Authorization": f"Bearer {keys[tenant]}"})
            return answer.body["created"] is True

        with ThreadPoolExecutor(20) as creators:
            assert sum(creators.map(create, TENANTS * 50)) == len(TENANTS)
        for tenant, other in zip(TENANTS, reversed(TENANTS), strict=True):
            shown = later(tenant, "query", "order-1", "--json")
            assert shown.stderr == ""
            assert json.loads(shown.stdout)["id"] == f"{tenant}/order-1"
            refused = later(tenant, "delete", f"{other}/order-1", f"{other}/missing")
            assert refused.returncode == 1
            assert refused.stderr.replace("missing", "order-1").count(f"no task has the id '{other}/order-1'") == 2
        for tenant in TENANTS:
            assert later(tenant, "run-now", "order-1").stdout == f"{tenant}/order-1\n"
        wait_until(lambda: len(receiver.calls) == len(TENANTS), "both tasks are delivered")
        assert {call.headers["webhook-id"] for call in receiver.calls} == {f"{tenant}/order-1" for tenant in TENANTS}
