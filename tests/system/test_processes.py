"""Daemons of several processes that exit, hang or crash repeatedly, and callers hardly notice."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

import later as package
from tests.system.api_client import create, get, post, read_metric
from tests.system.creating_clients import run_creating_clients
from tests.system.daemons import (
    COMMAND,
    Daemon,
    embedded_store_pid,
    run_command,
    run_daemon,
    run_daemon_as_given,
    run_up,
    simulated_fault,
)
from tests.system.receivers import Receiver, delayed, done, hang, in_sequence, once_set
from tests.system.simulated_faults.sitecustomize import EXIT_STATUS
from tests.system.stores import StoreServer, count_tasks, open_embedded_store
from tests.system.waiting import wait_until

pytestmark = pytest.mark.parametrize("processes", [2], indirect=True, ids=["two-processes"])

CREATED = "later_tasks_created_total"
SECRET = "hunter2"
KILLS_AFTER_12_S = (sys.executable, str(Path(__file__).parent / "killing_supervisor.py"))
"""The command, with a supervisor that kills a process which has not answered for about 12 s."""
SLEEP_S = 15.0
"""Longer than it waits for an answer."""
CHECKS_S = 5.0
"""The time of two checks."""


# A process exits


def test_a_killed_process_is_restarted_and_no_task_is_lost(folder: Path, data: Path, receiver: Receiver) -> None:
    receiver.rules["/"] = delayed(0.02)
    with run_up(folder, data, "--timeout", "2", "--lease", "3") as up:
        _wait_until_all_up(up)
        with run_creating_clients(up.url, receiver.url()) as clients:
            wait_until(lambda: len(receiver.ids) > 50, "the daemon is under load")
            killed, killed_at = up.children()[0], time.time()
            os.kill(killed, signal.SIGKILL)
            died = up.wait_for_event("process exited")
            wait_until(lambda: _why_not_ready(up) == "1 of 2 processes is being started", "the outage is reported", 2)
            wait_until(lambda: _why_not_ready(up) == "", "the process is restarted")
            accepted = len(clients.accepted)
            wait_until(lambda: len(clients.accepted) > accepted + 50, "creates continue")
        assert (died["level"], died["pid"], died["status"], died["restart_in_s"]) == ("warning", killed, -9, 0)
        assert len(up.children()) == 2
        assert read_metric(up.url, "later_process_deaths_total") == 1
        wait_until(lambda: receiver.answered >= clients.accepted.keys(), "every accepted task is delivered")
        assert up.stop() == 0
    interrupted_at = [first.arrived for first, _ in receiver.repeated_calls()]
    assert [at for at in interrupted_at if not -0.5 < killed_at - at < 2] == []


def test_a_terminated_process_stops_in_order_and_is_restarted(folder: Path, data: Path, receiver: Receiver) -> None:
    receiver.rules["/"] = delayed(0.5)
    with run_up(folder, data) as up:
        _wait_until_all_up(up)
        ids = {create(up.url, callback=receiver.url()) for _ in range(20)}
        wait_until(lambda: receiver.ids == ids, "all are in flight")
        for pid in up.children():
            os.kill(pid, signal.SIGTERM)
        assert up.wait_for_event("process exited")["status"] == 0
        wait_until(lambda: receiver.answered == ids, "all are delivered")
        wait_until(lambda: _why_not_ready(up) == "", "both are restarted")
        assert read_metric(up.url, 'later_deliveries_total{outcome="done"}') == len(ids)
        assert up.stop() == 0
    assert receiver.repeated_calls() == []


def test_a_process_that_exits_repeatedly_is_restarted_with_backoff(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    with run_up(folder, data, env=simulated_fault("second-dies")) as up:
        pauses = wait_until(lambda: _first_three(_restart_pauses(up)), "the process exits repeatedly")
        assert pauses == [0, 1, 2]
        assert _why_not_ready(up) == "1 of 2 processes is being started"
        assert _problem_of_readiness(up)["type"] == "/problems/not-ready"
        id = create(up.url, callback=receiver.url())
        wait_until(lambda: id in receiver.answered, "the other process delivers")
        assert read_metric(up.url, "later_processes_up") == 1
        assert up.stop() == 0
    assert {event["status"] for event in up.events() if event["event"] == "process exited"} == {EXIT_STATUS}


def test_a_hanging_process_is_reported_and_killed_at_shutdown(folder: Path, store: StoreServer) -> None:
    with run_daemon("serve", folder, "--redis", store.url, "--drain", "0.2") as serve:
        _wait_until_all_up(serve)
        hung = serve.children()[1]
        os.kill(hung, signal.SIGSTOP)
        assert serve.wait_for_event("process hangs")["pid"] == hung
        wait_until(lambda: _why_not_ready(serve) == "1 of 2 processes does not answer", "the outage is reported")
        os.kill(hung, signal.SIGCONT)
        wait_until(lambda: _why_not_ready(serve) == "", "the process answers again")
        os.kill(hung, signal.SIGSTOP)
        assert serve.stop() == 0
        assert serve.wait_for_event("process killed: it did not stop in time")["pid"] == hung
    assert not Path(f"/proc/{hung}").exists()


def test_a_process_that_hangs_for_good_is_killed_and_replaced(folder: Path, data: Path, receiver: Receiver) -> None:
    with run_up(folder, data, "--timeout", "2", "--lease", "3", program=KILLS_AFTER_12_S) as up:
        _wait_until_all_up(up)
        hung, other = up.children()
        os.kill(hung, signal.SIGSTOP)
        killed = up.wait_for_event("process killed: it does not answer")
        assert (killed["level"], killed["pid"]) == ("warning", hung)
        assert up.wait_for_event("process exited")["status"] == -signal.SIGKILL
        wait_until(lambda: _why_not_ready(up) == "", "the process is replaced")
        assert other in up.children()
        ids = {create(up.url, callback=receiver.url()) for _ in range(20)}
        wait_until(lambda: receiver.answered == ids, "every connection is answered, and every task delivered")
        assert read_metric(up.url, "later_process_kills_total") == 1
        assert up.stop() == 0
    assert [event["event"] for event in up.events()].count("process killed: it does not answer") == 1


def test_a_ticker_that_hangs_in_one_process_is_told_by_each(folder: Path, store: StoreServer) -> None:
    with run_daemon("up", folder, "--redis", store.url, env=simulated_fault("second-hangs")) as up:
        _wait_until_all_up(up)
        assert {get(up.url, "/livez").status for _ in range(10)} == {200}
        wait_until(lambda: get(up.url, "/livez").status == 503, "the hang is told", 30)
        answers = [get(up.url, "/livez") for _ in range(10)]
        assert {(answer.status, answer.body["type"]) for answer in answers} == {(503, "/problems/not-alive")}
        assert answers[0].body["detail"] == "no tick has ended for more than a minute: expiry"
        assert get(up.url, "/readyz").status == 200
        store.kill()
        wait_until(lambda: get(up.url, "/livez").status == 200, "without the store, a restart does not help")


def test_no_process_is_killed_after_all_of_them_were_suspended(folder: Path, store: StoreServer) -> None:
    """As if the machine slept: all clocks have gone on, and no process has had the time to answer."""
    with run_daemon("serve", folder, "--redis", store.url, program=KILLS_AFTER_12_S) as serve:
        _wait_until_all_up(serve)
        children = serve.children()
        for pid in (*children, serve.pid):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(SLEEP_S)
        for pid in (serve.pid, *children):
            os.kill(pid, signal.SIGCONT)
        wait_until(serve.is_ready, "the daemon continues")
        time.sleep(CHECKS_S)
        assert serve.children() == children
        assert serve.stop() == 0


def test_without_its_supervisor_a_process_serves_and_reports_that(folder: Path, store: StoreServer) -> None:
    with run_daemon("serve", folder, "--redis", store.url) as serve:
        _wait_until_all_up(serve)
        serve.send(signal.SIGSTOP)
        assert create(serve.url, callback="http://127.0.0.1:1/", delay=3600)
        assert _why_not_ready(serve) == "the supervisor does not answer: no answer within 1 s: readiness"
        answer = get(serve.url, "/metrics")
        assert (answer.status, answer.body["detail"]) == (503, "no answer within 3 s: exposition")
        serve.send(signal.SIGCONT)
        wait_until(lambda: _why_not_ready(serve) == "", "the process answers again")
        assert read_metric(serve.url, CREATED) == 1
        assert serve.stop() == 0


# All processes exit


def test_processes_finish_their_deliveries_and_exit_if_the_supervisor_is_killed(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    may_answer = threading.Event()
    receiver.rules["/held"] = once_set(may_answer)
    patient = ("--timeout", "100", "--lease", "110", "--drain", "100")  # longer than the next start takes
    with run_up(folder, data, *patient) as up:
        _wait_until_all_up(up)
        waiting = {create(up.url, callback=receiver.url(), delay=3600) for _ in range(20)}
        held = {create(up.url, callback=receiver.url("/held")) for _ in range(20)}
        wait_until(lambda: receiver.ids == held, "all are in flight")
        children, url = up.children(), up.url
        up.process.kill()
        up.process.wait()
        wait_until(lambda: not _answers(url), "the daemon accepts no more requests")
        with run_up(folder, data, *patient) as again:
            assert again.wait_for_event("store found")["tasks"] == len(held | waiting)
            assert all(map(_is_running, children)), "the processes still wait for their deliveries"
            assert receiver.answered == set()
            may_answer.set()
            wait_until(lambda: receiver.answered == held, "they finish their deliveries")
            wait_until(lambda: not any(map(_is_running, children)), "the processes end by themselves")
            for id in waiting:
                assert post(again.url, "/run-now", {"id": id}).status == 200
            wait_until(lambda: receiver.answered == held | waiting, "the next daemon delivers the rest")
            assert again.stop() == 0
        assert [event["event"] for event in up.events()].count("the supervisor is gone: stopping") == 2
    with open_embedded_store(data) as client:
        assert count_tasks(client) == 0, "all are settled"
    assert receiver.repeated_calls() == []


def test_a_signal_to_all_processes_is_one_stop(folder: Path, data: Path, receiver: Receiver) -> None:
    receiver.rules["/"] = delayed(1)
    with run_up(folder, data) as up:
        _wait_until_all_up(up)
        ids = {create(up.url, callback=receiver.url()) for _ in range(20)}
        wait_until(lambda: receiver.ids == ids, "all are in flight")
        up.send_all(signal.SIGTERM)
        assert up.wait_for_exit() == 0
    assert receiver.answered == ids
    with open_embedded_store(data) as client:
        assert count_tasks(client) == 0, "all are settled"


def test_a_second_signal_forces_all_processes_to_exit(folder: Path, data: Path, receiver: Receiver) -> None:
    receiver.rules["/"] = hang
    with run_up(folder, data) as up:
        _wait_until_all_up(up)
        held = create(up.url, callback=receiver.url())
        wait_until(lambda: receiver.calls_of(held), "the task is in flight")
        children = up.children()
        up.send(signal.SIGINT)
        up.wait_for_event("stopping")
        up.send(signal.SIGTERM)
        assert up.wait_for_exit(2) == 128 + signal.SIGTERM
        wait_until(lambda: not any(map(_is_running, children)), "its processes have exited", 1)
        wait_until(lambda: embedded_store_pid(data) is None, "its store exits")


# The port


def test_each_process_listens_on_all_addresses_of_a_name(folder: Path, store: StoreServer) -> None:
    with run_daemon_as_given("serve", folder, "--redis", store.url, "--listen", "localhost:0") as serve:
        _wait_until_all_up(serve)
        os.kill(serve.children()[0], signal.SIGKILL)
        serve.wait_for_event("process exited")
        wait_until(lambda: _why_not_ready(serve) == "", "the process is restarted")
        urls = [event["url"] for event in serve.events() if event["event"] == "listening"]
        assert [get(url, "/livez").status for url in urls for _ in range(5)] == [200] * 5 * len(urls)
        assert serve.stop() == 0


def test_two_daemons_of_several_processes_do_not_share_a_port(folder: Path, store: StoreServer) -> None:
    with run_daemon("serve", folder, "--redis", store.url) as serve:
        address = serve.url.removeprefix("http://")
        second = run_command("serve", "--redis", store.url, "--listen", address)
        _wait_until_all_up(serve)
        os.kill(serve.children()[0], signal.SIGKILL)
        third = run_command("serve", "--redis", store.url, "--listen", address)
        wait_until(serve.is_ready, "the daemon continues")
    for refused in (second, third):
        assert refused.returncode == 1
        assert refused.stderr.splitlines()[-1] == (
            f"later: cannot listen on {address}: Address already in use; choose another"
        )


def test_a_port_is_free_while_the_last_deliveries_finish(folder: Path, store: StoreServer, receiver: Receiver) -> None:
    receiver.rules["/"] = in_sequence(delayed(4), done)
    with run_daemon("up", folder, "--redis", store.url) as up:
        create(up.url, callback=receiver.url())
        wait_until(lambda: receiver.calls, "the task is in flight")
        address = up.url.removeprefix("http://")
        up.send(signal.SIGTERM)
        wait_until(lambda: not _answers(up.url), "the daemon accepts no more requests", 3)
        with run_up(folder, folder / "other", "--listen", address) as other:
            wait_until(other.is_ready, "the next daemon answers there", 5)
            assert other.stop() == 0
        assert up.wait_for_exit() == 0


# Answers for all processes


def test_each_process_answers_for_all(folder: Path, data: Path, receiver: Receiver) -> None:
    with run_up(folder, data, "--concurrency", "10") as up:
        _wait_until_all_up(up)
        for _ in range(40):  # each on a new connection, which reaches either process
            create(up.url, callback=receiver.url(), delay=3600)
        seen = {read_metric(up.url, CREATED) for _ in range(10)}
        assert seen == {40}
        assert read_metric(up.url, "later_delivery_slots") == 20
        assert (read_metric(up.url, "later_processes"), read_metric(up.url, "later_processes_up")) == (2, 2)
        assert read_metric(up.url, "later_store_up") == 1
        os.kill(up.children()[0], signal.SIGKILL)
        up.wait_for_event("process exited")
        counts = [read_metric(up.url, CREATED) for _ in range(10)]
        wait_until(lambda: _why_not_ready(up) == "", "the process is restarted")
        assert counts + [read_metric(up.url, CREATED) for _ in range(10)] == [40] * 20
        assert read_metric(up.url, "later_store_up") == 1
        assert up.stop() == 0


def test_start_and_stop_are_logged_once_and_other_events_with_the_process_number(
    folder: Path, store: StoreServer
) -> None:
    with run_daemon("up", folder, "--redis", store.url) as up:
        _wait_until_all_up(up)
        store.kill()
        failed = wait_until(
            lambda: [e for e in up.events() if e["event"] == "tick failed"], "the outage of the store is reported"
        )
        store.start()
        wait_until(up.is_ready, "the store is back")
        assert up.stop() == 0
    logged = [event["event"] for event in up.events()]
    once = ("store found", "listening", "all processes are up", "stopping", "stopped")
    assert [logged.count(event) for event in once] == [1] * len(once)
    assert {event.get("process") for event in failed} <= {1, 2, None}
    assert "process" in failed[0]


def test_a_process_that_stops_before_its_configuration_arrives_logs_in_the_right_format() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        line = ("serve", "1/2", "--channel", str(theirs.fileno()), "--log", "json", "debug")
        code = "from later.processes.child_main import main; main()"
        ended = subprocess.run(
            [sys.executable, "-c", code, *line],
            pass_fds=(theirs.fileno(),),
            capture_output=True,
            text=True,
            check=False,
        )
    events = [json.loads(text) for text in ended.stderr.splitlines()]
    assert "the supervisor is gone: stopping" in [event["event"] for event in events]
    assert {event["process"] for event in events} == {1}
    assert ended.stdout == ""


def test_a_daemon_without_standard_descriptors_keeps_its_connections_private(folder: Path, data: Path) -> None:
    program = ("sh", "-c", 'exec "$@" 0<&- 1>&-', "sh", *COMMAND)
    with run_up(folder, data, program=program) as up:
        _wait_until_all_up(up)
        pids = (up.pid, *up.children())
        assert {os.readlink(f"/proc/{pid}/fd/{number}") for pid in pids for number in (0, 1)} == {os.devnull}
        assert up.stop() == 0


def test_no_secret_is_in_a_command_line_or_an_environment(folder: Path, store: StoreServer) -> None:
    url = store.url.replace("unix://", f"unix://:{SECRET}@")
    with run_daemon("worker", folder, env={"LATER_REDIS": url}) as worker:
        _wait_until_all_up(worker)
        children = worker.children()
        public = [Path(f"/proc/{pid}/{what}").read_bytes() for pid in children for what in ("cmdline", "environ")]
        lines = [line.split(b"\0") for line in public[::2]]
    assert len(public) == 4
    assert not [text for text in public if SECRET.encode() in text]
    assert sorted(line[line.index(b"--channel") - 2 :][:2] for line in lines) == [
        [b"worker", b"1/2"],
        [b"worker", b"2/2"],
    ]


def test_processes_run_the_same_code_as_their_supervisor(folder: Path, data: Path, receiver: Receiver) -> None:
    """A copy of later in a zip file at a path that PYTHONPATH cannot name."""
    archive = folder / "a:b" / "later.zip"
    archive.parent.mkdir()
    _pack(archive)
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); from later.cli import main; main()"
    with run_up(folder, data, program=(sys.executable, "-c", code), cwd=folder) as up:
        _wait_until_all_up(up)
        id = create(up.url, callback=receiver.url())
        wait_until(lambda: receiver.calls_of(id), "the task is delivered")
        assert up.stop() == 0
    assert receiver.calls_of(id)[0].headers["User-Agent"] == "later/0.0.zip"


def _pack(archive: Path) -> None:
    """Write a copy of later with a recognisable version into a zip file."""
    root = Path(package.__file__).parent
    with zipfile.ZipFile(archive, "w") as packed:
        for file in root.rglob("*.*"):
            name = str(Path("later") / file.relative_to(root))
            if file == root / "__init__.py":
                packed.writestr(name, '__version__ = "0.0.zip"')
            elif file.suffix != ".pyc":
                packed.write(file, name)


def _wait_until_all_up(daemon: Daemon) -> None:
    """Wait until all processes serve."""
    daemon.wait_for_event("all processes are up")


def _why_not_ready(daemon: Daemon) -> str:
    """Return why the daemon is not ready, empty if it is."""
    return str(_problem_of_readiness(daemon).get("detail", ""))


def _problem_of_readiness(daemon: Daemon) -> dict[str, Any]:
    """Return the problem, empty if it is ready. Asks again while a connection reaches a dead process."""
    while True:
        with suppress(OSError, HTTPException):
            answer = get(daemon.url, "/readyz", timeout_s=2)
            return {} if answer.status == 200 else answer.body


def _answers(url: str) -> bool:
    with suppress(OSError, HTTPException):
        return get(url, "/livez").status == 200
    return False


def _restart_pauses(daemon: Daemon) -> list[int]:
    return [event["restart_in_s"] for event in daemon.events() if event["event"] == "process exited"]


def _first_three(pauses: list[int]) -> list[int]:
    return pauses[:3] if len(pauses) >= 3 else []


def _is_running(pid: int) -> bool:
    """Return True if a process runs; a zombie does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    return False
