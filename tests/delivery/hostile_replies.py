"""Replies that are wrong, odd, cut off or endless, written by hand."""

from __future__ import annotations

from tests.delivery.scripted_receiver import End, ScriptedReply
from tests.receivers import BUSY, DONE, reply_with_body

MAX_BODY = 65_536
MAX_HEARD = 262_144


def ok(*headers: bytes, body: bytes = b'{"code": 101}', end: End = End.KEEP) -> ScriptedReply:
    """Return a 200 with exactly these header lines, without a length of its own."""
    return ScriptedReply(b"\r\n".join([b"HTTP/1.1 200 OK", *headers, b"", body]), end=end)


def chunks(*chunks: bytes, headers: bytes = b"", end: End = End.KEEP) -> ScriptedReply:
    return ok(b"Transfer-Encoding: chunked" + headers, body=b"".join(chunks), end=end)


def starts_with(line: bytes, *, end: End = End.CLOSE) -> ScriptedReply:
    """Return a complete reply that begins with this line."""
    return ScriptedReply(line + b"\r\nContent-Length: 13\r\n\r\n" + b'{"code": 101}', end=end)


def spread(reply: ScriptedReply, step: int) -> ScriptedReply:
    """Return the same reply in writes of `step` bytes."""
    return reply._replace(cuts=tuple(range(step, len(reply.raw), step)))


FRAMING = {
    "204": ok(body=b"")._replace(raw=b"HTTP/1.1 204 No Content\r\n\r\n"),
    "204 with a length": starts_with(b"HTTP/1.1 204 No Content"),
    "304 with a length": starts_with(b"HTTP/1.1 304 Not Modified"),
    "205 with a length": starts_with(b"HTTP/1.1 205 Reset Content"),
    "until the connection ends": ok(end=End.CLOSE),
    "until the connection ends, which it says": ok(b"Connection: close", end=End.CLOSE),
    "until the connection is reset": ok(end=End.RESET),
    "no body until the connection ends": ok(body=b"", end=End.CLOSE),
    "an error until the connection ends": ScriptedReply(b"HTTP/1.1 500 No\r\n\r\nbody", end=End.CLOSE),
    "an error until the connection is reset": ScriptedReply(b"HTTP/1.1 500 No\r\n\r\nbody", end=End.RESET),
    "HTTP/1.0 until the connection ends": ScriptedReply(b'HTTP/1.0 200 OK\r\n\r\n{"code": 101}', end=End.CLOSE),
    "HTTP/1.0 with a length": starts_with(b"HTTP/1.0 200 OK", end=End.KEEP),
    "HTTP/1.0 with a length and keep-alive": starts_with(b"HTTP/1.0 200 OK\r\nConnection: keep-alive", end=End.KEEP),
    "HTTP/1.0 in chunks": ScriptedReply(
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n" + b'{"code": 101}' + b"\r\n0\r\n\r\n",
        end=End.CLOSE,
    ),
    "a short body": ok(b"Content-Length: 14", end=End.CLOSE),
    "a short body, then a reset": ok(b"Content-Length: 14", end=End.RESET),
    "no body of that length": ok(b"Content-Length: 14", body=b"", end=End.CLOSE),
    "a long body": ok(b"Content-Length: 12", end=End.CLOSE),
    "an error with a short body": ScriptedReply(b"HTTP/1.1 503 No\r\nContent-Length: 9\r\n\r\nx", end=End.CLOSE),
    "an error with a short body, then a reset": ScriptedReply(
        b"HTTP/1.1 410 No\r\nContent-Length: 9\r\n\r\nx", end=End.RESET
    ),
    "an error with a short body on an open connection": ScriptedReply(
        b"HTTP/1.1 429 No\r\nRetry-After: 7\r\nContent-Length: 9\r\n\r\nx"
    ),
    "an error with an endless announced body": ScriptedReply(b"HTTP/1.1 503 No\r\nContent-Length: 10000000\r\n\r\nx"),
    "an announced body that is too long": ok(b"Content-Length: 10485760", body=b"x"),
    "an error in broken chunks": ScriptedReply(
        b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", end=End.CLOSE
    ),
    "an error in cut chunks": ScriptedReply(
        b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", end=End.CLOSE
    ),
    "a length with zeros": ok(b"Content-Length: 0000013"),
    "no length where it stands": ok(b"Content-Length:", end=End.CLOSE),
    "a length of spaces": ok(b"Content-Length:   13  "),
    "the length twice": ok(b"Content-Length: 13", b"Content-Length: 13", end=End.CLOSE),
    "two lengths": ok(b"Content-Length: 13", b"Content-Length: 14", end=End.CLOSE),
    "two lengths in a line": ok(b"Content-Length: 13, 13", end=End.CLOSE),
    "a length of 10^15": ok(b"Content-Length: 1000000000000000", end=End.CLOSE),
    "a length of 10^30": ok(b"Content-Length: 1" + b"0" * 30, end=End.CLOSE),
    **{
        f"the length {length!r}": ok(b"Content-Length: " + length, end=End.CLOSE)
        for length in [b"-1", b"+13", b"0xd", b"1_3", b"13.0", b"13;x", b"d", b"1 3", b"13\x0b", b"13\x00", b"\xd9\xa3"]
    },
    "chunks and a length": chunks(b"d\r\n", b'{"code": 101}', b"\r\n0\r\n\r\n", headers=b"\r\nContent-Length: 13"),
    "chunks and a shorter length": chunks(
        b"d\r\n", b'{"code": 101}', b"\r\n0\r\n\r\n", headers=b"\r\nContent-Length: 3", end=End.CLOSE
    ),
    "a length and chunks": ok(
        b"Content-Length: 13",
        b"Transfer-Encoding: chunked",
        body=b'd\r\n{"code": 101}\r\n0\r\n\r\n',
        end=End.CLOSE,
    ),
}

