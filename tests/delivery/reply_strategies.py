"""Hypothesis strategies for replies: well-formed ones, and those with faults at any place."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.delivery.scripted_receiver import End, ScriptedReply
from tests.receivers import DONE

BODIES = st.sampled_from([
    b'{"code": 100}', b'{"code": 101}', b'{"code": 7}', b'{"code": "100"}', b'{"code"', b"", b"no", b"{}",
]) | st.binary(max_size=20)  # fmt: skip
STATUSES = st.sampled_from([200] * 6 + [201, 204, 205, 299, 300, 304, 307, 404, 410, 429, 500, 503]) | st.integers(
    200, 599
)
ODD_STATUSES = st.sampled_from([b"", b"0", b"20", b"099", b"101", b"600", b"999", b"1000", b"2OO", b"+200", b"200.0"])
VERSIONS = st.sampled_from([b"HTTP/1.1"] * 8 + [b"HTTP/1.0"])
ODD_VERSIONS = st.sampled_from([b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/2", b"http/1.1", b"HTTP/1", b"ICY", b""])
REASONS = st.sampled_from([b" OK", b"", b" ", b" Not Found", b" \xff", b" O\tK"])
LINE_ENDS = st.sampled_from([b"\n", b"\r", b"\r\r\n", b"\n\r", b""])
SPACES = st.sampled_from([b"", b"  ", b"\t", b"\x0b", b"\r\n "])

HEADER_VALUES = {
    b"Retry-After": [b"5", b"0", b"-5", b"soon", b"Fri, 15 Jan 2027 08:01:00 GMT", b""],
    b"later-after": [b"2.5", b"0", b"-1", b"x"],
    b"later-reason": [b"a%20b", b"\xff", b"%zz"],
    b"Location": [b"/x", b"https://h/?q"],
    b"Content-Encoding": [b"gzip", b"identity", b""],
    b"Connection": [b"close", b"keep-alive", b"upgrade", b"keep-alive, close"],
    b"Upgrade": [b"h2c"],
    b"Set-Cookie": [b"a=b"],
    b"X": [b"", b"y", b" y ", b"\xc3\xbc", b"y" * 2000],
}
HEADER_LINES = [b"%b: %b" % (name, value) for name, values in HEADER_VALUES.items() for value in values]
HEADERS = st.lists(st.sampled_from(HEADER_LINES), max_size=4)
ODD_HEADERS = st.sampled_from([
    b"X", b": y", b"X y: z", b"X : y", b" X: y", b"X\x00: y", b"X: y\x00z", b"X: y\r z", b"X: y\nz", b"X: y\r\n z",
    b"X\xff: y", b"Content-Length: 70000",
    b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: +5", b"Content-Length: 5, 5", b"Content-Length: -1",
    b"Content-Length: 99999999999999999999", b"Content-Length:", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip", b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, gzip", b"Transfer-Encoding : chunked", b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding:",
])  # fmt: skip
INTERIM = st.lists(
    st.builds(
        lambda status, headers: b"\r\n".join([b"HTTP/1.1 %d Interim" % status, *headers, b"", b""]),
        st.sampled_from([100, 102, 103, 199]),
        st.lists(st.sampled_from([line for line in HEADER_LINES if b"Connection" not in line]), max_size=2),
    ),
    max_size=2,
).map(b"".join)
EXTENSIONS = st.sampled_from([b""] * 4 + [b";a", b";a=b", b';a="b"', b";" + b"a" * 300])
ODD_EXTENSIONS = st.sampled_from([b" ", b"\t", b" ;a", b";\n", b",", b"x", b"\x00", b"\r"])
TRAILERS = st.sampled_from([b""] * 3 + [b"X: y\r\n", b"Retry-After: 5\r\n"])
AFTERWARDS = st.sampled_from([b"", b"\r\n", b"x", DONE, b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"])


@st.composite
def chunked_bodies(draw: st.DrawFn, body: bytes) -> bytes:
    """Draw the chunks that make up `body`."""
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=3)))
    parts = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True) if start < end]
    size = draw(st.sampled_from([b"%x", b"%X", b"%04x"]))
    chunks = [size % len(part) + draw(EXTENSIONS) + b"\r\n" + part + b"\r\n" for part in parts]
    return b"".join(chunks) + b"0" + draw(EXTENSIONS) + b"\r\n" + draw(TRAILERS) + b"\r\n"


@st.composite
def heads_and_bodies(draw: st.DrawFn) -> tuple[bytes, End]:
    """Draw a well-formed reply, and an end of its connection at which it is complete."""
    status, body, headers = draw(STATUSES), draw(BODIES), draw(HEADERS)
    end = draw(st.sampled_from([End.KEEP, End.KEEP, End.CLOSE]))
    if status in (204, 304):
        framing, body = [], b""
    else:
        match draw(st.sampled_from(["length", "length", "chunked", "close"])):
            case "length":
                framing = [b"Content-Length: %d" % len(body)]
            case "chunked":
                framing, body = [b"Transfer-Encoding: chunked"], draw(chunked_bodies(body))
            case _:
                framing, end = [], End.CLOSE
    line = b"%b %d%b" % (draw(VERSIONS), status, draw(REASONS))
    order = draw(st.permutations([*headers, *framing]))
    return draw(INTERIM) + b"\r\n".join([line, *order, b"", body]), end


@st.composite
def well_formed_replies(draw: st.DrawFn) -> ScriptedReply:
    """Draw a reply that follows HTTP, in any writes."""
    raw, end = draw(heads_and_bodies())
    return ScriptedReply(raw, tuple(draw(st.lists(st.integers(0, len(raw)), max_size=4))), end)


@st.composite
def broken_replies(draw: st.DrawFn) -> ScriptedReply:
    """Draw a reply with a fault or two, whose connection ends: whoever waits for more of it need not wait long."""
    raw, _ = draw(heads_and_bodies())
    for _ in range(draw(st.integers(1, 2))):
        raw = draw(draw(st.sampled_from(FAULTS))(raw))
    end = draw(st.sampled_from([End.CLOSE, End.CLOSE, End.RESET]))
    return ScriptedReply(raw, tuple(draw(st.lists(st.integers(0, len(raw)), max_size=4))), end)


def _cut_off(raw: bytes) -> st.SearchStrategy[bytes]:
    return st.integers(0, len(raw)).map(lambda place: raw[:place])


def _replace_byte(raw: bytes) -> st.SearchStrategy[bytes]:
    byte = st.sampled_from(b" \t\r\n\x00:;,0519afx-+{\xff") | st.integers(0, 255)
    return st.builds(
        lambda place, byte: raw[:place] + bytes([byte]) + raw[place + 1 :], st.integers(0, max(len(raw) - 1, 0)), byte
    )


def _insert(raw: bytes) -> st.SearchStrategy[bytes]:
    bytes_ = st.sampled_from([b" ", b"\t", b"\r", b"\n", b"\r\n", b"\x00", b"0", b":", b"\x80"]) | st.binary(max_size=3)
    return st.builds(lambda place, inserted: raw[:place] + inserted + raw[place:], st.integers(0, len(raw)), bytes_)


def _remove(raw: bytes) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda place, count: raw[:place] + raw[place + count :], st.integers(0, len(raw)), st.integers(1, 3)
    )


def _replace_once(old: bytes, new: st.SearchStrategy[bytes], raw: bytes) -> st.SearchStrategy[bytes]:
    """Replace one of the places at which `old` stands."""
    parts = raw.split(old)
    if len(parts) == 1:
        return st.just(raw)
    return st.builds(
        lambda place, new: old.join(parts[:place]) + new + old.join(parts[place:]),
        st.integers(1, len(parts) - 1),
        new,
    )


FAULTS = [
    _cut_off,
    _replace_byte,
    _insert,
    _remove,
    lambda raw: _replace_once(b"\r\n", LINE_ENDS, raw),
    lambda raw: _replace_once(b"\r\n", ODD_HEADERS.map(lambda line: b"\r\n%b\r\n" % line), raw),
    lambda raw: _replace_once(b"\r\n", ODD_EXTENSIONS.map(lambda extension: extension + b"\r\n"), raw),
    lambda raw: _replace_once(b" ", SPACES, raw),
    lambda raw: _replace_once(b"HTTP/1.1", ODD_VERSIONS, raw),
    lambda raw: _replace_once(b"200", ODD_STATUSES, raw),
    lambda raw: AFTERWARDS.map(lambda after: raw + after),
    lambda raw: st.sampled_from([b"\r\n", b"\n", b"\r\n" * 9, b" ", b"x"]).map(lambda before: before + raw),
]
