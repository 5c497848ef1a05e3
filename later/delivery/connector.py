"""New connections: name lookup, Happy Eyeballs, TLS. One function opens every socket."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType

from later.core.address_guard import AddressGuard, Refusal
from later.core.host_address import parse_host_address
from later.core.origin import Origin
from later.delivery.connection import Connection
from later.delivery.http_client import OWN_ERRNOS, AddressRefused, LocalFault, NoConnection, ProxyFailed
from later.delivery.proxy import Proxy, TcpStream, TlsStream
from later.delivery.resolver import Resolver
from later.delivery.tls import TlsClient
from later.delivery.tls_transport import TlsTransport

HAPPY_EYEBALLS_DELAY_S = 0.25
"""How long an address is tried before the next one is tried beside it (RFC 8305, section 5)."""
CLOSE_S = 0.001
"""How long the event loop takes to close connections."""

REFUSED = "refused by the address guard"

OpenSocket = Callable[[str, AddrInfoType], socket.socket]
"""Opens the socket for a connection to a host (as in its URL) at one of its addresses."""


def open_socket(host: str, address: AddrInfoType) -> socket.socket:
    """Open a socket for a connection to `host` at `address`. It is a `SocketFactory` that asks for it."""
    family, kind, protocol, _, _ = address
    return socket.socket(family, kind, protocol)


class SocketFactory:
    """Opens the sockets of a call to `host`, at the addresses that the guard allows.

    Every connection to a receiver begins here. Nothing is looked up after that, so a socket is connected to the
    address that was judged.
    """

    def __init__(self, host: str, guard: AddressGuard, open_socket: OpenSocket) -> None:
        self._host = host
        self._guard = guard
        self._open_socket = open_socket
        self.tried: list[AddrInfoType] = []
        """The addresses for which a socket was opened, or was to be."""
        self._refusals: list[Refusal] = []

    @property
    def refusal(self) -> Refusal | None:
        """The refusal of an address, if there was no other to be tried.

        The error of a connection would not tell: aiohappyeyeballs makes one of several.
        """
        return self._refusals[0] if self._refusals and not self.tried else None

    def __call__(self, address: AddrInfoType) -> socket.socket:
        """Open a socket for a connection to this address.

        Raises:
            OSError: the guard refuses the address, or this machine lacks something.
        """
        try:
            refusal = self._guard.judge_address(self._host, str(address[4][0]))
        except OSError:
            self.tried.append(address)
            raise
        if refusal is not None:
            self._refusals.append(refusal)
            raise OSError(errno.EPERM, REFUSED)
        self.tried.append(address)
        return self._open_socket(self._host, address)


class Connector:
    """Opens connections. `open_socket` is called for every address that is tried."""

    def __init__(
        self,
        *,
        resolver: Resolver,
        tls: TlsClient,
        guard: AddressGuard,
        open_socket: OpenSocket,
        free_descriptors: Callable[[], bool],
        proxy: Proxy | None = None,
    ) -> None:
        """`free_descriptors` is called if there is none left; it returns True if it has closed connections."""
        self._resolver = resolver
        self._tls = tls
        self._guard = guard
        self._open_socket = open_socket
        self._free_descriptors = free_descriptors
        self._proxy = proxy

    async def connect(self, origin: Origin) -> socket.socket | TlsTransport:
        """Return what is connected to `origin`: a socket, or TLS to the proxy if that is called by https.

        Raises:
            AddressRefused: the guard refuses every address.
            NoConnection: the name has no address, or none of them answers.
            ProxyFailed: there is no connection to the proxy, or it opens no tunnel.
            LocalFault: this machine has no descriptor, thread, memory or port left.
        """
        if self._proxy is None:
            return await self._connect(origin)
        stream: TcpStream | TlsStream
        connected: socket.socket | TlsTransport
        has_session = self._tls.has_session(self._proxy.origin.host.removesuffix("."))
        try:
            connected = plain = await self._connect(self._proxy.origin)
            stream = TcpStream(plain)
            if self._proxy.origin.scheme == "https":
                stream = TlsStream()
                connected = await self._start_tls(plain, self._proxy.origin, stream)
        except NoConnection as error:
            raise ProxyFailed(f"no connection to it: {error}") from error
        if origin.scheme == "https":
            try:
                await self._proxy.open_tunnel(stream, origin)
            except BaseException:
                connected.close()
                raise
            if isinstance(connected, TlsTransport):
                self._tls.remember(connected.get_extra_info("ssl_object"), was_offered=has_session)
        return connected

    async def start(
        self, connected: socket.socket | TlsTransport, origin: Origin, build: Callable[[], Connection]
    ) -> Connection:
        """Return the connection, made by `build`, on what is connected; for https after the handshake of TLS.

        Raises:
            NoConnection: TLS fails.
        """
        connection = build()
        if origin.scheme == "https":
            await self._start_tls(connected, origin, connection)
        elif isinstance(connected, TlsTransport):
            try:
                connected.hand_over(connection)
            except OSError as error:
                raise _translate(error, ()) from error
        else:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=connected)
        return connection

    async def _start_tls(
        self, connected: socket.socket | TlsTransport, origin: Origin, protocol: asyncio.Protocol
    ) -> TlsTransport:
        """Return the transport of a protocol by TLS, which is on TCP or itself in TLS.

        Raises:
            NoConnection: TLS fails.
        """
        tls = TlsTransport(self._tls, origin.host.removesuffix("."), protocol)
        try:
            if isinstance(connected, TlsTransport):
                connected.hand_over(tls)
            else:
                await asyncio.get_running_loop().create_connection(lambda: tls, sock=connected)
            await tls.handshake()
        except OSError as error:
            raise _translate(error, ()) from error
        return tls

    async def _connect(self, origin: Origin) -> socket.socket:
        for may_free in (True, False):
            sockets = SocketFactory(origin.host, self._guard, self._open_socket)
            try:
                return await aiohappyeyeballs.start_connection(
                    await self._find_addresses(origin),
                    happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S,
                    socket_factory=sockets,
                )
            except OSError as error:
                if sockets.refusal is not None:
                    raise AddressRefused(sockets.refusal) from error
                if not (may_free and is_local_fault(error, sockets.tried) and self._free_descriptors()):
                    raise _translate(error, sockets.tried) from error
            await asyncio.sleep(CLOSE_S)
        raise AssertionError

    async def _find_addresses(self, origin: Origin) -> Sequence[AddrInfoType]:
        address = parse_host_address(origin.host)
        if address is not None:
            family, place = (socket.AF_INET, ()) if address.version == 4 else (socket.AF_INET6, (0, 0))
            return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (origin.host, origin.port, *place))]
        return await self._resolver.resolve(origin.host, origin.port)


def is_local_fault(error: OSError, addresses: Sequence[AddrInfoType]) -> bool:
    """Return True if a connection to these addresses failed for a reason of this machine, and not of a receiver.

    "Cannot assign requested address" has two causes: no free port, or no address of this machine from which that one
    can be reached, such as `::1` without IPv6.
    """
    if isinstance(error, (socket.gaierror, ssl.SSLError)):
        return False
    numbers = _error_numbers(error) & OWN_ERRNOS
    return bool(numbers - {errno.EADDRNOTAVAIL}) or (bool(numbers) and any(map(_has_source_address, addresses)))


def _has_source_address(address: AddrInfoType) -> bool:
    """Return True if a datagram could be sent to this address. (None is sent.)"""
    try:
        with socket.socket(address[0], socket.SOCK_DGRAM) as datagrams:
            datagrams.connect(address[4])
    except OSError:
        return False
    return True


def _error_numbers(error: OSError) -> set[int]:
    """Return the error numbers of all attempts. aiohappyeyeballs joins the texts of errors that differ.

    Addresses that the guard refused are no attempts.
    """
    text = str(error).replace(f"[Errno {errno.EPERM:d}] {REFUSED}", "")
    return {error.errno} if error.errno else {int(number) for number in re.findall(r"\[Errno (\d+)\]", text)}


def _translate(error: OSError, addresses: Sequence[AddrInfoType]) -> Exception:
    """Return the error to be raised for this one, with a text that reveals nothing of the URL."""
    if is_local_fault(error, addresses):
        return LocalFault(", ".join(os.strerror(number) for number in sorted(_error_numbers(error) & OWN_ERRNOS)))
    return NoConnection(explain_no_connection(error))


def explain_no_connection(error: OSError) -> str:
    """Return why a name lookup, a connection or a TLS handshake failed."""
    match error:
        case socket.gaierror():
            return f"the name lookup failed: {error.strerror or 'no address'}"
        case ssl.SSLCertVerificationError():
            return f"the certificate was refused: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS failed: {error.reason or 'no reason given'}"
        case _:
            return ", ".join(map(os.strerror, sorted(_error_numbers(error)))) or "the connection was closed"