TRANSFER_CODINGS = {
    f"Transfer-Encoding: {coding!r}": ok(
        b"Transfer-Encoding: " + coding, body=b'd\r\n{"code": 101}\r\n0\r\n\r\n', end=End.CLOSE
    )
    for coding in [
        b"chunked", b"Chunked", b"CHUNKED ", b" chunked", b"chunked,", b",chunked", b"gzip, chunked", b"gzip,chunked",
        b"chunked, gzip", b"gzip", b"identity", b"identity, chunked", b"chunked, identity", b"chunked, chunked",
        b"xchunked", b"chunkedx", b"chunked;x=1", b"\x0bchunked", b"chun\x00ked", b"",
        b"chunked\r\nTransfer-Encoding: chunked",
        b"identity\r\nTransfer-Encoding: chunked", b"chunked\r\nTransfer-Encoding: identity", b"chunked\r\n folded",
        b"gzip\r\nTransfer-Encoding: chunked",
    ]
}  # fmt: skip

CHUNKS = {
    "two chunks": chunks(b'7\r\n{"code"\r\n', b"6\r\n: 101}\r\n", b"0\r\n\r\n"),
    "capital size": chunks(b'D\r\n{"code": 101}\r\n', b"0\r\n\r\n"),
    "zeros before the size": chunks(b'000d\r\n{"code": 101}\r\n', b"0000\r\n\r\n"),
    "an extension": chunks(b'd;a=b\r\n{"code": 101}\r\n', b"0;c\r\n\r\n"),
    "a quoted extension": chunks(b'd;a="b;\\"c"\r\n{"code": 101}\r\n', b"0\r\n\r\n"),
    "an extension after a space": chunks(b'd ;a=b\r\n{"code": 101}\r\n', b"0\r\n\r\n", end=End.CLOSE),
    "an extension with a line feed": chunks(b'd;a\nb\r\n{"code": 101}\r\n', b"0\r\n\r\n", end=End.CLOSE),
    "a long extension": chunks(b"d;" + b"a" * 20_000 + b'\r\n{"code": 101}\r\n', b"0\r\n\r\n", end=End.CLOSE),
    "a trailer": chunks(b'd\r\n{"code": 101}\r\n', b"0\r\nX: y\r\n\r\n"),
    "a trailer that says more": chunks(
        b'd\r\n{"code": 101}\r\n', b"0\r\nRetry-After: 5\r\nlater-after: 7\r\nContent-Encoding: gzip\r\n\r\n"
    ),
    "a trailer with a length": chunks(b'd\r\n{"code": 101}\r\n', b"0\r\nContent-Length: 5\r\n\r\n", end=End.CLOSE),
    "a space in a trailer": chunks(b'd\r\n{"code": 101}\r\n', b"0\r\nTransfer-Encoding : x\r\n\r\n", end=End.CLOSE),
    "a broken trailer": chunks(b'd\r\n{"code": 101}\r\n', b"0\r\nX y\r\n\r\n", end=End.CLOSE),
    "a cut trailer": chunks(b'd\r\n{"code": 101}\r\n', b"0\r\nX: y\r\n", end=End.CLOSE),
    "no end of the trailers": chunks(b'd\r\n{"code": 101}\r\n', b"0\r\n", end=End.CLOSE),
    "no last chunk": chunks(b'd\r\n{"code": 101}\r\n', end=End.CLOSE),
    "no last chunk, then a reset": chunks(b'd\r\n{"code": 101}\r\n', end=End.RESET),
    "a cut chunk": chunks(b'd\r\n{"code"', end=End.CLOSE),
    "a cut size": chunks(b"d", end=End.CLOSE),
    "a size without a digit": chunks(b'\r\n{"code": 101}\r\n', b"0\r\n\r\n", end=End.CLOSE),
    "a chunk that is longer than its size": chunks(b'7\r\n{"code": 101}\r\n', b"0\r\n\r\n", end=End.CLOSE),
    "a chunk that is shorter than its size": chunks(b'e\r\n{"code": 101}\r\n', b"0\r\n\r\n", end=End.CLOSE),
    "chunks with line feeds alone": chunks(b'd\n{"code": 101}\n', b"0\n\n", end=End.CLOSE),
    "a last chunk with line feeds alone": chunks(b'd\r\n{"code": 101}\r\n', b"0\n\n", end=End.CLOSE),
    "chunks with carriage returns alone": chunks(b'd\r{"code": 101}\r', b"0\r\r", end=End.CLOSE),
    "a space before the size": chunks(b' d\r\n{"code": 101}\r\n', b"0\r\n\r\n", end=End.CLOSE),
    "a space after the size": chunks(b'd \r\n{"code": 101}\r\n', b"0\r\n\r\n", end=End.CLOSE),
    "a tab after the size": chunks(b'd\t\r\n{"code": 101}\r\n', b"0\r\n\r\n", end=End.CLOSE),
    "a space after the last size": chunks(b'd\r\n{"code": 101}\r\n', b"0 \r\n\r\n", end=End.CLOSE),
    **{
        f"the size {size!r}": chunks(size + b'\r\n{"code": 101}\r\n', b"0\r\n\r\n", end=End.CLOSE)
        for size in [b"zz", b"-d", b"+d", b"0xd", b"d.0", b"1_3", b"d\x00", b"f" * 15, b"f" * 16, b"1" + b"0" * 16]
    },
    "nothing but a last chunk": chunks(b"0\r\n\r\n"),
    "a body that is too long": chunks(b"10001\r\n", b'{"code": 101}'.ljust(MAX_BODY + 1), b"\r\n0\r\n\r\n"),
    "a body that is just short enough": chunks(b"10000\r\n", b'{"code": 101}'.ljust(MAX_BODY), b"\r\n0\r\n\r\n"),
    "a chunk for each byte": chunks(*(b"1\r\n%c\r\n" % byte for byte in b'{"code": 101}'), b"0\r\n\r\n"),
}

