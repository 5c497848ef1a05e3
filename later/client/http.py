"""A client of later's HTTP API, on the standard library alone: Spark's executors need no other package."""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import ssl
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from later import __version__
from later.client.key_source import KEY
from later.core.errors import NOT_LATER, CallFailed, ConfigError, Unavailable
from later.core.retry_after import parse_retry_after
from later.regular_file import read_regular_file

JSON = "application/json"
RETRYABLE_STATUSES = frozenset({429, 500, 502, 503, 504})
"""Statuses after which the same call may work later."""
CALLS_PER_CONNECTION = 16
"""After so many calls the client connects anew: the kernel distributes connections, not calls, over the processes of a
daemon, and a few connections that stay could all reach one process."""
NO_KEY = "/problems/no-key"
"""The type of the problem that a call needs a key."""


NO_SUCH_PATH = "there is nothing at this path"
"""The daemon's words for a path that it does not have. They do not say which URL was called."""


class NotReached(CallFailed):
    """The failure of the last attempt at a call: nothing answered, or later could not reach its store."""


class TargetFull(CallFailed):
    """The failure of the last attempt at a write: the store's memory is full."""


class ApiReply(NamedTuple):
    """An answer as it came. `retry_after` is the header of that name."""

    status: int
    reason: str
    retry_after: str | None
    body: bytes


