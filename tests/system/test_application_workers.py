"""`later run`: a rolling deploy under load, a daemon that is away, killed processes, and signals."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, Popen

from tests.system.api_client import call, get, post
from tests.system.daemons import COMMAND, environment, run_daemon_as_given, run_up
from tests.system.waiting import wait_until

APPLICATION = """
import asyncio
import os
import time

from later import Later, Task

tasks = Later()


def note(task: Task) -> None:
    with open(os.environ["DONE"], "a") as done:
        done.write(f"{task.topic} {task.id} {os.getpid()}\\n")


@tasks.handler(concurrency=8)
async def order(number: int, task: Task) -> None:
    await asyncio.sleep(0.02)
    note(task)


@tasks.handler(concurrency=4)
def bill(number: int, task: Task) -> None:
    time.sleep(0.02)
    note(task)
"""
NEW_HANDLER = """

@tasks.handler
async def ship(number: int, task: Task) -> None:
    note(task)
"""
STUCK_HANDLER = """

@tasks.handler
async def stuck(number: int, task: Task) -> None:
    note(task)
    await asyncio.Event().wait()
"""
TOPICS = ("order", "bill", "ship", "stuck")


class Worker:
    """A running `later run`, which writes what it has done to a file."""

    def __init__(self, process: Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def wait_for_log(self, text: str, times: int = 1) -> None:
        def find() -> bool:
            assert self.process.poll() is None, f"it ended: {self.log.read_text()}"
            return self.log.read_text().count(text) >= times

        wait_until(find, f"{text!r} in {self.log.name}", within_s=60)

    def children(self) -> list[int]:
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in found.split()]

    def stop(self) -> int:
        """Send SIGTERM, wait for the exit and return its status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Deployment:
    """A directory with an application, the workers that were started of it, and what they have done."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._numbers = itertools.count()
        self._done = folder / "done"
        self._done.touch()
        for topic in TOPICS:
            assert call(url, "PATCH", f"/topics/{topic}/policy", {"deliver": "pull"}).status == 200

    @contextmanager
    def run(self, code: str, *options: str) -> Iterator[Worker]:
        """Run a worker of an application of this code; kill it at the end."""
        number = next(self._numbers)
        directory, log = self._folder / f"app-{number}", self._folder / f"run-{number}.log"
        directory.mkdir()
        (directory / "shop.py").write_text(code)
        with log.open("wb") as file:
            process = Popen(
                [*COMMAND, "run", "shop:tasks", "--lease", "1s", "--drain", "20s", *options],
                cwd=directory,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=file,
                env={**environment(), "LATER_URL": self._url, "DONE": str(self._done), "PYTHONPATH": os.getcwd()},
            )
        worker = Worker(process, log)
        children: list[int] = []
        try:
            yield worker
            children = worker.children() if process.poll() is None else []
        finally:
            worker.kill()
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def done(self) -> list[tuple[str, str, int]]:
        """Return the topics and ids of the tasks that were done, and the processes that did them."""
        lines = self._done.read_text().splitlines()
        return [(topic, id, int(pid)) for topic, id, pid in map(str.split, lines)]

    def process_of(self, id: str) -> int | None:
        """Return the process that has done a task, if one has."""
        return next((pid for _, done, pid in self.done() if done == id), None)

    def wait_for_end(self, ids: set[str]) -> None:
        """Wait until the handlers have done these tasks, and the daemon knows it."""
        wait_until(lambda: {id for _, id, _ in self.done()} >= ids, "every task to be done", within_s=60)
        wait_until(self._is_quiet, "every task to be acked", within_s=60)

    def _is_quiet(self) -> bool:
        counts = [get(self._url, f"/topics/{topic}").body for topic in ("order", "bill", "ship")]
        return not any(count["delay"] or count["unack"] or count["error"] or count["dead"] for count in counts)


class Creator:
    """A caller that creates tasks of each topic until it is stopped."""

    def __init__(self, url: str, topics: tuple[str, ...]) -> None:
        self.ids: set[str] = set()
        self._url = url
        self._topics = topics
        self._stopped = threading.Event()
        self._wrong: list[object] = []

    @contextmanager
    def run(self) -> Iterator[None]:
        thread = threading.Thread(target=self._create)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(60)
        assert not self._wrong

    def wait_for(self, more: int) -> None:
        """Wait until so many more tasks are created."""
        wanted = len(self.ids) + more
        wait_until(lambda: len(self.ids) >= wanted, "tasks to be created")

    def _create(self) -> None:
        for number in itertools.count():
            if self._stopped.wait(0.02):
                return
            for topic in self._topics:
                id = f"{topic}-{number}"
                task = {"topic": topic, "id": id, "content": str(number), "retry": 0}  # a lost lease costs no retry
                answer = post(self._url, "/create", task)
                if answer.status == 200:
                    self.ids.add(id)
                else:
                    self._wrong.append(answer)


def test_no_task_is_lost_while_a_new_version_takes_the_place_of_an_old_one(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        shop, creator = Deployment(folder, up.url), Creator(up.url, ("order", "bill", "ship"))
        new = APPLICATION + NEW_HANDLER
        with shop.run(APPLICATION) as first, shop.run(APPLICATION) as second, creator.run():
            for worker in (first, second):
                worker.wait_for_log("working on tasks")
            creator.wait_for(12)
            assert first.stop() == 0
            creator.wait_for(12)
            assert not [line for line in shop.done() if line[0] == "ship"]
            with shop.run(new) as third, shop.run(new) as fourth:
                third.wait_for_log("working on tasks")
                creator.wait_for(12)
                second.kill()
                fourth.wait_for_log("working on tasks")
                creator.wait_for(12)
                third.kill()
                creator.wait_for(12)
                assert fourth.stop() == 0
                creator.wait_for(12)
                with shop.run(new) as last:
                    last.wait_for_log("working on tasks")
                    creator.wait_for(12)
        with shop.run(new):
            shop.wait_for_end(creator.ids)


def test_workers_go_on_when_their_daemon_comes_back_and_when_one_of_them_is_killed(folder: Path, data: Path) -> None:
    options = ("--data", str(data), "--listen", f"127.0.0.1:{find_kept_port()}")
    with run_daemon_as_given("up", folder, *options) as up:
        shop = Deployment(folder, up.url)
        with shop.run(APPLICATION + NEW_HANDLER, "--processes", "2") as workers:
            ids = {post(up.url, "/create", {"topic": "order", "content": "1"}).body["id"] for _ in range(10)}
            shop.wait_for_end(ids)
            workers.wait_for_log("working on tasks", times=2)
            os.kill(workers.children()[0], signal.SIGKILL)
            workers.wait_for_log("was killed by SIGKILL: it is started again in 0 s")
            workers.wait_for_log("working on tasks", times=3)
            ids |= {post(up.url, "/create", {"topic": "bill", "content": "1"}).body["id"] for _ in range(10)}
            up.kill()
            time.sleep(2)
            with run_daemon_as_given("up", folder, *options) as again:
                _ = again.url
                ids |= {post(up.url, "/create", {"topic": "ship", "content": "1"}).body["id"] for _ in range(10)}
                shop.wait_for_end(ids)
                children = workers.children()
                assert workers.stop() == 0
                assert all(map(has_ended, children))


def find_kept_port() -> int:
    """Return a free port that stays free while nobody listens: the kernel gives it to no connection of others."""
    for port in random.sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def test_a_second_signal_leaves_at_once(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        shop = Deployment(folder, up.url)
        for processes in ("1", "2"):
            with shop.run(APPLICATION + STUCK_HANDLER, "--processes", processes, "--drain", "1h") as workers:
                id = post(up.url, "/create", {"topic": "stuck", "content": "1"}).body["id"]
                pid = wait_until(partial(shop.process_of, id), "the handler to begin") or 0
                workers.process.send_signal(signal.SIGTERM)
                workers.wait_for_log("tasks have 3600 s to end")
                workers.process.send_signal(signal.SIGINT)
                assert workers.process.wait(60) == 128 + signal.SIGINT
                wait_until(partial(has_ended, pid), "the process of the handler to end")


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()