INTERIM = {
    "100": ScriptedReply(b"HTTP/1.1 100 Continue\r\n\r\n" + BUSY),
    "100 with a length": ScriptedReply(b"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n" + BUSY, end=End.CLOSE),
    "102": ScriptedReply(b"HTTP/1.1 102 Processing\r\n\r\n" + BUSY),
    "103 three times": ScriptedReply(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 3 + BUSY),
    "103 a thousand times": ScriptedReply(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 1000 + BUSY),
    "103 with headers of ours": ScriptedReply(
        b"HTTP/1.1 103 Early Hints\r\nRetry-After: 7\r\nlater-after: 8\r\nContent-Encoding: gzip\r\n\r\n" + BUSY
    ),
    "199": ScriptedReply(b"HTTP/1.1 199 Odd\r\n\r\n" + BUSY),
    "100 alone": ScriptedReply(b"HTTP/1.1 100 Continue\r\n\r\n", end=End.CLOSE),
    "100 alone, then a reset": ScriptedReply(b"HTTP/1.1 100 Continue\r\n\r\n", end=End.RESET),
    "100 of HTTP/1.0": ScriptedReply(b"HTTP/1.0 100 Continue\r\n\r\n" + BUSY, end=End.CLOSE),
    "100 that closes": ScriptedReply(b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n" + BUSY, end=End.CLOSE),
    "100 and garbage": ScriptedReply(b"HTTP/1.1 100 Continue\r\n\r\nxyz\r\n\r\n", end=End.CLOSE),
    "101 with an upgrade": ScriptedReply(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello", end=End.CLOSE
    ),
    "101 without an upgrade": ScriptedReply(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + BUSY, end=End.CLOSE),
    "101 with a length": starts_with(b"HTTP/1.1 101 Switching Protocols"),
}

LINES = {
    **{
        f"the line {line!r}": starts_with(line)
        for line in [
            b"HTTP/1.1 200",
            b"HTTP/1.1 200 ",
            b"HTTP/1.1  200 OK",
            b"HTTP/1.1\t200 OK",
            b"HTTP/1.1 200\tOK",
            b" HTTP/1.1 200 OK",
            b"HTTP/1.1 200 OK ",
            b"HTTP/1.1 200 O\tK",
            b"HTTP/1.1 200 \xff\xfe",
            b"HTTP/1.1 200 O\x00K",
            b"HTTP/1.1 200 O\x1bK",
            b"HTTP/1.1 OK",
            b"HTTP/1.1 20",
            b"HTTP/1.1 2OO OK",
            b"HTTP/1.1 -200 OK",
            b"HTTP/1.1 +200 OK",
            b"HTTP/1.1 0200 OK",
            b"HTTP/1.1 200.0 OK",
            b"HTTP/1.1 200OK",
            b"HTTP/1.1200 OK",
            b"HTTP/1.1",
            b"HTTP/",
            b"HTTP/1.1 \xd9\xa2\xd9\xa0\xd9\xa0 OK",
            b"HTTP/0.9 200 OK",
            b"HTTP/1.2 200 OK",
            b"HTTP/1.9 200 OK",
            b"HTTP/2.0 200 OK",
            b"HTTP/2 200 OK",
            b"HTTP/3.0 200 OK",
            b"HTTP/1 200 OK",
            b"HTTP/11.1 200 OK",
            b"HTTP/1.10 200 OK",
            b"HTTP/01.1 200 OK",
            b"http/1.1 200 OK",
            b"Http/1.1 200 OK",
            b"HTTPS/1.1 200 OK",
            b"ICY 200 OK",
            b"200 OK",
            b"RTSP/1.0 200 OK",
            b"POST / HTTP/1.1",
            b"PRI * HTTP/2.0",
            b"SSH-2.0-OpenSSH_9.6",
            b"\x15\x03\x01\x00\x02\x02\x16",
            b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
            b'{"code": 100}',
            b"<html>",
        ]
    },
    "a long reason": starts_with(b"HTTP/1.1 200 " + b"O" * 30_000),
    "a reason that is too long": starts_with(b"HTTP/1.1 200 " + b"O" * 100_000),
    "a reason of 250 kB": starts_with(b"HTTP/1.1 200 " + b"O" * 250_000),
    "an empty line first": ScriptedReply(b"\r\n" + BUSY, end=End.CLOSE),
    "ten empty lines first": ScriptedReply(b"\r\n" * 10 + BUSY, end=End.CLOSE),
    "a thousand empty lines first": ScriptedReply(b"\r\n" * 1000 + BUSY, end=End.CLOSE),
    "a line feed first": ScriptedReply(b"\n" + BUSY, end=End.CLOSE),
    "a carriage return first": ScriptedReply(b"\r" + BUSY, end=End.CLOSE),
    "a space first": ScriptedReply(b" " + BUSY, end=End.CLOSE),
    "a BOM first": ScriptedReply(b"\xef\xbb\xbf" + BUSY, end=End.CLOSE),
    "line feeds alone": ScriptedReply(BUSY.replace(b"\r\n", b"\n"), end=End.CLOSE),
    "carriage returns alone": ScriptedReply(BUSY.replace(b"\r\n", b"\r"), end=End.CLOSE),
    "a line feed after the status": ScriptedReply(BUSY.replace(b"\r\n", b"\n", 1), end=End.CLOSE),
    "a carriage return after the status": ScriptedReply(BUSY.replace(b"\r\n", b"\r", 1), end=End.CLOSE),
    "a line feed before the body": ScriptedReply(BUSY.replace(b"\r\n\r\n", b"\r\n\n"), end=End.CLOSE),
    "two carriage returns": ScriptedReply(BUSY.replace(b"\r\n", b"\r\r\n"), end=End.CLOSE),
}

HEADER_LINES = {
    f"the header {line[:40]!r} {len(line)}": ok(line, b"Content-Length: 13", end=End.CLOSE)
    for line in [
        b"X", b":", b": x", b" : x", b"X :x", b"X : x", b"X\t: x", b" X: x", b"\tX: x", b"X Y: x", b"X\x00: x",
        b"X\x01: x", b"X\xff: x",
        b"\xc3\xbc: x", b"(X): x", b"X@: x", b"X[]: x", b'"X": x', b"X: x\x00y", b"X: x\x01y", b"X: x\x7fy",
        b"X: x\xffy", b"X: x\ry",
        b"X: x\ny", b"X: x\r\n y", b"X: x\r\n\ty", b"X: x\r\n ", b"X:\r\n y", b"X: x\r y", b"X:x", b"X:\tx",
        b"X:  x  ", b"X: " + b"\xc3\xbc",
        b"X: " + b"x" * 30_000, b"X: " + b"x" * 70_000, b"X: " + b"x" * 100_000, b"X: " + b"x" * 250_000,
        b"X" * 30_000 + b": x", b"X" * 70_000 + b": x", b"X" * 100_000 + b": x", b"\r\n".join([b"X: x"] * 100),
        b"\r\n".join([b"X: x"] * 500), b"\r\n".join([b"X: x"] * 5000), b"\r\n".join([b"X: x"] * 20_000),
        b"\r\n".join(b"X%d: x" % n for n in range(300)),
        b"Content_Length: 3", b"Content-Length : 13", b"Content-Length\x00: 3", b"Transfer-Encoding : chunked",
        b"Transfer_Encoding: chunked",
        b"Connection: ,", b"Connection: close, keep-alive", b"Connection: \xff",
        b"Connection: close\r\nConnection: keep-alive",
        b"Upgrade: x\r\nConnection: upgrade", b"Content-Encoding: \xff", b"Content-Encoding: gzip\r\n , deflate",
        b"Retry-After: 5\r\n 6", b"Host: x",
        b"Location: h\x1b[31m", b"Proxy-Connection: close", b"HTTP/1.1 200 OK", b"Expect: 100-continue",
    ]
}  # fmt: skip

CUT = {
    "nothing": ScriptedReply(b"", end=End.CLOSE),
    "nothing but a reset": ScriptedReply(b"", end=End.RESET),
    **{f"{place} bytes": ScriptedReply(BUSY[:place], end=End.CLOSE) for place in range(1, len(BUSY))},
    **{f"{place} bytes, then a reset": ScriptedReply(BUSY[:place], end=End.RESET) for place in range(1, len(BUSY), 7)},
    "a whole reply, then a reset": ScriptedReply(BUSY, end=End.RESET),
    "a whole reply, then the end": ScriptedReply(BUSY, end=End.CLOSE),
}

SPLIT = {
    name: spread(ScriptedReply(raw, end=end), step)
    for step in (1, 3)
    for name, raw, end in [
        (f"a length, {step} bytes at a time", BUSY, End.KEEP),
        (
            f"chunks, {step} bytes at a time",
            chunks(b'7\r\n{"code"\r\n', b"6;a\r\n: 101}\r\n", b"0\r\nX: y\r\n\r\n").raw,
            End.KEEP,
        ),
        (f"until the end, {step} bytes at a time", ok().raw, End.CLOSE),
        (f"an interim reply, {step} bytes at a time", b"HTTP/1.1 103 Hints\r\nX: y\r\n\r\n" + BUSY, End.KEEP),
        (f"an error, {step} bytes at a time", reply_with_body(b"no", "503 No", "Retry-After: 17"), End.KEEP),
        (
            f"headers of ours, {step} bytes at a time",
            reply_with_body(b"", "500 No", "later-after: 17", "later-reason: a%20b"),
            End.KEEP,
        ),
    ]
}  # fmt: skip

AFTERWARDS = {
    f"{name}, then {after[:30]!r}": ScriptedReply(raw + after, cuts=cuts)
    for name, raw in [("a reply", BUSY), ("chunks", chunks(b'd\r\n{"code": 101}\r\n', b"0\r\n\r\n").raw)]
    for after in [b"\r\n", b"x", DONE, reply_with_body(b"", "410 Gone"), b"\x00" * 1000]
    for cuts in [(), (len(raw),)]
} | {
    f"204, then {after[:30]!r} at once": ScriptedReply(b"HTTP/1.1 204 No Content\r\n\r\n" + after)
    for after in [b"{}", reply_with_body(b"", "410 Gone")]
}

ENDLESS = {
    f"without end: {part[:30]!r}": ScriptedReply(start + part * (2 * MAX_HEARD // len(part)), end=End.CLOSE)
    for start, part in [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
        (b"", b"\r\n"),
        (b"", b"x"),
        (b"HTTP/1.1 200 ", b"O"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"HTTP/1.1 200 OK\r\n", b"X"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"z"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n", b"w"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nv\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"fff\r\n" + b"u" * 4095 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"t"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1", b"0"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"T: s\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: ", b"r"),
        (b"HTTP/1.1 503 No\r\n\r\n", b"q"),
        (b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\np\r\n"),
        (b"HTTP/1.1 410 No\r\n", b"X: o\r\n"),
    ]
}


HOSTILE_REPLIES = {
    f"{group}: {name}": reply
    for group, replies in [
        ("framing", FRAMING),
        ("coding", TRANSFER_CODINGS),
        ("chunks", CHUNKS),
        ("interim", INTERIM),
        ("line", LINES),
        ("header", HEADER_LINES),
        ("cut off", CUT),
        ("split", SPLIT),
        ("afterwards", AFTERWARDS),
        ("endless", ENDLESS),
    ]
    for name, reply in replies.items()
}
