"""`later topics` and `later namespaces` against a running daemon.

Most tests share one for each number of processes: each has topics and namespaces of its own.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from later.core.policy import DEFAULT_POLICY, POLICY_FIELDS, format_policy
from tests.system import canaries
from tests.system.api_client import create, get
from tests.system.commands import run_at
from tests.system.daemons import Daemon, kill_orphaned_store, run_up
from tests.system.receivers import Receiver
from tests.system.waiting import PROPAGATION_S, wait_until

FAR = 3600
DAEMON_LEVEL = {name: {"value": value, "level": "daemon"} for name, value in format_policy(DEFAULT_POLICY).items()}


@pytest.fixture(scope="module")
def shared_data(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[Path]:
    data = tmp_path_factory.mktemp("topics-commands") / "data"
    yield data
    kill_orphaned_store(data)
    canaries.check_logs(data.parent)


@pytest.fixture(scope="module")
def up(shared_data: Path) -> Iterator[Daemon]:
    with run_up(shared_data.parent, shared_data, "--max-delay", "30d", "--retry", "7") as up:
        yield up


@pytest.fixture
def own_up(folder: Path, data: Path) -> Iterator[Daemon]:
    """A daemon without the topics of other tests."""
    with run_up(folder, data) as up:
        yield up


def run_command(up: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    return run_at(up.url, *words)


def run_json(up: Daemon, *words: str) -> Any:
    """Run a command that succeeds and return its JSON."""
    done = run_command(up, *words, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


def test_applied_policies_show_the_level_of_each_field(up: Daemon) -> None:
    run_json(up, "namespaces", "set", "levels", "--max-delay", "7d", "--ack", "status")
    own = run_json(up, "topics", "set", "levels/order", "--max-delay", "0", "--paused", "on")
    assert own == {"topic": "levels/order", "set": {"max_delay": 0, "paused": True}}
    assert run_json(up, "topics", "show", "levels/order", "--applied")["applied"] == DAEMON_LEVEL | {
        "max_delay": {"value": 0, "level": "topic"},
        "paused": {"value": True, "level": "topic"},
        "ack": {"value": "status", "level": "namespace"},
        "retry": {"value": 7, "level": "daemon"},
    }
    assert run_json(up, "namespaces", "show", "levels", "--applied")["applied"] == DAEMON_LEVEL | {
        "max_delay": {"value": 604_800, "level": "namespace"},
        "ack": {"value": "status", "level": "namespace"},
        "retry": {"value": 7, "level": "daemon"},
    }


def test_every_field_can_be_set_and_unset(up: Daemon) -> None:
    given = {
        "default_delay": "1s", "max_delay": "2m", "delay_mode": "queue", "delays": "off", "ttl": "3h", "timeout": "4",
        "retry": "5", "retry_base": "500ms", "retry_cap": "1d", "retry_jitter": "0.25", "ack": "code", "rate": "2.5",
        "concurrency": "6", "paused": "on", "ramp": "0", "dead_keep": "7d", "sign": "topic",
        "deliver": "pull", "callback": "http://127.0.0.1:8888/x", "claim_lease": "1m", "max_claims": "5",
        "dead_to": "x/failed", "dead_ttl": "1d", "remember": "15m", "on_dead": "x/failed", "on_done": "x/failed",
        "durability": "disk",
    }  # fmt: skip
    assert list(given) == list(POLICY_FIELDS)
    run_json(up, "topics", "set", "x/failed", "--deliver", "pull")  # otherwise it is warned of
    options = {name: f"--{name.replace('_', '-')}" for name in POLICY_FIELDS}
    for group, scope in (("topics", "x/order"), ("namespaces", "x")):
        words = [word for name, text in given.items() for word in (options[name], text)]
        assert run_json(up, group, "set", scope, *words)["set"] == {
            "default_delay": 1, "max_delay": 120, "delay_mode": "queue", "delays": False, "ttl": 10_800, "timeout": 4,
            "retry": 5, "retry_base": 0.5, "retry_cap": 86_400, "retry_jitter": 0.25, "ack": "code", "rate": 2.5,
            "concurrency": 6, "paused": True, "ramp": 0, "dead_keep": 604_800, "sign": "topic",
            "deliver": "pull", "callback": "http://127.0.0.1:8888/x", "claim_lease": 60, "max_claims": 5,
            "dead_to": "x/failed", "dead_ttl": 86_400, "remember": 900, "on_dead": "x/failed", "on_done": "x/failed",
            "durability": "disk",
        }  # fmt: skip
        assert run_json(up, group, "unset", scope, *options.values())["set"] == {}


def test_set_adds_fields_and_unset_removes_named_fields_or_all(up: Daemon) -> None:
    run_json(up, "topics", "set", "edited", "--ttl", "1h")
    assert run_json(up, "topics", "set", "edited", "--retry", "0", "--delays", "off")["set"] == {
        "delays": False, "ttl": 3600, "retry": 0,
    }  # fmt: skip
    assert run_json(up, "topics", "unset", "edited", "--ttl", "--max-delay")["set"] == {"delays": False, "retry": 0}
    assert run_json(up, "topics", "unset", "edited") == {"topic": "edited", "set": {}}
    assert run_json(up, "topics", "show", "edited")["set"] == {}


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        ("shop/order", "shop"),
        ("a/b/c", "a"),
        ("ü %2F?#&+/x y", "ü %2F?#&+"),
        ("..", "default"),
        ("a/../policy", "a"),
        ("policy", "default"),
    ],
)
def test_a_topic_may_have_any_name(up: Daemon, name: str, namespace: str) -> None:
    run_json(up, "topics", "set", name, "--retry", "1")
    create(up.url, topic=name, callback="http://127.0.0.1:1/", delay=FAR)
    topic = run_json(up, "topics", "show", name)
    assert (topic["topic"], topic["namespace"]) == (name, name.split("/", maxsplit=1)[0] if "/" in name else "default")
    assert (topic["delay"], topic["set"]) == (1, {"retry": 1})
    assert run_json(up, "topics", "unset", name)["set"] == {}


def test_one_topic_may_be_written_in_two_ways(up: Daemon) -> None:
    run_json(up, "topics", "set", "default/short", "--retry", "1")
    assert run_json(up, "topics", "show", "short")["set"] == {"retry": 1}
    assert run_json(up, "topics", "show", "default/short")["topic"] == "short"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--timeout", "500s"), "timeout: expected a number of seconds from 1 to 120, or null to inherit, got 500"),
        (("--retry", "-1"), "retry: expected an integer from 0 to 1000, or null to inherit, got -1"),
        (("--retry-jitter", "2"), "retry_jitter: expected a number from 0 to 1, or null to inherit, got 2"),
        (
            ("--default-delay", "2h", "--max-delay", "1h"),
            "default_delay: expected a default_delay of at most the max_delay that applies, 3600 s, got 7200",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_the_daemons_message_and_nothing_is_set(
    up: Daemon, words: tuple[str, ...], message: str
) -> None:
    done = run_command(up, "topics", "set", "refused", "--ttl", "1h", *words)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"later: {message}\n")
    assert run_json(up, "topics", "show", "refused")["set"] == {}


@pytest.mark.parametrize("words", [("topics", "show", "a//b"), ("topics", "unset", ""), ("namespaces", "set", "a/b")])
def test_a_wrong_name_is_refused_in_one_line_with_status_1(up: Daemon, words: tuple[str, ...]) -> None:
    done = run_command(up, *words, *(("--retry", "1") if "set" in words else ()))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("later: ")
    assert done.stderr.count("\n") == 1


def test_a_topic_is_paused_and_resumed(up: Daemon, receiver: Receiver) -> None:
    assert run_json(up, "topics", "pause", "pauses/order") == {"topic": "pauses/order", "paused": True}
    time.sleep(PROPAGATION_S)
    id = create(up.url, topic="pauses/order", callback=receiver.url())
    assert run_json(up, "topics", "show", "pauses/order", "--applied")["applied"]["paused"] == {
        "value": True,
        "level": "topic",
    }
    wait_until(lambda: run_json(up, "topics", "show", "pauses/order")["due"] == 1, "the task is due")
    assert receiver.calls == []
    assert run_json(up, "topics", "resume", "pauses/order") == {"topic": "pauses/order", "paused": False}
    wait_until(lambda: receiver.calls_of(id), "the task is delivered")
    assert run_json(up, "topics", "show", "pauses/order")["set"] == {}


def test_a_topic_is_resumed_in_a_namespace_that_stays_paused(up: Daemon) -> None:
    run_json(up, "namespaces", "set", "closed", "--paused", "on")
    assert run_command(up, "topics", "resume", "closed/order").stdout == "the topic closed/order is not paused\n"
    assert run_json(up, "topics", "show", "closed/mail", "--applied")["applied"]["paused"]["value"] is True
    assert run_json(up, "topics", "show", "closed/order")["set"] == {"paused": False}


def test_topics_are_listed_with_their_counts(own_up: Daemon) -> None:
    for topic in ("order", "shop/order", "shop/mail", "shop/mail"):
        create(own_up.url, topic=topic, callback="http://127.0.0.1:1/", delay=FAR)
    run_json(own_up, "topics", "set", "unused", "--retry", "1")
    listed = [json.loads(line) for line in run_command(own_up, "topics", "list", "--json").stdout.splitlines()]
    assert [(topic["topic"], topic["delay"]) for topic in listed] == [
        ("order", 1), ("shop/mail", 2), ("shop/order", 1), ("unused", 0),
    ]  # fmt: skip
    assert run_command(own_up, "topics", "list", "--namespace", "shop", "--limit", "1").stdout.splitlines() == [
        "topic      delay  unack  error  dead  due  oldest late by  held by",
        "shop/mail      2      0      0     0    0               -        -",
        "… and more",
    ]


def test_more_topics_than_a_page_are_listed_once(own_up: Daemon) -> None:
    names = [f"n/{number:04}" for number in range(1001)]
    tasks = [{"topic": name, "callback": "http://127.0.0.1:1/", "delay": FAR} for name in names]
    lines = "".join(json.dumps(task) + "\n" for task in tasks)
    file = own_up.log.with_name("tasks.ndjson")
    file.write_text(lines)
    assert run_command(own_up, "create", "--from", str(file)).returncode == 0
    listed = [json.loads(line)["topic"] for line in run_command(own_up, "topics", "list", "--json").stdout.splitlines()]
    assert listed == names


def test_an_unreachable_api_is_reported_in_one_line_with_status_1(own_up: Daemon) -> None:
    url = own_up.url
    assert get(url, "/livez").status == 200
    own_up.stop()
    for words in (("topics", "list"), ("topics", "set", "a", "--retry", "1"), ("namespaces", "unset", "a")):
        done = run_command(own_up, *words)
        assert (done.returncode, done.stderr) == (1, f"later: {url} did not answer: Connection refused\n")
