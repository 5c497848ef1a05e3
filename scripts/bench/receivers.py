"""Receivers of callbacks, each in a process of its own: nginx or the light receiver, and one with faults."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

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
worker_rlimit_nofile 30000;
events {{ worker_connections 24000; }}
http {{
  log_format arrival '$msec $http_webhook_id $http_later_due';
  access_log arrivals.log arrival buffer=64k flush=100ms;
  keepalive_requests 1000000000;
  keepalive_timeout {keep_alive_s};
  ssl_session_cache shared:tls:10m;
  default_type application/json;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  server {{
    listen {address}:{port} backlog=4096{tls};
    location / {{ return 200 '{{"code":100}}'; }}
  }}
}}
"""
TLS = " ssl; ssl_certificate cert.pem; ssl_certificate_key key.pem"
KEEP_ALIVE_S = 75
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


class Listener(NamedTuple):
    """How a receiver takes connections: with TLS, keeping them, and on how many addresses of this machine."""

    tls: bool = False
    keep_alive: bool = True
    origins: int = 1

    def why_missing(self, environment: Environment) -> str:
        """Return why this cannot be measured here; empty if it can. Only nginx has TLS, or closes connections."""
        if environment.nginx is None and (self.tls or not self.keep_alive):
            return "nginx is not installed"
        return "openssl is not installed" if self.tls and shutil.which("openssl") is None else ""


class Receiver(NamedTuple):
    """A running receiver. `certificate` is what its callers must trust. Its log counts from the byte `start` on."""

    url: str
    log: Path
    process: Process
    certificate: Path | None = None
    start: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of its callers."""
        return {} if self.certificate is None else {"SSL_CERT_FILE": str(self.certificate)}

    def urls(self, origins: int) -> list[str]:
        """Return the URL at so many addresses of this machine."""
        if origins == 1:
            return [self.url]
        addresses = (f"127.1.{number // 250}.{number % 250 + 1}" for number in range(origins))
        return [self.url.replace("127.0.0.1", address, 1) for address in addresses]

    def cpu_s(self) -> float:
        return tree_cpu_s(self.process.pid)

    def from_now_on(self) -> Receiver:
        """Return this receiver without its arrivals so far."""
        return self._replace(start=self.log.stat().st_size if self.log.exists() else 0)

    def arrivals(self) -> list[Arrival]:
        """Return the arrivals of tasks so far, in order. Calls without an id are left out."""
        with self._open_log() as log:
            lines = [line.split() for line in log]
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
        with self._open_log() as log:
            while (lines := lines + log.read().count(b"\n")) < count:
                self.process.check()
                if time.monotonic() > deadline:
                    raise BenchError(f"{lines} of {count} callbacks arrived in time")
                time.sleep(POLL_INTERVAL_S)
        return lines

    def _open_log(self) -> BinaryIO:
        log = self.log.open("rb")
        log.seek(self.start)
        return log


DEFAULT_LISTENER = Listener()


@contextmanager
def run_receiver(environment: Environment, listener: Listener = DEFAULT_LISTENER) -> Iterator[Receiver]:
    """Run the fastest receiver: nginx where it is installed, otherwise the light receiver."""
    address = "127.0.0.1" if listener.origins == 1 else "0.0.0.0"
    if environment.nginx is None:
        with run_light_receiver(environment, address) as receiver:
            yield receiver
        return
    port = free_port()
    with environment.temporary_folder() as folder:
        keep_alive_s, tls = KEEP_ALIVE_S if listener.keep_alive else 0, TLS if listener.tls else ""
        (folder / "nginx.conf").write_text(
            NGINX_CONF.format(address=address, port=port, keep_alive_s=keep_alive_s, tls=tls)
        )
        certificate = make_certificate(folder) if listener.tls else None
        folder.chmod(0o755)  # nginx's workers run as another user if its master is root
        command_line = [environment.nginx, "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]
        with _run_server(command_line, folder, "nginx", port) as receiver:
            scheme = "https" if listener.tls else "http"
            yield receiver._replace(url=f"{scheme}://127.0.0.1:{port}/success", certificate=certificate)


def make_certificate(folder: Path) -> Path:
    """Make a certificate for 127.0.0.1, which is its own authority, and its key."""
    files = ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=127.0.0.1", "-days", "2"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command = ["openssl", "req", "-x509", *key, *files, "-addext", "subjectAltName=IP:127.0.0.1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"openssl: {done.stderr.strip()}")
    return folder / "cert.pem"


@contextmanager
def run_light_receiver(environment: Environment, address: str = "127.0.0.1") -> Iterator[Receiver]:
    """Run the light receiver. It logs arrivals to the microsecond, nginx only to the millisecond."""
    port = free_port()
    command_line = module_command("light_receiver", str(port), address)
    with (
        environment.temporary_folder() as folder,
        _run_server(command_line, folder, "light-receiver", port) as receiver,
    ):
        yield receiver


@contextmanager
def run_faulty_receiver(environment: Environment) -> Iterator[int]:
    """Run the receiver with faults on every address of this machine; yield its port."""
    port = free_port()
    with (
        environment.temporary_folder() as folder,
        _run_server(module_command("faulty_receiver", str(port)), folder, "faulty-receiver", port),
    ):
        yield port


@contextmanager
def _run_server(command_line: list[str], folder: Path, name: str, port: int) -> Iterator[Receiver]:
    with run_process(command_line, folder, name) as process:
        wait_until(lambda: count_listeners(port) > 0, f"{name} listens", process)
        yield Receiver(f"http://127.0.0.1:{port}/success", folder / "arrivals.log", process)
