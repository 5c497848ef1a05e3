"""TLS to receivers: version 1.2 and newer, certificates always verified, sessions resumed."""

from __future__ import annotations

import ssl
import sys
from collections import OrderedDict
from collections.abc import Mapping

from later.core.receiver_tls import find_receiver

MAX_SESSIONS = 1024


class TlsContexts:
    """The TLS contexts of calls: one for each name of a host or a zone, and one for all others.

    A host always has the same context, so it is also an identity of the connections that are kept for it.
    """

    def __init__(self, default: ssl.SSLContext, by_name: Mapping[str, ssl.SSLContext] | None = None) -> None:
        self._default = default
        self._by_name = by_name or {}

    def for_host(self, host: str) -> ssl.SSLContext:
        """Return the context of calls to a host."""
        if not self._by_name:
            return self._default
        name = find_receiver(host.removesuffix("."), self._by_name)
        return self._default if name is None else self._by_name[name]


class TlsClient:
    """A client that resumes its last session with each host, which saves the exchange of certificates."""

    def __init__(self, contexts: TlsContexts) -> None:
        self._contexts = contexts
        self.sessions: OrderedDict[str, ssl.SSLSession] = OrderedDict()
        """The session of the last full handshake with each host, the one that was used longest ago first. A certificate
        was verified for this name at its beginning."""

    def has_session(self, host: str) -> bool:
        return host in self.sessions

    def wrap(self, host: str, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Return the TLS object of a new connection to `host`."""
        session = self.sessions.get(host)
        return self._contexts.for_host(host).wrap_bio(incoming, outgoing, server_hostname=host, session=session)

    def remember(self, tls: ssl.SSLObject, *, was_offered: bool) -> None:
        """Keep the session of a connection for the next ones to its host. `was_offered` is True if it had one to offer.

        Only a session is read that is needed: Python copies it, with its certificate, which takes as long as a
        handshake. So all connections offer that of the last full handshake, until the host does not resume it.

        TLS 1.3 has no session before the first answer: the server sends it after the handshake.
        """
        host = tls.server_hostname
        if host is None:
            return
        is_needed = not tls.session_reused and (was_offered or host not in self.sessions)
        session = tls.session if is_needed else self.sessions.get(host)
        if session is None:
            return
        self.sessions[host] = session
        self.sessions.move_to_end(host)
        if len(self.sessions) > MAX_SESSIONS:
            self.sessions.popitem(last=False)


def build_tls_context() -> ssl.SSLContext:
    """Return a context that verifies certificates against the machine's authorities."""
    context = build_distrustful_context()
    context.load_default_certs()
    return context


def build_distrustful_context() -> ssl.SSLContext:
    """Return a context that verifies certificates, and knows no authority yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if sys.version_info >= (3, 13):  # as `ssl.create_default_context` does
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    return context
