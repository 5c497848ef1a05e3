"""`list`, `explain`, `update`, `run-now`, `dead …` and `topics purge` for tasks in every state of a running daemon.

Most tests share one for each number of processes: each has a topic of its own.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system import canaries
from tests.system.api_client import build_tasks, create, create_many, get, query
from tests.system.commands import run_at
from tests.system.daemons import COMMAND, Daemon, environment, kill_orphaned_store, run_daemon, run_up, shards_option
from tests.system.receivers import Receiver, done, hang, in_sequence, status
from tests.system.stores import StoreServer
from tests.system.waiting import PROPAGATION_S, wait_until

FAR = 3600
STATES = ("delay", "unack", "error", "dead")
MANY = 12_000
"""More than two chunks."""
INTERRUPTIBLE = (
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from later.cli import main; main()",
)
"""The same command with SIGINT enabled, which is ignored if the tests run in the background."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[Daemon]:
    """Run `later up` with one process and one shard, or several of both."""
    folder = tmp_path_factory.mktemp("task-commands")
    options = ("--retry-base", "1000s", "--ramp", "0", "--timeout", "110", "--lease", "120")  # in flight to the end
    with run_up(folder, folder / "data", *shards_option(processes), *options) as up:
        yield up
    kill_orphaned_store(folder / "data")
    canaries.check_logs(folder)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"order-{uuid.uuid4()}"


