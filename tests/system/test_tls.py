"""TLS of the API: every process serves it, and reads a new certificate on SIGHUP."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.delivery.test_tls import CERTIFICATES
from tests.system.daemons import Daemon, run_daemon, run_up
from tests.system.stores import StoreServer
from tests.system.waiting import wait_until


def names_served(daemon: Daemon) -> set[str]:
    """Return the host names in the certificates that some connections are served with."""
    url = urlsplit(daemon.url)
    context = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
    context.check_hostname = False
    names: set[str] = set()
    for _ in range(20):
        with (
            socket.create_connection((url.hostname, url.port), 5) as tcp,
            context.wrap_socket(tcp, server_hostname="localhost") as tls,
        ):
            tls.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert tls.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
            certificate: Any = tls.getpeercert()
            names |= {name for kind, name in certificate["subjectAltName"] if kind == "DNS"}
    return names


def is_ready(daemon: Daemon) -> bool:
    url = urlsplit(daemon.url)
    context = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
    context.check_hostname = False
    connection = HTTPSConnection(url.hostname or "", url.port, timeout=5, context=context)
    with closing(connection):
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200


def test_a_new_certificate_is_served_after_sighup_and_a_broken_one_is_not(
    folder: Path, data: Path, processes: int
) -> None:
    file = folder / "server.pem"
    shutil.copy(CERTIFICATES / "receiver.pem", file)
    with run_up(folder, data, "--tls-cert", str(file)) as up:
        assert up.url.startswith("https://")
        if processes > 1:
            up.wait_for_event("all processes are up")
        assert names_served(up) == {"localhost", "receiver.example"}
        file.write_text("no certificate")
        up.send(signal.SIGHUP)
        wait_until(lambda: up_events(up, "certificate not replaced") == processes, "the broken file is read")
        assert names_served(up) == {"localhost", "receiver.example"}
        shutil.copy(CERTIFICATES / "other_name.pem", file)
        up.send(signal.SIGHUP)
        wait_until(lambda: up_events(up, "certificate replaced") == processes, "the new file is read")
        assert names_served(up) == {"other.example"}
        assert up.stop() == 0


def test_a_process_that_meets_a_broken_certificate_is_started_again_when_it_is_mended(
    folder: Path, data: Path, processes: int
) -> None:
    if processes == 1:
        pytest.skip("a daemon of one process ends with it")
    file = folder / "server.pem"
    shutil.copy(CERTIFICATES / "receiver.pem", file)
    with run_up(folder, data, "--tls-cert", str(file)) as up:
        up.wait_for_event("all processes are up")
        file.write_text("no certificate")
        os.kill(up.children()[0], signal.SIGKILL)
        reason = up.wait_for_event("process cannot be started")["reason"]
        assert reason.startswith(f"--tls-cert {file}: expected a certificate in PEM")
        assert names_served(up) == {"localhost", "receiver.example"}
        shutil.copy(CERTIFICATES / "other_name.pem", file)
        up.send(signal.SIGHUP)  # for the process that runs; the other one is started with it
        wait_until(lambda: names_served(up) == {"other.example"} and is_ready(up), "both processes serve the new one")
        assert up.stop() == 0


def up_events(daemon: Daemon, event: str) -> int:
    return sum(line["event"] == event for line in daemon.events())


def test_a_certificate_that_cannot_be_read_stops_the_start(folder: Path, data: Path) -> None:
    with run_daemon("up", folder, "--data", str(data), "--tls-cert", "/missing.pem") as up:
        assert up.wait_for_exit() == 2
        last_line = up.log.read_text().splitlines()[-1]
    assert last_line == "later: --tls-cert /missing.pem: cannot be read: No such file or directory"


def test_a_health_endpoint_does_tls_too(folder: Path, store: StoreServer) -> None:
    certificate = os.fspath(CERTIFICATES / "receiver.pem")
    with run_daemon("worker", folder, "--redis", store.url, "--tls-cert", certificate) as worker:
        assert names_served(worker) == {"localhost", "receiver.example"}
