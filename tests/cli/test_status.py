"""The command `status`."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from later.cli import store_access
from later.cli.commands import status
from later.cli.commands.status import ProcessStatus
from later.core.durability import Durability
from later.core.errors import StoreDown
from later.core.heartbeat import Heartbeat
from later.core.policy_scopes import Settings, topic_scope
from later.store.durability_waits import Offers, ReplicaState
from later.store.instances import Instances
from later.store.stats import ServerFacts
from later.store.topic_counts import TopicCounts
from tests.builders import a_task
from tests.cases import each_case
from tests.cli.api_stub import Capture, exit_code_of
from tests.store_fixture import StoreFixture

OFFERS = Offers(
    own_level=Durability.DISK,
    appendfsync="always",
    replicas=[ReplicaState("10.0.0.2:6379", "online", 1536, 1)],
    is_replica_missing=False,
    may_wait=True,
    may_wait_for_disk=True,
)


def store_status(**changes: Any) -> status.StoreStatus:
    built = status.StoreStatus(
        address="unix:///s",
        primary=None,
        shards=1,
        server=ServerFacts("Valkey", "9.1.2", 1536, 0),
        persistence="appendonly",
        offers=OFFERS,
        processes=[ProcessStatus("host:1", 700, "up", "0.1.0"), ProcessStatus("host:2", 300_000)],
        topics={
            "calm": TopicCounts(9, 0, 0, 0, 0, None),
            "late": TopicCounts(3, 1, 2, 4, 3, 4_000),
            "worse": TopicCounts(5, 0, 0, 0, 5, 10_000),
        },
        remembered=6,
        now=19_000,
    )
    return built._replace(**changes)


def test_status_shows_the_topics_with_most_tasks_due_first(capsys: Capture) -> None:
    status.print_text(store_status(), 2)
    assert capsys.readouterr().out.splitlines() == [
        "store    Valkey 9.1.2 at unix:///s, 1 shard",
        "memory   1.5 KiB, no limit set",
        "writes   appendonly",
        "levels   primary, disk, replica, replica-disk",
        "         replica 10.0.0.2:6379: online, 1.5 KiB and 1 s behind",
        "workers  1 alive",
        "         host:1 (up 0.1.0): last heartbeat 0.7 s ago",
        "         host:2: last heartbeat 5 min ago, silent",
        "ids      6 of ended tasks remembered",
        "",
        "topic       delay  unack  error  dead  due  oldest late by",
        "all topics     17      1      2     4    8            15 s",
        "worse           5      0      0     0    5             9 s",
        "late            3      1      2     4    3            15 s",
        "… and 1 more",
    ]


def test_status_names_the_topics_whose_tasks_consumers_claim(capsys: Capture) -> None:
    status.print_text(store_status(pulled=frozenset({"late", "calm"})), 2)
    assert "pulled   2 topics, whose tasks consumers claim: calm, late\n" in capsys.readouterr().out
    status.print_text(store_status(pulled=frozenset("abcdef")), 2)
    assert "claim: a, b, c, d, e, …\n" in capsys.readouterr().out
    status.print_json(store_status(pulled=frozenset({"late"})), 20)
    deliver = {topic["topic"]: topic["deliver"] for topic in json.loads(capsys.readouterr().out)["topics"]}
    assert deliver == {"calm": "push", "late": "pull", "worse": "push"}


def test_status_names_the_topics_to_which_dead_tasks_move(capsys: Capture) -> None:
    report = store_status(dead_letter_topics=frozenset({"late"}))
    status.print_text(report, 2)
    assert "dead to  1 topic, to which tasks move that die in others: late\n" in capsys.readouterr().out
    status.print_json(report, 20)
    topics = json.loads(capsys.readouterr().out)["topics"]
    assert [topic["topic"] for topic in topics if topic["is_dead_letter_topic"]] == ["late"]


def test_status_warns_if_no_worker_is_alive(capsys: Capture) -> None:
    status.print_text(store_status(processes=[ProcessStatus("host:2", 10_000)]), 20)
    assert "workers  no worker heartbeat for 10 s: nothing is delivered" in capsys.readouterr().out
    status.print_json(store_status(processes=[]), 20)
    assert json.loads(capsys.readouterr().out)["warnings"] == [status.NO_WORKER]


def test_versions_that_differ_are_told_unless_their_processes_are_gone(capsys: Capture) -> None:
    old, gone = ProcessStatus("b", 900, "serve", "0.1.0", delivers=False), ProcessStatus("c", 60_000, "up", "0.0.9")
    report = store_status(processes=[ProcessStatus("a", 700, "worker", "0.2.0"), old, gone])
    status.print_text(report, 2)
    assert capsys.readouterr().out.splitlines()[5:10] == [
        "workers  1 alive",
        "         a (worker 0.2.0): last heartbeat 0.7 s ago",
        "         b (serve 0.1.0): last heartbeat 0.9 s ago, does not deliver",
        "         c (up 0.0.9): last heartbeat 60 s ago, silent",
        "         the versions differ: 0.1.0, 0.2.0",
    ]
    status.print_json(report, 2)
    assert json.loads(capsys.readouterr().out)["warnings"] == ["the versions differ: 0.1.0, 0.2.0"]
    status.print_text(store_status(), 2)
    assert "differ" not in capsys.readouterr().out


@each_case(("max_clients", "is_warned_of"), [(0, False), (115, True), (116, False), (10_000, False)])
def test_a_server_that_takes_too_few_connections_is_warned_of(
    max_clients: int, is_warned_of: bool, capsys: Capture
) -> None:
    """One of the two processes is alive."""
    server = ServerFacts("Valkey", "9.1.2", 1536, 0, max_clients)
    warning = f"the store takes {max_clients} connections, and these processes may need 116: raise its maxclients"
    report = store_status(server=server, connections_each=16)
    status.print_text(report, 2)
    assert (f"         {warning}\n" in capsys.readouterr().out) is is_warned_of
    status.print_json(report, 2)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["store"]["max_clients"], printed["warnings"]) == (max_clients, [warning] if is_warned_of else [])


def test_shards_that_are_away_are_told(capsys: Capture) -> None:
    report = store_status(shards=256, shards_away=85)
    status.print_text(report, 2)
    told = "256 shards, 85 of them away: their tasks are not counted"
    assert capsys.readouterr().out.splitlines()[0] == f"store    Valkey 9.1.2 at unix:///s, {told}"
    status.print_json(report, 2)
    assert json.loads(capsys.readouterr().out)["store"]["shards_away"] == 85


@each_case(("spread_s", "warnings"), [
    (0.0, []), (0.1, []),
    (0.312, ["the clocks of the store's nodes differ by 0.3 s: tasks are late by as much"]),
    (20.0, ["the clocks of the store's nodes differ by 20 s: tasks are late by as much"]),
])  # fmt: skip
def test_nodes_whose_clocks_differ_are_warned_of(spread_s: float, warnings: list[str], capsys: Capture) -> None:
    report = store_status(clock_spread_s=spread_s)
    status.print_json(report, 2)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["store"]["clock_spread_s"], printed["warnings"]) == (spread_s, warnings)
    status.print_text(report, 2)
    assert ("differ" in capsys.readouterr().out) is bool(warnings)


def test_processes_are_those_of_the_last_hour_whatever_they_told() -> None:
    told = Heartbeat(
        role="serve", version="0.1.0", host="h", processes=1, slots=0, slots_in_use=0, since=1, at=9_000_000,
        clock_offset_ms=0,
    )  # fmt: skip
    instances = Instances({"h:2": told, "h:3": msgspec.structs.replace(told, at=1)}, {"h:1": 9_001_000})
    assert status.list_processes(instances, 9_002_000) == [
        ProcessStatus("h:1", 1000),
        ProcessStatus("h:2", 2000, "serve", "0.1.0", delivers=False),
    ]


def test_status_prints_one_json_object(capsys: Capture) -> None:
    status.print_json(store_status(), 1)
    printed = json.loads(capsys.readouterr().out)
    assert printed["store"]["memory_bytes"] == 1536
    assert printed["workers"][0] == {
        "instance": "host:1", "role": "up", "version": "0.1.0", "last_beat_s": 0.7, "alive": True, "delivers": True,
    }  # fmt: skip
    assert printed["tasks"] == {
        "delay": 17, "unack": 1, "error": 2, "dead": 4, "due": 8, "oldest_lateness_s": 15.0, "total": 24,
    }  # fmt: skip
    assert [topic["topic"] for topic in printed["topics"]] == ["worse"]
    assert (printed["topics_total"], printed["warnings"]) == (3, [])


def test_a_table_on_a_terminal_is_drawn_and_shows_markup_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    status.print_text(store_status(topics={"[red]x\x1b": TopicCounts(1, 0, 0, 0, 0, None)}), 20)
    out = capsys.readouterr().out
    assert "[red]x\\x1b" in out
    assert "─" in out


async def test_the_status_of_a_store_is_read(store: StoreFixture) -> None:
    now = (await store.time.now()).low
    await store.tasks.create([a_task(created_at=now), a_task(delay=60, created_at=now, topic="a/b")])
    await store.stats.heartbeat("host:1", now)
    report = await status.read_status(store, "unix:///s")
    assert report.total[:5] == (2, 0, 0, 0, 1)
    assert report.alive_workers == 1
    assert report.server.name in ("Valkey", "Redis")
    assert report.pulled == frozenset()
    await store.policies.change(topic_scope("a/b"), lambda settings: settings.merge({"deliver": "pull"}))
    for source, target in (("a/c", "a/b"), ("order", "empty")):
        await store.policies.change(topic_scope(source), partial(Settings.merge, fields={"dead_to": target}))
    report = await status.read_status(store, "")
    assert report.pulled == report.dead_letter_topics == {"a/b"}


@each_case("command", ["status", "doctor"])
def test_an_unavailable_store_is_reported_in_one_line_without_its_password(command: str, capsys: Capture) -> None:
    assert exit_code_of(command, "--redis", f"unix://me:hunter2@{Path.cwd()}/none.sock") == 1
    err = capsys.readouterr().err
    assert err.startswith("later: the store cannot be reached: ")
    assert err.count("\n") == 1
    assert "hunter2" not in err


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_a_store_that_needs_another_version_is_refused(command: str, server_url: str, capsys: Capture) -> None:
    with redis.Redis.from_url(server_url) as client:
        client.flushall()
        client.hset("later:meta", mapping={"schema": 1, "shards": 1, "needs": "tags9"})
    assert exit_code_of(command, "--redis", server_url) == 1
    assert capsys.readouterr().err == (
        "later: the store's data needs what this version of later does not know: tags9: "
        "update later, or choose another --prefix\n"
    )


def test_the_data_directory_is_suggested_if_it_was_forgotten(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    async def unavailable(*options: object) -> None:
        raise StoreDown("the store cannot be reached")

    monkeypatch.setattr(store_access, "open_store", unavailable)
    Path("later-data").mkdir()
    Path("later-data/store.sock").touch()
    assert exit_code_of("status") == 1
    assert capsys.readouterr().err.endswith("(for the store of `later up`: --data later-data)\n")
