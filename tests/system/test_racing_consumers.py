"""Consumers that race for tasks with short leases and are killed: no task is lost, or done by two at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.system.api_client import call, create_many, get, list_dead
from tests.system.daemons import environment, run_command, run_daemon, shards_option
from tests.system.racing_consumers import BATCH
from tests.system.stores import StoreServer, count_tasks

PROGRAM = Path(__file__).parent / "racing_consumers.py"
TOPIC = "jobs"
TASKS = 3000


class Lease(NamedTuple):
    """A lease of a task by the notes of its consumer, which sort in the order in which the task was claimed.

    A task that is released is claimed with the same `attempt` again; `answered_ns` is by the machine's monotonic clock.
    It was claimed at the store's time `claimed_at` at the latest, and got before `got_at`. It lasted until `until`, or
    at that time its consumer gave it up (all in ms).
    """

    attempt: int
    answered_ns: int
    claimed_at: int
    got_at: int
    until: int
    is_given_up: bool = False


def test_tasks_are_acked_once_or_dead_while_consumers_race_and_are_killed(
    folder: Path, store: StoreServer, processes: int
) -> None:
    race(folder, store, 1 if processes == 1 else 16, processes, TASKS)


def race(folder: Path, store: StoreServer, shards: int, processes: int, count: int, within_s: float = 100) -> None:
    """Let consumers race for `count` tasks in a store of so many shards."""
    logs = folder / "consumers"
    logs.mkdir()
    ids = {f"t{number}" for number in range(count)}
    with run_daemon("up", folder, "--redis", store.url, *shards_option(processes)) as up:
        assert call(up.url, "PATCH", f"/topics/{TOPIC}/policy", {"deliver": "pull", "retry": 3}).status == 200
        create_many(up.url, [{"id": id, "topic": TOPIC} for id in sorted(ids)])
        arguments = [sys.executable, str(PROGRAM), store.url, TOPIC, str(logs)]
        subprocess.run(arguments, env=environment(), check=True, timeout=within_s)
        dead = {task["id"]: task["last_error"]["reason"] for task in list_dead(up.url, TOPIC)}
        counts = get(up.url, f"/topics/{TOPIC}").body
        checked = run_command("doctor", "--redis", store.url)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    assert "nothing is wrong" in checked.stdout
    assert (counts["delay"], counts["unack"], counts["error"], counts["dead"]) == (0, 0, 0, len(dead))
    assert count_tasks(store.client(), shards) == len(dead)
    assert set(dead.values()) <= {"exhausted", "rejected", "lost"}
    leases, acked = read_notes(logs)
    assert not acked & dead.keys()
    consumers = len(list(logs.iterdir()))
    assert len(ids - acked - dead.keys()) <= consumers * BATCH  # acks of the killed, which noted nothing
    assert len(acked) > count / 2
    assert dead
    for id, taken in leases.items():
        taken.sort()
        for before, after in pairwise(taken):
            assert (after.got_at if before.is_given_up else after.claimed_at) >= before.until, (id, before, after)


def read_notes(logs: Path) -> tuple[dict[str, list[Lease]], set[str]]:
    """Return each task's leases, and the tasks that were acked, none of which twice."""
    leases: defaultdict[str, list[Lease]] = defaultdict(list)
    acks: Counter[str] = Counter()
    for log in logs.iterdir():
        held: dict[str, int] = {}
        for line in log.read_text().splitlines():
            word, id, *numbers = json.loads(line)
            if word == "claimed":
                held[id] = len(leases[id])
                leases[id].append(Lease(*numbers))
            elif word == "acked":
                acks[id] += 1
            elif word == "extended":
                leases[id][held[id]] = leases[id][held[id]]._replace(until=numbers[0])
            else:
                lease = leases[id][held[id]]
                leases[id][held[id]] = lease._replace(until=min(lease.until, numbers[0]), is_given_up=True)
    assert not [id for id, count in acks.items() if count > 1]
    return leases, set(acks)
