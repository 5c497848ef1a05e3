"""Clients that create tasks while processes are killed."""

from __future__ import annotations

import http.client
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from tests.system import canaries
from tests.system.api_client import post

CLIENTS = 4
DELAY_S = 0.5


class CreatingClients:
    """Clients that create one task after another; each create is repeated with its id until it is answered 200."""

    def __init__(self, url: str, callback: str) -> None:
        self.accepted: dict[str, float] = {}
        """Id → the earliest due time (Unix seconds)."""
        self.refused = 0
        self._url = url
        self._callback = callback
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            task = {
                "id": str(uuid.uuid4()), "topic": "order", "callback": self._callback, "delay": DELAY_S,
                "headers": canaries.HEADERS,
            }  # fmt: skip
            sent_at = time.time()
            while not self._is_accepted(task):
                self.refused += 1
                time.sleep(0.02)
            self.accepted[str(task["id"])] = sent_at + DELAY_S

    def switch_to(self, url: str) -> None:
        """Send further requests to another daemon."""
        self._url = url

    def stop(self) -> None:
        self._stopping.set()

    def _is_accepted(self, task: dict[str, object]) -> bool:
        try:
            return post(self._url, "/create", task, timeout_s=10).status == 200
        except (OSError, http.client.HTTPException):
            return False


@contextmanager
def run_creating_clients(url: str, callback: str) -> Iterator[CreatingClients]:
    """Run the clients until the end of the block."""
    clients = CreatingClients(url, callback)
    threads = [threading.Thread(target=clients.run, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        clients.stop()
        for thread in threads:
            thread.join(20)
