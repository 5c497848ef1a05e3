"""Makes the calls: one POST, one Outcome, whatever happens.

A delivery that fails is no error, and no receiver may end the hand that calls it: `send` raises nothing.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import socket
import ssl
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from later.core.clock import rfc3339
from later.core.policy import MAX_TIMEOUT_MS, Policy
from later.core.reply import Reply, parse_reply
from later.core.retry import Outcome, OutcomeKind
from later.core.task import Task
from later.delivery.resolver import Resolver, deadline_s

MAX_REPLY_BYTES = 65_536
KEEPALIVE_S = 30
LINGER_S = 0.1
"""How long to wait for the body of a reply that its status has judged: it only saves the connection."""
LARGE_BYTES = 1 << 20
"""aiohttp wants a longer body as a file, and writes it in pieces: other calls go on in between."""


class CallState:
    """How far a call has come."""

    __slots__ = ("decided", "fresh")

    def __init__(self) -> None:
        self.fresh = False
        """Was a connection opened for it?"""
        self.decided: Reply | None = None
        """The reply, once its status alone has judged the call, whatever may become of the body."""


_under_way: ContextVar[CallState] = ContextVar("under_way")
"""The call that the running asyncio task makes, for `_open_socket`. (A TraceConfig would cost a fifth of the
sender's speed to say the same.)"""


class Sender:
    """Calls receivers, any number at a time.

    `lookups` is how many names may be looked up at a time.
    """

    def __init__(self, *, max_lookups: int, user_agent: str) -> None:
        self._lookups = max_lookups
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": user_agent,
            "Accept-Encoding": "identity",
        }

    async def start(self) -> None:
        """Open for calls, in the loop that runs."""
        resolver = Resolver(max_lookups=self._lookups, default_timeout_s=MAX_TIMEOUT_MS / 1000)
        self._pooled = self._session(
            aiohttp.TCPConnector(resolver=resolver, limit=0, keepalive_timeout=KEEPALIVE_S, socket_factory=_open_socket)
        )
        self._fresh = self._session(aiohttp.TCPConnector(resolver=resolver, limit=0, force_close=True))

    async def close(self) -> None:
        """Close every connection; calls under way fail."""
        await self._pooled.close()
        await self._fresh.close()

    async def send(self, task: Task, attempt: int, now: int, policy: Policy) -> Outcome:
        """Call the task's callback once; `now` is the store's time in ms.

        The policy's `timeout_ms` is the one deadline: name lookup, connect, TLS, the request and the whole reply.
        """
        timeout_s = policy.timeout_ms / 1000
        try:
            return parse_reply(await self._call(CallbackRequest.build(task, attempt, now), timeout_s), now, policy.ack)
        except TimeoutError:
            return _failed("timeout", f"no complete answer within {timeout_s:g} s")
        except Exception as error:
            if _had_connection(error):
                return _failed("reply", f"no complete answer: {_broken(error)}")
            return _failed("connect", f"no connection: {_unreachable(error)}")

    async def _call(self, request: CallbackRequest, timeout_s: float) -> Reply:
        progress = CallState()
        _under_way.set(progress)
        deadline_s.set(timeout_s)
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                response = await self._post(request, progress)
                try:
                    return await _read(response, progress, deadline)
                finally:
                    response.close()  # nothing is left to close where the reply was read to its end
        except Exception:
            if progress.decided is None:
                raise
            return progress.decided

    async def _post(self, request: CallbackRequest, progress: CallState) -> aiohttp.ClientResponse:
        """Post; once more on a fresh connection where an idle one was closed before the answer began.

        Receivers close idle connections when they like: that is no failure of the task.
        """
        try:
            return await _post_once(self._pooled, request)
        except (aiohttp.ServerDisconnectedError, OSError) as error:
            if progress.fresh or not _had_connection(error) or _had_begun(error):
                raise
        return await _post_once(self._fresh, request)

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            read_bufsize=MAX_REPLY_BYTES,
            max_line_size=MAX_REPLY_BYTES,
            max_field_size=MAX_REPLY_BYTES,
        )


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    _under_way.get().fresh = True
    family, kind, protocol, _, _ = address
    return socket.socket(family, kind, protocol)


class CallbackBody(msgspec.Struct, frozen=True):
    """The body of a call."""

    id: str
    topic: str
    content: str


_encode = msgspec.json.Encoder().encode


