"""A cluster of Valkey servers for tests: its nodes can be killed, promoted, and lose their slots to others."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis

from later.address_types import Address
from tests.servers import SERVERS, START_TIMEOUT_S, free_ports

HOST = "127.0.0.1"
SLOTS = 16_384
NODE_TIMEOUT_MS = 1000
FAILOVER_TIMEOUT_S = 30
"""Longer than an election takes, also on a busy machine, where several may fail."""


class ClusterService:
    """Nodes by their addresses: first the primaries, in the order of their slots, then the replicas, as they began."""

    def __init__(self, nodes: dict[Address, subprocess.Popen[bytes]], primaries: int) -> None:
        self.nodes = nodes
        self._primaries = primaries

    @property
    def first_primaries(self) -> list[Address]:
        """The nodes that are primaries at the start."""
        return list(self.nodes)[: self._primaries]

    @property
    def running(self) -> list[Address]:
        """The nodes whose process runs."""
        return [address for address, process in self.nodes.items() if process.poll() is None]

    @property
    def url(self) -> str:
        """The store's URL: the nodes that were primaries at the start are where a client begins."""
        return f"redis+cluster://{','.join(map(str, self.first_primaries))}"

    def connect(self, address: Address) -> redis.Redis:
        """Return a client of one node, which follows no redirect."""
        return redis.Redis(host=address.host, port=address.port, protocol=2)

    def run(self, address: Address, *command: str | int | bytes) -> Any:
        """Return a node's answer to a command."""
        with self.connect(address) as client:
            return client.execute_command(*command)

    def slot_owners(self) -> dict[Address, list[tuple[int, int]]]:
        """Return the ranges of slots of each primary, as the first node that runs knows them."""
        shards = [_fields(shard) for shard in self.run(self.running[0], "CLUSTER", "SHARDS")]
        owners = dict[Address, list[tuple[int, int]]]()
        for shard in shards:
            slots = [int(slot) for slot in shard["slots"]]
            for node in map(_fields, shard["nodes"]):
                if node["role"] == b"master" and node["health"] == b"online" and slots:
                    address = Address(node["ip"].decode(), int(node["port"]))
                    owners[address] = list(zip(slots[::2], slots[1::2], strict=True))
        return owners

    def owner_of(self, slot: int) -> Address:
        """Return the primary of a slot."""
        return next(
            node for node, ranges in self.slot_owners().items() if any(low <= slot <= high for low, high in ranges)
        )

    def slot_of(self, key: bytes) -> int:
        return int(self.run(self.running[0], "CLUSTER", "KEYSLOT", key))

    def replicas_of(self, primary: Address) -> list[Address]:
        """Return the replicas of a primary that run."""
        ports = {_port_of(row) for row in self.run(primary, "CLUSTER", "REPLICAS", self._id(primary))}
        return [address for address in self.running if address.port in ports]

    def kill(self, address: Address) -> None:
        """End a node as a machine's failure does."""
        process = self.nodes[address]
        process.kill()
        process.wait()

    def promote(self, replica: Address, *options: str) -> None:
        """Have a replica become the primary of its shard (CLUSTER FAILOVER), and wait until all nodes know it."""
        self.run(replica, "CLUSTER", "FAILOVER", *options)
        self.wait_until(lambda: replica in self.slot_owners(), "the replica is no primary")
        self.wait_until_whole()

    def kill_and_wait(self, primary: Address) -> None:
        """Kill a primary, and wait until a replica has its slots."""
        self.kill(primary)
        self.wait_until_whole(without=primary)

    def migrate_slots(self, source: Address, target: Address, ranges: Iterable[tuple[int, int]]) -> None:
        """Move ranges of slots at once, by Valkey 9's CLUSTER MIGRATESLOTS, and wait until they are moved."""
        wanted = list(ranges)
        parts: list[str | int] = []
        for low, high in wanted:
            parts += ["SLOTSRANGE", low, high, "NODE", self._id(target)]
        self.run(source, "CLUSTER", "MIGRATESLOTS", *parts)
        self.wait_until(
            lambda: all(self._knows(node, low, target) for node in self.running for low, _ in wanted),
            "the slots have not moved",
        )

    def migrate_slot_by_keys(self, slot: int, target: Address, *, pause_s: float = 0.0) -> None:
        """Move a slot key by key (IMPORTING, MIGRATE), as every version can. `pause_s` lies between two keys."""
        source = self.owner_of(slot)
        self.begin_migration(slot, target)
        while keys := self.run(source, "CLUSTER", "GETKEYSINSLOT", slot, 1):
            self.run(source, "MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *keys)
            time.sleep(pause_s)
        self.end_migration(slot, target)

    def begin_migration(self, slot: int, target: Address) -> None:
        """Begin the move of a slot: the owner answers ASK for keys that it does not have."""
        source = self.owner_of(slot)
        self.run(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(source))
        self.run(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(target))

    def end_migration(self, slot: int, target: Address) -> None:
        """End the move of a slot that holds no key any more at its owner before."""
        others = [node for node in self.slot_owners() if node != target]
        for node in (target, *others):  # the new owner first: otherwise nobody may have the slot for a moment
            self.run(node, "CLUSTER", "SETSLOT", slot, "NODE", self._id(target))
        self.wait_until(
            lambda: all(self._knows(node, slot, target) for node in self.running), "nodes do not know of the move"
        )

    def flush(self) -> None:
        """Empty all primaries. They keep the scripts that they know."""
        for node in self.slot_owners():
            self.run(node, "FLUSHALL")

    @contextmanager
    def pause(self, address: Address) -> Iterator[None]:
        """Let a node answer nothing meanwhile, while its connections stay open."""
        process = self.nodes[address]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def wait_until(self, is_done: Callable[[], bool], problem: str, timeout_s: float = FAILOVER_TIMEOUT_S) -> None:
        """Wait until a condition holds; nodes that do not answer now are asked again."""
        deadline = time.monotonic() + timeout_s
        while True:
            with suppress(redis.RedisError, StopIteration):
                if is_done():
                    return
            assert time.monotonic() < deadline, problem
            time.sleep(0.02)

    def wait_until_whole(self, without: Address | None = None) -> None:
        """Wait until all running nodes say that all slots are served, none of them by `without`."""

        def is_whole() -> bool:
            for node in self.running:
                if b"cluster_state:ok" not in self.run(node, "CLUSTER", "INFO"):
                    return False
                ports = {_range_port(part) for part in self.run(node, "CLUSTER", "SLOTS")}
                if without is not None and without.port in ports:
                    return False
            return sum(high - low + 1 for ranges in self.slot_owners().values() for low, high in ranges) == SLOTS

        self.wait_until(is_whole, "the cluster does not serve all slots")

    def wait_for_replicas(self) -> None:
        """Wait until each replica has all that its primary has."""
        for primary in self.slot_owners():
            count = len(self.replicas_of(primary))
            self.wait_until(partial(self._is_replicated, primary, count), "the replicas lag")

    def _is_replicated(self, primary: Address, replicas: int) -> bool:
        with self.connect(primary) as client:
            info: dict[str, Any] = client.info("replication")
        states = [info[f"slave{index}"] for index in range(info["connected_slaves"])]
        online = [state for state in states if state["state"] == "online"]
        return len(online) >= replicas and all(state["offset"] >= info["master_repl_offset"] for state in online)

    def _id(self, address: Address) -> str:
        return str(self.run(address, "CLUSTER", "MYID").decode())

    def _knows(self, node: Address, slot: int, owner: Address) -> bool:
        for part in self.run(node, "CLUSTER", "SLOTS"):
            if int(part[0]) <= slot <= int(part[1]):
                return _range_port(part) == owner.port
        return False


def _range_port(part: Sequence[Any]) -> int:
    return int(part[2][1])


def _port_of(row: bytes) -> int:
    """Return the port of a line of CLUSTER NODES: `<id> <host>:<port>@<bus port> …`."""
    return int(row.split()[1].split(b"@")[0].rpartition(b":")[2])


def _fields(flat: Sequence[Any]) -> dict[str, Any]:
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def cluster_slots(primaries: int) -> list[tuple[int, int]]:
    """Return the range of slots of each primary at the start: equal parts."""
    bounds = [index * SLOTS // primaries for index in range(primaries + 1)]
    return [(low, high - 1) for low, high in pairwise(bounds)]


@contextmanager
def run_cluster(
    folder: Path,
    primaries: int = 3,
    *,
    replicas: int = 1,
    options: Sequence[str] = (),
    node_timeout_ms: int = NODE_TIMEOUT_MS,
) -> Iterator[ClusterService]:
    """Run a cluster of primaries, each with as many replicas, in a folder of its own. `options` are those of all."""
    count = primaries * (1 + replicas)
    ports = free_ports(2 * count)  # the nodes' own, and those by which they talk with one another
    nodes: dict[Address, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        for port, bus in zip(ports[:count], ports[count:], strict=True):
            address = Address(HOST, port)
            nodes[address] = _start(stack, folder, address, bus, node_timeout_ms, options)
        service = ClusterService(nodes, primaries)
        _join(service, primaries, dict(zip(nodes, ports[count:], strict=True)))
        yield service


def _start(
    stack: ExitStack, folder: Path, address: Address, bus: int, node_timeout_ms: int, options: Sequence[str]
) -> subprocess.Popen[bytes]:
    directory = folder / str(address.port)
    directory.mkdir()
    command = [str(SERVERS["valkey"]), "--port", str(address.port), "--bind", HOST, "--dir", str(directory)]
    command += ["--cluster-enabled", "yes", "--cluster-port", str(bus), "--save", ""]
    command += ["--cluster-node-timeout", str(node_timeout_ms), "--repl-diskless-sync-delay", "0"]
    command += ["--cluster-replica-validity-factor", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _join(service: ClusterService, primaries: int, buses: dict[Address, int]) -> None:
    """Make one cluster of the nodes."""
    addresses = list(service.nodes)
    for address in addresses:
        service.wait_until(partial(service.run, address, "PING"), f"{address} does not answer", START_TIMEOUT_S)
    for node, (low, high) in zip(addresses[:primaries], cluster_slots(primaries), strict=True):
        service.run(node, "CLUSTER", "ADDSLOTSRANGE", low, high)
    for epoch, node in enumerate(addresses, 1):  # otherwise nodes of one epoch must agree on others first
        service.run(node, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
    for other in addresses[1:]:
        for node in addresses:
            if node != other:
                service.run(node, "CLUSTER", "MEET", other.host, other.port, buses[other])
    service.wait_until(
        lambda: all(_known(service, node) == len(addresses) for node in addresses), "the nodes do not meet"
    )
    for index, node in enumerate(addresses[primaries:]):
        service.run(node, "CLUSTER", "REPLICATE", service.run(addresses[index % primaries], "CLUSTER", "MYID"))
    service.wait_until_whole()
    replicas = len(addresses) - primaries
    service.wait_until(
        lambda: sum(len(service.replicas_of(node)) for node in addresses[:primaries]) == replicas,
        "the replicas do not connect",
    )
    service.wait_for_replicas()


def _known(service: ClusterService, node: Address) -> int:
    """Return how many nodes a node knows and has shaken hands with."""
    return sum(b"handshake" not in row for row in service.run(node, "CLUSTER", "NODES").splitlines())
