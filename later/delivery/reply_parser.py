"""The parser of a receiver's reply: strict, and within limits that no reply can pass, whatever it is made of."""

from __future__ import annotations

import httptools

from later.core.reply import Reply
from later.delivery.http_client import MAX_HEARD_BYTES, MAX_REPLY_BYTES, READ_BYTES, UNREADABLE, BrokenReply

MAX_HEAD_BYTES = 65_536
"""The longest head of a reply, with its interim responses, trailers and the framing of its chunks."""
LINE_BYTES = 32
"""The bytes that each of these counts besides its text, because it is read one by one (a rule of RFC 9113, 6.5.2)."""
INTERIM_BYTES = 1024
"""The bytes that an interim response counts besides: sixty come from no server that means well, and each
takes longer to read than anything else of its length."""
TRANSFER_ENCODING = b"transfer-encoding"
READ_HEADERS = frozenset({
    b"content-encoding", b"content-length", TRANSFER_ENCODING,
    b"retry-after", b"location", b"later-after", b"later-reason", b"later-topics",
    b"proxy-status", b"x-squid-error", b"x-smokescreen-error",
})  # fmt: skip
HTTP_VERSIONS = frozenset({"1.0", "1.1"})
MAX_REMEMBERED_BYTES = 1024
"""The longest reply whose bytes are remembered: most are shorter, and a thousand idle connections have one each."""


