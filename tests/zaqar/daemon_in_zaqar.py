"""A daemon in the place of Zaqar's server, for Zaqar's tests: they call an application by WSGI."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import quote

from falcon import code_to_http_status

from tests.zaqar.exchange import exchange

PROJECT_HEADER = "X-Project-Id"
DEFAULT_MESSAGE_TTL_S = 3600
DEFAULT_CLAIM_TTL_S = 300


class WsgiForwarder:
    """An application of WSGI that sends each request to a daemon. Projects get a prefix, so each test has its own."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
        target = quote(environ["PATH_INFO"].encode("latin-1"))
        if environ["QUERY_STRING"]:
            target += "?" + environ["QUERY_STRING"]
        body = environ["wsgi.input"].read() or None
        answer = exchange(self._url, environ["REQUEST_METHOD"], target, body, self._headers(environ))
        start_response(code_to_http_status(answer.status), answer.headers)
        return [answer.body] if answer.body else []

    def _headers(self, environ: dict[str, Any]) -> dict[str, str]:
        """Return the headers of a request but for its host, which is the daemon."""
        named = {name[len("HTTP_") :]: value for name, value in environ.items() if name.startswith("HTTP_")}
        headers = {name.replace("_", "-").title(): value for name, value in named.items() if name != "HOST"}
        if "CONTENT_TYPE" in environ:
            headers["Content-Type"] = environ["CONTENT_TYPE"]
        if headers.get(PROJECT_HEADER):
            headers[PROJECT_HEADER] = self._prefix + headers[PROJECT_HEADER]
        return headers


class DaemonInZaqar:
    """The server that a test of Zaqar starts: its application is a daemon that runs, and it has no store of its own."""

    def __init__(self, url: str, prefix: str) -> None:
        defaults = SimpleNamespace(message_ttl=DEFAULT_MESSAGE_TTL_S, claim_ttl=DEFAULT_CLAIM_TTL_S)
        self.transport = SimpleNamespace(app=WsgiForwarder(url, prefix), _defaults=defaults)
        self.storage = MagicMock()
        self.control = MagicMock()
