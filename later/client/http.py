"""Later's calls from the other side: what the shell commands speak to a running API with."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from later import __version__
from later.core.errors import LaterError
from later.core.retry_after import parse_retry_after

JSON = "application/json"
AGAIN = frozenset({429, 500, 502, 503, 504})
"""What may go away by itself."""
LONGEST_PAUSE_S = 60.0
MAX_LINE_BYTES = 16 * 1024 * 1024 - 1024
BATCH_BYTES = 8 * 1024 * 1024
"""A batch is sent when it has grown so large, though it has few lines: a request may be of 16 MiB."""


class CallFailed(LaterError):
    """The call did not work; the text is the reason, in the server's words where it gave one.

    `status` is None where no answer came: whether it was carried out is not known then. `again_ms` is the pause that
    the server asked for.
    """

    def __init__(self, reason: str, status: int | None = None, again_ms: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.again_ms = again_ms

    @property
    def may_pass(self) -> bool:
        """May the same call work later?"""
        return self.status is None or self.status in AGAIN


def pause_before_again(attempt: int, again_ms: int | None) -> float:
    """How long (s) to wait after the attempt, the first being 0: what the server asked for, else longer each time."""
    return min(2.0**attempt if again_ms is None else again_ms / 1000, LONGEST_PAUSE_S)


def results_of(answer: Any, count: int) -> list[dict[str, Any]]:
    """What a batch's answer says of each of its items. Raises CallFailed: it does not."""
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or len(results) != count or not all(isinstance(r, dict) for r in results):
        raise CallFailed("the answer does not tell of each item: is it later that answers there?", 200)
    return results


class _Reply(NamedTuple):
    status: int
    reason: str
    retry_after: str | None
    body: bytes


class Client:
    """Calls the API at `url`, http or https: directly, never by a proxy, and without following redirects.

    `clock` gives Unix seconds, for a Retry-After that is a date.
    """

    def __init__(self, url: str, timeout_s: float, clock: Callable[[], float]) -> None:
        self._url = url
        self._split = urlsplit(url)
        self._timeout_s = timeout_s
        self._clock = clock

    def post(self, path: str, body: bytes, content_type: str = JSON) -> Any:
        """As `call` does."""
        return self.call("POST", path, body, content_type)

    def call(self, method: str, path: str, body: bytes | None = None, content_type: str = JSON) -> Any:
        """The JSON that a 200 brings. `path` is what follows the API's URL, percent-encoded, with its query.

        Raises:
            CallFailed: with the reason: another status, no answer, or one that later would not give.
        """
        reply = self._exchange(method, path, body, content_type)
        answer = _json(reply.body)
        if reply.status != 200:
            raise CallFailed(_reason(self._url, reply, answer), reply.status, self._pause(reply))
        if answer is None:
            raise CallFailed(f"{self._url} answered no JSON: is it later that answers there?", reply.status)
        return answer

    def ask(self, method: str, path: str, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send `fields` as JSON and return the JSON object of the answer. Raises CallFailed."""
        answer = self.call(method, path, None if fields is None else json.dumps(fields).encode())
        if not isinstance(answer, dict):
            raise CallFailed("the answer is no JSON object: is it later that answers there?", 200)
        return answer

    def _pause(self, reply: _Reply) -> int | None:
        if reply.retry_after is None:
            return None
        return parse_retry_after(reply.retry_after, int(self._clock() * 1000))

    def _exchange(self, method: str, path: str, body: bytes | None, content_type: str) -> _Reply:
        headers = {"User-Agent": f"later/{__version__}", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = content_type
        connection = self._connection()
        try:
            connection.request(method, self._split.path + path, body, headers)
            response = connection.getresponse()
            read = response.read()
            return _Reply(response.status, response.reason, response.headers.get("Retry-After"), read)
        except TimeoutError:
            raise CallFailed(f"{self._url} did not answer within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: no such name can be
            raise CallFailed(f"{self._url} did not answer: {_why(error)}") from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._split.scheme == "https" else http.client.HTTPConnection
        return kind(self._split.hostname or "", self._split.port, timeout=self._timeout_s)


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _reason(url: str, reply: _Reply, answer: Any) -> str:
    """The problem's detail (RFC 9457), or what little there is."""
    detail = answer.get("detail") if isinstance(answer, dict) else None
    return detail if isinstance(detail, str) else f"{url} answered {reply.status} {reply.reason}".rstrip()


def _json(body: bytes) -> Any:
    """None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
