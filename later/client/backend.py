"""The backend of a client: where its calls go, and whose time it is there."""

from __future__ import annotations

from typing import Any, Protocol

from later.client import machine_clock
from later.client.call import Call
from later.client.connection_settings import ConnectionSettings
from later.client.http import ApiClient, ApiReply


class AsyncSession(Protocol):
    """The connections of a client in one event loop."""

    async def exchange(self, call: Call[Any], timeout_s: float) -> ApiReply:
        """Send a call, and return whatever is answered within `timeout_s`. Raises Unavailable, CallFailed."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...

    def abandon(self) -> None:
        """Leave the connections to the parent of this process."""
        ...


class ThreadConnection(Protocol):
    """The connection of a client in one thread."""

    def exchange(self, method: str, path: str, body: bytes | None, content_type: str, timeout_s: float) -> ApiReply:
        """Send a call, and return whatever is answered within `timeout_s`. Raises Unavailable, CallFailed."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Backend(Protocol):
    """Where the calls of a client go: to a daemon over the network, or to a virtual clock in a test."""

    def open_session(self, settings: ConnectionSettings) -> AsyncSession:
        """Return the connections of the running event loop. Raises ConfigError."""
        ...

    def open_connection(self, settings: ConnectionSettings) -> ThreadConnection:
        """Return the connection of this thread. Raises ConfigError."""
        ...

    def wall_ms(self) -> int:
        """Return the time in ms since the Unix epoch, as near to the daemon's as is known."""
        ...


class Network:
    """The network, to the daemon at the client's URL. The time is this machine's."""

    def open_session(self, settings: ConnectionSettings) -> AsyncSession:
        from later.client.aio_session import AioSession  # noqa: PLC0415  # aiohttp takes 0.2 s to import

        return AioSession(settings)

    def open_connection(self, settings: ConnectionSettings) -> ThreadConnection:
        return ApiClient(settings.url, settings.patience_s, machine_clock.wall_s, settings.key, settings.ca)

    def wall_ms(self) -> int:
        return machine_clock.wall_ms()


NETWORK = Network()
