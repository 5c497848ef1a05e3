"""The target of a job: the URL of an API or a store, with the timeout, the batch size and the retries of its calls."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from later.client.api_transport import ApiTransport
from later.client.batches import BatchSender, RetryPolicy
from later.client.http import ApiClient
from later.client.key_source import read_key
from later.client.transport import CreateCounts, Transport
from later.core.errors import StoreEmpty
from later.option_types import DEFAULT_PREFIX
from later.store.url import settings_from_url

BATCH_SIZE = 1000
RETRIES = 8
"""They take about three minutes, with pauses that double from 1 s to 60 s."""
TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The target of a job, an API (http, https) or a store. It travels to the executors, so it holds no secret.

    Each executor reads the API's key from `key_file`, or (None) from its environment, and the file `ca`.
    """

    url: str
    prefix: str = DEFAULT_PREFIX
    timeout_s: float = TIMEOUT_S
    batch_size: int = BATCH_SIZE
    retries: int = RETRIES
    key_file: str | None = None
    ca: str | None = None

    @property
    def is_api(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    @contextmanager
    def open_transport(self, job: str, run: str | None = None) -> Iterator[Transport]:
        """Open a transport for one job or run, and close it at the end. Raises LaterError: It cannot be opened."""
        transport = self._open(job, run)
        try:
            yield transport
        finally:
            transport.close()

    @contextmanager
    def open_sender(self, job: str, run: str | None = None) -> Iterator[BatchSender]:
        """Open a batch sender for one job or run, with retries. Raises LaterError: It cannot be opened."""
        retry = RetryPolicy(self.retries, time.sleep)
        transport = retry.call(partial(self._open, job, run))
        try:
            yield BatchSender(transport, retry, batch_size=self.batch_size)
        finally:
            transport.close()

    def check_admission(self, job: str) -> None:
        """Fail at once, in the driver, if no daemon has written into the store by which options it admits tasks.

        Raises:
            LaterError: As above, or the target does not answer.
        """
        if not self.is_api:
            with self.open_transport(job) as transport:
                transport.validate([])

    def counts(self, job: str) -> CreateCounts:
        """Return a job's counts, without retries, because a driver should fail at once if its target does not answer.

        Raises:
            LaterError: The target does not answer.
        """
        with self.open_transport(job) as transport:
            return transport.counts()

    def count_created(self, job: str, run: str) -> int:
        """Return how many tasks the store has counted for a run; 0 if the store was emptied.

        Raises:
            LaterError: The target does not answer, however often it is asked.
        """
        try:
            with self.open_sender(job, run) as sender:
                return sender.counts().created
        except StoreEmpty:
            return 0

    def _open(self, job: str, run: str | None = None) -> Transport:
        if self.is_api:
            key = read_key(self.key_file, os.environ)
            return ApiTransport(ApiClient(self.url, self.timeout_s, time.time, key, self.ca), job, run)
        from later.bulk.transport.store import StoreTransport  # noqa: PLC0415  # an executor that uses the API needs no redis

        return StoreTransport(settings_from_url(self.url, self.prefix, self.timeout_s, os.environ), job, run)
