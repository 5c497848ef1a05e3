"""Receivers that never end a reply, and more receivers than a process may have connections."""

from __future__ import annotations

import os
import resource
import time
from functools import partial
from pathlib import Path

import pytest

from tests.system.api_client import build_tasks, create_many, read_metric
from tests.system.daemons import Daemon, run_up
from tests.system.lateness import measure_p99_lateness
from tests.system.raw_receivers import run_raw_receiver
from tests.system.receivers import Receiver
from tests.system.waiting import wait_until

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
P99_S = 0.2
TRIES = 3
"""The best of several tries counts because the machine has other work."""
HOSTS = [f"127.1.{i // 250}.{i % 250 + 1}" for i in range(5000)]
OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "/interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "/hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
    "/blank-lines": (b"", b"\r\n"),
    "/headers": (OK, b"X: x\r\n"),
    "/header": (OK + b"X: ", b"x"),
    "/body": (OK + b"\r\n", b"x"),
    "/chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "/extension": (OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x"),
    "/trailers": (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: x\r\n"),
    "/error": (b"HTTP/1.1 500 No\r\n\r\n", b"x"),
}
"""Replies without an end: a beginning, and what then repeats."""


def limit_descriptors(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def cpu_s(up: Daemon) -> float:
    """Return the CPU time of the daemon and its processes."""
    total = 0
    for pid in (up.pid, *up.children()):
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        total += int(user) + int(system)
    return total / TICKS_PER_S


def resident_mb(up: Daemon) -> float:
    return max(
        int(line.split()[1]) / 1024
        for pid in (up.pid, *up.children())
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    )


def outcomes(up: Daemon) -> int:
    """Return how many deliveries have an outcome."""
    names = (f'later_deliveries_total{{outcome="{outcome}"}}' for outcome in ("done", "failed"))
    return int(sum(read_metric(up.url, name) for name in names))


@pytest.mark.alone
@pytest.mark.parametrize("path", ENDLESS)
def test_fifty_replies_without_an_end_cost_a_fiftieth_of_a_second_and_less_than_a_megabyte_each(
    folder: Path, data: Path, path: str
) -> None:
    with run_raw_receiver(ENDLESS) as receiver, run_up(folder, data, "--retry", "0") as up:
        create_many(up.url, build_tasks(50, receiver.url("/warm"), time.time(), topic="warm"))
        wait_until(lambda: outcomes(up) == 50, "the first calls are made")
        cpu_before_s, memory_before_mb = cpu_s(up), resident_mb(up)
        create_many(up.url, build_tasks(50, receiver.url(path), time.time(), topic="endless"))
        wait_until(lambda: outcomes(up) == 100, "every reply is given up")
        assert cpu_s(up) - cpu_before_s < 50 * 0.02
        assert resident_mb(up) - memory_before_mb < 50 * 1


@pytest.mark.alone
def test_replies_without_an_end_do_not_delay_another_topic(folder: Path, data: Path, receiver: Receiver) -> None:
    """Fifty of each kind, all due at once, and again and again."""
    with run_raw_receiver(ENDLESS) as endless, run_up(folder, data, "--retry-base", "0.5", "--retry-cap", "0.5") as up:
        for path in ENDLESS:
            create_many(up.url, build_tasks(50, endless.url(path), time.time(), topic="endless"))
        assert any(measure_p99_lateness(up, receiver, receiver.url()) < P99_S for _ in range(TRIES))
        assert endless.calls["/interim"] > 50


def test_a_process_with_1024_descriptors_calls_5000_receivers(folder: Path, data: Path) -> None:
    with (
        run_raw_receiver() as receiver,
        run_up(folder, data, "--retry", "0", preexec_fn=partial(limit_descriptors, 1024)) as up,
    ):
        tasks = [build_tasks(1, receiver.url(f"/{host}", host), time.time())[0] for host in HOSTS]
        create_many(up.url, tasks)
        wait_until(lambda: outcomes(up) == len(HOSTS), "every receiver is called", 60)
        assert receiver.calls == {f"/{host}": 1 for host in HOSTS}
        assert read_metric(up.url, "later_delivery_local_faults_total") == 0
        assert read_metric(up.url, 'later_deliveries_total{outcome="done"}') == len(HOSTS)


def test_a_process_with_fewer_descriptors_than_slots_delivers_everything_without_a_retry(
    folder: Path, data: Path
) -> None:
    """With 150 descriptors and 400 slots."""
    with (
        run_raw_receiver() as receiver,
        run_up(folder, data, "--retry", "0", "--concurrency", "400", preexec_fn=partial(limit_descriptors, 150)) as up,
    ):
        url = up.url
        tasks = [build_tasks(1, receiver.url(f"/{host}", host), time.time() + 1)[0] for host in HOSTS[:600]]
        create_many(url, tasks)
        wait_until(lambda: len(receiver.calls) == 600, "every receiver is called", 60)
        wait_until(lambda: read_metric(url, 'later_deliveries_total{outcome="done"}') == 600, "all are settled", 60)
        assert read_metric(url, 'later_deliveries_total{outcome="failed"}') == 0
