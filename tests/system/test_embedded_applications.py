"""Applications without a daemon, as processes: one of them is killed, the other stopped."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from later import Later, StoreClaims
from tests.system.stores import StoreServer

PROGRAM = Path(__file__).with_name("embedded_application.py")
TASKS = 300


@contextmanager
def run_application(store: str, runs: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROGRAM), store, str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "works\n"
            yield process
        finally:
            process.kill()


def read_runs(runs: Path, what: str) -> list[list[str]]:
    """Return the whole lines about what has `begun` or is `done`."""
    lines = runs.read_text().split("\n")[:-1] if runs.exists() else []
    return [words for line in lines if (words := line.split())[0] == what]


def wait_for_runs(runs: Path, count: int) -> None:
    deadline = time.monotonic() + 90
    while len({name for _, name, *_ in read_runs(runs, "done")}) < count:
        assert time.monotonic() < deadline, "the tasks are not done"
        time.sleep(0.02)


async def enqueue(store: str) -> None:
    tasks = Later(StoreClaims(store), patience=60)
    handler = tasks.handler("note")(note)
    async with tasks:
        results = await tasks.enqueue_many([handler.item(str(number)) for number in range(TASKS)])
    assert not [result for result in results if isinstance(result, Exception)]


async def note(name: str) -> None:
    """Stand for the handler of the other processes: nothing is done in this one."""


def test_tasks_of_an_application_that_is_killed_come_again_in_the_other_and_a_stop_loses_none(
    folder: Path, store: StoreServer
) -> None:
    runs = folder / "runs"
    with run_application(store.url, runs) as killed, run_application(store.url, runs) as stopped:
        asyncio.run(enqueue(store.url))
        wait_for_runs(runs, 40)
        killed.kill()
        wait_for_runs(runs, 120)
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(60) == 0
        with run_application(store.url, runs):
            wait_for_runs(runs, TASKS)
    begun = read_runs(runs, "begun")
    assert {name for _, name, *_ in read_runs(runs, "done")} == {str(number) for number in range(TASKS)}
    assert {int(pid) for *_, pid in begun} > {killed.pid, stopped.pid}
    assert {failures for *_, failures, _ in begun} == {"0"}