class ReplyParser:
    """A parser of the replies of one connection, one after the other. Each reply begins with `start`.

    `reply` is the reply once it is complete, or nothing more of it needs to be read. `decisive_reply` is there as soon
    as the status alone decides the outcome. `heard` says how much of this reply was heard so far.

    A receiver answers most calls of the same second alike. So the last reply is remembered with its bytes, and is not
    parsed again if the next one has the same: that takes less than a tenth of the time.
    """

    __slots__ = (
        "_body", "_body_bytes", "_decided_by_status", "_ends_with_connection", "_has_head", "_head_bytes", "_headers",
        "_http", "_last_bytes", "_last_reply", "_status", "decisive_reply", "heard", "is_reusable", "reply",
    )  # fmt: skip

    def __init__(self) -> None:
        self._http = httptools.HttpResponseParser(self)
        self._last_bytes: bytes | None = None
        """The bytes of the last reply that came in one piece, and left the connection as it was before."""
        self._last_reply: Reply | None = None
        self.start(decided_by_status=False)

    def start(self, *, decided_by_status: bool) -> None:
        """Begin with the next reply. With `decided_by_status`, a status of 2xx decides the outcome, too."""
        self.reply: Reply | None = None
        self.decisive_reply: Reply | None = None
        self.heard = 0
        self.is_reusable = False
        self._decided_by_status = decided_by_status
        self._has_head = False
        self._ends_with_connection = False

    def feed(self, data: bytes) -> None:
        """Read more of the reply.

        Raises:
            BrokenReply: it is not HTTP/1.1 or 1.0, or its head is too long.
        """
        is_first = not self.heard
        if is_first:
            if data == self._last_bytes and not self._decided_by_status:
                self.heard, self.is_reusable, self.reply = len(data) + READ_BYTES, True, self._last_reply
                return
            self._status = self._head_bytes = self._body_bytes = 0
            self._headers: dict[bytes, bytes] = {}
            self._body: list[bytes] = []
        if not self._head_bytes and data[:5] != b"HTTP/" and not b"HTTP/".startswith(data.lstrip(b"\r\n")[:5]):
            raise BrokenReply(UNREADABLE)  # llhttp also reads RTSP
        left = MAX_HEARD_BYTES - self.heard
        self.heard += len(data) + READ_BYTES
        try:
            self._http.feed_data(data if len(data) <= left else data[:left])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_reusable = False
            if self.reply is None:
                raise BrokenReply(UNREADABLE) from None
        if self.heard > MAX_HEARD_BYTES and self.reply is None:
            if not self._has_head:
                raise BrokenReply(UNREADABLE)
            self.reply = self._build_reply(None)
        if is_first and self.is_reusable and not self._decided_by_status and len(data) <= MAX_REMEMBERED_BYTES:
            self._last_bytes, self._last_reply = data, self.reply

    def end(self) -> None:
        """Read the end of the connection: some replies end with it.

        Raises:
            BrokenReply: this one does not.
        """
        if not self._ends_with_connection:
            raise BrokenReply("the body was cut off" if self._has_head else "the connection was closed")
        self.on_message_complete()

    def close(self) -> None:
        """Free the parser at once: httptools and this object refer to each other."""
        del self._http

    # The callbacks of httptools. An exception in one of them stops it.

    def on_message_begin(self) -> None:
        if self.reply is not None:  # nobody asked for a second one
            raise BrokenReply(UNREADABLE)
        self._count_head(LINE_BYTES)
        self._headers = {}

    def on_status(self, reason: bytes) -> None:
        self._count_head(len(reason))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + LINE_BYTES
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        name = name.lower()
        if name in READ_HEADERS and not self._has_head:  # otherwise it is a trailer
            known = self._headers.get(name)
            if known is None:
                self._headers[name] = value
            elif name == TRANSFER_ENCODING:
                self._headers[name] = known + b"," + value

    def on_headers_complete(self) -> None:
        self._status = status = self._http.get_status_code()
        if not 100 <= status < 600 or status == 101 or self._http.get_http_version() not in HTTP_VERSIONS:
            raise BrokenReply(UNREADABLE)
        if status < 200:
            self._count_head(INTERIM_BYTES)
            return
        self._has_head = True
        headers = self._headers
        codings = headers.get(TRANSFER_ENCODING)
        length = headers.pop(b"content-length", None)
        if codings is not None:
            self._ends_with_connection = codings.lower().rpartition(b",")[2].strip() != b"chunked"
        else:
            self._ends_with_connection = length is None
        if status >= 300 or self._decided_by_status:
            self.decisive_reply = self._build_reply(None)
        if length is not None and int(length) > MAX_REPLY_BYTES:
            self._stop_reading()

    def on_chunk_header(self) -> None:
        self._count_head(LINE_BYTES)

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > MAX_REPLY_BYTES:
            self._stop_reading()
        self._body.append(data)

    def on_message_complete(self) -> None:
        if not self._has_head:  # an interim response
            return
        self.is_reusable = self._http.should_keep_alive()
        self.reply = self.decisive_reply or self._build_reply(b"".join(self._body))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def _refuse_head(self) -> None:
        """Take the reply without its body if its status and headers are complete; otherwise it is broken."""
        if self._has_head:
            self._stop_reading()
        raise BrokenReply(UNREADABLE)

    def _stop_reading(self) -> None:
        """Take the reply without its body, which is too long."""
        self.reply = self.decisive_reply or self._build_reply(None)
        raise BrokenReply(UNREADABLE)

    def _build_reply(self, body: bytes | None) -> Reply:
        headers = self._headers
        if not headers:
            return Reply(status=self._status, body=body)
        is_coded = headers.get(TRANSFER_ENCODING, b"chunked").strip().lower() != b"chunked" or headers.get(
            b"content-encoding", b""
        ).strip().lower() not in (b"", b"identity")
        return Reply(
            status=self._status,
            body=None if is_coded else body,
            retry_after=_decode(headers.get(b"retry-after")),
            later_after=_decode(headers.get(b"later-after")),
            later_reason=_decode(headers.get(b"later-reason")),
            later_topics=_decode(headers.get(b"later-topics")),
            location=_decode(headers.get(b"location")),
            proxy_status=_decode(headers.get(b"proxy-status")),
            squid_error=_decode(headers.get(b"x-squid-error")),
            smokescreen_error=_decode(headers.get(b"x-smokescreen-error")),
        )


def _decode(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")
