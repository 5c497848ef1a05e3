"""Real store servers for tests: the Valkey shipped with later, and Redis where it is installed."""

from __future__ import annotations

import atexit
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from later.embedded import find_server

REDIS = shutil.which("redis-server")
SERVERS = {"valkey": find_server(), **({"redis": Path(REDIS)} if REDIS else {})}
START_TIMEOUT_S = 10


@contextmanager
def run_server(name: str, folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a store server on a socket in `folder`; yield its URL and process."""
    socket = folder / f"{name}.sock"
    command = [str(SERVERS[name]), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as process:
        try:
            url = f"unix://{socket}"
            wait_for_server(url, process)
            yield url, process
        finally:
            process.kill()


@cache
def shared_server() -> str:
    """Run the Valkey shipped with later until this process ends, and return its URL. Each test empties it first."""
    stack = ExitStack()
    folder = stack.enter_context(TemporaryDirectory(prefix="later-"))
    url, _ = stack.enter_context(run_server("valkey", Path(folder)))
    atexit.register(stack.close)
    return url


class ReplicatedServer:
    """A store server and a replica of it. A test cuts the link between them, and promotes the replica."""

    def __init__(
        self,
        primary: tuple[str, subprocess.Popen[bytes]],
        replica: tuple[str, subprocess.Popen[bytes]],
        replica_port: int,
    ) -> None:
        self.primary_url, self._primary = primary
        self.replica_url, self._replica = replica
        self.replica_port = replica_port

    def wait_for_replica(self) -> None:
        """Wait until the replica has all that the primary has."""
        deadline = time.monotonic() + START_TIMEOUT_S
        with redis.Redis.from_url(self.primary_url) as primary, redis.Redis.from_url(self.replica_url) as replica:
            while primary.info("replication")["master_repl_offset"] != replica.info("replication")["slave_repl_offset"]:
                assert time.monotonic() < deadline, "the replica lags"
                time.sleep(0.01)

    def cut_link(self) -> None:
        """Let the replica know nothing of what the primary is told from now on."""
        with redis.Redis.from_url(self.replica_url) as replica:
            replica.replicaof("127.0.0.1", 1)

    @contextmanager
    def stopped_replica(self) -> Iterator[None]:
        """Let the replica do nothing in this block, while its connection to the primary stays open."""
        self._replica.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._replica.send_signal(signal.SIGCONT)

    def fail_over(self) -> None:
        """Kill the primary, and promote the replica."""
        self._primary.kill()
        self._primary.wait()
        with redis.Redis.from_url(self.replica_url) as replica:
            replica.replicaof("NO", "ONE")


def free_ports(count: int) -> list[int]:
    """Return TCP ports of this machine that nobody uses now."""
    with ExitStack() as stack:
        unused = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in unused]


@contextmanager
def run_replicated_server(name: str, folder: Path, *options: str) -> Iterator[ReplicatedServer]:
    """Run a store server and a replica that has all that the server has, both with these options."""
    for role in ("primary", "replica"):
        (folder / role).mkdir()
    port, replica_port = free_ports(2)  # replicas connect by TCP only
    primary_options = ("--port", str(port), "--repl-diskless-sync-delay", "0", *options)
    replica_options = ("--port", str(replica_port), "--repl-diskless-sync-delay", "0", *options)
    with (
        run_server(name, folder / "primary", *primary_options) as primary,
        run_server(name, folder / "replica", "--replicaof", f"127.0.0.1 {port}", *replica_options) as replica,
    ):
        server = ReplicatedServer(primary, replica, replica_port)
        server.wait_for_replica()
        yield server


def wait_for_server(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    with redis.Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
                return
            except redis.RedisError:
                assert process.poll() is None, "the server exited at once"
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.01)
