"""The daemons of deploy/compose.yml as their containers start them, without containers.

The same commands and variables, on loopback, in a mount namespace in which nothing but one folder can be written, and
without any capability. It needs `unshare` and `setpriv` (util-linux), and permission to make a namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

import later
from tests.deploy.test_compose import COMPOSE, environment_of
from tests.servers import SERVERS, free_ports, wait_for_server
from tests.system.daemons import COMMAND, Daemon, environment, run_daemon_as_given

DEPLOY = Path(later.__file__).parents[1] / "deploy"
READ_ONLY = """
set -e
mount --make-rprivate /
mount -o remount,bind,ro /
for folder in $UNWRITABLE; do
    mount --bind "$folder" "$folder"
    mount -o remount,bind,ro "$folder"
done
mount --bind "$TMPDIR" "$TMPDIR"
mount -o remount,bind,rw "$TMPDIR"
cd /
exec setpriv --no-new-privs --bounding-set -all "$@"
"""
"""As `docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges`."""
UNWRITABLE = sorted({str(Path.home()), sysconfig.get_path("purelib"), str(Path(later.__file__).parents[1])}, key=len)
"""Folders that may be on file systems of their own, the outer ones first."""
PASSWORDS = {
    "serve": "PASSWORD_OF_LATER_API",
    "worker": "PASSWORD_OF_LATER_WORKER",
    "operator": "PASSWORD_OF_LATER_OPERATOR",
}


def contained(command: tuple[str, ...] = COMMAND) -> tuple[str, ...]:
    """Return the command line that runs a command as in a container."""
    as_root = () if os.geteuid() == 0 else ("--map-root-user",)
    return ("unshare", "--mount", *as_root, "sh", "-c", READ_ONLY, "sh", *command)


@cache
def why_not() -> str:
    """Return why nothing can be run in this way here; empty if it can."""
    try:
        done = subprocess.run(
            contained(("true",)), capture_output=True, text=True, check=False, env=contained_environment(Path("/tmp"))
        )
    except OSError as error:
        return str(error)
    return done.stderr.strip()


def contained_environment(folder: Path) -> dict[str, str]:
    """Return the variables of a process that may write below `folder` only."""
    return {**environment(), "TMPDIR": str(folder), "UNWRITABLE": " ".join(UNWRITABLE)}


class Deployment:
    """The store of compose.yml on a port of this machine, with the passwords that the script made."""

    def __init__(self, folder: Path, port: int, passwords: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = port
        self.passwords = passwords

    def environment_of(self, service: str) -> dict[str, str]:
        """Return the environment of a service; the store has another address, and ports are any free ones."""
        env = environment_of(COMPOSE["services"][service], **self.passwords, LATER_GUARD_ALLOW="127.0.0.0/8")
        env["LATER_REDIS"] = env["LATER_REDIS"].replace("@valkey:6379", f"@127.0.0.1:{self.port}")
        listening = dict(zip(("LATER_LISTEN", "LATER_HEALTH"), (f"0.0.0.0:{p}" for p in free_ports(2)), strict=True))
        kept = {name: value for name, value in env.items() if name not in ("PATH", "LATER_LOG_FORMAT")}
        return {
            **kept,
            **listening,
            "TMPDIR": str(self.folder / "tmp"),
            "UNWRITABLE": " ".join(UNWRITABLE),
            "HOME": "/",
        }

    def run(self, service: str, env: Mapping[str, str]) -> AbstractContextManager[Daemon]:
        """Run a daemon as its container does, with this environment."""
        (command,) = COMPOSE["services"][service]["command"]
        return run_daemon_as_given(command, self.folder, program=contained(), env=env)

    def operate(self, *words: str) -> str:
        """Run a command as the service `operator` does, and return its output."""
        env = {**environment(), **self.environment_of("operator")}
        done = subprocess.run([*contained(), *words], capture_output=True, text=True, check=False, env=env, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def run_deployment(folder: Path) -> Iterator[Deployment]:
    """Make the passwords and run the store with the command of its service."""
    private, data = folder / "private", folder / "store"
    subprocess.run([DEPLOY / "make-passwords.sh", private], check=True)
    lines = (private / "passwords.env").read_text().splitlines()
    passwords = dict(line.split("=", 1) for line in lines)
    (folder / "tmp").mkdir()
    data.mkdir()
    (port,) = free_ports(1)
    rules = (private / "redis.conf").read_text()
    (folder / "redis.conf").write_text(rules.replace("dir /var/lib/redis", f"dir {data}"))
    places = {"/etc/later/redis.conf": str(folder / "redis.conf"), "* -::*": "127.0.0.1"}
    _, *arguments = COMPOSE["services"]["valkey"]["command"]
    command = [str(SERVERS["valkey"]), *(places.get(text, text) for text in arguments), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for_server(f"redis://later-monitor:{passwords['PASSWORD_OF_LATER_MONITOR']}@127.0.0.1:{port}", process)
            yield Deployment(folder, port, passwords)
        finally:
            process.kill()


WRITES = """
import sys
from pathlib import Path
for folder in sys.argv[1:]:
    try:
        (Path(folder) / "written").touch()
    except OSError:
        continue
    print(folder)
"""


def writable(folders: list[str], folder: Path) -> list[str]:
    """Return those of the folders that a contained process can write to; `folder` is its TMPDIR."""
    command = contained((sys.executable, "-c", WRITES, *folders))
    env = contained_environment(folder)
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.split()
