"""The users of deploy/redis.conf, one for each role, on a server of a test."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import later
from tests.servers import SERVERS, wait_for_server

CONFIGURATION = Path(later.__file__).parents[1] / "deploy" / "redis.conf"
_PASSWORD = re.compile(r"#SHA256-OF-THE-PASSWORD-OF-([a-z-]+)")


def configuration_with_passwords() -> str:
    """Return the file as somebody completes it: the password of each user is its name."""
    return _PASSWORD.sub(lambda user: "#" + hashlib.sha256(user[1].encode()).hexdigest(), CONFIGURATION.read_text())


def user_rules() -> dict[str, list[str]]:
    """Return the rules of each user but `default`, in order."""
    lines = [line.split() for line in configuration_with_passwords().splitlines() if line.startswith("user ")]
    return {name: rules for _, name, *rules in lines if name != "default"}


def user_lines() -> list[str]:
    """Return the lines of all users, with those that the file has as comments: of sentinels and replicas."""
    lines = [line.removeprefix("# ") for line in configuration_with_passwords().splitlines()]
    return [line for line in lines if line.startswith("user ")]


def commands_of(user: str) -> set[str]:
    """Return the commands that a user may run."""
    return {rule[1:] for rule in user_rules()[user] if rule.startswith("+") and not rule.startswith("+@")}


def url_as(user: str, url: str) -> str:
    """Return the URL of a server's socket for this user."""
    scheme, path = url.split("://")
    return f"{scheme}://{user}:{user}@{path}"


@contextmanager
def run_configured_server(folder: Path, name: str) -> Iterator[str]:
    """Run a server with the file, on a socket in `folder`; yield the socket's URL. `name` is one of `SERVERS`."""
    file, url = folder / "redis.conf", f"unix://{folder / 'redis.sock'}"
    file.write_text(configuration_with_passwords().replace("dir /var/lib/redis", f"dir {folder}"))
    command: list[str | Path] = [SERVERS[name], file, "--port", "0", "--unixsocket", folder / "redis.sock"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for_server(url_as("admin", url), process)
            yield url
        finally:
            process.kill()
