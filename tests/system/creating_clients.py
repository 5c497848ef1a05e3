"""Clients under whose load things are killed."""

from __future__ import annotations

import http.client
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from tests.system.api_client import post

CLIENTS = 4
DELAY_S = 0.5


class Creator:
    """Clients that create task after task, each with an id of its own and until it is accepted: answered 200."""

    def __init__(self, url: str, callback: str) -> None:
        self.accepted: dict[str, float] = {}
        """Ids, and when they are due at the earliest."""
        self.turned_away = 0
        self._url = url
        self._callback = callback
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            task = {"id": str(uuid.uuid4()), "topic": "order", "callback": self._callback, "delay": DELAY_S}
            asked = time.time()
            while not self._is_accepted(task):
                self.turned_away += 1
                time.sleep(0.02)
            self.accepted[str(task["id"])] = asked + DELAY_S

    def move(self, url: str) -> None:
        """Go on with another daemon."""
        self._url = url

    def stop(self) -> None:
        self._stopping.set()

    def _is_accepted(self, task: dict[str, object]) -> bool:
        try:
            return post(self._url, "/create", task, patience=10).status == 200
        except (OSError, http.client.HTTPException):
            return False


@contextmanager
def creating(url: str, callback: str) -> Iterator[Creator]:
    """Clients at work; they have ended when this ends."""
    creator = Creator(url, callback)
    threads = [threading.Thread(target=creator.run, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield creator
    finally:
        creator.stop()
        for thread in threads:
            thread.join(20)
