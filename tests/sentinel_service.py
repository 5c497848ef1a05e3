"""A primary, its replicas and the sentinels that watch them, for tests."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from later.address_types import Address
from tests.delayed_link import Cut, DelayedLink, run_delayed_link
from tests.redis_users import user_lines
from tests.servers import SERVERS, START_TIMEOUT_S, free_ports

SERVICE = "orders"
DOWN_AFTER_MS = 500
HOST = "127.0.0.1"
USER = "later"
"""The user of the servers, where they have those of deploy/redis.conf: the password of each is its name."""
SENTINEL_PASSWORD = "of-the-sentinels"

Processes = dict[Address, subprocess.Popen[bytes]]


class SentinelService:
    """Servers by their addresses, the first one the primary at the start, and sentinels."""

    link: DelayedLink | None = None
    """The way to the first server, if it is slow."""

    def __init__(self, servers: Processes, sentinels: Processes, *, has_users: bool) -> None:
        self.servers = servers
        self.sentinels = sentinels
        self._has_users = has_users

    @property
    def first(self) -> Address:
        """The server that is the primary at the start."""
        return next(iter(self.servers))

    @property
    def replicas(self) -> list[Address]:
        """The servers that are its replicas at the start."""
        return list(self.servers)[1:]

    @property
    def url(self) -> str:
        url = url_of(list(self.sentinels))
        if self._has_users:
            url = url.replace("://", f"://{USER}:{USER}@") + f"?sentinel_password={SENTINEL_PASSWORD}"
        return url

    def connect(self, address: Address) -> redis.Redis:
        """Return a client of one server or sentinel."""
        login = dict[str, Any]()
        if self._has_users:
            is_sentinel = address in self.sentinels
            login = {"password": SENTINEL_PASSWORD} if is_sentinel else {"username": "admin", "password": "admin"}
        return redis.Redis(host=address.host, port=address.port, **login)

    def primary(self, sentinel: Address | None = None) -> Address:
        """Return the primary that a sentinel names; without one, the first sentinel that runs."""
        asked = sentinel or next(address for address, process in self.sentinels.items() if process.poll() is None)
        with self.connect(asked) as client:
            host, port = _run(client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return Address(host.decode(), int(port))

    def kill(self, address: Address) -> None:
        """End a server or a sentinel as a machine's failure does."""
        process = {**self.servers, **self.sentinels}[address]
        process.kill()
        process.wait()

    def lose_first(self, how: Cut) -> None:
        """Lose what the first server has sent, and is under way. With `Cut.ALL` it ends; otherwise later reaches it."""
        assert self.link is not None
        self.link.cut(how)
        if how is Cut.ALL:
            self.kill(self.first)

    def refuse_demotion(self) -> None:
        """Let the first server stay a primary whatever the sentinels say, as one does that they cannot reach."""
        with self.connect(self.first) as first:
            first.acl_setuser(
                "default", enabled=True, nopass=True, categories=["+@all"], commands=["-slaveof", "-replicaof"]
            )

    def fail_over(self) -> Address:
        """Have the sentinels make another server the primary, while all live. Return its address."""
        before = self.primary()
        with self.connect(next(iter(self.sentinels))) as client:
            _run(client, "SENTINEL", "FAILOVER", SERVICE)
        return self.wait_for_another(before)

    def wait_for_another(self, before: Address) -> Address:
        """Wait until most sentinels name another primary, which says so itself. Return its address."""
        deadline = time.monotonic() + 4 * START_TIMEOUT_S
        while True:
            running = [address for address, process in self.sentinels.items() if process.poll() is None]
            named = [self.primary(address) for address in running]
            newest = max(named, key=named.count)
            if newest != before and named.count(newest) > len(running) // 2:
                with self.connect(newest) as client:
                    if _run(client, "ROLE")[0] == b"master":
                        return newest
            assert time.monotonic() < deadline, "the sentinels name no other primary"
            time.sleep(0.02)

    def wait_until_running(self) -> None:
        """Wait until all servers and sentinels answer."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for address, process in {**self.servers, **self.sentinels}.items():
            with self.connect(address) as client:
                while True:
                    with suppress(redis.ConnectionError):
                        client.ping()
                        break
                    assert process.poll() is None, "the server exited at once"
                    assert time.monotonic() < deadline, "the server does not answer"
                    time.sleep(0.02)
        with self.connect(self.first) as client:
            while client.info("replication")["connected_slaves"] < len(self.replicas):
                assert time.monotonic() < deadline, "the replicas do not connect"
                time.sleep(0.02)

    def wait_for_replicas(self) -> None:
        """Wait until each sentinel knows all replicas and the other sentinels: before that, it cannot fail over."""
        deadline = time.monotonic() + 4 * START_TIMEOUT_S
        for sentinel in self.sentinels:
            with self.connect(sentinel) as client:
                while True:
                    known = _run(client, "SENTINEL", "MASTER", SERVICE)
                    fields = known if isinstance(known, dict) else dict(zip(known[::2], known[1::2], strict=True))
                    texts = {_text(name): _text(value) for name, value in fields.items()}
                    counts = (int(texts["num-slaves"]), int(texts["num-other-sentinels"]))
                    if counts == (len(self.replicas), len(self.sentinels) - 1):
                        break
                    assert time.monotonic() < deadline, f"the sentinel knows {counts} replicas and sentinels"
                    time.sleep(0.02)


def _run(client: redis.Redis, *command: str) -> Any:
    return client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py's


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def url_of(sentinels: Sequence[Address], service: str = SERVICE) -> str:
    """Return the store's URL for these sentinels."""
    return f"redis+sentinel://{','.join(map(str, sentinels))}/{service}/0"


