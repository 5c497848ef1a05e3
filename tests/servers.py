"""Real store servers for tests: the Valkey shipped with later, and Redis where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
            _wait_for(url, process)
            yield url, process
        finally:
            process.kill()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
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
