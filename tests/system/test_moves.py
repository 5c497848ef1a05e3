"""`later move`, `export` and `import` as commands: killed at any moment, and seen from daemons and receivers."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import pytest
import redis

from later.core.retry import SettleTarget, Verdict
from later.store.keys import Bucket, Keys
from later.store.types import ClaimRequest, Settlement
from tests.builders import NOW, a_task
from tests.store.inspection import FAILURE, LEASE_MS, unwrap_claim
from tests.store.store_meaning import fill, open_prefix, read_meaning, waiting_since
from tests.system.api_client import call, create, get, query
from tests.system.daemons import COMMAND, environment, run_command, run_daemon, run_up
from tests.system.receivers import Receiver
from tests.system.stores import StoreServer, run_store
from tests.system.waiting import wait_until

TASKS, SHARDS, KILLS = 100_000, 16, 10
REFUSED = "the store's data was moved to"
DUE_IN_S = 25
"""When the tasks of a moved laptop are due: none while they are created, and their daemon is stopped."""


@pytest.fixture(scope="module", autouse=True)
def processes() -> int:
    """One: the commands are of one process, whatever daemons are."""
    return 1


async def fill_with_many(url: str) -> None:
    """Put tasks in all states into a store of one shard, and some of everything else."""
    async with open_prefix(url, "later", 1) as store:
        await fill(store, 2000)
        for start in range(0, TASKS, 5000):
            await store.tasks.create([a_task(topic=f"t{n % 20}", delay=n % 50) for n in range(start, start + 5000)])
        for _ in range(10):
            requests = [ClaimRequest(f"t{n}", 0, 500) for n in range(20)]
            answers = await store.tasks.claim(requests, NOW + 50_000, NOW + 50_000 + LEASE_MS)
            claims = [claim for answer in answers for claim in unwrap_claim(answer).claims]
            verdicts = [Verdict(SettleTarget.ERROR, NOW + 90_000, FAILURE), Verdict(SettleTarget.DEAD, NOW, FAILURE)]
            settled = [Settlement(claim, verdicts[n % 2], None) for n, claim in enumerate(claims) if n % 3]
            await store.tasks.settle(settled)


async def meaning_of(url: str, prefix: str, shards: int) -> dict[str, Any]:
    async with open_prefix(url, prefix, shards) as store:
        return await read_meaning(store)


@pytest.mark.alone
def test_a_move_killed_at_ten_moments_loses_and_doubles_nothing(folder: Path, store: StoreServer) -> None:
    asyncio.run(fill_with_many(store.url))
    before = asyncio.run(meaning_of(store.url, "later", 1))
    in_states = {task[1:3] if task[2] is None else task[1] for task in before["tasks"].values()}
    assert in_states == {"delay", "error", "dead", ("delay", None)}
    (folder / "new").mkdir()
    with run_store("valkey", folder / "new") as target:
        arguments = ("move", "--from", store.url, "--to", target.url, "--to-shards", str(SHARDS), "--to-prefix", "x")
        pools = [shard.pool for shard in Keys("x", SHARDS).shards]
        moments = sorted(random.sample(range(len(before["tasks"]) - 8000), KILLS))
        statuses = [run_until(arguments, target.client(), pools, moment) for moment in moments]
        assert statuses.count(-signal.SIGKILL) >= KILLS // 2, statuses
        last = run_command(*arguments, "--json")
        assert last.returncode == 0, last.stderr
        after = asyncio.run(meaning_of(target.url, "x", SHARDS))
        assert waiting_since(after, before) == before
        assert run_command("doctor", "--redis", target.url, "--prefix", "x").returncode == 0
    for command in (("status",), ("doctor",), ("serve", "--listen", "127.0.0.1:0"), ("worker", "--health", "off")):
        refused = run_command(*command, "--redis", store.url)
        assert refused.returncode == 1
        assert REFUSED in refused.stderr


def run_until(arguments: tuple[str, ...], client: redis.Redis, pools: list[bytes], tasks: int) -> int:
    """Run a command, kill it when the store has so many tasks, and return its exit status."""
    with Popen([*COMMAND, *arguments], stdout=DEVNULL, stderr=DEVNULL, env=environment()) as process:
        while process.poll() is None and sum(map(client.hlen, pools)) < tasks:
            time.sleep(0.002)
        process.kill()
        return process.wait()


def test_the_tasks_of_a_laptop_are_delivered_once_from_the_new_store(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    data = folder / "data"
    with run_up(folder, data) as up:
        soon = [create(up.url, callback=receiver.url(), delay=DUE_IN_S) for _ in range(20)]
        held = create(up.url, topic="held", callback=receiver.url(), delay=DUE_IN_S)
        assert call(up.url, "POST", "/topics/held/pause").status == 200
        move = ("move", "--from", str(data), "--to", store.url, "--to-shards", str(SHARDS))
        running = run_command(*move)
        assert (running.returncode, "an instance runs on the source" in running.stderr) == (1, True)
        assert up.stop() == 0
    moved = run_command(*move)
    assert moved.returncode == 0, moved.stderr
    assert "21 tasks moved" in moved.stdout
    assert "signing.key" in moved.stderr
    with run_daemon("up", folder, "--data", str(data)) as refused:
        assert refused.wait_for_exit() == 1
    assert REFUSED in refused.log.read_text()
    with run_daemon("up", folder, "--redis", store.url, "--shards", str(SHARDS)) as up:
        wait_until(lambda: len(receiver.answered) == len(soon), "all are delivered")
        assert sorted(receiver.ids) == sorted(soon)
        assert query(up.url, held)["state"] == "delay"


def test_an_export_of_a_store_that_does_not_run_is_imported_into_a_new_one(folder: Path, receiver: Receiver) -> None:
    data, new, file = folder / "data", folder / "new", folder / "e.ndjson"
    with run_up(folder, data) as up:
        ids = [create(up.url, callback=receiver.url(), delay=3600) for _ in range(5)]
        assert up.stop() == 0
    exported = run_command("export", "--all", str(file), "--data", str(data), "--json")
    assert json.loads(exported.stdout)["records"]["task"] == 5
    again = run_command("export", "--all", str(file), "--data", str(data))
    assert (again.returncode, "it exists" in again.stderr) == (2, True)
    imported = run_command("import", "-", "--paused", "--data", str(new), "--shards", "4", stdin=file.read_text())
    assert (imported.returncode, imported.stdout.splitlines()[0]) == (0, "5 tasks imported, 0 were there, 0 have ended")
    with run_up(folder, new, "--shards", "4") as up:
        assert {query(up.url, id)["state"] for id in ids} == {Bucket.DELAY}
        assert get(up.url, "/topics/order/policy").body["paused"] is True
    wrong = folder / "wrong"
    wrong.write_text("{}\n")
    refused = run_command("import", str(wrong), "--data", str(folder / "none"))
    assert (refused.returncode, (folder / "none").exists()) == (2, False)
