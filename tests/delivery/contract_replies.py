"""Replies for every row of the callback's contract, written by hand."""

from __future__ import annotations

from tests.delivery.scripted_receiver import End, ScriptedReply
from tests.receivers import reply_with_body

MAX_BODY = 65_536
IN_A_MINUTE = "Fri, 15 Jan 2027 08:01:00 GMT"
A_MINUTE_AGO = "Friday, 15-Jan-27 07:59:00 GMT"
IN_TWO_DAYS = "Sun Jan 17 08:00:00 2027"


def with_headers(*headers: str, status: str = "503 Busy", body: bytes = b"") -> ScriptedReply:
    return ScriptedReply(reply_with_body(body, status, *headers))


STATUSES = {
    str(status): ScriptedReply(reply_with_body(b'{"code": 100}', f"{status} Text"), end=End.CLOSE)
    for status in [*range(100, 600), 0, 1, 99, 600, 700, 999, 1000, 2000, 20000]
    if status not in (204, 304)  # they have no body
}

BODIES = {
    f"200 {body[:40]!r} {len(body)}": ScriptedReply(reply_with_body(body))
    for body in [
        b'{"code": 100}',
        b'{"code":100,"message":"done"}',
        b' {"code": 100} ',
        b'{"code": 101}',
        b"",
        b"OK",
        b"[]",
        b'[{"code": 101}]',
        b"101",
        b'"code"',
        b"null",
        b"{}",
        b'{"status": {"code": 101}}',
        b'{"Code": 101}',
        b'{"code": 101',
        b'{"code": 101}}',
        b"\xff\xfe\x00",
        b"\xef\xbb\xbf" + b'{"code": 101}',
        '{"code": 101}'.encode("utf-16"),
        b'{"code": 5, "code": 101}',
        b'{"code": 101, "text": "\\ud83d"}',
        b'{"code": 101, "text": "\xff"}',
        b"[" * 60_000,
        b"<html>101</html>",
        *(
            b'{"code": %b}' % code
            for code in b'5 0 -100 99 102 "100" 100.0 1e2 true false null [100] {} "" -0 1e400 NaN'.split()
        ),
        b'{"code": ' + b"1" * 5000 + b"}",
        b'{"code": 101}'.ljust(MAX_BODY),
        b'{"code": 101}'.ljust(MAX_BODY + 1),
        b'{"code": 101}'.ljust(4 * MAX_BODY),
    ]
}

RETRY_AFTER = {
    f"{status.split(' ')[0]} Retry-After: {value}": with_headers(f"Retry-After: {value}", status=status, body=body)
    for status, body in [
        ("429 No", b""), ("503 No", b"x"), ("200 OK", b'{"code": 101}'), ("500 No", b""), ("410 No", b"")
    ]
    for value in [
        "120", "0", "172800", "00007", "  7  ", "7\t", "-5", "+5", "1.5", "1e3", "soon", "", "5, 6", "9" * 30, "٣",
        IN_A_MINUTE, A_MINUTE_AGO, IN_TWO_DAYS, "Fri, 99 Jan 2027 08:01:00 GMT", "Fri, 15 Jan 2027 08:01:00 +0100",
    ]
}  # fmt: skip

OTHER_HEADERS = {
    " ".join([status, *headers])[:90]: with_headers(*headers, status=status, body=body)
    for status, body in [("503 No", b""), ("500 No", b""), ("410 No", b""), ("200 OK", b'{"code": 101}')]
    for headers in [
        ["later-after: 2.5"],
        ["LATER-AFTER: 0"],
        ["later-after: 1e3"],
        ["later-after: -1"],
        ["later-after: soon", "Retry-After: 60"],
        ["later-after:", "Retry-After: 60"],
        ["later-after: 5", "Retry-After: 60"],
        ["Retry-After: 60", "Retry-After: 5"],
        ["later-after: 5", "later-after: 6"],
        ["later-after: 999999999999"],
        ["later-reason: out%20of%20stock"],
        ["later-reason: gr%C3%BC%C3%9Fe"],
        ["later-reason: grüße"],
        ["later-reason: %ff%fe%"],
        ["later-reason: a%0d%0ab%00c"],
        ["later-reason: " + "x" * 5000],
        ["later-reason: a", "later-reason: b"],
        ["later-reason:"],
        ["Location: https://user:s3cret@h/later/?token=s3cret"],
        ["Content-Encoding: gzip"],
        ["Content-Encoding: identity"],
        ["Content-Encoding:  Identity "],
        ["Content-Encoding:"],
        ["Content-Encoding: identity, gzip"],
        ["Content-Encoding: identity", "Content-Encoding: gzip"],
        ["Content-Encoding: gzip", "Content-Encoding: identity"],
        ["Content-Type: text/html; charset=nonsense"],
        ["Set-Cookie: a=b", "Set-Cookie: c=d"],
        ["Connection: close"],
        ["Connection: keep-alive"],
        ["Connection: keep-alive, close"],
        ["Connection: upgrade", "Upgrade: h2c"],
        ["Upgrade: websocket"],
        ["Keep-Alive: timeout=0"],
        ["Trailer: later-after"],
        ["Alt-Svc: h3=':443'"],
        ["X-Empty:"],
        ["X-Long: " + "x" * 30_000],
        [f"X-{n}: {n}" for n in range(100)],
    ]
} | {
    f"{status}, {location}": with_headers(f"Location: {location}", status=f"{status} Moved")
    for status in (300, 301, 307, 404)
    for location in ["", "/x", "//h/x?y", "https://h:99999/", "http://[x", "\x80"]
}


CONTRACT_REPLIES = {
    f"{group}: {name}": reply
    for group, replies in [
        ("status", STATUSES),
        ("body", BODIES),
        ("Retry-After", RETRY_AFTER),
        ("header", OTHER_HEADERS),
    ]
    for name, reply in replies.items()
}
