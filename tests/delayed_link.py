"""A slow way to a server: what it sends to replicas is under way for a while, and is lost when the way is cut."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from threading import Thread

PIECE_BYTES = 65_536
LATER = b"later"
"""It is in what a daemon of later sends first: the name of its connection."""


class Cut(Enum):
    """The connections of a link that are cut: all, or all but those of later; packets may also just vanish."""

    NOTHING = "nothing"
    ALL = "dies"
    ALL_BUT_LATER = "cut off"
    ALL_BUT_LATER_SILENTLY = "silently cut off"


class Connection:
    """A connection through the link: its ends, and whose it is, as far as it has told."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.is_replica = False
        self.is_of_later: bool | None = None

    def note_sent(self, data: bytes) -> None:
        """Note what the client tells of itself."""
        if self.is_of_later is None:
            self.is_of_later = LATER in data
        self.is_replica = self.is_replica or b"PSYNC" in data

    def shut_down(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class DelayedLink:
    """Forwards connections to a port of this machine. What comes back to a replica arrives after `delay_s`."""

    def __init__(self, listener: socket.socket, port: int, delay_s: float) -> None:
        self._listener = listener
        self._port = port
        self._delay_s = delay_s
        self._cut = Cut.NOTHING
        self._connections: list[Connection] = []
        self._threads: list[Thread] = []

    def cut(self, what: Cut = Cut.ALL) -> None:
        """Drop what is under way: with everything, as a machine's death does, or on the way to other servers alone."""
        self._cut = what
        if what is Cut.ALL:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # a close alone does not end an accept under way
            self._listener.close()
        for connection in self._connections:
            if what is Cut.ALL or (what is Cut.ALL_BUT_LATER and not connection.is_of_later):
                connection.shut_down()

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        for connection in self._connections:
            connection.client.close()
            connection.server.close()

    def serve(self) -> None:
        """Accept connections until all are cut."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            connection = Connection(client, server)
            self._connections.append(connection)
            for source, target in ((client, server), (server, client)):
                sent = queue.SimpleQueue[tuple[float, bytes]]()
                copying = [
                    Thread(target=self._read, args=(source, sent, connection)),
                    Thread(target=self._write, args=(sent, target, connection)),
                ]
                self._threads += copying
                for thread in copying:
                    thread.start()
            if self._cut is Cut.ALL:  # since it was accepted
                connection.shut_down()

    def _read(
        self, source: socket.socket, sent: queue.SimpleQueue[tuple[float, bytes]], connection: Connection
    ) -> None:
        data, is_client = b"first", source is connection.client
        while data:
            try:
                data = source.recv(PIECE_BYTES)
            except OSError:
                data = b""
            if is_client:
                connection.note_sent(data)
            delay_s = self._delay_s if connection.is_replica and not is_client else 0.0
            sent.put((time.monotonic() + delay_s, data))

    def _write(
        self, sent: queue.SimpleQueue[tuple[float, bytes]], target: socket.socket, connection: Connection
    ) -> None:
        while True:
            arrives, data = sent.get()
            time.sleep(max(arrives - time.monotonic(), 0))
            if not data or self._cut is Cut.ALL:
                break
            if self._cut is not Cut.NOTHING and not connection.is_of_later:
                if self._cut is Cut.ALL_BUT_LATER_SILENTLY:
                    continue  # it vanishes
                break
            try:
                target.sendall(data)
            except OSError:
                break
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


@contextmanager
def run_delayed_link(listen_port: int, port: int, delay_s: float) -> Iterator[DelayedLink]:
    """Run a link from `listen_port` to `port` until the end of the block."""
    with socket.create_server(("127.0.0.1", listen_port)) as listener:
        link = DelayedLink(listener, port, delay_s)
        serving = Thread(target=link.serve, daemon=True)
        serving.start()
        try:
            yield link
        finally:
            link.cut()
            serving.join()
            link.close()
