"""TLS to receivers: version 1.2 and newer, certificates always verified, sessions resumed."""

from __future__ import annotations

import ssl
import sys
from collections import OrderedDict

MAX_SESSIONS = 1024


class TlsClient:
    """A client that resumes its last session with each host, which saves the exchange of certificates."""

    def __init__(self) -> None:
        self._context = build_tls_context()
        self.sessions: OrderedDict[str, ssl.SSLSession] = OrderedDict()
        """The last session with each host, the oldest first. A certificate was verified for this name at its
        beginning."""

    def wrap(self, host: str, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Return the TLS object of a new connection to `host`."""
        session = self.sessions.get(host)
        return self._context.wrap_bio(incoming, outgoing, server_hostname=host, session=session)

    def remember(self, tls: ssl.SSLObject) -> None:
        """Keep the session of a connection for the next one to its host.

        TLS 1.3 has no session before the first answer: the server sends it after the handshake.
        """
        host, session = tls.server_hostname, tls.session
        if host is None or session is None:
            return
        self.sessions[host] = session
        self.sessions.move_to_end(host)
        if len(self.sessions) > MAX_SESSIONS:
            self.sessions.popitem(last=False)


def build_tls_context() -> ssl.SSLContext:
    """Return a context that verifies certificates against the machine's authorities."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if sys.version_info >= (3, 13):  # as `ssl.create_default_context` does
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
    context.load_default_certs()
    context.set_alpn_protocols(["http/1.1"])
    return context
