"""The store behind a daemon: the embedded one, which it runs itself, or an external one."""

from __future__ import annotations

import structlog

from later.config import Config
from later.daemon.signing_key import read_masters
from later.embedded import EmbeddedStore
from later.embedded.key_file import make_signing_key, signing_key_file
from later.metrics import Metrics
from later.worker.ticker import Ticker, TickResult, start_tickers

CHECK_EVERY_MS = 1000
KEY_MAY_BE_LOST = "it had none; if one was lost, put it back and restart: receivers refuse the signatures of another"

log = structlog.get_logger("later.backing_store")


class EmbeddedBackingStore:
    """The embedded store, with the ticker that restarts it; `description` says where its data is."""

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self._store = EmbeddedStore(config.data)
        self._config = config
        self._data = config.data
        self._metrics = metrics

        async def check(now: int) -> TickResult:
            return TickResult(0, await self._store.check(now))

        self._ticker = Ticker.on_local_clock("embedded", check, CHECK_EVERY_MS, metrics.count_tick_error)
        self._store.on_exit = self._ticker.wake
        self.url = self._store.url
        self.description = str(config.data)

    async def start(self) -> None:
        """Start the store, and return when it answers. Its first start makes a signing key.

        Raises:
            ConfigError: the signing key cannot be read; nothing was started.
            EmbeddedError: the store cannot be started.
        """
        read_masters(self._config)
        had_data = (self._data / "appendonlydir").exists()
        await self._store.start()
        if self._config.signing_key is None and make_signing_key(self._data):
            log.info("signing key made", file=str(signing_key_file(self._data)))
            if had_data:
                log.warning("signing key is new to this data", reason=KEY_MAY_BE_LOST)
        start_tickers([self._ticker], self._metrics)

    async def stop(self) -> None:
        await self._ticker.stop()  # a check may be restarting the store; let it finish
        await self._store.stop()

    def stop_nowait(self) -> None:
        self._store.stop_nowait()

    def why_unavailable(self) -> str | None:
        """Return one line on why the store does not answer; None if it does, as far as is known."""
        return self._store.why_unavailable()


class ExternalBackingStore:
    """A store at an address; `description` is that address without its secrets."""

    def __init__(self, config: Config) -> None:
        self.url = config.store_url
        self.description = config.shown_store_url

    async def start(self) -> None:
        """Return at once: the store runs, or will."""

    async def stop(self) -> None:
        """Leave the store running."""

    def stop_nowait(self) -> None:
        """Leave the store running."""

    def why_unavailable(self) -> None:
        """Return None: only a call to the store can tell."""


def build_backing_store(config: Config, metrics: Metrics) -> EmbeddedBackingStore | ExternalBackingStore:
    """Return the embedded store for an `up` without --redis, otherwise the external one."""
    if config.runs_store:
        return EmbeddedBackingStore(config, metrics)
    return ExternalBackingStore(config)
