"""The backend of the clients of an application under test: a virtual clock, without a network."""

from __future__ import annotations

import copy
import threading
from collections import deque
from typing import Any

from later.client.call import Call
from later.client.connection_settings import ConnectionSettings
from later.client.http import ApiReply
from later.core.errors import Unavailable
from later.testing.virtual_api import VirtualApi

POLICY_READ = "/policy?applied=true"
"""The end of the path of a call that clients make before a create. No test counts those."""


class VirtualSession:
    """The session of one event loop: calls are answered at once."""

    def __init__(self, backend: VirtualBackend) -> None:
        self._backend = backend

    async def exchange(self, call: Call[Any], timeout_s: float) -> ApiReply:
        return self._backend.answer(call.method, call.path, call.body)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def abandon(self) -> None:
        """Do nothing: there is no connection."""


class VirtualConnection:
    """The connection of one thread: calls are answered at once."""

    def __init__(self, backend: VirtualBackend) -> None:
        self._backend = backend

    def exchange(self, method: str, path: str, body: bytes | None, content_type: str, timeout_s: float) -> ApiReply:
        return self._backend.answer(method, path, body)

    def close(self) -> None:
        """Do nothing: there is no connection."""


class VirtualBackend:
    """Answers the calls of clients, unless they are to fail. The functions of handlers call from their threads."""

    def __init__(self, api: VirtualApi) -> None:
        self.failures: deque[Unavailable] = deque()
        """The errors of the next calls."""
        self._api = api
        self._lock = threading.Lock()

    def open_session(self, settings: ConnectionSettings) -> VirtualSession:
        return VirtualSession(self)

    def open_connection(self, settings: ConnectionSettings) -> VirtualConnection:
        return VirtualConnection(self)

    def wall_ms(self) -> int:
        return self._api.now()

    def answer(self, method: str, path: str, body: bytes | None) -> ApiReply:
        """Return the answer to a call. Raises Unavailable: it is one of those that fail."""
        with self._lock:
            if self.failures:
                error = self.failures[0] if path.endswith(POLICY_READ) else self.failures.popleft()
                raise copy.copy(error)
            return self._api.answer(method, path, body or b"")
