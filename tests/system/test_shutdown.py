"""Shutdown at any moment: deliveries end, leases are given back, and the next start finds every task."""

from __future__ import annotations

import os
import pty
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from later.embedded import socket_url
from later.store.keys import Bucket
from tests.system.api_client import build_tasks, create, create_many, get
from tests.system.creating_clients import run_creating_clients
from tests.system.daemons import COMMAND, TERMINAL, Daemon, embedded_store_pid, run_daemon, run_up
from tests.system.receivers import Receiver, delayed, done, hang, in_sequence
from tests.system.stores import count_bucket, count_tasks, open_embedded_store
from tests.system.waiting import wait_until

TASKS = 1200
AOF_COMMANDS = 4_000_000


@contextmanager
def by_sigterm(folder: Path, data: Path) -> Iterator[tuple[Daemon, Callable[[], object]]]:
    with run_up(folder, data) as up:
        yield up, lambda: up.send(signal.SIGTERM)


@contextmanager
def by_sigint_to_the_group(folder: Path, data: Path) -> Iterator[tuple[Daemon, Callable[[], object]]]:
    with run_up(folder, data, start_new_session=True) as up:
        yield up, lambda: os.killpg(up.pid, signal.SIGINT)


@contextmanager
def by_ctrl_c(folder: Path, data: Path) -> Iterator[tuple[Daemon, Callable[[], object]]]:
    keyboard, terminal = pty.openpty()
    try:
        program = (*TERMINAL, os.ttyname(terminal))
        with run_up(folder, data, program=program, start_new_session=True) as up:
            yield up, lambda: os.write(keyboard, b"\x03")
    finally:
        os.close(keyboard)
        os.close(terminal)


@pytest.mark.parametrize("start_daemon", [by_sigterm, by_sigint_to_the_group, by_ctrl_c])
def test_a_stop_under_load_finishes_deliveries_under_way(
    start_daemon: Callable[[Path, Path], Iterator[tuple[Daemon, Callable[[], object]]]],
    folder: Path,
    data: Path,
    receiver: Receiver,
) -> None:
    receiver.rules["/"] = delayed(0.3)
    with start_daemon(folder, data) as (up, stop):  # type: ignore[attr-defined]  # a context manager, by its decorator
        create_many(up.url, build_tasks(TASKS, receiver.url(), time.time() + 0.5, 400))
        wait_until(lambda: len(receiver.ids) > 300, "the daemon is under load")
        stop()
        assert up.wait_for_exit() == 0
    assert not [event for event in up.events() if event["event"] == "embedded store exited"], (
        "the signal was not for the store"
    )
    assert receiver.answered == receiver.ids
    with open_embedded_store(data) as client:
        assert count_bucket(client, Bucket.UNACK, "order") == 0
        assert count_tasks(client) == TASKS - len(receiver.answered) > 0
    with run_up(folder, data) as again:
        wait_until(lambda: len(receiver.answered) == TASKS, "the rest is delivered")
        assert again.stop() == 0
    assert receiver.repeated_calls() == []


def test_a_stop_while_clients_create_keeps_what_was_accepted(folder: Path, data: Path, receiver: Receiver) -> None:
    with run_up(folder, data) as up, run_creating_clients(up.url, receiver.url()) as clients:
        wait_until(lambda: len(receiver.ids) > 50, "the daemon is under load")
        assert up.stop() == 0
        with run_up(folder, data) as again:
            clients.switch_to(again.url)
            clients.stop()
            wait_until(lambda: receiver.answered >= clients.accepted.keys(), "every accepted task is delivered")
            assert again.stop() == 0
    assert receiver.repeated_calls() == []


