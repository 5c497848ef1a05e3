"""Nodes of a cluster that answer by a script: what a real one says only at certain moments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import hiredis

from later.address_types import Address
from later.core.hash_slots import SLOTS

SILENT = object()
"""An answer that never comes."""
CLOSED = object()
"""The connection is closed instead of an answer."""

Answer = Callable[[Sequence[bytes]], Any]
"""Returns the answer to a command: bytes, an int, a list, an Exception, `SILENT` or `CLOSED`."""


class ScriptedNode:
    """A node. `received` are the commands with keys that it was sent, each after ASKING or not."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster
        self.address = Address("127.0.0.1", 0)
        self.received: list[tuple[bool, list[bytes]]] = []
        self.answer: Answer = lambda command: b"OK"
        self.map_reads = 0
        """How often it was asked for the map."""
        self.role = "master"
        self.eviction = "noeviction"
        self.epoch: int | None = None
        """The epoch that the node tells, with the map that it knows; None: the cluster's."""
        self.owners: list[ScriptedNode] | None = None
        self.is_cut_off = False
        """True if the node says that the cluster does not serve."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._is_stopped = False

    @property
    def names(self) -> list[bytes]:
        """The names of the commands with keys that it was sent."""
        return [command[0] for _, command in self.received]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.address.port)
        self.address = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Refuse connections, and close those that are open."""
        assert self._server is not None
        self._is_stopped = True
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_stopped:  # it was accepted before
            writer.transport.abort()
            return
        self._writers.add(writer)
        parser = hiredis.Reader()
        asking = False
        try:
            while data := await reader.read(65_536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    answer = self._system_answer(command)
                    if answer is None:
                        self.received.append((asking, command))
                        answer = self.answer(command)
                    asking = command[0] == b"ASKING"
                    if answer is SILENT:
                        return await asyncio.Event().wait()  # type: ignore[return-value]  # it waits for ever
                    if answer is CLOSED:
                        return
                    writer.write(_encode(answer))
        except (OSError, asyncio.CancelledError):  # which the end of a test is for a connection that is still open
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _system_answer(self, command: Sequence[bytes]) -> Any:
        """Return the answer to a command that names no key; None for others."""
        name = command[0].upper()
        if name == b"CLUSTER":
            return self._cluster_answer(command[1].upper())
        if name == b"INFO":
            return (
                f"redis_mode:cluster\r\nrun_id:{self.address.port}\r\nrole:{self.role}\r\n"
                f"valkey_version:9.1.2\r\nmaxmemory:1\r\nmaxmemory_policy:{self.eviction}\r\n"
            ).encode()
        if name == b"PING":
            return b"PONG"
        if name == b"TIME":
            return [b"1800000000", b"0"]
        if name in {b"ASKING", b"CLIENT", b"SELECT", b"SCRIPT", b"AUTH"}:
            if name == b"SCRIPT":
                self.received.append((False, list(command)))
            return b"OK"
        return None

    def _cluster_answer(self, what: bytes) -> Any:
        if what == b"SHARDS":
            return ERR_UNKNOWN
        if what == b"SLOTS":
            self.map_reads += 1
            owners = self._cluster.owners if self.owners is None else self.owners
            size = SLOTS // len(owners)
            return [
                [index * size, (index + 1) * size - 1 if index + 1 < len(owners) else SLOTS - 1,
                 [b"127.0.0.1", node.address.port, b"%040d" % node.address.port]]
                for index, node in enumerate(owners)
            ]  # fmt: skip
        state = "fail" if self.is_cut_off else "ok"
        epoch = self._cluster.epoch if self.epoch is None else self.epoch
        return f"cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n".encode()


ERR_UNKNOWN = Exception("ERR unknown subcommand 'SHARDS'")


class ScriptedCluster:
    """Nodes, of which the owners have equal parts of the slots, in order."""

    def __init__(self, count: int) -> None:
        self.nodes = [ScriptedNode(self) for _ in range(count)]
        self.owners = list(self.nodes)
        self.epoch = 1

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(str(node.address) for node in self.nodes)}"


@asynccontextmanager
async def run_scripted_cluster(count: int) -> AsyncIterator[ScriptedCluster]:
    """Run so many nodes."""
    cluster = ScriptedCluster(count)
    for node in cluster.nodes:
        await node.start()
    try:
        yield cluster
    finally:
        for node in cluster.nodes:
            await node.stop()


def in_turn(*answers: Any) -> Answer:
    """Return these answers one after the other; the last one repeats."""
    left = list(answers)
    return lambda command: left.pop(0) if len(left) > 1 else left[0]


def _encode(answer: Any) -> bytes:
    if isinstance(answer, Exception):
        return f"-{answer}\r\n".encode()
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    if isinstance(answer, list):
        return b"*%d\r\n" % len(answer) + b"".join(map(_encode, answer))
    return b"$%d\r\n%s\r\n" % (len(answer), answer)
