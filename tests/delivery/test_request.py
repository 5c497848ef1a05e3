"""Requests as they are built: every task that is admitted can be sent."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from later.core.callback_url import check_callback
from later.core.errors import Refused
from later.core.host_address import parse_host_address
from later.core.operator_event import EVENTS_TOPIC
from later.delivery.aiohttp_client import build_url
from later.delivery.request import RequestBuilder, encode_body
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.receivers import parse_headers

LABELS = st.one_of(
    st.text("abcxyz019-_", max_size=6),
    st.text("abcxyz019-_", min_size=60, max_size=66),
    st.sampled_from(["localhost", "127", "0x7f", "0177", "256", "bücher", "xn--bcher-kva", "xn--", "１２７", "%41"]),
    st.text(max_size=3),
)
HOSTS = st.lists(LABELS, max_size=5).map(".".join) | st.ip_addresses(v=6).map(lambda address: f"[{address}]")
PORTS = (
    st.just("")
    | st.sampled_from([":", ":0", ":80", ":00080", ":65536", ":+1", ":٣"])
    | (st.integers(0, 70_000).map(lambda port: f":{port}"))
)
TARGETS = st.text(st.sampled_from("/?&=%aü{}|^`[]@;:+.~!'\"<>\u2028") | st.characters(), max_size=12)
CALLBACKS = st.builds(
    lambda scheme, host, port, target: f"{scheme}://{host}{port}{target}",
    st.sampled_from(["http", "https", "HTTP"]),
    HOSTS,
    PORTS,
    st.just("") | TARGETS.map(lambda target: f"/{target}") | TARGETS.map(lambda target: f"?{target}"),
)


@each_case(("timeout_ms", "seconds"), [(1000, "1"), (2500, "2.5"), (119_999, "119.999")])
def test_the_timeout_is_written_in_seconds(timeout_ms: int, seconds: str) -> None:
    request = RequestBuilder("later/0.1").build(a_task(), 1, 0, NOW, timeout_ms, b"{}", "")
    assert parse_headers(request.head.decode())["later-timeout"] == seconds


TRACE_HEADERS = {
    "traceparent": f"00-{'a' * 32}-{'b' * 16}-00",
    "tracestate": "vendor=1,other=2",
    "baggage": "user=7;meta,key=%20value",
}


def test_the_trace_headers_of_a_task_are_sent_as_they_are() -> None:
    task = a_task(headers=TRACE_HEADERS, trace_context=b"c" * 25)
    sent = parse_headers(RequestBuilder("later/0.1").build(task, 1, 0, NOW, 1000, b"{}", "").head.decode())
    assert {name: sent[name] for name in TRACE_HEADERS} == TRACE_HEADERS


def test_the_context_that_was_kept_is_sent() -> None:
    task = a_task(trace_context=bytes.fromhex("ab" * 16 + "cd" * 8 + "01"))
    sent = parse_headers(RequestBuilder("later/0.1").build(task, 1, 0, NOW, 1000, b"{}", "").head.decode())
    assert sent["traceparent"] == f"00-{'ab' * 16}-{'cd' * 8}-01"
    assert sent["user-agent"] == "later/0.1"


@each_case(
    ("context", "end"),
    [(None, ""), ({"tenant": "ü", "request": "r-1"}, ',"context":{"tenant":"ü","request":"r-1"}')],
)
def test_the_body_has_a_context_only_if_the_task_has_one(context: dict[str, str] | None, end: str) -> None:
    body = encode_body(a_task(id="a", topic="order", content="hello", context=context))
    assert body.decode() == f'{{"id":"a","topic":"order","content":"hello"{end}}}'


@settings(max_examples=5 * settings().max_examples)
@given(CALLBACKS)
@example("http://h:/?")
def test_every_callback_that_is_admitted_can_be_called(callback: str) -> None:
    try:
        check_callback(callback)
    except Refused:
        return
    request = RequestBuilder("later/0.1").build(a_task(callback=callback), 1, 0, NOW, 1000, b"{}", "")
    origin, target = request.origin, request.target
    assert request.head.startswith(f"POST {target} HTTP/1.1\r\n".encode())
    assert re.fullmatch(r"/[!-~]*", target)
    assert ("?" in target) is ("?" in callback)
    assert 1 <= origin.port <= 65_535
    origin.host.encode("idna")  # as getaddrinfo does
    if (address := parse_host_address(origin.host)) is not None:
        assert str(address) == origin.host
    url = build_url(origin, target)
    assert (url.raw_host, url.port, url.raw_path_qs) == (origin.host, origin.port, target)


def test_the_body_of_an_operator_event_is_the_event_alone() -> None:
    content = '{"type": "later.tasks.dead"}'
    assert encode_body(a_task(topic=EVENTS_TOPIC, content=content)) == content.encode()
