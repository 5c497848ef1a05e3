"""Clients that hold connections and say nothing take no descriptor from the deliveries, and no port for long."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from later.api.server_connections import FIRST_HEAD_S
from tests.system.api_client import build_tasks, create_many, read_metric
from tests.system.daemons import COMMAND, run_up
from tests.system.receivers import Receiver
from tests.system.waiting import wait_until

FILES = 256
LIMITED = ("/bin/sh", "-c", f'ulimit -n {FILES} && exec "$@"', "sh", *COMMAND)
"""The command where few files may be open."""
SILENT = 320
TASKS = 100


def test_silent_connections_take_no_descriptor_from_deliveries(
    folder: Path, data: Path, receiver: Receiver, processes: int
) -> None:
    with run_up(folder, data, "--retry", "0", program=LIMITED) as up:
        address = (urlsplit(up.url).hostname, urlsplit(up.url).port)
        create_many(up.url, build_tasks(TASKS, receiver.url(), time.time() + 3))
        silent = [socket.create_connection(address, 5) for _ in range(SILENT)]
        opened = time.monotonic()
        assert sum(map(is_closed, silent)) >= SILENT - processes * (FILES // 4)
        wait_until(lambda: len(receiver.calls) == TASKS, "all tasks are delivered")
        assert time.monotonic() - opened < FIRST_HEAD_S, "the connections were still open"
        wait_until(lambda: all(map(is_closed, silent)), "silent clients are cut")
        assert read_metric(up.url, "later_connections_refused_total") > 0
        assert read_metric(up.url, "later_delivery_local_faults_total") == 0
        assert read_metric(up.url, 'later_deliveries_total{outcome="done"}') == TASKS
        assert [event["event"] for event in up.events()].count("connections refused") in range(1, processes + 1)
        for connection in silent:
            connection.close()


def is_closed(connection: socket.socket) -> bool:
    """Return True if the daemon has ended the connection."""
    connection.settimeout(0.001)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
