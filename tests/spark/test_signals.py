"""A command ended by SIGTERM or by the end of its terminal. Ctrl-C is in tests/spark/test_session.py."""

from __future__ import annotations

import os
import pty
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import pytest

from tests.spark.faulty_proxy import FaultyProxy, run_proxy
from tests.spark.later_server import DAY_S, UNUSED_CALLBACK, LaterServer, kill_session, write_parquet
from tests.system.daemons import COMMAND, TERMINAL, environment
from tests.system.waiting import wait_until

DEADLINE_S = 60
COUNT = 1500
BATCH = 500
QUICK = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONTINUE_HINT = "tasks were created; run the same command again to continue"


@pytest.fixture
def proxy(server: LaterServer) -> Iterator[FaultyProxy]:
    """A proxy that forwards one batch and holds the others."""
    with run_proxy(server.url) as proxy:
        proxy.hold_after(1)
        yield proxy


@pytest.fixture
def job(proxy: FaultyProxy, tmp_path: Path, request: pytest.FixtureRequest) -> Sequence[str]:
    """The arguments of a `later bulk create` that the proxy keeps from ending."""
    constants = {"topic": "t", "callback": UNUSED_CALLBACK, "delay": DAY_S}
    columns = {name: [value] * COUNT for name, value in constants.items()}
    orders = write_parquet(tmp_path / "orders", 1, key=range(COUNT), **columns)
    options = ("--job", request.node.name, "--url", proxy.url, "--batch", BATCH, "--rejects", tmp_path / "rejects")
    return [str(word) for word in ("bulk", "create", orders, *options, "--master", "local[2,4]", "--conf", QUICK)]


@contextmanager
def running_job(
    *words: str, proxy: FaultyProxy, server: LaterServer, job: Sequence[str], **files: Any
) -> Iterator[Popen[bytes]]:
    """Run the job until one batch is in the store and the command knows it."""
    process = Popen([*words, *job], stdout=DEVNULL, env=environment(), start_new_session=True, **files)
    try:
        assert proxy.is_holding.wait(DEADLINE_S)
        wait_until(lambda: server.job_counts(job[job.index("--job") + 1])[0] == BATCH, "a batch is in the store")
        time.sleep(1)  # the command asks the store every half a second
        yield process
    finally:
        kill_session(process)


def read_terminal(master: int) -> str:
    """Read all output of a terminal, until no process has it open."""
    output = b""
    while True:
        try:
            output += os.read(master, 65536)
        except OSError:
            return output.decode()


def remaining_files(directory: Path) -> list[str]:
    """Return what is left beside the input: an empty directory of rejects is no incomplete table."""
    others = (path for path in directory.rglob("*") if path.relative_to(directory).parts[0] != "orders")
    return sorted(path.name for path in others if path.name != "rejects")


def test_sigterm_ends_a_job_as_ctrl_c_does(
    proxy: FaultyProxy, server: LaterServer, job: Sequence[str], tmp_path: Path
) -> None:
    master, slave = pty.openpty()
    with running_job(*COMMAND, proxy=proxy, server=server, job=job, stderr=slave) as process:
        os.close(slave)
        process.terminate()
        output = read_terminal(master)

        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    os.close(master)
    assert re.findall(r"later: .*|Traceback.*|Error.*", output) == [f"later: at least {BATCH} {CONTINUE_HINT}\r"]
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l"), "the cursor is visible again"
    assert remaining_files(tmp_path) == []


def test_the_end_of_the_terminal_ends_a_job(
    proxy: FaultyProxy, server: LaterServer, job: Sequence[str], tmp_path: Path
) -> None:
    master, slave = pty.openpty()
    leader = (*TERMINAL, os.ttyname(slave))
    with running_job(*leader, proxy=proxy, server=server, job=job, stderr=slave) as process:
        os.close(slave)
        os.close(master)

        assert process.wait(DEADLINE_S) == 128 + signal.SIGHUP
    assert remaining_files(tmp_path) == []