@contextmanager
def run_sentinel_service(
    folder: Path,
    *,
    replicas: int = 2,
    sentinels: int = 3,
    host: str = HOST,
    has_users: bool = False,
    delay_s: float = 0.0,
    durable: bool = False,
) -> Iterator[SentinelService]:
    """Run a primary, replicas of it and sentinels, that know each other, by their addresses or by a host's name.

    What the first server sends to its replicas takes `delay_s` to arrive. If they are `durable`, all sync always.
    With `has_users`, the servers have the users of deploy/redis.conf, and the sentinels a password.
    """
    ports = free_ports(1 + replicas + sentinels)
    addresses = [Address(host, port) for port in ports]
    first, running = addresses[0], Processes()
    named = [] if host == HOST else ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"]
    watch = [
        *named,
        f"sentinel monitor {SERVICE} {first.host} {first.port} {sentinels // 2 + 1}",
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
        f"sentinel failover-timeout {SERVICE} 3000",
    ]
    users = None
    options = ["--repl-diskless-sync-delay", "0", "--save", ""]
    if durable:
        options += ["--appendonly", "yes", "--appendfsync", "always"]
    if host != HOST:
        options += ["--replica-announce-ip", host]
    if has_users:
        options += ["--masteruser", "replica", "--masterauth", "replica"]
        users = folder / "users.conf"
        users.write_text("".join(f"{line}\n" for line in user_lines()))
        watch += [
            f"sentinel auth-user {SERVICE} sentinel",
            f"sentinel auth-pass {SERVICE} sentinel",
            f"sentinel sentinel-pass {SENTINEL_PASSWORD}",
            f"requirepass {SENTINEL_PASSWORD}",
        ]
    watching = Processes()
    service = SentinelService(running, watching, has_users=has_users)
    with ExitStack() as stack:
        for address in addresses[: 1 + replicas]:
            of = [] if address == first else ["--replicaof", f"{first.host} {first.port}"]
            port = address.port
            if delay_s and address == first:
                port = free_ports(1)[0]
                service.link = stack.enter_context(run_delayed_link(first.port, port, delay_s))
            running[address] = _start(stack, folder, address, [*options, *of, "--port", str(port)], users)
        service.wait_until_running()  # sentinels that find no replicas at the start look again only after ten seconds
        for address in addresses[1 + replicas :]:
            configuration = folder / f"sentinel-{address.port}.conf"
            configuration.write_text("".join(f"{line}\n" for line in watch))
            watching[address] = _start(stack, folder, address, ["--sentinel"], configuration)
        service.wait_until_running()
        service.wait_for_replicas()
        yield service


def _start(
    stack: ExitStack, folder: Path, address: Address, options: Sequence[str], configuration: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a server or a sentinel."""
    directory = folder / str(address.port)
    directory.mkdir()
    command = [str(SERVERS["valkey"]), *([str(configuration)] if configuration is not None else [])]
    command += ["--port", str(address.port), "--bind", HOST, "--dir", str(directory)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process