class CallbackRequest(NamedTuple):
    """A call as it goes out."""

    url: URL
    headers: dict[str, str]
    body: bytes

    @classmethod
    def build(cls, task: Task, attempt: int, now: int) -> CallbackRequest:
        """The call of `attempt` at `now` (ms). A task's header replaces one of the session."""
        headers = {
            "webhook-id": task.id,
            "webhook-timestamp": str(now // 1000),
            "later-attempt": str(attempt),
            "later-due": rfc3339(task.execute_at),
        }
        body = _encode(CallbackBody(task.id, task.topic, task.content))
        return cls(wire_url(task.callback), task.headers | headers, body)


_PLAIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?([/?](%[0-9A-Fa-f]{2}|[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=-])*)?")
_NOT_PLAIN = re.compile(r"%(?![0-9A-Fa-f]{2})|[^A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+")


@lru_cache(maxsize=4096)
def wire_url(callback: str) -> URL:
    """The URL as its caller wrote it, for receivers may compare it as it is: yarl would make `A` of `%41`.

    Only what cannot stand in a request line is percent-encoded, and the host put in its ASCII form.
    """
    if _PLAIN.fullmatch(callback):
        return URL(callback, encoded=True)
    url = URL(callback)
    target = re.split(r"(?=[/?#])", callback.partition("://")[2], maxsplit=1)[1:]
    path = _NOT_PLAIN.sub(lambda odd: quote(odd[0], safe=""), "".join(target).partition("#")[0])
    return URL(f"{url.scheme}://{url.raw_authority}{path}", encoded=True)


async def _post_once(session: aiohttp.ClientSession, request: CallbackRequest) -> aiohttp.ClientResponse:
    body = request.body
    return await session.post(
        request.url,
        data=body if len(body) <= LARGE_BYTES else io.BytesIO(body),
        headers=request.headers,
        allow_redirects=False,
    )


def _had_connection(error: Exception) -> bool:
    """Did it go wrong on a connection, rather than on the way to one?"""
    on_one = (
        aiohttp.ServerDisconnectedError,
        aiohttp.ClientResponseError,
        aiohttp.ClientPayloadError,
        OSError,
    )
    return isinstance(error, on_one) and not isinstance(error, (aiohttp.ClientConnectorError, TimeoutError))


def _had_begun(error: Exception) -> bool:
    """Had an answer begun when the connection was closed? Then the error carries what was read of it."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)


async def _read(response: aiohttp.ClientResponse, progress: CallState, deadline: asyncio.Timeout) -> Reply:
    status, retry_after = response.status, response.headers.get(aiohttp.hdrs.RETRY_AFTER)
    if 200 <= status < 300:
        return Reply(status=status, body=await _read_body(response), retry_after=retry_after)
    progress.decided = Reply(status=status, body=None, retry_after=retry_after)
    _hurry(response, deadline)
    await _read_body(response)
    return progress.decided


def _hurry(response: aiohttp.ClientResponse, deadline: asyncio.Timeout) -> None:
    if not response.content.is_eof():
        soon = asyncio.get_running_loop().time() + LINGER_S
        deadline.reschedule(min(soon, deadline.when() or soon))


async def _read_body(response: aiohttp.ClientResponse) -> bytes | None:
    """The body; None where it is encoded, or longer than may be read."""
    if (response.content_length or 0) > MAX_REPLY_BYTES:
        return None
    content, body = response.content, bytearray()
    while not content.at_eof():
        body += await content.readany()
        if len(body) > MAX_REPLY_BYTES:
            return None
    encoding = response.headers.get(aiohttp.hdrs.CONTENT_ENCODING, "").strip().lower()
    return bytes(body) if encoding in ("", "identity") else None


def _failed(reason: str, message: str) -> Outcome:
    """A call that came to no reply."""
    return Outcome(kind=OutcomeKind.FAILED, reason=reason, message=message)


def _unreachable(error: Exception) -> str:
    """Why there is no connection. aiohttp's own texts print the URL, and its query may be a secret."""
    if isinstance(error, aiohttp.InvalidURL):
        return "the URL is none that can be called"
    if not isinstance(error, aiohttp.ClientConnectorError):
        return type(error).__name__
    match error.os_error:
        case socket.gaierror() as cause:
            return f"the name lookup failed: {cause.strerror or 'no address'}"
        case ssl.SSLCertVerificationError() as cause:
            return f"the certificate was refused: {cause.verify_message}"
        case ssl.SSLError() as cause:
            return f"TLS failed: {cause.reason or 'no reason given'}"
        case cause:
            return os.strerror(cause.errno) if cause.errno else type(cause).__name__


def _broken(error: Exception) -> str:
    """What became of the reply, without a word from it or from the URL."""
    match error:
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed"
        case aiohttp.ClientPayloadError():
            return "the body broke off"
        case aiohttp.ClientResponseError():
            return "this is not HTTP, or its headers are too long"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case _:
            return type(error).__name__
