"""A daemon that is killed or stopped while calls are in every phase of a connection: none is lost."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.delivery.test_tls import CERTIFICATES, identity
from tests.receivers import parse_headers
from tests.system.api_client import create, query, read_metric
from tests.system.daemons import Daemon, run_up, simulated_fault
from tests.system.raw_receivers import ANSWER
from tests.system.stores import count_tasks, open_embedded_store
from tests.system.waiting import wait_until

TRUST = {"SSL_CERT_FILE": str(CERTIFICATES / "authority.pem")}
OPTIONS = ("--timeout", "5", "--lease", "6", "--drain", "0.3")
KEPT = 8
"""The calls before, whose connections are kept."""
ANSWERED = {
    "/nothing": b"",
    "/interim": b"HTTP/1.1 100 Continue\r\n\r\n",
    "/status": b"HTTP/1.1 20",
    "/headers": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n",
    "/body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
    "/chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "/until-the-end": b"HTTP/1.1 200 OK\r\n\r\nx",
}
"""The part of an answer that a receiver has sent before it hangs, by path."""


class HangingReceiver:
    """A receiver that hangs in a phase of each connection, until it is `well`. `attempts` are by id."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._plain, self._encrypted, self._full = (socket.create_server(("127.0.0.1", 0)) for _ in range(3))
        self._full.listen(0)
        self._queued: list[socket.socket] = []
        self.well = threading.Event()
        self.attempts: dict[str, list[int]] = defaultdict(list)
        self.greeted = 0
        """The connections that wait for a handshake."""

    def urls(self) -> list[str]:
        """Return a callback for each phase: connecting, in the handshake of TLS, and with a part of an answer."""
        urls = [f"https://127.0.0.1:{self._port(self._encrypted)}/", f"http://127.0.0.1:{self._port(self._full)}/"]
        return [*urls, *map(self.url, ANSWERED)]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port(self._plain)}{path}"

    def _port(self, listening: socket.socket) -> int:
        return int(listening.getsockname()[1])

    @contextmanager
    def run(self) -> Iterator[HangingReceiver]:
        for _ in range(2):  # no more connections fit into the queue
            self._queued.append(socket.socket())
            self._queued[-1].setblocking(False)
            self._queued[-1].connect_ex(self._full.getsockname())
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        thread = threading.Thread(target=loop.run_until_complete, args=[self._serve(stop)])
        thread.start()
        try:
            yield self
        finally:
            self.well.set()
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()
            for queued in self._queued:
                queued.close()

    async def _serve(self, stop: asyncio.Event) -> None:
        plain = await asyncio.start_server(self._answer, sock=self._plain)
        encrypted = await asyncio.start_server(self._answer_encrypted, sock=self._encrypted)
        await self._wait_well()
        full = await asyncio.start_server(self._answer, sock=self._full)
        await stop.wait()
        for server in (plain, encrypted, full):
            server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _wait_well(self) -> None:
        while not self.well.is_set():  # noqa: ASYNC110 - a thread's event cannot be awaited
            await asyncio.sleep(0.02)

    async def _answer_encrypted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.greeted += 1
        with suppress(asyncio.CancelledError, OSError):
            await self._wait_well()
            await writer.start_tls(self._tls)
            await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n")
                headers = parse_headers(head)
                await reader.readexactly(int(headers["content-length"]))
                self.attempts[headers["webhook-id"]].append(int(headers["later-attempt"]))
                path = head.split(" ")[1]
                if path == "/kept":
                    await asyncio.sleep(0.2)  # each of these calls has a connection of its own
                elif not self.well.is_set():
                    writer.write(ANSWERED[path])
                    await self._wait_well()
                    break
                writer.write(ANSWER)
        writer.transport.abort()


@contextmanager
def run_with_calls_in_every_phase(
    folder: Path, data: Path, receiver: HangingReceiver
) -> Iterator[tuple[Daemon, list[str], str]]:
    """Run a daemon, and yield it with the ids of its calls, and of one whose name is looked up."""
    with run_up(folder, data, *OPTIONS, env=TRUST | simulated_fault("names-hang")) as up:
        kept = [create(up.url, callback=receiver.url("/kept")) for _ in range(KEPT)]
        wait_until(lambda: set(kept) <= receiver.attempts.keys(), "connections are kept")
        ids = [create(up.url, callback=url, retry=0) for url in receiver.urls() for _ in range(2)]
        lookup = create(up.url, callback="http://name.hangs.test/", retry=0)
        slots = "later_delivery_slots_in_use"
        wait_until(lambda: read_metric(up.url, slots) == len(ids) + 1, "every task is in flight")
        wait_until(lambda: receiver.greeted == 2, "handshakes hang")
        wait_until(lambda: len(receiver.attempts) == KEPT + 2 * len(ANSWERED), "the others are half answered")
        yield up, ids, lookup


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_calls_in_every_phase_of_a_connection_are_made_again_after(end: str, folder: Path, data: Path) -> None:
    with ExitStack() as running:
        receiver = running.enter_context(HangingReceiver(identity("receiver")).run())
        with run_with_calls_in_every_phase(folder, data, receiver) as (up, ids, lookup):
            if end == "killed":
                up.kill()
            else:
                assert up.stop() == 0
        receiver.well.set()
        again = running.enter_context(run_up(folder, data, *OPTIONS, env=TRUST))
        second = 2 if end == "killed" else 1  # a stop gives the task back, and its attempt
        wait_until(lambda: all(receiver.attempts[id][-1:] == [second] for id in ids[:4]), "the first four are called")
        wait_until(lambda: all(receiver.attempts[id] == [1, second] for id in ids[4:]), "the others are called again")
        wait_until(lambda: query(again.url, lookup)["state"] == "dead", "the name has no address")
        assert again.stop() == 0
        assert all(receiver.attempts[id] == [second] for id in ids[:4])
    with open_embedded_store(data) as client:
        assert count_tasks(client) == 1
