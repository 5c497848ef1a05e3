"""Receivers of callbacks: nginx, or a light one of our own; both in processes of their own, both with the same log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from scripts.bench.environment import Setting
from scripts.bench.processes import Running, a_process, eventually, family_cpu_s, free_port, listeners, python
from scripts.bench.results import BenchError

NGINX = """\
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
LOOK_EVERY_S = 0.1
LINGER_S = 0.3
"""How long to wait, when all have come, for what comes twice."""


class Arrival(NamedTuple):
    """A callback that came: when, and when it was due; ms since the epoch."""

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
    running: Running

    def cpu_s(self) -> float:
        return family_cpu_s(self.running.pid)

    def arrivals(self) -> list[Arrival]:
        """All that have come, in order, of those that name a task."""
        lines = (line.split() for line in self.log.read_bytes().splitlines())
        return [Arrival(id, float(at) * 1000, due) for at, id, due in lines if id != b"-"]

    def all_arrived(self, tasks: int, within_s: float) -> list[Arrival]:
        """All callbacks that have come, once so many tasks have, some perhaps twice. Raises BenchError."""
        deadline, lines = time.monotonic() + within_s, tasks
        while True:
            lines = self._await_lines(lines, deadline)
            missing = tasks - len({arrival.id for arrival in self.arrivals()})
            if missing <= 0:
                time.sleep(LINGER_S)
                return self.arrivals()
            lines += missing

    def _await_lines(self, count: int, deadline: float) -> int:
        """Wait until the log has so many lines; how many it has. To read them meanwhile would take too much."""
        lines = 0
        with self.log.open("rb") as log:
            while (lines := lines + log.read().count(b"\n")) < count:
                self.running.check()
                if time.monotonic() > deadline:
                    raise BenchError(f"{lines} of {count} callbacks came in time")
                time.sleep(LOOK_EVERY_S)
        return lines


@contextmanager
def a_receiver(setting: Setting) -> Iterator[Receiver]:
    """The receiver that takes most: nginx, where it is installed."""
    if setting.nginx is None:
        with a_light_receiver(setting) as receiver:
            yield receiver
        return
    port = free_port()
    with setting.a_folder() as folder:
        (folder / "nginx.conf").write_text(NGINX.format(port=port))
        folder.chmod(0o755)  # nginx' worker is somebody else where its master is root
        line = [setting.nginx, "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]
        with _listening(line, folder, "nginx", port) as receiver:
            yield receiver


@contextmanager
def a_light_receiver(setting: Setting) -> Iterator[Receiver]:
    """The receiver that disturbs least and knows arrivals to the microsecond."""
    port = free_port()
    with (
        setting.a_folder() as folder,
        _listening(python("light_receiver", str(port)), folder, "light-receiver", port) as receiver,
    ):
        yield receiver


@contextmanager
def _listening(line: list[str], folder: Path, name: str, port: int) -> Iterator[Receiver]:
    with a_process(line, folder, name) as running:
        eventually(lambda: listeners(port) > 0, f"{name} listens", running)
        yield Receiver(f"http://127.0.0.1:{port}/success", folder / "arrivals.log", running)