def run_command(up: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    return run_at(up.url, *words)


def env(up: Daemon) -> dict[str, str]:
    return {**environment(), "LATER_URL": up.url}


def run_lines(up: Daemon, *words: str) -> list[str]:
    """Run a command that succeeds and return its lines."""
    done = run_command(up, *words)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def run_json(up: Daemon, *words: str) -> Any:
    """Run a command that succeeds and return its JSON object."""
    (line,) = run_lines(up, *words, "--json")
    return json.loads(line)


def run_refused(up: Daemon, *words: str) -> str:
    """Run a command that fails and return its message."""
    done = run_command(up, *words)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("later: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("later: ").rstrip("\n")


def count_tasks(up: Daemon, topic: str) -> dict[str, int]:
    body = get(up.url, f"/topics/{topic}").body
    return {state: body[state] for state in STATES}


def create_in_state(state: str, up: Daemon, topic: str, receiver: Receiver, **fields: Any) -> str:
    """Create a task, wait until it is in this state, and return its id. Its next delivery succeeds."""
    receiver.rules["/unack"] = hang
    receiver.rules["/error"] = receiver.rules["/dead"] = in_sequence(status(500), done)
    delay = FAR if state == "delay" else 0
    retry = 0 if state == "dead" else 3
    id = create(up.url, topic=topic, callback=receiver.url(f"/{state}"), delay=delay, retry=retry, **fields)
    wait_until(lambda: query(up.url, id)["state"] == state, f"it is in {state}")
    return id


def wait_for_deliveries(receiver: Receiver, id: str, times: int = 1) -> None:
    wait_until(lambda: len(receiver.calls_of(id)) == times, "the task is delivered")


@pytest.fixture
def ids(up: Daemon, topic: str, receiver: Receiver) -> dict[str, str]:
    """Tasks of the topic, one in each state: state → id."""
    return {state: create_in_state(state, up, topic, receiver) for state in STATES}


# Lists and explanations


def test_a_list_shows_the_tasks_of_one_state(up: Daemon, topic: str, ids: dict[str, str]) -> None:
    for state, id in ids.items():
        shown = {name: value for name, value in query(up.url, id).items() if name != "failures"}
        assert run_json(up, "list", topic, "--state", state) == shown
        _, row = run_lines(up, "list", topic, "--state", state)
        assert row.startswith(id)
        assert row.endswith(f"/{state}")
    assert "status: answered 500" in run_lines(up, "list", topic, "--state", "error")[1]
    assert run_lines(up, "list", "nothing", "--json") == []


def test_a_list_is_complete_and_in_order_over_pages(up: Daemon, topic: str) -> None:
    tasks = build_tasks(1234, "http://127.0.0.1:1/", time.time() + FAR, 10, topic)
    create_many(up.url, tasks)
    listed = [json.loads(line)["id"] for line in run_lines(up, "list", topic, "--limit", "2000", "--json")]
    assert listed == [task["id"] for task in tasks]


def test_a_list_says_that_there_are_more_tasks(up: Daemon, topic: str) -> None:
    create_many(up.url, build_tasks(51, "http://127.0.0.1:1/", time.time() + FAR, topic=topic))
    done = run_command(up, "list", topic)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 51)
    assert done.stderr == "later: these are the first 50; use --limit to list more\n"
    assert len(run_lines(up, "list", topic, "--limit", "51")) == 52


def test_a_list_is_limited_by_due_times(up: Daemon, topic: str) -> None:
    now = time.time()
    for minutes in (10, 20, 30):
        create(up.url, topic=topic, callback="http://127.0.0.1:1/", delay=60 * minutes, id=f"in-{minutes}")

    def listed(*words: str) -> list[str]:
        return [json.loads(line)["id"] for line in run_lines(up, "list", topic, "--json", *words)]

    assert listed("--due-before", "15m") == ["in-10"]
    assert listed("--due-after", "15m", "--due-before", "25m") == ["in-20"]
    assert listed("--due-after", str(now + 1500)) == ["in-30"]
    assert listed("--due-before", "-1s") == []
    at = query(up.url, "in-20")["due_at"]
    assert (listed("--due-after", at), listed("--due-before", at)) == (["in-20", "in-30"], ["in-10"])


@pytest.mark.parametrize(
    ("state", "beginning"),
    [
        ("delay", "due in"),
        ("unack", "in flight for"),
        ("error", "retry 1 of 3"),
        ("dead", "dead because "),
    ],
)
def test_a_task_is_explained_in_every_state(
    up: Daemon, topic: str, receiver: Receiver, state: str, beginning: str
) -> None:
    id = create_in_state(state, up, topic, receiver)
    sentence, empty, *details = run_lines(up, "explain", id)
    assert sentence.startswith(beginning)
    assert (empty, details[0].split()) == ("", ["id", id])
    assert run_json(up, "explain", id)["state"] == state


def test_a_topic_is_explained(up: Daemon, topic: str, ids: dict[str, str]) -> None:
    assert run_json(up, "explain", "--topic", topic)["counts"] == dict.fromkeys(STATES, 1)
    run_lines(up, "topics", "pause", topic)
    assert "its topic is paused" in run_lines(up, "explain", "--topic", topic)[0]
    assert "its topic is paused" in run_lines(up, "explain", ids["delay"])[0]
    assert "it has no tasks" in run_lines(up, "explain", "--topic", "nothing")[0]


def test_dead_tasks_are_listed_by_reason_and_time_of_death(up: Daemon, topic: str, receiver: Receiver) -> None:
    receiver.rules["/gone"] = status(410)
    exhausted = create_in_state("dead", up, topic, receiver)
    gone = create(up.url, topic=topic, callback=receiver.url("/gone"))
    wait_until(lambda: count_tasks(up, topic)["dead"] == 2, "both are dead")
    header, first, second = run_lines(up, "dead", "list", topic)
    assert header.split() == ["id", "died", "attempts", "reason", "status", "message"]
    assert first.split()[:1] + first.split()[2:5] == [exhausted, "1", "exhausted", "500"]
    assert second.split()[:1] + second.split()[2:6] == [gone, "1", "gone", "410", "answered"]
    assert run_json(up, "dead", "list", topic, "--reason", "gone")["id"] == gone
    assert run_json(up, "dead", "list", topic, "--died-before", query(up.url, gone)["died_at"])["id"] == exhausted
    assert run_lines(up, "dead", "list", topic, "--died-before", "1h", "--json") == []
    assert len(run_lines(up, "dead", "list", topic, "--died-after", "1h")) == 3


# Single tasks


@pytest.mark.parametrize("state", ["delay", "error"])
def test_a_waiting_task_is_updated(up: Daemon, topic: str, receiver: Receiver, state: str) -> None:
    id = create_in_state(state, up, topic, receiver, ttl=2 * FAR)
    changed = run_json(
        up, "update", id, "--content", "ü", "--callback", receiver.url("/new"), "--header", "X-A: b", "--retry", "7",
        "--ttl", "0",
    )  # fmt: skip
    assert (changed["state"], changed["content"], changed["headers"]) == (state, "ü", ["X-A"])
    assert (changed["callback"], changed["max_retry"]) == (receiver.url("/new"), 7)
    assert "expires_at" not in changed
    assert "delay" in "".join(run_lines(up, "update", id, "--delay", "1ms"))
    wait_for_deliveries(receiver, id, 1 if state == "delay" else 2)
    last = receiver.calls_of(id)[-1]
    assert (last.path, last.body["content"], last.headers["X-A"]) == ("/new", "ü", "b")


@pytest.mark.parametrize("state", ["unack", "dead"])
def test_a_task_in_flight_or_dead_is_not_updated(up: Daemon, topic: str, receiver: Receiver, state: str) -> None:
    id = create_in_state(state, up, topic, receiver)
    before = query(up.url, id)
    assert run_refused(up, "update", id, "--content", "new")
    assert query(up.url, id) == before


def test_a_wrong_update_is_refused_with_the_daemons_message(up: Daemon, topic: str, receiver: Receiver) -> None:
    id = create_in_state("delay", up, topic, receiver)
    assert run_refused(up, "update", id, "--callback", "ftp://a/").startswith("callback: expected an absolute http")
    assert run_refused(up, "update", "nobody", "--delay", "1s") == "no task has the id 'nobody'"


@pytest.mark.parametrize(("state", "calls"), [("delay", 1), ("error", 2), ("dead", 2)])
def test_a_task_is_run_now(up: Daemon, topic: str, receiver: Receiver, state: str, calls: int) -> None:
    id = create_in_state(state, up, topic, receiver)
    assert run_lines(up, "run-now", id) == [id]
    wait_for_deliveries(receiver, id, calls)


@pytest.mark.parametrize("command", [("run-now",), ("dead", "redrive")])
def test_a_task_in_flight_is_left_alone_and_the_others_are_moved(
    up: Daemon, receiver: Receiver, ids: dict[str, str], command: tuple[str, ...]
) -> None:
    done = run_command(up, *command, ids["unack"], "nobody", ids["dead"])
    assert (done.returncode, done.stdout) == (1, f"{ids['dead']}\n")
    assert len(done.stderr.splitlines()) == 2
    wait_for_deliveries(receiver, ids["dead"], 2)
    assert receiver.attempts(ids["unack"]) == [1]


@pytest.mark.parametrize("state", ["delay", "error"])
def test_only_dead_tasks_are_redriven(up: Daemon, topic: str, receiver: Receiver, state: str) -> None:
    assert run_refused(up, "dead", "redrive", create_in_state(state, up, topic, receiver))


def test_redriven_tasks_have_all_their_retries(up: Daemon, topic: str, receiver: Receiver) -> None:
    receiver.rules["/dead"] = in_sequence(status(410), status(500))
    id = create(up.url, topic=topic, callback=receiver.url("/dead"), retry=2)
    wait_until(lambda: count_tasks(up, topic)["dead"] == 1, "the task is dead")
    assert run_json(up, "dead", "redrive", id) == {"id": id, "redriven": 1}
    wait_until(lambda: query(up.url, id)["state"] == "error", "the task has failed again")
    assert (query(up.url, id)["has_retry"], query(up.url, id)["max_retry"]) == (1, 2)
    assert receiver.attempts(id) == [1, 1]


# Many tasks


def run_at_terminal(up: Daemon, answer: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command at a terminal and type an answer."""
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, answer.encode())
        return subprocess.run(
            [*COMMAND, *words], stdin=terminal, capture_output=True, text=True, env=env(up), timeout=100, check=False
        )
    finally:
        os.close(keyboard)
        os.close(terminal)


def create_dead_tasks(up: Daemon, topic: str, count: int = MANY, callback: str = "http://127.0.0.1:1/") -> None:
    """Create tasks that expire and are dead without a delivery."""
    tasks = [{**task, "ttl": 0.5} for task in build_tasks(count, callback, time.time() + FAR, topic=topic)]
    create_many(up.url, tasks)
    wait_until(lambda: count_tasks(up, topic)["dead"] == count, "all have expired")


def test_a_purge_leaves_tasks_in_flight(up: Daemon, topic: str, ids: dict[str, str]) -> None:
    assert run_json(up, "topics", "purge", topic, "--dry-run") == {
        "topic": topic, "tasks": 3, "states": {"delay": 1, "error": 1, "dead": 1},
    }  # fmt: skip
    assert count_tasks(up, topic) == dict.fromkeys(STATES, 1)
    asked = run_at_terminal(up, "y\n", "topics", "purge", topic)
    assert asked.stderr.startswith(f"purge 3 tasks of the topic {topic} (delay 1, error 1, dead 1)? [y/N]: ")
    assert (asked.returncode, asked.stdout) == (0, "3 tasks purged\n")
    assert count_tasks(up, topic) == {"delay": 0, "unack": 1, "error": 0, "dead": 0}
    assert run_refused(up, "query", ids["dead"]) == f"no task has the id '{ids['dead']}'"


@pytest.mark.parametrize("state", ["delay", "error", "dead"])
def test_one_state_is_purged(up: Daemon, topic: str, ids: dict[str, str], state: str) -> None:
    assert run_json(up, "topics", "purge", topic, "--state", state, "--yes") == {"purged": 1, "exact": True}
    assert count_tasks(up, topic) == dict.fromkeys(STATES, 1) | {state: 0}


def test_without_confirmation_nothing_is_changed(up: Daemon, topic: str, ids: dict[str, str]) -> None:
    for command in (
        ("topics", "purge", topic),
        ("dead", "purge", "--topic", topic),
        ("dead", "redrive", "--topic", topic),
    ):
        declined = run_at_terminal(up, "n\n", *command)
        assert (declined.returncode, declined.stdout) == (1, "")
        unasked = run_command(up, *command)
        assert (unasked.returncode, unasked.stdout) == (2, "")
        assert "No terminal to ask on: use --yes" in unasked.stderr
    assert count_tasks(up, topic) == dict.fromkeys(STATES, 1)


def test_many_tasks_are_purged_in_chunks(up: Daemon, topic: str) -> None:
    create_many(up.url, build_tasks(MANY, "http://127.0.0.1:1/", time.time() + FAR, topic=topic))
    create_many(up.url, build_tasks(10, "http://127.0.0.1:1/", time.time() + FAR, topic=f"{topic}-other"))
    assert run_lines(up, "topics", "purge", topic, "--yes") == ["12,000 tasks purged"]
    assert (count_tasks(up, topic)["delay"], count_tasks(up, f"{topic}-other")["delay"]) == (0, 10)


def test_dead_tasks_are_purged_by_reason_and_age(up: Daemon, topic: str, receiver: Receiver) -> None:
    create_dead_tasks(up, topic, 10)
    kept = create_in_state("dead", up, topic, receiver)
    purge = ("dead", "purge", "--topic", topic)
    assert run_json(up, *purge, "--died-before", "1h", "--yes")["purged"] == 0
    assert run_json(up, *purge, "--reason", "expired", "--dry-run")["tasks"] == 10
    asked = run_at_terminal(up, "y\n", *purge, "--reason", "expired")
    assert asked.stderr.startswith(f"purge 10 dead tasks of the topic {topic} (reason expired)? [y/N]: ")
    assert asked.stdout == "10 tasks purged\n"
    assert run_json(up, "dead", "list", topic)["id"] == kept
    assert run_json(up, *purge, "--yes")["purged"] == 1


def test_tasks_that_die_again_are_not_redriven_twice(up: Daemon, topic: str) -> None:
    run_lines(up, "topics", "pause", topic)
    time.sleep(PROPAGATION_S)
    create_dead_tasks(up, topic)
    assert run_lines(up, "dead", "redrive", "--topic", topic, "--yes") == ["12,000 tasks redriven"]
    wait_until(lambda: count_tasks(up, topic) == dict.fromkeys(STATES, 0) | {"dead": MANY}, "all have expired again")


def test_dead_tasks_are_redriven_at_a_rate_over_chunks(up: Daemon, topic: str, receiver: Receiver) -> None:
    receiver.rules["/"] = in_sequence(status(410), done)
    create_many(up.url, build_tasks(55, receiver.url(), time.time(), topic=topic))
    wait_until(lambda: count_tasks(up, topic)["dead"] == 55, "all are dead")
    redrive = ("dead", "redrive", "--topic", topic, "--reason", "gone", "--died-after", "1h", "--rate", "5/s")
    asked = run_at_terminal(up, "y\n", *redrive)
    assert (asked.returncode, asked.stdout) == (0, "55 tasks redriven\n")
    assert ", 5 a second, for 11 s? [y/N]: " in asked.stderr
    wait_until(lambda: len(receiver.calls) == 110, "all are delivered")
    first, *others = sorted(call.arrived for call in receiver.calls[55:])
    assert all(arrived - first > nth / 5 - 0.5 for nth, arrived in enumerate(others, 1))
    assert 10 < others[-1] - first < 14


def test_an_interrupted_command_is_completed_by_repeating_it(up: Daemon, topic: str, receiver: Receiver) -> None:
    receiver.rules["/"] = status(410)
    create_many(up.url, build_tasks(100, receiver.url(), time.time(), topic=topic))
    wait_until(lambda: count_tasks(up, topic)["dead"] == 100, "all are dead")
    run_lines(up, "topics", "pause", topic)
    time.sleep(PROPAGATION_S)
    redrive = ("dead", "redrive", "--topic", topic, "--yes")
    with subprocess.Popen([*INTERRUPTIBLE, *redrive, "--rate", "2"], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=env(up)) as redriving:  # fmt: skip
        try:
            wait_until(lambda: count_tasks(up, topic)["dead"] == 80, "a chunk is redriven")
            time.sleep(0.5)  # the chunk must end first
            redriving.send_signal(signal.SIGINT)
            out, err = redriving.communicate(timeout=10)
        finally:
            redriving.kill()
    assert (redriving.returncode, out) == (130, "20 tasks redriven\n")
    assert "run the same command again to continue" in err
    assert run_lines(up, *redrive) == ["80 tasks redriven"]
    assert count_tasks(up, topic) == dict.fromkeys(STATES, 0) | {"delay": 100}


def test_a_purge_waits_for_an_unavailable_store(folder: Path, store: StoreServer) -> None:
    with run_daemon("serve", folder, "--redis", store.url) as serve:
        create_many(serve.url, build_tasks(MANY, "http://127.0.0.1:1/", time.time() + FAR))
        store.kill()
        with subprocess.Popen([*COMMAND, "topics", "purge", "order", "--yes", "--retries", "20"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env(serve)) as purging:  # fmt: skip
            try:
                assert purging.stderr is not None
                assert "trying again in" in purging.stderr.readline()
                store.start()
                out, _ = purging.communicate(timeout=60)
            finally:
                purging.kill()
        assert (purging.returncode, out.split(":")[0]) == (0, "at least 12,000 tasks purged")
        wait_until(lambda: count_tasks(serve, "order") == dict.fromkeys(STATES, 0), "all are gone")


def test_an_unreachable_api_is_reported_in_one_line_with_status_1(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        url = up.url
        assert up.stop() == 0
    for words in (
        ("list", "order"), ("explain", "a"), ("update", "a", "--delay", "1s"), ("run-now", "a"),
        ("dead", "list", "order"), ("dead", "redrive", "a"), ("dead", "purge", "--topic", "order", "--dry-run"),
    ):  # fmt: skip
        assert run_refused(up, *words) == f"{url} did not answer: Connection refused"
