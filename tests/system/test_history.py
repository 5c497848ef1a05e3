"""The history of daemons that are killed: what was written stays, and nothing is counted twice."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import redis

from later.core.history import COUNT_FIELDS, SHORT
from tests.system.api_client import build_tasks, create_many, get
from tests.system.daemons import run_up
from tests.system.receivers import Receiver
from tests.system.waiting import wait_until

WRITTEN_WITHIN_S = 2.5 * SHORT.length_ms / 1000
"""How soon a process has written what it counts, on a busy machine."""


def read_sums(data: Path) -> dict[str, Counter[str]]:
    """Return the sums of all counts over the slots of each length, as the store in `data` has them."""
    sums: dict[str, Counter[str]] = {"10s": Counter(), "300s": Counter()}
    names = {field: series for series, field in COUNT_FIELDS.items()}
    with redis.Redis(unix_socket_path=str(data / "store.sock")) as store:
        for length, counts in sums.items():
            for key in store.scan_iter(f"{{later:history}}:{length}:*"):
                slot: Any = store.hgetall(key)
                counts.update({names[name.decode()]: int(n) for name, n in slot.items() if name.decode() in names})
    return sums


def test_what_a_killed_daemon_wrote_is_counted_once(folder: Path, data: Path, receiver: Receiver) -> None:
    def send(url: str, count: int) -> None:
        create_many(url, build_tasks(count, receiver.url(), time.time()))

    def is_written(series: str, least: int) -> bool:
        return all(sums[series] >= least for sums in read_sums(data).values())

    with run_up(folder, data) as up:
        send(up.url, 40)
        wait_until(lambda: is_written("created", 40), "creates are written", WRITTEN_WITHIN_S)
        wait_until(lambda: is_written("done", 40), "deliveries are written", WRITTEN_WITHIN_S)
        assert {sums["created"] for sums in read_sums(data).values()} == {40}
        send(up.url, 10)
        up.kill()
    with run_up(folder, data) as again:
        before = read_sums(data)
        assert all(40 <= sums["created"] <= 50 for sums in before.values())
        send(again.url, 20)
        wait_until(lambda: is_written("created", before["10s"]["created"] + 20), "all is written", WRITTEN_WITHIN_S)
        wait_until(lambda: len(receiver.ids) == 70, "everything is delivered")
        assert again.stop() == 0
    with run_up(folder, data) as last:
        after = read_sums(data)
        assert {sums["created"] for sums in after.values()} == {before["10s"]["created"] + 20}
        assert after["10s"] == after["300s"]
        assert 60 <= after["10s"]["done"] <= len(receiver.calls)
        answer = get(last.url, "/history?series=created,done")
        assert answer.status == 200
        assert "off" not in answer.body
        assert last.stop() == 0


def test_without_history_nothing_is_written(folder: Path, data: Path, receiver: Receiver) -> None:
    options = ("--history", "off")
    with run_up(folder, data, *options) as up:
        create_many(up.url, build_tasks(10, receiver.url(), time.time()))
        wait_until(lambda: len(receiver.ids) == 10, "everything is delivered")
        assert up.stop() == 0  # with a history, a process writes what it has counted when it stops
    with run_up(folder, data, *options) as again:
        with redis.Redis(unix_socket_path=str(data / "store.sock")) as store:
            assert [*store.scan_iter("{later:history}:*")] == []
        assert get(again.url, "/history?series=created").body["off"] is True
        assert get(again.url, "/deliveries").body == {"sampled": True, "deliveries": [], "off": True}
        assert again.stop() == 0
