"""Connections to whatever server sentinels name as the primary of a service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import redis.exceptions as errors
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, parse_url

from later.address_types import Address, SentinelUrl
from later.store.sentinels import RETRY_S, Sentinels

CONNECT_TIMEOUT_S = 1.0
"""How long a connection to a server that sentinels name may take, before the next one is tried."""
PATIENCE_SHARE = 0.8
"""How much of a round trip's timeout a connection may look for the primary: the reason can then still be told."""


class NotPrimary(errors.ConnectionError):
    """The environment's fault: a server that sentinels name as the primary says that it is none."""


async def check_role(connection: AbstractConnection) -> None:
    """Ask a server for its role. Raises NotPrimary, or redis-py's errors."""
    await connection.send_command("ROLE", check_health=False)
    role = (await connection.read_response())[0]
    if role != b"master":
        raise NotPrimary(f"{connection._host_error()} is a {role.decode('utf-8', 'replace')}, not the primary")


class PrimaryLookup(AbstractConnection):
    """A connection that looks for the primary whenever it is connected, for `patience_s` at most."""

    def __init__(self, *, sentinels: Sentinels, patience_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._sentinels = sentinels
        self._patience_s = patience_s
        self._failovers = 0
        """How many failovers were known when the sentinels were asked for the address."""
        self.host, self.port = "", 0

    async def connect(self) -> None:
        """Connect to the primary.

        Raises:
            AuthenticationError, NoPermissionError: it refuses this user.
            ConnectionError: none was found in time; the text says why.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._patience_s
        while not self.is_connected:
            self._failovers = self._sentinels.failovers
            try:
                await self._connect_to_any(await self._sentinels.candidates())
            except (errors.AuthenticationError, errors.NoPermissionError):
                raise
            except (errors.ConnectionError, errors.TimeoutError, OSError) as error:
                self._sentinels.why_not_found = error
                self._sentinels.doubt()
                if loop.time() + RETRY_S >= give_up_at:
                    raise
                await asyncio.sleep(RETRY_S)

    async def confirm_primary(self) -> None:
        """Check that this connection leads to the primary, and have the sentinels note it.

        Raises:
            NotPrimary, RedisError: as `check_role`; or another server has become the primary meanwhile, which one that
                was cut off does not know.
        """
        await check_role(self)
        address = Address(self.host, self.port)
        if self._sentinels.failovers != self._failovers and address != self._sentinels.used:
            raise NotPrimary(f"{address} is not the primary any more: {self._sentinels.used} is")
        await self._sentinels.confirm(address)

    async def _connect_to_any(self, addresses: list[Address]) -> None:
        """Connect to the first address that answers as a primary. Raise the error of the last one."""
        for address in addresses:
            self.host, self.port = address
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await super().connect()  # type: ignore[no-untyped-call]  # redis-py's
            except TimeoutError:
                error: Exception = errors.TimeoutError(f"{address} does not answer within {CONNECT_TIMEOUT_S:g} s")
            except (errors.AuthenticationError, errors.NoPermissionError):
                raise
            except (errors.ConnectionError, errors.TimeoutError, OSError) as failure:
                error = failure
            else:
                return
            await self.disconnect(nowait=True)
        raise error


class PrimaryConnection(PrimaryLookup, Connection):
    """A connection without TLS."""


class TlsPrimaryConnection(PrimaryLookup, SSLConnection):
    """A connection with TLS."""


class PrimaryPool(ConnectionPool):
    """Makes connections to the primary that sentinels name."""

    def __init__(self, url: SentinelUrl, *, timeout_s: float, **kwargs: Any) -> None:
        server: dict[str, Any] = {**parse_url(url.server_url), **kwargs}
        is_tls = server.pop("connection_class", None) is not None
        server.pop("host", None)
        self._plain: type[Connection] = SSLConnection if is_tls else Connection
        self._server = {name: value for name, value in server.items() if name != "redis_connect_func"}
        self._sentinel_login = {"username": url.username, "password": url.password}
        self.sentinels = Sentinels(url.service, url.sentinels, self._new_sentinel_connection, self._is_primary)
        super().__init__(
            connection_class=TlsPrimaryConnection if is_tls else PrimaryConnection,
            sentinels=self.sentinels,
            patience_s=PATIENCE_SHARE * timeout_s,
            **server,
        )

    def _new_sentinel_connection(self, address: Address) -> AbstractConnection:
        return self._new_connection(address, {**self._sentinel_login, "db": 0})

    def _new_connection(self, address: Address, changes: Mapping[str, Any]) -> AbstractConnection:
        return self._plain(**{**self._server, "host": address.host, "port": address.port, **changes})

    async def _is_primary(self, address: Address) -> bool:
        """Return True if the server at an address can be reached, and says that it is a primary."""
        connection = self._new_connection(address, {})
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
                await check_role(connection)
        except (errors.RedisError, OSError, TimeoutError):
            return False
        else:
            return True
        finally:
            await connection.disconnect(nowait=True)
