"""Random requests of the API: strategies over its table of routes, its fields, and keys of all kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from hypothesis import strategies as st

from later.api.requests import EXPECTED
from later.api.routes import Route
from later.core.policy import POLICY_FIELDS


class RandomRequest(NamedTuple):
    """A request as it is sent: its path with its query as written, and the name of the caller whose key it has."""

    caller: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None


UUID = "5f0c6b1e-7d3a-4f6b-9a1d-2c3b4a5d6e7f"
IDS = ["a", "b", "alpha/a", "omega/a", "omega/omega/a", UUID, UUID, f"omega/{UUID}"]
TOPICS = ["order", "alpha/order", *["omega/order"] * 4, "public/omega/order", "omega/", "later/x", "alpha"]
NAMESPACES = ["alpha", "omega", "public/omega", "", "later"]
PROJECTS = ["omega", "omega", "alpha", "default", "a/b", "\xff"]
TEXTS = ["", "x", "\x00", "a/../b", "%2f", "*", "[", "ü", "\ud800", "x" * 3000, "{later:0}"]
HARD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 5.0, 1.5, 10**30, 1e308, float("nan"), float("inf"), [], ["x"], [None], [[]], {},
    {"a": "b"}, {"a": None}, *TEXTS, *IDS, *TOPICS,
]  # fmt: skip
"""Values of every JSON type, and some that are hard to read, for fields that take others."""

TIMES: list[Any] = [0, 1_800_000_000, 1_800_000_060.5, "2027-01-15T08:00:00Z"]
VALID: dict[str, list[Any]] = {
    "topic": TOPICS, "namespace": NAMESPACES, "id": IDS, "callback": ["http://127.0.0.1:8/x?y", "https://h/"],
    "delay": [0, 1, 60.5], "execute_time": TIMES, "retry": [0, 3], "content": ["", "x"], "headers": [{}, {"X-Y": "z"}],
    "ttl": [1, 600], "state": ["delay", "unack", "error", "dead", "pending"], "states": [["dead"], ["delay", "error"]],
    "due_after": TIMES, "due_before": TIMES, "died_after": TIMES, "died_before": TIMES, "reason": ["gone", "exhausted"],
    "rate": [1, 1000], "limit": [1, 1000], "dry_run": [True, False], "overlap": [0, 60], "cursor": ["", "e30"],
    "active": [True, False], "tickTime": [1000],
    "messages": [[{"body": "x", "ttl": 60}], [{"body": {}, "delay": 5}, {}]],
    "grace": [60, 0], "resource_types": [["messages"]], "context": [{}, {"tenant": "a"}],
}  # fmt: skip
"""Good values of each field, so that many requests get as far as the store."""
NEEDED = {
    "/create": ["topic", "callback"], "/create/batch": ["topic", "callback"], "/list": ["topic", "state"],
    "/query": ["id"], "/query/batch": ["id"], "/delete": ["id"], "/delete/batch": ["id"], "/update": ["id"],
    "/run-now": ["id"], "/explain": ["id"],
    "/v2/queues/{queue}/messages": ["messages"], "/v2/queues/{queue}/claims": ["ttl", "grace"],
}  # fmt: skip
"""Fields without which a route gets no further than its body."""
MORE = {
    "/create": ["id", "delay", "content", "headers", "ttl", "context"],
    "/create/batch": ["id", "delay", "content", "retry", "context"],
    "/list": ["limit", "cursor", "due_after", "died_before", "reason"],
    "/update": ["delay", "content", "callback", "context"],
    "/redrive": ["rate", "limit", "dry_run"], "/topics/{topic}/purge": ["states", "limit", "dry_run", "reason"],
    "/v2/queues/{queue}/purge": ["resource_types"], "/v2/queues/{queue}/claims/{claim}": ["ttl", "grace"],
}  # fmt: skip
"""Some of the other fields that a route takes; that of a policy takes those of policies."""
ZAQAR_QUERY = ["ids", "pop", "limit", "marker", "echo", "include_claimed", "detailed", "with_count", "claim_id"]
QUERY_VALUES = ["", "true", "false", "1", "0", "-1", "a", "alpha", "omega", "omega%2Fa", "%00", "%ff", "e30", "x%26y"]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
RAW_BODIES = [
    b"", b" ", b"null", b"[]", b"{", b"[{}", b'{"id": "a",}', b'"x"', b"\xff", b"\x00", b"[" * 9000, b'{"a":' * 9000,
    b'{"id": "a", "id": "b"}', b"9" * 5000, b"NaN", b'{"id": "\\ud800"}', b"\xef\xbb\xbf{}", b"[null, 5, {}, []]",
]  # fmt: skip
HEADERS = [
    {}, {}, {}, {"Content-Type": "application/json"}, {"Content-Type": "text/html; charset=\xff"},
    {"Content-Encoding": "gzip"}, {"Content-Encoding": "br"}, {"Expect": "bla"}, {"Accept": "text/plain"},
    {"X-Later-Key": "x"}, {"Origin": "http://evil.example"}, {"Content-Length": "0"}, {"Accept-Encoding": "zz;q=x"},
]  # fmt: skip
CLIENT_ID = "3381af922b9e11e3b19171861300734c"
"""What Zaqar's API asks of each request, besides the project."""

