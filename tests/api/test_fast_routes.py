"""The fast routes and the router: the same request has the same answer on both ways."""

from __future__ import annotations

import asyncio
import json
import random
import re

from hypothesis import settings

from tests.api.api_fixture import MINIMAL, ApiFixture
from tests.cases import each_case

HEADERS: dict[str, list[str]] = {
    "Host": ["localhost", "127.0.0.1:80", "[::1]", "evil.example", "", "localhost,x"],
    "Expect": ["100-continue", "100-CONTINUE", "bla", ""],
    "Content-Encoding": ["identity", "gzip", "br", "zstd", "gzip, br", ""],
    "Origin": ["http://localhost", "http://evil.example", "null", ""],
    "Sec-Fetch-Site": ["same-origin", "none", "cross-site", ""],
    "Content-Type": ["text/plain"],
}
"""Values of headers, of which a request has some."""
BODIES: list[object] = [
    {}, [], "", 5, MINIMAL, {**MINIMAL, "id": "a"}, {"id": "a"}, {"id": "nobody's"}, {"id": 5}, {"id": "a", "x": 1},
    {**MINIMAL, "delay": -1}, {**MINIMAL, "topic": "later/x"}, {**MINIMAL, "content": {}},
]  # fmt: skip
FRAMINGS = ["length", "length", "length", "chunked", "chunked", "both", "too long", "negative", "missing"]
"""How a request says the length of its body; what is right comes more than once."""


def random_request(choose: random.Random) -> bytes:
    """Return a POST request but for its path, `%s`: most of its parts are as they should be, some are not."""
    headers = ["Connection: close"]
    for name, values in HEADERS.items():
        if name == "Host" and choose.random() < 0.8:
            headers.append("Host: localhost")
        elif choose.random() < 0.25:
            headers.append(f"{name}: {choose.choice(values)}")
    body = choose.choice([b"", b"{", b"\xff", *(json.dumps(body).encode() for body in BODIES)])
    match choose.choice(
        ["length", "length", "length", "chunked", "chunked", "both", "too long", "negative", "missing"]
    ):
        case "length":
            headers.append(f"Content-Length: {len(body)}")
        case "chunked":
            headers.append("Transfer-Encoding: chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        case "both":
            headers += [f"Content-Length: {len(body)}", "Transfer-Encoding: chunked"]
        case "too long":
            headers.append("Content-Length: 1048577")
        case "negative":
            headers.append("Content-Length: -1")
        case "missing":
            body = b""
    choose.shuffle(headers)
    line = f"POST %s HTTP/{choose.choice(['1.1', '1.1', '1.1', '1.0'])}"
    return "\r\n".join([line, *headers, "", ""]).encode() + body


async def exchange(api: ApiFixture, request: bytes) -> tuple[list[bytes], bytes]:
    """Send a request on a connection of its own; return the sorted head and the body of its answer, without times."""
    reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100 "):
        head += await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: ([0-9]+)", head)
    assert length is not None
    body = await reader.readexactly(int(length[1]))
    writer.close()
    await writer.wait_closed()
    lines = [line for line in head.split(b"\r\n") if not line.startswith((b"Date", b"Content-Length"))]
    return sorted(lines), re.sub(rb'("id":"[0-9a-f-]{36}"|"created":(true|false)|,"ended":true)', b"", body)


@each_case("seed", range(settings().max_examples // 10))
async def test_the_same_request_has_the_same_answer_on_both_ways(api: ApiFixture, seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(100):
        request, path = random_request(choose), choose.choice(["/create", "/query", "/delete"])
        answers = []
        for way in (path, f"{path}?", f"{path[:-1]}%{ord(path[-1]):x}"):
            await api.post("/create", {**MINIMAL, "id": "a"})
            answers.append(await exchange(api, request.replace(b"%s", way.encode(), 1)))
        assert answers[0] == answers[1] == answers[2], request