def test_leases_of_deliveries_that_outlast_the_drain_are_given_back(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    receiver.rules["/"] = hang
    with run_up(folder, data, "--drain", "0.2") as up:
        id = create(up.url, callback=receiver.url())
        wait_until(lambda: receiver.calls_of(id), "the task is in flight")
        assert up.stop() == 0
    with open_embedded_store(data) as client:
        assert count_bucket(client, Bucket.UNACK, "order") == 0
        assert count_bucket(client, Bucket.DELAY, "order") == 1


def test_a_daemon_is_not_ready_for_a_second_before_its_port_closes(folder: Path, data: Path, processes: int) -> None:
    with run_up(folder, data) as up:
        wait_until(up.is_ready, "the daemon is ready")
        url, began_at = up.url, time.monotonic()
        up.send(signal.SIGTERM)
        up.wait_for_event("stopping")
        answers = {(answer := get(url, "/readyz")).status: answer.body["detail"], 0: get(url, "/livez").status}
        assert answers == {503: "the server is being stopped", 0: 200}
        with suppress(OSError):
            while time.monotonic() < began_at + 10:
                get(url, "/livez")
        assert 1 <= time.monotonic() - began_at < 10
        assert up.wait_for_exit() == 0


def test_a_second_signal_ends_the_second_before_the_port_closes(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        up.send(signal.SIGTERM)
        up.wait_for_event("stopping")
        began_at = time.monotonic()
        up.send(signal.SIGTERM)
        assert up.wait_for_exit(2) == 128 + signal.SIGTERM
        assert time.monotonic() - began_at < 0.9


def test_the_daemon_for_tests_closes_its_port_at_once(folder: Path) -> None:
    with run_daemon("dev", folder) as dev:
        url = dev.url
        dev.send(signal.SIGTERM)
        dev.wait_for_event("stopping")
        began_at = time.monotonic()
        with suppress(OSError):
            while time.monotonic() < began_at + 10:
                get(url, "/livez")
        assert time.monotonic() - began_at < 0.9


def test_a_second_signal_forces_the_exit_and_loses_nothing(folder: Path, data: Path, receiver: Receiver) -> None:
    receiver.rules["/hangs-once"] = in_sequence(hang, done)
    options = ("--timeout", "5", "--lease", "6")
    with run_up(folder, data, *options) as up:
        held = create(up.url, callback=receiver.url("/hangs-once"))
        waiting = create(up.url, callback=receiver.url(), delay=3)
        wait_until(lambda: receiver.calls_of(held), "the task is in flight")
        up.send(signal.SIGTERM)
        up.wait_for_event("stopping")
        up.send(signal.SIGTERM)
        assert up.wait_for_exit(2) == 128 + signal.SIGTERM
    with run_up(folder, data, *options) as again:
        assert again.wait_for_event("store found")["tasks"] == 2
        wait_until(lambda: receiver.attempts(held) == [1, 2], "the task in flight is delivered again")
        wait_until(lambda: {held, waiting} <= receiver.answered, "everything is delivered")
        assert again.stop() == 0


def test_a_terminal_that_closes_stops_a_daemon_in_order(folder: Path, data: Path, receiver: Receiver) -> None:
    """It may send SIGHUP twice. Otherwise the embedded store would run on without its owner."""
    receiver.rules["/"] = delayed(1)
    with run_up(folder, data) as up:
        id = create(up.url, callback=receiver.url())
        wait_until(lambda: receiver.calls_of(id), "the task is in flight")
        up.send(signal.SIGHUP)
        up.wait_for_event("stopping")
        up.send(signal.SIGHUP)
        assert up.wait_for_exit() == 0
    assert receiver.answered == {id}
    assert embedded_store_pid(data) is None


def test_nohup_lets_a_daemon_outlive_its_terminal(folder: Path, data: Path) -> None:
    with run_up(folder, data, program=("nohup", *COMMAND)) as up:
        wait_until(up.is_ready, "the daemon is ready")
        up.send(signal.SIGHUP)
        time.sleep(0.5)
        assert up.is_ready()
        assert up.stop() == 0
    assert [event["event"] for event in up.events()].count("stopping") == 1


def test_a_daemon_stops_while_its_store_loads(folder: Path, data: Path) -> None:
    _write_a_large_file(data)
    with run_daemon("up", folder, "--data", str(data)) as up:
        wait_until(lambda: _is_loading(data), "the store loads", 10)
        store = embedded_store_pid(data)
        assert store is not None
        os.kill(store, signal.SIGSTOP)  # a fast machine would finish before the daemon's signal arrives
        assert up.stop() == 0
        assert not [event for event in up.events() if event["event"] == "listening"]
    assert embedded_store_pid(data) is None


MOMENTS: list[Callable[[Path, Daemon], object]] = [
    lambda data, up: (data / "owner.lock").exists(),
    lambda data, up: (data / "store.log").exists(),
    lambda data, up: (data / "store.sock").exists(),
    lambda data, up: any(event["event"] == "store ready" for event in up.events()),
    lambda data, up: any(event["event"] == "store found" for event in up.events()),
    lambda data, up: any(event["event"] == "listening" for event in up.events()),
]


@pytest.mark.parametrize("moment", MOMENTS, ids=["owned", "spawned", "socket", "answers", "found", "listens"])
def test_a_daemon_stops_at_any_moment_of_its_start(
    moment: Callable[[Path, Daemon], object], folder: Path, data: Path
) -> None:
    with run_daemon("up", folder, "--data", str(data)) as up:
        wait_until(lambda: moment(data, up), "the daemon reaches that moment")
        assert up.stop() == 0
    assert embedded_store_pid(data) is None
    assert "Traceback" not in up.log.read_text()


@pytest.mark.parametrize(
    ("seconds", "number"),
    [(0.05 * step, signal.SIGINT if step % 2 else signal.SIGTERM) for step in range(10)],
)
def test_a_daemon_stops_from_its_first_instruction_on(
    seconds: float, number: signal.Signals, folder: Path, data: Path
) -> None:
    with run_daemon("up", folder, "--data", str(data)) as up:
        wait_until(lambda: _catches_sigterm(up.pid), "later runs: Python alone does not catch SIGTERM")
        time.sleep(seconds)
        up.send(number)
        assert up.wait_for_exit() == 0
    assert embedded_store_pid(data) is None
    assert len(up.log.read_text().splitlines()) == len(up.events()), "there is nothing but events"


def _catches_sigterm(pid: int) -> bool:
    """Return True if the process has a handler of SIGTERM. See proc(5), SigCgt."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _write_a_large_file(data: Path) -> None:
    """Write an append-only file that takes seconds to load."""
    folder = data / "appendonlydir"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "appendonly.aof.1.incr.aof").write_bytes(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n" * AOF_COMMANDS)
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")


def _is_loading(data: Path) -> bool:
    try:
        with redis.Redis.from_url(socket_url(data), retry=Retry(NoBackoff(), 0)) as client:  # LOADING is an answer
            return bool(client.info("persistence")["loading"])
    except redis.BusyLoadingError:
        return True
    except redis.RedisError:
        return False