unlikely = st.integers(0, 9).map(lambda number: number == 0)
field_names = st.sampled_from(sorted({*EXPECTED, *POLICY_FIELDS, *VALID})) | st.sampled_from(["key", "__class__", ""])


@st.composite
def field_values(draw: st.DrawFn, name: str) -> Any:
    is_hard = draw(unlikely) or name not in VALID
    return draw(st.sampled_from(HARD_VALUES if is_hard else VALID[name]))


@st.composite
def objects(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """Draw an object for the route of this path: mostly of fields that it takes."""
    needed = NEEDED.get(path) or draw(st.sampled_from([["id"], ["topic"], []]))
    taken = MORE.get(path) or list(POLICY_FIELDS)
    more = draw(st.lists(field_names if draw(unlikely) else st.sampled_from(taken), max_size=2))
    names = more if draw(unlikely) or path.endswith("policy") else [*needed, *more]
    return {name: draw(field_values(name)) for name in names}


def bodies(path: str) -> st.SearchStrategy[bytes]:
    """Draw a body: mostly JSON of the route's shape, sometimes of another, sometimes cut off or no JSON at all."""
    several = st.lists(objects(path), max_size=4)
    shaped: st.SearchStrategy[Any] = several if path.endswith("/batch") else objects(path)
    encoded = st.one_of(shaped, shaped, shaped, objects(path), several).map(lambda value: json.dumps(value).encode())
    cut_off = st.builds(lambda body, end: body[:-end], encoded, st.integers(1, 9))
    return st.one_of(encoded, encoded, encoded, encoded, cut_off, st.sampled_from(RAW_BODIES))


def as_segment(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


segments = st.one_of(
    st.sampled_from(TOPICS).map(as_segment),
    st.sampled_from(NAMESPACES + IDS).map(as_segment),
    st.sampled_from(TEXTS).map(as_segment),
    st.sampled_from(["..", "%zz", "%", "omega/order", "%00", "%2e%2e", "omega%252forder", ";", "a:b"]),
)


@st.composite
def paths(draw: st.DrawFn, route: Route) -> str:
    """Draw a path of the route, sometimes with a query that it does not take."""
    parts = [draw(segments) if part.startswith("{") else part for part in route.template.split("/")]
    if draw(unlikely):
        parts.insert(draw(st.integers(1, len(parts))), draw(segments))
    known = ZAQAR_QUERY if route.is_zaqar else [*route.query]
    names = st.sampled_from([*known, "x"] if draw(unlikely) else known or ["x"])
    has_query = draw(st.booleans()) if known else draw(unlikely)
    pairs = draw(st.lists(st.tuples(names, st.sampled_from(QUERY_VALUES)), max_size=2)) if has_query else []
    return "/".join(parts) + ("?" if pairs else "") + "&".join(f"{name}={value}" for name, value in pairs)


@st.composite
def random_requests(draw: st.DrawFn, routes: Sequence[Route], callers: Sequence[str]) -> RandomRequest:
    """Draw a request of one of these routes, by one of these callers."""
    with_bodies = [route for route in routes if route.template in NEEDED or route.template in MORE]
    route = draw(st.sampled_from(with_bodies) | st.sampled_from(routes))
    method = draw(st.sampled_from(METHODS)) if draw(unlikely) else route.method
    has_body = method not in ("GET", "HEAD", "TRACE") or draw(unlikely)
    # a HEAD that cannot be parsed is answered with a body, because its method is not known, and a close
    headers: dict[str, str] = {} if method == "HEAD" else draw(st.sampled_from(HEADERS))
    if route.is_zaqar and not draw(unlikely):
        headers = {"Client-ID": CLIENT_ID, "X-Project-Id": draw(st.sampled_from(PROJECTS)), **headers}
    return RandomRequest(
        caller=draw(st.sampled_from(callers)),
        method=method,
        path=draw(paths(route)),
        headers=headers,
        body=draw(bodies(route.template)) if has_body else None,
    )
