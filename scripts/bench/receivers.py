"""Receivers of callbacks: nginx or the light receiver, each in a process of its own, with the same log format."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from scripts.bench.environment import Environment
from scripts.bench.processes import (
    Process,
    count_listeners,
    free_port,
    module_command,
    run_process,
    tree_cpu_s,
    wait_until,
)
from scripts.bench.results import BenchError

NGINX_CONF = """\
daemon off;
worker_processes 1;
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections 8192; }}
http {{
  log_format arrival '$msec $http_webhook_id $http_later_due';
  access_log arrivals.log arrival buffer=64k flush=100ms;
  keepalive_requests 1000000000;
  default_type application/json;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ return 200 '{{"code":100}}'; }}
  }}
}}
"""
POLL_INTERVAL_S = 0.1
DUPLICATES_WAIT_S = 0.3
"""How long to wait for duplicates after all tasks have arrived."""


class Arrival(NamedTuple):
    """A received callback: when it arrived and when it was due, in ms since the epoch."""

    id: bytes
    at_ms: float
    due: bytes

    @property
    def due_ms(self) -> float:
        return datetime.fromisoformat(self.due.decode()).timestamp() * 1000

    @property
    def late_ms(self) -> float:
        return self.at_ms - self.due_ms


class Receiver(NamedTuple):
    """A running receiver."""

    url: str
    log: Path
    process: Process

    def cpu_s(self) -> float:
        return tree_cpu_s(self.process.pid)

    def arrivals(self) -> list[Arrival]:
        """Return the arrivals of tasks so far, in order. Calls without an id are left out."""
        lines = (line.split() for line in self.log.read_bytes().splitlines())
        return [Arrival(id, float(at) * 1000, due) for at, id, due in lines if id != b"-"]

    def wait_for_arrivals(self, tasks: int, within_s: float) -> list[Arrival]:
        """Wait until the callbacks of `tasks` tasks have arrived and return all arrivals.

        Raises BenchError after `within_s`, or if the receiver ends.
        """
        deadline, lines = time.monotonic() + within_s, tasks
        while True:
            lines = self._wait_for_lines(lines, deadline)
            missing = tasks - len({arrival.id for arrival in self.arrivals()})
            if missing <= 0:
                time.sleep(DUPLICATES_WAIT_S)
                return self.arrivals()
            lines += missing

    def _wait_for_lines(self, count: int, deadline: float) -> int:
        """Wait until the log has `count` lines and return their number, without parsing: that would cost CPU time."""
        lines = 0
        with self.log.open("rb") as log:
            while (lines := lines + log.read().count(b"\n")) < count:
                self.process.check()
                if time.monotonic() > deadline:
                    raise BenchError(f"{lines} of {count} callbacks arrived in time")
                time.sleep(POLL_INTERVAL_S)
        return lines


@contextmanager
def run_receiver(environment: Environment) -> Iterator[Receiver]:
    """Run the fastest receiver: nginx where it is installed, otherwise the light receiver."""
    if environment.nginx is None:
        with run_light_receiver(environment) as receiver:
            yield receiver
        return
    port = free_port()
    with environment.temporary_folder() as folder:
        (folder / "nginx.conf").write_text(NGINX_CONF.format(port=port))
        folder.chmod(0o755)  # nginx's workers run as another user if its master is root
        command_line = [environment.nginx, "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]
        with _run_server(command_line, folder, "nginx", port) as receiver:
            yield receiver


@contextmanager
def run_light_receiver(environment: Environment) -> Iterator[Receiver]:
    """Run the light receiver. It logs arrivals to the microsecond, nginx only to the millisecond."""
    port = free_port()
    with (
        environment.temporary_folder() as folder,
        _run_server(module_command("light_receiver", str(port)), folder, "light-receiver", port) as receiver,
    ):
        yield receiver


@contextmanager
def _run_server(command_line: list[str], folder: Path, name: str, port: int) -> Iterator[Receiver]:
    with run_process(command_line, folder, name) as process:
        wait_until(lambda: count_listeners(port) > 0, f"{name} listens", process)
        yield Receiver(f"http://127.0.0.1:{port}/success", folder / "arrivals.log", process)