class ApiClient:
    """A client of the API at `url`, http or https. It uses no proxy and follows no redirects.

    It keeps a connection open for the next calls, so it must not be shared by threads. It never repeats a call by
    itself: a caller that may repeat it does so (see `RetryPolicy`). `clock` returns Unix seconds, for a Retry-After
    that is a date. The `key` of the API, if there is one, goes nowhere but into the header of each call. The file `ca`
    has authorities that are trusted besides the machine's.
    """

    def __init__(
        self, url: str, timeout_s: float, clock: Callable[[], float], key: str | None = None, ca: str | None = None
    ) -> None:
        """Raises ConfigError: `ca` cannot be read."""
        self._url = url
        self._key = key
        self.timeout_s = timeout_s
        self._clock = clock
        self._ca = ca
        split = urlsplit(url)
        self._path = split.path
        self._connection: http.client.HTTPConnection
        if split.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                split.hostname or "", split.port, timeout=timeout_s, context=build_tls_context(ca)
            )
        else:
            self._connection = http.client.HTTPConnection(split.hostname or "", split.port, timeout=timeout_s)
        self._calls = 0
        weakref.finalize(self, self._connection.close)  # that of a thread that has ended, too

    def close(self) -> None:
        """Close the connection. A later call opens a new one."""
        self._connection.close()

    def clone(self) -> ApiClient:
        """Return a client of the same API, for another thread."""
        return ApiClient(self._url, self.timeout_s, self._clock, self._key, self._ca)

    def abort(self) -> None:
        """Cut the connection of a call that another thread makes."""
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def ask(
        self, method: str, path: str, fields: Mapping[str, Any] | bytes | None = None, wait_s: float = 0
    ) -> dict[str, Any]:
        """Send `fields` as JSON, or as they are, and return the JSON object of the answer. Raises as `call` does.

        The call itself may take `wait_s`, and its answer as long as any other besides.
        """
        body = fields if fields is None or isinstance(fields, bytes) else json.dumps(fields).encode()
        answer = self.call(method, path, body, wait_s=wait_s)
        if not isinstance(answer, dict):
            raise CallFailed(f"expected a JSON object as the answer, got something else: {NOT_LATER}", 200)
        return answer

    def call(
        self, method: str, path: str, body: bytes | None = None, content_type: str = JSON, *, wait_s: float = 0
    ) -> Any:
        """Return the decoded JSON of a 200. `path` follows the API's URL, percent-encoded, with its query.

        The call itself may take `wait_s`, and its answer as long as any other besides.

        Raises:
            Unavailable: No answer came, or one of RETRYABLE_STATUSES.
            CallFailed: Another status, or an answer that later does not give.
        """
        reply = self.exchange(method, path, body, content_type, self.timeout_s + wait_s)
        try:
            answer = json.loads(reply.body)
        except (ValueError, RecursionError):
            answer = None
        if reply.status == 200:
            if answer is None:
                raise CallFailed(f"expected JSON from {self._url}, got something else: {NOT_LATER}", reply.status)
            return answer
        detail = answer.get("detail") if isinstance(answer, dict) else None  # RFC 9457
        reason = detail if isinstance(detail, str) else f"{self._url} answered {reply.status} {reply.reason}".rstrip()
        if detail == NO_SUCH_PATH:
            reason = f"{self._url}{path.partition('?')[0]}: {detail}: {NOT_LATER}"
        if self._key is None and isinstance(answer, dict) and answer.get("type") == NO_KEY:
            reason += f"; put the key into {KEY}, or name its file (--key-file)"
        if isinstance(answer, dict) and answer.get("stored") is True and "id" in answer:
            reason += f"; its id is {answer['id']}, with which the same may be asked again"
        if reply.status not in RETRYABLE_STATUSES:
            raise CallFailed(reason, reply.status)
        text = reply.retry_after
        retry_after_ms = None if text is None else parse_retry_after(text, int(self._clock() * 1000))
        raise Unavailable(reason, reply.status, retry_after_ms=retry_after_ms)

    def exchange(self, method: str, path: str, body: bytes | None, content_type: str, timeout_s: float) -> ApiReply:
        """Send a request, and return whatever is answered within `timeout_s`.

        Raises:
            Unavailable: no answer came. It is `unknown` whether the call was carried out, unless nothing was sent.
            CallFailed: the server's certificate is not trusted.
        """
        headers = {"User-Agent": f"later/{__version__}"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        if body is not None:
            headers["Content-Type"] = content_type
        if self._calls % CALLS_PER_CONNECTION == 0 or self._is_dropped():
            self._connection.close()
        self._calls += 1
        is_sent = False
        with ExitStack() as on_failure:
            on_failure.callback(self._connection.close)
            try:
                self._connect(timeout_s)
                is_sent = True
                self._connection.request(method, self._path + path, body, headers)
                response = self._connection.getresponse()
                answer_body = response.read()
            except TimeoutError:
                raise Unavailable(f"{self._url} did not answer within {timeout_s:g} s", unknown=is_sent) from None
            except ssl.SSLCertVerificationError as error:
                raise CallFailed(
                    f"the certificate of {self._url} was refused: {error.verify_message} "
                    "(--ca FILE adds an authority that this machine does not know)"
                ) from None
            except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: an impossible host name
                cause = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
                raise Unavailable(f"{self._url} did not answer: {cause}", unknown=is_sent) from error
            on_failure.pop_all()
        return ApiReply(response.status, response.reason, response.headers.get("Retry-After"), answer_body)

    def _connect(self, timeout_s: float) -> None:
        """Connect unless that is done, and let each wait for the server end after `timeout_s`."""
        self._connection.timeout = timeout_s
        if self._connection.sock is None:
            self._connection.connect()
        else:
            self._connection.sock.settimeout(timeout_s)

    def _is_dropped(self) -> bool:
        """Return True if the server has closed the idle connection, or has sent data without a request."""
        if self._connection.sock is None:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.sock, selectors.EVENT_READ)
            return bool(selector.select(0))


def build_tls_context(ca: str | None) -> ssl.SSLContext:
    """Return a context that trusts the machine's authorities, and those in the file `ca`. Raises ConfigError."""
    context = ssl.create_default_context()
    if ca is not None:
        try:
            read_regular_file(ca)  # OpenSSL would wait for a FIFO
            context.load_verify_locations(ca)
        except ssl.SSLError:
            raise ConfigError(f"--ca {ca}: expected certificates of authorities in PEM") from None
        except OSError as error:
            raise ConfigError(f"--ca {ca}: cannot be read: {error.strerror}") from None
    return context
