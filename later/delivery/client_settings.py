"""The settings of an HTTP client of deliveries."""

from __future__ import annotations

from dataclasses import dataclass

from later.core.address_guard import AddressGuard
from later.delivery.connector import OpenSocket, open_socket
from later.delivery.proxy import Proxy
from later.delivery.tls import TlsContexts


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSettings:
    """The settings of an HTTP client, the same for all clients."""

    max_lookups: int
    """Names that are looked up at a time."""
    max_idle: int
    """Idle connections that are kept."""
    guard: AddressGuard
    proxy: Proxy | None = None
    """The proxy that all calls go through, if there is one."""
    tls: TlsContexts | None = None
    """None: the machine's authorities prove who is called."""
    open_socket: OpenSocket = open_socket
