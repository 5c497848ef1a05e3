"""The worker of an application as a process: its start, its stop, and its log."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from later import Later
from later.cli.commands.run import choose_handlers, run
from later.cli.exit import exit_code
from later.cli.worker_log import JsonFormatter, LineFormatter
from later.client.connection_settings import ConnectionSettings
from later.core.clock import Clock
from later.core.errors import CallFailed, ConfigError, NotFound, Unavailable
from later.daemon.lifecycle import Lifecycle
from later.run import application_worker
from later.run.application_supervisor import describe_exit
from later.run.application_worker import ApplicationWorker, RunOptions, count_busy_threads, wait_for_later
from later.signals import TERMINATION_SIGNALS, signal_handlers
from tests.cases import each_case
from tests.client.api_servers import ApiServer, StubAnswer, api_server, stub_server

DEAD_URL = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server(clock=Clock(time.monotonic, time.time)) as server:
        yield server


def connection_to(url: str) -> ConnectionSettings:
    return ConnectionSettings(url, None, None, 10)


async def test_a_worker_that_is_stopped_lets_its_task_end_and_exits_with_0(api: ApiServer) -> None:
    tasks, begun, end = Later(api.url), asyncio.Event(), asyncio.Event()

    @tasks.handler
    async def stopped() -> None:
        begun.set()
        await end.wait()

    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    async with asyncio.timeout(60), tasks:
        await tasks.client.set_policy("stopped", {"deliver": "pull"})
        id = (await stopped.enqueue(None)).id
        options = RunOptions([stopped], 20, 30, None)
        run = asyncio.create_task(ApplicationWorker(tasks, options, channel=theirs.detach()).run())
        assert await reader.read(1) == b"\n"
        await begun.wait()
        writer.close()  # the supervisor lets it stop
        another = (await stopped.enqueue(None)).id
        end.set()
        assert await run == 0
        with pytest.raises(NotFound):
            await tasks.get(id)
        assert (await tasks.get(another)).attempts == 0


def test_a_thread_that_a_handler_has_left_behind_keeps_no_worker_from_ending(api: ApiServer) -> None:
    tasks, begun, end = Later(api.url), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        end.wait(60)

    @tasks.handler
    async def left() -> None:
        await asyncio.to_thread(wait)

    async def run() -> None:
        ours, theirs = socket.socketpair()
        with ours:
            async with tasks:
                await tasks.client.set_policy("left", {"deliver": "pull"})
                await left.enqueue(None)
                options = RunOptions([left], 0, 30, None)
                running = asyncio.create_task(ApplicationWorker(tasks, options, channel=theirs.detach()).run())
                while not begun.is_set():  # noqa: ASYNC110  # a thread sets it
                    await asyncio.sleep(0.01)
                ours.shutdown(socket.SHUT_RDWR)
                assert await running == 0

    asyncio.run(run())
    assert count_busy_threads() == 1
    end.set()
    while count_busy_threads():
        pass


class EnoughError(Exception):
    """The end of a test."""


async def test_a_worker_waits_for_a_daemon_that_is_away_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, api: ApiServer
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise EnoughError

    with monkeypatch.context() as patch:
        patch.setattr(application_worker, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        with pytest.raises(EnoughError):
            await wait_for_later(connection_to(DEAD_URL), None)
    assert pauses == [1, 1, 1]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("waiting for later: http://127.0.0.1:1 did not answer")
    await wait_for_later(connection_to(api.url), 0)


async def test_a_worker_that_is_not_to_wait_or_that_is_refused_fails_at_once() -> None:
    with pytest.raises(Unavailable, match="did not answer"):
        await wait_for_later(connection_to(DEAD_URL), 0)
    with stub_server(StubAnswer(401)) as server, pytest.raises(CallFailed, match="answered 401"):
        await wait_for_later(connection_to(server.url), None)


def an_application() -> Later:
    tasks = Later()
    for topic in ("shop/remind", "shop/mail", "greet"):
        tasks.handler(topic, aliases=[f"{topic}_old"])(lambda: None)
    return tasks


@each_case(
    ("only", "topics"),
    [
        ([], ["shop/remind", "shop/mail", "greet"]),
        (["greet", "shop/mail_old", "greet_old"], ["greet", "shop/mail"]),
    ],
)
def test_only_names_the_topics_of_the_handlers_that_work(only: list[str], topics: list[str]) -> None:
    assert [handler.topic for handler in choose_handlers(an_application(), only)] == topics


@each_case(
    ("application", "only", "message"),
    [
        (an_application(), "remind", ": did you mean shop/remind?"),
        (an_application(), "grete", ": did you mean greet?"),
        (
            an_application(),
            "xyz",
            ": it has shop/remind, shop/remind_old, shop/mail, shop/mail_old, greet, greet_old",
        ),
    ],
)
def test_a_topic_without_a_handler_is_refused_with_those_that_have_one(
    application: Later, only: str, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_handlers(application, [only])
    assert str(refused.value) == f"--only {only}: the application has no handler for this topic{message}"


def test_an_application_without_handlers_is_refused() -> None:
    with pytest.raises(ConfigError, match="the application has no handlers"):
        choose_handlers(Later(), [])


def test_an_application_with_a_store_of_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    application = "from later import Later, StoreClaims\ntasks = Later(StoreClaims('data'))\n"
    (tmp_path / "own_store.py").write_text(application)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert exit_code(lambda: run.main(["own_store:tasks"], standalone_mode=False)) == 2
    text = "own_store:tasks: its later is in its own process: start a program that awaits its work()"
    assert capsys.readouterr().err == f"later: {text}\n"


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    exc_info: Any = None
    if error is not None:
        try:
            raise error
        except BaseException:
            exc_info = sys.exc_info()
    return logging.LogRecord("later.worker", logging.WARNING, __file__, 1, message, None, exc_info)


def test_the_log_is_lines_for_people_or_json() -> None:
    line = LineFormatter(None).format(record("gone\x1b[2J"))
    assert line.partition(" ")[2].partition(" ")[2] == "WARNING later.worker: gone\\x1b[2J"
    assert "later.worker[3]: gone" in LineFormatter(3).format(record("gone"))
    assert LineFormatter(None).format(record("gone", KeyError("x"))).splitlines()[-1] == "KeyError: 'x'"
    event = json.loads(JsonFormatter(3).format(record("gone", KeyError("x"))))
    assert (event["event"], event["level"], event["logger"], event["process"]) == ("gone", "warning", "later.worker", 3)
    assert event["exception"].endswith("KeyError: 'x'")
    assert "process" not in json.loads(JsonFormatter(None).format(record("gone")))


@each_case(("status", "text"), [(0, "exited with 0"), (2, "exited with 2"), (-9, "was killed by SIGKILL")])
def test_the_end_of_a_process_is_told_in_words(status: int, text: str) -> None:
    assert describe_exit(status) == text


async def test_a_signal_stops_a_process_also_where_its_event_loop_handles_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle_none(*arguments: object) -> None:
        raise NotImplementedError  # as on Windows

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", handle_none)
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def stop() -> None: ...

    with signal_handlers({number: signal.getsignal(number) for number in TERMINATION_SIGNALS}):
        running = asyncio.create_task(Lifecycle(force_exit=lambda: None).run(work, stop))
        async with asyncio.timeout(60):
            await begun.wait()
            signal.raise_signal(signal.SIGTERM)
            assert await running == 0
