"""How a job reaches `later`: by its API or by its store, in batches of what size, how patiently."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from later.bulk.sending import BatchSender, RetryPolicy
from later.bulk.transport.api import ApiTransport
from later.client.http import Client
from later.client.transport import Counts, Transport
from later.store.url import settings_from_url

BATCH = 1000
RETRIES = 8
"""With pauses that double from a second to a minute: three minutes."""
TIMEOUT_S = 30.0
PREFIX = "later"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
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
    def transport(self, job: str) -> Iterator[Transport]:
        """The target in, for one job. Raises LaterError: it cannot be opened."""
        transport = self._opened(job)
        try:
            yield transport
        finally:
            transport.close()

    def counts(self, job: str) -> Counts:
        """What a job has come to. Raises LaterError: nobody is there now; workers would be patient, and silent."""
        with self.transport(job) as transport:
            return transport.counts()

    @contextmanager
    def batches(self, job: str) -> Iterator[BatchSender]:
        """What sends lines that target. Raises LaterError: it cannot be opened, however often it is tried."""
        patience = RetryPolicy(self.retries, time.sleep)
        transport = patience.until_reached(partial(self._opened, job))
        try:
            yield BatchSender(transport, patience, batch=self.batch)
        finally:
            transport.close()

    def _opened(self, job: str) -> Transport:
        if self.is_api:
            return ApiTransport(Client(self.url, self.timeout_s, time.time), job)
        from later.bulk.transport.store import StoreTransport  # noqa: PLC0415  # what it takes, executors of an API need not have

        return StoreTransport(settings_from_url(self.url, self.prefix, self.timeout_s, os.environ), job)
