"""What a daemon stands on: the embedded store, which it runs itself, or a store that is somebody else's to run."""

from __future__ import annotations

from later.config import Config
from later.daemon.background import a_ticker
from later.embedded import EmbeddedStore
from later.metrics import Metrics
from later.worker.ticker import TickResult

CHECK_EVERY_MS = 1000


class EmbeddedBackend:
    """The embedded store, with the ticker that looks after it; `shown` says where its data is."""

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self._store = EmbeddedStore(config.data)
        self._ticker = a_ticker("embedded", self._tick, CHECK_EVERY_MS, metrics)
        self._store.on_exit = self._ticker.wake
        self.url = self._store.url
        self.description = str(config.data)

    async def start(self) -> None:
        """Back when the store answers. Raises EmbeddedError."""
        await self._store.start()
        self._ticker.start()

    async def stop(self) -> None:
        """A check of the store may be starting it: that one ends in its own time."""
        await self._ticker.stop()
        await self._store.stop()

    def stop_nowait(self) -> None:
        """Ask the store to end and do not wait."""
        self._store.stop_nowait()

    def why_unavailable(self) -> str | None:
        """One line on why the store does not answer; None when, for all we know, it does."""
        return self._store.why_unavailable()

    async def _tick(self, now: int) -> TickResult:
        return TickResult(0, await self._store.check(now))


class ExternalBackend:
    """A store at an address; `shown` is that address without its secrets."""

    def __init__(self, config: Config) -> None:
        self.url = config.store_url
        self.description = config.shown_store_url

    async def start(self) -> None:
        """It runs, or will."""

    async def stop(self) -> None:
        """It goes on."""

    def stop_nowait(self) -> None:
        """It is not ours."""

    def why_unavailable(self) -> None:
        """Whoever asks the store will know."""


def build_backing_store(command: str, config: Config, metrics: Metrics) -> EmbeddedBackend | ExternalBackend:
    """The embedded store for an `up` that was given no other."""
    return EmbeddedBackend(config, metrics) if command == "up" and not config.redis_given else ExternalBackend(config)
