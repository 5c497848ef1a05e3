"""How a job reaches `later`: by its API or by its store, in batches of what size, how patiently."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from later.bulk.doors import Counts, Door
from later.bulk.sending import Batches, Patience
from later.bulk.transport.api import ApiDoor
from later.client.http import Client
from later.store.url import place_of

BATCH = 1000
RETRIES = 8
"""With pauses that double from a second to a minute: three minutes."""
TIMEOUT_S = 30.0
PREFIX = "later"


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """It travels to the executors, so it holds no secret. `url` is an API's (http, https) or a store's."""

    url: str
    prefix: str = PREFIX
    timeout_s: float = TIMEOUT_S
    batch: int = BATCH
    retries: int = RETRIES

    @property
    def is_api(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    @contextmanager
    def door(self, job: str) -> Iterator[Door]:
        """The way in, for one job. Raises LaterError: it cannot be opened."""
        door = self._opened(job)
        try:
            yield door
        finally:
            door.close()

    def counts(self, job: str) -> Counts:
        """What a job has come to. Raises LaterError: nobody is there now; workers would be patient, and silent."""
        with self.door(job) as door:
            return door.counts()

    @contextmanager
    def batches(self, job: str) -> Iterator[Batches]:
        """What sends lines that way. Raises LaterError: it cannot be opened, however often it is tried."""
        patience = Patience(self.retries, time.sleep)
        door = patience.until_reached(partial(self._opened, job))
        try:
            yield Batches(door, patience, batch=self.batch)
        finally:
            door.close()

    def _opened(self, job: str) -> Door:
        if self.is_api:
            return ApiDoor(Client(self.url, self.timeout_s, time.time), job)
        from later.bulk.transport.store import StoreDoor  # noqa: PLC0415  # what it takes, executors of an API need not have

        return StoreDoor(place_of(self.url, self.prefix, self.timeout_s, os.environ), job)
